//! A tree that migrates, in the simulator: what a run comes to when nothing goes wrong, when much does, and with
//! each planted bug.

use snaprig_campaign::{
    Ending,
    scenario::{AnyScenario as _, Canary, Finished, Watch},
    scenarios::migration::{Ended, Migration},
    standard,
};
use snaprig_sim::{Parameters, Plan};

/// Seeds by which each planted bug is found; most are found by far fewer.
const CANARY_SEEDS: u64 = 20_000;

fn plans(seeds: u64) -> impl Iterator<Item = Plan> {
    (0..seeds).map(|seed| Migration.draw(seed, &Parameters::new()))
}

fn run(plan: &Plan, canary: Option<Canary>) -> Finished {
    let finished = standard().run(plan, Watch::with(canary));
    finished.expect("it is drawn")
}

#[test]
fn when_nothing_goes_wrong_the_tree_moves_unless_it_ends_before() {
    let mut moved = 0;
    for mut plan in plans(400) {
        plan.faults.clear();
        let Finished { outcome, broken } = run(&plan, None);
        assert_eq!(broken, None, "{}", plan.to_text());
        assert_eq!(outcome.ending, Ending::Finished);
        moved += u32::from(outcome.end_as::<Ended>().is_some_and(|end| end.has_moved));
    }
    assert!((200..400).contains(&moved), "{moved}");
}

#[test]
fn whatever_goes_wrong_there_is_one_of_it() {
    for plan in plans(20_000) {
        assert_eq!(run(&plan, None).broken, None, "{}", plan.to_text());
    }
}

#[test]
fn every_planted_bug_is_found() {
    for canary in Migration.canaries() {
        let fails = |plan: &Plan| run(plan, Some(canary)).broken.is_some();
        let found = plans(CANARY_SEEDS).filter(fails).count();
        println!("{}: {found} of {CANARY_SEEDS}", canary.name);
        assert!(found > 0, "{} sings unheard", canary.name);
    }
}
