//! A snapshot is whole or not there, also after a crash of the machine; and one that was told to be
//! complete stays, whatever becomes of later ones.

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "a snapshot is whole or not there, and the earlier one stays";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    let broken = outcome.apps.iter().find_map(|app| app.snapshot.as_ref());
    broken.map(|how| format!("a snapshot is broken: {how}"))
}
