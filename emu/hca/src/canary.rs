//! Bugs that a machine can be told to have, to see that campaigns find them.

use crate::{Hca, Host};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// The responder carries out what came before.
    NoDuplicateCheck,
    /// Who sends again forgets where in the message that was.
    GoBackForgetsOffset,
    /// An acknowledgement completes reads.
    AcknowledgeCompletesReads,
    /// Who fails does not complete the rest of its send queue.
    FlushForgetsSends,
    /// Who waits for an acknowledgement sets no timer.
    NoTimer,
    /// Who waits for an acknowledgement waits far too long.
    SlowTimer,
}

impl<H: Host> Hca<'_, H> {
    /// Whether it has a bug: never, outside of simulations.
    pub(crate) fn has(&self, canary: Canary) -> bool {
        self.host.has(canary)
    }
}
