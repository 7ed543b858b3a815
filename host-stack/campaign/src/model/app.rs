//! The application of a host process, and the script that snapshots it meanwhile.
//!
//! ```text
//!  buffers:    create all (case 1, case 3)
//!  pipelines:  run functions, all asked for at once (case 4): each counts, in the process and in
//!              the buffers that it is given, holds references to those, and says when it begins
//!  buffers:    write, read back, compare, again (case 2); at the end, what the run functions left
//!  script:     pause, capture, restore, resume, as the scenario says
//! ```

use std::collections::{BTreeMap, BTreeSet};

use snaprig_coi::{
    CoiError,
    machine::{self as coi, Region, Value},
};
use snaprig_scif::node::RequestId;
use snaprig_sim::{Plan, Workload};
use snaprig_snapify::{SnapifyError, machine::Call};
use snaprig_wire::{
    coi::{Answer, BufferUse, Channel, Command, Notice, RunFunction, Window},
    scif::{HOST, NodeId, PAGE},
};

use super::{
    Ending, Event, HostId, World,
    host::{HostTask, Told},
};
use crate::{Canary, check, links::Network as _};

/// The scenarios that plans may name.
pub const SCENARIOS: [&str; 4] = ["migrate", "swap", "checkpoint", "twice"];

/// After the beginning of the work: somewhere in the middle of it.
const SCRIPT_AFTER_NS: u64 = 30_000;
/// Bytes of a buffer: a page that run functions count in, a page that RMA writes to.
pub const BUFFER_BYTES: u64 = 2 * PAGE;

/// What is done with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Create,
    Write(u16),
    Read(u16),
    /// Read what the run functions have left.
    Last,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Waits to be let into the region.
    Enter(Deed, u64),
    /// The command for it is under way.
    Command(u64),
    /// RMA is under way.
    Copy(Deed, RequestId),
    /// RMA has failed: why?
    Ask(Deed, u64),
    /// Created, and not all others are; or everything else is done, but run functions still run.
    Idle,
    Done,
    Failed(String),
}

#[derive(Debug)]
struct Buffer {
    step: Step,
    /// Of the window on the card.
    offset: i64,
    /// Memory of the host process: a page to write from, a page to read to.
    address: u64,
    last: Option<u64>,
}

/// What came of a run function, once its caller was told.
type Fate = Option<Result<Vec<u8>, String>>;

/// The application.
#[derive(Debug, Default)]
pub struct Application {
    work: Workload,
    buffers: Vec<Buffer>,
    /// By pipeline: tickets, and what came of them.
    runs: Vec<Vec<(u64, Fate)>>,
    /// Run functions that have begun, as far as was told.
    begun: BTreeSet<u64>,
    /// References that the process holds, by buffer.
    references: BTreeMap<u64, i64>,
    /// Another command, and whether its caller was told.
    lookup: Option<(u64, bool)>,
    working: bool,
}

impl Application {
    pub fn new(work: &Workload) -> Self {
        Self {
            work: *work,
            ..Self::default()
        }
    }

    pub fn pipelines(&self) -> u32 {
        self.work.pipelines.into()
    }

    /// After a restore: the windows have new offsets.
    pub fn windows_moved(&mut self, windows: &[Window]) {
        for window in windows {
            if let Some(buffer) = self.buffers.get_mut(window.id as usize) {
                buffer.offset = window.offset;
            }
        }
    }

    /// The process tells something unasked.
    pub fn noticed(&mut self, notice: &Notice) {
        if let Notice::Released { id, count } = notice {
            *self.references.entry(*id).or_default() -= *count as i64;
        }
    }

    /// The process is gone for good.
    pub fn process_gone(&mut self) {
        self.references.clear();
    }

    fn run_functions_are_done(&self) -> bool {
        self.working && self.runs.iter().flatten().all(|(_, told)| told.is_some())
    }

    pub fn results(&self) -> Vec<Vec<Option<u64>>> {
        let value = |told: &Fate| {
            let bytes = told.as_ref()?.as_ref().ok()?;
            bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
        };
        let pipelines = self.runs.iter();
        pipelines
            .map(|runs| runs.iter().map(|(_, told)| value(told)).collect())
            .collect()
    }

