//! A userfaultfd(2) of a process that is held, which makes it for its tracer.
//!
//! ```text
//! process, held:  userfaultfd() -- pidfd_getfd --> supervisor: UFFDIO_API, UFFDIO_REGISTER of areas, ...
//!                 close()
//! ```
//! What must stay true: the descriptor is closed in the process before that runs.

use std::{io, os::fd::OwnedFd};

use libc::pid_t;
use snaprig_userfault::{FLAGS, Userfault};

use crate::{
    code::code_of,
    descriptors::copy_of,
    error::Result,
    freeze::HeldProcess,
    remote::{call, result},
    stub::Stub,
};

/// Of a process, which makes it, and does not have it for long.
pub fn userfault_of(process: &mut HeldProcess, features: u64) -> Result<io::Result<Userfault>> {
    let stub = Stub::map(process, &code_of(process.handle())?)?;
    let (pid, tid) = (process.pid, process.handle());
    let opened = open_with(pid, FLAGS, |number, argument| {
        let calls = [call(number, [argument])];
        let made =
            process.threads[0].remote(pid, stub.end, |remote| remote.calls(stub.at, tid, &calls));
        Ok(result(made?[0]))
    });
    // Whatever came of it.
    stub.unmap(process)?;
    Ok(opened?.and_then(|fd| Userfault::with(fd, features)))
}

/// Has a process make one with `flags`, by calls that `make` has it make: their number, and their argument.
pub fn open_with(
    pid: pid_t,
    flags: u64,
    mut make: impl FnMut(i64, u64) -> Result<io::Result<u64>>,
) -> Result<io::Result<OwnedFd>> {
    let fd = match make(libc::SYS_userfaultfd, flags)? {
        Ok(fd) => fd,
        Err(error) => return Ok(Err(error)),
    };
    let copy = copy_of(pid, fd as i32);
    make(libc::SYS_close, fd)?.ok();
    copy.map(Ok)
}
