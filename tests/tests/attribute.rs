//! `#[snaprig::test]` as its users have it: what it runs, what it prints when a case fails, and what
//! the environment changes.

use std::{
    env,
    error::Error,
    process::{Command, Output},
    sync::Arc,
};

use snaprig::{
    Random, Rig, Sim,
    campaign::scenarios::verbs,
    coi::{Engine, Process},
    sim::SimError,
    snapify::Snapify,
};
use snaprig_fixtures::kmeans::{self, Workload};

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");

/// docs/src/start.md shows it.
#[snaprig::test(cards = 2, platforms = ["kvm", "ptrace"], seeds = 0..3, exe = SNAPRIG)]
fn a_migrated_process_computes_the_same(
    rig: Rig,
    mut random: Random,
) -> Result<(), Box<dyn Error>> {
    let card = |index| Engine::get(rig.dir(), index);
    let process = Process::create(&card(0)?, "kmeans", kmeans::SINK.to_vec(), vec![], vec![])?;
    let application = process.clone();
    let work = std::thread::spawn(move || kmeans::run(&application, &Workload::shipped()));
    process.break_at(2 + random.below(28), None)?;
    let snapshot = rig.dir().join("snapshot");
    Snapify::new(&process, Arc::new(|_| {})).migrate(&snapshot, &card(1)?)?;
    let outcome = work.join().expect("it does not panic")?;
    let golden = kmeans::golden(&Workload::shipped());
    assert!(outcome == golden, "the result is not the golden one");
    Ok(())
}

#[snaprig::test(cards = 3, seeds = 0..300)]
fn whatever_goes_wrong_in_simulation_is_survived(sim: Sim, seed: u64) -> Result<(), SimError> {
    let plan = sim.draw();
    assert_eq!((plan.seed, plan.number(&["cards"])), (seed, Some(3)));
    sim.run(&plan)?.check()
}

#[test]
fn verbs_are_simulated_too() -> Result<(), SimError> {
    for seed in 0..100 {
        let sim = Sim::builder().scenario("verbs").cards(1).seed(seed);
        let sim = sim.build();
        let run = sim.run(&sim.draw())?;
        run.check()?;
        let ended = run.outcome.end_as::<verbs::Ended>().expect("it is verbs");
        assert!(!ended.connections.is_empty());
    }
    Ok(())
}

#[test]
fn a_plan_runs_on_the_system_that_was_built() -> Result<(), SimError> {
    let sim = Sim::builder().cards(1).scenario("swap").seed(7).build();
    let run = sim.run(&sim.undisturbed())?;
    run.check()?;
    assert_eq!(run.plan.number(&["cards"]), Some(1));
    assert_eq!(run.plan.scenario, "swap");
    let nowhere = Sim::builder().cards(99).run(&run.plan);
    assert!(matches!(nowhere, Err(SimError::Impossible(_))));
    Ok(())
}

// Tests that fail on purpose, for those below.

#[snaprig::test(cards = 1, platforms = ["ptrace"], seeds = 0..5, exe = SNAPRIG)]
#[ignore = "it fails on purpose"]
fn fails_on_a_rig(rig: Rig, seed: u64) {
    assert_eq!(rig.cards().len(), 1);
    assert!(seed < 2, "the third seed is too much");
}

#[snaprig::test(seeds = 10..20)]
#[ignore = "it fails on purpose"]
fn fails_with_an_error(seed: u64) -> Result<(), String> {
    println!("seed {seed}");
    match seed {
        13 | 77 => Err("unlucky".into()),
        _ => Ok(()),
    }
}

fn run(name: &str, environment: &[(&str, &str)]) -> (Output, String) {
    let mut command = Command::new(env::current_exe().expect("this program"));
    for variable in ["SNAPRIG_SEED", "SNAPRIG_PLATFORM", "SNAPRIG_KEEP"] {
        command.env_remove(variable);
    }
    command.args(["--ignored", "--exact", "--nocapture", name]);
    command.env("RUST_BACKTRACE", "0");
    let output = command.envs(environment.iter().copied()).output();
    let output = output.expect("it starts");
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output, said)
}

#[test]
fn a_failure_on_a_rig_says_how_to_see_it_again() {
    let (output, said) = run("fails_on_a_rig", &[]);
    assert!(!output.status.success());
    for line in [
        "the third seed is too much",
        "fails_on_a_rig failed with seed 2 on ptrace, after 2 that passed",
        "replay: SNAPRIG_SEED=2 SNAPRIG_PLATFORM=ptrace cargo test -p snaprig-tests \
         --test attribute -- --exact fails_on_a_rig",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn an_error_fails_a_test_and_the_environment_chooses_the_seed() {
    let (output, said) = run("fails_with_an_error", &[]);
    assert!(!output.status.success());
    assert!(said.contains("unlucky\nfails_with_an_error failed with seed 13, after 3"));
    assert!(
        said.contains("replay: SNAPRIG_SEED=13 cargo test"),
        "{said}"
    );
    let (output, said) = run("fails_with_an_error", &[("SNAPRIG_SEED", "14")]);
    assert!(
        output.status.success() && said.contains("seed 14"),
        "{said}"
    );
    assert!(!said.contains("seed 10"), "{said}");
    let (output, said) = run("fails_with_an_error", &[("SNAPRIG_SEED", "77")]);
    assert!(!output.status.success());
    assert!(said.contains("failed with seed 77, after 0"), "{said}");
    let largest = u64::MAX.to_string();
    let (output, said) = run("fails_with_an_error", &[("SNAPRIG_SEED", &largest)]);
    assert!(output.status.success() && said.contains(&largest), "{said}");
    let (output, said) = run("fails_with_an_error", &[("SNAPRIG_SEED", "many")]);
    assert!(
        !output.status.success() && said.contains("SNAPRIG_SEED=many"),
        "{said}"
    );
}

#[test]
fn a_kept_rig_is_where_it_says() {
    let environment = [("SNAPRIG_KEEP", "1"), ("SNAPRIG_SEED", "0")];
    let (output, said) = run("fails_on_a_rig", &environment);
    assert!(output.status.success(), "{said}");
    let line = said.lines().find_map(|line| line.split_once("kept: "));
    let (_, dir) = line.expect("it says where");
    std::fs::remove_dir_all(dir).expect("it is there");
}
