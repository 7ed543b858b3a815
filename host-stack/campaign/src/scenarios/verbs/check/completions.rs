//! Completions come one for one and in order: one for each signaled request, and for each request
//! from the first that failed on; one for each receive, flushed ones, too.

use super::{Ended, Outcome, Side};

/// How a run breaks it.
pub fn check(outcome: &Outcome<Ended>) -> Option<String> {
    let verbs = &outcome.end;
    verbs.each(sends).or_else(|| verbs.each(receives))
}

fn sends(_: &Ended, side: &Side, _: &Side) -> Result<(), String> {
    let succeeded = side.succeeded();
    let sent = side.sent.iter().enumerate();
    let expected = sent.filter(|(id, sent)| sent.message.signaled || *id >= succeeded);
    let expected: Vec<_> = expected.map(|(id, _)| id as u64).collect();
    let done: Vec<_> = side.send_done.iter().map(|done| done.wr_id).collect();
    (done == expected)
        .then_some(())
        .ok_or_else(|| format!("completed {done:?}, not {expected:?}"))
}

fn receives(_: &Ended, side: &Side, _: &Side) -> Result<(), String> {
    let done: Vec<_> = side.receive_done.iter().map(|done| done.wr_id).collect();
    let expected: Vec<_> = (0..side.receives.len() as u64).collect();
    // What is left in a shared queue stays there.
    let fits = done == expected || side.shared && expected.starts_with(&done);
    fits.then_some(())
        .ok_or_else(|| format!("completed {done:?} of {} receives", expected.len()))
}
