//! Memory that is written to while it is registered: no write is lost, also where writers cannot be made to wait.

use std::{
    collections::BTreeMap,
    fs, io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::thread::JoinHandleExt,
    },
    ptr,
    sync::{
        atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering},
        mpsc::{self, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use snaprig_pages::pool::{Moves, PAGE, Pool};

const PAGES: usize = 64;
const LENGTH: usize = PAGES * PAGE as usize;

fn pool() -> Pool {
    Pool::new(Moves::Plain, |_| false).unwrap()
}

/// Anonymous memory.
fn memory() -> *mut u8 {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at, so no memory of ours changes.
    let at = unsafe { libc::mmap(ptr::null_mut(), LENGTH, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// The first word of each page.
fn words(at: *mut u8) -> impl Iterator<Item = &'static AtomicU64> {
    // SAFETY: mapped for so many bytes, aligned, and never unmapped here.
    (0..PAGES).map(move |page| unsafe { &*at.add(page * PAGE as usize).cast::<AtomicU64>() })
}

/// Has threads count in `at` while `work` runs; every count must be there afterwards.
fn while_it_is_written(at: *mut u8, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let at = at.expose_provenance();
    thread::scope(|scope| {
        let writers = (0..2).map(|half| {
            let stop = &stop;
            scope.spawn(move || {
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) {
                    for word in words(ptr::with_exposed_provenance_mut(at))
                        .skip(half)
                        .step_by(2)
                    {
                        // Only this thread writes to it.
                        word.store(rounds + 1, Ordering::Relaxed);
                        assert_eq!(word.load(Ordering::Relaxed), rounds + 1, "a write was lost");
                    }
                    rounds += 1;
                }
                rounds
            })
        });
        let writers: Vec<_> = writers.collect();
        work();
        stop.store(true, Ordering::Relaxed);
        let rounds: Vec<u64> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        for (page, word) in words(ptr::with_exposed_provenance_mut(at)).enumerate() {
            assert_eq!(
                word.load(Ordering::Relaxed),
                rounds[page % 2],
                "page {page}"
            );
        }
    });
}

/// Whether the pool's file is mapped there.
fn is_shared(at: *mut u8) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let start = format!("{:x}-", at.addr());
    maps.lines()
        .any(|line| line.starts_with(&start) && line.contains("snaprig-pool"))
}

/// The calling thread cannot make a userfaultfd any more, as in many containers.
fn refuse_userfaultfd() {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let filter = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_userfaultfd, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// Tracks who writes to a range, as a supervisor does.
fn track(at: *mut u8) -> OwnedFd {
    const ASYNC: u64 = 1 << 15;
    const UNPOPULATED: u64 = 1 << 13;
    // SAFETY: userfaultfd(2) takes flags alone, so the kernel reads and writes no memory of this process.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_userfaultfd,
            libc::c_long::from(libc::O_CLOEXEC) | 1,
        )
    };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: userfaultfd(2) has just returned it, so nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut api = [0xaa, ASYNC | UNPOPULATED, 0];
    let mut register = [at.addr() as u64, LENGTH as u64, 2, 0];
    for (request, argument) in [
        (0xc018_aa3f, &mut api[..]),
        (0xc020_aa00, &mut register[..]),
    ] {
        // SAFETY: each argument has the length that its request has in its number.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, argument.as_mut_ptr()) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }
    fd
}

#[test]
fn no_write_is_lost_while_memory_is_registered_and_given_back() {
    let (pool, at) = (pool(), memory());
    while_it_is_written(at, || {
        for _ in 0..50 {
            assert!(
                pool.register(at.addr() as u64, LENGTH as u64, true)
                    .unwrap()
            );
            pool.deregister(at.addr() as u64, LENGTH as u64);
        }
    });
}

#[test]
fn where_userfaultfd_is_refused_memory_stays_where_it_is_and_no_write_is_lost() {
    let (pool, at) = (pool(), memory());
    let address = at.addr() as u64;
    while_it_is_written(at, || {
        thread::scope(|scope| {
            scope.spawn(|| {
                refuse_userfaultfd();
                for _ in 0..50 {
                    let shared = pool.register(address, LENGTH as u64, true);
                    assert!(!shared.unwrap(), "there are other ways to reach it");
                }
            });
        });
    });
    assert!(!is_shared(at));
}

#[test]
fn what_is_given_back_where_userfaultfd_is_refused_stays_shared_and_no_write_is_lost() {
    let (pool, at) = (pool(), memory());
    let address = at.addr() as u64;
    assert!(
        pool.register(at.addr() as u64, LENGTH as u64, true)
            .unwrap()
    );
    while_it_is_written(at, || {
        thread::scope(|scope| {
            scope.spawn(|| {
                refuse_userfaultfd();
                pool.deregister(address, LENGTH as u64);
            });
        });
    });
    assert!(is_shared(at));
}

#[test]
fn tracked_memory_stays_where_it_is_and_tracked() {
    let (pool, at) = (pool(), memory());
    let tracker = track(at);
    while_it_is_written(at, || {
        for _ in 0..50 {
            assert!(
                !pool
                    .register(at.addr() as u64, LENGTH as u64, true)
                    .unwrap()
            );
        }
    });
    assert!(!is_shared(at));
    let mut protect = [at.addr() as u64, LENGTH as u64, 1];
    // SAFETY: the argument has the length that the request has in its number.
    let done = unsafe { libc::ioctl(tracker.as_raw_fd(), 0xc018_aa06, protect.as_mut_ptr()) };
    assert_eq!(
        done,
        0,
        "it is still tracked: {}",
        io::Error::last_os_error()
    );
}

#[test]
fn a_failure_midway_leaves_nothing_shared() {
    let (pool, at) = (pool(), memory());
    // Two mappings: the second is tracked, so it cannot move.
    // SAFETY: the page is within the mapping that this test made, and nothing refers to it.
    let second = unsafe { at.add(LENGTH / 2) };
    // SAFETY: within the mapping; what is there may be read only.
    let split = unsafe { libc::madvise(second.cast(), LENGTH / 2, libc::MADV_DONTFORK) };
    assert_eq!(split, 0);
    const WP: u64 = 2;
    // SAFETY: userfaultfd(2) takes flags alone, so the kernel reads and writes no memory of this process.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_userfaultfd,
            libc::c_long::from(libc::O_CLOEXEC) | 1,
        )
    };
    // SAFETY: userfaultfd(2) has just returned it, so nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut api = [0xaa, 0, 0];
    let mut register = [second.addr() as u64, LENGTH as u64 / 2, WP, 0];
    for (request, argument) in [
        (0xc018_aa3f, &mut api[..]),
        (0xc020_aa00, &mut register[..]),
    ] {
        // SAFETY: each argument has the length that its request has in its number.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, argument.as_mut_ptr()) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }
    assert!(
        !pool
            .register(at.addr() as u64, LENGTH as u64, true)
            .unwrap()
    );
    assert!(!is_shared(at));
    drop(fd);
    assert!(
        pool.register(at.addr() as u64, LENGTH as u64, true)
            .unwrap()
    );
    assert!(is_shared(at));
}

