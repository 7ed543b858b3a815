//! The application of a host process: what it knows of its own calls, and of its offload processes.

mod history;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

use snaprig_coi::graph::{BufferId, Graph, Mode, OpId, PipelineId, ProcessId, Step};
use snaprig_offload_wire::coi::Window;
use snaprig_scenario::scenario::Ending;
use snaprig_scif::node::RequestId;

pub use self::{
    history::{History, Touch, Touches},
    work::{Asked, BUFFER_BYTES, CELLS, Deed, Given, Part},
};
use super::HostId;
use crate::parameters::Workload;

/// A host process and its application, from 0.
pub type AppId = usize;

/// Something that an application does by itself.
#[derive(Debug)]
pub enum AppTask {
    /// Its next call.
    Next,
    /// The next step of an operation's movement of bytes.
    Step(OpId),
    /// Bytes have been moved.
    Moved(OpId),
    /// It has looked at a map for long enough.
    Unmap(OpId),
    /// It signals a user event.
    Signal(OpId),
}

/// A buffer, as the host process knows it.
#[derive(Debug)]
pub struct Buffer {
    /// The host's copy, and what bytes pass through: the same, but for memory of the caller's.
    pub address: u64,
    pub stage: u64,
    /// In each process: its window's offset on the card.
    pub windows: BTreeMap<HostId, i64>,
    /// There are operations on it to be had.
    pub is_live: bool,
}

#[derive(Clone, Debug)]
pub struct Pipeline {
    pub host: HostId,
    pub number: u32,
    /// What its run functions returned, in the order in which they were asked for.
    pub runs: Vec<OpId>,
    pub is_live: bool,
}

/// What an operation needs beside what the graph knows.
#[derive(Clone, Debug)]
pub enum Payload {
    Run {
        pipeline: PipelineId,
        /// Ranges of buffers, how they are used, and whether with a reference.
        uses: Vec<(BufferId, Range<u64>, Mode, bool)>,
        /// Buffers of which the function takes references.
        adds: Vec<BufferId>,
        event: Option<OpId>,
    },
    Map {
        buffer: BufferId,
        range: Range<u64>,
        mode: Mode,
    },
    Unmap,
    /// Everything of a pipeline that is to go is done.
    Barrier(PipelineId),
    /// Nobody uses a buffer any more that is to go.
    Destroy(BufferId),
    /// References of these buffers hold it up, and nothing else is known of it.
    SetState(BufferId),
    Other,
}

/// Whom a machine tells that a call has ended.
#[derive(Clone, Debug)]
pub enum Waiter {
    Run(OpId),
    /// A transfer may go on.
    Enter(OpId),
    /// Why RMA failed.
    Broken(OpId),
    Coming(Coming, Stage),
}

/// How far a call is that creates or destroys something.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    Enter,
    Command,
    Broken,
}

/// The application.
#[derive(Default)]
pub struct Application {
    /// The process's offload processes.
    pub hosts: Range<HostId>,
    /// Those of them that are not there yet.
    pub missing: usize,
    /// Run functions have been asked for.
    pub runs: bool,
    pub graph: Graph,
    pub calls: VecDeque<Asked>,
    /// The next call waits for this one.
    pub blocked: Option<String>,
    pub payloads: BTreeMap<OpId, Payload>,
    pub waiters: BTreeMap<(HostId, u64), Waiter>,
    pub movements: BTreeMap<OpId, VecDeque<Step>>,
    pub rma: BTreeMap<(HostId, RequestId), OpId>,
    /// Run functions that have begun, as far as was told.
    pub begun: BTreeSet<OpId>,
    /// User events that offload processes signal.
    pub events: BTreeMap<OpId, HostId>,
    pub buffers: BTreeMap<BufferId, Buffer>,
    pub pipelines: BTreeMap<PipelineId, Pipeline>,
    pub results: BTreeMap<OpId, Option<u64>>,
    pub last_id: u64,
    pub history: History,
    /// Calls that failed at once.
    pub failed: Option<String>,
}

impl Application {
    /// Of a host process with these offload processes.
    pub fn new(seed: u64, work: &Workload, app: AppId, hosts: Range<HostId>) -> Self {
        Self {
            missing: hosts.len(),
            hosts,
            calls: work::draw(seed, app, work).into(),
            ..Self::default()
        }
    }

    /// After a restore: the windows have new offsets.
    pub fn windows_moved(&mut self, host: HostId, windows: &[Window]) {
        for window in windows {
            let buffer = self.buffers.get_mut(&window.id);
            if let Some(offset) = buffer.and_then(|buffer| buffer.windows.get_mut(&host)) {
                *offset = window.offset;
            }
        }
    }

    /// Its offload processes.
    pub fn hosts(&self) -> Range<HostId> {
        self.hosts.clone()
    }

    /// Results of run functions, by pipeline.
    pub fn results(&self) -> Vec<Vec<Option<u64>>> {
        let result = |op: &OpId| self.results.get(op).copied().flatten();
        let pipelines = self.pipelines.values();
        pipelines
            .map(|pipeline| pipeline.runs.iter().map(result).collect())
            .collect()
    }

    /// What was never done.
    pub fn waiting(&self) -> Option<String> {
        if let Some(call) = &self.blocked {
            return Some(format!("{call} never returned"));
        }
        let waiting = self.history.waiting();
        let first = waiting.first()?;
        let count = waiting.len();
        let what = self.payloads.get(first);
        Some(format!(
            "{count} operations wait; the first is {first}, {what:?}"
        ))
    }

    /// How it ended, if it is not waiting.
    pub fn ending(&self) -> Ending {
        let failure = self.failed.clone().or_else(|| self.history.failure());
        if let Some(why) = failure {
            return Ending::Failed(why);
        }
        if self.missing > 0 || !self.calls.is_empty() {
            let left = self.calls.len();
            return Ending::Stuck(format!("{left} calls were never made"));
        }
        let held = self.buffers.keys().find_map(|id| {
            let process = |host: &HostId| self.graph.references(process_id(*host), *id) != 0;
            let host = self.hosts.clone().find(process)?;
            Some(format!(
                "process {host} has not given back references to buffer {id}"
            ))
        });
        held.map_or(Ending::Finished, Ending::Stuck)
    }
}

/// What is being created or destroyed, in an offload process.
#[derive(Clone, Debug)]
pub enum Coming {
    Pipeline(HostId, u32),
    EndOfPipeline(HostId, PipelineId),
    Buffer(HostId, BufferId),
    EndOfBuffer(HostId, BufferId),
    Library(HostId),
}

impl Coming {
    pub fn host(&self) -> HostId {
        match self {
            Self::Pipeline(host, _)
            | Self::EndOfPipeline(host, _)
            | Self::Buffer(host, _)
            | Self::EndOfBuffer(host, _)
            | Self::Library(host) => *host,
        }
    }
}

/// Whether a caller was told for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Once,
    Twice,
}

/// A process as the graph knows it.
pub fn process_id(host: HostId) -> ProcessId {
    host as ProcessId + 1
}
