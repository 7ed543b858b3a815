//! The calls of the paper's table 1, on the host: the driver of [`crate::machine`].

use std::{
    os::fd::{AsRawFd, RawFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use snaprig_coi::{CoiError, Engine, Process, quiesce};
use snaprig_offload_wire::{
    coi::ToDaemon,
    snapify::{BINARIES, Reply, Request, StoredFile},
};
use snaprig_scif::client::{Endpoint, ScifError};
use snaprig_snapify_io::{
    Grant, Writing,
    store::{self, Builder, Manifest},
    sums::StoreError,
};
use snaprig_wire::scif::NodeId;

use crate::{
    Phase, SnapifyError,
    control::lock,
    machine::{Action, Call, Input, Machine, Outcome, Output},
    step::{Step, StepReport},
};

/// Permission bits of a sink program.
const PROGRAM_MODE: u32 = 0o755;

/// Why a process that is on no card is neither paused nor resumed.
const SWAPPED_OUT: &str = "the process is swapped out; swap it in first";

/// Told of every step as it begins and ends.
pub type Observer = Arc<dyn Fn(&StepReport) + Send + Sync>;

/// Snapshots of one process (the paper's `snapify_t`).
#[derive(Clone)]
pub struct Snapify(Arc<Inner>);

/// Those that there are, by the numbers of their processes.
static ALL: Mutex<Vec<(u64, Weak<Inner>)>> = Mutex::new(Vec::new());

struct Inner {
    process: Process,
    observer: Observer,
    state: Mutex<State>,
    captured: Condvar,
    /// The next snapshot is compressed.
    compress_next: AtomicBool,
    /// For those who look while a call is at work.
    phase: Mutex<Phase>,
}

enum State {
    Idle(Box<Session>),
    /// A call is at work.
    Busy,
    /// A capture is at work.
    Capturing,
    /// The card was asked to capture, and nobody waits for its answer yet.
    Asked(Box<Session>),
    /// Its result waits here.
    Captured(Box<Session>, Result<u64, SnapifyError>),
}

/// What a call is to do next.
enum Next {
    Do(Action, Option<Duration>),
    Return(Result<u64, SnapifyError>),
}

/// The machine, and what it works on.
#[derive(Default)]
struct Session {
    machine: Machine,
    /// The card that restore was told.
    target: Option<Engine>,
    /// To the daemon of the card where the process is, and the one made last.
    daemon: Option<Arc<Endpoint>>,
    next_daemon: Option<Arc<Endpoint>>,
    /// To that of the card where copies go.
    copies: Option<(Engine, Arc<Endpoint>)>,
    /// Where the next pause is to put its snapshot.
    requested: PathBuf,
    /// Where the snapshot of this pause is, or will be.
    snapshot: PathBuf,
    building: Option<(Builder, Manifest, Grant)>,
    /// That is for a move, and for nobody after it.
    passes: bool,
    /// Cards read the snapshot while it is being restored.
    reading: Option<Grant>,
    /// The step under way.
    step: Option<(Step, Instant)>,
    /// The process is on no card.
    swapped_out: bool,
}

impl Session {
    /// What the process is doing between calls.
    fn phase(&self) -> Phase {
        match self.machine.is_paused() {
            false => Phase::Running,
            true if self.swapped_out => Phase::SwappedOut,
            true if self.machine.is_captured() => Phase::Captured,
            true => Phase::Paused,
        }
    }
}

impl Snapify {
    /// For `process`; `observer` is told of every step.
    pub fn new(process: &Process, observer: Observer) -> Self {
        let inner = Arc::new(Inner {
            process: process.clone(),
            observer,
            state: Mutex::new(State::Idle(Box::default())),
            captured: Condvar::new(),
            compress_next: AtomicBool::new(false),
            phase: Mutex::default(),
        });
        let mut all = lock(&ALL);
        all.retain(|(_, inner)| inner.strong_count() > 0);
        all.push((process.id(), Arc::downgrade(&inner)));
        Self(inner)
    }

    /// The one that the process has already, or a new one: who does something to a process that others have paused is to
    /// know it.
    pub fn of(process: &Process) -> Self {
        let all = lock(&ALL);
        let known = all.iter().find(|(id, _)| *id == process.id());
        if let Some(inner) = known.and_then(|(_, inner)| inner.upgrade()) {
            return Self(inner);
        }
        drop(all);
        Self::new(process, Arc::new(|_| ()))
    }

    /// What the process is doing.
    pub fn phase(&self) -> Phase {
        *lock(&self.0.phase)
    }

    /// What the card sends for the snapshot of the next pause, local store and image, is compressed on its way to the disk
    /// (zstd).
    pub fn compress_next(&self) {
        self.0.compress_next.store(true, Ordering::Relaxed);
    }

    /// Copies the process while it works, for the pause that is to follow, which will be a short one: what a snapshot below
    /// `snapshot` has is on the disk by then but for what changed at last. If it is to come back on the card `to`, that
    /// reads the copies, too. Returns the bytes of all of them.
    ///
    /// The process runs on until [`Snapify::pause`], or [`Snapify::resume`], which forgets the copies.
    pub fn copy(&self, snapshot: &Path, to: Option<&Engine>) -> Result<u64, SnapifyError> {
        let mut session = self.0.take_present()?;
        session.requested = snapshot.to_owned();
        session.passes = false;
        session.target = to.cloned();
        self.0.call(session, Call::Copy(to.map(Engine::node)))
    }

    /// snapify_pause: stops all communication, and saves the local store below `snapshot`, a
    /// directory that will be there when the capture is complete. What [`Snapify::copy`] has copied is of use if it was
    /// for the same directory. Returns the bytes saved.
    pub fn pause(&self, snapshot: &Path) -> Result<u64, SnapifyError> {
        self.pause_for(snapshot, Call::Pause)
    }

    fn pause_for(&self, snapshot: &Path, call: Call) -> Result<u64, SnapifyError> {
        let mut session = self.0.take_present()?;
        if session.machine.is_copied() && session.snapshot != snapshot {
            let forgotten = self.0.run(&mut session, Call::Resume);
            if let Err(error) = forgotten {
                *self.0.lock() = State::Idle(session);
                return Err(error);
            }
        }
        session.requested = snapshot.to_owned();
        session.passes = call == Call::PauseToMove;
        if session.passes
            && let Some((builder, _, grant)) = &mut session.building
        {
            let rig = quiesce::identity(&self.0.process).engine.rig();
            match Grant::with(&rig, builder.directory(), Writing::Passing) {
                Ok(passing) => *grant = passing,
                // Then what comes is written as what has come.
                Err(error) => tracing::debug!(%error, "a move waits for the disk"),
            }
        }
        self.0.call(session, call)
    }

    /// snapify_capture: starts to save the process, and returns at once.
    pub fn capture(&self, terminate: bool) -> Result<(), SnapifyError> {
        let mut session = self.0.take()?;
        if session.building.is_none() {
            // It is refused, and nothing goes on in the background.
            return self.0.call(session, Call::Capture(terminate)).map(|_| ());
        }
        *self.0.lock() = State::Capturing;
        let inner = self.0.clone();
        std::thread::spawn(move || {
            let result = inner.run(&mut session, Call::Capture(terminate));
            *inner.lock() = State::Captured(session, result);
            inner.captured.notify_all();
        });
        Ok(())
    }

    /// snapify_wait: waits for the capture; returns the bytes of the image.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<u64, SnapifyError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.0.lock();
        while matches!(*state, State::Capturing) {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            state = match left {
                None => self
                    .0
                    .captured
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Err(SnapifyError::TimedOut),
                Some(left) => {
                    let waited = self.0.captured.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        match std::mem::replace(&mut *state, State::Busy) {
            State::Captured(session, result) => {
                *state = State::Idle(session);
                result
            }
            other => {
                *state = other;
                Err(SnapifyError::Order("there is no capture to wait for"))
            }
        }
    }

    /// The process works; what was copied of it is of no use any more.
    pub(crate) fn forget_copies(&self) -> Result<(), SnapifyError> {
        let session = self.0.take()?;
        match session.machine.is_copied() {
            true => self.0.call(session, Call::Resume).map(drop),
            false => {
                *self.0.lock() = State::Idle(session);
                Ok(())
            }
        }
    }

    /// Has the card capture, which goes on while nobody here does anything: no thread waits for it until
    /// [`Snapify::finish_capture`].
    pub(crate) fn ask_to_capture(&self) -> Result<(), SnapifyError> {
        let mut session = self.0.take()?;
        *lock(&self.0.phase) = Phase::Capturing;
        let asked = self.0.ask_to_capture(&mut session);
        if asked.is_err() {
            *lock(&self.0.phase) = session.phase();
        }
        *self.0.lock() = match asked {
            Ok(()) => State::Asked(session),
            Err(_) => State::Idle(session),
        };
        asked
    }

    /// Waits for that. Nothing, if nobody has asked.
    pub(crate) fn finish_capture(&self) -> Result<(), SnapifyError> {
        let Some(mut session) = self.0.take_asked() else {
            return Ok(());
        };
        let finished = self.0.finish_capture(&mut session);
        *lock(&self.0.phase) = session.phase();
        *self.0.lock() = State::Idle(session);
        finished.map(drop)
    }

    /// Files that are open for a capture that nobody waits for yet.
    pub(crate) fn open_for_capture(&self) -> Vec<RawFd> {
        let state = self.0.lock();
        let State::Asked(session) = &*state else {
            return Vec::new();
        };
        let building = session.building.iter();
        let files = building.flat_map(|(builder, _, grant)| [builder.lock(), grant.lock()]);
        files.map(|file| file.as_raw_fd()).collect()
    }

    /// The capture that nobody has waited for is part of the same checkpoint as this process, which has been restarted.
    pub(crate) fn captured_meanwhile(&self) {
        if let Some(mut session) = self.0.take_asked() {
            session.machine.handle(Input::CapturedMeanwhile);
            while let Some(output) = session.machine.poll_output() {
                self.0.note(&mut session, output);
            }
            *self.0.lock() = State::Idle(session);
        }
    }

    /// snapify_resume: lets host and offload process go on.
    pub fn resume(&self) -> Result<(), SnapifyError> {
        let session = self.0.take_present()?;
        self.0.call(session, Call::Resume).map(|_| ())
    }

    /// snapify_restore: brings the process back from its snapshot, on any card. It stays paused.
    /// Returns the bytes of the local store and the image.
    pub fn restore(&self, engine: &Engine) -> Result<u64, SnapifyError> {
        let mut session = self.0.take()?;
        session.target = Some(engine.clone());
        self.0.call(session, Call::Restore(engine.node()))
    }

    /// The same, of a snapshot that is in another directory now.
    pub fn restore_from(&self, snapshot: &Path, engine: &Engine) -> Result<u64, SnapifyError> {
        let mut session = self.0.take()?;
        session.snapshot = snapshot.to_owned();
        session.target = Some(engine.clone());
        self.0.call(session, Call::Restore(engine.node()))
    }

    /// Swapping out (paper figure 6): the process leaves its card.
    pub fn swap_out(&self, snapshot: &Path) -> Result<u64, SnapifyError> {
        let saved = self.pause(snapshot)?;
        let image = self.capture(true).and_then(|()| self.wait(None));
        match image {
            Ok(image) => Ok(saved + image),
            Err(error) => {
                // If it is still there, let it go on; why it is not out is the news.
                let _ = self.resume();
                Err(error)
            }
        }
    }

    /// Swapping in (paper figure 6).
    pub fn swap_in(&self, engine: &Engine) -> Result<u64, SnapifyError> {
        let bytes = self.restore(engine)?;
        self.resume()?;
        Ok(bytes)
    }

    /// Migration (paper figure 7) of a process that works until most of it is on the other card.
    pub fn migrate_live(&self, snapshot: &Path, engine: &Engine) -> Result<u64, SnapifyError> {
        let copied = self.copy(snapshot, Some(engine))?;
        Ok(copied + self.migrate(snapshot, engine)?)
    }

    /// Migration (paper figure 7): out of one card, into another. Its local store goes from card to card (section 7,
    /// process migration), its image by way of `snapshot`, which is not there any more afterwards: a snapshot that was
    /// there before stays. If it fails the process goes on where it was.
    ///
    /// To its own card it comes by being swapped out and in.
    pub fn migrate(&self, snapshot: &Path, engine: &Engine) -> Result<u64, SnapifyError> {
        let own = quiesce::identity(&self.0.process).engine;
        if own == *engine {
            let out = self.swap_out(snapshot)?;
            return Ok(out + self.swap_in(engine)?);
        }
        let paused = self.pause_for(snapshot, Call::PauseToMove)?;
        let image = self.capture(true).and_then(|()| self.wait(None));
        let moved = image.and_then(|image| Ok(image + self.restore(engine)?));
        // Wherever it is.
        let resumed = self.resume();
        let moved = moved?;
        resumed.map(|()| paused + moved)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Result<Box<Session>, SnapifyError> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Busy) {
            State::Idle(session) => Ok(session),
            other => {
                *state = other;
                Err(SnapifyError::Order(
                    "another call is at work, or a capture is not waited for",
                ))
            }
        }
    }

    /// The same, of a process that is on a card.
    fn take_present(&self) -> Result<Box<Session>, SnapifyError> {
        let session = self.take()?;
        match session.swapped_out {
            false => Ok(session),
            true => {
                *self.lock() = State::Idle(session);
                Err(SnapifyError::Order(SWAPPED_OUT))
            }
        }
    }

    fn call(&self, mut session: Box<Session>, call: Call) -> Result<u64, SnapifyError> {
        let result = self.run(&mut session, call);
        *self.lock() = State::Idle(session);
        result
    }

    /// Runs a call to its end.
    fn run(&self, session: &mut Session, call: Call) -> Result<u64, SnapifyError> {
        *lock(&self.phase) = Phase::during(&call);
        let result = self.steps(session, call);
        *lock(&self.phase) = session.phase();
        result
    }

    fn steps(&self, session: &mut Session, call: Call) -> Result<u64, SnapifyError> {
        let first = self.begin(session, call);
        self.go_on(session, first)
    }

    fn begin(&self, session: &mut Session, call: Call) -> Next {
        let identity = quiesce::identity(&self.process);
        let input = Input::Call(call, identity.engine.node(), identity.pid);
        self.next(session, input)
    }

    /// Does this and all that follows.
    fn go_on(&self, session: &mut Session, mut next: Next) -> Result<u64, SnapifyError> {
        loop {
            match next {
                Next::Return(result) => return result,
                Next::Do(action, timeout) => {
                    let done = self.perform(session, action, timeout);
                    next = self.next(session, Input::Done(done));
                }
            }
        }
    }

    /// What to do when this has happened.
    fn next(&self, session: &mut Session, input: Input) -> Next {
        session.machine.handle(input);
        loop {
            match session.machine.poll_output() {
                Some(Output::Returned(result)) => return Next::Return(result),
                Some(Output::Do(action, timeout)) => return Next::Do(action, timeout),
                Some(output) => self.note(session, output),
                None => {
                    let why = "the call was lost";
                    return Next::Return(Err(SnapifyError::Order(why)));
                }
            }
        }
    }

    fn take_asked(&self) -> Option<Box<Session>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Busy) {
            State::Asked(session) => Some(session),
            other => {
                *state = other;
                None
            }
        }
    }

    fn ask_to_capture(&self, session: &mut Session) -> Result<(), SnapifyError> {
        match self.begin(session, Call::Capture(false)) {
            Next::Do(Action::Ask(mut request), _) => {
                self.tell_written(&mut request);
                let sent = self.daemon(session).and_then(|(daemon, node)| {
                    let sent = daemon.send_message(&request);
                    sent.map_err(lost(node, Step::Capture))
                });
                match sent {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        let next = self.next(session, Input::Done(Err(error)));
                        self.go_on(session, next).map(drop)
                    }
                }
            }
            next => self.go_on(session, next).map(drop),
        }
    }

    fn finish_capture(&self, session: &mut Session) -> Result<u64, SnapifyError> {
        let answer = self.daemon(session).and_then(|(daemon, node)| {
            let answer = daemon.receive_message();
            answer.map_err(lost(node, Step::Capture))
        });
        let next = self.next(session, Input::Done(answer.map(Outcome::Reply)));
        self.go_on(session, next)
    }

    /// The daemon that the process, or what is to be it, is at, and its card.
    fn daemon(&self, session: &Session) -> Result<(Arc<Endpoint>, NodeId), SnapifyError> {
        let (daemon, node) = match (&session.next_daemon, &session.daemon) {
            (Some(daemon), _) => (daemon, session.target.as_ref().map(Engine::node)),
            (None, Some(daemon)) => (daemon, None),
            (None, None) => {
                let why = "there is no connection to the process's card; restore it on one";
                return Err(SnapifyError::Order(why));
            }
        };
        let own = || quiesce::identity(&self.process).engine.node();
        Ok((daemon.clone(), node.unwrap_or_else(own)))
    }

    /// What takes no time and cannot fail.
    fn note(&self, session: &mut Session, output: Output) {
        let report = |step, elapsed, bytes| {
            (self.observer)(&StepReport {
                step,
                elapsed,
                bytes,
            });
        };
        match output {
            Output::Began(step) => {
                session.step = Some((step, Instant::now()));
                report(step, None, 0);
            }
            Output::Ended(step, bytes) => {
                let began = session.step.take().map(|(_, began)| began.elapsed());
                report(step, Some(began.unwrap_or_default()), bytes);
            }
            Output::SwappedOut(is) => {
                session.swapped_out = is;
                quiesce::swapped_out(&self.process, is);
            }
            Output::Switch => {
                session.swapped_out = false;
                session.daemon = session.next_daemon.take();
            }
            Output::Enter => session.next_daemon = session.copies.take().map(|(_, to)| to),
            Output::ForgetCopies => session.copies = None,
            Output::HangUp => (session.daemon, session.next_daemon) = (None, None),
            Output::Forget => session.next_daemon = None,
            Output::Discard => session.building = None,
            Output::Release => quiesce::release(&self.process),
            Output::Do(..) | Output::Returned(_) => {}
        }
    }

    fn perform(
        &self,
        session: &mut Session,
        action: Action,
        timeout: Option<Duration>,
    ) -> Result<Outcome, SnapifyError> {
        match action {
            Action::Prepare => self.prepare(session),
            Action::Connect(node) => {
                let own = quiesce::identity(&self.process).engine;
                let engine = match &session.target {
                    Some(target) if target.node() == node => target,
                    _ => &own,
                };
                session.next_daemon = Some(connect(engine)?);
                Ok(Outcome::Done)
            }
            Action::ConnectTarget(_) => {
                let target = session
                    .target
                    .clone()
                    .ok_or(SnapifyError::Order("copies go to a card"))?;
                let daemon = connect(&target)?;
                session.copies = Some((target, daemon));
                Ok(Outcome::Done)
            }
            Action::Ask(mut request) => {
                self.tell_written(&mut request);
                let step = session.step.map_or(Step::Resume, |(step, _)| step);
                let (daemon, node) = self.daemon(session)?;
                ask(&daemon, node, step, &request, timeout).map(Outcome::Reply)
            }
            Action::AskTarget(request) => {
                let Some((target, daemon)) = &session.copies else {
                    return Err(SnapifyError::Order("copies go to a card"));
                };
                ask(daemon, target.node(), Step::Preload, &request, timeout).map(Outcome::Reply)
            }
            Action::Quiesce => in_time(
                Step::Lock,
                quiesce::quiesce(&self.process, timeout.unwrap_or(Duration::MAX)),
            )
            .map(Outcome::Quiet),
            Action::Settle(returned, notices) => {
                let timeout = timeout.unwrap_or(Duration::MAX);
                let settled = quiesce::settle(&self.process, returned, notices, timeout);
                in_time(Step::Drain, settled).map(|()| Outcome::Done)
            }
            Action::Commit {
                local_store,
                images,
            } => {
                let Some((builder, mut manifest, grant)) = session.building.take() else {
                    return Err(SnapifyError::Order("capture comes after pause, once"));
                };
                drop(grant);
                manifest.local_store = local_store;
                if let [first, increments @ ..] = &images[..] {
                    manifest.image_bytes = *first;
                    manifest.increments = increments.to_vec();
                }
                builder.commit(manifest)?;
                Ok(Outcome::Done)
            }
            Action::Verify => self.read(session, store::open_whole),
            Action::Open => self.read(session, store::peek),
            Action::Reconnect { pid, port, .. } => {
                session.reading = None;
                let target = session.target.clone();
                let engine = target.ok_or(SnapifyError::Order("restore names a card"))?;
                for moved in quiesce::reconnect(&self.process, &engine, pid, port)? {
                    tracing::debug!(?moved, "window registered anew");
                }
                Ok(Outcome::Done)
            }
        }
    }

    fn prepare(&self, session: &mut Session) -> Result<Outcome, SnapifyError> {
        let identity = quiesce::identity(&self.process);
        session.snapshot.clone_from(&session.requested);
        let builder = match session.passes {
            true => Builder::passing(&session.snapshot)?,
            false => Builder::create(&session.snapshot)?,
        };
        let compressed = self.compress_next.swap(false, Ordering::Relaxed);
        let writing = match (compressed, session.passes) {
            (true, _) => Writing::Compressed,
            (false, true) => Writing::Passing,
            (false, false) => Writing::Plain,
        };
        let grant = Grant::with(&identity.engine.rig(), builder.directory(), writing)?;
        let mut manifest = Manifest::new(identity.name.clone(), identity.engine.node());
        manifest.compressed = compressed;
        // The host has the program and its libraries, so they need not come back from the card (paper, footnote 2).
        builder.add_binary(&format!("{BINARIES}/{}", identity.name), &identity.binary)?;
        manifest.binaries.push(StoredFile {
            name: identity.name,
            card_path: identity.path,
            len: identity.binary.len() as u64,
            mode: PROGRAM_MODE,
        });
        for (number, file) in identity.libraries.iter().enumerate() {
            let own = file.path.rsplit('/').next().unwrap_or_default();
            // Two of the same name may be in different directories.
            let name = format!("{number}-{own}");
            builder.add_binary(&format!("{BINARIES}/{name}"), &file.bytes)?;
            manifest.binaries.push(StoredFile {
                name,
                card_path: file.path.clone(),
                len: file.bytes.len() as u64,
                mode: PROGRAM_MODE,
            });
        }
        let directory = grant.directory().to_string_lossy().into_owned();
        let binaries = manifest.binaries.clone();
        session.building = Some((builder, manifest, grant));
        Ok(Outcome::Prepared {
            directory,
            binaries,
            proxy: identity.proxy,
        })
    }

    fn read(
        &self,
        session: &mut Session,
        open: fn(&Path) -> Result<Manifest, StoreError>,
    ) -> Result<Outcome, SnapifyError> {
        let manifest = open(&session.snapshot)?;
        let identity = quiesce::identity(&self.process);
        let grant = Grant::new(&identity.engine.rig(), &session.snapshot)?;
        let snapshot = grant.directory().to_string_lossy().into_owned();
        session.reading = Some(grant);
        let image_bytes = manifest.images().sum();
        Ok(Outcome::Verified {
            snapshot,
            local_store: manifest.local_store,
            binaries: manifest.binaries,
            image_bytes,
            proxy: identity.proxy,
        })
    }

    /// What an image of a chain has to have, because nothing but this process knows of it.
    fn tell_written(&self, request: &mut Request) {
        if let Request::Copy { link, .. }
        | Request::Capture {
            last: Some(link), ..
        } = request
        {
            let written = quiesce::written(&self.process);
            // All is in the first.
            if link.number > 0 {
                link.wrote = written;
            }
        }
    }
}

