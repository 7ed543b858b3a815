//! What must stay true.

use snaprig_hca::{Completion, Opcode, Status, Transport, types::completion_flags};

use crate::{
    plan::LONGEST,
    run::{GRH, Run, Sent, Side},
};

type Broken = Option<(&'static str, String)>;
type Check = fn(&Run, &Side, &Side) -> Result<(), String>;

/// When nothing moves any more.
pub fn at_rest(run: &Run, rested: bool) -> Broken {
    if !rested {
        return Some(("it comes to rest", "it does not".into()));
    }
    each(
        run,
        &[
            ("nobody waits for ever", nobody_waits),
            (
                "sends complete one for one, in order",
                sends_complete_in_order,
            ),
            (
                "nothing fails without a fault",
                nothing_fails_without_a_fault,
            ),
            (
                "failures are of the kinds that faults bring",
                failures_are_expected,
            ),
            (
                "what is reliable comes once and in order",
                reliable_once_in_order,
            ),
            ("what was written is there", written_is_there),
            ("what was read is here", read_is_here),
            ("atomics happen once and in order", atomics_once_in_order),
            (
                "what is unreliable is whole or not there",
                unreliable_is_whole,
            ),
        ],
    )
}

/// When everything was flushed.
pub fn at_end(run: &Run) -> Broken {
    each(
        run,
        &[(
            "receives complete one for one, in order",
            receives_complete_in_order,
        )],
    )
}

/// When everything was given back.
pub fn after_all(run: &Run) -> Broken {
    let left = run.world.control.borrow().in_use();
    (!left.is_empty()).then(|| ("nothing leaks", format!("{left:?}")))
}

fn each(run: &Run, checks: &[(&'static str, Check)]) -> Broken {
    for (number, sides) in run.sides.iter().enumerate() {
        for (me, peer) in [(0, 1), (1, 0)] {
            let (me, peer) = (&sides[me], &sides[peer]);
            if me.dead {
                continue;
            }
            for (name, check) in checks {
                if let Err(what) = check(run, me, peer) {
                    let transport = me.end.transport;
                    return Some((name, format!("connection {number}, {transport:?}: {what}")));
                }
            }
        }
    }
    None
}

/// Whether a send failed.
pub fn failed(side: &Side) -> bool {
    side.send_done
        .iter()
        .any(|done| done.status != Status::Success)
}

/// How many requests of the send queue succeeded, signaled or not: all before the first failure.
fn succeeded(side: &Side) -> usize {
    let first = side
        .send_done
        .iter()
        .find(|done| done.status != Status::Success);
    first.map_or(side.sent.len(), |done| done.wr_id as usize)
}

fn nobody_waits(run: &Run, me: &Side, _: &Side) -> Result<(), String> {
    let qp = run.world.memory.qp(me.end.index).expect("a queue pair");
    match run.world.hca(me.end.process).outstanding(qp) {
        0 => Ok(()),
        waiting => Err(format!("{waiting} sends wait")),
    }
}

fn sends_complete_in_order(_: &Run, me: &Side, _: &Side) -> Result<(), String> {
    let first_failed = succeeded(me);
    let expected = me
        .sent
        .iter()
        .enumerate()
        .filter(|(id, sent)| sent.message.signaled || *id >= first_failed);
    let expected: Vec<_> = expected.map(|(id, _)| id as u64).collect();
    let done: Vec<_> = me.send_done.iter().map(|done| done.wr_id).collect();
    if done == expected {
        Ok(())
    } else {
        Err(format!("completed {done:?}, not {expected:?}"))
    }
}

fn receives_complete_in_order(_: &Run, me: &Side, _: &Side) -> Result<(), String> {
    let done: Vec<_> = me.receive_done.iter().map(|done| done.wr_id).collect();
    let expected: Vec<_> = (0..me.receives.len() as u64).collect();
    // What is left in a shared queue stays there.
    let fits = done == expected || me.shared.is_some() && expected.starts_with(&done);
    if fits {
        Ok(())
    } else {
        Err(format!("completed {done:?} of {}", expected.len()))
    }
}

fn nothing_fails_without_a_fault(run: &Run, me: &Side, peer: &Side) -> Result<(), String> {
    let impatient = me.end.transport == Transport::Rc
        && run.plan.connections.iter().any(|c| c.link.rnr_retry < 7);
    if !run.plan.is_clean() || impatient {
        return Ok(());
    }
    if failed(me) {
        return Err(format!("{:?}", me.send_done.last()));
    }
    let wanted = me
        .sent
        .iter()
        .filter(|sent| sent.message.takes_receive())
        .count();
    let came = peer.receive_done.len();
    if came != wanted && !run.plan.switches {
        return Err(format!("{came} messages of {wanted} came"));
    }
    Ok(())
}

fn failures_are_expected(_: &Run, me: &Side, _: &Side) -> Result<(), String> {
    use Status::*;
    if me.peer_dead {
        return Ok(());
    }
    let fine = |done: &&Completion| {
        matches!(
            done.status,
            Success | RetryExceeded | RnrRetryExceeded | Flushed
        )
    };
    match me
        .send_done
        .iter()
        .chain(&me.receive_done)
        .find(|done| !fine(done))
    {
        Some(done) => Err(format!("{done:?}")),
        None => Ok(()),
    }
}

fn arrived(side: &Side) -> impl Iterator<Item = &Completion> {
    side.receive_done
        .iter()
        .filter(|done| done.status == Status::Success)
}

/// That a message is in the receive it came with, and nothing more.
fn is_whole(
    run: &Run,
    side: &Side,
    done: &Completion,
    sent: &Sent,
    head: u32,
) -> Result<(), String> {
    if done.length != sent.message.length + head {
        return Err(format!(
            "{} bytes, not {}",
            done.length,
            sent.message.length + head
        ));
    }
    let at = side.receives[done.wr_id as usize];
    let buffer = run
        .world
        .get(side.node.process, at, (LONGEST + GRH) as usize);
    let (data, rest) = buffer[head as usize..].split_at(sent.data.len());
    match sent.message.opcode {
        Opcode::WriteImm
            if side.end.transport != Transport::Uc && buffer.iter().any(|byte| *byte != 0) =>
        {
            Err("a write touched the receive".into())
        }
        Opcode::WriteImm => Ok(()),
        _ if data != sent.data => Err(format!("{:?} is damaged", sent.message)),
        // A receive of a message that was given up serves the next one.
        _ if side.end.transport != Transport::Uc && rest.iter().any(|byte| *byte != 0) => {
            Err("more than the message was written".into())
        }
        _ => Ok(()),
    }
}

fn reliable_once_in_order(run: &Run, me: &Side, peer: &Side) -> Result<(), String> {
    if me.end.transport != Transport::Rc {
        return Ok(());
    }
    let mut sent = me
        .sent
        .iter()
        .enumerate()
        .filter(|(_, sent)| sent.message.takes_receive());
    for done in arrived(peer) {
        let Some((id, message)) = sent.next() else {
            return Err(format!("{} came, and was not sent", done.wr_id));
        };
        let with_immediate = message.message.opcode != Opcode::Send;
        if with_immediate && done.immediate as usize != id
            || (done.flags & completion_flags::IMM != 0) != with_immediate
        {
            return Err(format!("{} came, not {id}", done.immediate));
        }
        if !peer.dead {
            is_whole(run, peer, done, message, 0)?;
        }
    }
    if peer.dead {
        return Ok(());
    }
    match sent.find(|(id, _)| *id < succeeded(me)) {
        Some((id, _)) => Err(format!("{id} completed, and did not come")),
        None => Ok(()),
    }
}

fn written_is_there(run: &Run, me: &Side, peer: &Side) -> Result<(), String> {
    if me.end.transport != Transport::Rc || peer.dead {
        return Ok(());
    }
    for (id, sent) in me.sent[..succeeded(me)].iter().enumerate() {
        let writes = matches!(sent.message.opcode, Opcode::Write | Opcode::WriteImm);
        if writes
            && run
                .world
                .get(peer.node.process, sent.remote, sent.data.len())
                != sent.data
        {
            return Err(format!("write {id} is not there"));
        }
    }
    Ok(())
}

fn read_is_here(run: &Run, me: &Side, _: &Side) -> Result<(), String> {
    for (id, sent) in me.sent[..succeeded(me)].iter().enumerate() {
        let reads = sent.message.opcode == Opcode::Read && !me.peer_dead;
        if reads && run.world.get(me.node.process, sent.local, sent.data.len()) != sent.data {
            return Err(format!("read {id} is not here"));
        }
    }
    Ok(())
}

fn atomics_once_in_order(run: &Run, me: &Side, peer: &Side) -> Result<(), String> {
    let number = |process, at| {
        let bytes = run.world.get(process, at, 8);
        u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
    };
    let all = me.sent.iter().enumerate();
    let atomics = all.filter(|(_, sent)| sent.message.opcode == Opcode::FetchAdd);
    let (done, rest): (Vec<_>, Vec<_>) = atomics.partition(|(id, _)| *id < succeeded(me));
    for ((id, sent), expected) in done.iter().zip(0..) {
        let before = number(me.node.process, sent.local);
        if before != expected {
            return Err(format!("{id} found {before}, not {expected}"));
        }
    }
    if peer.dead {
        return Ok(());
    }
    let counter = number(peer.node.process, me.counter);
    let range = done.len() as u64..=(done.len() + rest.len()) as u64;
    if range.contains(&counter) {
        Ok(())
    } else {
        Err(format!("counted {counter}, not {range:?}"))
    }
}

fn unreliable_is_whole(run: &Run, me: &Side, peer: &Side) -> Result<(), String> {
    if me.end.transport == Transport::Rc || peer.dead {
        return Ok(());
    }
    let head = if me.end.transport == Transport::Ud {
        GRH
    } else {
        0
    };
    let mut last = None;
    for done in arrived(peer) {
        let id = done.immediate as usize;
        let Some(sent) = me.sent.get(id) else {
            return Err(format!("{id} was not sent"));
        };
        is_whole(run, peer, done, sent, head)?;
        if !run.plan.is_strange() && last.is_some_and(|last| last >= id) {
            return Err(format!("{id} came after {last:?}"));
        }
        last = Some(id);
    }
    Ok(())
}
