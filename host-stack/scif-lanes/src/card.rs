//! A program of a card: its lanes are the mapping of its endpoint's file at [`ioctl::LANES`](scif::LANES).
//!
//! What must stay true: no system call is made while the peer is awake: one takes longer than a message. So a bad address
//! of the program's is found by the copy itself, which the card's kernel ends ([`snaprig_wire::guarded`]).

use std::{
    arch::asm,
    ffi::c_int,
    os::fd::{BorrowedFd, RawFd},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use snaprig_wire::scif::{Bell, ioctl as scif};

use crate::{
    end::{self, End, Result},
    lanes::Lanes,
};

/// An end that is a program of a card.
pub struct OnCard {
    epd: RawFd,
    side: usize,
    /// None: there are none.
    lanes: OnceLock<Option<Lanes>>,
    closed: AtomicBool,
    sending: Mutex<()>,
    receiving: Mutex<()>,
}

/// The program takes lanes, on connections that are made or accepted by this endpoint.
pub fn be_willing(epd: RawFd) {
    // A driver that knows of none has the nodes do it.
    let _ = ask(epd, scif::WILLING, 0);
}

impl OnCard {
    /// Of an endpoint that has connected, or is about to (side 0), or was accepted (side 1). It stays open as long as this is
    /// used.
    pub fn new(epd: RawFd, side: usize) -> Self {
        Self {
            epd,
            side,
            lanes: OnceLock::new(),
            closed: AtomicBool::new(false),
            sending: Mutex::default(),
            receiving: Mutex::default(),
        }
    }

    /// Whether the connection has lanes; asked when it is there.
    pub fn is_there(&self) -> bool {
        self.mapped().is_some()
    }

    fn mapped(&self) -> Option<&Lanes> {
        let map = || {
            // SAFETY: the descriptor is the program's, and is used for this call alone, which fails if it is closed.
            let file = unsafe { BorrowedFd::borrow_raw(self.epd) };
            Lanes::map(file, scif::LANES).ok()
        };
        self.lanes.get_or_init(map).as_ref()
    }

    /// scif_send(3), on a connection that has lanes.
    pub fn send(&self, msg: usize, len: usize, block: bool) -> Result<usize> {
        let _turn = lock(&self.sending);
        end::send(self, msg, len, block)
    }

    /// [`end::recv`], on a connection that has lanes.
    pub fn recv(&self, msg: usize, len: usize, least: usize) -> Result<usize> {
        let _turn = lock(&self.receiving);
        end::recv(self, msg, len, least)
    }

    /// [`end::recv_soon`], on a connection that has lanes.
    pub fn recv_soon(&self, msg: usize, len: usize) -> Result<usize> {
        let _turn = lock(&self.receiving);
        end::recv_soon(self, msg, len, || false)
    }

    /// The program closes the endpoint: calls end.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }
}

impl End for OnCard {
    fn lanes(&self) -> (&Lanes, usize) {
        let lanes = self.mapped();
        (lanes.expect("what was found has lanes"), self.side)
    }

    fn over(&self, closed: c_int) -> Option<c_int> {
        match self.closed.load(Ordering::Relaxed) {
            true => Some(closed),
            false => self
                .lanes()
                .0
                .is_over(self.side)
                .then_some(libc::ECONNRESET),
        }
    }

    fn check(&self, _address: usize, _len: usize, _writes: bool) -> Result {
        Ok(())
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize) -> bool {
        let left: usize;
        // SAFETY: one of both is in a ring, as the caller says. The other is memory of the program, which has said so; where
        // it is none, the kernel ends the copy before it has written anything there, and says how much is left. The
        // registers that it changes are named, the stack and the flags are as before.
        unsafe {
            asm!(
                "rep movsb",
                ".byte 0x0f, 0x1f, 0x80",
                ".ascii \"SNAP\"",
                inout("rcx") len => left,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags),
            );
        }
        left == 0
    }

    fn tell(&self, bell: Bell) {
        let (lanes, side) = self.lanes();
        let bell = match bell {
            Bell::Readable => {
                lanes.lane(side).readable().ring();
                scif::RING_READABLE
            }
            Bell::Writable => {
                lanes.lane(side + 1).writable().ring();
                scif::RING_WRITABLE
            }
        };
        // If the connection is over there is nobody to be told.
        let _ = ask(self.epd, scif::RING, bell);
    }

    fn show(&self, _bell: Bell) {
        let _ = ask(self.epd, scif::RING, scif::RING_OWN);
    }

    fn hide(&self, _bell: Bell) -> Option<impl Fn()> {
        // The driver looks itself.
        None::<fn()>
    }

    fn sleep(&self, bell: Bell, (address, len): (usize, usize)) -> Result {
        let event = match bell {
            Bell::Readable => libc::POLLIN,
            Bell::Writable => libc::POLLOUT,
        };
        let mut message = scif::Message {
            address: address as u64,
            len: c_int::try_from(len).unwrap_or(c_int::MAX),
            flags: event.into(),
            out_len: 0,
        };
        // SAFETY: the argument is what the number of this call says, and is borrowed as long; an address in it is the
        // program's, and the driver answers a bad one with EFAULT.
        checked(unsafe { libc::ioctl(self.epd, scif::WAIT.into(), &raw mut message) })
    }

    fn relax() {
        std::hint::spin_loop();
    }
}

/// A call of the driver's whose argument is a number.
fn ask(epd: RawFd, request: u32, argument: c_int) -> Result {
    // SAFETY: the argument is a number, so that the driver is given no address; the descriptor is checked by the kernel.
    checked(unsafe { libc::ioctl(epd, request.into(), argument) })
}

fn checked(result: c_int) -> Result {
    match result {
        // SAFETY: __errno_location(3) returns the place of this thread's own errno, which is always there and which no
        // other thread uses.
        ..0 => Err(unsafe { *libc::__errno_location() }),
        _ => Ok(()),
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
