//! The offload process's runtime (COI on the sink), with Snapify's changes.
//!
//! Threads: the acceptor takes the host's connections; the command server runs case 3; a
//! Pipe_Thread2 for each pipeline runs functions (case 4); the Snapify thread sleeps until the
//! daemon's signal.
//!
//! What must stay true: between `Runtime::quiesce` and `Runtime::release` nothing is sent on
//! any channel; a channel that breaks in that time is waited for, because a restored process gets
//! a new one.

mod api;
mod buffers;
mod channel;
mod commands;
mod pipeline;
mod snapify;
mod symbols;

use std::{
    collections::BTreeMap,
    io,
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
};

use snaprig_wire::{
    coi::Channel as Kind,
    snapify::{Hello, Purpose, SOCKET},
};

use self::{buffers::Buffers, channel::Channel};
use crate::{frames, gate::Gate, scif::Endpoint};

/// Everything the threads share.
pub struct Runtime {
    /// Around the result of a run function (case 4).
    results: Gate,
    buffers: Mutex<Buffers>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    channels: BTreeMap<Kind, Arc<Channel>>,
    listener: Option<Arc<Endpoint>>,
    /// Between pause and resume.
    quiet: bool,
    /// The command server has seen the Shutdown marker (case 3).
    marker: bool,
    /// Run functions may run (COIPipelineStartExecutingRunFunctions).
    started: bool,
    /// The host wants the program to end.
    ending: bool,
}

impl Runtime {
    /// The process's runtime, started at the first call.
    pub fn get() -> &'static Self {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        let mut first = false;
        let runtime = RUNTIME.get_or_init(|| {
            first = true;
            Runtime {
                results: Gate::default(),
                buffers: Mutex::default(),
                state: Mutex::default(),
                changed: Condvar::new(),
            }
        });
        if first && let Err(error) = runtime.start() {
            eprintln!("coi: the offload process cannot be reached: {error}");
            std::process::exit(1);
        }
        runtime
    }

    fn start(&'static self) -> io::Result<()> {
        snapify::install()?;
        let port = self.listen()?;
        announce(&Purpose::Started { port })?;
        std::thread::spawn(move || self.accept());
        std::thread::spawn(move || snapify::serve(self));
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
                while state.quiet
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
        let mut state = self.lock();
        if let Some(channel) = state.channels.get(&kind) {
            channel.replace(endpoint);
            return Ok(kind);
        }
        let channel = Arc::new(Channel::new(endpoint));
        state.channels.insert(kind, channel.clone());
        drop(state);
        self.changed.notify_all();
        match kind {
            Kind::Dma => {}
            Kind::Command => {
                std::thread::spawn(move || commands::serve(self, &channel));
            }
            Kind::Pipeline(_) => {
                std::thread::spawn(move || pipeline::serve(self, &channel));
            }
        }
        Ok(kind)
    }

    fn dma(&self) -> Option<Arc<Channel>> {
        self.lock().channels.get(&Kind::Dma).cloned()
    }

    /// The sink's half of pause: its locks, and the marker.
    fn quiesce(&self) {
        self.lock().quiet = true;
        self.results.close();
        let mut state = self.lock();
        while !state.marker {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The sink's half of resume.
    fn release(&self) {
        let mut state = self.lock();
        (state.quiet, state.marker) = (false, false);
        drop(state);
        self.changed.notify_all();
        self.results.open();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
