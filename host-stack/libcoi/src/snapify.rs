//! `snapify.h`: the calls of the Snapify paper's table 1, and copies before a pause. `libsnapify.so.0` has their names, and
//! nothing in it: it calls these, for the processes are here.
//!
//! What must stay true: from snapify_capture on, the semaphore of a snapshot is posted exactly once, however the capture
//! ends; by then the next call may come. A child of fork(2) is refused before anything is looked at: a lock of its parent's
//! other threads would never open.

use std::{
    ffi::{CString, OsStr, c_char},
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use snaprig_coi::{Engine, Process};
use snaprig_snapify::{SnapifyError, control::Controlled, snapshot_name};

use crate::{
    engine::numbered,
    handles::lock,
    process::{Entry, entry},
    result::{Done, Failure, code, require},
    trace,
    types::{Handle, device},
};

/// `snapify_t`.
#[repr(C)]
pub struct Snapshot {
    path: *const c_char,
    semaphore: libc::sem_t,
    process: Handle,
}

const _: () = assert!(std::mem::offset_of!(Snapshot, process) == 8 + size_of::<libc::sem_t>());

/// What is known here of a process's snapshots.
pub struct Snapshots {
    pub controlled: Arc<Controlled>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Captures that were begun and have not ended.
    captures: usize,
    /// What the last call came to.
    result: u32,
}

impl Snapshots {
    /// There are none yet.
    pub fn new(process: &Process) -> Self {
        Self {
            controlled: Controlled::new(process),
            progress: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Where the snapshot is, in a directory of the program's choice.
    fn directory(&self, chosen: &Path) -> Done<PathBuf> {
        let process = self.controlled.process();
        let chosen = std::path::absolute(chosen);
        let chosen =
            chosen.map_err(|error| Failure::new(code::DOES_NOT_EXIST, error.to_string()))?;
        let name = snapshot_name(process.name(), std::process::id(), process.id());
        Ok(chosen.join(name))
    }
}

impl From<SnapifyError> for Failure {
    fn from(error: SnapifyError) -> Self {
        let code = match &error {
            SnapifyError::Coi(error) => error.code(),
            SnapifyError::CardLost { .. } => code::PROCESS_DIED,
            SnapifyError::NoCard { .. } => code::OUT_OF_RANGE,
            SnapifyError::Order(_) => code::NOT_INITIALIZED,
            SnapifyError::Stuck(_) | SnapifyError::TimedOut => code::TIME_OUT_REACHED,
            SnapifyError::Store(error) => match error.errno() {
                Some(libc::ENOENT | libc::ENOTDIR) => code::DOES_NOT_EXIST,
                Some(libc::ENOSPC | libc::EDQUOT) => code::RESOURCE_EXHAUSTED,
                _ => code::ERROR,
            },
            SnapifyError::Failed { .. } => code::ERROR,
        };
        Self::new(code, error.to_string())
    }
}

/// A program's pointer to its `snapify_t`.
#[derive(Clone, Copy)]
struct Pointer(*mut Snapshot);

// SAFETY: the pointer is used in another thread for the semaphore alone, which is made for that (sem_post(3)); the header
// has the program leave it where it is until it is posted.
unsafe impl Send for Pointer {}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Pointer {
    /// Its process.
    ///
    /// # Safety
    /// It is null, or a snapshot of the program's, which stays during the call.
    unsafe fn entry(self) -> Done<Arc<Entry>> {
        require(!self.0.is_null(), code::INVALID_POINTER)?;
        // SAFETY: it is not null, so that the caller says that it is a snapshot; the handle is copied.
        entry(unsafe { (&raw const (*self.0).process).read() })
    }

    /// The directory that the program has named.
    ///
    /// # Safety
    /// It is a snapshot of the program's, whose path is null or a string; both stay during the call.
    unsafe fn path(self) -> Done<PathBuf> {
        // SAFETY: the caller says that it is a snapshot; the pointer in it is copied.
        let path = unsafe { (&raw const (*self.0).path).read() };
        require(!path.is_null(), code::INVALID_POINTER)?;
        // SAFETY: it is not null, so that the caller says that it is a string; it is copied.
        let path: CString = unsafe { std::ffi::CStr::from_ptr(path) }.to_owned();
        Ok(OsStr::from_bytes(path.as_bytes()).into())
    }

    fn semaphore(self) -> *mut libc::sem_t {
        // SAFETY: this is only asked of pointers that are not null, which the header has point to a snapshot.
        unsafe { &raw mut (*self.0).semaphore }
    }

    /// Makes one of the calls for its process, and keeps the result.
    ///
    /// # Safety
    /// As for [`Self::entry`].
    unsafe fn call(self, name: &str, call: impl FnOnce(&Arc<Entry>) -> Done) -> u32 {
        let mut found = None;
        let result = trace::call(name, &[("snapshot", &self)], || {
            // SAFETY: the caller says what this asks for.
            call(found.insert(unsafe { self.entry() }?))
        });
        if let Some(entry) = found {
            lock(&entry.snapshots.progress).result = result;
        }
        result
    }
}

pub unsafe extern "C" fn snapify_copy(snapshot: *mut Snapshot, device: i32) -> u32 {
    /// No card in particular.
    const ANY: i32 = -1;
    let snapshot = Pointer(snapshot);
    let copy = |entry: &Arc<Entry>| {
        let to = match device {
            ANY => None,
            _ => Some(card(device)?),
        };
        // SAFETY: there is an entry, so that it is no null pointer; the header has its path be null or a string.
        let directory = entry.snapshots.directory(&unsafe { snapshot.path() }?)?;
        let snapify = entry.snapshots.controlled.snapify();
        snapify.copy(&directory, to.as_ref())?;
        Ok(())
    };
    // SAFETY: the header has the program pass null or a snapshot.
    unsafe { snapshot.call("snapify_copy", copy) }
}

pub unsafe extern "C" fn snapify_pause(snapshot: *mut Snapshot) -> u32 {
    let snapshot = Pointer(snapshot);
    let pause = |entry: &Arc<Entry>| {
        // SAFETY: there is an entry, so that it is no null pointer; the header has its path be null or a string.
        let directory = entry.snapshots.directory(&unsafe { snapshot.path() }?)?;
        entry.snapshots.controlled.snapify().pause(&directory)?;
        Ok(())
    };
    // SAFETY: the header has the program pass null or a snapshot.
    unsafe { snapshot.call("snapify_pause", pause) }
}

pub unsafe extern "C" fn snapify_capture(snapshot: *mut Snapshot, terminate: bool) -> u32 {
    let snapshot = Pointer(snapshot);
    if snapshot.0.is_null() {
        return code::INVALID_POINTER;
    }
    // SAFETY: the header has the program leave the place for the semaphore to this call.
    unsafe { libc::sem_init(snapshot.semaphore(), 0, 0) };
    let post = move || {
        // SAFETY: it was made above, and the program leaves it where it is until it is posted.
        unsafe { libc::sem_post(snapshot.semaphore()) };
    };
    let capture = |entry: &Arc<Entry>| {
        entry.snapshots.controlled.snapify().capture(terminate)?;
        lock(&entry.snapshots.progress).captures += 1;
        let entry = entry.clone();
        std::thread::spawn(move || {
            let captured = entry.snapshots.controlled.snapify().wait(None);
            let result = trace::call("snapify_capture ends", &[], || Ok(captured.map(drop)?));
            let mut progress = lock(&entry.snapshots.progress);
            progress.result = result;
            progress.captures -= 1;
            post();
            drop(progress);
            entry.snapshots.changed.notify_all();
        });
        Ok(())
    };
    // SAFETY: the header has the program pass null or a snapshot.
    let result = unsafe { snapshot.call("snapify_capture", capture) };
    if result != code::SUCCESS {
        post();
    }
    result
}

pub unsafe extern "C" fn snapify_wait(snapshot: *mut Snapshot) -> u32 {
    let snapshot = Pointer(snapshot);
    let wait = || {
        // SAFETY: the header has the program pass null or a snapshot.
        let entry = unsafe { snapshot.entry() }?;
        let progress = lock(&entry.snapshots.progress);
        let changed = &entry.snapshots.changed;
        let ended = changed.wait_while(progress, |progress| progress.captures > 0);
        let ended = ended.unwrap_or_else(PoisonError::into_inner);
        // SAFETY: snapify_capture, which comes first, has made it. Who has waited for it without us has its post already.
        unsafe { libc::sem_trywait(snapshot.semaphore()) };
        require(ended.result == code::SUCCESS, ended.result)
    };
    trace::call("snapify_wait", &[("snapshot", &snapshot)], wait)
}

pub unsafe extern "C" fn snapify_resume(snapshot: *mut Snapshot) -> u32 {
    let resume = |entry: &Arc<Entry>| Ok(entry.snapshots.controlled.snapify().resume()?);
    // SAFETY: the header has the program pass null or a snapshot.
    unsafe { Pointer(snapshot).call("snapify_resume", resume) }
}

pub unsafe extern "C" fn snapify_restore(snapshot: *mut Snapshot, device: i32) -> u32 {
    let snapshot = Pointer(snapshot);
    let restore = |entry: &Arc<Entry>| {
        let engine = card(device)?;
        // SAFETY: there is an entry, so that it is no null pointer; the header has its path be null or a string.
        let directory = entry.snapshots.directory(&unsafe { snapshot.path() }?)?;
        let snapify = entry.snapshots.controlled.snapify();
        snapify.restore_from(&directory, &engine)?;
        Ok(())
    };
    // SAFETY: the header has the program pass null or a snapshot.
    unsafe { snapshot.call("snapify_restore", restore) }
}

/// A card, by its number in COIEngineGetHandle.
fn card(device: i32) -> Done<Engine> {
    let index = u32::try_from(device).map_err(|_| code::OUT_OF_RANGE)?;
    numbered(device::MIC, index)
}

pub unsafe extern "C" fn snapify_result(snapshot: *const Snapshot) -> u32 {
    let snapshot = Pointer(snapshot.cast_mut());
    let result = || {
        // SAFETY: the header has the program pass null or a snapshot.
        let entry = unsafe { snapshot.entry() }?;
        let result = lock(&entry.snapshots.progress).result;
        require(result == code::SUCCESS, result)
    };
    trace::call("snapify_result", &[("snapshot", &snapshot)], result)
}
