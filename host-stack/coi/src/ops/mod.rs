//! Operations and their events: the driver of [`crate::graph`]. One graph serves the whole host
//! process: events, buffers and copies reach across offload processes.
//!
//! ```text
//!  submit, signal ---> graph ---> Move: this thread if it waits anyway, else one of the pool
//!        ^                   ---> Run: the process's machine; its result comes back through it
//!        |                   ---> Completed: callbacks, then whoever waits
//!        '--- Moved, Returned, Gone
//! ```
//!
//! What must stay true: callbacks of an event have returned before anybody who waits for it is told;
//! no lock is held while bytes move, messages are sent or callbacks run.

mod addresses;
mod arena;
mod body;
mod buffer;
mod direct;
mod events;
mod evict;
mod foreign;
mod kinds;
mod moves;
mod pool;
mod ranges;
mod slots;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Condvar, LazyLock, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use snaprig_offload_wire::coi::RunFunction;

pub(crate) use self::{
    arena::{Arena, Kind, Windows},
    body::Body,
    slots::{Pools, keep},
};
pub use self::{
    buffer::{Buffer, Mapping},
    events::{fail, known, on_complete, register_user_event, signal, unregister, wait},
    foreign::Foreign,
    kinds::{Access, BufferOptions, MapKind, Piece, StatePlace},
};
use self::{events::Callback, pool::Pool};
pub use crate::graph::State;
use crate::{
    CoiError, Process,
    graph::{BufferId, Graph, Input, OpId, Output, ProcessId, Step, Work},
    machine::Value,
    process::{Inner, Notification, NotificationKind, lock},
};

/// The completion of an operation, or a user event. Never 0, and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event(pub u64);

/// When an operation happens, and who is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Order<'a> {
    /// What has to be done before it begins.
    pub after: &'a [Event],
    /// The call returns when it is done, and with its error.
    pub wait: bool,
    /// Goes along with its notifications.
    pub tag: u64,
}

impl Order<'static> {
    /// At once, and the call returns when it is done.
    pub fn now() -> Self {
        Self {
            wait: true,
            ..Self::default()
        }
    }
}

/// What an operation needs beside what the graph knows.
#[derive(Default)]
struct Payload {
    /// Memory of the caller's, in the order of the places in the buffer.
    pieces: Vec<Piece>,
    run: Option<RunCall>,
    tag: u64,
    /// Processes that have been told that it begins.
    told: Mutex<Vec<(ProcessId, NotificationKind)>>,
    /// Nobody is told of it.
    silent: bool,
}

impl Payload {
    /// Of an operation that nobody has asked for.
    fn silent() -> Self {
        Self {
            silent: true,
            ..Self::default()
        }
    }
}

/// A run function that waits for its turn.
struct RunCall {
    process: Arc<Inner>,
    number: u32,
    request: Mutex<Option<RunFunction>>,
    returned: Foreign,
}

#[derive(Default)]
struct Books {
    graph: Graph,
    payloads: BTreeMap<OpId, Arc<Payload>>,
    /// Never the last to let go of one: that takes this very lock.
    bodies: BTreeMap<BufferId, Weak<Body>>,
    processes: BTreeMap<ProcessId, Weak<Inner>>,
    /// Events that nobody was told of yet.
    open: BTreeSet<OpId>,
    callbacks: BTreeMap<OpId, Callback>,
    /// Threads that wait for events.
    waiting: usize,
}

