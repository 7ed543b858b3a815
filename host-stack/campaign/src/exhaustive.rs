//! Every fault at every step: for each scenario on two cards, each kind that applies at each
//! occurrence of each fault point that the undisturbed run reaches, once; and pairs of faults at
//! the steps of pause, capture, restore and resume.

use snaprig_sim::{Fault, Kind, KindName, Plan, Point, Trace, When};

use snaprig_snapify::{Step, faults::of_step};

use crate::{
    model::{SCENARIOS, processes},
    points, run,
};

/// The order of events in which everything is tried.
const SEED: u64 = 0;
const CARDS: u16 = 2;
/// Longer than a whole checkpoint takes.
const DELAY_NS: u64 = 5_000_000;

/// All plans with one fault.
pub fn single() -> Vec<Plan> {
    let scenarios = SCENARIOS.iter().map(|name| Plan::new(SEED, CARDS, name));
    scenarios
        .flat_map(|plan| {
            let outcome = run(&plan, Trace::default(), None);
            let reached = outcome.reached.into_iter();
            let faults = reached
                .flat_map(|(name, times, _)| (1..=times).flat_map(move |nth| faults_at(name, nth)));
            let with = |fault| Plan {
                faults: vec![fault],
                ..plan.clone()
            };
            faults.map(with).collect::<Vec<_>>()
        })
        .collect()
}

/// All plans with two faults at the steps of Snapify's calls: one process dies, and another one, or
/// the same again, at the same step or a later one.
pub fn pairs() -> Vec<Plan> {
    let steps = Step::ALL.into_iter().map(of_step);
    let crashes = steps.flat_map(|point| {
        let crash = |name: &String| fault(point.name, 1, Kind::Crash(name.clone()));
        all_processes().iter().map(crash).collect::<Vec<_>>()
    });
    let crashes: Vec<_> = crashes.collect();
    let both = |(at, first): (usize, &Fault)| {
        let seconds = crashes[at + 1..].iter();
        seconds
            .map(|second| vec![first.clone(), second.clone()])
            .collect::<Vec<_>>()
    };
    let pairs: Vec<_> = crashes.iter().enumerate().flat_map(both).collect();
    SCENARIOS
        .iter()
        .flat_map(|scenario| {
            pairs.iter().map(|faults| Plan {
                faults: faults.clone(),
                ..Plan::new(SEED, CARDS, scenario)
            })
        })
        .collect()
}

fn fault(point: &str, nth: u64, kind: Kind) -> Fault {
    Fault {
        point: point.into(),
        when: When::Nth(nth),
        kind,
    }
}

fn faults_at(name: &'static str, nth: u64) -> Vec<Fault> {
    let points = points::all();
    let point = points.iter().find(|point| point.name == name);
    let kinds = point.map_or(Vec::new(), kinds);
    kinds
        .into_iter()
        .map(|kind| fault(name, nth, kind))
        .collect()
}

fn all_processes() -> Vec<String> {
    processes(&Plan::new(SEED, CARDS, SCENARIOS[0]))
}

/// One of each kind that applies; where a process is named, each of them.
fn kinds(point: &Point) -> Vec<Kind> {
    let each = |kind: fn(String) -> Kind| all_processes().into_iter().map(kind).collect();
    let cards = |kind: fn(String) -> Kind| {
        let cards = all_processes().into_iter();
        cards
            .filter(|name| name.starts_with("card"))
            .map(kind)
            .collect()
    };
    let all = |name: &KindName| match name {
        KindName::Crash => each(Kind::Crash),
        KindName::Hang => each(Kind::Hang),
        KindName::Restart => cards(Kind::Restart),
        KindName::LinkDown => cards(Kind::LinkDown),
        KindName::Partition => cards(Kind::Partition),
        KindName::Delay => vec![Kind::Delay(DELAY_NS)],
        KindName::Error => vec![Kind::Error(libc::EIO)],
        KindName::Corrupt => vec![Kind::Corrupt(0)],
        KindName::TornWrite => vec![Kind::TornWrite(1)],
        KindName::DiskFull => vec![Kind::DiskFull],
        KindName::Drop => vec![Kind::Drop],
        KindName::Duplicate => vec![Kind::Duplicate],
        KindName::Reorder => vec![Kind::Reorder],
    };
    point.kinds.iter().flat_map(all).collect()
}
