//! Offload processes: made, asked, watched and ended. The driver of [`crate::machine`]: callers
//! wait for their tickets, one thread a link brings in what the card says.
//!
//! What must stay true: the graph of operations ([`crate::graph`]) hears what a process's machine says in the order in
//! which the machine says it, whichever thread brings it.

pub(crate) mod create;
mod end;
mod library;
mod line;
mod links;
mod notify;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Serialize;
use snaprig_offload_wire::coi::{Answer, Channel as Kind, Command, Exit, Notice, RunFunction};
use snaprig_scif::client::Endpoint;

pub(crate) use self::links::Links;
pub use self::{
    create::{CrashSink, ProcessOptions, ProxySink, dependencies, to_own_output},
    library::{Library, LibraryOptions},
    notify::{Notification, NotificationId, NotificationKind, NotificationSink},
};
use self::{line::Line, links::send, notify::Notifications};
use crate::{
    Buffer, CoiError, Engine, Pipeline,
    graph::Input::{Gone, Released},
    libraries::File,
    machine::{Input, Machine, Output, Region, Ticket, Value},
    ops::{self, Arena, Body, Kind as Memory, Pools},
};

/// Tickets with this bit are operations of the graph.
const OPERATION: Ticket = 1 << 63;

/// An offload process. Clones are the same process; the last one that is dropped ends it.
#[derive(Clone)]
pub struct Process(pub(crate) Arc<Inner>);

impl PartialEq for Process {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Process {}

/// A run function of a process, found by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(pub(crate) u64);

impl Function {
    /// Its address in the process.
    pub fn address(&self) -> u64 {
        self.0
    }

    /// The function at an address that [`Function::address`] told.
    pub fn at(address: u64) -> Self {
        Self(address)
    }
}

/// What a process is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Its id on the card.
    pub pid: i32,
    /// Its card.
    pub node: u16,
    /// Run functions that were sent to the card.
    pub started: u64,
    /// Run functions whose results came back.
    pub finished: u64,
    /// Between pause and resume.
    pub paused: bool,
}

pub(crate) struct Inner {
    pub id: u64,
    /// The host process that has made it: a child of fork(2) knows of it, and has no part in it.
    pub owner: u32,
    pub name: String,
    pub binary: Vec<u8>,
    /// Libraries that were brought to the card.
    pub files: Mutex<Vec<File>>,
    pub proxy: Option<ProxySink>,
    crash: Option<CrashSink>,
    /// What the machine's times are counted from.
    epoch: Instant,
    state: Mutex<State>,
    /// Whoever has it brings the machine news, and the graph of operations what the machine says to
    /// that: what one thread heard from the machine first, the graph hears first.
    order: Mutex<()>,
    changed: Condvar,
    /// How often somebody who waits for a ticket had to be told.
    news: AtomicU64,
    /// One pipeline at a time is made: its number is the smallest that is free.
    making_pipeline: Mutex<()>,
    asked_to_end: AtomicBool,
    /// The daemon was told to kill it.
    killed: AtomicBool,
    /// Buffers that are in it, and their memory.
    pub buffers: Mutex<BTreeMap<u64, Arc<Body>>>,
    pub arenas: Mutex<BTreeMap<u64, Arc<Arena>>>,
    pub pools: Pools,
    /// One at a time looks for memory that can be done without.
    pub evicting: Mutex<()>,
    /// Names of the libraries that are loaded, by their numbers.
    libraries: Mutex<BTreeMap<u64, String>>,
    notifications: Mutex<Notifications>,
    /// Nobody connects to it: its accept ends when the rig does.
    watch: Mutex<Arc<Endpoint>>,
}

struct State {
    machine: Machine,
    place: Place,
    links: Links,
    next_ticket: Ticket,
    /// Tickets that somebody waits for, and how those calls ended that have.
    awaited: BTreeSet<Ticket>,
    done: BTreeMap<Ticket, Result<Value, CoiError>>,
    /// When the machine will be told of its deadline.
    ticking: Option<Duration>,
}

