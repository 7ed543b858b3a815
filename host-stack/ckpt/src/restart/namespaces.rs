//! The namespaces of a restarted tree: processes have the numbers in it that they had (PID), their /proc (mount), and
//! the clock goes on where it stood (time); System V objects have the numbers that they had (IPC), if there are any.
//! Who is not root has them in a user namespace, as the same user; root without CAP_SYS_ADMIN in one of all users.
//!
//! ```text
//! restart (outside) --fork--> maker: unshare --fork--> first (1): reaps --clone3, set_tid--> supervisor --> the tree
//! ```
//! The supervisor's exit status goes back the same way.
//!
//! What must stay true: when the supervisor dies before the tree is complete, all of it ends: the first process does,
//! and the kernel ends the rest of its namespace. When it dies later, the tree runs on: the first process is its
//! parent, and ends with it.

use std::{
    fs,
    io::{self, Read},
    process, ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use libc::pid_t;
use snaprig_resources::error::{Error, Result};
use snaprig_resources::{clocks::Clocks, event::Reporter};

/// CLONE_NEWTIME (linux/sched.h).
const NEWTIME: i32 = 0x80;
/// CAP_SYS_ADMIN and CAP_SYS_TIME (linux/capability.h).
const SYS_ADMIN: u32 = 21;
const SYS_TIME: u32 = 25;
const USERS: &str = "a user namespace (is kernel.unprivileged_userns_clone 0?)";

/// Whether the clocks of this process, and of its children, are those of the tree that it restarts.
static KEEPS_TIME: AtomicBool = AtomicBool::new(false);

/// As [`KEEPS_TIME`].
pub fn keeps_time() -> bool {
    KEEPS_TIME.load(Ordering::Relaxed)
}

/// The numbers that a tree has from outside.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its supervisor.
    pub supervisor: pid_t,
    /// Its first process.
    pub root: pid_t,
    /// The session that both were launched in: a process stands for its leader. None: that of the caller.
    pub session: Option<pid_t>,
    /// A process of which the kernel lets only CAP_SYS_PTRACE see anything (PR_SET_DUMPABLE in prctl(2)).
    pub hidden: Option<pid_t>,
}

/// Whether a tree is complete: known to the supervisor and to the processes above it.
#[derive(Clone, Copy)]
pub struct Complete(&'static AtomicBool);

impl Complete {
    fn new() -> Result<Self> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at. The mapping is never undone, is
        // aligned to a page, and zero is a value of an `AtomicBool`; processes that are forked share it, and use it as
        // an atomic.
        unsafe {
            let bytes = size_of::<AtomicBool>();
            let page = libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0);
            match page == libc::MAP_FAILED {
                true => Err(Error::io("mmap", io::Error::last_os_error())),
                false => Ok(Self(&*page.cast::<AtomicBool>())),
            }
        }
    }

    /// From now on, the tree runs on without its supervisor.
    pub fn set(self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Runs `supervise` in namespaces of its own, as the process of that number; its exit status. What it owns, no other
/// process has then: a connection ends with the supervisor. The calling process has one thread. `has_own_ipc`: System V objects are those of the tree alone.
pub fn run(
    place: Place,
    clocks: Clocks,
    has_own_ipc: bool,
    reporter: &Reporter,
    supervise: impl FnOnce(Complete) -> i32,
) -> Result<i32> {
    let complete = Complete::new()?;
    // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
    let maker = unsafe { libc::fork() };
    match maker {
        0 => {
            let made = make(place, clocks, has_own_ipc, complete, reporter, supervise);
            let status = made.unwrap_or_else(|error| {
                reporter.failed(&error);
                1
            });
            process::exit(status)
        }
        maker if maker < 0 => Err(Error::io("fork", io::Error::last_os_error())),
        maker => {
            drop(supervise);
            Ok(status_of(maker))
        }
    }
}

fn make(
    place: Place,
    clocks: Clocks,
    has_own_ipc: bool,
    complete: Complete,
    reporter: &Reporter,
    supervise: impl FnOnce(Complete) -> i32,
) -> Result<i32> {
    // SAFETY: geteuid(2) takes no argument and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        be_in_a_user_namespace_as_one()?;
    } else if !has_rights()? {
        if let Some(pid) = place.hidden {
            // Its memory is of the user namespace in which its program was executed (ptrace(2)): the one outside.
            let what = format!(
                "root without CAP_SYS_ADMIN and CAP_SYS_TIME cannot restart process {pid}, which lets nobody trace it \
                 (PR_SET_DUMPABLE of prctl(2)), as who changes user does: give root both"
            );
            return Err(Error::Missing { what });
        }
        be_in_a_user_namespace_of_all()?;
    }
    unshare(
        libc::CLONE_NEWPID | libc::CLONE_NEWNS,
        "PID and mount namespaces",
    )?;
    if has_own_ipc {
        unshare(
            libc::CLONE_NEWIPC,
            "an IPC namespace, for the System V objects of the program",
        )?;
    }
    if unshare(NEWTIME, "a time namespace").is_ok() {
        // Without, deadlines of the tree pass when the clock gets there: sooner or later than they should.
        set_clocks(clocks)?;
        KEEPS_TIME.store(true, Ordering::Relaxed);
    }
    // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
    let first = unsafe { libc::fork() };
    match first {
        0 => {
            let supervise = || supervise(complete);
            let status = be_first(place, complete, reporter, supervise).unwrap_or_else(|error| {
                reporter.failed(&error);
                1
            });
            process::exit(status)
        }
        first if first < 0 => Err(Error::io("fork", io::Error::last_os_error())),
        first => {
            drop(supervise);
            Ok(status_of(first))
        }
    }
}

