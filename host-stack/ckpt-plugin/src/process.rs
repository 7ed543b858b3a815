//! The plugins of this process, each with its connection and the thread that runs it.
//!
//! What must stay true: from a plugin's first phase to its resume or go no child is made and it is not unregistered; a
//! child of fork(2) says itself what plugins it has before any of its own code runs; without a supervisor, those that
//! wait resume, the highest order value first.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError},
    thread,
};

use crate::{
    Error, Event, Options, Plugin,
    connection::Connection,
    event::{Ask, Round},
    message::{OWNS_MAX, REASON_MAX, Registered, SOCKET, THREAD, ToPlugin, ToSupervisor, VERSION},
    phase::{Part, Phase, Span},
    turns,
};

/// What there is of plugins in this process.
struct State {
    plugins: BTreeMap<u32, Entry>,
    next: u32,
    /// Where the supervisor is, if it is another than the environment says.
    moved: Option<PathBuf>,
}

struct Entry {
    options: Options,
    plugin: Arc<dyn Plugin>,
    connection: Option<Arc<Connection>>,
    /// It is in a round: from the beginning of its first phase to the end of resume or go.
    waits: bool,
    /// The last phase before a checkpoint that it has passed.
    passed: Option<Phase>,
    /// What it has saved is not whole yet.
    finishes_later: bool,
}

static STATE: Mutex<State> = Mutex::new(State {
    plugins: BTreeMap::new(),
    next: 0,
    moved: None,
});
/// A plugin does not wait any more, or is gone.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// This is a thread that runs a plugin.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
    /// Held while this thread forks.
    static FORKING: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no plugin waits that `which` picks; threads that run plugins need not.
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
        connection: None,
        waits: false,
        passed: None,
        finishes_later: false,
    };
    state.plugins.insert(id, entry);
    state.start(id).inspect_err(|_| {
        state.plugins.remove(&id);
    })?;
    Ok(id)
}

pub fn unregister(id: u32) -> bool {
    let mut state = settled(|other| other == id);
    let removed = state.plugins.remove(&id);
    if let Some(connection) = removed.as_ref().and_then(|entry| entry.connection.as_ref()) {
        connection.end();
    }
    CHANGED.notify_all();
    removed.is_some()
}

