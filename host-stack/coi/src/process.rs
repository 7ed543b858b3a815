//! Offload processes: made, asked, watched and ended.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use coi_device::gate::Gate;
use serde::Serialize;
use snaprig_scif::client::Endpoint;
use snaprig_wire::coi::{
    Answer, Channel as Kind, Command, Exit, FromDaemon, PIPELINES_MAX, Program, ToDaemon,
};

use crate::{
    Buffer, CoiError, Engine, Pipeline,
    buffer::BufferInner,
    channel::{self, Channel},
    pipeline::PipelineInner,
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
    pub state: Mutex<State>,
    pub changed: Condvar,
    /// Case 1: creation and destruction.
    pub lifecycle: Gate,
    /// Case 2: RDMA.
    pub rdma: Gate,
    /// Case 3: commands, one at a time.
    pub commands: Gate,
    pub in_command: Mutex<()>,
    /// Case 4: sends of run functions.
    pub sends: Gate,
    pub dma: Channel,
    pub command: Channel,
    pub pipelines: Mutex<Vec<Arc<PipelineInner>>>,
    pub buffers: Mutex<BTreeMap<u64, Arc<BufferInner>>>,
    pub started: AtomicU64,
    pub finished: AtomicU64,
    pub next_buffer: AtomicU64,
}

pub(crate) struct State {
    pub engine: Engine,
    pub pid: i32,
    /// Where it takes the host's connections.
    pub port: u16,
    /// Its program on the card.
    pub path: String,
    pub control: Arc<Endpoint>,
    /// How it ended; a card that is lost has no exit.
    pub ended: Option<Result<Exit, ()>>,
    pub paused: bool,
    /// It was ended on purpose after a capture.
    pub swapped_out: bool,
    /// No run function is sent once this many have been.
    pub hold_at: Option<u64>,
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
        let program = Program {
            name: name.into(),
            bytes: binary.len() as u64,
            argv,
            env,
        };
        channel::send(&control, &ToDaemon::Create(program))?;
        control.send(&binary)?;
        let node = engine.node();
        let (pid, port, path) = match channel::receive(&control)? {
            FromDaemon::Created { pid, port, path } => (pid, port, path),
            FromDaemon::Failed { why, .. } => return Err(CoiError::Refused { node, why }),
            _ => {
                return Err(CoiError::Protocol {
                    node,
                    what: "create",
                });
            }
        };
        let inner = Inner {
            name: name.into(),
            binary,
            dma: Channel::new(open(engine, port, Kind::Dma)?),
            command: Channel::new(open(engine, port, Kind::Command)?),
            state: Mutex::new(State {
                engine: engine.clone(),
                pid,
                port,
                path,
                control: Arc::new(control),
                ended: None,
                paused: false,
                swapped_out: false,
                hold_at: None,
            }),
            changed: Condvar::new(),
            lifecycle: Gate::default(),
            rdma: Gate::default(),
            commands: Gate::default(),
            in_command: Mutex::new(()),
            sends: Gate::default(),
            pipelines: Mutex::default(),
            buffers: Mutex::default(),
            started: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            next_buffer: AtomicU64::new(1),
        };
        let process = Self(Arc::new(inner));
        process.watch();
        Ok(process)
    }

    /// A run function by its name (COIProcessGetFunctionHandles).
    pub fn function(&self, name: &str) -> Result<Function, CoiError> {
        match self.0.command(&Command::Function(name.into()))? {
            Answer::Function(address) => Ok(Function(address)),
            _ => Err(self.0.protocol("function lookup")),
        }
    }

    /// A new pipeline (COIPipelineCreate).
    pub fn pipeline(&self) -> Result<Pipeline, CoiError> {
        let _pass = self.0.lifecycle.enter();
        let mut pipelines = lock(&self.0.pipelines);
        let number = pipelines.len() as u32;
        if number >= PIPELINES_MAX {
            return Err(CoiError::OutOfRange(format!(
                "more than {PIPELINES_MAX} pipelines"
            )));
        }
        let (engine, port) = self.0.place();
        let endpoint = open(&engine, port, Kind::Pipeline(number))?;
        let pipeline = PipelineInner::start(&self.0, number, endpoint);
        pipelines.push(pipeline.clone());
        Ok(Pipeline {
            inner: pipeline,
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
        Status {
            pid: state.pid,
            node: state.engine.node(),
            started: self.0.started.load(Ordering::SeqCst),
            finished: self.0.finished.load(Ordering::SeqCst),
            paused: state.paused,
        }
    }

    /// Lets the program end by itself, and ends it by force after `timeout` (COIProcessDestroy).
    pub fn destroy(&self, timeout: Duration) -> Result<Exit, CoiError> {
        let _pass = self.0.lifecycle.enter();
        match self.0.command(&Command::EndProcess) {
            Ok(_) => {}
            // It was faster than its own answer.
            Err(CoiError::ProcessDied { exit, .. }) => return Ok(exit),
            Err(error) => return Err(error),
        }
        if let Ok(exit) = self.wait(Some(timeout)) {
            return Ok(exit);
        }
        let control = self.0.lock().control.clone();
        channel::send(&control, &ToDaemon::Destroy)?;
        self.wait(Some(timeout))
    }

    /// Waits for its end.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Exit, CoiError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.0.lock();
        loop {
            match state.ended {
                Some(Ok(exit)) => return Ok(exit),
                Some(Err(())) => {
                    return Err(CoiError::CardLost {
                        node: state.engine.node(),
                    });
                }
                None => {}
            }
            state = self.0.wait(state, deadline)?;
        }
    }

    /// Waits until `count` run functions have been sent, and lets no more be sent before resume:
    /// a breakpoint for whoever wants to pause with exactly that one in flight.
    pub fn break_at(&self, count: u64, timeout: Option<Duration>) -> Result<(), CoiError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.0.lock();
        state.hold_at = Some(count);
        while self.0.started.load(Ordering::SeqCst) < count {
            if state.ended.is_some() {
                return Err(self.0.death(&state));
            }
            state = self.0.wait(state, deadline)?;
        }
        Ok(())
    }

    /// Looks after the control connection of now.
    pub(crate) fn watch(&self) {
        let inner = Arc::downgrade(&self.0);
        let control = self.0.lock().control.clone();
        std::thread::spawn(move || {
            let message = channel::receive::<FromDaemon>(&control);
            let Some(inner) = inner.upgrade() else { return };
            let mut state = inner.lock();
            if !Arc::ptr_eq(&state.control, &control) {
                // The process has moved on.
                return;
            }
            match message {
                Ok(FromDaemon::Exited(_)) if state.swapped_out => {}
                Ok(FromDaemon::Exited(exit)) => state.ended = Some(Ok(exit)),
                // A card that is lost during a pause can still be replaced.
                _ if state.paused => {}
                _ => state.ended = Some(Err(())),
            }
            drop(state);
            inner.changed.notify_all();
            inner.look_again();
        });
    }
}

