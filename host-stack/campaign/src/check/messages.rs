//! Every message comes once and in order. Run functions count, so what they return says which ran,
//! how often, and in which order; messages of queue pairs are numbered, and bytes of a SCIF stream tell
//! where in it they belong.

use snaprig_hca::{Opcode, Transport, types::completion_flags};

use crate::{
    model::Outcome,
    scif,
    verbs::{Ended, Side},
};

/// Its name.
pub const NAME: &str = "every message once and in order";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    let pipelines = outcome.apps.iter().flat_map(|app| &app.results);
    let wrong = pipelines.clone().find(|results| {
        let told = results.iter().flatten();
        !told.zip(1..).all(|(result, expected)| *result == expected)
    });
    super::seen(outcome, NAME)
        .or(wrong.map(|results| format!("results are {results:?}")))
        .or_else(|| outcome.verbs.each(once_in_order))
        .or_else(|| outcome.scif.each(streams))
}

/// Bytes come once and in order, and all whose send is completed to a peer that lives and reads.
fn streams(side: &scif::Side, peer: Option<&scif::Side>) -> Result<(), String> {
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