/// What the user namespace says of its users (user_namespaces(7)): numbers within, numbers outside, how many.
const MAPS: [&str; 2] = ["uid_map", "gid_map"];

/// Whether root, of whom a container may have kept them, has the rights to make the other namespaces and to set their
/// clocks.
fn has_rights() -> Result<bool> {
    let status = procfs::process::Process::myself().and_then(|me| me.status());
    let status = status.map_err(|error| Error::io("/proc/self/status", io::Error::other(error)))?;
    Ok([SYS_ADMIN, SYS_TIME]
        .iter()
        .all(|bit| status.capeff & (1 << bit) != 0))
}

/// A user namespace, in which there is this user alone.
fn be_in_a_user_namespace_as_one() -> Result<()> {
    // SAFETY: both calls take no argument and cannot fail.
    let ids = unsafe { [libc::geteuid(), libc::getegid()] };
    unshare(libc::CLONE_NEWUSER, USERS)?;
    let write = |name: &str, text: String| {
        let path = format!("/proc/self/{name}");
        fs::write(&path, text).map_err(|source| Error::io(path, source))
    };
    write("setgroups", "deny".into())?;
    for (name, id) in MAPS.iter().zip(ids) {
        write(name, format!("{id} {id} 1"))?;
    }
    Ok(())
}

/// A user namespace of all users that there are, with the numbers that they have: root's program may have processes of
/// others. Only a process outside can say so.
fn be_in_a_user_namespace_of_all() -> Result<()> {
    let mut maps = Vec::new();
    for name in MAPS {
        let path = format!("/proc/self/{name}");
        let text = fs::read_to_string(&path).map_err(|source| Error::io(path, source))?;
        maps.push((format!("/proc/{}/{name}", process::id()), the_same(&text)));
    }
    let (mut made, making) = io::pipe().map_err(|source| Error::io("pipe", source))?;
    // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
    let writer = unsafe { libc::fork() };
    if writer == 0 {
        drop(making);
        // It ends when the namespace is made, or the parent dead: then there is nothing to write to.
        let _ = made.read(&mut [0]);
        let written = maps
            .iter()
            .try_for_each(|(path, text)| fs::write(path, text));
        process::exit(
            written.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0),
        )
    }
    if writer < 0 {
        return Err(Error::io("fork", io::Error::last_os_error()));
    }
    let unshared = unshare(libc::CLONE_NEWUSER, USERS);
    drop(making);
    let errno = status_of(writer);
    unshared?;
    match errno {
        0 => Ok(()),
        errno => Err(Error::io(
            "cannot make a user namespace of all users: it takes CAP_SETUID, CAP_SETGID and CAP_SETFCAP of root without \
             CAP_SYS_ADMIN",
            io::Error::from_raw_os_error(errno),
        )),
    }
}

/// A map by which everybody of this namespace is in another one, with the same numbers.
fn the_same(map: &str) -> String {
    let lines = map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace();
        let (within, count) = (numbers.next()?, numbers.nth(1)?);
        Some(format!("{within} {within} {count}\n"))
    });
    lines.collect()
}

fn unshare(flags: i32, what: &str) -> Result<()> {
    // SAFETY: unshare(2) takes numbers alone and no address, so the kernel reads and writes no memory of this process.
    // The flags are namespaces, and not CLONE_FILES, so no descriptor changes.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(Error::io(
            format!("cannot make {what}; `snaprig doctor --for ckpt` says what allows it"),
            io::Error::last_os_error(),
        )),
    }
}

/// time_namespaces(7).
fn set_clocks(clocks: Clocks) -> Result<()> {
    let offset = |clock, then: u64| {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: clock_gettime(2) writes a timespec, which is a variable of this function.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        let nanos = then as i128 - (now.tv_sec as i128 * 1_000_000_000 + now.tv_nsec as i128);
        (
            nanos.div_euclid(1_000_000_000),
            nanos.rem_euclid(1_000_000_000),
        )
    };
    let monotonic = offset(libc::CLOCK_MONOTONIC, clocks.monotonic);
    let boottime = offset(libc::CLOCK_BOOTTIME, clocks.boottime);
    let text = format!(
        "monotonic {} {}\nboottime {} {}\n",
        monotonic.0, monotonic.1, boottime.0, boottime.1
    );
    let path = "/proc/self/timens_offsets";
    fs::write(path, text).map_err(|source| Error::io(path, source))
}

