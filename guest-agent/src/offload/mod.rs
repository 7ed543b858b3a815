//! The offload process's runtime (COI on the sink), with Snapify's changes.
//!
//! Threads: the acceptor takes the host's connections; the command server runs case 3; a
//! Pipe_Thread2 for each pipeline runs functions (case 4); the Snapify thread sleeps until the
//! daemon's signal.
//!
//! What must stay true: while [`machine`] is quiet nothing is sent on any channel; a channel that
//! breaks in that time is waited for, because a restored process gets a new one.

mod api;
mod buffers;
mod channel;
mod commands;
pub mod machine;
mod pipeline;
mod snapify;
mod symbols;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
};

use snaprig_wire::{
    coi::Channel as Kind,
    snapify::{Hello, Purpose, SOCKET},
};

use self::{
    buffers::Buffers,
    channel::Channel,
    machine::{Input, Machine},
};
use crate::{frames, scif::Endpoint};

/// Everything the threads share.
pub struct Runtime {
    buffers: Mutex<Buffers>,
    state: Mutex<State>,
    changed: Condvar,
    /// Makes the Snapify thread look at the machine.
    nudge: io::PipeWriter,
}

#[derive(Default)]
struct State {
    channels: BTreeMap<Kind, Arc<Channel>>,
    listener: Option<Arc<Endpoint>>,
    /// Pause and resume.
    machine: Machine,
    /// Run functions may run (COIPipelineStartExecutingRunFunctions).
    started: bool,
    /// The host wants the program to end.
    ending: bool,
}

impl Runtime {
    /// The process's runtime, started at the first call.
    pub fn get() -> &'static Self {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        let mut first = None;
        let runtime = RUNTIME.get_or_init(|| {
            let (nudged, nudge) = io::pipe().unwrap_or_else(|error| unreachable_host(&error));
            first = Some(nudged);
            Runtime {
                buffers: Mutex::default(),
                state: Mutex::default(),
                changed: Condvar::new(),
                nudge,
            }
        });
        if let Some(nudged) = first
            && let Err(error) = runtime.start(nudged)
        {
            unreachable_host(&error);
        }
        runtime
    }

    fn start(&'static self, nudged: io::PipeReader) -> io::Result<()> {
        snapify::install()?;
        let port = self.listen()?;
        announce(&Purpose::Started { port })?;
        std::thread::spawn(move || self.accept());
        std::thread::spawn(move || snapify::serve(self, nudged));
        Ok(())
    }

    /// A new endpoint for the host's connections.
    fn listen(&self) -> io::Result<u16> {
        let listener = Endpoint::open()?;
        let port = listener.bind(0)?;
        listener.listen(64)?;
        self.lock().listener = Some(Arc::new(listener));
        Ok(port)
    }

    /// Takes connections for ever. After a restore the Snapify thread takes the first ones.
    fn accept(&'static self) {
        loop {
            let listener = self.lock().listener.clone();
            let Some(listener) = listener else { return };
            if self.accept_one(&listener).is_err() {
                // The endpoint is gone: there will be another one after a restore, and until
                // resume it is the Snapify thread that accepts on it.
                let mut state = self.lock();
                while state.machine.is_quiet()
                    || state
                        .listener
                        .as_ref()
                        .is_some_and(|now| Arc::ptr_eq(now, &listener))
                {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Takes one connection: a new channel, or the successor of one.
    fn accept_one(&'static self, listener: &Endpoint) -> io::Result<Kind> {
        let (endpoint, _) = listener.accept()?;
        let kind: Kind = frames::receive(&endpoint)?;
        let known = self.lock().channels.get(&kind).cloned();
        if let Some(channel) = known {
            channel.replace(endpoint);
            self.tell(Input::Connected(kind));
            return Ok(kind);
        }
        let channel = Arc::new(Channel::new(endpoint));
        self.lock().channels.insert(kind, channel.clone());
        self.tell(Input::Connected(kind));
        self.changed.notify_all();
        match kind {
            Kind::Dma => {}
            Kind::Command => {
                std::thread::spawn(move || commands::serve(self, &channel));
            }
            Kind::Pipeline(number) => {
                std::thread::spawn(move || pipeline::serve(self, &channel, number));
            }
        }
        Ok(kind)
    }

    fn dma(&self) -> Option<Arc<Channel>> {
        self.lock().channels.get(&Kind::Dma).cloned()
    }

    /// Tells the machine what happened. What it says, the Snapify thread does.
    fn tell(&self, input: Input) {
        let mut state = self.lock();
        state.machine.handle(input);
        if state.machine.has_output() {
            // The pipe never fills up: outputs are few, and each is waited for.
            let _ = (&self.nudge).write(b".");
        }
    }

    /// Threads that wait look whether they still have to.
    fn look_again(&self) {
        self.changed.notify_all();
        let channels: Vec<_> = self.lock().channels.values().cloned().collect();
        channels.iter().for_each(|channel| channel.look_again());
    }

    /// Waits until results may be sent (case 4), and counts as one who sends.
    fn begin_sending(&self) {
        let mut state = self.lock();
        while !state.machine.may_send() {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.machine.handle(Input::Sending);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without its host an offload process has no purpose.
fn unreachable_host(error: &io::Error) -> ! {
    eprintln!("coi: the offload process cannot be reached: {error}");
    std::process::exit(1)
}

/// Tells the daemon why this process connects.
fn announce(why: &Purpose) -> io::Result<UnixStream> {
    let mut daemon = UnixStream::connect(SOCKET)?;
    let hello = Hello {
        pid: std::process::id() as i32,
        why: why.clone(),
    };
    frames::write(&mut daemon, &hello)?;
    Ok(daemon)
}
