//! Atomic operations happen once and in order: each finds what the one before it left.

use snaprig_hca::Opcode;

use super::{Ended, Outcome, Side};

/// How a run breaks it.
pub fn check(outcome: &Outcome<Ended>) -> Option<String> {
    outcome.end.each(once_in_order)
}

fn once_in_order(ended: &Ended, side: &Side, peer: &Side) -> Result<(), String> {
    let number = |process, at| {
        let bytes = ended.get(process, at, 8).try_into();
        u64::from_ne_bytes(bytes.unwrap_or_default())
    };
    let sent = side.sent.iter().enumerate();
    let atomics = sent.filter(|(_, sent)| sent.message.opcode == Opcode::FetchAdd);
    let (done, rest): (Vec<_>, Vec<_>) = atomics.partition(|(id, _)| *id < side.succeeded());
    for ((id, sent), expected) in done.iter().zip(0..) {
        let before = number(side.process, sent.local);
        if before != expected {
            return Err(format!("{id} found {before}, not {expected}"));
        }
    }
    if !ended.lives(peer.process) {
        return Ok(());
    }
    let counter = number(peer.process, side.counter);
    let range = done.len() as u64..=(done.len() + rest.len()) as u64;
    let counted = range.contains(&counter).then_some(());
    counted.ok_or_else(|| format!("counted {counter}, not {range:?}"))
}
