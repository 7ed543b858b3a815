//! Sending and receiving by [`lanes`](crate::lanes): a call looks, spins for as long as a wake-up takes, then sleeps.
//!
//! What must stay true: one thread at a time sends on an endpoint, and one receives; what has been received is with the
//! program, or still in the lanes.

use std::{ffi::c_int, time::Instant};

use snaprig_wire::scif::Bell;

use crate::lanes::{Lane, Lanes};

/// A result, or an errno.
pub type Result<T = ()> = std::result::Result<T, c_int>;

/// Long messages go in parts, so that one side puts while the other takes.
const PART_BYTES: u32 = 16 << 10;
/// So much of the program's memory is looked at at once.
const CHECKED_BYTES: usize = 256 << 10;
/// Looks between two at the clock.
const LOOKS: u32 = 64;

/// One end of a connection that has lanes: what is done differently on the host and on a card.
pub trait End {
    /// The lanes, and which side of them this is.
    fn lanes(&self) -> (&Lanes, usize);
    /// Why nothing more can be done; `closed`: what that is if the program itself has closed the endpoint.
    fn over(&self, closed: c_int) -> Option<c_int>;
    /// Whether this is the program's memory, and can be written, or read.
    fn check(&self, address: usize, len: usize, writes: bool) -> Result;
    /// Copies from or to memory of the program, the other being in a ring; false: it is not there after all.
    ///
    /// # Safety
    /// What is in the ring is inside of it.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize) -> bool;
    /// Tells the peer, who does not look.
    fn tell(&self, bell: Bell);
    /// Whoever polls this endpoint is to see this.
    fn show(&self, bell: Bell);
    /// Nobody is to see it any more. None: nobody does unless it is so.
    fn hide(&self, bell: Bell) -> Option<impl Fn()>;
    /// Sleeps until there is what the bell is rung for, or it is over; EINTR, if a signal comes. Memory of the program that
    /// is to be read or written then: its address, and how much.
    fn sleep(&self, bell: Bell, memory: (usize, usize)) -> Result;
    /// Between two looks while it spins.
    fn relax();
}

/// scif_send(3): how much went.
pub fn send(end: &impl End, msg: usize, len: usize, block: bool) -> Result<usize> {
    let (lanes, side) = end.lanes();
    let lane = lanes.lane(side);
    lane.writable().enter();
    let (sent, why) = send_inside(end, lane, msg, len, block);
    leave_sending(end, lane);
    match why {
        Some(errno) if sent == 0 => Err(errno),
        _ => Ok(sent),
    }
}

fn send_inside<E: End>(
    end: &E,
    lane: Lane<'_>,
    msg: usize,
    len: usize,
    block: bool,
) -> (usize, Option<c_int>) {
    let (mut sent, mut checked) = (0, 0);
    loop {
        // scif_send(3).
        if let Some(errno) = end.over(libc::EINTR) {
            return (sent, Some(errno));
        }
        let room = lane.room().min(PART_BYTES);
        if sent == checked && checked < len {
            checked += (len - checked).min(CHECKED_BYTES);
            if let Err(errno) = end.check(msg + sent, checked - sent, false) {
                return (sent, Some(errno));
            }
        }
        let part = (checked - sent).min(room as usize);
        if part > 0 {
            let copy = |at, to, len| {
                let from = std::ptr::with_exposed_provenance(msg + sent + at);
                // SAFETY: `put` says that there is room for `len` bytes at `to`.
                unsafe { end.copy(from, to, len) }
            };
            if !lane.put(part as u32, copy, || end.tell(Bell::Readable)) {
                return (sent, Some(libc::EFAULT));
            }
            sent += part;
        } else if sent == len || !block {
            return (sent, None);
        } else if !spin(end, || lane.room() > 0 || end.over(0).is_some()) {
            leave_sending(end, lane);
            let waited = end.sleep(Bell::Writable, (msg + sent, len - sent));
            lane.writable().enter();
            if let Err(errno) = waited {
                return (sent, Some(errno));
            }
        }
    }
}

