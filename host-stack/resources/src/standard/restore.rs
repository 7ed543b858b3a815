//! What a restarted tree has where it was given files.

use std::{
    io,
    os::{
        fd::{OwnedFd, RawFd},
        unix::net::UnixStream,
    },
};

use crate::{
    error::{Error, Result},
    event::{Event, Reporter},
    opened::{duplicate, set_flags},
};

/// What whoever restarts has at a number that the tree was given a file at; it is only made to block or not. Of pipes
/// and sockets beside the standard ones, an end without another will do.
pub fn given(number: RawFd, flags: i32, reporter: &Reporter) -> Result<OwnedFd> {
    // SAFETY: F_GETFD takes no argument, so fcntl(2) reads and writes no memory of this process.
    let is_passed_on = unsafe { libc::fcntl(number, libc::F_GETFD) } == 0;
    if number > 2 && !is_passed_on {
        reporter.tell(Event::DescriptorMissing { number });
        return lonely(flags);
    }
    let fd = duplicate(number)?;
    let own = rustix::fs::fcntl_getfl(&fd).map_err(|source| Error::io("F_GETFL", source))?;
    let own = own.bits() as i32;
    set_flags(&fd, own & !libc::O_NONBLOCK | flags & libc::O_NONBLOCK)?;
    Ok(fd)
}

/// An end of a pipe or connection whose other end has been closed.
fn lonely(flags: i32) -> Result<OwnedFd> {
    let failed = |source| Error::io("pipe", source);
    let (reader, writer) = io::pipe().map_err(failed)?;
    let fd = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => reader.into(),
        libc::O_WRONLY => writer.into(),
        _ => UnixStream::pair().map_err(failed)?.0.into(),
    };
    set_flags(&fd, flags)?;
    Ok(fd)
}