    pub fn buffers(&self) -> Vec<Option<u64>> {
        self.buffers.iter().map(|buffer| buffer.last).collect()
    }

    pub fn ending(&self) -> Ending {
        for (number, runs) in self.runs.iter().enumerate() {
            if let Some(run) = runs.iter().position(|(_, told)| told.is_none()) {
                let how = format!("nobody was told of run function {run} of pipeline {number}");
                return Ending::Stuck(how);
            }
        }
        if matches!(self.lookup, Some((_, false))) {
            return Ending::Stuck("nobody was told of a function's address".into());
        }
        let mut failure = None;
        for (id, buffer) in self.buffers.iter().enumerate() {
            match &buffer.step {
                Step::Done => {}
                Step::Idle if !self.working => {}
                Step::Failed(why) => failure = failure.or(Some(why)),
                step => return Ending::Stuck(format!("buffer {id} waits: {step:?}")),
            }
        }
        let told = self.runs.iter().flatten();
        let errors = told.filter_map(|(_, told)| told.as_ref()?.as_ref().err());
        let held = self.references.iter().find(|(_, count)| **count != 0);
        match (failure.or(errors.into_iter().next()), held) {
            (Some(why), _) => Ending::Failed(why.clone()),
            (None, Some((id, count))) => Ending::Stuck(format!(
                "{count} references to buffer {id} were not given back"
            )),
            _ if !self.working => Ending::Stuck("the work never began".into()),
            _ => Ending::Finished,
        }
    }
}

/// What the script does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    Pause,
    Capture,
    Restore,
    Resume,
    #[default]
    Done,
}

/// Calls of Snapify, and how they went.
#[derive(Debug, Default)]
pub struct Script {
    next: Next,
    terminate: bool,
    /// Cards that restore tries, in turn.
    targets: Vec<NodeId>,
    calling: Option<Next>,
    captured: bool,
    rounds: u32,
    /// Snapshots that were begun, and the last one whose capture was told to be complete.
    pub round: u64,
    pub safe_round: u64,
    /// Its snapshot was damaged on purpose.
    pub damaged: bool,
}

impl Script {
    /// For a process that is on the card `place` at first.
    pub fn new(plan: &Plan, place: NodeId) -> Self {
        let others = (place + 1..=plan.cards).chain(1..=place);
        Self {
            next: Next::Pause,
            terminate: plan.scenario == "swap",
            targets: match plan.scenario.as_str() {
                "checkpoint" => Vec::new(),
                _ => others.collect(),
            },
            rounds: if plan.scenario == "twice" { 2 } else { 1 },
            ..Self::default()
        }
    }

    /// Nothing more is done.
    pub fn stop(&mut self) {
        self.next = Next::Done;
    }

    /// The call under way.
    pub fn calling(&self) -> Option<Next> {
        self.calling
    }

    /// What comes after a call; `None` if nothing can help any more.
    fn after(&mut self, called: Next, well: bool) -> Option<Next> {
        Some(match called {
            Next::Pause if well => {
                self.captured = false;
                Next::Capture
            }
            // It goes on without a snapshot.
            Next::Pause => Next::Done,
            Next::Capture if well => {
                self.captured = true;
                self.safe_round = self.round;
                match self.targets.is_empty() {
                    true => Next::Resume,
                    false => Next::Restore,
                }
            }
            Next::Capture => Next::Resume,
            Next::Restore if well => Next::Resume,
            Next::Restore => {
                self.targets.remove(0);
                Next::Restore
            }
            Next::Resume if well && self.rounds > 1 => {
                self.rounds -= 1;
                Next::Pause
            }
            Next::Resume if well => Next::Done,
            Next::Resume if self.captured && !self.targets.is_empty() => {
                self.targets.remove(0);
                Next::Restore
            }
            Next::Resume | Next::Done => return None,
        })
    }
}

impl World {
    // The work.

