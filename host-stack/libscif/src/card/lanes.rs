//! Which endpoints of this process have lanes ([`snaprig_scif_lanes::card`]).
//!
//! What must stay true: after a fork(2), where parent and child have one endpoint, the driver moves bytes for both, so that they
//! take turns.

use std::{
    cell::Cell,
    collections::BTreeMap,
    os::fd::RawFd,
    sync::{
        Arc, Once, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicU32, Ordering},
    },
};

use snaprig_scif_lanes::card::OnCard;

/// Endpoints that this process has connected or accepted, by their descriptors, and after how many forks.
type Ends = BTreeMap<RawFd, (u32, Arc<OnCard>)>;
static ENDS: RwLock<Ends> = RwLock::new(Ends::new());
/// How often this process has forked, or was.
static FORKS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Held while this thread forks, so that the child's are whole.
    static FORKING: Cell<Option<RwLockWriteGuard<'static, Ends>>> = const { Cell::new(None) };
}

fn ends() -> RwLockWriteGuard<'static, Ends> {
    ENDS.write().unwrap_or_else(PoisonError::into_inner)
}

/// An endpoint is about to be connected (0), or was accepted (1).
pub(super) fn add(epd: RawFd, side: usize) {
    static ONCE: Once = Once::new();
    // SAFETY: the functions take no arguments, and are this library's, which is never unloaded, so that libc may call them
    // at every fork(2) until the process ends.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(forks), Some(forked), Some(forked));
    });
    let end = Arc::new(OnCard::new(epd, side));
    ends().insert(epd, (FORKS.load(Ordering::Relaxed), end));
}

/// A descriptor is closed, or is another endpoint's from now on.
pub(super) fn remove(epd: RawFd) {
    if let Some((_, end)) = ends().remove(&epd) {
        end.close();
    }
}

extern "C" fn forks() {
    FORKING.set(Some(ends()));
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    FORKING.set(None);
}

/// The end of a connection that has lanes, and that no other process has.
pub(super) fn find(epd: RawFd) -> Option<Arc<OnCard>> {
    let ends = ENDS.read().unwrap_or_else(PoisonError::into_inner);
    let (forks, end) = ends.get(&epd)?;
    let is_own = *forks == FORKS.load(Ordering::Relaxed);
    (is_own && end.is_there()).then(|| end.clone())
}