impl Inner {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> Result<MutexGuard<'a, State>, CoiError> {
        let Some(deadline) = deadline else {
            return Ok(self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CoiError::TimedOut);
        }
        Ok(self
            .changed
            .wait_timeout(state, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0)
    }

    /// Where it runs and where it takes connections.
    pub fn place(&self) -> (Engine, u16) {
        let state = self.lock();
        (state.engine.clone(), state.port)
    }

    pub fn is_paused(&self) -> bool {
        let state = self.lock();
        state.paused && state.ended.is_none()
    }

    /// Why nothing works any more.
    pub fn death(&self, state: &State) -> CoiError {
        let node = state.engine.node();
        match state.ended {
            Some(Ok(exit)) => CoiError::ProcessDied {
                pid: state.pid,
                node,
                exit,
            },
            _ => CoiError::CardLost { node },
        }
    }

    /// What a broken connection means, once the daemon has had the time to tell.
    pub fn broken(&self) -> CoiError {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut state = self.lock();
        while state.ended.is_none() {
            match self.wait(state, Some(deadline)) {
                Ok(next) => state = next,
                Err(error) => return error,
            }
        }
        self.death(&state)
    }

    pub fn protocol(&self, what: &'static str) -> CoiError {
        CoiError::Protocol {
            node: self.lock().engine.node(),
            what,
        }
    }

    /// Case 3: one command and its answer.
    pub fn command(&self, command: &Command) -> Result<Answer, CoiError> {
        let _pass = self.commands.enter();
        self.command_now(command)
    }

    /// The same for pause, which holds the gate.
    pub fn command_now(&self, command: &Command) -> Result<Answer, CoiError> {
        let _one_at_a_time = lock(&self.in_command);
        let endpoint = self.command.endpoint();
        let answer = channel::send(&endpoint, command).and_then(|()| channel::receive(&endpoint));
        match answer {
            Ok(Answer::Failed { why, .. }) => Err(CoiError::Refused {
                node: self.lock().engine.node(),
                why,
            }),
            Ok(answer) => Ok(answer),
            Err(_) => Err(self.broken()),
        }
    }

    pub fn look_again(&self) {
        self.dma.look_again();
        self.command.look_again();
        for pipeline in lock(&self.pipelines).iter() {
            pipeline.channel.look_again();
        }
    }
}

/// One of the connections to an offload process.
pub(crate) fn open(engine: &Engine, port: u16, kind: Kind) -> Result<Endpoint, CoiError> {
    let endpoint = engine.connect(port)?;
    channel::send(&endpoint, &kind)?;
    Ok(endpoint)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