    /// The process is there: its buffers are made, and then it is given work.
    pub(super) fn start_work(&mut self, host: HostId) {
        for id in 0..self.hosts[host].app.work.buffers {
            let address = self.buffer();
            self.hosts[host].app.buffers.push(Buffer {
                step: Step::Idle,
                offset: 0,
                address,
                last: None,
            });
            self.enter(host, id.into(), Deed::Create);
        }
        if self.hosts[host].app.buffers.is_empty() {
            self.work(host);
        }
    }

    fn work(&mut self, host: HostId) {
        self.hosts[host].app.working = true;
        let work = self.hosts[host].app.work;
        for pipeline in 0..work.pipelines {
            let buffers = (0..work.buffers).filter(|id| id % work.pipelines == pipeline);
            let buffers: Vec<_> = buffers
                .map(|id| BufferUse {
                    id: id.into(),
                    offset: 0,
                    len: BUFFER_BYTES,
                    add_ref: true,
                })
                .collect();
            let tickets: Vec<_> = (0..work.runs).map(|_| self.ticket(host)).collect();
            let runs = tickets.iter().map(|ticket| (*ticket, None)).collect();
            self.hosts[host].app.runs.push(runs);
            for ticket in tickets {
                let function = RunFunction {
                    function: 1,
                    buffers: buffers.clone(),
                    misc: vec![],
                    return_len: 8,
                    tell_start: true,
                };
                for buffer in &buffers {
                    let references = &mut self.hosts[host].app.references;
                    *references.entry(buffer.id).or_default() += 1;
                }
                self.coi(host, coi::Input::Run(ticket, pipeline.into(), function));
            }
        }
        let ticket = self.ticket(host);
        self.hosts[host].app.lookup = Some((ticket, false));
        let lookup = Command::Function("next".into());
        self.coi(host, coi::Input::Command(ticket, lookup));
        for id in 0..work.buffers {
            self.write_or_finish(host, id.into(), 1);
        }
        let event = Event::Host(host, HostTask::Script);
        self.engine
            .after(self.host_processes[host], SCRIPT_AFTER_NS, event);
    }

    /// A run function has begun.
    pub(super) fn begun(&mut self, host: HostId, ticket: u64) {
        if !self.hosts[host].app.begun.insert(ticket) {
            let how = "a caller was told twice that its run function begins";
            self.violation(check::contradiction::NAME, how);
        }
    }

