//! The application of a host process: a program that uses COI, over all of the host process's offload
//! processes, and COI's graph of operations, which says what may start when.
//!
//! ```text
//!  work      the program, drawn from the seed: one call after the other
//!  program   makes the calls: operations go to the graph
//!  coming    creates and destroys pipelines and buffers, and waits for that
//!  perform   does what the graph says: run functions go to their process's machine
//!  movement  and bytes are moved by RMA
//!  history   knows what was asked for, and so what must be true
//! ```
//!
//! What must stay true: operations on the same bytes that COI does not order depend on each other
//! explicitly, so that there is one right answer to what each of them sees; and nothing is waited for
//! that only a process can do that may be gone.

mod coming;
mod history;
mod movement;
mod perform;
mod program;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

use snaprig_coi::graph::{BufferId, Graph, Mode, OpId, PipelineId, Step};
use snaprig_scif::node::RequestId;
use snaprig_wire::coi::Window;

use self::{coming::Coming, history::History, work::Asked};
pub use self::{perform::Told, program::process_id, work::BUFFER_BYTES};
use super::{Ending, HostId, Workload};

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
struct Buffer {
    /// The host's copy, and what bytes pass through: the same, but for memory of the caller's.
    address: u64,
    stage: u64,
    /// In each process: its window's offset on the card.
    windows: BTreeMap<HostId, i64>,
    /// There are operations on it to be had.
    is_live: bool,
}

#[derive(Clone, Debug)]
struct Pipeline {
    host: HostId,
    number: u32,
    /// What its run functions returned, in the order in which they were asked for.
    runs: Vec<OpId>,
    is_live: bool,
}

/// What an operation needs beside what the graph knows.
#[derive(Clone, Debug)]
enum Payload {
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
enum Waiter {
    Run(OpId),
    /// A transfer may go on.
    Enter(OpId),
    /// Why RMA failed.
    Broken(OpId),
    Coming(Coming, Stage),
}

/// How far a call is that creates or destroys something.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Enter,
    Command,
    Broken,
}

/// The application.
#[derive(Default)]
pub struct Application {
    /// The process's offload processes.
    hosts: Range<HostId>,
    /// Those of them that are not there yet.
    missing: usize,
    /// Run functions have been asked for.
    runs: bool,
    graph: Graph,
    calls: VecDeque<Asked>,
    /// The next call waits for this one.
    blocked: Option<String>,
    payloads: BTreeMap<OpId, Payload>,
    waiters: BTreeMap<(HostId, u64), Waiter>,
    movements: BTreeMap<OpId, VecDeque<Step>>,
    rma: BTreeMap<(HostId, RequestId), OpId>,
    /// Run functions that have begun, as far as was told.
    begun: BTreeSet<OpId>,
    /// User events that offload processes signal.
    events: BTreeMap<OpId, HostId>,
    buffers: BTreeMap<BufferId, Buffer>,
    pipelines: BTreeMap<PipelineId, Pipeline>,
    results: BTreeMap<OpId, Option<u64>>,
    last_id: u64,
    history: History,
    /// Calls that failed at once.
    failed: Option<String>,
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
