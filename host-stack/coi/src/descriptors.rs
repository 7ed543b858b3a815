//! Memory and connections take descriptors, of which a process may have few at first.

use std::{io, sync::Once};

/// Does what needs a descriptor; if there is none left, the soft limit becomes the hard one first
/// (getrlimit(2)).
pub fn with_room<T>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match make() {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            raise();
            make()
        }
        made => made,
    }
}

/// The soft limit is as high as the hard one from now on.
pub fn raise() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `limit` is valid to read and to write. If there is no more, less has to do.
        unsafe {
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
        }
    });
}
