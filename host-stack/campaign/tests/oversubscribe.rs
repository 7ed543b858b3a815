//! Cards oversubscribed with offload processes, in the simulator: what a run comes to when nothing goes wrong, when much
//! does, and with each planted bug.

use snaprig_campaign::{
    scenario::{AnyScenario as _, Canary, Finished, Watch},
    scenarios::oversubscribe::{Ended, Oversubscribe, Parameters},
    standard,
};
use snaprig_sim::{Parameters as Fixed, Plan};

/// Seeds by which each planted bug is found.
const CANARY_SEEDS: u64 = 2000;

fn plans(seeds: u64) -> impl Iterator<Item = Plan> {
    (0..seeds).map(|seed| Oversubscribe.draw(seed, &Fixed::new()))
}

fn run(plan: &Plan, canary: Option<Canary>) -> Finished {
    let finished = standard().run(plan, Watch::with(canary));
    finished.expect("it is drawn")
}

#[test]
fn when_nothing_goes_wrong_all_programs_come_to_their_ends() {
    for mut plan in plans(400) {
        plan.faults.clear();
        assert_eq!(run(&plan, None).broken, None, "{}", plan.to_text());
    }
}

#[test]
fn twelve_programs_share_two_cards() {
    let parameters = Parameters {
        cards: 2,
        programs: 12,
        runs: 12,
        failing: 0,
    };
    for seed in 0..50 {
        let plan = Plan::new(seed, "oversubscribe").with(&parameters);
        let Finished { outcome, broken } = run(&plan, None);
        assert_eq!(broken, None, "{}", plan.to_text());
        let end = outcome.end_as::<Ended>().expect("it is its end");
        assert_eq!(end.finished, 12);
        assert!(end.swaps >= 20, "{end:?}");
    }
}

#[test]
fn whatever_goes_wrong_no_invariant_breaks() {
    for plan in plans(4000) {
        assert_eq!(run(&plan, None).broken, None, "{}", plan.to_text());
    }
}

#[test]
fn every_planted_bug_is_found() {
    for canary in Oversubscribe.canaries() {
        let fails = |plan: &Plan| run(plan, Some(canary)).broken.is_some();
        let found = plans(CANARY_SEEDS).filter(fails).count();
        println!("{}: {found} of {CANARY_SEEDS}", canary.name);
        assert!(found > 0, "{} sings unheard", canary.name);
    }
}
