//! fork(2), and the end of the daemon.
//!
//! Registered pages are shared with peers, and must not be shared with a child: it gets copies, and
//! its parent waits until it has them, so that they are of one moment. No call is needed for that:
//! ibv_fork_init(3) has nothing to do.

use std::{
    ffi::c_int,
    sync::{
        Arc, Mutex, Once, Weak,
        atomic::{AtomicI32, Ordering},
    },
    thread,
};

use snaprig_verbs_abi::*;

use super::FABRIC;
use crate::client::{self, Fabric};
use snaprig_pages::pages::Range;

/// The pipe by which a child says that it has its pages: out of it, into it.
static PIPE: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];
/// The fabric while a fork is under way, and what the child is to copy.
static FORKING: Mutex<Option<Forking>> = Mutex::new(None);

type Forking = (Arc<Fabric>, Vec<Range>);

/// Cares for forks of this process, and for the end of a fabric's daemon.
pub(super) fn watch(fabric: &Arc<Fabric>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: functions of this library, which is never unloaded: they are what libc calls.
        unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    });
    let Ok(end) = fabric.watch() else { return };
    let fabric = Arc::downgrade(fabric);
    let watch = move || {
        client::wait_for_end(&end);
        if let Some(fabric) = Weak::upgrade(&fabric) {
            fabric.abandon();
        }
    };
    // All signals are the program's own threads'.
    let started = without_signals(|| {
        thread::Builder::new()
            .name("snaprig-watch".into())
            .spawn(watch)
    });
    if let Err(error) = started {
        tracing::warn!(%error, "the end of the daemon will go unnoticed");
    }
}

/// Does it with all signals blocked, which a new thread inherits.
pub(crate) fn without_signals<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: two sets of signals, filled by libc.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = action();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

extern "C" fn before() {
    let fabric = FABRIC.lock().ok().and_then(|current| current.1.upgrade());
    let Some(fabric) = fabric else { return };
    let shared = fabric.shared_pages();
    if shared.is_empty() {
        return;
    }
    let mut pipe = [-1; 2];
    // SAFETY: room for two descriptors.
    unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) };
    PIPE[0].store(pipe[0], Ordering::Release);
    PIPE[1].store(pipe[1], Ordering::Release);
    if let Ok(mut forking) = FORKING.lock() {
        *forking = Some((fabric, shared));
    }
}

fn take() -> (Option<Forking>, [c_int; 2]) {
    let forking = FORKING.lock().ok().and_then(|mut forking| forking.take());
    let pipe = [0, 1].map(|end: usize| PIPE[end].swap(-1, Ordering::AcqRel));
    (forking, pipe)
}

extern "C" fn parent() {
    let (forking, [out, into]) = take();
    if forking.is_some() {
        // SAFETY: descriptors of `before`. The child's end closes when it has its pages, or dies.
        unsafe {
            libc::close(into);
            let mut byte = 0u8;
            while libc::read(out, (&raw mut byte).cast(), 1) < 0
                && *libc::__errno_location() == libc::EINTR
            {}
            libc::close(out);
        }
    }
}

extern "C" fn child() {
    let (forking, [out, into]) = take();
    if let Some((fabric, shared)) = forking {
        client::keep_copies(&shared);
        // SAFETY: descriptors of `before`.
        unsafe {
            libc::close(out);
            libc::close(into);
        }
        // The child's own, without the daemon's notice that the parent's is not in use.
        std::mem::forget(fabric);
    }
}

pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

pub extern "C" fn ibv_dontfork_range(_base: *mut std::ffi::c_void, _size: usize) -> c_int {
    0
}

pub extern "C" fn ibv_dofork_range(_base: *mut std::ffi::c_void, _size: usize) -> c_int {
    0
}
