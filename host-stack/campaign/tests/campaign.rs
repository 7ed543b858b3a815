//! Seeds by the thousand: no invariant breaks, and a seed is the same run every time.

use snaprig_campaign::{
    Canary,
    campaign::{CampaignError, Options, Plans, Results, Simulator, fails, merge},
    check::check,
    draw, exhaustive, run,
};
use snaprig_hca::Transport;
use snaprig_sim::{Fault, Kind, Plan, Trace, When, Workload};

/// Seeds of every kind by which most planted bugs are found, and all of them.
const CANARY_SEEDS: [u64; 2] = [100, 1000];
/// Seeds that are run again, to be the same.
const AGAIN: u64 = 2000;

/// The plan of a seed, of any scenario.
fn draw(seed: u64) -> Plan {
    draw::draw(seed, &[])
}

#[test]
fn undisturbed_runs_finish_in_every_order() {
    for scenario in snaprig_campaign::system::scenarios() {
        for seed in 0..50 {
            let plan = Plan::new(seed, 2, scenario);
            let outcome = run(&plan, Trace::default(), None);
            if let Some(broken) = check(&outcome) {
                panic!("{scenario}, seed {seed}: {broken:?}: {outcome:?}");
            }
        }
    }
}

#[test]
fn no_invariant_breaks_whatever_goes_wrong_and_it_is_the_same_again() {
    for seed in 0..20_000 {
        let plan = draw(seed);
        let outcome = run(&plan, Trace::default(), None);
        if let Some(broken) = check(&outcome) {
            panic!("seed {seed}: {broken:?}: {}", plan.to_text());
        }
        if seed < AGAIN {
            let again = run(&plan, Trace::default(), None);
            assert_eq!(outcome.trace.hash(), again.trace.hash(), "seed {seed}");
        }
    }
}

#[test]
fn a_run_that_is_recorded_is_the_same_run() {
    for seed in 0..100 {
        let plan = draw(seed);
        let (one, other) = (
            run(&plan, Trace::default(), None),
            run(&plan, Trace::recording(), None),
        );
        assert_eq!(one.trace.hash(), other.trace.hash());
    }
}

/// All there is, without a report.
fn options() -> Options {
    Options {
        plans: Plans::Drawn(0..2000),
        shard: (0, 1),
        jobs: 2,
        time: None,
        report: None,
    }
}

fn campaign(canary: Option<Canary>, options: &Options) -> Result<Results, CampaignError> {
    let counting = matches!(options.plans, Plans::Listed(_));
    // Those of a job would be found among all, too, by more seeds: few of them are about one.
    let of_coord = canary.is_some_and(Canary::is_of_coord);
    let runner = Simulator {
        canary,
        counting,
        scenarios: if of_coord { vec!["coord"] } else { vec![] },
    };
    snaprig_campaign::campaign::campaign(&runner, options, &|_, _| {})
}

#[test]
fn every_canary_is_found_and_its_plan_is_small_and_fails_again() {
    let found_by = |canary, seeds| {
        let options = Options {
            plans: Plans::Drawn(0..seeds),
            ..options()
        };
        let results = campaign(Some(canary), &options).expect("it runs");
        results.found.into_iter().next()
    };
    for canary in Canary::ALL {
        let found = CANARY_SEEDS
            .iter()
            .find_map(|seeds| found_by(canary, *seeds));
        let found = found.unwrap_or_else(|| panic!("{} sings unheard", canary.name()));
        assert!(found.plan.faults.len() <= 3, "{found:?}");
        let again = fails(&found.plan, Some(canary)).map(|(_, broken)| broken.invariant);
        assert_eq!(again, Some(&*found.invariant));
        assert_eq!(
            fails(&found.plan, None),
            None,
            "it is the canary that fails"
        );
    }
}

