//! Which operation may start when, and what has to be moved for it: run functions, transfers, maps
//! and user events of a host process, over all of its offload processes.
//!
//! ```text
//!              explicit dependencies done,        no conflict with what         bytes are
//!              first of its pipeline              came before                   where they belong
//!   submit --> Waiting -------------> ready -----------------------> Moving -----------------> Running
//!                 |                                                     |                         | only run
//!                 '-- a dependency has failed, its process is gone -----+--> Completed <----------' functions
//! ```
//!
//! The rules are COI's (COIBuffer_source.h, COIPipeline_source.h):
//!
//! - Run functions, maps, unmaps and changes of state are *ordered*: each waits for earlier ordered
//!   ones that conflict (one of both writes to a byte that the other one uses), and while a process
//!   holds references to one of its buffers. Buffers of OpenCL's kind know no order.
//! - Writes, reads and copies are *transfers*: they wait for explicit dependencies, and for transfers of
//!   the same bytes that were ready before. Run functions and references do not hold them up: programs
//!   use them to talk to a run function that runs.
//! - Everybody waits while bytes of theirs are being moved.
//! - Who finds no room for a buffer in a process waits until others that use buffers have ended, and is
//!   tried again (`room`): it fails if there is none for it alone.
//! - Whoever depends on an operation that failed fails with the same error, and is never started. A
//!   user event that is unregistered counts as signaled for those who depend on it.
//!
//! What must stay true: each operation is completed exactly once; it runs at most once, after all that it
//! depends on; run functions of a pipeline are started one at a time, in the order in which they
//! were submitted; and every byte that a run function or the host is shown is the one that was
//! written last.

mod copies;
mod end;
mod order;
mod paging;
mod plan;
mod references;
mod room;
#[cfg(test)]
mod tests;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

pub use self::work::{Mode, Output, Place, State, Step, Use, Work};
use self::{
    copies::Copies,
    order::{Claim, Class},
    room::Room,
};
use crate::CoiError;

/// An operation and its event: never 0, never used again.
pub type OpId = u64;
/// A buffer.
pub type BufferId = u64;
/// A process.
pub type ProcessId = u64;
/// A pipeline of any process.
pub type PipelineId = u64;

