//! Messages between two programs without the nodes: memory that both ends of a connection have mapped, with a ring of
//! bytes for each direction. It is a file of the host's, if both are programs of the host, and else a card's memory.
//!
//! ```text
//! sender                                     receiver
//!                                            recv: limit = head + what it wants + QUEUE_BYTES
//! send: bytes up to `limit` into the ring
//!       tail --------------------------->    takes bytes up to `tail`
//!            <---------------------------    head
//!       "there are bytes" -------------->    .. if it is not in recv and was not told: poll(2)
//!            <---------------------------    "there is room", likewise
//! node:      live = 0, then it wakes who sleeps, when the peer is gone
//! ```
//!
//! How the other is told: a program of the host has a descriptor, and who is on the host, too, puts a byte into it, or takes
//! the filling out of it. Between host and card a [`Bell`](snaprig_wire::scif::Bell) goes by the nodes: a host's node does
//! that to the descriptor then, and a card's wakes who waits there.
//!
//! A receiver that waits for bytes has room for them, so a stream of any length flows; without one there is
//! room for [`QUEUE_BYTES`], as scif_send(3) has it.
//!
//! What must stay true: nothing that the other side writes here leads out of the memory, or makes anybody
//! wait for ever who would not for a peer that does nothing. While no call is under way, a descriptor is
//! ready for what the endpoint is. Zeros are lanes that have ended: what is left to a process that was captured.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering, fence},
    },
    thread,
    time::{Duration, Instant},
};

use snaprig_wire::scif::{LANE_BYTES, LANES_BYTES, PAGE, QUEUE_BYTES};

use crate::shared::SharedMemory;

/// Bytes of a direction's ring: a power of two.
pub const RING_BYTES: u32 = LANE_BYTES as u32;
/// What makes a descriptor not ready to be written: enough for the smallest send buffer that the kernel gives.
pub const FILLING: [u8; 2048] = [0; 2048];
/// Room without a reader.
const QUEUE: u32 = QUEUE_BYTES as u32;
const WHOLE_BYTES: usize = LANES_BYTES as usize;
/// About what a wake-up takes.
const SPIN_MICROS: u32 = 50;
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
    /// Bells that a node has not heard yet.
    ringing: AtomicU32,
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
    live: [AtomicU32; 2],
    /// How long to look before sleeping, in microseconds, as who has made them finds the machine.
    spin_micros: AtomicU32,
}

/// How long to look before sleeping on this machine. The first call reads files, which a sandbox may not have.
pub fn spin_micros() -> u32 {
    static HERE: LazyLock<u32> = LazyLock::new(|| {
        // On one processor the other side does nothing meanwhile.
        let has_several = thread::available_parallelism().is_ok_and(|all| all.get() > 1);
        if has_several { SPIN_MICROS } else { 0 }
    });
    *HERE
}

/// The memory of a connection, mapped.
pub struct Lanes {
    base: NonNull<u8>,
    /// It stays as long as this does.
    _memory: Box<dyn Send + Sync>,
}

// SAFETY: the memory is reached through atomics and raw copies alone, also by other processes at any time; no plain
// reference into it is made, and nothing about it belongs to a thread.
unsafe impl Send for Lanes {}
// SAFETY: as above.
unsafe impl Sync for Lanes {}

/// The peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over;

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
    ringing: &'a AtomicU32,
}

