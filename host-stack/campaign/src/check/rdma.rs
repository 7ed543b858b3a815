//! What RMA reads is what RMA wrote, whatever card the process has moved to since.

use crate::model::Outcome;

/// Its name.
pub const NAME: &str = "RDMA bytes are exact";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
