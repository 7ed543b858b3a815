//! What must be true of every run of the offload stack.

use crate::{check, outcome::Ended};
use snaprig_scenario::scenario::{
    Invariant,
    invariant::{CONTRADICTION, ERRORS, MESSAGES},
};

/// Snapshots are consistent in the sense of Chandy and Lamport: no message was received in them
/// that was not sent in them, and none is under way, since channels are not saved. The model
/// compares what the wires have carried whenever a process is saved or comes back (`ledger`).
pub const CUT: &str = "a snapshot is a consistent cut with empty channels";
/// A restored process has in its buffers what the captured one had; and what its capture
/// has ended did nothing after it (`sink::saving`).
pub const RESTORED: &str = "buffers come back as they were";
/// An operation of COI's starts once, after all that it depends on and all that it conflicts with, and
/// is completed once (`app::history`).
pub const OPERATIONS: &str = "operations start once, after what they depend on";
/// No ordered operation on a buffer starts while a process holds references to it that it was given by
/// run functions that are done, or that those have taken (`app::perform`).
pub const REFERENCES: &str = "references hold operations up";
/// Who depends on an operation that has failed fails alike, and never starts (`app::history`).
pub const DEPENDENTS: &str = "dependents fail alike";
/// What a run function or the host sees of a buffer is what was written last, wherever that was and
/// whatever card the process has moved to since (`app::history`).
pub const VISIBLE: &str = "what is seen was written last";
/// A snapshot is whole or not there, also after a crash of the machine; and one that was told to be
/// complete stays, whatever becomes of later ones.
const SNAPSHOT: &str = "a snapshot is whole or not there, and the earlier one stays";
/// Who finishes does so with the results of an undisturbed run: every run function's.
const UNDISTURBED: &str = "equals the undisturbed run";
/// No operation and no call of COI's waits once all has ended or died.
const WAITING: &str = "nothing is left waiting";

/// All of them.
pub static ALL: [Invariant<Ended>; 14] = [
    Invariant::seen(CONTRADICTION),
    Invariant::seen(CUT),
    Invariant::seen(RESTORED),
    Invariant::seen(OPERATIONS),
    Invariant::seen(REFERENCES),
    Invariant::seen(DEPENDENTS),
    Invariant::seen(VISIBLE),
    Invariant::checked(MESSAGES, check::in_order),
    Invariant::checked(SNAPSHOT, check::snapshots),
    Invariant::checked(UNDISTURBED, check::undisturbed),
    Invariant::of_progress(WAITING, check::waiting),
    Invariant::of_progress(
        snaprig_scenario::scenario::invariant::PROGRESS,
        check::progress,
    ),
    Invariant::checked(ERRORS, check::errors),
    Invariant::leaks(),
];