impl Lanes {
    /// Of a new connection, and the file to map it from.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let (memory, file) = SharedMemory::create("scif-lanes", WHOLE_BYTES)?;
        let lanes = Self::of(memory);
        lanes.begin();
        Ok((lanes, file))
    }

    /// Of a file that has them `at` this offset.
    pub fn map(file: BorrowedFd<'_>, at: u64) -> io::Result<Self> {
        SharedMemory::map(file, at, WHOLE_BYTES).map(Self::of)
    }

    fn of(memory: SharedMemory) -> Self {
        Self {
            base: memory.base(),
            _memory: Box::new(memory),
        }
    }

    /// Those in memory of a card.
    ///
    /// # Safety
    /// [`LANES_BYTES`] from `base`, where a page begins, are mapped as long as `memory` lives, and nobody makes a reference
    /// into them.
    pub unsafe fn at(base: NonNull<u8>, memory: impl Send + Sync + 'static) -> Self {
        Self {
            base,
            _memory: Box::new(memory),
        }
    }

    /// Of zeros makes lanes of a new connection.
    pub fn begin(&self) {
        let page = self.page();
        for lane in &page.lanes {
            lane.receiver.limit.store(QUEUE, Ordering::Relaxed);
            lane.shown.writable.store(1, Ordering::Relaxed);
        }
        page.spin_micros.store(spin_micros(), Ordering::Relaxed);
        for live in &page.live {
            live.store(1, Ordering::Release);
        }
    }

    /// How long to look before sleeping.
    pub fn spin(&self) -> Duration {
        let micros = self.page().spin_micros.load(Ordering::Relaxed);
        Duration::from_micros(micros.min(SPIN_MICROS).into())
    }

    /// Where it is mapped, and how much.
    pub fn range(&self) -> (usize, usize) {
        (self.base.as_ptr().expose_provenance(), WHOLE_BYTES)
    }

    fn page(&self) -> &Page {
        const { assert!(size_of::<Page>() <= PAGE as usize) };
        // SAFETY: the mapping is at least a page, which is not smaller than `Page`, begins at one, and lives as long as
        // `self`; `Page` has atomics alone, so any bytes are a value and others may change them at any time.
        unsafe { self.base.cast::<Page>().as_ref() }
    }

    /// What this side (0 or 1) sends on.
    pub fn lane(&self, side: usize) -> Lane<'_> {
        let side = side & 1;
        // SAFETY: `side` is 0 or 1, and the mapping is a page and two rings long.
        let ring = unsafe { self.base.add(PAGE as usize + side * RING_BYTES as usize) };
        let control = &self.page().lanes[side];
        Lane { control, ring }
    }

    /// The peer of this side is gone.
    pub fn end(&self, side: usize) {
        self.page().live[side & 1].store(0, Ordering::SeqCst);
    }

    /// Whether it is.
    pub fn is_over(&self, side: usize) -> bool {
        self.page().live[side & 1].load(Ordering::SeqCst) == 0
    }

    /// Sends what there is room for, for who is woken elsewhere: nothing, if that is to be rung for. `wakes` who polls this
    /// side; `rings` says that the peer is to be told that there are bytes.
    pub fn send_some(
        &self,
        side: usize,
        bytes: &[u8],
        wakes: impl FnMut(),
        rings: &mut bool,
    ) -> Result<usize, Over> {
        if self.is_over(side) {
            return Err(Over);
        }
        let lane = self.lane(side);
        if lane.room() == 0 {
            lane.writable()
                .leave(|| lane.room() > 0, wakes, None::<fn()>);
        }
        let part = bytes.len().min(lane.room() as usize);
        let copy = |at: usize, to: *mut u8, len: usize| {
            let from = &bytes[at..at + len];
            // SAFETY: `put` says that there is room for `len` bytes at `to`, which are in the ring; `from` is as long.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, len) };
            true
        };
        if part > 0 {
            lane.put(part as u32, copy, || *rings = true);
        }
        Ok(part)
    }

    /// Receives what there is, for who is woken elsewhere, and waits if it `blocks`: nothing, if that is to be rung for. The rest
    /// is as for [`Lanes::send_some`], the other way round.
    pub fn receive_some(
        &self,
        side: usize,
        (max, blocks): (usize, bool),
        wakes: &mut dyn FnMut(),
        rings: &mut bool,
    ) -> Result<Vec<u8>, Over> {
        let lane = self.lane(side + 1);
        // What came before the end may still be read.
        let over = self.is_over(side);
        if lane.available() == 0 && blocks && !over {
            lane.want(max, || *rings = true);
        }
        let part = max.min(lane.available() as usize);
        let mut bytes = vec![0; part];
        if part > 0 {
            let copy = |at: usize, from: *const u8, len: usize| {
                let to = &mut bytes[at..at + len];
                // SAFETY: `take` says that there are `len` bytes at `from`, which are in the ring; `to` is as long.
                unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), len) };
                true
            };
            lane.take(part as u32, 0, copy, || *rings = true);
        }
        lane.readable()
            .leave(|| lane.available() > 0, &mut *wakes, None::<fn()>);
        match part == 0 {
            true if over => Err(Over),
            // They came after the first look.
            true if max > 0 && lane.available() > 0 => {
                self.receive_some(side, (max, blocks), wakes, rings)
            }
            _ => Ok(bytes),
        }
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
            ringing: &self.control.shown.ringing,
        }
    }

    /// The sender's wait for room.
    pub fn writable(self) -> Gate<'a> {
        Gate {
            inside: &self.control.sender.inside,
            announcing: &self.control.receiver.announcing,
            shown: &self.control.shown.writable,
            ringing: &self.control.shown.ringing,
        }
    }

    /// Puts bytes for which there is room; `copy` puts so many of them there, or cannot, and then none are put; `show` tells
    /// the receiver of them.
    pub fn put(
        self,
        len: u32,
        mut copy: impl FnMut(usize, *mut u8, usize) -> bool,
        show: impl FnOnce(),
    ) -> bool {
        let tail = self.control.sender.tail.load(Ordering::Relaxed);
        let (first, rest) = parts(tail, len);
        // The receiver does not look at them before the tail is published.
        if !copy(0, self.at(tail), first) || rest > 0 && !copy(first, self.at(0), rest) {
            return false;
        }
        let publish = || {
            let tail = tail.wrapping_add(len);
            self.control.sender.tail.store(tail, Ordering::Release);
        };
        self.readable()
            .announce(publish, || self.available() > 0, show);
        true
    }

    /// Takes bytes that are there; `copy` takes so many of them from there, or cannot, and then they stay; `show` tells the
    /// sender of the room.
    pub fn take(
        self,
        len: u32,
        wanted: usize,
        mut copy: impl FnMut(usize, *const u8, usize) -> bool,
        show: impl FnOnce(),
    ) -> bool {
        let head = self.control.receiver.head.load(Ordering::Relaxed);
        let (first, rest) = parts(head, len);
        // The sender does not write to them before the head is published.
        if !copy(0, self.at(head), first) || rest > 0 && !copy(first, self.at(0), rest) {
            return false;
        }
        self.allow(head.wrapping_add(len), wanted, show);
        true
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
    /// A bell is about to go by the nodes to a program of the host.
    pub fn ring(self) {
        self.ringing.fetch_add(1, Ordering::SeqCst);
    }

    /// A node has heard it, and has seen to the descriptor.
    pub fn rang(self) {
        // Whatever the other side has written.
        let less = |ringing: u32| Some(ringing.saturating_sub(1));
        let _ = self
            .ringing
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

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
    /// Without `hide` it has none.
    pub fn leave(self, is: impl Fn() -> bool, mut show: impl FnMut(), hide: Option<impl Fn()>) {
        self.inside.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if is() {
            if self.shown.swap(1, Ordering::SeqCst) == 0 {
                show();
            }
            return;
        }
        let Some(hide) = hide else {
            self.shown.store(0, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if is() {
                self.shown.store(1, Ordering::SeqCst);
                show();
            }
            return;
        };
        // What the other side, or the node for it, is about to show may be over.
        let mut begun = None;
        while self.announcing.load(Ordering::Acquire) != 0
            || self.ringing.load(Ordering::Acquire) != 0
        {
            if begun.get_or_insert_with(Instant::now).elapsed() > ANNOUNCED_WITHIN {
                break;
            }
            thread::yield_now();
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
