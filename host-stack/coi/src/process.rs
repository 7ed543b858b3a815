//! Offload processes: made, asked, watched and ended. The driver of [`crate::machine`]: callers
//! wait for their tickets, one thread a link brings in what the card says.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicU64},
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_scif::{
    client::{Endpoint, SharedMemory},
    node::PROT_READ,
};
use snaprig_wire::coi::{
    Answer, Channel as Kind, Command, Exit, FromDaemon, PIPELINES_MAX, Program, ToDaemon,
};

use crate::{
    Buffer, CoiError, Engine, Pipeline,
    buffer::BufferInner,
    machine::{Generation, Input, Link, Machine, Output, Region, Ticket, Value},
};

/// An offload process. Clones are the same process; the last one that is dropped ends it.
#[derive(Clone)]
pub struct Process(pub(crate) Arc<Inner>);

/// A run function of a process, found by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(pub(crate) u64);

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
    pub name: String,
    pub binary: Vec<u8>,
    /// What the machine's times are counted from.
    epoch: Instant,
    state: Mutex<State>,
    changed: Condvar,
    /// One pipeline at a time is made: its number is how many there are.
    making_pipeline: Mutex<()>,
    pub buffers: Mutex<BTreeMap<u64, Arc<BufferInner>>>,
    pub next_buffer: AtomicU64,
    /// Nobody connects to it: its accept ends when the rig does.
    watch: Arc<Endpoint>,
}

struct State {
    machine: Machine,
    place: Place,
    links: Links,
    next_ticket: Ticket,
    /// Tickets that somebody waits for, and how those calls ended that have.
    awaited: BTreeSet<Ticket>,
    done: BTreeMap<Ticket, Result<Value, CoiError>>,
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

/// All connections of one generation.
pub(crate) struct Links {
    pub control: Arc<Endpoint>,
    pub dma: Arc<Endpoint>,
    pub command: Arc<Endpoint>,
    pub pipelines: Vec<Arc<Endpoint>>,
}

impl Links {
    /// The connections to a process other than the daemon's, with this many pipelines.
    pub fn open(
        engine: &Engine,
        port: u16,
        control: Endpoint,
        pipelines: u32,
    ) -> Result<Self, CoiError> {
        Ok(Self {
            control: Arc::new(control),
            dma: Arc::new(open(engine, port, Kind::Dma)?),
            command: Arc::new(open(engine, port, Kind::Command)?),
            pipelines: (0..pipelines)
                .map(|number| open(engine, port, Kind::Pipeline(number)).map(Arc::new))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Ends them for whoever still listens.
    fn close(&self) {
        self.control.close();
        self.dma.close();
        self.command.close();
        self.pipelines.iter().for_each(|one| one.close());
    }
}

/// A place inside a region; dropped, it is left.
pub(crate) struct Pass<'a>(&'a Arc<Inner>, Region);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.handle(Input::Leave(self.1));
    }
}

impl Process {
    /// Makes a process of a program in memory (COIProcessCreateFromMemory).
    pub fn create(
        engine: &Engine,
        name: &str,
        binary: Vec<u8>,
        arguments: Vec<String>,
        env: Vec<String>,
    ) -> Result<Self, CoiError> {
        let control = engine.connect_daemon()?;
        let argv = std::iter::once(name.to_owned()).chain(arguments).collect();
        let image = SharedMemory::new(binary.len()).map_err(|_| CoiError::NoMemory("a program"))?;
        image.write(0, &binary);
        let window = control.register(&image, 0, image.len(), None, PROT_READ)?;
        let program = Program {
            name: name.into(),
            bytes: binary.len() as u64,
            window,
            argv,
            env,
        };
        control.send_message(&ToDaemon::Create(program))?;
        let node = engine.node();
        let created = control.receive_message()?;
        // A connection that is lost has no windows either, and says so when it is used.
        let _ = control.unregister(window, image.len() as u64);
        let (pid, port, path) = match created {
            FromDaemon::Created { pid, port, path } => (pid, port, path),
            FromDaemon::Failed { why, .. } => return Err(CoiError::Refused { node, why }),
            _ => {
                return Err(CoiError::Protocol {
                    node,
                    what: "create",
                });
            }
        };
        let links = Links::open(engine, port, control, 0)?;
        let watch = Endpoint::open(engine.rig())?;
        watch.bind(0)?;
        watch.listen(1)?;
        let engine = engine.clone();
        let state = State {
            machine: Machine::new(node, pid),
            place: Place {
                engine,
                pid,
                port,
                path,
            },
            links,
            next_ticket: 1,
            awaited: BTreeSet::new(),
            done: BTreeMap::new(),
        };
        let inner = Arc::new(Inner {
            name: name.into(),
            binary,
            epoch: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            making_pipeline: Mutex::default(),
            buffers: Mutex::default(),
            next_buffer: AtomicU64::new(1),
            watch: Arc::new(watch),
        });
        inner.listen();
        inner.watch_the_rig();
        Ok(Self(inner))
    }

