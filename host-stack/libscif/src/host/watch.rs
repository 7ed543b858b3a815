//! A thread that sees the rig go: then the descriptors of direct connections say so (POLLHUP), of which
//! programs have both ends. Of all others the node alone has the other end, and the kernel says it.
//!
//! What must stay true: a program without direct connections has no thread of ours; no signal is handled
//! on this one.

use std::{
    os::fd::OwnedFd,
    sync::{
        PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use snaprig_pages::threads;

use super::{ENDPOINTS, endpoint};

/// The stack of a thread that waits.
const STACK_BYTES: usize = 64 << 10;

/// The process that has the thread: a child of fork(2) has none yet.
static WATCHES: AtomicU32 = AtomicU32::new(0);
static GONE: AtomicBool = AtomicBool::new(false);

/// Whether the rig was seen to go.
pub(super) fn is_gone() -> bool {
    GONE.load(Ordering::SeqCst)
}

/// Sees to it that this process has the thread.
pub(super) fn start() {
    let process = std::process::id();
    if WATCHES.swap(process, Ordering::SeqCst) == process {
        return;
    }
    // Without the thread, calls that wait find out; a program that polls for itself does not.
    let Ok(node) = endpoint::connect() else {
        return;
    };
    let thread = thread::Builder::new().name("libscif".into());
    let _ = threads::spawn(thread.stack_size(STACK_BYTES), || watch(node));
}

/// The node says nothing on a connection that asks nothing: it is readable at its end.
fn watch(node: OwnedFd) {
    let mut fds = [PollFd::new(&node, PollFlags::IN)];
    while poll(&mut fds, None) == Err(Errno::INTR) {}
    GONE.store(true, Ordering::SeqCst);
    let endpoints = ENDPOINTS.read().unwrap_or_else(PoisonError::into_inner);
    for direct in endpoints.values().filter_map(|one| one.known_direct()) {
        direct.hang_up();
    }
}
