//! Messages between two host programs without the node: memory that both ends of a connection have
//! mapped, with a ring of bytes for each direction.
//!
//! ```text
//! sender                                     receiver
//!                                            recv: limit = head + what it wants + QUEUE_BYTES
//! send: bytes up to `limit` into the ring
//!       tail --------------------------->    takes bytes up to `tail`
//!            <---------------------------    head
//!       a byte into its descriptor ----->    .. if it is not in recv and had none: poll(2)
//!            <---------------------------    the filling out of the other's descriptor, likewise
//! node:      ended = 1, then shutdown(2) of the descriptor, when the peer is gone
//! ```
//!
//! A receiver that waits for bytes has room for them, so a stream of any length flows; without one there is
//! room for [`QUEUE_BYTES`], as scif_send(3) has it.
//!
//! What must stay true: nothing that the other side writes here leads out of the mapping, or makes anybody
//! wait for ever who would not for a peer that does nothing. While no call is under way, a descriptor is
//! ready for what the endpoint is.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering, fence},
    time::{Duration, Instant},
};

use snaprig_wire::scif::{PAGE, QUEUE_BYTES};

use super::shared::SharedMemory;

/// Bytes of a direction's ring: a power of two.
pub const RING_BYTES: u32 = 128 << 10;
/// What makes a descriptor not ready to be written: enough for the smallest send buffer that the kernel gives.
pub const FILLING: [u8; 2048] = [0; 2048];
/// Room without a reader.
const QUEUE: u32 = QUEUE_BYTES as u32;
const WHOLE_BYTES: usize = PAGE as usize + 2 * RING_BYTES as usize;
/// Who is about to change a descriptor does so within this time, unless it died.
const ANNOUNCED_WITHIN: Duration = Duration::from_millis(20);

#[repr(C, align(64))]
struct Sender {
    tail: AtomicU32,
    announcing: AtomicU32,
    inside: AtomicU32,
}

#[repr(C, align(64))]
struct Receiver {
    head: AtomicU32,
    limit: AtomicU32,
    announcing: AtomicU32,
    inside: AtomicU32,
}

#[repr(C, align(64))]
struct Shown {
    readable: AtomicU32,
    writable: AtomicU32,
}

#[repr(C)]
struct Control {
    sender: Sender,
    receiver: Receiver,
    shown: Shown,
}

#[repr(C)]
struct Page {
    lanes: [Control; 2],
    ended: [AtomicU32; 2],
}

/// The memory of a connection, mapped.
pub struct Lanes(SharedMemory);

/// One direction.
#[derive(Clone, Copy)]
pub struct Lane<'a> {
    control: &'a Control,
    ring: NonNull<u8>,
}

/// What one side waits for and the other brings about, and whether its descriptor shows it.
#[derive(Clone, Copy)]
pub struct Gate<'a> {
    /// Its owner is in a call, and looks before it leaves.
    inside: &'a AtomicU32,
    /// The other is at it.
    announcing: &'a AtomicU32,
    shown: &'a AtomicU32,
}

impl Lanes {
    /// Of a new connection, and the file to map it from.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let (memory, file) = SharedMemory::create("scif-lanes", WHOLE_BYTES)?;
        let lanes = Self(memory);
        for lane in &lanes.page().lanes {
            lane.receiver.limit.store(QUEUE, Ordering::Relaxed);
            lane.shown.writable.store(1, Ordering::Relaxed);
        }
        Ok((lanes, file))
    }

    /// Of a file that the node made.
    pub fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        SharedMemory::map(file, WHOLE_BYTES).map(Self)
    }

    /// Where it is mapped, and how much.
    pub fn range(&self) -> (usize, usize) {
        self.0.range()
    }

    fn page(&self) -> &Page {
        const { assert!(size_of::<Page>() <= PAGE as usize) };
        // SAFETY: the mapping is at least a page, which is not smaller than `Page`, begins at one, and lives as long as
        // `self`; `Page` has atomics alone, so any bytes are a value and others may change them at any time.
        unsafe { self.0.base().cast::<Page>().as_ref() }
    }

    /// What this side (0 or 1) sends on.
    pub fn lane(&self, side: usize) -> Lane<'_> {
        let side = side & 1;
        // SAFETY: `side` is 0 or 1, and the mapping is a page and two rings long.
        let ring = unsafe {
            self.0
                .base()
                .add(PAGE as usize + side * RING_BYTES as usize)
        };
        let control = &self.page().lanes[side];
        Lane { control, ring }
    }

    /// The peer of this side is gone.
    pub fn end(&self, side: usize) {
        self.page().ended[side & 1].store(1, Ordering::SeqCst);
    }

    /// Whether it is.
    pub fn is_over(&self, side: usize) -> bool {
        self.page().ended[side & 1].load(Ordering::SeqCst) != 0
    }

    /// What poll(2) says of this side's sending and receiving.
    pub fn mask(&self, side: usize) -> i16 {
        let when = |is: bool, mask: i16| if is { mask } else { 0 };
        when(self.lane(side).room() > 0, libc::POLLOUT)
            | when(self.lane(side + 1).available() > 0, libc::POLLIN)
    }
}

impl<'a> Lane<'a> {
    /// Bytes that may be put.
    pub fn room(self) -> u32 {
        let Control {
            sender, receiver, ..
        } = self.control;
        let limit = receiver.limit.load(Ordering::Acquire);
        let tail = sender.tail.load(Ordering::Acquire);
        let used = tail.wrapping_sub(receiver.head.load(Ordering::Acquire));
        let allowed = limit.wrapping_sub(tail).cast_signed().max(0);
        allowed.cast_unsigned().min(RING_BYTES.saturating_sub(used))
    }

