//! A host process's end of an offload process: COI's and Snapify's machines and their connections.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
};

use snaprig_coi::{CoiError, machine as coi};
use snaprig_offload_wire::{
    coi::{Answer, Channel, FromDaemon, Notice, RunResult},
    snapify::{Reply, Wrote},
};
use snaprig_scenario::scenario::Ending;
use snaprig_scif::node::EndpointId;
use snaprig_snapify::machine as snapify;
use snaprig_wire::scif::NodeId;

use super::{app::AppId, script::Script, show};

/// No ticket or generation of the machine's.
pub const NONE: u64 = u64::MAX;

/// What an endpoint of a host process is for.
#[derive(Clone, Debug)]
pub enum Role {
    /// The process is being made over it.
    Create,
    /// A restored process is being adopted over it.
    Adopt,
    /// The owner's connection of this generation.
    Control(u64),
    /// To a daemon, for Snapify's requests.
    Snapify,
    /// A channel that is being connected for a new pipeline, of this generation and number.
    NewPipeline(u64, u32),
    /// A channel to the process, of this generation ([`NONE`] while it is being connected).
    Channel(u64, Channel),
}

impl Role {
    /// A frame for an endpoint with this role, as the message that it is.
    pub fn show(&self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Create | Self::Adopt | Self::Control(_) => show::<FromDaemon>(bytes),
            Self::Snapify => show::<Reply>(bytes),
            Self::NewPipeline(..) | Self::Channel(_, Channel::Pipeline(_)) => {
                show::<RunResult>(bytes)
            }
            Self::Channel(_, Channel::Notice) => show::<Notice>(bytes),
            Self::Channel(..) => show::<Answer>(bytes),
        }
    }
}

/// Something that a host process does by itself.
#[derive(Debug)]
pub enum HostTask {
    /// The script goes on.
    Script,
    /// The rig is gone.
    RigGone,
    /// A timer of COI's machine.
    Tick,
    /// The time for an action is over.
    Timeout(u64),
}

#[derive(Default)]
pub struct Host {
    pub alive: bool,
    /// The application's process is lost for good.
    pub lost: bool,
    pub process: Option<coi::Machine>,
    pub snapify: snapify::Machine,
    pub place: NodeId,
    pub pid: i32,
    pub port: u16,
    pub control: Option<EndpointId>,
    /// Where the daemon reads the program's bytes.
    pub image: i64,
    pub channels: BTreeMap<Channel, EndpointId>,
    /// Channels that are being connected, for a create or a restore.
    pub connecting: BTreeMap<Channel, EndpointId>,
    pub adopting: Option<(EndpointId, NodeId, i32, u16)>,
    /// Connections to daemons: one that is being made, the one made last, the process's own.
    pub calling_daemon: Option<EndpointId>,
    pub latest: Option<EndpointId>,
    pub current: Option<EndpointId>,
    /// The one to the card where copies go, and whether that is the one that is being made.
    pub copies: Option<EndpointId>,
    pub calling_target: bool,
    /// What was written to buffers since the last copy.
    pub wrote: Vec<Wrote>,
    pub asking: Option<EndpointId>,
    pub quiescing: u64,
    pub waiting: u64,
    /// Tickets that nobody waits for any more.
    pub given_up: BTreeSet<u64>,
    /// The action under way, by number, for its timeout.
    pub action: u64,
    pub next_ticket: u64,
    /// The channel of a pipeline that is being destroyed.
    pub given_up_channel: Option<EndpointId>,
    /// Whose offload process it is.
    pub app: AppId,
    pub script: Script,
    /// What calls were told that went wrong.
    pub errors: Vec<String>,
    pub failure: Option<String>,
}

impl Host {
    /// Its machines.
    pub fn describe(&self) -> String {
        let Self {
            process, snapify, ..
        } = self;
        format!("host process\n{process:#?}\n{snapify:#?}\n\n")
    }

    /// What it will do next.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        self.process.is_some().hash(hash);
        if let Some(process) = &self.process {
            process.hash_state(hash);
        }
        self.snapify.hash_state(hash);
        (self.connecting.len(), self.adopting.is_some()).hash(hash);
        (
            self.latest.is_some(),
            self.asking.is_some(),
            self.failure.is_some(),
        )
            .hash(hash);
    }

    /// Card and id of the process.
    pub fn whereabouts(&self) -> (NodeId, i32) {
        (self.place, self.pid)
    }

    /// How it ended, if there is no hope any more.
    pub fn end_known(&self) -> Option<CoiError> {
        self.process.as_ref().and_then(coi::Machine::end)
    }

    /// The smallest number that no pipeline has.
    pub fn free_pipeline(&self) -> u32 {
        let process = self.process.as_ref();
        process.and_then(coi::Machine::free_pipeline).unwrap_or(0)
    }

    pub fn generation(&self) -> u64 {
        self.process.as_ref().map_or(0, coi::Machine::generation)
    }

    /// Why it is no success, or what it waits for, whatever its application does.
    pub fn ending(&self) -> Option<Ending> {
        if !self.alive {
            return Some(Ending::Failed("the host process was killed".into()));
        }
        if let Some(why) = &self.failure {
            return Some(Ending::Failed(why.clone()));
        }
        if let Some(call) = self.script.calling() {
            return Some(Ending::Stuck(format!("{call:?} never returned")));
        }
        let unmade = self.process.is_none();
        unmade.then(|| Ending::Stuck("the process was never made".into()))
    }
}