/// The graph and its threads.
#[derive(Default)]
struct Runtime {
    state: Mutex<Books>,
    signaled: Condvar,
    /// Events that whoever waited for some was told of.
    told: AtomicU64,
    pool: Pool,
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(Runtime::default);

thread_local! {
    /// This thread is doing what the graph says already, and will go on.
    static PERFORMING: Cell<bool> = const { Cell::new(false) };
}

/// Something to do outside of the lock.
enum Job {
    Move(OpId, Vec<Step>, Arc<Payload>),
    Run(OpId, Arc<Payload>),
    Complete(OpId, Result<(), CoiError>, Option<Arc<Payload>>),
}

/// There is one more process.
pub(crate) fn add_process(process: &Arc<Inner>) {
    let mut state = RUNTIME.lock();
    state.processes.retain(|_, one| one.strong_count() > 0);
    state.processes.insert(process.id, Arc::downgrade(process));
}

/// Those that somebody has.
pub(crate) fn processes() -> Vec<Process> {
    let state = RUNTIME.lock();
    let living: Vec<_> = state.processes.values().filter_map(Weak::upgrade).collect();
    // Never the last to let go of one with the lock held.
    drop(state);
    living.into_iter().map(Process).collect()
}

/// The graph was told something. What it says to that is still to be done, and may call back.
#[must_use]
#[derive(Default)]
pub(crate) struct Told {
    /// Whoever lets go of one last may end what it is of.
    _payload: Option<Arc<Payload>>,
    _bodies: Vec<Arc<Body>>,
}

impl Told {
    /// Does what the graph says.
    pub fn perform(self) {
        RUNTIME.perform(None);
    }
}

/// Tells the graph what happened.
pub(crate) fn tell(input: Input) -> Told {
    RUNTIME.lock().graph.handle(input);
    Told::default()
}

/// The same, and does what it says.
pub(crate) fn handle(input: Input) {
    tell(input).perform();
}

/// There is one buffer less.
fn forget(buffer: BufferId) {
    RUNTIME.lock().bodies.remove(&buffer);
    handle(Input::Forget(buffer));
}

/// A process is gone for good.
pub(crate) fn process_gone(process: ProcessId, error: CoiError) {
    handle(Input::Gone(process, error));
}

/// A run function has returned.
pub(crate) fn returned(op: OpId, result: Result<Value, CoiError>) -> Told {
    let mut bodies = Vec::new();
    let payload = RUNTIME.lock().payloads.get(&op).cloned();
    let run = payload.as_ref().and_then(|payload| payload.run.as_ref());
    let result = match (result, run) {
        (Ok(Value::Returned { value, mut added }), Some(run)) => {
            run.returned.write(|to| {
                let bytes = to.len().min(value.len());
                to[..bytes].copy_from_slice(&value[..bytes]);
            });
            // It may only hold what it was given.
            added.retain(|(buffer, _)| {
                let body = RUNTIME.body(*buffer).ok();
                bodies.extend(body.clone());
                body.is_some_and(|body| body.is_in(run.process.id))
            });
            Ok(added)
        }
        (Ok(_), Some(run)) => Err(run.process.protocol("a run function")),
        (Ok(_), None) => return Told::default(),
        (Err(error), _) => Err(error),
    };
    RUNTIME.lock().graph.handle(Input::Returned(op, result));
    Told {
        _payload: payload,
        _bodies: bodies,
    }
}

/// A run function has begun on the card.
pub(crate) fn began(process: &Arc<Inner>, op: OpId) {
    let payload = RUNTIME.lock().payloads.get(&op).cloned();
    if let Some(payload) = payload {
        process.notify(&Notification {
            kind: NotificationKind::RunStart,
            event: Event(op),
            tag: payload.tag,
        });
    }
}

/// A process signals a user event.
pub(crate) fn signaled_by(process: &Arc<Inner>, event: Event) {
    let payload = RUNTIME.lock().payloads.get(&event.0).cloned();
    // Of one that has been signaled before, nobody is told.
    if let Some(payload) = payload {
        process.notify(&Notification {
            kind: NotificationKind::UserEvent,
            event,
            tag: payload.tag,
        });
        // What is no user event is not for it to signal.
        let _ = signal(event);
    }
}

/// A buffer of a process that has no memory for it.
#[cfg(test)]
pub(crate) fn buffer_without_card(process: &Process) -> Arc<Body> {
    let body = Body::in_arena(Arena::without_card(process));
    let mut state = RUNTIME.lock();
    state
        .graph
        .add_buffer(body.id, body.len(), false, true, None);
    state.bodies.insert(body.id, Arc::downgrade(&body));
    drop(state);
    body
}

/// Whether neither operations nor processes nor the host use a buffer.
#[cfg(test)]
pub(crate) fn is_idle(buffer: BufferId) -> bool {
    RUNTIME.lock().graph.idle_since(buffer).is_some()
}

impl Runtime {
    fn lock(&self) -> MutexGuard<'_, Books> {
        lock(&self.state)
    }

    /// Of these events, the first that is a run function's, and on which pipeline that is.
    fn pipeline_of(&self, state: &Books, events: &[Event]) -> Option<(Arc<Inner>, u32)> {
        events.iter().find_map(|event| {
            let payload = state.payloads.get(&event.0)?;
            let run = payload.run.as_ref()?;
            Some((run.process.clone(), run.number))
        })
    }

    /// Takes an operation in, and waits for it if that is asked for.
    fn submit(
        &'static self,
        work: Work,
        payload: Payload,
        order: Order<'_>,
    ) -> Result<Event, CoiError> {
        let after: Vec<_> = order.after.iter().map(|event| event.0).collect();
        let id = {
            let mut state = self.lock();
            let id = state.graph.submit(work, &after)?;
            let tag = order.tag;
            let payload = Arc::new(Payload { tag, ..payload });
            state.payloads.insert(id, payload);
            state.open.insert(id);
            id
        };
        self.perform(order.wait.then_some(id));
        if order.wait {
            wait(&[Event(id)], true, None)?;
        }
        Ok(Event(id))
    }

