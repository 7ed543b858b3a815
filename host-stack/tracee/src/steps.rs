//! The steps of a checkpoint and of a restart, and how a supervisor is killed at one on purpose.
//!
//! `SNAPRIG_CKPT_DIE_AT=STEP` has it kill itself (SIGKILL, nothing is tidied up) when it gets to that step for the first
//! time; `STEP:N` in the Nth thing that it does: a restart counts as one, and so does each checkpoint.
//!
//! What must stay true of each: the tree runs on, or, of a restart that was not complete, ends.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident $name:literal,)*) => {
        /// A step.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            $($(#[$doc])* $step,)*
        }

        /// The names of all steps, in about their order.
        pub const STEPS: &[&str] = &[$($name,)*];

        impl Step {
            fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$step),)*
                    _ => None,
                }
            }
        }
    };
}

steps! {
    /// A checkpoint begins.
    Begun "begun",
    /// A thread has been asked to stop.
    FreezeSeized "freeze-seized",
    /// A thread stands still.
    FreezeHeld "freeze-held",
    /// All do.
    Frozen "frozen",
    /// The way home of single calls is in the process.
    AskWayHome "ask-way-home",
    /// A thread has the registers of a call, and its own mask.
    AskRegisters "ask-registers",
    /// A thread is in a single call, or behind it.
    AskCall "ask-call",
    /// The stub is mapped, its code not yet there.
    AskMapped "ask-mapped",
    /// A thread is on its way through a table.
    AskTable "ask-table",
    /// All threads have said what they know; they are in the stub.
    Asked "asked",
    /// A thread has its mask again, not its registers.
    AskMask "ask-mask",
    /// A thread is back where it was; others are not.
    AskBack "ask-back",
    /// The stub is unmapped; the thread that has done it is on its way back.
    AskUnmapped "ask-unmapped",
    /// A receiver's buffer is larger than it was, for what is on its way to it.
    FlowGrown "flow-grown",
    /// What was on its way has arrived there, and is read.
    FlowRead "flow-read",
    /// What was in a terminal is out of it, and on its way back.
    TerminalTaken "terminal-taken",
    /// All of it is described.
    Described "described",
    /// The image has its first section.
    WriteState "write-state",
    /// Pages are being written.
    WritePages "write-pages",
    /// The image has all bytes; the tree stands still.
    Written "written",
    /// A thread runs; others do not.
    LetGo "let-go",
    /// The image is complete; the round is not.
    Finished "finished",
    /// The round is complete; whoever asked for it has no answer.
    Committed "committed",
    /// Files of a restarted tree are open.
    RestartFiles "restart-files",
    /// Its processes wait to become what they were.
    RestartPlanted "restart-planted",
    /// A process has its areas, which are empty.
    RestartMapped "restart-mapped",
    /// Memory is filled.
    RestartFilled "restart-filled",
    /// A process has its threads.
    RestartThreads "restart-threads",
    /// A thread has its registers.
    RestartRegisters "restart-registers",
    /// Everything is there, and held.
    RestartHeld "restart-held",
    /// From now on, the tree would run on.
    RestartComplete "restart-complete",
    /// A thread runs; others do not.
    RestartLetGo "restart-let-go",
}

/// Checkpoints and restarts that have begun.
static ROUNDS: AtomicU32 = AtomicU32::new(0);
static PLAN: OnceLock<Option<(Step, u32)>> = OnceLock::new();

/// A supervisor has got to a step.
pub fn reached(step: Step) {
    let Some((deadly, round)) = *PLAN.get_or_init(plan) else {
        return;
    };
    if matches!(step, Step::Begun | Step::RestartFiles) {
        ROUNDS.fetch_add(1, Ordering::Relaxed);
    }
    if step == deadly && ROUNDS.load(Ordering::Relaxed) == round {
        // SAFETY: no memory is involved.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

fn plan() -> Option<(Step, u32)> {
    let plan = std::env::var("SNAPRIG_CKPT_DIE_AT").ok()?;
    let (name, round) = plan.split_once(':').unwrap_or((&plan, "1"));
    Some((Step::named(name)?, round.parse().ok()?))
}
