//! Planted bugs: a campaign that does not find them finds nothing.

use serde::{Deserialize, Serialize};

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
}

impl Canary {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::UncountedDrain,
        Self::UnsettledResults,
        Self::OpenRdma,
        Self::BelievingLink,
        Self::ForgottenWindow,
        Self::StaleStore,
        Self::LostPredecessor,
        Self::EarlyRename,
        Self::DeafDaemon,
        Self::SilentLoss,
        Self::RashDaemon,
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
            Self::LostPredecessor => "lost-predecessor",
            Self::EarlyRename => "early-rename",
            Self::DeafDaemon => "deaf-daemon",
            Self::SilentLoss => "silent-loss",
            Self::RashDaemon => "rash-daemon",
        }
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
