//! Snapshots are consistent in the sense of Chandy and Lamport: no message was received in them
//! that was not sent in them, and none is under way, since channels are not saved. The model
//! compares what the wires have carried whenever a process is saved or comes back
//! (`model::ledger`).

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "a snapshot is a consistent cut with empty channels";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
