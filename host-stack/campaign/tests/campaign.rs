//! Seeds by the thousand: no invariant breaks, and a seed is the same run every time.

use std::ops::ControlFlow;

use snaprig_campaign::{
    Scenario as _,
    campaign::{CampaignError, Options, Plans, Results, Simulator, merge},
    exhaustive,
    scenario::{Canary, Finished, Watch},
    scenarios::{
        scif::Scif,
        verbs::{self, Verbs},
    },
};
use snaprig_hca::Transport;
use snaprig_sim::{Fault, Kind, Plan, When};

/// Seeds of its scenario by which a planted bug is found mostly, and always.
const CANARY_SEEDS: [u64; 3] = [100, 1000, 10_000];
/// Seeds that are run again, to be the same.
const AGAIN: u64 = 500;

/// The plan of a seed, of any scenario.
fn draw(seed: u64) -> Plan {
    snaprig_campaign::standard().draw(seed, &[])
}

fn run(plan: &Plan, watch: Watch<Canary>) -> Finished {
    let finished = snaprig_campaign::standard().run(plan, watch);
    finished.unwrap_or_else(|error| panic!("{error}: {}", plan.to_text()))
}

#[test]
fn undisturbed_runs_finish_in_every_order() {
    for scenario in snaprig_campaign::standard().scenarios() {
        for plan in scenario.undisturbed() {
            for seed in 0..50 {
                let plan = Plan {
                    seed,
                    ..plan.clone()
                };
                let broken = run(&plan, Watch::default()).broken;
                assert_eq!(broken, None, "{}", plan.to_text());
            }
        }
    }
}

#[test]
fn no_invariant_breaks_whatever_goes_wrong_and_it_is_the_same_again() {
    for seed in 0..2_000 {
        let plan = draw(seed);
        let Finished { outcome, broken } = run(&plan, Watch::default());
        assert_eq!(broken, None, "seed {seed}: {}", plan.to_text());
        if seed < AGAIN {
            let again = run(&plan, Watch::default()).outcome;
            assert_eq!(outcome.trace.hash(), again.trace.hash(), "seed {seed}");
        }
    }
}

#[test]
fn a_run_that_is_recorded_is_the_same_run() {
    for seed in 0..100 {
        let plan = draw(seed);
        let one = run(&plan, Watch::default()).outcome.trace;
        let other = run(&plan, Watch::default().recording()).outcome.trace;
        assert_eq!(one.hash(), other.hash());
        assert_eq!(other.record().is_empty(), other.events() == 0);
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
    let runner = Simulator {
        canary,
        counting: matches!(options.plans, Plans::Listed(_)),
        ..Simulator::default()
    };
    snaprig_campaign::campaign::campaign(&runner, options, &|_, _| ControlFlow::Continue(()))
}

#[test]
fn every_canary_is_found_and_its_plan_is_small_and_fails_again() {
    for (canary, scenario) in snaprig_campaign::standard().canaries() {
        let runner = Simulator {
            scenarios: scenario.names().to_vec(),
            ..Simulator::default().with(Some(canary))
        };
        let found_by = |seeds: u64| {
            let options = Options {
                plans: Plans::Drawn(0..seeds),
                ..options()
            };
            let results = snaprig_campaign::campaign::campaign(&runner, &options, &|_, _| {
                ControlFlow::Continue(())
            });
            results.expect("it runs").found.into_iter().next()
        };
        let found = CANARY_SEEDS.into_iter().find_map(found_by);
        let found = found.unwrap_or_else(|| panic!("{} sings unheard", canary.name));
        assert!(found.plan.faults.len() <= 3, "{found:?}");
        let again = runner.fails(&found.plan).map(|broken| broken.invariant);
        assert_eq!(again, Some(&*found.invariant));
        let healthy = Simulator::default().fails(&found.plan);
        assert_eq!(healthy, None, "it is the canary that fails");
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
    let canary = snaprig_campaign::standard()
        .canary("deaf-daemon")
        .expect("there is one");
    let another = with(Some(canary), (0, 1));
    assert!(matches!(another, Err(CampaignError::Another { .. })));
    assert!(matches!(
        with(None, (2, 2)),
        Err(CampaignError::Shard { index: 2, count: 2 })
    ));
}

#[test]
fn a_part_of_all_faults_and_of_pairs_of_deaths_breaks_nothing() {
    // Every fourth, and fewer pairs: all of them are for `ci/run --all`.
    let pairs = exhaustive::pairs(snaprig_campaign::standard()).into_iter();
    let single = exhaustive::single(snaprig_campaign::standard()).expect("they are plans");
    for plans in [
        single.into_iter().step_by(4).collect::<Vec<_>>(),
        pairs.step_by(256).collect(),
    ] {
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
        let parameters = verbs::Parameters {
            hcas: 2,
            workload: verbs::Workload {
                processes: 3,
                connections: 3,
                messages: 10,
            },
        };
        let mut plan = Plan::new(seed, "verbs").with(&parameters);
        for point in ["hca.packet", "hca.response"] {
            for kind in [Kind::Drop, Kind::Duplicate, Kind::Reorder] {
                plan.faults.push(Fault {
                    point: point.into(),
                    when: When::PerMille(20),
                    kind,
                });
            }
        }
        assert_eq!(run(&plan, Watch::default()).broken, None, "seed {seed}");
        let ended = Verbs.run(&plan, &parameters, Watch::default()).end;
        let patient = ended
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
        let mut plan = snaprig_campaign::standard().draw(seed, &["scif"]);
        plan.faults.clear();
        assert_eq!(run(&plan, Watch::default()).broken, None, "seed {seed}");
        let parameters = plan.parameters_as().expect("it is drawn");
        let scif = Scif.run(&plan, &parameters, Watch::default()).end;
        copies += scif.copies;
        bytes += scif.sides.iter().map(|side| side.came).sum::<usize>();
        let connects = scif.refusals.iter().filter(|one| one.call == "connect");
        refused += connects.count();
    }
    assert!(bytes > 10_000_000, "{bytes}");
    assert!(copies > 2_000, "{copies}");
    assert!(refused < 1_000, "{refused}");
}
