//! scif_poll: what poll(2) does, with the driver's events, which sockets do not have all of.

use std::{
    ffi::c_int,
    time::{Duration, Instant},
};

use snaprig_scif::host::protocol::{Answer, Call};

use super::{endpoint::Endpoint, find};
use crate::ffi::Result;

/// What is reported unasked.
const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// `timeout_ms` below 0 is for ever.
pub(crate) fn poll(epds: &mut [libc::pollfd], timeout_ms: c_int) -> Result<c_int> {
    let begun = Instant::now();
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    loop {
        let count = look(epds)?;
        let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        if count > 0 || left.is_some_and(|left| left.is_zero()) {
            return Ok(count);
        }
        let left = left.map_or(-1, |left| {
            c_int::try_from(left.as_millis()).map_or(c_int::MAX, |ms| ms + 1)
        });
        let mut fds = epds.to_vec();
        // SAFETY: `fds` is a vector of this function's own, and its own length is passed; poll(2)
        // writes to the `revents` of its entries, during the call.
        let polled = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, left) };
        if polled < 0 {
            // SAFETY: __errno_location(3) returns the place of this thread's own errno, which is
            // always there and which no other thread uses.
            return Err(unsafe { *libc::__errno_location() });
        }
        if polled == 0 {
            epds.iter_mut().for_each(|epd| epd.revents = 0);
            return Ok(0);
        }
    }
}

/// What each is ready for now.
fn look(epds: &mut [libc::pollfd]) -> Result<c_int> {
    let mut count = 0;
    for epd in epds {
        epd.revents = match epd.fd {
            ..0 => 0,
            _ => match find(epd.fd) {
                Ok(endpoint) => mask(&endpoint) & (epd.events | ALWAYS),
                // No endpoint, but something that can be polled.
                Err(libc::ENOTTY) => {
                    let mut one = *epd;
                    // SAFETY: `one` is on this stack, and the count is 1; poll(2) writes to its
                    // `revents`, during the call.
                    match unsafe { libc::poll(&raw mut one, 1, 0) } {
                        ..0 => libc::POLLNVAL,
                        _ => one.revents,
                    }
                }
                Err(_) => libc::POLLNVAL,
            },
        };
        count += c_int::from(epd.revents != 0);
    }
    Ok(count)
}

fn mask(endpoint: &Endpoint) -> i16 {
    match endpoint.known_direct() {
        Some(direct) => direct.mask(),
        // The node knows as well.
        None => match endpoint.call(Call::Mask) {
            Ok(Answer::Mask(mask)) => mask,
            _ => libc::POLLERR,
        },
    }
}
