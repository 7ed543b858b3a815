//! Messages to and from another program of this host, by memory that both have mapped (`lanes` of the node's
//! crate): a call looks, spins for as long as a wake-up takes, then sleeps in poll(2) on the endpoint's
//! descriptor like any program.
//!
//! What must stay true: one process at a time sends on an endpoint, and one receives; a descriptor that is
//! ready stays so until what made it ready is gone.

use std::{
    ffi::c_int,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown},
};
use snaprig_scif::host::{
    lanes::{FILLING, Lane, Lanes},
    protocol::Call,
};

use super::{endpoint::Endpoint, memory, watch};
use crate::ffi::Result;

/// Long messages go in parts, so that one side puts while the other takes.
const PART_BYTES: u32 = 16 << 10;
/// So much of the program's memory is looked at at once.
const CHECKED_BYTES: usize = 256 << 10;
/// A wake-up by the kernel takes about so long.
const SPIN: Duration = Duration::from_micros(30);
/// Looks between two at the clock.
const LOOKS: u32 = 64;
/// How often a sleeper asks whether the node is still there.
const ASKED: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

pub(super) struct Direct {
    lanes: Lanes,
    side: usize,
    /// For locks between processes.
    file: OwnedFd,
    /// The endpoint's descriptor, its other end, and the other end of the peer's.
    descriptor: OwnedFd,
    own: OwnedFd,
    peer: OwnedFd,
    closed: AtomicBool,
    /// Peer or node are gone, as the descriptor says.
    gone: AtomicBool,
}

/// A lock between processes that have the endpoint, held until it is dropped.
struct Turn<'a>(Option<(&'a Direct, i64)>);

