//! The calls of `snapifyio.h`: [`snaprig_snapify_io_client`], with errors in errno.

use std::{
    ffi::{CStr, c_char, c_int},
    io,
    os::fd::{FromRawFd, IntoRawFd, OwnedFd},
};

use snaprig_snapify_io_client::{self as client, Kind, Mode};

const READ: c_int = 0;
const WRITE: c_int = 1;

/// What a call returns, and errno.
fn answer<T: From<i8>>(result: Result<T, c_int>) -> T {
    result.unwrap_or_else(|errno| {
        // SAFETY: __errno_location(3) returns the place of this thread's own errno, which is always there and which no other
        // thread uses.
        unsafe { *libc::__errno_location() = errno };
        T::from(-1)
    })
}

pub unsafe extern "C" fn snapifyio_open(node: c_int, path: *const c_char, mode: c_int) -> c_int {
    let open = || {
        if path.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the header asks for a string that ends with a zero.
        let path = unsafe { CStr::from_ptr(path) }.to_str();
        let path = path.map_err(|_| libc::EINVAL)?;
        let node = u16::try_from(node).map_err(|_| libc::ENXIO)?;
        let mode = match mode {
            READ => Mode::Read,
            WRITE => Mode::Write,
            _ => return Err(libc::EINVAL),
        };
        let file = client::open(node, path, Kind::Plain, mode).map_err(|error| errno(&error))?;
        Ok(file.into_raw_fd())
    };
    answer(open())
}

pub unsafe extern "C" fn snapifyio_finish(fd: c_int) -> c_int {
    let finish = || {
        // SAFETY: fcntl(2) takes a number alone, and says whether it is a descriptor.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(libc::EBADF);
        }
        // SAFETY: it is open, and the header has the program give it away.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        client::finish(file.into()).map_err(|error| errno(&error))?;
        Ok(0)
    };
    answer(finish())
}

fn errno(error: &io::Error) -> c_int {
    match error.kind() {
        // The daemon is gone, and has said nothing.
        io::ErrorKind::UnexpectedEof => libc::ECONNRESET,
        // No daemon listens where this program is: it is not on a card.
        io::ErrorKind::NotFound if error.raw_os_error().is_some() => libc::ENODEV,
        _ => client::errno(error),
    }
}