    /// A run function by its name (COIProcessGetFunctionHandles).
    pub fn function(&self, name: &str) -> Result<Function, CoiError> {
        match self.0.command(Command::Function(name.into()))? {
            Answer::Function(address) => Ok(Function(address)),
            _ => Err(self.0.protocol("function lookup")),
        }
    }

    /// A new pipeline (COIPipelineCreate).
    pub fn pipeline(&self) -> Result<Pipeline, CoiError> {
        let _pass = self.0.enter(Region::Lifecycle)?;
        let _one_at_a_time = lock(&self.0.making_pipeline);
        let (place, number) = {
            let state = self.0.lock();
            (state.place.clone(), state.links.pipelines.len() as u32)
        };
        if number >= PIPELINES_MAX {
            return Err(CoiError::OutOfRange(format!(
                "more than {PIPELINES_MAX} pipelines"
            )));
        }
        let endpoint = Arc::new(open(&place.engine, place.port, Kind::Pipeline(number))?);
        let generation = {
            let mut state = self.0.lock();
            state.links.pipelines.push(endpoint.clone());
            state.machine.generation()
        };
        self.0.handle(Input::AddPipeline);
        self.0.listen_to_pipeline(endpoint, generation, number);
        Ok(Pipeline {
            number,
            process: self.clone(),
        })
    }

