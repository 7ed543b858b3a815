//! What a checkpoint of a host program has to know of its rig, which is no part of it: which descriptors lead there, what
//! memory is its, who is about to talk to it, and, in a program that was restarted, where it is now.
//!
//! ```text
//!   leave: nobody begins anything --> whoever is at it has done --> checkpoint --> come back, to the same rig
//!                                                                            '--> restarted: come back, to another
//! ```
//!
//! What must stay true: while the program is away no descriptor comes or goes that leads to the rig, but by those who
//! have sent it away.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsRawFd, RawFd},
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

#[derive(Default)]
struct State {
    leading: BTreeSet<RawFd>,
    /// What of the rig's memory is mapped: where, and how much.
    memory: BTreeMap<usize, usize>,
    inside: usize,
    away: bool,
    /// The rig that there is now, whatever it was before.
    rig: Option<PathBuf>,
}

static STATE: Mutex<State> = Mutex::new(State {
    leading: BTreeSet::new(),
    memory: BTreeMap::new(),
    inside: 0,
    away: false,
    rig: None,
});
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// Of calls within calls only the outermost counts.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for as long as `is_so`.
fn wait_while(is_so: impl Fn(&State) -> bool) -> MutexGuard<'static, State> {
    let waited = CHANGED.wait_while(lock(), |state| is_so(state));
    waited.unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor that leads to a rig. To be dropped before that is closed.
#[derive(Debug)]
pub struct RigDescriptor(RawFd);

impl RigDescriptor {
    /// This one does.
    pub fn new(descriptor: &impl AsRawFd) -> Self {
        let fd = descriptor.as_raw_fd();
        lock().leading.insert(fd);
        Self(fd)
    }
}

impl Drop for RigDescriptor {
    fn drop(&mut self) {
        lock().leading.remove(&self.0);
    }
}

/// All descriptors of this process that lead to a rig.
pub fn leading() -> Vec<RawFd> {
    lock().leading.iter().copied().collect()
}

/// Memory of a rig that this process has mapped. To be dropped before it is unmapped.
#[derive(Debug)]
pub struct RigMemory(usize);

impl RigMemory {
    /// Whole pages: where they begin, and bytes.
    pub fn new((start, bytes): (usize, usize)) -> Self {
        lock().memory.insert(start, bytes);
        Self(start)
    }

    /// Whether it still is: a restart has [emptied](empty_memory) what there was before.
    pub fn is_there(&self) -> bool {
        lock().memory.contains_key(&self.0)
    }
}

impl From<(usize, usize)> for RigMemory {
    fn from(range: (usize, usize)) -> Self {
        Self::new(range)
    }
}

impl Drop for RigMemory {
    fn drop(&mut self) {
        lock().memory.remove(&self.0);
    }
}

/// All memory of rigs that this process has mapped: where it begins, and bytes.
pub fn memory() -> Vec<(usize, usize)> {
    let memory = &lock().memory;
    memory
        .iter()
        .map(|(start, bytes)| (*start, *bytes))
        .collect()
}

/// In a program that was restarted that memory is gone. Zeros take its place, which say so to who looks.
pub fn empty_memory() -> io::Result<()> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // Hardly any of them is ever touched.
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let memory = std::mem::take(&mut lock().memory);
    for (start, bytes) in memory {
        let at = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: what is mapped there is memory of a rig, of which nobody has references, only pointers through which it is
        // read and written as what others may write to at any time (`RigMemory`); the new pages are as many.
        unsafe { mmap_anonymous(at, bytes, prot, flags) }?;
    }
    Ok(())
}

/// A call that makes connections of its own; there is no checkpoint before it ends.
#[derive(Debug)]
pub struct Inside(());

/// Begins such a call; waits while the program is away.
pub fn enter() -> Inside {
    if DEPTH.replace(DEPTH.get() + 1) == 0 {
        wait_while(|state| state.away).inside += 1;
    }
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            lock().inside -= 1;
            CHANGED.notify_all();
        }
    }
}

/// The program is away from its rig until it comes back: returns when nobody is in a call any more.
pub fn leave() {
    wait_while(|state| state.away).away = true;
    drop(wait_while(|state| state.inside > 0));
}

/// It has come back.
pub fn come_back() {
    lock().away = false;
    CHANGED.notify_all();
}

/// Waits until the program is not away: for those who have lost a connection, and do not know to what.
pub fn settled() {
    drop(wait_while(|state| state.away));
}

/// Whatever rigs this process has known, from now on it is this one.
pub fn moved_to(rig: PathBuf) {
    lock().rig = Some(rig);
}

/// Where a rig is now.
pub fn place(rig: &Path) -> PathBuf {
    lock().rig.clone().unwrap_or_else(|| rig.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn who_leaves_waits_for_calls_and_calls_wait_for_who_comes_back() {
        let outer = enter();
        let inner = enter();
        let (left, told) = mpsc::channel();
        let leaver = thread::spawn(move || {
            leave();
            left.send(()).unwrap();
        });
        drop(inner);
        assert!(told.try_recv().is_err());
        // A call within a call does not wait, whoever wants to leave.
        while !lock().away {
            thread::yield_now();
        }
        drop(enter());
        drop(outer);
        leaver.join().unwrap();
        let caller = thread::spawn(|| drop(enter()));
        assert!(!caller.is_finished());
        come_back();
        caller.join().unwrap();
        settled();
    }
}
