//! fork(2) of this process: see [`snaprig_pages::fork`].

use std::{
    cell::RefCell,
    sync::{
        MutexGuard, Once,
        atomic::{AtomicU32, Ordering},
    },
};

use snaprig_pages::{fork::Fork, pages::Pages};

use super::memory;

/// How often this process has forked, or was.
static FORKS: AtomicU32 = AtomicU32::new(0);
thread_local! {
    /// What this thread's fork is at.
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

struct Forking {
    fork: Option<Fork>,
    /// Nobody registers meanwhile: the child, which has only this thread, does not find it held by another.
    pages: MutexGuard<'static, Pages>,
}

pub(super) fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Cares for forks of this process.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the three functions take no arguments, and are this library's, which is never
        // unloaded, so that libc may call them at every fork(2) until the process ends.
        unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    });
}

extern "C" fn before() {
    let forking = memory::made_pool().map(|pool| Forking {
        pages: pool.lock(),
        fork: Fork::begin(pool.shared().unwrap_or_default()),
    });
    FORKING.set(forking);
}

extern "C" fn parent() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(Forking { fork, pages }) = FORKING.take() {
        drop(pages);
        if let Some(fork) = fork {
            fork.in_parent();
        }
    }
}

extern "C" fn child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(Forking { fork, pages }) = FORKING.take() {
        if let Some(fork) = fork {
            fork.in_child();
        }
        drop(pages);
    }
}
