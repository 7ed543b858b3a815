//! Starting programs.
//!
//! What posix_spawn(3) does, without its 64 calls of rt_sigaction(2) for every program (the C library
//! before 2.38): a call costs microseconds where KVM is nested.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use crate::urgency::be_usual;

/// Of the child until it executes its program.
const STACK_WORDS: usize = 1024;

/// A program to start.
pub struct Spawn<'a> {
    /// Where it is.
    pub path: &'a str,
    /// Arguments, the program's name first.
    pub argv: &'a [String],
    /// Environment, `NAME=value`.
    pub env: &'a [String],
    /// Standard input, output and error; `None`: those of this process.
    pub stdio: [Option<BorrowedFd<'a>>; 3],
    /// It leads a process group of its own.
    pub own_group: bool,
}

/// What the child is told, and what it says before it ends without its program.
struct Child {
    path: *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    stdio: [Option<c_int>; 3],
    own_group: bool,
    errno: c_int,
}

impl Spawn<'_> {
    /// Starts it; its id. Somebody is to wait for its end.
    pub fn start(&self) -> io::Result<i32> {
        let path = CString::new(self.path)?;
        let (argv, env) = (strings(self.argv)?, strings(self.env)?);
        let (argv, env) = (pointers(&argv), pointers(&env));
        let mut child = Child {
            path: path.as_ptr(),
            argv: argv.as_ptr(),
            env: env.as_ptr(),
            stdio: self.stdio.map(|fd| fd.map(|fd| fd.as_raw_fd())),
            own_group: self.own_group,
            errno: 0,
        };
        let mut stack = vec![0_u128; STACK_WORDS];
        // SAFETY: CLONE_VFORK keeps this thread here until the child has executed its program or
        // ended, so all that `child` points to, and the stack, outlive it; the stack is aligned, and
        // `clone` grows it down from its end. No signal is handled in the child, on this memory:
        // all are blocked. What the child does is in `run`.
        let pid = unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let pid = libc::clone(
                run,
                stack.as_mut_ptr_range().end.cast(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                (&raw mut child).cast(),
            );
            let result = if pid < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(pid)
            };
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
            result?
        };
        // SAFETY: the child wrote to it, if at all, before it ended.
        match unsafe { (&raw const child.errno).read_volatile() } {
            0 => Ok(pid),
            errno => {
                // Whoever waits for all children may have been faster.
                // SAFETY: waitpid(2) writes no status to a null pointer.
                unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }
}

/// The child, in the memory of its parent.
extern "C" fn run(child: *mut c_void) -> c_int {
    let child: *mut Child = child.cast();
    // SAFETY: `child` and what it points to are the waiting parent's. Only functions are called that
    // are safe in a signal handler (signal-safety(7)): they allocate nothing and take no lock.
    // Handlers of the parent are gone with its program; SIGPIPE, which Rust programs ignore, would
    // stay ignored. The parent handles faults alone, and there are none here.
    unsafe {
        let done = (!(*child).own_group || libc::setpgid(0, 0) == 0)
            && (*child)
                .stdio
                .iter()
                .enumerate()
                .all(|(at, fd)| fd.is_none_or(|fd| libc::dup2(fd, at as c_int) >= 0));
        if done {
            // What starts it may be a daemon.
            be_usual();
            let mut none = std::mem::zeroed();
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            libc::execve((*child).path, (*child).argv, (*child).env);
        }
        (&raw mut (*child).errno).write_volatile(*libc::__errno_location());
        libc::_exit(127)
    }
}

fn strings(strings: &[String]) -> io::Result<Vec<CString>> {
    let string = |string: &String| CString::new(string.as_str()).map_err(io::Error::from);
    strings.iter().map(string).collect()
}

/// As execve(2) takes them.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    let strings = strings.iter().map(CString::as_c_str).map(CStr::as_ptr);
    strings.chain([ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, pipe},
        os::fd::AsFd,
    };

    use super::*;

    fn spawn(path: &str, argv: &[&str], out: &impl AsFd) -> io::Result<i32> {
        let argv: Vec<_> = argv.iter().map(|argument| (*argument).to_owned()).collect();
        let spawn = Spawn {
            path,
            argv: &argv,
            env: &["GREETING=hello".to_owned()],
            stdio: [None, Some(out.as_fd()), None],
            own_group: true,
        };
        spawn.start()
    }

    #[test]
    fn a_program_has_its_arguments_environment_group_and_output_and_its_signals() {
        let (mut from, to) = pipe().unwrap();
        let script = "echo $0 $GREETING; grep SigBlk /proc/self/status; \
                      cut -d' ' -f1,5 /proc/$$/stat; kill -PIPE $$; echo alive";
        let pid = spawn("/bin/sh", &["name", "-c", script, "zero"], &to).unwrap();
        drop(to);
        let mut said = String::new();
        from.read_to_string(&mut said).unwrap();
        let expected = format!("zero hello\nSigBlk:\t0000000000000000\n{pid} {pid}\n");
        assert_eq!(said, expected);
        let mut status = 0;
        // SAFETY: waitpid(2) writes an int, which is a variable of this test.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, libc::SIGPIPE);
    }

    #[test]
    fn a_program_that_is_not_there_or_is_none_is_an_error() {
        let (_from, to) = pipe().unwrap();
        for (path, errno) in [("/no/such", libc::ENOENT), ("/etc/passwd", libc::EACCES)] {
            let error = spawn(path, &["name"], &to).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno));
        }
        assert!(spawn("/bin/\0", &["name"], &to).is_err());
    }
}