/// Process 1: mounts /proc, makes the supervisor, reaps whoever is left to it. When the supervisor has ended, or the
/// leader above it, it waits for the tree, if that is complete; what a shell would say of the end of the tree's first
/// process, or of its supervisor's.
fn be_first(
    place: Place,
    complete: Complete,
    reporter: &Reporter,
    supervise: impl FnOnce() -> i32,
) -> Result<i32> {
    mount_proc()?;
    let child = make_above(place, reporter, supervise)?;
    let (mut status, mut of_child, mut last) = (0, 1, None);
    loop {
        // SAFETY: waitpid(2) writes an int, which is a variable of this function.
        let ended = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if ended == place.root || ended == place.supervisor && libc::WIFEXITED(status) {
            last = Some(exit_code(status));
        }
        if ended == child {
            of_child = exit_code(status);
            if !complete.is_set() {
                return Ok(of_child);
            }
        }
        if ended < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Ok(last.unwrap_or(of_child));
        }
    }
}

/// Makes the supervisor, and, if the tree is of a session of its own, that one's leader above it.
fn make_above(place: Place, reporter: &Reporter, supervise: impl FnOnce() -> i32) -> Result<pid_t> {
    let supervisor = |supervise: &mut dyn FnMut() -> i32| -> Result<pid_t> {
        match fork_as(place.supervisor, libc::SIGCHLD)? {
            0 => process::exit(supervise()),
            child => Ok(child),
        }
    };
    let mut supervise = Some(supervise);
    let mut supervise = move || supervise.take().map_or(1, |supervise| supervise());
    match place.session {
        None => supervisor(&mut supervise),
        Some(1) => {
            lead();
            supervisor(&mut supervise)
        }
        Some(leader) if leader == place.supervisor => supervisor(&mut || {
            lead();
            supervise()
        }),
        Some(leader) => match fork_as(leader, libc::SIGCHLD)? {
            0 => {
                lead();
                let child = supervisor(&mut supervise);
                drop(supervise);
                process::exit(child.map_or_else(
                    |error| {
                        reporter.failed(&error);
                        1
                    },
                    status_of,
                ))
            }
            child => Ok(child),
        },
    }
}

fn lead() {
    // SAFETY: setsid(2) takes no argument. A process that was just made leads no group, so it cannot fail.
    unsafe { libc::setsid() };
}

/// A /proc of the namespace's own. Where parts of the old one are hidden, as most containers do, users cannot have another
/// (mount_namespaces(7)), and in the old one numbers are others.
fn mount_proc() -> Result<()> {
    let none = ptr::null();
    // SAFETY: the strings end with a zero, and mount(2) only reads them; null pointers are none.
    let mounted = unsafe {
        libc::mount(
            none,
            c"/".as_ptr(),
            none,
            libc::MS_REC | libc::MS_PRIVATE,
            none.cast(),
        );
        libc::mount(
            c"proc".as_ptr(),
            c"/proc".as_ptr(),
            c"proc".as_ptr(),
            0,
            none.cast(),
        )
    };
    match mounted {
        0 => Ok(()),
        _ => Err(Error::io(
            "cannot mount a /proc for the restarted program: in a container parts of it are hidden \
             (docker: --security-opt systempaths=unconfined; podman: --security-opt unmask=ALL)",
            io::Error::last_os_error(),
        )),
    }
}

/// fork(2) of the calling process, which has one thread, with a number for the child.
pub fn fork_as(pid: pid_t, exit_signal: i32) -> Result<pid_t> {
    clone_as(pid, 0, exit_signal)
}

/// As [`fork_as`], but the child is the calling process's brother.
pub fn fork_brother(pid: pid_t) -> Result<pid_t> {
    clone_as(pid, libc::CLONE_PARENT, 0)
}

fn clone_as(pid: pid_t, flags: i32, exit_signal: i32) -> Result<pid_t> {
    let set_tid = [pid];
    // SAFETY: the structure has numbers alone, for which zero is a value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags as u64;
    arguments.exit_signal = exit_signal as u64;
    arguments.set_tid = set_tid.as_ptr() as u64;
    arguments.set_tid_size = 1;
    // SAFETY: without CLONE_VM and a stack this is as fork(2): the child is a copy of this process, which has one
    // thread, and goes on here. The structure is as long as is said, and names one number of this frame, which the
    // kernel reads.
    let child = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of_val(&arguments),
        )
    };
    match child {
        child if child >= 0 => Ok(child as pid_t),
        _ => Err(Error::io(
            format!("process number {pid} cannot be had"),
            io::Error::last_os_error(),
        )),
    }
}

/// Waits for a child, reaping all others; what a shell would say of its end.
fn status_of(child: pid_t) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: waitpid(2) writes an int, which is a variable of this function.
        let ended = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if ended == child {
            return exit_code(status);
        }
        if ended < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return 1;
        }
    }
}

/// The exit code that a shell makes of a wait status.
pub fn exit_code(status: i32) -> i32 {
    match libc::WIFSIGNALED(status) {
        true => 128 + libc::WTERMSIG(status),
        false => libc::WEXITSTATUS(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_keeps_a_number() {
        let map = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(the_same(map), "0 0 1\n1 1 65536\n");
    }
}
