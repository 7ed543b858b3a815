//! What the machine knows of a process and its plugins.

use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, Instant},
};

use libc::pid_t;
use snaprig_ckpt::owned::OwnedByProcess;
use snaprig_ckpt_plugin::message::{Descriptor, Registered};

/// Who refuses, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The process.
    pub pid: pid_t,
    /// Which plugin, and its reason.
    pub what: String,
}

/// What a plugin is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Pre-checkpoint.
    Asked,
    /// What follows.
    Told,
}

/// Where a plugin is: see the diagram of [`super`]. With numbers of what they were asked for, and when that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    Busy(Doing, u64, Instant),
    Late(Doing, u64),
    Ready,
}

/// A plugin.
#[derive(Debug)]
pub struct Plugin {
    pub registered: Registered,
    pub state: State,
    pub descriptors: Vec<Descriptor>,
    pub regions: Vec<Range<u64>>,
}

/// A process that is connected.
#[derive(Debug)]
pub struct Process {
    pub pid: pid_t,
    pub channel: Option<Descriptor>,
    /// It has said what plugins it has.
    pub listed: bool,
    pub plugins: BTreeMap<u32, Plugin>,
}

impl Process {
    /// Who has taken too long, and is still at it. Plugins of a process have one thread: the others come after it.
    pub fn late(&self) -> Option<&Plugin> {
        let mut plugins = self.plugins.values();
        plugins.find(|plugin| matches!(plugin.state, State::Late(..)))
    }

    pub fn is_late(&self) -> bool {
        self.late().is_some()
    }

    /// What belongs to its plugins.
    pub fn owned(&self) -> OwnedByProcess {
        let plugins = self.plugins.values();
        let of = |plugin: &Plugin| {
            let name = plugin.registered.name.clone();
            let descriptors = plugin.descriptors.clone().into_iter();
            descriptors.map(move |descriptor| (descriptor, name.clone()))
        };
        OwnedByProcess {
            channel: self.channel,
            descriptors: plugins.clone().flat_map(of).collect(),
            regions: plugins.flat_map(|plugin| plugin.regions.clone()).collect(),
        }
    }
}

impl Plugin {
    pub fn is_asked(&self) -> bool {
        matches!(
            self.state,
            State::Busy(Doing::Asked, ..) | State::Late(Doing::Asked, _)
        )
    }

    pub fn refusal(&self, pid: pid_t, reason: &str) -> Refusal {
        let name = &self.registered.name;
        Refusal {
            pid,
            what: format!("plugin {name}: {reason}"),
        }
    }

    pub fn lateness(&self) -> String {
        let patience = Duration::from_millis(self.registered.patience_ms);
        format!("it has not answered within {patience:?}")
    }
}
