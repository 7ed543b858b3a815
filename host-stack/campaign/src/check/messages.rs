//! Every message comes once and in order. Run functions count, so what they return says which ran,
//! how often, and in which order.

use crate::model::Outcome;

/// Its name.
pub const NAME: &str = "every message once and in order";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    let pipelines = outcome.apps.iter().flat_map(|app| &app.results);
    let wrong = pipelines.clone().find(|results| {
        let told = results.iter().flatten();
        !told.zip(1..).all(|(result, expected)| *result == expected)
    });
    super::seen(outcome, NAME).or(wrong.map(|results| format!("results are {results:?}")))
}