    /// A caller is told.
    pub(super) fn app_told(
        &mut self,
        host: HostId,
        ticket: u64,
        result: Result<Value, CoiError>,
    ) -> Told {
        let app = &mut self.hosts[host].app;
        if let Some((_, told)) = app.lookup.as_mut().filter(|(of, _)| *of == ticket) {
            return match std::mem::replace(told, true) {
                false => Told::Once,
                true => Told::Twice,
            };
        }
        let mut runs = (0..).zip(&mut app.runs).flat_map(|(number, runs)| {
            let runs = runs.iter_mut();
            runs.map(move |(of, told)| (number, of, told))
        });
        if let Some((number, _, told)) = runs.find(|(_, of, _)| **of == ticket) {
            let early = result.is_ok() && !app.begun.contains(&ticket);
            if result.is_ok() {
                self.ledger.of(host, number).received += 1;
            }
            let returned = match result {
                Ok(Value::Returned { value, .. }) => Ok(value),
                Ok(_) => Err("that is no result".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            if told.replace(returned).is_some() {
                return Told::Twice;
            }
            if early {
                let how = "a run function returned to a caller who was not told that it begins";
                self.violation(check::contradiction::NAME, how);
            }
            self.finish_buffers(host);
            return Told::Once;
        }
        let step = |buffer: &Buffer| match buffer.step {
            Step::Enter(_, of) | Step::Command(of) | Step::Ask(_, of) => of == ticket,
            _ => false,
        };
        match app.buffers.iter().position(step) {
            Some(id) => {
                self.buffer_told(host, id, result);
                Told::Once
            }
            None => Told::Twice,
        }
    }

    // Buffers.

    fn enter(&mut self, host: HostId, id: usize, deed: Deed) {
        if self.canary == Some(Canary::OpenRdma) && deed != Deed::Create {
            return self.rma(host, id, deed);
        }
        let ticket = self.ticket(host);
        self.hosts[host].app.buffers[id].step = Step::Enter(deed, ticket);
        self.coi(host, coi::Input::Enter(ticket, region(deed)));
    }

    fn leave(&mut self, host: HostId, deed: Deed) {
        if self.canary != Some(Canary::OpenRdma) || deed == Deed::Create {
            self.coi(host, coi::Input::Leave(region(deed)));
        }
    }

    fn buffer_told(&mut self, host: HostId, id: usize, result: Result<Value, CoiError>) {
        let step = self.hosts[host].app.buffers[id].step.clone();
        match (step, result) {
            (Step::Enter(Deed::Create, _), Ok(_)) => {
                let ticket = self.ticket(host);
                self.hosts[host].app.buffers[id].step = Step::Command(ticket);
                let command = Command::CreateBuffer {
                    id: id as u64,
                    len: BUFFER_BYTES,
                    address: None,
                };
                self.coi(host, coi::Input::Command(ticket, command));
            }
            (Step::Enter(deed, _), Ok(_)) => self.rma(host, id, deed),
            (Step::Enter(..), Err(error)) => self.buffer_fails(host, id, error.to_string()),
            (Step::Command(_), Ok(Value::Answer(Answer::Window(window)))) => {
                let buffer = &mut self.hosts[host].app.buffers[id];
                (buffer.offset, buffer.step) = (window.offset, Step::Idle);
                self.leave(host, Deed::Create);
                let buffers = self.hosts[host].app.buffers.iter();
                if buffers.clone().all(|buffer| buffer.step == Step::Idle) {
                    self.work(host);
                }
            }
            (Step::Command(_), other) => {
                self.leave(host, Deed::Create);
                let why = other
                    .err()
                    .map_or("that is no window".into(), |e| e.to_string());
                self.buffer_fails(host, id, why);
            }
            (Step::Ask(deed, _), other) => {
                self.leave(host, deed);
                let why = other.err().map_or("RMA failed".into(), |e| e.to_string());
                self.buffer_fails(host, id, why);
            }
            _ => {}
        }
    }

    fn buffer_fails(&mut self, host: HostId, id: usize, why: String) {
        self.hosts[host].app.buffers[id].step = Step::Failed(why);
    }

    fn rma(&mut self, host: HostId, id: usize, deed: Deed) {
        let buffer = &self.hosts[host].app.buffers[id];
        let (address, offset) = (buffer.address, buffer.offset);
        let (local, remote, write) = match deed {
            Deed::Write(count) => {
                let bytes = pattern(host, id, count).to_le_bytes();
                self.memory.insert(address, bytes.to_vec());
                (address, offset + PAGE as i64, true)
            }
            Deed::Read(_) => (address + PAGE, offset + PAGE as i64, false),
            Deed::Create | Deed::Last => (address + PAGE, offset, false),
        };
        let endpoint = self.hosts[host].channels.get(&Channel::Dma).copied();
        let request = endpoint.map_or(0, |endpoint| {
            self.nodes[usize::from(HOST)].copy_memory(endpoint, local, PAGE, remote, write)
        });
        self.hosts[host].app.buffers[id].step = Step::Copy(deed, request);
        self.pump(HOST);
        if !self.engine.is_alive(self.rig) {
            self.rma_done(host, request, Err(libc::ENODEV));
        }
    }

    /// RMA has ended; of request 0: all of it, with the connection.
    pub(super) fn rma_done(&mut self, host: HostId, request: RequestId, result: Result<(), i32>) {
        for id in 0..self.hosts[host].app.buffers.len() {
            let Step::Copy(deed, of) = self.hosts[host].app.buffers[id].step else {
                continue;
            };
            if request != 0 && request != of {
                continue;
            }
            match result {
                Ok(()) => {
                    self.leave(host, deed);
                    self.copied(host, id, deed);
                }
                // What became of the process? (`snaprig_coi::buffer`)
                Err(_) => {
                    let ticket = self.ticket(host);
                    self.hosts[host].app.buffers[id].step = Step::Ask(deed, ticket);
                    self.coi(host, coi::Input::Broken(ticket));
                }
            }
        }
    }

    fn copied(&mut self, host: HostId, id: usize, deed: Deed) {
        let address = self.hosts[host].app.buffers[id].address + PAGE;
        let read = self
            .memory
            .get(&address)
            .and_then(|bytes| bytes.first_chunk());
        let read = read.map(|bytes| u64::from_le_bytes(*bytes));
        match deed {
            Deed::Write(count) => self.enter(host, id, Deed::Read(count)),
            Deed::Read(count) => {
                let wrote = pattern(host, id, count);
                if read != Some(wrote) && !self.damaged {
                    let how = format!("buffer {id}: wrote {wrote:#x}, read {read:x?}");
                    self.violation(check::rdma::NAME, how);
                }
                self.write_or_finish(host, id, count + 1);
            }
            Deed::Create | Deed::Last => {
                let damaged = self.damaged;
                let app = &mut self.hosts[host].app;
                let runs = u64::from(app.work.runs);
                let last = if damaged { runs } else { read.unwrap_or(0) };
                let buffer = &mut app.buffers[id];
                (buffer.step, buffer.last) = (Step::Done, Some(last));
            }
        }
    }

    fn write_or_finish(&mut self, host: HostId, id: usize, count: u16) {
        if count <= self.hosts[host].app.work.writes {
            return self.enter(host, id, Deed::Write(count));
        }
        self.hosts[host].app.buffers[id].step = Step::Idle;
        self.finish_buffers(host);
    }

    /// Once all run functions are done, buffers are read a last time.
    fn finish_buffers(&mut self, host: HostId) {
        if !self.hosts[host].app.run_functions_are_done() {
            return;
        }
        for id in 0..self.hosts[host].app.buffers.len() {
            if self.hosts[host].app.buffers[id].step == Step::Idle {
                self.enter(host, id, Deed::Last);
            }
        }
    }

    // The script.

    pub(super) fn script(&mut self, host: HostId) {
        let script = &mut self.hosts[host].script;
        if script.calling.is_some() {
            return;
        }
        let next = script.next;
        let call = match next {
            Next::Pause => {
                script.round += 1;
                Call::Pause
            }
            Next::Capture => Call::Capture(script.terminate),
            Next::Restore => match script.targets.first().copied() {
                Some(node) => Call::Restore(node),
                None => {
                    script.next = Next::Resume;
                    return self.script(host);
                }
            },
            Next::Resume => Call::Resume,
            Next::Done => return,
        };
        script.calling = Some(next);
        self.call(host, call);
    }

    pub(super) fn returned(&mut self, host: HostId, result: Result<u64, SnapifyError>) {
        let one = &mut self.hosts[host];
        let Some(called) = one.script.calling.take() else {
            return self.violation(check::contradiction::NAME, "a call returned twice");
        };
        let well = result.is_ok();
        one.errors
            .extend(result.err().map(|error| error.to_string()));
        let next = one.script.after(called, well);
        one.script.next = next.unwrap_or(Next::Done);
        if next.is_none() && self.canary != Some(Canary::SilentLoss) {
            // Nothing brings it back. The application ends.
            self.hosts[host].lost = true;
            self.coi(host, coi::Input::RigGone);
        }
        let event = Event::Host(host, HostTask::Script);
        self.engine.after(self.host_processes[host], 0, event);
    }
}

fn region(deed: Deed) -> Region {
    match deed {
        Deed::Create => Region::Lifecycle,
        _ => Region::Rdma,
    }
}

/// What is written to a buffer: never the same twice.
fn pattern(host: HostId, id: usize, count: u16) -> u64 {
    (host as u64 + 1) << 48 | (id as u64 + 1) << 32 | u64::from(count)
}
