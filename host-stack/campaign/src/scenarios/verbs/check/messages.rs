//! Every message comes once and in order: messages of queue pairs are numbered.

use snaprig_hca::{Opcode, Transport, types::completion_flags};

use super::{Ended, Outcome, Side};

/// How a run breaks it.
pub fn check(outcome: &Outcome<Ended>) -> Option<String> {
    outcome.end.each(once_in_order)
}

fn once_in_order(ended: &Ended, side: &Side, peer: &Side) -> Result<(), String> {
    if side.transport != Transport::Rc {
        return Ok(());
    }
    let sent = side.sent.iter().enumerate();
    let mut sent = sent.filter(|(_, sent)| sent.message.takes_receive());
    for done in peer.arrived() {
        let next = sent.next();
        let (id, sent) = next.ok_or_else(|| format!("{} came, and was not sent", done.wr_id))?;
        let immediate = sent.message.opcode != Opcode::Send;
        if immediate && done.immediate as usize != id
            || (done.flags & completion_flags::IMM != 0) != immediate
        {
            return Err(format!("{} came, not {id}", done.immediate));
        }
        if ended.lives(peer.process) {
            ended.is_whole(peer, done, sent, 0)?;
        }
    }
    let completed = |(id, _): &(usize, _)| *id < side.succeeded();
    match sent.find(completed).filter(|_| ended.lives(peer.process)) {
        Some((id, _)) => Err(format!("{id} completed, and did not come")),
        None => Ok(()),
    }
}
