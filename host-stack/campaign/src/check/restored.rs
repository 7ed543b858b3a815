//! A restored process has in its buffers what the captured one had; and what its capture
//! has ended did nothing after it (`model::sink::saving`).

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "buffers come back as they were";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