impl Direct {
    pub(super) fn new(side: usize, descriptor: BorrowedFd<'_>, fds: Vec<OwnedFd>) -> Result<Self> {
        let [file, own, peer]: [OwnedFd; 3] = fds.try_into().map_err(|_| libc::ENOMEM)?;
        let lanes = Lanes::map(file.as_fd()).map_err(|_| libc::ENOMEM)?;
        let (start, len) = lanes.range();
        memory::claim(start, len);
        let descriptor = descriptor.try_clone_to_owned().map_err(|_| libc::ENOMEM)?;
        Ok(Self {
            lanes,
            side,
            file,
            descriptor,
            own,
            peer,
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// Threads that wait do so no longer; what another process has of it stays.
    pub(super) fn close(&self, is_shared: bool) {
        self.closed.store(true, Ordering::SeqCst);
        if !is_shared {
            let _ = shutdown(&self.own, Shutdown::Both);
        }
    }

    /// The rig is gone: poll(2) says so from now on.
    pub(super) fn hang_up(&self) {
        self.gone.store(true, Ordering::SeqCst);
        let _ = shutdown(&self.own, Shutdown::Both);
    }

    /// What poll(2) says.
    pub(super) fn mask(&self) -> i16 {
        let over = self.is_over();
        self.lanes.mask(self.side) | if over { libc::POLLHUP } else { 0 }
    }

    fn is_over(&self) -> bool {
        self.lanes.is_over(self.side) || self.gone.load(Ordering::SeqCst)
    }

    /// Why nothing more can be done.
    fn end(&self, closed: c_int) -> Option<c_int> {
        match self.closed.load(Ordering::SeqCst) {
            true => Some(closed),
            false => self.is_over().then_some(libc::ECONNRESET),
        }
    }

    pub(super) fn send(
        &self,
        endpoint: &Endpoint,
        msg: usize,
        len: usize,
        block: bool,
    ) -> Result<usize> {
        let Some(_turn) = self.turn(endpoint, 0, block)? else {
            return Ok(0);
        };
        let lane = self.lanes.lane(self.side);
        lane.writable().enter();
        let (sent, why) = self.send_inside(endpoint, lane, msg, len, block);
        self.leave_sending(lane);
        match why {
            Some(errno) if sent == 0 => Err(errno),
            _ => Ok(sent),
        }
    }

    fn send_inside(
        &self,
        endpoint: &Endpoint,
        lane: Lane<'_>,
        msg: usize,
        len: usize,
        block: bool,
    ) -> (usize, Option<c_int>) {
        let (mut sent, mut checked) = (0, 0);
        loop {
            // scif_send(3).
            if let Some(errno) = self.end(libc::EINTR) {
                return (sent, Some(errno));
            }
            let room = lane.room().min(PART_BYTES);
            if sent == checked && checked < len {
                checked += (len - checked).min(CHECKED_BYTES);
                if let Err(errno) = memory::check(msg + sent, checked - sent, false) {
                    return (sent, Some(errno));
                }
            }
            let part = (checked - sent).min(room as usize);
            if part > 0 {
                let from = ptr::with_exposed_provenance(msg + sent);
                // SAFETY: `memory::check` has found `checked` bytes of the message to be readable,
                // and `part` ends there; `room` is what the lane has. If the program unmaps them
                // meanwhile it is as wrong as with memcpy(3).
                unsafe { lane.put(from, part as u32, || self.show_byte(&self.peer)) };
                sent += part;
            } else if sent == len || !block {
                return (sent, None);
            } else if !spin(|| lane.room() > 0 || self.end(0).is_some()) {
                self.leave_sending(lane);
                let waited = self.wait(endpoint, PollFlags::OUT);
                lane.writable().enter();
                if let Err(errno) = waited {
                    return (sent, Some(errno));
                }
            }
        }
    }

    pub(super) fn recv(
        &self,
        endpoint: &Endpoint,
        msg: usize,
        len: usize,
        block: bool,
    ) -> Result<usize> {
        let Some(_turn) = self.turn(endpoint, 1, block)? else {
            return Ok(0);
        };
        let lane = self.lanes.lane(self.side + 1);
        lane.readable().enter();
        let (received, why) = self.recv_inside(endpoint, lane, msg, len, block);
        if block && received < len {
            lane.want(0, || drain(&self.peer));
        }
        self.leave_receiving(lane);
        match why {
            Some(errno) if received == 0 => Err(errno),
            _ => Ok(received),
        }
    }

    fn recv_inside(
        &self,
        endpoint: &Endpoint,
        lane: Lane<'_>,
        msg: usize,
        len: usize,
        block: bool,
    ) -> (usize, Option<c_int>) {
        let (mut received, mut checked) = (0, 0);
        let mut interrupted = false;
        while received < len {
            let end = self.end(libc::EBADF);
            let there = lane.available().min(PART_BYTES);
            // What has been received cannot be put back.
            if received == checked {
                checked += (len - checked).min(CHECKED_BYTES);
                if let Err(errno) = memory::check(msg + received, checked - received, true) {
                    return (received, Some(errno));
                }
            }
            let part = (checked - received).min(there as usize);
            if part > 0 {
                let to = ptr::with_exposed_provenance_mut(msg + received);
                received += part;
                let wanted = if block { len - received } else { 0 };
                // SAFETY: `memory::check` has found `checked` bytes of the buffer to be writable,
                // and `part` ends there; `there` is what the lane has. If the program unmaps them
                // meanwhile it is as wrong as with memcpy(3).
                unsafe { lane.take(to, part as u32, wanted, || drain(&self.peer)) };
                continue;
            }
            match end {
                _ if interrupted => return (received, Some(libc::EINTR)),
                Some(errno) => return (received, Some(errno)),
                None if !block => break,
                None => {}
            }
            // Room for all that it waits for.
            lane.want(len - received, || drain(&self.peer));
            if !spin(|| lane.available() > 0 || self.end(0).is_some()) {
                self.leave_receiving(lane);
                let waited = self.wait(endpoint, PollFlags::IN);
                lane.readable().enter();
                match waited {
                    Err(libc::EINTR) => interrupted = true,
                    Err(errno) => return (received, Some(errno)),
                    Ok(()) => {}
                }
            }
        }
        (received, None)
    }

    fn leave_sending(&self, lane: Lane<'_>) {
        let is = || lane.room() > 0 || self.end(0).is_some();
        let fill = || {
            let _ = send(&self.descriptor, &FILLING, flags());
        };
        lane.writable().leave(is, || drain(&self.own), fill);
    }

    fn leave_receiving(&self, lane: Lane<'_>) {
        let is = || lane.available() > 0;
        let (show, hide) = (|| self.show_byte(&self.own), || drain(&self.descriptor));
        lane.readable().leave(is, show, hide);
    }

    /// A byte into the descriptor of which this is the other end.
    fn show_byte(&self, socket: &OwnedFd) {
        let _ = send(socket, &[0], flags());
    }

    /// Until the descriptor says so, a signal comes, or there is nobody to wait for any more.
    fn wait(&self, endpoint: &Endpoint, event: PollFlags) -> Result {
        let mut fds = [PollFd::new(&self.descriptor, event)];
        match poll(&mut fds, Some(&ASKED)) {
            Err(Errno::INTR) => Err(libc::EINTR),
            Err(errno) => Err(errno.raw_os_error()),
            Ok(0) if endpoint.call(Call::Mask).is_err() => {
                self.gone.store(true, Ordering::SeqCst);
                Ok(())
            }
            Ok(_) => {
                if fds[0].revents().contains(PollFlags::HUP) {
                    self.gone.store(true, Ordering::SeqCst);
                }
                Ok(())
            }
        }
    }

    /// This process's turn, if another may have the endpoint, too; `None`: it is another's, and `block` is
    /// not set.
    fn turn(&self, endpoint: &Endpoint, which: i64, block: bool) -> Result<Option<Turn<'_>>> {
        if !endpoint.is_shared() {
            return Ok(Some(Turn(None)));
        }
        watch::start();
        let at = 2 * self.side as i64 + which;
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

impl Drop for Direct {
    fn drop(&mut self) {
        let (start, len) = self.lanes.range();
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

/// Takes out of a socket what lies in it.
fn drain(socket: &OwnedFd) {
    let mut buffer = [0; 2 * FILLING.len()];
    let _ = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT);
}

fn flags() -> SendFlags {
    SendFlags::DONTWAIT | SendFlags::NOSIGNAL
}

/// Looks until it `is`, or it has taken too long.
fn spin(is: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if is() {
                return true;
            }
            std::hint::spin_loop();
        }
        if begun.elapsed() > SPIN {
            return false;
        }
        // On one processor the other side has its turn.
        std::thread::yield_now();
    }
}
