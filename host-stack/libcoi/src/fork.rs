//! fork(2) of a program that uses COI: the threads that move its processes and events, and the locks that those may
//! hold, are its parent's. Every call of such a child fails at once, and touches nothing.
//!
//! A child whose parent had nothing moving yet, or that starts another program, has COI like any other process.

use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

use crate::result::{Failure, code};

/// Whether this process is such a child.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// From now on, a child of this process has no COI.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function takes no arguments, and is this library's, which is never unloaded, so
        // that libc may call it at every fork(2) until the process ends.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    });
}

extern "C" fn child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// Why this process's calls fail, if they do.
pub fn refusal() -> Option<Failure> {
    let why = "this is a child of fork(2): COI's threads are its parent's; call exec(2), or fork before the first \
               COIProcessCreate";
    let is_child = IS_CHILD.load(Ordering::Relaxed);
    is_child.then(|| Failure::new(code::NOT_INITIALIZED, why))
}
