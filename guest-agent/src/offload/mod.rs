//! The offload process's runtime (COI on the sink), with Snapify's changes.
//!
//! | module | what it is |
//! |---|---|
//! | `start` | the runtime starts before the program's main |
//! | `api`, `info` | what the program calls (`include/sink`, `include/common`) |
//! | `source` | what programs of the host call, and none of a card |
//! | `commands` | the command server (case 3) |
//! | `pipeline` | Pipe_Thread2, one for each pipeline (case 4) |
//! | `notices` | what the host is told unasked |
//! | `buffers`, `references` | the local store; who uses it |
//! | `libraries`, `walk` | functions by name, in dynamic programs and in static ones |
//! | `channel` | connections that a restore replaces |
//! | [`machine`], `snapify` | pause and resume: the protocol, and the thread that drives it |
//!
//! Threads beside those: the acceptor takes the host's connections.
//!
//! What must stay true: while [`machine`] is quiet nothing is sent on any channel; a channel that
//! breaks in that time is waited for, because a restored process gets a new one.

mod api;
mod buffers;
mod channel;
mod commands;
mod info;
mod libraries;
pub mod machine;
mod notices;
mod pipeline;
pub mod references;
mod snapify;
mod source;
mod start;
mod walk;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use snaprig_offload_wire::{
    coi::Channel as Kind,
    snapify::{Hello, Purpose, SOCKET},
};

use self::{
    buffers::Buffers,
    channel::Channel,
    libraries::Libraries,
    machine::{Input, Machine},
    notices::Notices,
    pipeline::Pipeline,
};
use crate::{frames, scif::Endpoint, urgency::be_urgent};

/// Everything the threads share.
pub struct Runtime {
    buffers: Mutex<Buffers>,
    libraries: Mutex<Libraries>,
    pipelines: Mutex<BTreeMap<u32, Pipeline>>,
    /// Numbers of pipelines that have ended before their channels had come: they may still come.
    overdue: Mutex<BTreeSet<u32>>,
    notices: Notices,
    state: Mutex<State>,
    changed: Condvar,
    /// Makes the Snapify thread look at the machine.
    nudge: io::PipeWriter,
    /// Nobody will ever want a snapshot.
    without_snapify: bool,
}

#[derive(Default)]
struct State {
    channels: BTreeMap<Kind, Arc<Channel>>,
    listener: Option<Arc<Endpoint>>,
    /// Pause and resume.
    machine: Machine,
    /// Run functions may run (COIPipelineStartExecutingRunFunctions).
    started: bool,
    /// Run functions that run, or whose results are not sent yet.
    running: usize,
    /// The host wants the program to end: no run function begins any more.
    ending: bool,
    /// Requests for libraries, and what became of them: a COIRESULT and the library's number.
    requests: BTreeMap<u64, Option<(u32, u64)>>,
    next_request: u64,
    /// How often the process was restored.
    restored: u64,
}