/// Where a process is.
#[derive(Clone)]
pub(crate) struct Place {
    pub engine: Engine,
    pub pid: i32,
    /// Where it takes the host's connections.
    pub port: u16,
    /// Its program on the card.
    pub path: String,
}

/// What the machine said, and who has heard it.
enum Heard {
    Graph(ops::Told),
    Other(Output),
}

/// A place inside a region; dropped, it is left. Without Snapify there are no regions.
pub(crate) struct Pass<'a>(Option<(&'a Arc<Inner>, Region)>);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some((process, region)) = self.0.take()
            && !process.lock().machine.leave(region)
        {
            process.handle(Input::Leave(region));
        }
    }
}

impl Process {
    /// Its number, unlike that of any other: as in the order in which they were made.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Its program's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Memory of buffers that is in it.
    pub fn buffer_bytes(&self) -> u64 {
        lock(&self.0.arenas)
            .values()
            .map(|arena| arena.bytes())
            .sum()
    }

    /// The card that it is on.
    pub fn engine(&self) -> Engine {
        self.0.place().engine
    }

    /// Whether nobody knows of its end.
    pub fn is_alive(&self) -> bool {
        self.0.end_known().is_none()
    }

    /// Whether something of the program waits for it.
    pub fn is_wanted(&self) -> bool {
        self.0.lock().machine.is_wanted()
    }

    /// A run function by its name (COIProcessGetFunctionHandles).
    pub fn function(&self, name: &str) -> Result<Function, CoiError> {
        match self.0.command(Command::Function(name.into()))? {
            Answer::Function(address) => Ok(Function(address)),
            _ => Err(self.0.protocol("function lookup")),
        }
    }

