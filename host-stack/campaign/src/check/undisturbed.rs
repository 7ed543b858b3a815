//! Who finishes does so with the results of an undisturbed run: every run function's, and what they
//! left in the buffers.

use crate::model::{Ending, Outcome};

/// Its name.
pub const NAME: &str = "equals the undisturbed run";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    let finished = outcome
        .apps
        .iter()
        .filter(|app| app.ending == Ending::Finished);
    finished.into_iter().find_map(|app| {
        if app.results.iter().flatten().any(Option::is_none) {
            return Some(format!("it finished, with results {:?}", app.results));
        }
        // Each pipeline's run functions count in the buffers that they are given.
        let runs = app.results.first().map_or(0, Vec::len) as u64;
        let exact = app.buffers.iter().all(|left| *left == Some(runs));
        (!exact).then(|| {
            format!(
                "it finished, with buffers {:?} after {runs} runs",
                app.buffers
            )
        })
    })
}
