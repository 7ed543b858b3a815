//! Errors are reported: who fails says why, nobody fails without a fault, and a fault of a disk or a
//! service does not pass in silence.

use snaprig_hca::{Completion, Status, Transport};

use crate::{
    model::{Ending, Outcome},
    scif::Refusal,
    verbs::{Ended, Side},
};

/// Its name.
pub const NAME: &str = "errors are reported";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    let mut told = false;
    for app in &outcome.apps {
        if app.errors.iter().any(String::is_empty) {
            return Some("an error says nothing".into());
        }
        if let Ending::Failed(why) = &app.ending {
            if outcome.faults == 0 {
                return Some(format!("nothing went wrong, but it failed: {why}"));
            }
            told = true;
        }
        told |= !app.errors.is_empty();
    }
    let silent = outcome.loud_faults > 0 && !told;
    let silent =
        silent.then(|| "a disk or a service failed, and no call was told of an error".into());
    let verbs = &outcome.verbs;
    silent
        .or_else(|| verbs.each(of_their_kind))
        .or_else(|| {
            verbs
                .each(none_without_fault)
                .filter(|_| outcome.faults == 0)
        })
        .or_else(|| {
            let mut refusals = outcome.scif.refusals.iter();
            let odd = refusals.find(|refusal| !has_a_reason(refusal, outcome.faults > 0));
            odd.map(|refusal| format!("{refusal:?}"))
        })
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

/// Nothing but a lost peer fails a request.
fn of_their_kind(ended: &Ended, side: &Side, peer: &Side) -> Result<(), String> {
    use Status::*;
    let kinds = [Success, RetryExceeded, RnrRetryExceeded, Flushed];
    let odd = |done: &&Completion| !kinds.contains(&done.status) && ended.lives(peer.process);
    let mut all = side.send_done.iter().chain(&side.receive_done);
    match all.find(odd) {
        Some(done) => Err(format!("{done:?}")),
        None => Ok(()),
    }
}

/// Everything comes, and completes, even what is unreliable: where nothing goes another way.
fn none_without_fault(ended: &Ended, side: &Side, peer: &Side) -> Result<(), String> {
    if let Some(failed) = side.first_failed().filter(|_| !side.impatient) {
        return Err(format!("nothing went wrong, but {failed:?}"));
    }
    let wanted = side.sent.iter().filter(|sent| sent.message.takes_receive());
    let (came, wanted) = (peer.arrived().count(), wanted.count());
    let may_fail = side.impatient && side.transport == Transport::Rc || ended.strange;
    match came == wanted || may_fail {
        true => Ok(()),
        false => Err(format!(
            "nothing went wrong, but {came} of {wanted} messages came"
        )),
    }
}