/// The kernel writes, too: for who reads a file or a socket into the memory.
#[test]
#[cfg_attr(
    not(system_calls_wait),
    ignore = "no privilege to have system calls wait"
)]
fn system_calls_that_write_to_memory_do_so_while_it_is_registered_and_given_back() {
    let (pool, at) = (pool(), memory());
    let (address, stop) = (at.addr() as u64, AtomicBool::new(false));
    let at = at.expose_provenance();
    let zeroes = fs::File::open("/dev/zero").unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the memory is mapped for so many bytes, and nobody else uses it.
                let read = unsafe {
                    libc::read(
                        zeroes.as_raw_fd(),
                        ptr::with_exposed_provenance_mut(at),
                        LENGTH,
                    )
                };
                if read != LENGTH as isize {
                    return Err((read, io::Error::last_os_error()));
                }
            }
            Ok(())
        });
        for _ in 0..200 {
            assert!(pool.register(address, LENGTH as u64, true).unwrap());
            pool.deregister(address, LENGTH as u64);
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap().unwrap();
    });
}

/// A handler may write to any memory, on the thread that moves it.
#[test]
fn a_handler_of_a_signal_writes_to_memory_that_its_thread_registers() {
    static AT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
    extern "C" fn write(_: libc::c_int) {
        for word in words(AT.load(Ordering::Relaxed)) {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }
    AT.store(memory(), Ordering::Relaxed);
    // SAFETY: the handler stores to memory that is never unmapped, by atomics alone.
    unsafe {
        let handler = write as extern "C" fn(libc::c_int);
        libc::signal(libc::SIGUSR1, handler as libc::sighandler_t)
    };
    let (moved, all_moved) = mpsc::channel();
    let mover = thread::spawn(move || {
        let pool = pool();
        let at = AT.load(Ordering::Relaxed).addr() as u64;
        for _ in 0..200 {
            assert!(pool.register(at, LENGTH as u64, true).unwrap());
            pool.deregister(at, LENGTH as u64);
        }
        moved.send(()).unwrap();
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(TryRecvError::Empty) = all_moved.try_recv() {
        assert!(Instant::now() < deadline, "it waits for itself");
        // SAFETY: the thread is not joined yet.
        unsafe { libc::pthread_kill(mover.as_pthread_t(), libc::SIGUSR1) };
        thread::yield_now();
    }
    mover.join().unwrap();
}
