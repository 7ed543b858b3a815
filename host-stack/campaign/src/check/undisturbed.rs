//! Who finishes does so with the results of an undisturbed run: every run function's.

use crate::scenarios::offload::{Ending, Outcome};

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
        // Each pipeline's run functions count.
        let expected =
            |runs: &Vec<Option<u64>>| (1..).zip(runs).all(|(nth, run)| *run == Some(nth));
        let exact = app.results.iter().all(expected);
        (!exact).then(|| format!("it finished, with results {:?}", app.results))
    })
}
