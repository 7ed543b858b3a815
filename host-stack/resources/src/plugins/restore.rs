//! What belongs to plugins, until they have put something else in its place.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use snaprig_ckpt_plugin::message::THREAD;

use crate::{
    error::{Error, Result},
    state::Tree,
};

/// A file whose other end has gone: reading ends, writing is EPIPE, and it can be waited for.
pub fn hung_up() -> Result<OwnedFd> {
    pair(SocketType::STREAM, SocketFlags::CLOEXEC).map(|(end, _)| end)
}

/// The ends of a connection for plugins: the process's, and the supervisor's.
pub fn channel() -> Result<(OwnedFd, OwnedFd)> {
    pair(SocketType::SEQPACKET, SocketFlags::CLOEXEC)
}

fn pair(kind: SocketType, flags: SocketFlags) -> Result<(OwnedFd, OwnedFd)> {
    let pair = socketpair(AddressFamily::UNIX, kind, flags, None);
    pair.map_err(|source| Error::io("socketpair", source))
}

/// The supervisor's ends, moved behind `last`, and the processes that have the others.
pub fn outlive(
    tree: &Tree,
    channels: &BTreeMap<u32, RawFd>,
    last: RawFd,
) -> Result<Vec<(i32, OwnedFd)>> {
    let mut moved = Vec::new();
    for process in &tree.processes {
        let descriptors = process.body.iter().flat_map(|body| &body.descriptors);
        for file in descriptors.map(|one| one.file) {
            let Some(fd) = channels.get(&file) else {
                continue;
            };
            // SAFETY: F_DUPFD_CLOEXEC takes a number, so fcntl(2) reads and writes no memory of this process; the
            // descriptor that it returns is new, so nobody else owns it.
            let own = unsafe {
                match libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, last + 1) {
                    own if own < 0 => {
                        return Err(Error::io("too many files", io::Error::last_os_error()));
                    }
                    own => OwnedFd::from_raw_fd(own),
                }
            };
            moved.push((process.pid, own));
        }
    }
    Ok(moved)
}

/// The threads of plugins, in processes that have connections to the supervisor.
pub fn threads(tree: &Tree, channels: &[(i32, OwnedFd)]) -> BTreeSet<i32> {
    let has_plugins = |pid: i32| channels.iter().any(|(of, _)| *of == pid);
    let processes = tree.processes.iter();
    let bodies = processes.filter_map(|process| {
        let body = process.body.as_ref()?;
        has_plugins(process.pid).then_some(body)
    });
    let threads = bodies.flat_map(|body| &body.threads);
    let of_plugins = threads.filter(|thread| thread.name == THREAD.as_bytes());
    of_plugins.map(|thread| thread.tid).collect()
}