    /// Run functions by their names (COIProcessGetFunctionHandles); `None`: there is no such one.
    pub fn functions(&self, names: &[&str]) -> Result<Vec<Option<Function>>, CoiError> {
        let find = |name: &&str| match self.function(name) {
            Ok(function) => Ok(Some(function)),
            Err(CoiError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        names.iter().map(find).collect()
    }

    /// A new pipeline (COIPipelineCreate).
    pub fn pipeline(&self) -> Result<Pipeline, CoiError> {
        self.pipeline_with(&[], 0)
    }

    /// A new pipeline whose thread runs on the processors of a mask (64 to a word; none: any) and
    /// has a stack of this size (0: the usual one).
    pub fn pipeline_with(&self, mask: &[u64], stack_bytes: u64) -> Result<Pipeline, CoiError> {
        let _pass = self.0.enter(Region::Lifecycle)?;
        let _one_at_a_time = lock(&self.0.making_pipeline);
        let number = self.0.lock().machine.free_pipeline();
        let number =
            number.ok_or_else(|| CoiError::Exhausted("a process has 512 pipelines".into()))?;
        let command = Command::CreatePipeline {
            number,
            mask: mask.to_vec(),
            stack_bytes,
        };
        match self.0.command(command)? {
            Answer::Done => {}
            _ => return Err(self.0.protocol("create pipeline")),
        }
        let place = self.0.place();
        let endpoint = links::open(&place.engine, place.port, Kind::Pipeline(number))?;
        let line = Line::new(endpoint);
        let generation = {
            let mut state = self.0.lock();
            state.links.pipelines.insert(number, line.clone());
            state.machine.generation()
        };
        self.0.handle(Input::AddPipeline(number));
        self.0.listen_to_pipeline(line, generation, number);
        Ok(Pipeline::new(number, self.clone()))
    }

    /// A new buffer of `bytes`, zero at first (COIBufferCreate).
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, CoiError> {
        Buffer::create(self, bytes)
    }

    /// Has so much memory for buffers of this process alone, on small or on huge pages, be kept once
    /// it is there (COIProcessSetCacheSize). `now`: it is made, if there is less.
    pub fn keep_buffer_space(&self, bytes: u64, huge: bool, now: bool) -> Result<(), CoiError> {
        let kind = if huge { Memory::Huge } else { Memory::Anywhere };
        ops::keep(self, bytes, kind, now)
    }

    /// What it is doing.
    pub fn status(&self) -> Status {
        let state = self.0.lock();
        let (node, pid) = state.machine.place();
        let (started, finished) = state.machine.counts();
        Status {
            pid,
            node,
            started,
            finished,
            paused: state.machine.is_paused(),
        }
    }

    /// Waits for its end.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Exit, CoiError> {
        match self.0.call(Input::End, timeout)? {
            Value::Exit(exit) => Ok(exit),
            _ => Err(self.0.protocol("its end")),
        }
    }

    /// Waits until `count` run functions have been sent, and lets no more be sent before resume:
    /// a breakpoint for whoever wants to pause with exactly that one in flight.
    pub fn break_at(&self, count: u64, timeout: Option<Duration>) -> Result<(), CoiError> {
        let hold = |ticket| Input::HoldAt(ticket, count);
        self.0.call(hold, timeout).map(|_| ())
    }
}

impl Inner {
    /// A process that was made there, and is connected to.
    fn new(
        place: Place,
        links: Links,
        options: ProcessOptions,
        files: Vec<File>,
        watch: Endpoint,
    ) -> Arc<Self> {
        let state = State {
            machine: Machine::new(place.engine.node(), place.pid),
            place,
            links,
            next_ticket: 1,
            awaited: BTreeSet::new(),
            done: BTreeMap::new(),
            ticking: None,
        };
        Arc::new(Self {
            id: next_id(),
            name: options.name,
            binary: options.binary,
            files: Mutex::new(files),
            proxy: options.proxy,
            crash: options.crash,
            epoch: Instant::now(),
            state: Mutex::new(state),
            order: Mutex::default(),
            changed: Condvar::new(),
            news: AtomicU64::new(0),
            making_pipeline: Mutex::default(),
            asked_to_end: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            buffers: Mutex::default(),
            arenas: Mutex::default(),
            owner: std::process::id(),
            pools: Mutex::default(),
            evicting: Mutex::default(),
            libraries: Mutex::default(),
            notifications: Mutex::default(),
            watch: Mutex::new(Arc::new(watch)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Tells the machine what happened, and does what it says.
    pub fn handle(self: &Arc<Self>, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut sends = Vec::new();
            let mut news = Vec::new();
            let order = lock(&self.order);
            let mut state = self.lock();
            let mut is_awaited = false;
            state.machine.handle(input, self.epoch.elapsed());
            while let Some(output) = state.machine.poll_output() {
                match output {
                    Output::Done(ticket, result) if ticket & OPERATION == 0 => {
                        if state.awaited.contains(&ticket) {
                            state.done.insert(ticket, result);
                            is_awaited = true;
                        }
                    }
                    Output::Command(..) => {
                        sends.push((state.links.command.clone(), output));
                    }
                    Output::Run(_, number, _) => {
                        let link = state.links.pipelines.get(&number);
                        sends.extend(link.cloned().map(|link| (link, output)));
                    }
                    output => news.push(output),
                }
            }
            is_awaited |= self.set_timer(&mut state);
            self.news.fetch_add(is_awaited.into(), Ordering::Relaxed);
            drop(state);
            let heard: Vec<_> = news.into_iter().map(|output| self.tell(output)).collect();
            drop(order);
            if is_awaited {
                self.changed.notify_all();
            }
            // Nobody is kept out while bytes are on their way. There is at most one message under
            // way on a link, so their order is not lost.
            for (line, output) in sends {
                inputs.extend(send(&line.endpoint, output));
            }
            heard.into_iter().for_each(|heard| self.go_on(heard));
        }
    }

    /// Tells the graph of operations, if it is for that. Nothing of this calls back.
    fn tell(&self, output: Output) -> Heard {
        match output {
            Output::Done(ticket, result) => {
                Heard::Graph(ops::returned(ticket & !OPERATION, result))
            }
            Output::Notice(Notice::Released { id, count, .. }) => {
                Heard::Graph(ops::tell(Released {
                    process: self.id,
                    buffer: id,
                    count: i64::try_from(count).unwrap_or(i64::MAX),
                }))
            }
            Output::Gone(error) => Heard::Graph(ops::tell(Gone(self.id, error))),
            output => Heard::Other(output),
        }
    }

    /// What follows, when nobody is kept out.
    fn go_on(self: &Arc<Self>, heard: Heard) {
        match heard {
            Heard::Graph(told) => told.perform(),
            Heard::Other(Output::Started(ticket)) if ticket & OPERATION != 0 => {
                ops::began(self, ticket & !OPERATION);
            }
            Heard::Other(Output::Notice(notice)) => self.noticed(notice),
            Heard::Other(_) => {}
        }
    }

    /// Has a run function of the graph's run.
    pub fn run(self: &Arc<Self>, op: u64, number: u32, request: RunFunction) {
        self.handle(Input::Run(op | OPERATION, number, request));
    }

    /// Somebody has to look when the machine's time is up, even if nobody waits for it. Whether that is another
    /// time than before.
    fn set_timer(self: &Arc<Self>, state: &mut State) -> bool {
        let due = state.machine.deadline();
        if due == state.ticking {
            return false;
        }
        state.ticking = due;
        if let Some(due) = due {
            let (process, epoch) = (Arc::downgrade(self), self.epoch);
            std::thread::spawn(move || {
                std::thread::sleep(due.saturating_sub(epoch.elapsed()));
                if let Some(process) = Weak::upgrade(&process) {
                    process.handle(Input::Tick);
                }
            });
        }
        true
    }

    /// A call with a ticket of its own, and its end.
    pub fn call(
        self: &Arc<Self>,
        input: impl FnOnce(Ticket) -> Input,
        timeout: Option<Duration>,
    ) -> Result<Value, CoiError> {
        self.call_and_receive(input, timeout, |_| {})
    }

    /// The same; `receive` brings in what comes soon, as for [`Inner::wait_for`].
    fn call_and_receive(
        self: &Arc<Self>,
        input: impl FnOnce(Ticket) -> Input,
        timeout: Option<Duration>,
        receive: impl Fn(&dyn Fn() -> bool),
    ) -> Result<Value, CoiError> {
        let ticket = self.ticket();
        self.handle(input(ticket));
        let result = self.wait_for(ticket, timeout, receive);
        if result.is_none() {
            self.handle(Input::GiveUp(ticket));
        }
        self.forget(ticket);
        result.unwrap_or(Err(CoiError::TimedOut))
    }

    /// A new ticket, which somebody waits for until it is forgotten.
    pub fn ticket(&self) -> Ticket {
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.awaited.insert(ticket);
        ticket
    }

    /// Nobody waits for the ticket any more.
    pub fn forget(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.awaited.remove(&ticket);
        state.done.remove(&ticket);
    }

    /// Waits for the end of a call; `None` if it does not come in time. `receive` brings in what comes soon, until it is told
    /// that there is news.
    pub fn wait_for(
        self: &Arc<Self>,
        ticket: Ticket,
        timeout: Option<Duration>,
        receive: impl Fn(&dyn Fn() -> bool),
    ) -> Option<Result<Value, CoiError>> {
        let deadline = timeout.map(|timeout| self.epoch.elapsed() + timeout);
        let mut receives = true;
        let mut state = self.lock();
        loop {
            if let Some(result) = state.done.get(&ticket) {
                return Some(result.clone());
            }
            let now = self.epoch.elapsed();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return None;
            }
            let due = state.machine.deadline();
            if due.is_some_and(|due| due <= now) {
                drop(state);
                self.handle(Input::Tick);
                state = self.lock();
                continue;
            }
            if receives {
                let known = self.news.load(Ordering::Relaxed);
                drop(state);
                let is_news = || self.news.load(Ordering::Relaxed) != known;
                receive(&is_news);
                // It may have been for another.
                receives = is_news();
                state = self.lock();
                continue;
            }
            state = match deadline.into_iter().chain(due).min() {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let waited = self.changed.wait_timeout(state, next - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Goes into a region, as soon as it is open.
    pub fn enter<'a>(self: &'a Arc<Self>, region: Region) -> Result<Pass<'a>, CoiError> {
        if crate::quiesce::is_off() {
            return self.end_known().map_or(Ok(Pass(None)), Err);
        }
        // It is open, but for a pause: that must cost no more than a lock.
        if !self.lock().machine.pass(region) {
            self.call(|ticket| Input::Enter(ticket, region), None)?;
        }
        Ok(Pass(Some((self, region))))
    }

    /// Case 3: one command and its answer.
    pub fn command(self: &Arc<Self>, command: Command) -> Result<Answer, CoiError> {
        let ask = |ticket| Input::Command(ticket, command);
        let answered = self.call_and_receive(ask, None, |done| self.receive_answer(done));
        match answered? {
            Value::Answer(answer) => Ok(answer),
            _ => Err(self.protocol("a command")),
        }
    }

    /// What a broken connection means, once the daemon has had the time to tell.
    pub fn broken(self: &Arc<Self>) -> CoiError {
        match self.call(Input::Broken, None) {
            Err(error) => error,
            Ok(_) => self.protocol("its end"),
        }
    }

    pub fn protocol(&self, what: &'static str) -> CoiError {
        let (node, _) = self.lock().machine.place();
        CoiError::Protocol { node, what }
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        self.lock().place.clone()
    }

    /// The connection for RDMA.
    pub fn dma(&self) -> Arc<Endpoint> {
        self.lock().links.dma.clone()
    }

    /// Run functions ever sent, pipeline by pipeline.
    pub fn sent(&self) -> Vec<u64> {
        self.lock().machine.sent()
    }

    /// The numbers of the pipelines that there are.
    pub fn pipelines(&self) -> Vec<u32> {
        self.lock().machine.live_pipelines()
    }

    /// How it ended, if there is no hope any more.
    pub fn end_known(&self) -> Option<CoiError> {
        self.lock().machine.end()
    }

    /// A pipeline is taken away: what its connection says meanwhile is of no interest, and its number
    /// is free when the process has nothing of it left.
    pub fn give_up_pipeline(
        self: &Arc<Self>,
        number: u32,
        destroy: impl FnOnce() -> Result<(), CoiError>,
    ) -> Result<(), CoiError> {
        let line = self.lock().links.pipelines.remove(&number);
        let line = line.ok_or_else(|| CoiError::InvalidHandle("no such pipeline".into()))?;
        let destroyed = destroy();
        self.handle(Input::RemovePipeline(number));
        line.endpoint.close();
        destroyed
    }

    /// New connections to a process that has moved.
    pub fn replace(self: &Arc<Self>, place: Place, links: Links) {
        let (node, pid) = (place.engine.node(), place.pid);
        let mut state = self.lock();
        let old = std::mem::replace(&mut state.links, links);
        state.place = place;
        drop(state);
        self.handle(Input::Moved { node, pid });
        old.close();
        self.listen();
    }

    /// The rig that it is part of is another one.
    pub fn watch_anew(&self) -> Result<(), CoiError> {
        let watch = create::watch(&self.place().engine)?;
        *lock(&self.watch) = Arc::new(watch);
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (node, _) = self.lock().machine.place();
        ops::process_gone(self.id, CoiError::CardLost { node });
        // The daemon ends the process with its control connection; the listeners end too.
        self.lock().links.close();
        lock(&self.watch).close();
    }
}

/// A number that nothing else has.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
