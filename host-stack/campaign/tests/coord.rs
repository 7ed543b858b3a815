//! A job and its coordinator in the simulator: what a run comes to when nothing goes wrong, when much
//! does, and with each planted bug.

use snaprig_campaign::{
    Ending,
    scenario::{AnyScenario as _, Canary, Finished, Watch},
    scenarios::coord::Coord,
};
use snaprig_sim::{Parameters, Plan};

/// Seeds by which each planted bug is found.
const CANARY_SEEDS: u64 = 400;

fn plans(seeds: u64) -> impl Iterator<Item = Plan> {
    (0..seeds).map(|seed| Coord.draw(seed, &Parameters::new()))
}

fn run(plan: &Plan, canary: Option<Canary>) -> Finished {
    let finished = snaprig_campaign::standard().run(plan, Watch::with(canary));
    finished.expect("it is drawn")
}

#[test]
fn when_nothing_goes_wrong_every_checkpoint_is_complete_and_the_last_one_restarts() {
    for mut plan in plans(200) {
        plan.faults.clear();
        let Finished { outcome, broken } = run(&plan, None);
        assert_eq!(broken, None, "{}", plan.to_text());
        assert_eq!(outcome.ending, Ending::Finished);
        let times = |point: &str| {
            let mut reached = outcome.reached.iter();
            reached
                .find(|(name, ..)| *name == point)
                .map_or(0, |(_, times, _)| *times)
        };
        // Those that were asked for, and the last one: after it, no point counts.
        let checkpoints = plan.number(&["workload", "checkpoints"]);
        assert!(Some(times("coord.commit")) >= checkpoints);
    }
}

#[test]
fn whatever_goes_wrong_no_invariant_breaks() {
    for plan in plans(3000) {
        assert_eq!(run(&plan, None).broken, None, "{}", plan.to_text());
    }
}

#[test]
fn every_planted_bug_is_found() {
    for canary in Coord.canaries() {
        let fails = |plan: &Plan| run(plan, Some(canary)).broken.is_some();
        let found = plans(CANARY_SEEDS).filter(fails).count();
        println!("{}: {found} of {CANARY_SEEDS}", canary.name);
        assert!(found > 0, "{} sings unheard", canary.name);
    }
}