fn connect(engine: &Engine) -> Result<Arc<Endpoint>, SnapifyError> {
    let daemon = engine.connect_daemon()?;
    daemon
        .send_message(&ToDaemon::Snapify)
        .map_err(CoiError::from)?;
    Ok(Arc::new(daemon))
}

/// One request to the daemon of a card and its answer.
fn ask(
    daemon: &Endpoint,
    node: NodeId,
    step: Step,
    request: &Request,
    timeout: Option<Duration>,
) -> Result<Reply, SnapifyError> {
    let exchange = || {
        daemon.send_message(request)?;
        daemon.receive_message()
    };
    let (answer, in_time) = match timeout {
        None => (exchange(), true),
        Some(timeout) => within(timeout, daemon, exchange),
    };
    match answer {
        Ok(reply) => Ok(reply),
        Err(_) if !in_time => Err(SnapifyError::Stuck(step)),
        Err(source) => Err(lost(node, step)(source)),
    }
}

fn lost(node: NodeId, step: Step) -> impl Fn(ScifError) -> SnapifyError {
    move |source| SnapifyError::CardLost { node, step, source }
}

/// A step that took too long is stuck.
fn in_time<T>(step: Step, result: Result<T, CoiError>) -> Result<T, SnapifyError> {
    result.map_err(|error| match error {
        CoiError::TimedOut => SnapifyError::Stuck(step),
        error => error.into(),
    })
}

/// Runs an exchange on an endpoint that is closed when the time is up, and says whether it was not.
fn within<T>(
    timeout: Duration,
    endpoint: &Endpoint,
    exchange: impl FnOnce() -> Result<T, ScifError>,
) -> (Result<T, ScifError>, bool) {
    let (done, waiting) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watchdog = scope.spawn(move || match waiting.recv_timeout(timeout) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                endpoint.close();
                false
            }
            _ => true,
        });
        let result = exchange();
        drop(done);
        (result, watchdog.join().unwrap_or(true))
    })
}
