//! Where a process that checkpoints and restarts others can be killed on purpose: the fault points of this crate, and the
//! plan of a process, which says at which point of any crate it kills itself.
//!
//! What must stay true of each point: the tree runs on; or, of a restart that was not complete, and of a migration that
//! the target may have decided, it ends.

use std::{
    str::FromStr,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use snaprig_wire::fault::Point;

snaprig_wire::fault_points! {
    /// A thread has been asked to stop.
    SEIZED = "tracee.seized", "a thread has been asked to stop", [Crash];
    /// A thread stands still.
    HELD = "tracee.held", "a thread stands still", [Crash];
    /// All do.
    FROZEN = "tracee.frozen", "all threads stand still", [Crash];
    /// The way home of single calls is in the process.
    ASK_WAY_HOME = "tracee.ask_way_home", "the way home of single calls is in the process", [Crash];
    /// A thread has the registers of a call, and its own mask.
    ASK_REGISTERS = "tracee.ask_registers", "a thread has the registers of a call, and its own mask", [Crash];
    /// A thread is in a single call, or behind it.
    ASK_CALL = "tracee.ask_call", "a thread is in a single call, or behind it", [Crash];
    /// The stub is mapped, its code not yet there.
    ASK_MAPPED = "tracee.ask_mapped", "the stub is mapped, its code not yet there", [Crash];
    /// A thread is on its way through a table.
    ASK_TABLE = "tracee.ask_table", "a thread is on its way through a table of calls", [Crash];
    /// A thread has its mask again, not its registers.
    ASK_MASK = "tracee.ask_mask", "a thread has its mask again, not its registers", [Crash];
    /// A thread is back where it was; others are not.
    ASK_BACK = "tracee.ask_back", "a thread is back where it was; others are not", [Crash];
    /// The stub is unmapped; the thread that has done it is on its way back.
    ASK_UNMAPPED = "tracee.ask_unmapped", "the stub is unmapped, its thread not yet back", [Crash];
    /// A thread runs; others do not.
    LET_GO = "tracee.let_go", "a thread runs; others do not", [Crash];
}

/// At which point a process kills itself (SIGKILL, nothing is tidied up).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashPlan {
    /// The name of the point.
    pub point: String,
    /// In the how manieth thing that the process does, from 1 on: a restart counts as one, and so does each checkpoint,
    /// and each side of a migration.
    pub round: u32,
}

impl FromStr for CrashPlan {
    type Err = String;

    /// `POINT`, or `POINT:ROUND`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (point, round) = text.split_once(':').unwrap_or((text, "1"));
        let round = round.parse();
        Ok(Self {
            point: point.to_owned(),
            round: round.map_err(|_| format!("{text:?} is not POINT:ROUND"))?,
        })
    }
}

/// The plan of this process, which its main function sets before anything else.
static PLAN: OnceLock<CrashPlan> = OnceLock::new();
/// Checkpoints, restarts and migrations that have begun.
static ROUNDS: AtomicU32 = AtomicU32::new(0);

/// This process, and what it forks, follows a plan from now on; of two plans, the first.
pub fn follow(plan: CrashPlan) {
    // A second one is ignored.
    let _ = PLAN.set(plan);
}

/// A checkpoint, a restart or a migration begins.
pub fn begin_round() {
    ROUNDS.fetch_add(1, Ordering::Relaxed);
}

/// This process has got to a point, at which it may have to die.
pub fn reached(point: &Point) {
    let is_it =
        |plan: &CrashPlan| plan.point == point.name && plan.round == ROUNDS.load(Ordering::Relaxed);
    if PLAN.get().is_some_and(is_it) {
        // SAFETY: getpid(2) takes nothing and kill(2) two numbers: neither touches memory. The
        // process that is killed is this one, which is what the plan asks for, and it does not run
        // on.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
