//! The calls of the paper's table 1, on the host.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_coi::{CoiError, Engine, Process, quiesce};
use snaprig_scif::client::{Endpoint, ScifError};
use snaprig_snapify_io::{
    daemon::{Grant, grant},
    store::{self, Builder, Manifest},
    sums::StoreError,
};
use snaprig_wire::{
    coi::ToDaemon,
    frame,
    snapify::{BINARIES, Reply, Request, StoredFile},
};

use crate::step::{Step, StepReport};

/// Permission bits of a sink program.
const PROGRAM_MODE: u32 = 0o755;

/// Why a call of Snapify failed.
#[derive(Debug, thiserror::Error)]
pub enum SnapifyError {
    /// The offload stack.
    #[error(transparent)]
    Coi(#[from] CoiError),
    /// The snapshot's files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The connection to the daemon.
    #[error("card {node} is gone in the middle of {step:?}: {source}")]
    CardLost {
        /// The card.
        node: u16,
        /// What was being done.
        step: Step,
        /// What SCIF said.
        source: ScifError,
    },
    /// The card could not do it.
    #[error("{step:?} failed on card {node}: {why}")]
    Failed {
        /// The card.
        node: u16,
        /// What was being done.
        step: Step,
        /// What it said.
        why: String,
    },
    /// The calls are out of order.
    #[error("{0}")]
    Order(&'static str),
    /// It did not happen in time.
    #[error("the capture is not finished yet")]
    TimedOut,
}

/// Told of every step as it begins and ends.
pub type Observer = Arc<dyn Fn(&StepReport) + Send + Sync>;

/// Snapshots of one process (the paper's `snapify_t`).
#[derive(Clone)]
pub struct Snapify(Arc<Inner>);

struct Inner {
    process: Process,
    observer: Observer,
    state: Mutex<State>,
    captured: Condvar,
}

enum State {
    Running,
    /// A call is at work.
    Busy,
    Paused(Paused),
    /// A capture is at work; its result comes here.
    Capturing,
    Captured(Paused, Result<u64, SnapifyError>),
}

struct Paused {
    /// To the daemon of the card where the process is, or was.
    daemon: Arc<Endpoint>,
    /// The snapshot that pause has begun and capture commits.
    building: Option<(Builder, Manifest, Grant)>,
    snapshot: PathBuf,
}

impl Snapify {
    /// For `process`; `observer` is told of every step.
    pub fn new(process: &Process, observer: Observer) -> Self {
        Self(Arc::new(Inner {
            process: process.clone(),
            observer,
            state: Mutex::new(State::Running),
            captured: Condvar::new(),
        }))
    }

    /// snapify_pause: stops all communication, and saves the local store below `snapshot`, a
    /// directory that will be there when the capture is complete. Returns the bytes saved.
    pub fn pause(&self, snapshot: &Path) -> Result<u64, SnapifyError> {
        {
            let mut state = self.0.lock();
            if !matches!(*state, State::Running) {
                return Err(SnapifyError::Order(
                    "the process is paused already; resume it first",
                ));
            }
            *state = State::Busy;
        }
        let result = self.0.pause(snapshot);
        let (next, result) = match result {
            Ok((paused, bytes)) => (State::Paused(paused), Ok(bytes)),
            Err(error) => {
                quiesce::release(&self.0.process);
                (State::Running, Err(error))
            }
        };
        *self.0.lock() = next;
        result
    }

    /// snapify_capture: starts to save the process, and returns at once.
    pub fn capture(&self, terminate: bool) -> Result<(), SnapifyError> {
        let mut state = self.0.lock();
        let paused = match std::mem::replace(&mut *state, State::Capturing) {
            State::Paused(paused) if paused.building.is_some() => paused,
            other => {
                *state = other;
                return Err(SnapifyError::Order("capture comes after pause, once"));
            }
        };
        drop(state);
        let inner = self.0.clone();
        std::thread::spawn(move || {
            let mut paused = paused;
            let result = inner.capture(&mut paused, terminate);
            *inner.lock() = State::Captured(paused, result);
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
            State::Captured(paused, result) => {
                *state = State::Paused(paused);
                result
            }
            other => {
                *state = other;
                Err(SnapifyError::Order("there is no capture to wait for"))
            }
        }
    }

    /// snapify_resume: lets host and offload process go on.
    pub fn resume(&self) -> Result<(), SnapifyError> {
        let paused = self.0.take_paused("there is nothing to resume")?;
        let result = self.0.resume(&paused);
        *self.0.lock() = match result {
            Ok(()) => State::Running,
            Err(_) => State::Paused(paused),
        };
        result
    }

    /// snapify_restore: brings the process back from its snapshot, on any card. It stays paused.
    /// Returns the bytes of the local store.
    pub fn restore(&self, engine: &Engine) -> Result<u64, SnapifyError> {
        let mut paused = self
            .0
            .take_paused("restore comes after pause and capture")?;
        let result = self.0.restore(&mut paused, engine);
        *self.0.lock() = State::Paused(paused);
        result
    }

    /// Swapping out (paper figure 6): the process leaves its card.
    pub fn swap_out(&self, snapshot: &Path) -> Result<u64, SnapifyError> {
        let saved = self.pause(snapshot)?;
        let image = self.capture(true).and_then(|()| self.wait(None));
        match image {
            Ok(image) => Ok(saved + image),
            Err(error) => {
                // It is still there: let it go on.
                self.resume()?;
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

    /// Migration (paper figure 7): out of one card, into another.
    pub fn migrate(&self, snapshot: &Path, engine: &Engine) -> Result<u64, SnapifyError> {
        let out = self.swap_out(snapshot)?;
        Ok(out + self.swap_in(engine)?)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_paused(&self, otherwise: &'static str) -> Result<Paused, SnapifyError> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Busy) {
            State::Paused(paused) => Ok(paused),
            other => {
                *state = other;
                Err(SnapifyError::Order(otherwise))
            }
        }
    }

    /// Runs a step and tells the observer when it begins and ends.
    fn step<T>(
        &self,
        step: Step,
        run: impl FnOnce(&mut u64) -> Result<T, SnapifyError>,
    ) -> Result<T, SnapifyError> {
        (self.observer)(&StepReport {
            step,
            elapsed: None,
            bytes: 0,
        });
        let (started, mut bytes) = (Instant::now(), 0);
        let result = run(&mut bytes)?;
        (self.observer)(&StepReport {
            step,
            elapsed: Some(started.elapsed()),
            bytes,
        });
        Ok(result)
    }

    /// One request to the daemon and its answer.
    fn ask(&self, daemon: &Endpoint, step: Step, request: &Request) -> Result<Reply, SnapifyError> {
        let node = quiesce::identity(&self.process).0.node();
        let answer = send(daemon, request).and_then(|()| receive(daemon));
        match answer {
            Ok(Reply::Failed { why, .. }) => Err(SnapifyError::Failed { node, step, why }),
            Ok(reply) => Ok(reply),
            Err(source) => Err(SnapifyError::CardLost { node, step, source }),
        }
    }

    fn unexpected(&self, step: Step) -> SnapifyError {
        let node = quiesce::identity(&self.process).0.node();
        SnapifyError::Failed {
            node,
            step,
            why: "it answered something else".into(),
        }
    }

    fn pause(&self, snapshot: &Path) -> Result<(Paused, u64), SnapifyError> {
        let (engine, pid, name, path, binary) = quiesce::identity(&self.process);
        let builder = Builder::create(snapshot)?;
        let granted = grant(engine.rig(), builder.directory())?;
        let mut manifest = Manifest::new(name.clone(), engine.node());
        // The host has the program, so it need not come back from the card (paper, footnote 2).
        builder.add(&format!("{BINARIES}/{name}"), &binary)?;
        manifest.binaries.push(StoredFile {
            name,
            card_path: path,
            len: binary.len() as u64,
            mode: PROGRAM_MODE,
        });
        let daemon = Arc::new(connect(&engine)?);
        self.step(Step::Agree, |_| {
            match self.ask(&daemon, Step::Agree, &Request::Pause { pid })? {
                Reply::Agreed => Ok(()),
                _ => Err(self.unexpected(Step::Agree)),
            }
        })?;
        let drained = self.quiesce_and_drain(&daemon, pid, builder.directory());
        let local_store = match drained {
            Ok(local_store) => local_store,
            Err(error) => {
                // Undo the agreement if the card is still there to hear of it.
                let _ = self.ask(&daemon, Step::Resume, &Request::Resume { pid });
                return Err(error);
            }
        };
        let bytes = local_store.iter().map(|file| file.len).sum();
        manifest.local_store = local_store;
        let building = Some((builder, manifest, granted));
        Ok((
            Paused {
                daemon,
                building,
                snapshot: snapshot.to_owned(),
            },
            bytes,
        ))
    }

    fn quiesce_and_drain(
        &self,
        daemon: &Endpoint,
        pid: i32,
        directory: &Path,
    ) -> Result<Vec<StoredFile>, SnapifyError> {
        self.step(Step::Lock, |_| Ok(quiesce::quiesce(&self.process)?))?;
        let snapshot = directory.to_string_lossy().into_owned();
        self.step(Step::Drain, |bytes| {
            match self.ask(daemon, Step::Drain, &Request::Drain { pid, snapshot })? {
                Reply::Drained { local_store } => {
                    *bytes = local_store.iter().map(|file| file.len).sum();
                    Ok(local_store)
                }
                _ => Err(self.unexpected(Step::Drain)),
            }
        })
    }

    fn capture(&self, paused: &mut Paused, terminate: bool) -> Result<u64, SnapifyError> {
        let pid = quiesce::identity(&self.process).1;
        let Some((builder, mut manifest, granted)) = paused.building.take() else {
            return Err(SnapifyError::Order("capture comes after pause, once"));
        };
        let snapshot = builder.directory().to_string_lossy().into_owned();
        if terminate {
            quiesce::swapped_out(&self.process);
        }
        let daemon = paused.daemon.clone();
        let bytes = self.step(Step::Capture, |moved| {
            let request = Request::Capture {
                pid,
                snapshot,
                terminate,
            };
            match self.ask(&daemon, Step::Capture, &request)? {
                Reply::Captured { bytes } => {
                    *moved = bytes;
                    Ok(bytes)
                }
                _ => Err(self.unexpected(Step::Capture)),
            }
        })?;
        drop(granted);
        manifest.image_bytes = bytes;
        self.step(Step::Commit, |_| {
            builder.commit(&manifest)?;
            Ok(())
        })?;
        Ok(bytes)
    }

    fn resume(&self, paused: &Paused) -> Result<(), SnapifyError> {
        let pid = quiesce::identity(&self.process).1;
        self.step(Step::Resume, |_| {
            match self.ask(&paused.daemon, Step::Resume, &Request::Resume { pid })? {
                Reply::Resumed => Ok(()),
                _ => Err(self.unexpected(Step::Resume)),
            }
        })?;
        quiesce::release(&self.process);
        Ok(())
    }

    fn restore(&self, paused: &mut Paused, engine: &Engine) -> Result<u64, SnapifyError> {
        let manifest = self.step(Step::Verify, |_| Ok(store::open(&paused.snapshot)?))?;
        let _grant = grant(engine.rig(), &paused.snapshot)?;
        let daemon = Arc::new(connect(engine)?);
        let stored: u64 = manifest.local_store.iter().map(|file| file.len).sum();
        let (pid, port) = self.step(Step::Restore, |bytes| {
            *bytes = stored + manifest.image_bytes;
            let request = Request::Restore {
                snapshot: paused.snapshot.to_string_lossy().into_owned(),
                local_store: manifest.local_store.clone(),
                binaries: manifest.binaries.clone(),
            };
            match self.ask(&daemon, Step::Restore, &request)? {
                Reply::Restored { pid, port } => Ok((pid, port)),
                _ => Err(self.unexpected(Step::Restore)),
            }
        })?;
        self.step(Step::Reconnect, |_| {
            for moved in quiesce::reconnect(&self.process, engine, pid, port)? {
                tracing::debug!(?moved, "window registered anew");
            }
            Ok(())
        })?;
        paused.daemon = daemon;
        Ok(stored + manifest.image_bytes)
    }
}

fn connect(engine: &Engine) -> Result<Endpoint, SnapifyError> {
    let daemon = engine.connect_daemon()?;
    send(&daemon, &ToDaemon::Snapify).map_err(CoiError::from)?;
    Ok(daemon)
}

fn send<T: Serialize>(to: &Endpoint, message: &T) -> Result<(), ScifError> {
    to.send(&frame::encode_framed(message))
}

fn receive<T: DeserializeOwned>(from: &Endpoint) -> Result<T, ScifError> {
    let mut prefix = [0; 4];
    from.recv_exact(&mut prefix)?;
    let broken = || ScifError {
        call: "scif_recv",
        errno: libc::EPROTO,
    };
    let mut body = vec![0; frame::frame_len(prefix).map_err(|_| broken())?];
    from.recv_exact(&mut body)?;
    frame::decode(&body).map_err(|_| broken())
}
