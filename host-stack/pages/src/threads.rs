//! Threads of libraries that move pages, which never write to the program's memory; and whether the program has any other
//! thread than the one that asks.
//!
//! What must stay true: who is told that it is alone is. What is not known for sure counts as no. And whoever has started such a
//! thread finds it past what libc does for a new one (a heap of its own, by mmap(2) and munmap(2)): programs may write other code
//! over such functions next, as Open MPI does for its cache of regions, and no thread may be in them then.

use std::{
    fs, io,
    mem::MaybeUninit,
    ptr,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// How long a thread is waited for to begin: it does not where whoever starts it holds the loader's lock, in a constructor.
const BEGINS_MAX: Duration = Duration::from_secs(1);

/// The process (32 bits), threads that are being made (16), and those that there are or are being made (16): a child of
/// fork(2) has none.
static OWN: AtomicU64 = AtomicU64::new(0);
const BEING_MADE: u64 = 1 << 16;

/// What [`OWN`] says of this process.
fn own() -> u64 {
    of_process(OWN.load(Ordering::SeqCst))
}

fn of_process(word: u64) -> u64 {
    let process = u64::from(std::process::id()) << 32;
    match word & !0xffff_ffff == process {
        true => word,
        false => process,
    }
}

fn change(by: impl Fn(u64) -> u64) {
    let changed = |word| Some(by(of_process(word)));
    let _ = OWN.fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
}

/// Starts a thread that never writes to the program's memory, and waits until it has begun. All signals are blocked on it: they are
/// for the program's own threads.
pub fn spawn(builder: thread::Builder, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    change(|own| own + BEING_MADE + 1);
    let (begin, begun) = mpsc::sync_channel(1);
    let spawned = without_signals(|| {
        builder.spawn(move || {
            let _ = begin.send(());
            work();
            change(|own| own - 1);
        })
    });
    change(|own| own - BEING_MADE - u64::from(spawned.is_err()));
    spawned?;
    let _ = begun.recv_timeout(BEGINS_MAX);
    Ok(())
}

/// Does something with all signals blocked, which a thread that it starts inherits.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: sigfillset(3) writes all of the first set before pthread_sigmask(3) reads it, and that writes all of the
    // second. Neither can fail with these arguments.
    let before = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    };
    let result = start();
    // SAFETY: the set is initialised, and no set is asked for in return.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}

/// Whether all threads but the calling one are such.
pub(crate) fn is_alone() -> bool {
    let before = own();
    let all = fs::read_dir("/proc/self/task").map_or(0, Iterator::count) as u64;
    let (being_made, count) = ((before >> 16) & 0xffff, before & 0xffff);
    being_made == 0 && all == 1 + count && own() == before
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn own_threads_are_told_from_others() {
        // The tests' own threads are others.
        let (before, all) = (own(), || fs::read_dir("/proc/self/task").unwrap().count());
        assert!(!is_alone() || all() == 1);
        let (end, ended) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        let work = move || {
            begin.send(()).unwrap();
            let _ = ended.recv();
        };
        spawn(thread::Builder::new(), work).unwrap();
        begun.recv().unwrap();
        assert_eq!(own(), before + 1);
        drop(end);
        while own() != before {
            thread::yield_now();
        }
    }
}
