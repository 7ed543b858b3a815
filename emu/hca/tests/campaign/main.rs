//! Random plans, thousands of them: what must stay true does, whatever the network and the
//! processes do.
//!
//! A seed is a plan, and a plan is a run. `HCA_SEED=<seed>` runs and prints one; `HCA_SEEDS=<count>` that many.

mod invariants;
mod plan;
mod run;

use std::{env, panic, time::Instant};

use run::Outcome;
use snaprig_hca::testing::Canary;

const SEEDS: u64 = 4000;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// Says which seed it was if the run does not come back.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("HCA_SEED={} does it again", self.0);
        }
    }
}

fn run(seed: u64, canary: Option<Canary>) -> Outcome {
    let _seed = Seed(seed);
    let outcome = run::run(seed, canary, number("HCA_SEED") == Some(seed));
    if canary.is_none()
        && let Some((name, what)) = &outcome.broken
    {
        panic!("seed {seed}: {name}: {what}");
    }
    outcome
}

#[test]
fn invariants_hold() {
    if let Some(seed) = number("HCA_SEED") {
        run(seed, None);
        return;
    }
    let start = Instant::now();
    let seeds = number("HCA_SEEDS").unwrap_or(SEEDS);
    let (mut calm, mut calm_failed, mut packets) = (0, 0, 0);
    for seed in 0..seeds {
        let outcome = run(seed, None);
        packets += outcome.packets;
        calm += outcome.calm;
        calm_failed += outcome.calm_failed;
        if outcome.calm_failed > 0 {
            println!("seed {seed}: a calm connection failed");
        }
    }
    let rate = seeds as f64 / start.elapsed().as_secs_f64();
    println!("{seeds} seeds, {rate:.0} a second, {packets} packets, {calm_failed} of {calm} lost");
    assert!(
        calm_failed * 200 <= calm,
        "{calm_failed} of {calm} connections failed with few packets lost"
    );
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..100 {
        assert_eq!(run(seed, None).hash, run(seed, None).hash, "seed {seed}");
    }
    assert_ne!(run(1, None).hash, run(2, None).hash);
}

#[test]
fn canaries_are_found() {
    for canary in [
        Canary::NoDuplicateCheck,
        Canary::GoBackForgetsOffset,
        Canary::AcknowledgeCompletesReads,
    ] {
        let found = (0..500).find(|seed| {
            let outcome = panic::catch_unwind(|| run::run(*seed, Some(canary), false));
            outcome.is_err() || outcome.is_ok_and(|outcome| outcome.broken.is_some())
        });
        assert!(found.is_some(), "{canary:?} lives");
    }
}
