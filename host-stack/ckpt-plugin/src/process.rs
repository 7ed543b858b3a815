//! The plugins of this process, and the thread that runs them.
//!
//! What must stay true: from a plugin's pre-checkpoint to what follows it no child is made and it is not unregistered;
//! a child of fork(2) says itself what plugins it has before any of its own code runs.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    os::{fd::RawFd, unix::ffi::OsStringExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError},
    thread,
};

use crate::{
    Checkpoint, Directory, Error, Options, Plugin, Restart,
    connection::Connection,
    message::{Event, OWNS_MAX, REASON_MAX, Registered, SOCKET, ToProcess, ToSupervisor, VERSION},
};

/// What there is of plugins in this process.
struct State {
    plugins: BTreeMap<u32, Entry>,
    next: u32,
    connection: Option<Connection>,
    /// Where the supervisor is, if it is another than the environment says.
    moved: Option<PathBuf>,
}

struct Entry {
    options: Options,
    plugin: Arc<dyn Plugin>,
    /// Between pre-checkpoint and what follows.
    waits: bool,
}

static STATE: Mutex<State> = Mutex::new(State {
    plugins: BTreeMap::new(),
    next: 0,
    connection: None,
    moved: None,
});
/// A plugin does not wait any more.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// This is the thread that runs plugins.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
    /// Held while this thread forks.
    static FORKING: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no plugin waits that `which` picks; the thread that runs them need not.
fn settled(which: impl Fn(u32) -> bool) -> MutexGuard<'static, State> {
    let mut state = lock();
    let waits = |state: &State| {
        let mut plugins = state.plugins.iter();
        plugins.any(|(id, entry)| entry.waits && which(*id))
    };
    while !IS_OURS.get() && waits(&state) {
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    state
}

pub fn register(options: Options, plugin: Arc<dyn Plugin>) -> Result<u32, Error> {
    watch_forks();
    let mut state = lock();
    let id = state.next;
    state.next += 1;
    let entry = Entry {
        options,
        plugin,
        waits: false,
    };
    let registered = entry.registered(id);
    state.plugins.insert(id, entry);
    match &state.connection {
        Some(connection) => connection.send(&ToSupervisor::Registered(registered)),
        None => state.start().inspect_err(|_| {
            state.plugins.remove(&id);
        })?,
    }
    Ok(id)
}

pub fn unregister(id: u32) -> bool {
    let mut state = settled(|other| other == id);
    let removed = state.plugins.remove(&id);
    if let Some(connection) = &state.connection {
        connection.send(&ToSupervisor::Unregistered { id });
    }
    drop(state);
    removed.is_some()
}

/// Where the supervisor listens.
pub fn socket() -> Option<PathBuf> {
    let moved = lock().moved.clone();
    moved.or_else(|| std::env::var_os(SOCKET).map(PathBuf::from))
}

/// Of the supervisor's environment; for plugins that are being told something.
pub fn variable(name: &[u8]) -> Option<Vec<u8>> {
    let state = lock();
    let connection = state.connection.as_ref().filter(|_| IS_OURS.get())?;
    let name = name.to_vec();
    connection.send(&ToSupervisor::Variable { name });
    let fd = connection.descriptor().fd;
    drop(state);
    match Connection::receive(fd)? {
        ToProcess::Value(value) => value,
        _ => None,
    }
}

impl Entry {
    fn registered(&self, id: u32) -> Registered {
        let Options {
            name,
            order,
            patience,
        } = &self.options;
        Registered {
            id,
            name: name.clone(),
            order: *order,
            patience_ms: patience.as_millis() as u64,
            waits: self.waits,
        }
    }
}

impl State {
    /// Connects to the supervisor, if there is one, and starts the thread.
    fn start(&mut self) -> Result<(), Error> {
        let socket = self.moved.clone();
        let socket = socket.or_else(|| std::env::var_os(SOCKET).map(PathBuf::from));
        // Who listens no more takes no checkpoints.
        let Some(connection) = socket.and_then(|path| Connection::open(&path).ok()) else {
            return Ok(());
        };
        let fd = connection.descriptor().fd;
        self.connection = Some(connection);
        self.introduce();
        let spawned = without_signals(|| {
            let builder = thread::Builder::new().name("snaprig-ckpt".into());
            builder.spawn(move || serve(fd))
        });
        spawned.map(drop).map_err(|_| {
            self.connection = None;
            Error::Thread
        })
    }

    /// Says what plugins there are.
    fn introduce(&self) {
        let Some(connection) = &self.connection else {
            return;
        };
        connection.send(&ToSupervisor::Hello {
            version: VERSION,
            descriptor: connection.descriptor(),
        });
        for (id, entry) in &self.plugins {
            connection.send(&ToSupervisor::Registered(entry.registered(*id)));
        }
        connection.send(&ToSupervisor::Listed);
    }
}

