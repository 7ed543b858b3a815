//! Bugs that can be switched on, to see that tests find them.

use crate::Hca;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// The responder carries out what came before.
    NoDuplicateCheck,
    /// Who sends again forgets where in the message that was.
    GoBackForgetsOffset,
    /// An acknowledgement completes reads.
    AcknowledgeCompletesReads,
}

impl<H> Hca<'_, H> {
    /// Whether a bug is switched on: never, outside of tests.
    pub(crate) fn has(&self, canary: Canary) -> bool {
        #[cfg(feature = "testing")]
        return self.canary.get() == Some(canary);
        #[cfg(not(feature = "testing"))]
        {
            let _ = canary;
            false
        }
    }
}
