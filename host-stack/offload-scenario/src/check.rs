//! What is checked of the offload stack when a run has ended.

use crate::outcome::{App, Ended};
use snaprig_scenario::scenario::{Ending, Outcome, invariant::waits};

/// Run functions count, so what they return says which ran, how often, and in which order.
pub fn in_order(outcome: &Outcome<Ended>) -> Option<String> {
    let mut pipelines = outcome.end.apps.iter().flat_map(|app| &app.results);
    let wrong = pipelines.find(|results| {
        let told = results.iter().flatten();
        !told.zip(1..).all(|(result, expected)| *result == expected)
    });
    wrong.map(|results| format!("results are {results:?}"))
}

/// No snapshot on the disk is broken.
pub fn snapshots(outcome: &Outcome<Ended>) -> Option<String> {
    let mut broken = outcome
        .end
        .apps
        .iter()
        .filter_map(|app| app.snapshot.as_ref());
    broken
        .next()
        .map(|how| format!("a snapshot is broken: {how}"))
}

/// Who finishes has every run function's result.
pub fn undisturbed(outcome: &Outcome<Ended>) -> Option<String> {
    let apps = outcome.end.apps.iter();
    let mut finished = apps.filter(|app| app.ending == Ending::Finished);
    finished.find_map(|app| {
        // Each pipeline's run functions count.
        let expected =
            |runs: &Vec<Option<u64>>| (1..).zip(runs).all(|(nth, run)| *run == Some(nth));
        let exact = app.results.iter().all(expected);
        (!exact).then(|| format!("it finished, with results {:?}", app.results))
    })
}

/// No application waits though its process lives.
pub fn waiting(outcome: &Outcome<Ended>) -> Option<String> {
    let mut apps = outcome.end.apps.iter();
    apps.find_map(|app| app.waiting.clone())
}

/// Every application has ended.
pub fn progress(outcome: &Outcome<Ended>) -> Option<String> {
    let mut apps = outcome.end.apps.iter().map(|app| &app.ending);
    apps.find_map(Ending::waits).or_else(|| waits(outcome))
}

/// Who fails says why, nobody fails without a fault, and a fault of a disk or a service does not pass in
/// silence.
pub fn errors(outcome: &Outcome<Ended>) -> Option<String> {
    let apps = &outcome.end.apps;
    let wrong = apps.iter().find_map(|app| misreported(app, outcome.faults));
    let is_told = |app: &App| matches!(app.ending, Ending::Failed(_)) || !app.errors.is_empty();
    let is_silent = outcome.loud_faults > 0 && !apps.iter().any(is_told);
    wrong.or_else(|| {
        is_silent.then(|| "a disk or a service failed, and no call was told of an error".into())
    })
}

fn misreported(app: &App, faults: u64) -> Option<String> {
    if app.errors.iter().any(String::is_empty) {
        return Some("an error says nothing".into());
    }
    match &app.ending {
        Ending::Failed(why) if faults == 0 => {
            Some(format!("nothing went wrong, but it failed: {why}"))
        }
        _ => None,
    }
}
