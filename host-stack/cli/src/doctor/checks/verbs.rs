//! What verbs programs need.

use std::{env, ffi::CStr, path::Path};

use snaprig_fabric::{Fabric, library};
use snaprig_sdk::program;

use super::{Check, Found, LIBRARIES, checked, limit};

/// What drivers of hardware would have locked: programs that look at the limit want so much.
const LOCKED_BYTES_MIN: u64 = 64 << 20;

pub(super) fn all() -> Vec<Check> {
    vec![
        Check::new(
            "libibverbs",
            libibverbs,
            Some("no verbs programs"),
            LIBRARIES,
        ),
        Check::new(
            "fabric",
            fabric,
            Some("no verbs programs"),
            "see the reason; $XDG_RUNTIME_DIR, $TMPDIR",
        ),
        Check::new(
            "process_vm",
            process_vm,
            Some("only memory that can be moved"),
            "kernel.yama.ptrace_scope of 0 or 1; a container: --cap-add SYS_PTRACE",
        ),
        Check::new(
            "pidfd",
            pidfd,
            Some("a child keeps what its dead parent had"),
            "Linux 5.3",
        ),
        Check::new(
            "locked mem",
            locked_memory,
            Some("programs that ask may refuse"),
            "ulimit -l unlimited",
        ),
        Check::new(
            "librdmacm",
            || loads(c"librdmacm.so.1"),
            Some("no rdma_cm programs"),
            "apt-get install librdmacm1",
        ),
        Check::new(
            "ibv_devinfo",
            || installed("ibv_devinfo"),
            Some("programs of yours"),
            "apt-get install ibverbs-utils",
        ),
        Check::new(
            "perftest",
            || installed("ib_send_bw"),
            Some("programs of yours"),
            "apt-get install perftest",
        ),
    ]
}

/// The library that `snaprig verbs` gives to programs.
fn libibverbs() -> Found {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let directory = library::directory(&program).map_err(|error| error.to_string())?;
    Ok(directory.join(library::LIBRARY.name).display().to_string())
}

/// Starts a fabric, and ends it.
fn fabric() -> Found {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let fabric = Fabric::builder().exe(program).start();
    let fabric = fabric.map_err(|error| error.to_string())?;
    let description = fabric.describe().map_err(|error| error.to_string())?;
    match description.hcas.len() {
        1 => Ok("one HCA was there".into()),
        other => Err(format!("{other} HCAs in it")),
    }
}

/// Reads a child's memory (process_vm_readv(2)).
fn process_vm() -> Found {
    static THERE: [u8; 8] = *b"snaprig!";
    // SAFETY: the child calls nothing but pause(2), which is async-signal-safe, as is asked of a child of a process
    // with threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: pause(2) takes no argument, and waits for a signal.
            unsafe { libc::pause() };
        }
    }
    let child = checked("fork", child.into())? as libc::pid_t;
    let mut here = [0u8; 8];
    let part = |at: *mut u8| libc::iovec {
        iov_base: at.cast(),
        iov_len: THERE.len(),
    };
    // SAFETY: one range each, of eight bytes: the one is an array of this function, and the other, in the child, a copy
    // of a constant of ours.
    let read = unsafe {
        let (local, remote) = (part(here.as_mut_ptr()), part(THERE.as_ptr().cast_mut()));
        libc::process_vm_readv(child, &raw const local, 1, &raw const remote, 1, 0)
    };
    let read = checked("process_vm_readv", read as i64);
    // SAFETY: kill(2) takes numbers alone, and waitpid(2) writes no status to a null pointer; it is a child of ours
    // that nobody else waits for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    match read? {
        8 if here == THERE => Ok("read a child".into()),
        count => Err(format!("{count} bytes, or others")),
    }
}

/// A descriptor of this process, by which its end could be awaited (pidfd_open(2)).
fn pidfd() -> Found {
    // SAFETY: pidfd_open(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
    // process. The descriptor is new, so nobody else uses it when it is closed.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        libc::close(checked("pidfd_open", fd)? as i32);
    }
    Ok("opened one".into())
}

/// What programs for hardware look at; registered memory is not locked here.
fn locked_memory() -> Found {
    match limit(libc::RLIMIT_MEMLOCK)? {
        libc::RLIM_INFINITY => Ok("no limit".into()),
        bytes if bytes >= LOCKED_BYTES_MIN => Ok(format!("limit {} MiB", bytes >> 20)),
        bytes => Err(format!("limit {} KiB", bytes >> 10)),
    }
}

/// Loads a library.
fn loads(name: &CStr) -> Found {
    // SAFETY: the name ends with a zero. What a library of the system does when it is loaded is its own affair, as for
    // any program that links it.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return Err(format!("no {}", name.to_string_lossy()));
    }
    // SAFETY: the handle is dlopen(3)'s, it is not null, and nothing of the library is used.
    unsafe { libc::dlclose(library) };
    Ok("loads".into())
}

fn installed(name: &str) -> Found {
    let path = program::find(Path::new(name)).map_err(|error| error.to_string())?;
    Ok(path.display().to_string())
}