/// What happens.
#[derive(Clone, Debug)]
pub enum Input {
    /// [`Output::Move`] is done, or has failed.
    Moved(OpId, Result<(), CoiError>),
    /// [`Output::Move`] has failed: there was no room in a process for a buffer, while others used theirs.
    NoRoom(OpId, CoiError),
    /// [`Output::Run`] is done; references that the process has taken meanwhile, buffer by buffer.
    Returned(OpId, Result<Vec<(BufferId, u64)>, CoiError>),
    /// A process gives references back (or, less than none, takes some).
    Released {
        /// The process.
        process: ProcessId,
        /// To this buffer.
        buffer: BufferId,
        /// So many.
        count: i64,
    },
    /// The host takes references in a process's name (or, less than none, gives some back). They do not
    /// outlive the buffer: whoever destroys it need not give them back.
    Counted {
        /// The process.
        process: ProcessId,
        /// To this buffer.
        buffer: BufferId,
        /// So many.
        count: i64,
    },
    /// A process is gone for good: what is meant for it fails.
    Gone(ProcessId, CoiError),
    /// Nobody will use a buffer again: it is forgotten.
    Forget(BufferId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Moving,
    Running,
}

#[derive(Debug)]
struct Op {
    work: Work,
    class: Class,
    claims: Vec<Claim>,
    /// Explicit dependencies that are not done.
    pending: usize,
    phase: Phase,
    dependents: Vec<OpId>,
    /// If nobody else was under way when it started: how many had been started then.
    alone: Option<u64>,
}

#[derive(Debug)]
struct Buffer {
    bytes: u64,
    /// OpenCL's kind: no implicit order.
    unordered: bool,
    copies: Copies,
    /// Operations on it: those that have started, and the others.
    started: BTreeSet<OpId>,
    waiting: BTreeSet<OpId>,
    /// References that processes hold. What is given back may be heard of before what was taken.
    references: BTreeMap<ProcessId, i64>,
    /// Those among them that the host has taken itself.
    counted: BTreeMap<ProcessId, i64>,
    /// Mapped and not asked to be unmapped.
    maps: BTreeSet<OpId>,
    /// Processes that have no memory for it now: nothing of it is valid there.
    absent: BTreeSet<ProcessId>,
    /// The last operation on it that started.
    last: OpId,
}

/// The machine: [`Graph::submit`] operations, [`Graph::handle`] what happens, then
/// [`Graph::poll_output`].
#[derive(Debug, Default)]
pub struct Graph {
    last: OpId,
    ops: BTreeMap<OpId, Op>,
    /// Those that only other operations on the same bytes may hold up.
    ready: BTreeSet<OpId>,
    failures: BTreeMap<OpId, CoiError>,
    buffers: BTreeMap<BufferId, Buffer>,
    pipelines: BTreeMap<PipelineId, VecDeque<OpId>>,
    /// What maps that are done, and not unmapped, look at.
    maps: BTreeMap<OpId, (BufferId, Range<u64>, Mode)>,
    room: Room,
    outputs: VecDeque<Output>,
}

impl Graph {
    /// A new buffer, valid on the host or where else it is; `blank` if it is zero everywhere.
    pub fn add_buffer(
        &mut self,
        id: BufferId,
        bytes: u64,
        unordered: bool,
        blank: bool,
        only_in: Option<Place>,
    ) {
        let buffer = Buffer {
            bytes,
            unordered,
            copies: Copies::new(bytes, only_in.unwrap_or(Place::Host), blank),
            started: BTreeSet::new(),
            waiting: BTreeSet::new(),
            references: BTreeMap::new(),
            counted: BTreeMap::new(),
            maps: BTreeSet::new(),
            absent: BTreeSet::new(),
            last: self.last,
        };
        self.buffers.insert(id, buffer);
    }

    /// Whether this operation was ever submitted.
    pub fn is_known(&self, id: OpId) -> bool {
        (1..=self.last).contains(&id)
    }

    /// Whether it is submitted and not completed.
    pub fn is_pending(&self, id: OpId) -> bool {
        self.ops.contains_key(&id)
    }

    /// How an operation ended that is not pending.
    pub fn result(&self, id: OpId) -> Result<(), CoiError> {
        self.failures.get(&id).cloned().map_or(Ok(()), Err)
    }

    /// Whether a process has a valid copy of any byte, and of all, of a range.
    pub fn valid(&self, buffer: BufferId, range: &Range<u64>, place: Place) -> (bool, bool) {
        let Some(buffer) = self.buffers.get(&buffer) else {
            return (false, false);
        };
        let runs = buffer.copies.within(range);
        let has = |run: &copies::Run| run.valid.contains(&place);
        (runs.iter().any(has), runs.iter().all(has))
    }

    /// Whether the host looks at a buffer, or has asked to; or has not quite ended to.
    pub fn is_mapped(&self, id: BufferId) -> bool {
        let Some(buffer) = self.buffers.get(&id) else {
            return false;
        };
        let mut ops = buffer.waiting.iter().chain(&buffer.started);
        !buffer.maps.is_empty()
            || ops.any(|op| {
                let op = self.ops.get(op).map(|op| &op.work);
                matches!(op, Some(Work::Unmap { .. }))
            })
    }

