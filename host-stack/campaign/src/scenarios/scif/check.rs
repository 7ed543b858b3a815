//! What is checked of SCIF when a run has ended.

use super::{Ended, Refusal, Side};
use crate::scenario::Outcome;

/// Every message comes once and in order: bytes of a stream tell where in it they belong.
pub fn messages(outcome: &Outcome<Ended>) -> Option<String> {
    outcome.end.each(streams)
}

/// Errors have a reason.
pub fn errors(outcome: &Outcome<Ended>) -> Option<String> {
    let mut refusals = outcome.end.refusals.iter();
    let odd = refusals.find(|refusal| !has_a_reason(refusal, outcome.faults > 0));
    odd.map(|refusal| format!("{refusal:?}"))
}

/// Bytes come once and in order, and all whose send is completed to a peer that lives and reads.
fn streams(side: &Side, peer: Option<&Side>) -> Result<(), String> {
    if let Some(wrong) = &side.wrong {
        return Err(wrong.clone());
    }
    let Some(peer) = peer.filter(|peer| side.drained && side.undisturbed && peer.undisturbed)
    else {
        return Ok(());
    };
    match side.came >= peer.sent {
        true => Ok(()),
        false => Err(format!("{} bytes were sent, {} came", peer.sent, side.came)),
    }
}

/// Whether a call on a SCIF endpoint may be told that (the manual pages of scif.h).
fn has_a_reason(refusal: &Refusal, faults: bool) -> bool {
    let Refusal {
        errno,
        closed,
        is_peer_gone,
        is_expected,
        ..
    } = *refusal;
    match (refusal.call, errno) {
        _ if is_expected => true,
        // It gave up, or closed the endpoint itself.
        (_, libc::EINTR) => true,
        (_, libc::EBADF) => closed,
        ("listen" | "accept", _) => false,
        // A port that an earlier endpoint has still.
        ("bind", errno) => [libc::EINVAL, libc::EADDRINUSE].contains(&errno),
        ("connect", errno) => {
            let lost = [libc::ENODEV, libc::ECONNRESET].contains(&errno) && is_peer_gone;
            lost || errno == libc::ECONNREFUSED
        }
        (_, libc::ECONNRESET) => is_peer_gone,
        ("register", libc::EADDRINUSE) => true,
        ("unregister", libc::ENXIO | libc::EINVAL) => true,
        ("RMA", libc::EIO) => faults,
        ("fence_signal", libc::ENXIO | libc::EACCES) => true,
        _ => false,
    }
}