impl Runtime {
    /// The process's runtime, if it is an offload process. It is there before main if the linker
    /// took `start` along, and from the first call on if not.
    pub fn get() -> Option<&'static Self> {
        static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
        let mut first = None;
        let runtime = RUNTIME.get_or_init(|| {
            if !start::is_offload_process() {
                return None;
            }
            let (nudged, nudge) = io::pipe().unwrap_or_else(|error| unreachable_host(&error));
            first = Some(nudged);
            Some(Runtime {
                buffers: Mutex::default(),
                libraries: Mutex::default(),
                pipelines: Mutex::default(),
                overdue: Mutex::default(),
                notices: Notices::default(),
                state: Mutex::default(),
                changed: Condvar::new(),
                nudge,
                without_snapify: start::is_without_snapify(),
            })
        });
        let runtime = runtime.as_ref()?;
        if let Some(nudged) = first
            && let Err(error) = runtime.start(nudged)
        {
            unreachable_host(&error);
        }
        Some(runtime)
    }

    fn start(&'static self, nudged: io::PipeReader) -> io::Result<()> {
        raise_descriptors();
        snapify::install()?;
        let port = self.listen()?;
        announce(&Purpose::Started { port })?;
        std::thread::spawn(move || self.accept());
        std::thread::spawn(move || notices::serve(self));
        std::thread::spawn(move || {
            be_urgent();
            snapify::serve(self, nudged);
        });
        // The program runs when its host is there: it may be short, and end with that.
        for kind in [Kind::Dma, Kind::Command, Kind::Notice] {
            self.wait_for_channel(kind, || false);
        }
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
                    state = self.wait(state);
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
        if let Kind::Pipeline(number) = kind
            && (lock(&self.overdue).remove(&number) || !lock(&self.pipelines).contains_key(&number))
        {
            // Nobody would serve it.
            return Ok(kind);
        }
        let channel = Arc::new(Channel::new(endpoint));
        self.lock().channels.insert(kind, channel.clone());
        self.tell(Input::Connected(kind));
        self.changed.notify_all();
        match kind {
            Kind::Command => {
                std::thread::spawn(move || commands::serve(self, &channel));
            }
            // Who serves them is there already.
            Kind::Dma | Kind::Notice | Kind::Pipeline(_) => {}
        }
        Ok(kind)
    }

    /// Waits until the host has made a channel, or nobody wants it any more.
    fn wait_for_channel(&self, kind: Kind, ends: impl Fn() -> bool) -> Option<Arc<Channel>> {
        let mut state = self.lock();
        loop {
            if let Some(channel) = state.channels.get(&kind) {
                return Some(channel.clone());
            }
            if ends() {
                return None;
            }
            state = self.wait(state);
        }
    }

    /// Whether the host has made a channel, or makes it within this time.
    fn has_channel_within(&self, kind: Kind, patience: Duration) -> bool {
        let is_missing = |state: &mut State| !state.channels.contains_key(&kind);
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), patience, is_missing);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.channels.contains_key(&kind)
    }

    /// A channel is gone for good; whether there was one.
    fn disconnect(&self, kind: Kind) -> bool {
        let is_there = self.lock().channels.remove(&kind).is_some();
        if is_there {
            self.tell(Input::Disconnected(kind));
        }
        is_there
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
        let channels: Vec<_> = self.lock().channels.values().cloned().collect();
        self.changed.notify_all();
        channels.iter().for_each(|channel| channel.look_again());
    }

    /// Waits until something may be sent, and counts as one who sends.
    fn begin_sending(&self) {
        if self.without_snapify {
            return;
        }
        let mut state = self.lock();
        while !state.machine.may_send() {
            state = self.wait(state);
        }
        state.machine.handle(Input::Sending);
    }

    /// It is sent.
    fn end_sending(&self, sent: Input) {
        if !self.without_snapify {
            self.tell(sent);
        }
    }

    /// Waits until run functions may run, and counts as one; false if none will any more.
    fn may_run(&self) -> bool {
        let mut state = self.lock();
        while !state.started && !state.ending {
            state = self.wait(state);
        }
        if state.ending {
            return false;
        }
        state.running += 1;
        true
    }

    /// A run function has run, and its result is sent. Only the end of the process waits for that: to wake
    /// nobody is a system call, too.
    fn has_run(&self) {
        let mut state = self.lock();
        state.running -= 1;
        if state.ending && state.running == 0 {
            self.changed.notify_all();
        }
    }

    /// A request for a library is answered.
    fn library_loaded(&self, request: u64, result: u32, library: u64) {
        if let Some(answer) = self.lock().requests.get_mut(&request) {
            *answer = Some((result, library));
        }
        self.changed.notify_all();
    }

    /// Waits for a change.
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Locks it, whatever became of others who had it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each pipeline has descriptors, and there may be many: the soft limit is as high as the hard one.
fn raise_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: getrlimit(2) writes and setrlimit(2) reads a struct rlimit, which is a variable of this function. If
    // there is no more, less has to do.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
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
