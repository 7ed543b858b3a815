//! fork(2), and the end of the daemon.
//!
//! Registered pages are shared with peers, and must not be shared with a child, which gets copies
//! ([`snaprig_pages::fork`]). No call is needed for that: ibv_fork_init(3) has nothing to do.

use std::{
    cell::RefCell,
    ffi::c_int,
    sync::{Arc, MutexGuard, Once, Weak},
    thread,
};

use snaprig_pages::{fork::Fork, threads};
use snaprig_verbs_abi::*;

use super::{Current, FABRIC};
use crate::client::{self, Fabric};

thread_local! {
    /// This thread's fork: what it is at, and the fabric, which no other thread changes meanwhile.
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

struct Forking {
    fabric: Arc<Fabric>,
    fork: Option<Fork>,
    /// Held so that the child, which has only this thread, does not find it held by another.
    current: MutexGuard<'static, Current>,
}

/// Cares for forks of this process, and for the end of a fabric's daemon.
pub(super) fn watch(fabric: &Arc<Fabric>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the three functions take no arguments, and are this library's, which is never
        // unloaded, so that libc may call them at every fork(2) until the process ends.
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
    let builder = thread::Builder::new().name("snaprig-watch".into());
    let started = threads::spawn(builder, watch);
    if let Err(error) = started {
        tracing::warn!(%error, "the end of the daemon will go unnoticed");
    }
}

extern "C" fn before() {
    let Ok(current) = FABRIC.lock() else { return };
    let Some(fabric) = current.1.upgrade() else {
        return;
    };
    let fork = Fork::begin(fabric.shared_pages());
    FORKING.set(Some(Forking {
        fabric,
        fork,
        current,
    }));
}

extern "C" fn parent() {
    let Some(Forking {
        fabric,
        fork,
        current,
    }) = FORKING.take()
    else {
        return;
    };
    drop(current);
    if let Some(fork) = fork {
        fork.in_parent();
    }
    drop(fabric);
}

extern "C" fn child() {
    let Some(Forking {
        fabric,
        fork,
        current,
    }) = FORKING.take()
    else {
        return;
    };
    if let Some(fork) = fork {
        fork.in_child();
    }
    // The child's own, without the daemon's notice that the parent's is not in use.
    std::mem::forget(fabric);
    drop(current);
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
