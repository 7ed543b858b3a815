//! What is to be seen of a program: at once, when a message comes, and at the end.

use snaprig_ckpt_ib::completions::{FLUSHED, SUCCESS};
use snaprig_hca::{Opcode, Transport, types::completed};

use super::{
    super::verbs::GRH_BYTES,
    invariants::{COMPLETIONS, CONNECTED, UNRELIABLE},
    program::{End, Had, Layout, Which, immediate},
};
use crate::scenario::invariant::{MESSAGES, RDMA};

/// What is broken, and how.
pub type Broken = (&'static str, String);

/// What may go wrong by the plan.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The network does nothing wrong, and nobody is late.
    pub is_calm: bool,
    /// Packets come twice, or overtake each other.
    pub is_strange: bool,
}

/// A message that has come: that it is one that was sent, whole.
fn is_message(layout: &Layout, from: Which, message: usize, had: &Had) -> Result<(), String> {
    let sent = &layout.messages(from)[message];
    let is_datagram = layout.transport(from) == Transport::Ud;
    let head = if is_datagram { GRH_BYTES } else { 0 };
    if had.length != sent.length + head {
        return Err(format!("{} bytes of {}", had.length, sent.length + head));
    }
    let has_immediate = matches!(sent.opcode, Opcode::SendImm | Opcode::WriteImm);
    if has_immediate && had.immediate != immediate(message) {
        return Err(format!("immediate data {:#x}", had.immediate));
    }
    let is_write = sent.opcode == Opcode::WriteImm;
    if is_write != (had.opcode == completed::RECEIVE_WRITE_IMM) {
        return Err(format!("opcode {}", had.opcode));
    }
    let data = had.data.get(head as usize..).unwrap_or_default();
    match is_write || data == layout.data(from, message) {
        true => Ok(()),
        false => Err("its data is another's".into()),
    }
}

/// What an end and its peer have seen when nothing is to come any more.
pub fn at_the_end(layout: &Layout, end: &End, peer: &End, weather: Weather) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut say = |invariant: &'static str, what: String| {
        let who = format!(
            "connection {} side {}",
            end.which.connection, end.which.side
        );
        broken.push((invariant, format!("{who}: {what}")));
    };
    let transport = layout.transport(end.which);
    let is_failed =
        end.done.iter().any(|(_, status)| *status != SUCCESS) || !end.flushed.is_empty();
    let is_peer_failed =
        peer.done.iter().any(|(_, status)| *status != SUCCESS) || !peer.flushed.is_empty();
    if transport == Transport::Rc && is_failed && weather.is_calm {
        say(CONNECTED, format!("it has failed: {:?}", end.done));
    }
    if let Err(what) = completions(layout, end) {
        say(COMPLETIONS, what);
    }
    let from = end.which.peer();
    let taking = layout.taking(from);
    match transport {
        Transport::Rc => {
            for (number, had) in end.had.iter().enumerate() {
                let Some(message) = taking.get(number) else {
                    say(MESSAGES, format!("message {number} was never sent"));
                    break;
                };
                if let Err(what) = is_message(layout, from, *message, had) {
                    say(MESSAGES, format!("message {message}: {what}"));
                    break;
                }
            }
            let sent = taking
                .iter()
                .filter(|message| **message < peer.sent)
                .count();
            if !is_failed && !is_peer_failed && end.had.len() < sent {
                say(MESSAGES, format!("{} of {sent} have come", end.had.len()));
            }
            if !is_failed
                && !is_peer_failed
                && let Err(what) = writes(layout, end)
            {
                say(RDMA, what);
            }
            if let Err(what) = brought(layout, end) {
                say(RDMA, what);
            }
        }
        _ => {
            let mut last = None;
            for had in &end.had {
                let message = (had.immediate & 0xffff) as usize;
                let is_one = taking.contains(&message) && message < peer.sent;
                // Parts of two writes may be in one place, so those are not looked at.
                if !is_one {
                    say(MESSAGES, format!("nobody sent {:#x}", had.immediate));
                } else if let Err(what) = is_message(layout, from, message, had) {
                    say(MESSAGES, format!("message {message}: {what}"));
                }
                if !weather.is_strange && last.is_some_and(|last| last >= message) {
                    say(MESSAGES, format!("{message} came after {last:?}"));
                }
                last = Some(message);
            }
            let sent = taking
                .iter()
                .filter(|message| **message < peer.sent)
                .count();
            // Whoever shares a receive queue may find it empty.
            let is_shared = layout.connection(end.which).shared;
            if weather.is_calm && !is_shared && end.had.len() < sent {
                say(UNRELIABLE, format!("{} of {sent} have come", end.had.len()));
            }
        }
    }
    broken
}

/// One for each signaled request, and for each from the first that failed; in order.
fn completions(layout: &Layout, end: &End) -> Result<(), String> {
    let messages = layout.messages(end.which);
    let failed = end.done.iter().find(|(_, status)| *status != SUCCESS);
    let failed = failed.map_or(u64::MAX, |(message, _)| *message);
    let due =
        (0..end.sent).filter(|message| messages[*message].signaled || *message as u64 >= failed);
    let due: Vec<_> = due.map(|message| message as u64).collect();
    let came: Vec<_> = end.done.iter().map(|(message, _)| *message).collect();
    if due != came {
        return Err(format!("of {due:?}, {came:?} have completed"));
    }
    let late = end.done.iter().skip_while(|(_, status)| *status == SUCCESS);
    if let Some((message, status)) = late.skip(1).find(|(_, status)| *status != FLUSHED) {
        return Err(format!("message {message} was not flushed: {status}"));
    }
    Ok(())
}

/// The peer's writes have each come once.
fn writes(layout: &Layout, end: &End) -> Result<(), String> {
    let from = end.which.peer();
    for (number, message) in layout.messages(from).iter().enumerate() {
        let is_write = matches!(message.opcode, Opcode::Write | Opcode::WriteImm);
        if is_write && message.length > 0 && end.found[number] != 1 {
            return Err(format!("write {number} came {} times", end.found[number]));
        }
    }
    Ok(())
}

/// Reads brought what was there; atomics each another number.
fn brought(layout: &Layout, end: &End) -> Result<(), String> {
    let mut counts = Vec::new();
    for (message, bytes) in &end.brought {
        match layout.messages(end.which)[*message].opcode {
            Opcode::FetchAdd => {
                let count = <[u8; 8]>::try_from(&bytes[..]).map(u64::from_ne_bytes);
                counts.push(count.map_err(|_| format!("message {message}: no number"))?);
            }
            _ if *bytes == layout.data(end.which, *message) => {}
            _ => return Err(format!("read {message} brought something else")),
        }
    }
    match counts.is_sorted_by(|a, b| a < b) {
        true => Ok(()),
        false => Err(format!("atomics fetched {counts:?}")),
    }
}
