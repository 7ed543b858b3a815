//! Makes epoll instances again, and has them watch what they did.

use std::{io, os::fd::OwnedFd};

use crate::{
    error::{Error, Result},
    opened::{Opened, owned},
    state::{Body, Kind, Process, Tree},
};

/// An instance that watches nothing yet.
pub fn new() -> Result<OwnedFd> {
    // SAFETY: epoll_create1(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
    // process.
    owned(unsafe { libc::epoll_create1(0) }, "epoll_create1")
}

/// Epoll instances watch files by the numbers that one process has them at: the first that has all does it, which this
/// process may be.
pub fn watch(tree: &Tree, opened: &Opened, process: &Process, body: &Body) -> Result<()> {
    let has = |body: &Body, fd, file| {
        let mut descriptors = body.descriptors.iter();
        descriptors.any(|one| one.fd == fd && one.file == file)
    };
    for (number, file) in tree.files.iter().enumerate() {
        let Kind::Epoll { watched } = &file.kind else {
            continue;
        };
        let has_all = |body: &Body| {
            body.descriptors.iter().any(|one| one.file == number as u32)
                && watched.iter().all(|watch| has(body, watch.fd, watch.file))
        };
        let mut bodies = tree
            .processes
            .iter()
            .filter_map(|p| Some((p.pid, p.body.as_ref()?)));
        let first = bodies.find(|(_, body)| has_all(body));
        if !has_all(body) || first.is_none_or(|(pid, _)| pid != process.pid) {
            continue;
        }
        for watch in watched {
            let mut event = libc::epoll_event {
                events: watch.events,
                u64: watch.data,
            };
            // SAFETY: epoll_ctl(2) reads one event, which is a variable of this function.
            let added = unsafe {
                let epoll = opened.files[number];
                libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, watch.fd, &raw mut event)
            };
            if added != 0 {
                return Err(Error::io("epoll_ctl", io::Error::last_os_error()));
            }
        }
    }
    Ok(())
}