    /// A new buffer of `bytes`, zero at first (COIBufferCreate).
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, CoiError> {
        Buffer::create(self, bytes)
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

    /// Lets the program end by itself, and ends it by force after `timeout` (COIProcessDestroy).
    pub fn destroy(&self, timeout: Duration) -> Result<Exit, CoiError> {
        let _pass = self.0.enter(Region::Lifecycle)?;
        match self.0.command(Command::EndProcess) {
            Ok(_) => {}
            // It was faster than its own answer.
            Err(CoiError::ProcessDied { exit, .. }) => return Ok(exit),
            Err(error) => return Err(error),
        }
        if let Ok(exit) = self.wait(Some(timeout)) {
            return Ok(exit);
        }
        let control = self.0.lock().links.control.clone();
        control.send_message(&ToDaemon::Destroy)?;
        self.wait(Some(timeout))
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
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Tells the machine what happened, and does what it says.
    pub fn handle(&self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut sends = Vec::new();
            let mut state = self.lock();
            state.machine.handle(input, self.epoch.elapsed());
            while let Some(output) = state.machine.poll_output() {
                match output {
                    Output::Done(ticket, result) => {
                        if state.awaited.contains(&ticket) {
                            state.done.insert(ticket, result);
                        }
                    }
                    Output::Command(..) => sends.push((state.links.command.clone(), output)),
                    Output::Run(_, number, _) => {
                        let link = state.links.pipelines.get(number as usize);
                        sends.extend(link.cloned().map(|link| (link, output)));
                    }
                }
            }
            drop(state);
            self.changed.notify_all();
            // Nobody is kept out while bytes are on their way. There is at most one message under
            // way on a link, so their order is not lost.
            for (endpoint, output) in sends {
                inputs.extend(send(&endpoint, output));
            }
        }
    }

    /// A call with a ticket of its own, and its end.
    pub fn call(
        &self,
        input: impl FnOnce(Ticket) -> Input,
        timeout: Option<Duration>,
    ) -> Result<Value, CoiError> {
        let ticket = self.ticket();
        self.handle(input(ticket));
        let result = self.wait_for(ticket, timeout);
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

    /// Waits for the end of a call; `None` if it does not come in time.
    pub fn wait_for(
        &self,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Option<Result<Value, CoiError>> {
        let deadline = timeout.map(|timeout| self.epoch.elapsed() + timeout);
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
        self.call(|ticket| Input::Enter(ticket, region), None)?;
        Ok(Pass(self, region))
    }

    /// Case 3: one command and its answer.
    pub fn command(&self, command: Command) -> Result<Answer, CoiError> {
        match self.call(|ticket| Input::Command(ticket, command), None)? {
            Value::Answer(answer) => Ok(answer),
            _ => Err(self.protocol("a command")),
        }
    }

    /// What a broken connection means, once the daemon has had the time to tell.
    pub fn broken(&self) -> CoiError {
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

    /// How many pipelines there are.
    pub fn pipelines(&self) -> u32 {
        self.lock().links.pipelines.len() as u32
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

    /// One thread that learns when the rig is gone.
    fn watch_the_rig(self: &Arc<Self>) {
        let (watch, process) = (self.watch.clone(), Arc::downgrade(self));
        std::thread::spawn(move || {
            while watch.accept().is_ok() {}
            if let Some(process) = process.upgrade() {
                process.handle(Input::RigGone);
            }
        });
    }

    /// One thread for each link of now.
    fn listen(self: &Arc<Self>) {
        let state = self.lock();
        let generation = state.machine.generation();
        let (control, command) = (state.links.control.clone(), state.links.command.clone());
        let pipelines = state.links.pipelines.clone();
        drop(state);
        self.listen_to(control, generation, Link::Control, move |message| {
            Input::Daemon(generation, message)
        });
        self.listen_to(command, generation, Link::Command, move |answer| {
            Input::Answer(generation, answer)
        });
        for (number, endpoint) in pipelines.into_iter().enumerate() {
            self.listen_to_pipeline(endpoint, generation, number as u32);
        }
    }

    fn listen_to_pipeline(
        self: &Arc<Self>,
        from: Arc<Endpoint>,
        generation: Generation,
        number: u32,
    ) {
        self.listen_to(from, generation, Link::Pipeline(number), move |result| {
            Input::Result(generation, number, result)
        });
    }

    fn listen_to<T: DeserializeOwned + 'static>(
        self: &Arc<Self>,
        from: Arc<Endpoint>,
        generation: Generation,
        link: Link,
        input: impl Fn(T) -> Input + Send + 'static,
    ) {
        let process: Weak<Self> = Arc::downgrade(self);
        std::thread::spawn(move || {
            loop {
                let message = from.receive_message();
                let Some(process) = process.upgrade() else {
                    return;
                };
                match message {
                    Ok(message) => process.handle(input(message)),
                    Err(_) => return process.handle(Input::Lost(generation, link)),
                }
            }
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The daemon ends the process with its control connection; the listeners end too.
        self.lock().links.close();
        self.watch.close();
    }
}

/// Sends what the machine says; what came of it.
fn send(endpoint: &Endpoint, output: Output) -> Option<Input> {
    match output {
        Output::Command(generation, command) => match endpoint.send_message(&command) {
            Ok(()) => None,
            Err(_) => Some(Input::Lost(generation, Link::Command)),
        },
        Output::Run(generation, number, function) => match endpoint.send_message(&function) {
            Ok(()) => Some(Input::Sent(generation, number)),
            Err(_) => Some(Input::Lost(generation, Link::Pipeline(number))),
        },
        Output::Done(..) => None,
    }
}

/// One of the connections to an offload process.
fn open(engine: &Engine, port: u16, kind: Kind) -> Result<Endpoint, CoiError> {
    let endpoint = engine.connect(port)?;
    endpoint.send_message(&kind)?;
    Ok(endpoint)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
