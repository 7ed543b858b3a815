//! What an RDMA write of a queue pair wrote is there once it is completed, and what a read read is here.

use snaprig_hca::{Opcode, Transport};

use super::{Ended, Outcome, Side};

/// How a run breaks it.
pub fn check(outcome: &Outcome<Ended>) -> Option<String> {
    outcome.end.each(exact)
}

fn exact(ended: &Ended, side: &Side, peer: &Side) -> Result<(), String> {
    if side.transport != Transport::Rc || !ended.lives(peer.process) {
        return Ok(());
    }
    for (id, sent) in side.sent[..side.succeeded()].iter().enumerate() {
        let (process, at) = match sent.message.opcode {
            Opcode::Write | Opcode::WriteImm => (peer.process, sent.remote),
            Opcode::Read => (side.process, sent.local),
            _ => continue,
        };
        let data = sent.data();
        if ended.get(process, at, data.len()) != data {
            return Err(format!(
                "{:?} {id} is completed, and not there",
                sent.message.opcode
            ));
        }
    }
    Ok(())
}
