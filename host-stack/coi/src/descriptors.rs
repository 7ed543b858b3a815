//! Memory and connections take descriptors, of which a process may have few at first.

use std::{io, sync::Once};

use rustix::process::{Resource, getrlimit, setrlimit};

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
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // If there is no more, less has to do.
        let _ = setrlimit(Resource::Nofile, limit);
    });
}
