//! Checkpoints with queue pairs in the simulator: what a run comes to when nothing goes wrong, when much does, and with each
//! planted bug.

use snaprig_campaign::{
    scenario::{AnyScenario as _, Canary, Finished, Watch},
    scenarios::ckpt_ib::CkptIb,
};
use snaprig_sim::{Parameters, Plan};

/// Seeds by which each planted bug is found.
const CANARY_SEEDS: u64 = 400;

fn plans(seeds: u64) -> impl Iterator<Item = Plan> {
    (0..seeds).map(|seed| CkptIb.draw(seed, &Parameters::new()))
}

fn run(plan: &Plan, canary: Option<Canary>) -> Finished {
    let finished = snaprig_campaign::standard().run(plan, Watch::with(canary));
    finished.expect("it is drawn")
}

#[test]
fn when_nothing_goes_wrong_a_checkpoint_changes_nothing() {
    for mut plan in plans(200) {
        plan.faults.clear();
        assert_eq!(run(&plan, None).broken, None, "{}", plan.to_text());
    }
}

#[test]
fn whatever_goes_wrong_no_invariant_breaks() {
    for plan in plans(1000) {
        assert_eq!(run(&plan, None).broken, None, "{}", plan.to_text());
    }
}

#[test]
fn where_everything_is_tried_there_is_a_checkpoint_of_reliable_connections() {
    for plan in CkptIb.undisturbed() {
        let finished = run(&plan, None);
        let reached = finished.outcome.reached.iter();
        let names: Vec<_> = reached.map(|(name, ..)| *name).collect();
        for point in [
            "ib.drain",
            "ib.save",
            "ib.refill",
            "hca.packet",
            "hca.response",
        ] {
            assert!(names.contains(&point), "{point} of {names:?}");
        }
    }
}

#[test]
fn every_planted_bug_is_found() {
    for canary in CkptIb.canaries() {
        let fails = |plan: &Plan| run(plan, Some(canary)).broken.is_some();
        let found = plans(CANARY_SEEDS).filter(fails).count();
        println!("{}: {found} of {CANARY_SEEDS}", canary.name);
        assert!(found > 0, "{} sings unheard", canary.name);
    }
}