    /// Takes an operation in, which starts after `after`. Refused if it makes no sense as things
    /// are: no such buffer, bytes outside of it, mapped.
    pub fn submit(&mut self, work: Work, after: &[OpId]) -> Result<OpId, CoiError> {
        if let Some(unknown) = after.iter().find(|id| !self.is_known(**id)) {
            let what = format!("event {unknown} was never made");
            return Err(CoiError::InvalidHandle(what));
        }
        let claims = self.claims(&work)?;
        let class = Class::of(&work);
        self.refuse_mapped(&work, &claims)?;
        self.last += 1;
        let id = self.last;
        let mut after = after.to_vec();
        match &work {
            Work::Map { buffer, .. } => {
                let buffer = self.buffers.get_mut(buffer);
                buffer.map(|buffer| buffer.maps.insert(id));
            }
            Work::Unmap { map } => {
                let buffer = self.maps.get(map).map(|(buffer, ..)| *buffer);
                let buffer = buffer.and_then(|buffer| self.buffers.get_mut(&buffer));
                buffer.map(|buffer| buffer.maps.remove(map));
                after.push(*map);
            }
            Work::Run { pipeline, .. } | Work::Barrier { pipeline } => {
                self.pipelines.entry(*pipeline).or_default().push_back(id);
            }
            _ => {}
        }
        if let Work::Map {
            buffer,
            range,
            mode,
        } = &work
        {
            self.maps.insert(id, (*buffer, range.clone(), *mode));
        }
        for claim in &claims {
            if let Some(buffer) = self.buffers.get_mut(&claim.buffer) {
                buffer.waiting.insert(id);
            }
        }
        after.sort_unstable();
        after.dedup();
        let mut failed = None;
        let mut pending = 0;
        for dependency in after {
            match self.ops.get_mut(&dependency) {
                Some(op) => {
                    op.dependents.push(id);
                    pending += 1;
                }
                None => failed = failed.or(self.failure(dependency)),
            }
        }
        let op = Op {
            work,
            class,
            claims,
            pending,
            phase: Phase::Waiting,
            dependents: Vec::new(),
            alone: None,
        };
        self.ops.insert(id, op);
        match failed {
            Some(error) => self.complete(id, Err(error)),
            None => self.make_ready(id),
        }
        self.go_on();
        Ok(id)
    }

    /// Why what depends on an operation that is not pending fails.
    fn failure(&self, id: OpId) -> Option<CoiError> {
        let error = self.failures.get(&id)?;
        (*error != CoiError::Canceled).then(|| error.clone())
    }

    /// A user event happens.
    pub fn signal(&mut self, id: OpId) -> Result<(), CoiError> {
        self.end_event(id, Ok(()))
    }

    /// A user event will not happen any more: who waits for it is told so, what depends on it goes
    /// on.
    pub fn unregister(&mut self, id: OpId) -> Result<(), CoiError> {
        self.end_event(id, Err(CoiError::Canceled))
    }

    /// A user event stands for something that has failed: so does what depends on it.
    pub fn fail(&mut self, id: OpId, error: CoiError) -> Result<(), CoiError> {
        self.end_event(id, Err(error))
    }

    fn end_event(&mut self, id: OpId, result: Result<(), CoiError>) -> Result<(), CoiError> {
        match self.ops.get(&id).map(|op| &op.work) {
            Some(Work::UserEvent) => {
                self.complete(id, result);
                self.go_on();
                Ok(())
            }
            // It was signaled before: once is enough.
            None if self.is_known(id) => Ok(()),
            _ => Err(CoiError::InvalidHandle(format!("{id} is no user event"))),
        }
    }

