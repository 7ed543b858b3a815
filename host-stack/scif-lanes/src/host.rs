//! A program of the host: who sleeps does so in poll(2) on the endpoint's descriptor, like any program.
//!
//! What must stay true: a descriptor that is ready stays so until what made it ready is gone.

use std::{
    ffi::c_int,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown},
};
use serde::{Deserialize, Serialize};
use snaprig_wire::scif::Bell;

use crate::{
    end::{self, End, Result},
    lanes::{FILLING, Lanes},
};

/// How often a sleeper asks whether the node is still there.
const ASKED: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// An end that is a program of the host.
pub struct OnHost {
    lanes: Lanes,
    side: usize,
    /// The endpoint's descriptor, its other end, and the other end of the peer's, if that is a program of this host.
    descriptor: Arc<OwnedFd>,
    own: OwnedFd,
    peer: Option<OwnedFd>,
    closed: AtomicBool,
    /// Peer or node are gone, as the descriptor says.
    gone: AtomicBool,
}

/// Where the lanes of an end are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Which end it is: 0 or 1.
    pub side: u8,
    /// Where they begin in their file.
    pub at: u64,
    /// The peer is a program of this host, too.
    pub has_peer: bool,
}

/// What an end needs of its program.
pub trait Program {
    /// Asks the node to ring for the peer, which is on a card.
    fn ring(&self, bell: Bell);
    /// Whether the node answers.
    fn has_node(&self) -> bool;
    /// Whether this is the program's memory, and can be written, or read.
    fn check(&self, address: usize, len: usize, writes: bool) -> Result;
}

impl OnHost {
    /// Of its descriptor and what the node gave: the file of the lanes, the other end of the descriptor, and the other end of
    /// its peer's, if that is here. EMFILE: the process has no room for all of them.
    pub fn new(place: Place, descriptor: Arc<OwnedFd>, fds: Vec<OwnedFd>) -> Result<Self> {
        let mut fds = fds.into_iter();
        let (file, own) = fds.next().zip(fds.next()).ok_or(libc::EMFILE)?;
        let peer = fds.next();
        if place.has_peer && peer.is_none() {
            return Err(libc::EMFILE);
        }
        Ok(Self {
            lanes: Lanes::map(file.as_fd(), place.at).map_err(|_| libc::ENOMEM)?,
            side: place.side.into(),
            descriptor,
            own,
            peer,
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// What it has open.
    pub fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let files = [Some(&*self.descriptor), Some(&self.own), self.peer.as_ref()];
        files.into_iter().flatten().map(AsFd::as_fd)
    }

    /// Where its lanes are mapped, and how much.
    pub fn range(&self) -> (usize, usize) {
        self.lanes.range()
    }

    /// Which end it is.
    pub fn side(&self) -> usize {
        self.side
    }

    /// The program closes the endpoint: no call begins any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// The rig is gone, for this process: poll(2) says so from now on.
    pub fn hang_up(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Threads that wait look again.
    pub fn wake(&self) {
        let _ = shutdown(&self.own, Shutdown::Both);
    }

    /// What poll(2) says.
    pub fn mask(&self) -> i16 {
        let over = self.is_over();
        self.lanes.mask(self.side) | if over { libc::POLLHUP } else { 0 }
    }

    fn is_over(&self) -> bool {
        self.lanes.is_over(self.side) || self.gone.load(Ordering::SeqCst)
    }

    /// scif_send(3).
    pub fn send(
        &self,
        program: &impl Program,
        msg: usize,
        len: usize,
        block: bool,
    ) -> Result<usize> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(libc::EINTR),
            false => end::send(&Of(self, program), msg, len, block),
        }
    }

    /// [`end::recv`].
    pub fn recv(
        &self,
        program: &impl Program,
        msg: usize,
        len: usize,
        least: usize,
    ) -> Result<usize> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(libc::EBADF),
            false => end::recv(&Of(self, program), msg, len, least),
        }
    }

    /// [`end::recv_soon`].
    pub fn recv_soon(
        &self,
        program: &impl Program,
        msg: usize,
        len: usize,
        stop: impl Fn() -> bool,
    ) -> Result<usize> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(libc::EBADF),
            false => end::recv_soon(&Of(self, program), msg, len, stop),
        }
    }

    /// Sleeps until there is something to receive, or it is over, which whoever receives is told once nothing is left. Others
    /// may receive meanwhile: then there is nothing.
    pub fn wait_readable(&self, program: &impl Program) -> Result {
        let end = Of(self, program);
        match end.over(0) {
            Some(_) => Ok(()),
            None => end.sleep(Bell::Readable, (0, 0)),
        }
    }
}

/// An end, and its program.
struct Of<'a, P>(&'a OnHost, &'a P);

impl<P: Program> End for Of<'_, P> {
    fn lanes(&self) -> (&Lanes, usize) {
        (&self.0.lanes, self.0.side)
    }

    fn over(&self, closed: c_int) -> Option<c_int> {
        match self.0.closed.load(Ordering::SeqCst) {
            true => Some(closed),
            false => self.0.is_over().then_some(libc::ECONNRESET),
        }
    }

    fn check(&self, address: usize, len: usize, writes: bool) -> Result {
        self.1.check(address, len, writes)
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize) -> bool {
        // SAFETY: one of both is in a ring, as the caller says, and `check` has found the other. If the program unmaps it
        // meanwhile it is as wrong as with memcpy(3).
        unsafe { ptr::copy(from, to, len) };
        true
    }

    fn tell(&self, bell: Bell) {
        match &self.0.peer {
            Some(peer) => show(peer, bell),
            None => self.1.ring(bell),
        }
    }

    fn show(&self, bell: Bell) {
        show(&self.0.own, bell);
    }

    fn hide(&self, bell: Bell) -> Option<impl Fn()> {
        Some(move || match bell {
            Bell::Readable => drain(&self.0.descriptor),
            Bell::Writable => {
                let _ = send(&self.0.descriptor, &FILLING, flags());
            }
        })
    }

    fn sleep(&self, bell: Bell, _memory: (usize, usize)) -> Result {
        let event = match bell {
            Bell::Readable => PollFlags::IN,
            Bell::Writable => PollFlags::OUT,
        };
        let mut fds = [PollFd::new(&self.0.descriptor, event)];
        let is_gone = match poll(&mut fds, Some(&ASKED)) {
            Err(Errno::INTR) => return Err(libc::EINTR),
            Err(errno) => return Err(errno.raw_os_error()),
            Ok(0) => !self.1.has_node(),
            Ok(_) => fds[0].revents().contains(PollFlags::HUP),
        };
        if is_gone {
            self.0.gone.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    fn relax() {
        // On one processor the other side has its turn.
        std::thread::yield_now();
    }
}

/// Has the descriptor of which this is the other end show it.
fn show(socket: &OwnedFd, bell: Bell) {
    match bell {
        Bell::Readable => {
            let _ = send(socket, &[0], flags());
        }
        Bell::Writable => drain(socket),
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