    /// Does what the graph says; the bytes of `own` are moved by this very thread.
    fn perform(&'static self, own: Option<OpId>) {
        if PERFORMING.replace(true) {
            return;
        }
        let mut mine = Vec::new();
        loop {
            while let Some(job) = self.next() {
                match job {
                    Job::Move(id, steps, payload) => {
                        self.tell_of_move(id, &steps, &payload);
                        if own == Some(id) {
                            mine.push((id, steps, payload));
                            continue;
                        }
                        self.pool.spawn(Box::new(move || {
                            handle(self.moved(id, &steps, &payload));
                        }));
                    }
                    Job::Run(id, payload) => self.run(id, &payload),
                    Job::Complete(id, result, payload) => {
                        // A callback may ask for more, and wait for it.
                        PERFORMING.set(false);
                        self.complete(id, &result, payload.as_deref());
                        PERFORMING.set(true);
                    }
                }
            }
            let Some((id, steps, payload)) = mine.pop() else {
                break;
            };
            // It may have to make room first, which is an operation as well.
            PERFORMING.set(false);
            let moved = self.moved(id, &steps, &payload);
            PERFORMING.set(true);
            self.lock().graph.handle(moved);
        }
        PERFORMING.set(false);
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        let output = state.graph.poll_output()?;
        let payload = |id| state.payloads.get(&id).cloned().unwrap_or_default();
        Some(match output {
            Output::Move(id, steps) => Job::Move(id, steps, payload(id)),
            Output::Run(id) => Job::Run(id, payload(id)),
            Output::Completed(id, result) => {
                let payload = state.payloads.remove(&id);
                Job::Complete(id, result, payload)
            }
        })
    }

    fn run(&self, id: OpId, payload: &Payload) {
        let Some(run) = &payload.run else {
            return;
        };
        if let Some(request) = lock(&run.request).take() {
            self.tell(id, payload, run.process.id, NotificationKind::RunReady);
            run.process.run(id, run.number, request);
        }
    }

    fn complete(&self, id: OpId, result: &Result<(), CoiError>, payload: Option<&Payload>) {
        if let Some(payload) = payload {
            let told = std::mem::take(&mut *lock(&payload.told));
            for (process, kind) in told {
                let kind = match kind {
                    NotificationKind::RunReady => NotificationKind::RunComplete,
                    _ => NotificationKind::BufferComplete,
                };
                self.notify(id, payload, process, kind);
            }
        }
        let is_awaited = loop {
            let mut state = self.lock();
            let Some(callback) = state.callbacks.remove(&id) else {
                state.open.remove(&id);
                self.told.fetch_add(1, Ordering::Relaxed);
                break state.waiting > 0;
            };
            drop(state);
            callback(Event(id), result.clone());
        };
        if is_awaited {
            self.signaled.notify_all();
        }
    }

    /// Who has bytes moved is told, once.
    fn tell_of_move(&self, id: OpId, steps: &[Step], payload: &Payload) {
        // There may have been no room for it the first time.
        let is_told = !lock(&payload.told).is_empty();
        if payload.run.is_some() || payload.silent || is_told {
            return;
        }
        let processes: BTreeSet<_> = steps.iter().filter_map(Step::process).collect();
        for process in processes {
            self.tell(id, payload, process, NotificationKind::BufferReady);
        }
    }

    /// Tells a process's observers that something begins, and of its end later.
    fn tell(&self, id: OpId, payload: &Payload, process: ProcessId, kind: NotificationKind) {
        lock(&payload.told).push((process, kind));
        self.notify(id, payload, process, kind);
    }

    fn notify(&self, id: OpId, payload: &Payload, process: ProcessId, kind: NotificationKind) {
        let process = self.lock().processes.get(&process).and_then(Weak::upgrade);
        if let Some(process) = process {
            let (event, tag) = (Event(id), payload.tag);
            process.notify(&Notification { kind, event, tag });
        }
    }

    fn body(&self, id: BufferId) -> Result<Arc<Body>, CoiError> {
        let body = self.lock().bodies.get(&id).and_then(Weak::upgrade);
        body.ok_or_else(|| CoiError::InvalidHandle("no such buffer".into()))
    }
}

/// Queues a run function.
pub(crate) fn submit_run(
    process: &Process,
    number: u32,
    pipeline: u64,
    request: RunFunction,
    uses: Vec<crate::graph::Use>,
    returned: Foreign,
    order: Order<'_>,
) -> Result<Event, CoiError> {
    let work = Work::Run {
        process: process.id(),
        pipeline,
        uses,
    };
    let run = RunCall {
        process: process.0.clone(),
        number,
        request: Mutex::new(Some(request)),
        returned,
    };
    let payload = Payload {
        run: Some(run),
        ..Payload::default()
    };
    if let Some(error) = process.0.end_known() {
        return Err(error);
    }
    RUNTIME.submit(work, payload, order)
}

/// Waits until all that was queued in a pipeline is done.
pub(crate) fn drain_pipeline(pipeline: u64) {
    let work = Work::Barrier { pipeline };
    // It is no error that a run function before it has failed.
    let _ = RUNTIME.submit(work, Payload::default(), Order::now());
}
