//! Errors are reported: nothing but a lost peer fails a request, and nothing does without a fault.

use snaprig_hca::{Completion, Status, Transport};

use super::{Ended, Outcome, Side};

/// How a run breaks it.
pub fn check(outcome: &Outcome<Ended>) -> Option<String> {
    let end = &outcome.end;
    end.each(of_their_kind).or_else(|| match outcome.faults {
        0 => end.each(none_without_fault),
        _ => None,
    })
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