    /// Takes note of what happened.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Moved(id, result) => self.moved(id, result),
            Input::NoRoom(id, error) => self.no_room(id, error),
            Input::Returned(id, result) => self.returned(id, result),
            Input::Released {
                process,
                buffer,
                count,
            } => self.add_references(process, buffer, -count),
            Input::Counted {
                process,
                buffer,
                count,
            } => self.count_references(process, buffer, count),
            Input::Gone(process, error) => self.gone(process, &error),
            Input::Forget(buffer) => {
                self.buffers.remove(&buffer);
                self.room.more();
            }
        }
        self.go_on();
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn gone(&mut self, process: ProcessId, error: &CoiError) {
        self.room.more();
        for buffer in self.buffers.values_mut() {
            buffer.references.remove(&process);
            buffer.counted.remove(&process);
        }
        let meant = |op: &Op| match &op.work {
            Work::Run { process: of, .. } => *of == process,
            Work::Write { to, .. } | Work::Copy { to, .. } => *to == Some(process),
            Work::SetState { place, .. } => *place == Some(Place::Process(process)),
            _ => false,
        };
        let ops = self.ops.iter();
        let lost: Vec<_> = ops
            .filter(|(_, op)| op.phase == Phase::Waiting && meant(op))
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            self.complete(id, Err(error.clone()));
        }
    }

    /// Starts whatever may start.
    fn go_on(&mut self) {
        loop {
            let ready: Vec<_> = self.ready.iter().copied().collect();
            let mut progress = false;
            for id in ready {
                // The one before it may have failed it.
                if self.ready.contains(&id) && self.may_start(id) {
                    self.start(id);
                    progress = true;
                }
            }
            if !progress && !self.try_again() {
                return;
            }
        }
    }

    fn make_ready(&mut self, id: OpId) {
        let Some(op) = self.ops.get(&id) else {
            return;
        };
        let first = match &op.work {
            Work::Run { pipeline, .. } | Work::Barrier { pipeline } => {
                let queue = self.pipelines.get(pipeline);
                queue.and_then(|queue| queue.front()) == Some(&id)
            }
            Work::UserEvent => false,
            _ => true,
        };
        if first && op.pending == 0 && op.phase == Phase::Waiting {
            self.ready.insert(id);
        }
    }

    fn start(&mut self, id: OpId) {
        self.ready.remove(&id);
        self.enters(id);
        let Some(op) = self.ops.get(&id) else {
            return;
        };
        for claim in &op.claims {
            if let Some(buffer) = self.buffers.get_mut(&claim.buffer) {
                buffer.waiting.remove(&id);
                buffer.started.insert(id);
                buffer.last = id;
            }
        }
        let steps = self.plan(id);
        if let Some(op) = self.ops.get_mut(&id) {
            op.phase = Phase::Moving;
        }
        match steps.is_empty() {
            true => self.moved(id, Ok(())),
            false => self.outputs.push_back(Output::Move(id, steps)),
        }
    }

    fn moved(&mut self, id: OpId, result: Result<(), CoiError>) {
        match self.ops.get(&id) {
            Some(op) if op.phase == Phase::Moving => {}
            _ => return,
        }
        if result.is_err() {
            self.spoil(id);
            return self.complete(id, result);
        }
        self.has_room(id);
        self.apply(id);
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        let Work::Run { process, uses, .. } = &op.work else {
            return self.complete(id, Ok(()));
        };
        op.phase = Phase::Running;
        let (process, references) = (*process, given(uses));
        for buffer in references {
            self.add_references(process, buffer, 1);
        }
        self.outputs.push_back(Output::Run(id));
    }

    fn returned(&mut self, id: OpId, result: Result<Vec<(BufferId, u64)>, CoiError>) {
        let Some(op) = self.ops.get(&id) else {
            return;
        };
        let Work::Run { process, uses, .. } = &op.work else {
            return;
        };
        let (process, own) = (*process, given(uses));
        let result = match result {
            Ok(added) => {
                for (buffer, count) in added {
                    let count = i64::try_from(count).unwrap_or(i64::MAX);
                    self.add_references(process, buffer, count);
                }
                Ok(())
            }
            // It was never run, or nobody is left who could give them back.
            Err(error) => {
                for buffer in own {
                    self.add_references(process, buffer, -1);
                }
                Err(error)
            }
        };
        self.complete(id, result);
    }
}

/// Buffers of which a run function is given references.
fn given(uses: &[Use]) -> Vec<BufferId> {
    let given = uses.iter().filter(|one| one.add_ref);
    given.map(|one| one.buffer).collect()
}
