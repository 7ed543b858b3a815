//! Memory and connections take descriptors, of which a process may have few at first.

use std::sync::Once;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Does what needs descriptors, and says which errno it has failed with; if there are none left, the soft limit becomes the
/// hard one first (getrlimit(2)).
pub fn with_room<T, E>(
    mut make: impl FnMut() -> Result<T, E>,
    errno: impl Fn(&E) -> Option<i32>,
) -> Result<T, E> {
    match make() {
        Err(error) if errno(&error) == Some(libc::EMFILE) => {
            raise();
            make()
        }
        made => made,
    }
}

/// The soft limit is as high as the hard one from now on.
fn raise() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // If there is no more, less has to do.
        let _ = setrlimit(Resource::Nofile, limit);
    });
}
