//! fork(2): registered pages are shared with peers, and must not be shared with a child. It gets copies
//! of its own, and its parent waits until it has them, so that they are of one moment.

use std::{
    ffi::c_int,
    sync::{
        Mutex, Once,
        atomic::{AtomicI32, AtomicU32, Ordering},
    },
};

use snaprig_pages::{pages::Range, pool};

use super::{lock, memory};

/// How often this process has forked, or was.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The pipe by which a child says that it has its pages: out of it, into it.
static PIPE: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];
/// What a child is to copy.
static SHARED: Mutex<Vec<Range>> = Mutex::new(Vec::new());

pub(super) fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Cares for forks of this process.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    });
}

extern "C" fn before() {
    let shared = memory::shared_pages();
    if shared.is_empty() {
        return;
    }
    let mut pipe = [-1; 2];
    // SAFETY: room for two descriptors.
    unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) };
    PIPE[0].store(pipe[0], Ordering::Release);
    PIPE[1].store(pipe[1], Ordering::Release);
    *lock(&SHARED) = shared;
}

fn take() -> (Vec<Range>, [c_int; 2]) {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let shared = std::mem::take(&mut *lock(&SHARED));
    let pipe = [0, 1].map(|end: usize| PIPE[end].swap(-1, Ordering::AcqRel));
    (shared, pipe)
}

extern "C" fn parent() {
    let (shared, [out, into]) = take();
    if !shared.is_empty() {
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

/// Allocates and frees nothing: the heap may be among the pages, and is still the parent's.
extern "C" fn child() {
    let (shared, [out, into]) = take();
    for range in &shared {
        // A page that stays shared is the lesser evil: the child may not even use it.
        let _ = pool::make_private(*range);
    }
    if !shared.is_empty() {
        // SAFETY: descriptors of `before`.
        unsafe {
            libc::close(out);
            libc::close(into);
        }
    }
}
