//! Seeds by the thousand: no invariant breaks, and a seed is the same run every time.

use snaprig_campaign::{check::check, draw::draw, run};
use snaprig_sim::{Plan, Trace};

#[test]
fn undisturbed_runs_finish_in_every_order() {
    for scenario in snaprig_campaign::model::SCENARIOS {
        for seed in 0..50 {
            let plan = Plan::new(seed, 2, scenario);
            let outcome = run(&plan, Trace::default());
            if let Some(broken) = check(&outcome) {
                panic!("{scenario}, seed {seed}: {broken:?}: {outcome:?}");
            }
        }
    }
}

#[test]
fn no_invariant_breaks_whatever_goes_wrong() {
    for seed in 0..20000 {
        let plan = draw(seed);
        let outcome = run(&plan, Trace::default());
        if let Some(broken) = check(&outcome) {
            panic!("seed {seed}: {broken:?}: {}", plan.to_text());
        }
    }
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    for seed in 0..100 {
        let plan = draw(seed);
        let (one, other) = (run(&plan, Trace::default()), run(&plan, Trace::recording()));
        assert_eq!(one.trace.hash(), other.trace.hash());
    }
}
