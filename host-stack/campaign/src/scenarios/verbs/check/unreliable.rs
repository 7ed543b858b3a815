//! A message of an unreliable service is whole or not there, and, unless packets overtake each other,
//! in order.

use snaprig_hca::Transport;

use super::{Ended, GRH_BYTES, Outcome, Side};

/// How a run breaks it.
pub fn check(outcome: &Outcome<Ended>) -> Option<String> {
    outcome.end.each(whole)
}

fn whole(ended: &Ended, side: &Side, peer: &Side) -> Result<(), String> {
    if side.transport == Transport::Rc || !ended.lives(peer.process) {
        return Ok(());
    }
    let head = match side.transport {
        Transport::Ud => GRH_BYTES,
        _ => 0,
    };
    let mut last = None;
    for done in peer.arrived() {
        let id = done.immediate as usize;
        let sent = side.sent.get(id);
        let sent = sent.ok_or_else(|| format!("{id} came, and was not sent"))?;
        ended.is_whole(peer, done, sent, head)?;
        if !ended.strange && last.is_some_and(|last| last >= id) {
            return Err(format!("{id} came after {last:?}"));
        }
        last = Some(id);
    }
    Ok(())
}