/// scif_recv(3): how much came: as much as is there, and no less than `least`, if it is not over before that.
pub fn recv(end: &impl End, msg: usize, len: usize, least: usize) -> Result<usize> {
    let (lanes, side) = end.lanes();
    let lane = lanes.lane(side + 1);
    lane.readable().enter();
    let (received, why) = recv_inside(end, lane, msg, len, least);
    if received < least {
        lane.want(0, || end.tell(Bell::Writable));
    }
    leave_receiving(end, lane);
    match why {
        Some(errno) if received == 0 => Err(errno),
        _ => Ok(received),
    }
}

/// What is there, or comes within the time that [`recv`] spins; nothing, if it does not, or this is to `stop`.
pub fn recv_soon(end: &impl End, msg: usize, len: usize, stop: impl Fn() -> bool) -> Result<usize> {
    let (lanes, side) = end.lanes();
    let lane = lanes.lane(side + 1);
    lane.readable().enter();
    spin(end, || {
        lane.available() > 0 || end.over(0).is_some() || stop()
    });
    let (received, why) = recv_inside(end, lane, msg, len, 0);
    leave_receiving(end, lane);
    match why {
        Some(errno) if received == 0 => Err(errno),
        _ => Ok(received),
    }
}

fn recv_inside<E: End>(
    end: &E,
    lane: Lane<'_>,
    msg: usize,
    len: usize,
    least: usize,
) -> (usize, Option<c_int>) {
    let (mut received, mut checked) = (0, 0);
    let mut interrupted = false;
    while received < len {
        let over = end.over(libc::EBADF);
        let there = lane.available().min(PART_BYTES);
        // What has been received cannot be put back.
        if received == checked {
            checked += (len - checked).min(CHECKED_BYTES);
            if let Err(errno) = end.check(msg + received, checked - received, true) {
                return (received, Some(errno));
            }
        }
        let part = (checked - received).min(there as usize);
        if part > 0 {
            let wanted = least.saturating_sub(received + part);
            let copy = |at, from, len| {
                let to = std::ptr::with_exposed_provenance_mut(msg + received + at);
                // SAFETY: `take` says that there are `len` bytes at `from`.
                unsafe { end.copy(from, to, len) }
            };
            if !lane.take(part as u32, wanted, copy, || end.tell(Bell::Writable)) {
                return (received, Some(libc::EFAULT));
            }
            received += part;
            continue;
        }
        match over {
            _ if interrupted => return (received, Some(libc::EINTR)),
            Some(errno) => return (received, Some(errno)),
            None if received >= least => break,
            None => {}
        }
        // Room for all that it waits for.
        lane.want(least - received, || end.tell(Bell::Writable));
        if !spin(end, || lane.available() > 0 || end.over(0).is_some()) {
            leave_receiving(end, lane);
            let waited = end.sleep(Bell::Readable, (msg + received, len - received));
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

fn leave_sending(end: &impl End, lane: Lane<'_>) {
    let is = || lane.room() > 0 || end.over(0).is_some();
    let hide = end.hide(Bell::Writable);
    lane.writable().leave(is, || end.show(Bell::Writable), hide);
}

fn leave_receiving(end: &impl End, lane: Lane<'_>) {
    let hide = end.hide(Bell::Readable);
    lane.readable()
        .leave(|| lane.available() > 0, || end.show(Bell::Readable), hide);
}

/// Looks until it `is`, or it has taken too long.
fn spin<E: End>(end: &E, is: impl Fn() -> bool) -> bool {
    let (begun, most) = (Instant::now(), end.lanes().0.spin());
    loop {
        for _ in 0..LOOKS {
            if is() {
                return true;
            }
            std::hint::spin_loop();
        }
        if begun.elapsed() > most {
            return false;
        }
        E::relax();
    }
}
