//! Makes inotify instances again.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use crate::{
    calls::check,
    error::Result,
    opened::{damaged, is_there, missing, owned, path_of},
    state::Notice,
};

/// `_IOW('I', 0, __s32)` (linux/inotify.h).
const INOTIFY_SET_NEXT: libc::Ioctl = 0x4004_4900;

/// An inotify instance, for now without watches: nothing that a restart does is to be seen by it.
pub fn inotify(notices: &[Notice]) -> Result<OwnedFd> {
    for notice in notices {
        let path = path_of(&notice.path);
        if !is_there(path) {
            return Err(missing(path, &io::ErrorKind::NotFound.into()));
        }
    }
    // SAFETY: inotify_init1(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
    // process.
    owned(
        unsafe { libc::inotify_init1(libc::IN_CLOEXEC) },
        "inotify_init1",
    )
}

/// Has an instance watch a file, by the number that the program knows it by.
pub fn watch(fd: RawFd, notice: &Notice) -> Result<()> {
    let path = path_of(&notice.path);
    let name =
        std::ffi::CString::new(notice.path.clone()).map_err(|_| damaged("a name with a zero"))?;
    // The name is of what is watched itself.
    let mask = notice.mask | libc::IN_DONT_FOLLOW;
    // SAFETY: INOTIFY_IOC_SETNEXTWD takes a number in place of an address, and inotify_add_watch(2) reads the name,
    // which ends with a zero.
    let added = unsafe {
        check(libc::ioctl(fd, INOTIFY_SET_NEXT, notice.wd))
            .and_then(|_| check(libc::inotify_add_watch(fd, name.as_ptr(), mask)))
    };
    match added.map_err(|error| missing(path, &error))? {
        wd if wd == notice.wd => Ok(()),
        _ => Err(damaged("one file that is watched twice")),
    }
}
