//! What a run function or the host sees of a buffer is what was written last, wherever that was and
//! whatever card the process has moved to since (`model::app::history`).

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "what is seen was written last";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
