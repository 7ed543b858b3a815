//! What is undone of semaphores when processes end (SEM_UNDO, semop(2)). No call tells of it; but one that would get an
//! adjustment out of its range fails as a whole, and says so. So each process is asked: a value is taken to 0, a number
//! is added to it with SEM_UNDO, and in the same call it is waited for 0 and for more than 0, without waiting: one of
//! both is not so, whatever others do meanwhile.
//!
//! ```text
//! ERANGE: the adjustment is less than the number less 32768        EAGAIN: it is not        nothing has changed
//! ```
//! A process that has never used SEM_UNDO is not asked: it has no list, as its supervisor has none (kcmp(2)).

use libc::pid_t;
use snaprig_tracee::{
    code::code_of,
    descriptors::me,
    freeze::{Frozen, HeldProcess},
    memory,
    remote::{self, call},
    stub::Stub,
};

use super::objects::VALUE_MAX;
use crate::{
    error::{Error, Result},
    state::{Adjustment, SemaphoreSet},
};

/// The lowest adjustment, and the first that is too high.
const LOWEST: i32 = -32768;
const END: i32 = 32768;
/// Bytes of the operations of a question: they are nine at most, of six bytes.
const SLOT: u64 = 64;
/// Questions of one table.
const QUESTIONS: usize = 1000;

/// A semaphore, and what is known of its adjustment: not less than, less than.
struct Adjustable {
    set: usize,
    id: i32,
    number: u16,
    value: i32,
    least: i32,
    end: i32,
}

impl Adjustable {
    /// What is asked next: whether it is less than this. Most are 0.
    fn next(&self) -> i32 {
        match (self.least, self.end) {
            (LOWEST, END) => 0,
            (0, END) => 1,
            (least, end) => least + (end - least) / 2,
        }
    }
}

/// Adds to sets what processes of the tree have to be undone.
pub fn ask(frozen: &mut Frozen, sets: &mut [SemaphoreSet]) -> Result<()> {
    // What semop(2) was never called for has no adjustments; and would have been used when who was asked for it ends.
    if !sets.iter().any(|set| set.is_used) {
        return Ok(());
    }
    let mut have: Vec<pid_t> = Vec::new();
    for held in &mut frozen.processes {
        let handle = held.handle();
        let mut others = held.threads[1..].iter().map(|one| one.tracee.tid());
        if others.any(|tid| !is_same_list(tid, handle)) {
            let what = "a thread with a list of its own of what semaphores get back (SEM_UNDO)";
            return Err(Error::refused(held.pid, what));
        }
        if is_same_list(handle, me()) {
            continue;
        }
        if have.iter().any(|other| is_same_list(*other, handle)) {
            let what = "a list of what semaphores get back (SEM_UNDO) that is another's as well";
            return Err(Error::refused(held.pid, what));
        }
        have.push(handle);
        let stub = Stub::map(held, &code_of(handle)?)?;
        let asked = ask_one(held, &stub, sets);
        // Whatever came of it.
        stub.unmap(held)?;
        asked?;
    }
    Ok(())
}

/// Whether two threads have one list, or none.
fn is_same_list(one: pid_t, other: pid_t) -> bool {
    const KCMP_SYSVSEM: i32 = 6;
    // SAFETY: KCMP_SYSVSEM of kcmp(2) compares two processes by their numbers; the call takes numbers alone and no
    // address, so the kernel reads and writes no memory of this process.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_SYSVSEM, 0, 0) == 0 }
}

fn ask_one(held: &mut HeldProcess, stub: &Stub, sets: &mut [SemaphoreSet]) -> Result<()> {
    let mut open = Vec::new();
    for (set, of) in sets.iter().enumerate().filter(|(_, set)| set.is_used) {
        open.extend(
            of.values
                .iter()
                .enumerate()
                .map(|(number, value)| Adjustable {
                    set,
                    id: of.object.id,
                    number: number as u16,
                    value: *value,
                    least: LOWEST,
                    end: END,
                }),
        );
    }
    while !open.is_empty() {
        for asked in open.chunks_mut(QUESTIONS) {
            answer(held, stub, asked)?;
        }
        for known in open.iter().filter(|asked| asked.end - asked.least == 1) {
            if known.least != 0 {
                sets[known.set].adjustments.push(Adjustment {
                    pid: held.pid,
                    number: known.number,
                    amount: known.least,
                });
            }
        }
        open.retain(|asked| asked.end - asked.least > 1);
    }
    Ok(())
}

/// One question of each.
fn answer(held: &mut HeldProcess, stub: &Stub, asked: &mut [Adjustable]) -> Result<()> {
    let (pid, tid, data) = (held.pid, held.handle(), remote::data(stub.at));
    let (mut bytes, mut calls) = (Vec::new(), Vec::new());
    for asked in &*asked {
        let at = data + bytes.len() as u64;
        let operations = question(asked);
        for (number, amount, flags) in &operations {
            bytes.extend(
                [
                    number.to_ne_bytes(),
                    amount.to_ne_bytes(),
                    flags.to_ne_bytes(),
                ]
                .concat(),
            );
        }
        bytes.resize(bytes.len().next_multiple_of(SLOT as usize), 0);
        let count = operations.len() as u64;
        calls.push(call(libc::SYS_semop, [asked.id as u64, at, count]));
    }
    memory::write(tid, data, &bytes)?;
    let results =
        held.threads[0].remote(pid, stub.end, |remote| remote.calls(stub.at, tid, &calls))?;
    for (asked, returned) in asked.iter_mut().zip(results) {
        match -returned as i32 {
            libc::ERANGE => asked.end = asked.next(),
            libc::EAGAIN => asked.least = asked.next(),
            // It may not use it, so that there is nothing of it to be undone.
            libc::EACCES => (asked.least, asked.end) = (0, 1),
            error => {
                let what = format!("what semaphores {} get back (SEM_UNDO)", asked.id);
                let source = std::io::Error::from_raw_os_error(error);
                return Err(Error::Process { pid, what, source });
            }
        }
    }
    Ok(())
}

/// Operations that never succeed: number, amount, flags.
fn question(asked: &Adjustable) -> Vec<(u16, i16, i16)> {
    let operation = |amount: i32, flags: i32| {
        let flags = flags | libc::IPC_NOWAIT;
        (asked.number, amount as i16, flags as i16)
    };
    let mut operations = Vec::new();
    if asked.value > 0 {
        operations.push(operation(-asked.value, 0));
    }
    let mut left = asked.next() - LOWEST;
    while left > 0 {
        let part = left.min(VALUE_MAX);
        operations.push(operation(part, libc::SEM_UNDO));
        operations.push(operation(-part, 0));
        left -= part;
    }
    operations.extend([operation(0, 0), operation(-1, 0)]);
    operations
}
