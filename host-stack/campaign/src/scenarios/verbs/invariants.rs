//! What must be true of every run with verbs.

use super::{Ended, check::*};
use crate::scenario::{
    Invariant,
    invariant::{ERRORS, MESSAGES, PROGRESS, RDMA},
};

/// Each finds what the one before it left.
const ATOMICS: &str = "atomics happen once and in order";
/// A message of an unreliable service is whole or not there, and, unless packets overtake each other,
/// in order.
const UNRELIABLE: &str = "what is unreliable is whole or not there";
/// One for each signaled request, and for each request from the first that failed on; one for each
/// receive, flushed ones, too.
const COMPLETIONS: &str = "completions come one for one, in order";
/// Who is not answered gives up in the time that its queue pair's attributes say.
const PATIENCE: &str = "a peer that does not answer is given up in time";

/// All of them.
pub static ALL: [Invariant<Ended>; 9] = [
    Invariant::checked(RDMA, rdma::check),
    Invariant::checked(MESSAGES, messages::check),
    Invariant::checked(ATOMICS, atomics::check),
    Invariant::checked(UNRELIABLE, unreliable::check),
    Invariant::checked(COMPLETIONS, completions::check),
    Invariant::of_progress(PROGRESS, progress::check),
    Invariant::checked(PATIENCE, patience::check),
    Invariant::checked(ERRORS, errors::check),
    Invariant::leaks(),
];