#[test]
fn a_campaign_that_was_interrupted_and_its_shards_end_with_the_same_report() {
    let whole = campaign(None, &options()).expect("it runs");
    assert_eq!(whole.failures, 0);
    let dir = tempfile::tempdir().expect("a directory");
    let shard = |index, seeds| {
        let report = Some(dir.path().join(format!("shard{index}")));
        let shard = (index, 2);
        let options = Options {
            plans: Plans::Drawn(seeds),
            shard,
            report,
            ..options()
        };
        campaign(None, &options).expect("it runs")
    };
    // Interrupted after its first chunk; then a chunk was torn.
    shard(0, 0..500);
    std::fs::write(dir.path().join("shard0/chunks/0-500.json"), "{").expect("written");
    let runs = shard(0, 0..2000).runs + shard(1, 0..2000).runs;
    assert_eq!(runs, whole.runs);
    let merged = merge(&[dir.path().join("shard0"), dir.path().join("shard1")]);
    assert_eq!(merged.expect("they are reports"), whole);
    let other = Options {
        plans: Plans::Listed(vec![draw(1)]),
        report: Some(dir.path().join("other")),
        ..options()
    };
    campaign(None, &other).expect("it runs");
    let mixed = merge(&[dir.path().join("shard0"), dir.path().join("other")]);
    assert!(matches!(mixed, Err(CampaignError::Another { .. })));
    assert!(merge(&[dir.path().to_owned()]).is_err(), "it is no report");
}

#[test]
fn reports_and_shards_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let with = |canary, shard| {
        let report = Some(dir.path().to_owned());
        let options = Options {
            plans: Plans::Drawn(0..10),
            shard,
            report,
            ..options()
        };
        campaign(canary, &options)
    };
    with(None, (0, 1)).expect("it runs");
    let another = with(Some(Canary::DeafDaemon), (0, 1));
    assert!(matches!(another, Err(CampaignError::Another { .. })));
    assert!(matches!(
        with(None, (2, 2)),
        Err(CampaignError::Shard { index: 2, count: 2 })
    ));
}

#[test]
fn every_fault_at_every_step_breaks_nothing_nor_do_pairs_of_deaths() {
    // All pairs are for `ci/run --all`.
    let some_pairs = exhaustive::pairs().into_iter().step_by(16);
    for plans in [exhaustive::single(), some_pairs.collect()] {
        let count = plans.len() as u64;
        let options = Options {
            plans: Plans::Listed(plans),
            ..options()
        };
        let results = campaign(None, &options).expect("it runs");
        assert!(results.states.len() > 1000, "{}", results.states.len());
        assert_eq!(
            (results.runs, results.failures),
            (count, 0),
            "{:?}",
            results.found
        );
    }
}

#[test]
fn connections_live_on_a_network_that_loses_little() {
    let (mut connections, mut failed) = (0, 0);
    for seed in 0..1500 {
        let mut plan = Plan::new(seed, 2, "verbs");
        plan.workload = Workload {
            processes: 3,
            pipelines: 3,
            runs: 10,
            ..Workload::default()
        };
        for point in ["hca.packet", "hca.response"] {
            for kind in [Kind::Drop, Kind::Duplicate, Kind::Reorder] {
                plan.faults.push(Fault {
                    point: point.into(),
                    when: When::PerMille(20),
                    kind,
                });
            }
        }
        let outcome = run(&plan, Trace::default(), None);
        assert_eq!(check(&outcome), None, "seed {seed}");
        let patient = outcome
            .verbs
            .connections
            .iter()
            .filter(|[side, _]| side.transport == Transport::Rc && !side.impatient);
        for sides in patient {
            connections += 1;
            failed += usize::from(sides.iter().any(|side| side.first_failed().is_some()));
        }
    }
    assert!(connections > 500, "{connections}");
    assert!(failed * 200 <= connections, "{failed} of {connections}");
}

#[test]
fn programs_that_use_scif_move_much_and_are_refused_little_when_nothing_goes_wrong() {
    let (mut bytes, mut copies, mut refused) = (0, 0, 0);
    for seed in 0..200 {
        let mut plan = draw::draw(seed, &["scif"]);
        plan.faults.clear();
        let outcome = run(&plan, Trace::default(), None);
        assert_eq!(check(&outcome), None, "seed {seed}");
        let scif = &outcome.scif;
        copies += scif.copies;
        bytes += scif.sides.iter().map(|side| side.came).sum::<usize>();
        let connects = scif.refusals.iter().filter(|one| one.call == "connect");
        refused += connects.count();
    }
    assert!(bytes > 10_000_000, "{bytes}");
    assert!(copies > 2_000, "{copies}");
    assert!(refused < 1_000, "{refused}");
}