pub fn adopted_by(supervisor: &Path) -> Result<u32, Error> {
    let mut state = lock();
    loop {
        let mut connections = state
            .plugins
            .values()
            .filter_map(|it| it.connection.clone());
        match connections.next() {
            None => break,
            Some(connection) if !connection.has_ended() => return Err(Error::Supervised),
            // Its thread is about to say so.
            Some(_) => state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }
    state.moved = Some(supervisor.to_owned());
    let ids: Vec<u32> = state.plugins.keys().copied().collect();
    for id in &ids {
        state.start(*id)?;
    }
    let is_connected = |entry: &Entry| entry.connection.is_some();
    match state.plugins.values().all(is_connected) {
        true => Ok(ids.len() as u32),
        false => Err(Error::Absent(supervisor.to_owned())),
    }
}

/// Where the supervisor listens.
pub fn socket() -> Option<PathBuf> {
    lock().socket()
}

impl Entry {
    fn registered(&self) -> Registered {
        let Options {
            name,
            order,
            patience,
        } = &self.options;
        Registered {
            name: name.clone(),
            order: *order,
            patience_ms: patience.as_millis() as u64,
            // This library must know when a round is over.
            phases: self.plugin.phases().with(Phase::Resume).with(Phase::Go),
            follows_moves: self.plugin.follows_moves(),
            passed: self.passed,
        }
    }

    /// Says what it is.
    fn introduce(&self) {
        if let Some(connection) = &self.connection {
            connection.send(&ToSupervisor::Hello {
                version: VERSION,
                descriptor: connection.descriptor(),
                plugin: self.registered(),
            });
        }
    }
}

impl State {
    fn socket(&self) -> Option<PathBuf> {
        let moved = self.moved.clone();
        moved.or_else(|| std::env::var_os(SOCKET).map(PathBuf::from))
    }

    /// Connects a plugin to the supervisor, if there is one, and starts its thread.
    fn start(&mut self, id: u32) -> Result<(), Error> {
        let socket = self.socket();
        let Some(entry) = self.plugins.get_mut(&id) else {
            return Ok(());
        };
        // Who listens no more takes no checkpoints.
        let Some(connection) = socket.and_then(|path| Connection::open(&path).ok()) else {
            return Ok(());
        };
        let connection = Arc::new(connection);
        entry.connection = Some(connection.clone());
        entry.introduce();
        let spawned = without_signals(|| {
            let builder = thread::Builder::new().name(THREAD.into());
            builder.spawn(move || serve(id, &connection))
        });
        spawned.map(drop).map_err(|_| {
            entry.connection = None;
            Error::Thread
        })
    }

    fn is_connected(&self, id: u32) -> bool {
        let entry = self.plugins.get(&id);
        let connection = entry.and_then(|entry| entry.connection.as_ref());
        connection.is_some_and(|connection| connection.is_own())
    }
}

/// Begins a thread of a plugin's in `work`: signals are for the program's own threads, and the new one has none.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: all three sets are this function's own, and each is written to by sigfillset or pthread_sigmask before it
    // is read.
    unsafe {
        let (mut all, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

/// A plugin's thread: does what the supervisor says, until that has gone.
fn serve(id: u32, own: &Connection) {
    IS_OURS.set(true);
    turns::ask_for_short();
    let bytes = RefCell::new(Vec::new());
    let receive = || own.receive(&mut bytes.borrow_mut());
    while let Some(message) = receive() {
        match message {
            ToPlugin::Restarted { socket } => {
                let mut state = lock();
                state.moved = Some(OsString::from_vec(socket).into());
                let Some(entry) = state.plugins.get_mut(&id) else {
                    break;
                };
                if own.look_again().is_err() {
                    break;
                }
                entry.introduce();
                // It was started with usual ones.
                turns::ask_for_short();
            }
            // What the program has put in its place is not to be told anything.
            _ if !lock().is_connected(id) => break,
            ToPlugin::Do {
                serial,
                phase,
                directory,
                participants,
                part,
                span,
            } => {
                let ask = |question| {
                    own.send(&ToSupervisor::Ask(question));
                    match receive() {
                        Some(ToPlugin::Answer(answer)) => answer,
                        _ => Err("the supervisor has gone".into()),
                    }
                };
                let round = Round {
                    phase,
                    checkpoint: OsString::from_vec(directory).into(),
                    participants,
                    part,
                    span,
                };
                let (refusal, finishes_later, published) = match perform(id, &round, &ask) {
                    Ok(event) => {
                        declare(own, &event);
                        (None, event.finishes_later, event.published)
                    }
                    Err(reason) => (Some(reason), false, Vec::new()),
                };
                let has_passed = refusal.is_none();
                own.send(&ToSupervisor::Done {
                    serial,
                    refusal,
                    finishes_later,
                    published,
                });
                if has_passed {
                    wait_for_others(id, phase, own);
                }
            }
            ToPlugin::Answer(_) => {}
        }
    }
    let is_replaced = {
        let state = lock();
        state.plugins.contains_key(&id) && !state.is_connected(id)
    };
    resume_alone(id);
    let mut state = lock();
    if let Some(entry) = state.plugins.get_mut(&id) {
        entry.connection = None;
        if is_replaced {
            // The program has closed it with all that it does not know: the supervisor is still there.
            let _ = state.start(id);
        }
    }
    CHANGED.notify_all();
}

/// What a plugin does for those who have not passed a phase yet.
fn wait_for_others(id: u32, phase: Phase, own: &Connection) {
    if !matches!(phase, Phase::Quiesce | Phase::Drain) {
        return;
    }
    let Some(plugin) = lock().plugins.get(&id).map(|entry| entry.plugin.clone()) else {
        return;
    };
    let meanwhile = || catch_unwind(AssertUnwindSafe(|| plugin.meanwhile(phase)));
    while let Ok(Some(pause)) = meanwhile()
        && own.is_silent(pause)
    {}
}

/// If it waits, it goes on without a supervisor, after those with higher order values.
fn resume_alone(id: u32) {
    let mut state = lock();
    loop {
        let Some(entry) = state.plugins.get(&id) else {
            return;
        };
        let own = (entry.options.order, id);
        let is_before =
            |(other, entry): (&u32, &Entry)| entry.waits && (entry.options.order, *other) > own;
        if !state.plugins.iter().any(is_before) {
            break;
        }
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    let waits = state.plugins.get(&id).is_some_and(|entry| entry.waits);
    drop(state);
    if waits {
        let nobody = |_| Err("the supervisor has gone".into());
        let round = Round {
            phase: Phase::Resume,
            checkpoint: PathBuf::new(),
            participants: 1,
            part: Part::All,
            span: Span::Save,
        };
        let _ = perform(id, &round, &nobody);
    }
}

/// Runs a phase of a plugin; an error is its refusal.
fn perform<'a>(id: u32, round: &Round, ask: Ask<'a>) -> Result<Event<'a>, String> {
    let phase = round.phase;
    let mut state = lock();
    let Some(entry) = state.plugins.get_mut(&id) else {
        // It has been unregistered meanwhile.
        return Ok(Event::new(round, String::new(), ask));
    };
    entry.waits = true;
    // In a restarted process, that was done before it was saved.
    let finishes = std::mem::take(&mut entry.finishes_later) && phase == Phase::Resume;
    let (plugin, name) = (entry.plugin.clone(), entry.options.name.clone());
    drop(state);
    let mut event = Event::new(round, name, ask);
    let finished = match finishes {
        true => guarded(|| plugin.finish(&mut event)),
        false => Ok(()),
    };
    let result = guarded(|| match phase {
        Phase::Quiesce => plugin.quiesce(&mut event),
        Phase::Drain => plugin.drain(&mut event),
        Phase::Save => plugin.save(&mut event),
        Phase::Rebuild => plugin.rebuild(&mut event),
        Phase::Exchange => plugin.exchange(&mut event),
        Phase::Refill => plugin.refill(&mut event),
        Phase::Resume => {
            plugin.resume(&mut event);
            Ok(())
        }
        Phase::Go => {
            plugin.go(&mut event);
            Ok(())
        }
    });
    let result = finished.and(result);
    if let Some(entry) = lock().plugins.get_mut(&id) {
        entry.passed = match (&result, phase) {
            (_, Phase::Resume | Phase::Go) => None,
            (Ok(()), phase) => Some(phase)
                .filter(|phase| phase.is_ascending())
                .or(entry.passed),
            (Err(_), _) => entry.passed,
        };
        entry.finishes_later = result.is_ok() && event.finishes_later;
        // Refused in its first phase, it is as before.
        entry.waits = entry.passed.is_some() || (result.is_ok() && phase.may_fail());
    }
    CHANGED.notify_all();
    result.map(|()| event)
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

/// Says what belongs to a plugin that has saved.
fn declare(own: &Connection, event: &Event) {
    if event.phase() != Phase::Save {
        return;
    }
    let (mut descriptors, mut regions) = (&event.descriptors[..], &event.regions[..]);
    while !descriptors.is_empty() || !regions.is_empty() {
        let (some, rest) = descriptors.split_at(descriptors.len().min(OWNS_MAX));
        let (part, others) = regions.split_at(regions.len().min(OWNS_MAX));
        (descriptors, regions) = (rest, others);
        own.send(&ToSupervisor::Owns {
            descriptors: some.to_vec(),
            regions: part.to_vec(),
        });
    }
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the three functions are this library's, which is never unloaded, and take no arguments.
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
    // The connections are the parent's, and so are their threads.
    for entry in state.plugins.values_mut() {
        if let Some(connection) = entry.connection.take() {
            connection.close_in_child();
        }
    }
    if IS_OURS.replace(false) {
        // A child that a plugin has made is its own affair.
        state.plugins.clear();
    }
    let ids: Vec<u32> = state.plugins.keys().copied().collect();
    for id in ids {
        // Without a thread nobody is asked; what it has is refused by name.
        let _ = state.start(id);
    }
}
