//! Planted bugs: a campaign that does not find them finds nothing.

use serde::{Deserialize, Serialize};
use snaprig_hca::Canary as HcaCanary;

/// A bug that a run can be told to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Canary {
    /// Pause does not wait until the offload process has received what was sent to it (case 4).
    UncountedDrain,
    /// Pause does not wait until the host has received the results that were sent to it (case 4).
    UnsettledResults,
    /// RMA goes on while the process is paused (case 2).
    OpenRdma,
    /// A link takes records that are doubled, early or damaged.
    BelievingLink,
    /// A restored process does not register one of its windows anew.
    ForgottenWindow,
    /// What run functions write to buffers during a pause is not in the snapshot.
    StaleStore,
    /// Run functions go on after a capture that ends their process.
    RunsOn,
    /// The earlier snapshot is removed when a new one is begun.
    LostPredecessor,
    /// A file takes its name before it is synced.
    EarlyRename,
    /// The daemon is not told when the host process is gone.
    DeafDaemon,
    /// Nobody is told when nothing can bring the process back.
    SilentLoss,
    /// The daemon panics when a host process goes away in the middle of a pause.
    RashDaemon,
    /// COI's graph is not told what operations depend on.
    HastyStart,
    /// A run function is sent twice.
    DoubledRun,
    /// Who depends on a run function that failed is not told.
    SwallowedError,
    /// Not all of a buffer's bytes are moved.
    SkippedMove,
    /// Nobody hears that a run function has failed.
    LostReturn,
    /// References that run functions take are not counted.
    LostReferences,
    /// COI's graph is not told of a process that is gone.
    UnknownDeath,
    /// The last page of each buffer does not come back.
    LostPage,
    /// An HCA's responder carries out what came before.
    RepeatedRequest,
    /// An HCA that sends again forgets where in the message that was.
    ForgottenOffset,
    /// An HCA takes an acknowledgement for the data of a read.
    EarlyRead,
    /// An HCA forgets what is in the send queue of a queue pair that fails.
    LostFlush,
    /// An HCA that waits for an acknowledgement sets no timer.
    LostTimer,
    /// An HCA that waits for an acknowledgement does so far too long.
    SlowTimer,
    /// A SCIF node says that it uses a window no more, and copies with it.
    EarlyAnswer,
    /// A SCIF node does not say that its program has read.
    LostCredit,
    /// A SCIF node's fence does not wait for RMA that no call waits for.
    EarlyFence,
    /// A SCIF node keeps memory of windows whose peer it has lost.
    LeakedWindow,
    /// A SCIF node takes messages of an earlier connection of the same ports.
    StaleConnection,
    /// A card does not hear that another one is gone.
    LostNews,
    /// A coordinator takes an image for written whose member says that it is not.
    BelievedWrite,
    /// A manifest is written before all images are.
    HastyManifest,
    /// A coordinator that takes over does not know who belongs to the job.
    ForgottenMembers,
    /// Whether there is a manifest is told otherwise than the disk has it.
    TwiceDecided,
    /// An agent does not wait for what is on its way in connections.
    UncountedBytes,
    /// An agent does not have its program run on when a checkpoint fails.
    DeafAgent,
    /// An agent removes its image when it cannot know whether there is a manifest.
    DoubtfulRemoval,
    /// What was in a connection is put back twice.
    DoubledRefill,
}

