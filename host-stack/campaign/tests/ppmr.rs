//! Processes that move through pipelines, in the simulator: what a run comes to when nothing goes wrong, when much does, and
//! with each planted bug.

use snaprig_campaign::{
    Ending, Registry, exhaustive,
    scenario::{AnyScenario as _, Canary, Finished, Watch},
    scenarios::ppmr::{Ended, Parameters, Ppmr},
    standard,
};
use snaprig_ppmr::Mode;
use snaprig_sim::{Parameters as Fixed, Plan};

/// Seeds by which each planted bug is found.
const CANARY_SEEDS: u64 = 4000;
const MODES: [Mode; 2] = [Mode::Pull, Mode::Push];

fn plans(mode: Mode, seeds: u64) -> impl Iterator<Item = Plan> {
    let mut fixed = Fixed::new();
    fixed.insert(
        "mode".into(),
        serde_json::to_value(mode).expect("it has a name"),
    );
    (0..seeds).map(move |seed| Ppmr.draw(seed, &fixed))
}

fn run(plan: &Plan, canary: Option<Canary>) -> Finished {
    let finished = standard().run(plan, Watch::with(canary));
    finished.expect("it is drawn")
}

#[test]
fn when_nothing_goes_wrong_all_trees_move() {
    for mode in MODES {
        for mut plan in plans(mode, 400) {
            plan.faults.clear();
            plan.parameters.insert("lacking".into(), 0.into());
            let Finished { outcome, broken } = run(&plan, None);
            assert_eq!(broken, None, "{}", plan.to_text());
            assert_eq!(outcome.ending, Ending::Finished);
            let parameters: Parameters = plan.parameters_as().expect("they are its parameters");
            let end = outcome.end_as::<Ended>().expect("it is its end");
            let moved = end.moved as u64 * u64::from(parameters.processes);
            assert_eq!(
                end.streams,
                moved,
                "each process has moved once: {}",
                plan.to_text()
            );
            assert_eq!(end.failed, Vec::<String>::new());
        }
    }
}

#[test]
fn whatever_goes_wrong_there_is_one_of_each_process() {
    for mode in MODES {
        for plan in plans(mode, 20_000) {
            assert_eq!(run(&plan, None).broken, None, "{}", plan.to_text());
        }
    }
}

#[test]
fn every_fault_at_every_step_and_all_pairs_of_deaths_are_survived() {
    let all = Registry::of(&Ppmr);
    let single = exhaustive::single(&all).expect("they are plans");
    let pairs = exhaustive::pairs(&all);
    println!("{} faults, {} pairs", single.len(), pairs.len());
    for plan in single.iter().chain(&pairs) {
        assert_eq!(run(plan, None).broken, None, "{}", plan.to_text());
    }
}

#[test]
fn every_planted_bug_is_found() {
    for canary in Ppmr.canaries() {
        for mode in MODES {
            let fails = |plan: &Plan| run(plan, Some(canary)).broken.is_some();
            let found = plans(mode, CANARY_SEEDS).filter(fails).count();
            println!("{} ({mode:?}): {found} of {CANARY_SEEDS}", canary.name);
            assert!(found > 0, "{} sings unheard", canary.name);
        }
    }
}