    /// Bytes that may be taken.
    pub fn available(self) -> u32 {
        let tail = self.control.sender.tail.load(Ordering::Acquire);
        let head = self.control.receiver.head.load(Ordering::Acquire);
        tail.wrapping_sub(head).min(RING_BYTES)
    }

    /// The receiver's wait for bytes.
    pub fn readable(self) -> Gate<'a> {
        Gate {
            inside: &self.control.receiver.inside,
            announcing: &self.control.sender.announcing,
            shown: &self.control.shown.readable,
        }
    }

    /// The sender's wait for room.
    pub fn writable(self) -> Gate<'a> {
        Gate {
            inside: &self.control.sender.inside,
            announcing: &self.control.receiver.announcing,
            shown: &self.control.shown.writable,
        }
    }

    /// Puts bytes for which there is room; `show` puts a byte into the receiver's descriptor.
    ///
    /// # Safety
    /// `len` bytes can be read at `from`, and there is room for them.
    pub unsafe fn put(self, from: *const u8, len: u32, show: impl FnOnce()) {
        let tail = self.control.sender.tail.load(Ordering::Relaxed);
        let (first, rest) = parts(tail, len);
        // SAFETY: `parts` cuts `len` bytes where the ring ends, so both parts are inside the ring, and together no more
        // than the `len` bytes that the caller says can be read at `from`. The receiver does not look at them before
        // the tail is published.
        unsafe {
            ptr::copy(from, self.at(tail), first);
            ptr::copy(from.add(first), self.at(0), rest);
        }
        let publish = || {
            let tail = tail.wrapping_add(len);
            self.control.sender.tail.store(tail, Ordering::Release);
        };
        self.readable()
            .announce(publish, || self.available() > 0, show);
    }

    /// Takes bytes that are there; `show` takes the filling out of the sender's descriptor.
    ///
    /// # Safety
    /// `len` bytes can be written at `to`, and are there.
    pub unsafe fn take(self, to: *mut u8, len: u32, wanted: usize, show: impl FnOnce()) {
        let head = self.control.receiver.head.load(Ordering::Relaxed);
        let (first, rest) = parts(head, len);
        // SAFETY: `parts` cuts `len` bytes where the ring ends, so both parts are inside the ring, and together no more
        // than the `len` bytes that the caller says can be written at `to`. The sender does not write to them before
        // the head is published.
        unsafe {
            ptr::copy(self.at(head), to, first);
            ptr::copy(self.at(0), to.add(first), rest);
        }
        self.allow(head.wrapping_add(len), wanted, show);
    }

    /// A receiver waits for so many bytes more, or for none.
    pub fn want(self, wanted: usize, show: impl FnOnce()) {
        let head = self.control.receiver.head.load(Ordering::Relaxed);
        self.allow(head, wanted, show);
    }

    fn allow(self, head: u32, wanted: usize, show: impl FnOnce()) {
        let receiver = &self.control.receiver;
        let most = RING_BYTES - QUEUE;
        let wanted = u32::try_from(wanted).unwrap_or(most).min(most);
        let limit = head.wrapping_add(wanted).wrapping_add(QUEUE);
        let unchanged = receiver.head.load(Ordering::Relaxed) == head
            && receiver.limit.load(Ordering::Relaxed) == limit;
        if !unchanged {
            let publish = || {
                receiver.head.store(head, Ordering::Release);
                receiver.limit.store(limit, Ordering::Release);
            };
            self.writable().announce(publish, || self.room() > 0, show);
        }
    }

    fn at(self, position: u32) -> *mut u8 {
        // SAFETY: the remainder is less than the ring's length, and the ring is inside the mapping, which lives as long
        // as the lane.
        unsafe { self.ring.add((position % RING_BYTES) as usize).as_ptr() }
    }
}

/// What of `len` bytes from a position on is before the ring's end, and what is at its start.
fn parts(position: u32, len: u32) -> (usize, usize) {
    let len = len.min(RING_BYTES);
    let first = len.min(RING_BYTES - position % RING_BYTES);
    (first as usize, (len - first) as usize)
}

impl Gate<'_> {
    /// Its owner begins a call.
    pub fn enter(self) {
        self.inside.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The other side brings it about, or something that may be part of it.
    fn announce(self, publish: impl FnOnce(), is: impl Fn() -> bool, show: impl FnOnce()) {
        self.announcing.store(1, Ordering::Relaxed);
        publish();
        fence(Ordering::SeqCst);
        let is_inside = self.inside.load(Ordering::Relaxed) != 0;
        if !is_inside && is() && self.shown.load(Ordering::Relaxed) == 0 {
            self.shown.store(1, Ordering::SeqCst);
            show();
        }
        self.announcing.store(0, Ordering::Release);
    }

    /// Its owner ends the call, or will sleep: from here on its descriptor shows whether it `is`.
    pub fn leave(self, is: impl Fn() -> bool, show: impl Fn(), hide: impl Fn()) {
        self.inside.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if is() {
            if self.shown.swap(1, Ordering::SeqCst) == 0 {
                show();
            }
            return;
        }
        // What the other side is about to show may be over.
        let mut begun = None;
        while self.announcing.load(Ordering::Acquire) != 0 {
            if begun.get_or_insert_with(Instant::now).elapsed() > ANNOUNCED_WITHIN {
                break;
            }
            std::thread::yield_now();
        }
        if self.shown.swap(0, Ordering::SeqCst) != 0 {
            hide();
            fence(Ordering::SeqCst);
            // It came between.
            if is() {
                self.shown.store(1, Ordering::SeqCst);
                show();
            }
        }
    }
}