impl Canary {
    /// All of them.
    pub const ALL: [Self; 40] = [
        Self::UncountedDrain,
        Self::UnsettledResults,
        Self::OpenRdma,
        Self::BelievingLink,
        Self::ForgottenWindow,
        Self::StaleStore,
        Self::RunsOn,
        Self::LostPredecessor,
        Self::EarlyRename,
        Self::DeafDaemon,
        Self::SilentLoss,
        Self::RashDaemon,
        Self::HastyStart,
        Self::DoubledRun,
        Self::SwallowedError,
        Self::SkippedMove,
        Self::LostReturn,
        Self::LostReferences,
        Self::UnknownDeath,
        Self::LostPage,
        Self::RepeatedRequest,
        Self::ForgottenOffset,
        Self::EarlyRead,
        Self::LostFlush,
        Self::LostTimer,
        Self::SlowTimer,
        Self::EarlyAnswer,
        Self::LostCredit,
        Self::EarlyFence,
        Self::LeakedWindow,
        Self::StaleConnection,
        Self::LostNews,
        Self::BelievedWrite,
        Self::HastyManifest,
        Self::ForgottenMembers,
        Self::TwiceDecided,
        Self::UncountedBytes,
        Self::DeafAgent,
        Self::DoubtfulRemoval,
        Self::DoubledRefill,
    ];

    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::UncountedDrain => "uncounted-drain",
            Self::UnsettledResults => "unsettled-results",
            Self::OpenRdma => "open-rdma",
            Self::BelievingLink => "believing-link",
            Self::ForgottenWindow => "forgotten-window",
            Self::StaleStore => "stale-store",
            Self::RunsOn => "runs-on",
            Self::LostPredecessor => "lost-predecessor",
            Self::EarlyRename => "early-rename",
            Self::DeafDaemon => "deaf-daemon",
            Self::SilentLoss => "silent-loss",
            Self::RashDaemon => "rash-daemon",
            Self::HastyStart => "hasty-start",
            Self::DoubledRun => "doubled-run",
            Self::SwallowedError => "swallowed-error",
            Self::SkippedMove => "skipped-move",
            Self::LostReturn => "lost-return",
            Self::LostReferences => "lost-references",
            Self::UnknownDeath => "unknown-death",
            Self::LostPage => "lost-page",
            Self::RepeatedRequest => "repeated-request",
            Self::ForgottenOffset => "forgotten-offset",
            Self::EarlyRead => "early-read",
            Self::LostFlush => "lost-flush",
            Self::LostTimer => "lost-timer",
            Self::SlowTimer => "slow-timer",
            Self::EarlyAnswer => "early-answer",
            Self::LostCredit => "lost-credit",
            Self::EarlyFence => "early-fence",
            Self::LeakedWindow => "leaked-window",
            Self::StaleConnection => "stale-connection",
            Self::LostNews => "lost-news",
            Self::BelievedWrite => "believed-write",
            Self::HastyManifest => "hasty-manifest",
            Self::ForgottenMembers => "forgotten-members",
            Self::TwiceDecided => "twice-decided",
            Self::UncountedBytes => "uncounted-bytes",
            Self::DeafAgent => "deaf-agent",
            Self::DoubtfulRemoval => "doubtful-removal",
            Self::DoubledRefill => "doubled-refill",
        }
    }

    /// Whether it is a bug of SCIF nodes, which shows in scenario "scif".
    pub fn is_of_scif(self) -> bool {
        matches!(
            self,
            Self::EarlyAnswer
                | Self::LostCredit
                | Self::EarlyFence
                | Self::LeakedWindow
                | Self::StaleConnection
                | Self::LostNews
        )
    }

    /// Whether it is a bug of a job's coordinator or agents, which shows in scenario "coord".
    pub fn is_of_coord(self) -> bool {
        matches!(
            self,
            Self::BelievedWrite
                | Self::HastyManifest
                | Self::ForgottenMembers
                | Self::TwiceDecided
                | Self::UncountedBytes
                | Self::DeafAgent
                | Self::DoubtfulRemoval
                | Self::DoubledRefill
        )
    }

    /// The bug that the HCA has for it.
    pub fn of_the_hca(self) -> Option<HcaCanary> {
        Some(match self {
            Self::RepeatedRequest => HcaCanary::NoDuplicateCheck,
            Self::ForgottenOffset => HcaCanary::GoBackForgetsOffset,
            Self::EarlyRead => HcaCanary::AcknowledgeCompletesReads,
            Self::LostFlush => HcaCanary::FlushForgetsSends,
            Self::LostTimer => HcaCanary::NoTimer,
            Self::SlowTimer => HcaCanary::SlowTimer,
            _ => return None,
        })
    }
}

impl std::str::FromStr for Canary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<_> = Self::ALL.iter().map(|canary| canary.name()).collect();
        let found = Self::ALL.into_iter().find(|canary| canary.name() == text);
        found.ok_or_else(|| format!("no such canary; there are {}", names.join(", ")))
    }
}