/// Signals are for the program's own threads.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are valid to write to and read.
    unsafe {
        let (mut all, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

/// The thread: does what the supervisor says, until that has gone.
fn serve(fd: RawFd) {
    IS_OURS.set(true);
    while let Some(message) = Connection::receive(fd) {
        match message {
            ToProcess::Restarted { socket } => {
                let mut state = lock();
                state.moved = Some(std::ffi::OsString::from_vec(socket).into());
                let connection = state.connection.as_mut();
                if connection.is_none_or(|connection| connection.look_again().is_err()) {
                    break;
                }
                state.introduce();
            }
            // What the program has put in its place is not to be told anything.
            _ if !is_connected() => break,
            ToProcess::Do { serial, id, event } => {
                let refusal = perform(id, event).err();
                say(&ToSupervisor::Done { serial, refusal });
            }
            ToProcess::Value(_) => {}
        }
    }
    let is_replaced = !is_connected();
    resume_all();
    let mut state = lock();
    state.connection = None;
    if is_replaced && !state.plugins.is_empty() {
        // The program has closed it with all that it does not know: the supervisor is still there.
        let _ = state.start();
    }
}

fn is_connected() -> bool {
    let state = lock();
    let connection = state.connection.as_ref();
    connection.is_some_and(Connection::is_own)
}

fn say(message: &ToSupervisor) {
    if let Some(connection) = &lock().connection {
        connection.send(message);
    }
}

/// Whoever waits goes on, without a supervisor.
fn resume_all() {
    loop {
        let state = lock();
        let waiting = state.plugins.iter().filter(|(_, entry)| entry.waits);
        let last = waiting.max_by_key(|(id, entry)| (entry.options.order, **id));
        let Some(id) = last.map(|(id, _)| *id) else {
            return;
        };
        drop(state);
        let _ = perform(id, Event::Resume);
    }
}

/// Runs a plugin; an error is its refusal.
fn perform(id: u32, event: Event) -> Result<(), String> {
    let state = lock();
    // It may have been unregistered meanwhile.
    let Some(entry) = state.plugins.get(&id) else {
        return Ok(());
    };
    let (plugin, name) = (entry.plugin.clone(), entry.options.name.clone());
    drop(state);
    let directory = |checkpoint: Vec<u8>| Directory {
        checkpoint: std::ffi::OsString::from_vec(checkpoint).into(),
        name: name.clone(),
    };
    let result = match event {
        Event::PreCheckpoint { directory: path } => {
            set_waits(id, true);
            let mut checkpoint = Checkpoint {
                directory: directory(path),
                descriptors: Vec::new(),
                regions: Vec::new(),
            };
            let result = guarded(|| plugin.pre_checkpoint(&mut checkpoint));
            match result {
                Ok(()) => {
                    declare(&checkpoint);
                    return Ok(());
                }
                refused => refused,
            }
        }
        Event::Resume => guarded(|| {
            plugin.resume();
            Ok(())
        }),
        Event::Restart { directory: path } => {
            let directory = directory(path);
            guarded(|| plugin.restart(&Restart { directory }))
        }
    };
    set_waits(id, false);
    result
}

fn set_waits(id: u32, waits: bool) {
    if let Some(entry) = lock().plugins.get_mut(&id) {
        entry.waits = waits;
    }
    CHANGED.notify_all();
}

/// A plugin that panics refuses.
fn guarded(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let result = catch_unwind(AssertUnwindSafe(work));
    let mut result = result.unwrap_or_else(|_| Err("it panicked".into()));
    if let Err(reason) = &mut result {
        let fits = |end: &usize| reason.is_char_boundary(*end);
        reason.truncate((0..=REASON_MAX).rev().find(fits).unwrap_or(0));
    }
    result
}

/// Says what belongs to a plugin.
fn declare(checkpoint: &Checkpoint) {
    let (mut descriptors, mut regions) = (&checkpoint.descriptors[..], &checkpoint.regions[..]);
    while !descriptors.is_empty() || !regions.is_empty() {
        let (some, rest) = descriptors.split_at(descriptors.len().min(OWNS_MAX));
        let (part, others) = regions.split_at(regions.len().min(OWNS_MAX));
        (descriptors, regions) = (rest, others);
        say(&ToSupervisor::Owns {
            descriptors: some.to_vec(),
            regions: part.to_vec(),
        });
    }
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    });
}

/// No child is made while plugins wait: it would have half of what its parent has.
extern "C" fn before() {
    let state = settled(|_| true);
    FORKING.set(Some(state));
}

extern "C" fn parent() {
    FORKING.take();
}

extern "C" fn child() {
    let Some(mut state) = FORKING.take() else {
        return;
    };
    // The connection is the parent's.
    state.connection = None;
    if IS_OURS.replace(false) {
        // A child that a plugin has made is its own affair.
        state.plugins.clear();
    } else if !state.plugins.is_empty() {
        // Without a thread nobody is asked; what it has is refused by name.
        let _ = state.start();
    }
}
