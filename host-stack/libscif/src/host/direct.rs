//! Messages of a program of the host that do not go by the node ([`snaprig_scif_lanes`]).
//!
//! What must stay true: one process at a time sends on an endpoint, and one receives, even if others have it after a fork(2).

use std::{
    ffi::c_int,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use snaprig_scif::host::protocol::Call;
use snaprig_scif_lanes::host::{OnHost, Place, Program};
use snaprig_wire::scif::Bell;

use super::{endpoint::Endpoint, memory, watch};
use crate::ffi::Result;

pub(super) struct Direct {
    end: OnHost,
    /// For locks between processes: the file of the lanes, and where they are in it.
    file: OwnedFd,
    at: u64,
}

/// A lock between processes that have the endpoint, held until it is dropped.
struct Turn<'a>(Option<(&'a Direct, i64)>);

impl Direct {
    /// Of what the node gave.
    pub(super) fn new(place: Place, descriptor: OwnedFd, fds: Vec<OwnedFd>) -> Result<Self> {
        let file = fds.first().ok_or(libc::ENOMEM)?.try_clone();
        let file = file.map_err(|_| libc::ENOMEM)?;
        let end = OnHost::new(place, Arc::new(descriptor), fds).map_err(|_| libc::ENOMEM)?;
        let (start, len) = end.range();
        memory::claim(start, len);
        let at = place.at;
        Ok(Self { end, file, at })
    }

    /// Threads that wait do so no longer; what another process has of it stays.
    pub(super) fn close(&self, is_shared: bool) {
        self.end.close();
        if !is_shared {
            self.end.wake();
        }
    }

    /// The rig is gone: poll(2) says so from now on.
    pub(super) fn hang_up(&self) {
        self.end.hang_up();
    }

    /// What poll(2) says.
    pub(super) fn mask(&self) -> i16 {
        self.end.mask()
    }

    pub(super) fn send(
        &self,
        endpoint: &Endpoint,
        msg: usize,
        len: usize,
        block: bool,
    ) -> Result<usize> {
        match self.turn(endpoint, 0, block)? {
            Some(_turn) => self.end.send(endpoint, msg, len, block),
            None => Ok(0),
        }
    }

    pub(super) fn recv(
        &self,
        endpoint: &Endpoint,
        msg: usize,
        len: usize,
        block: bool,
    ) -> Result<usize> {
        let least = if block { len } else { 0 };
        match self.turn(endpoint, 1, block)? {
            Some(_turn) => self.end.recv(endpoint, msg, len, least),
            None => Ok(0),
        }
    }

    /// This process's turn, if another may have the endpoint, too; `None`: it is another's, and `block` is
    /// not set.
    fn turn(&self, endpoint: &Endpoint, which: i64, block: bool) -> Result<Option<Turn<'_>>> {
        if !endpoint.is_shared() {
            return Ok(Some(Turn(None)));
        }
        watch::start();
        let at = self.at as i64 + 2 * self.end.side() as i64 + which;
        let command = if block { libc::F_SETLKW } else { libc::F_SETLK };
        match self.lock(command, libc::F_WRLCK, at) {
            Ok(()) => Ok(Some(Turn(Some((self, at))))),
            Err(libc::EAGAIN | libc::EACCES) if !block => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn lock(&self, command: c_int, kind: c_int, at: i64) -> Result {
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: at,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: both commands, F_SETLK and F_SETLKW, only read the lock, which is on this stack
        // during the call; the descriptor is that of a file that `self` keeps open.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw const lock) } {
            // SAFETY: __errno_location(3) returns the place of this thread's own errno, which is
            // always there and which no other thread uses.
            ..0 => Err(unsafe { *libc::__errno_location() }),
            _ => Ok(()),
        }
    }
}

impl Program for Endpoint {
    fn ring(&self, bell: Bell) {
        // If the node is gone there is nobody to be told.
        let _ = self.call(Call::Ring(bell));
    }

    fn has_node(&self) -> bool {
        self.call(Call::Mask).is_ok()
    }

    fn check(&self, address: usize, len: usize, writes: bool) -> Result {
        memory::check(address, len, writes)
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let (start, len) = self.end.range();
        memory::disclaim(start, len);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some((direct, at)) = self.0 {
            let _ = direct.lock(libc::F_SETLK, libc::F_UNLCK, at);
        }
    }
}
