//! A job and its coordinator in the simulator: what a run comes to when nothing goes wrong, when much
//! does, and with each planted bug.

use snaprig_campaign::{Canary, Ending, check::check, draw, run};
use snaprig_sim::{Plan, Trace};

const SCENARIO: &[&str] = &["coord"];
/// Seeds by which each planted bug is found.
const CANARY_SEEDS: u64 = 400;

fn plans(seeds: u64) -> impl Iterator<Item = Plan> {
    (0..seeds).map(|seed| draw::draw(seed, SCENARIO))
}

#[test]
fn when_nothing_goes_wrong_every_checkpoint_is_complete_and_the_last_one_restarts() {
    for mut plan in plans(200) {
        plan.faults.clear();
        let outcome = run(&plan, Trace::default(), None);
        assert_eq!(check(&outcome), None, "{}", plan.to_text());
        assert_eq!(outcome.ending, Ending::Finished);
        let times = |point: &str| {
            let mut reached = outcome.reached.iter();
            reached
                .find(|(name, ..)| *name == point)
                .map_or(0, |(_, times, _)| *times)
        };
        // Those that were asked for, and the last one: after it, no point counts.
        assert!(times("coord.commit") >= u64::from(plan.workload.writes));
    }
}

#[test]
fn whatever_goes_wrong_no_invariant_breaks() {
    for plan in plans(3000) {
        let outcome = run(&plan, Trace::default(), None);
        assert_eq!(check(&outcome), None, "{}", plan.to_text());
    }
}

#[test]
fn every_planted_bug_is_found() {
    for canary in Canary::ALL.into_iter().filter(|one| one.is_of_coord()) {
        let fails = |plan: &Plan| check(&run(plan, Trace::default(), Some(canary))).is_some();
        let found = plans(CANARY_SEEDS).filter(fails).count();
        println!("{}: {found} of {CANARY_SEEDS}", canary.name());
        assert!(found > 0, "{} sings unheard", canary.name());
    }
}
