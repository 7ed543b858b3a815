//! Every fault at every step: for each scenario on two cards, each kind that applies at each
//! occurrence of each fault point that the undisturbed run reaches, once; and pairs of faults: of
//! the offload stack at the steps of pause, capture, restore and resume, of verbs at the first
//! steps of posting, of SCIF at the first calls, of a job at the first phases.

use snaprig_sim::{
    Fault, Kind, KindName, Plan, Point, Trace, When, Workload,
    plan::{is_card, is_hca},
};

use snaprig_snapify::{Step, faults::of_step};

use crate::{
    coord,
    model::SCENARIOS,
    points, run, scif,
    system::{System, processes},
    verbs,
};

/// The order of events in which everything is tried.
const SEED: u64 = 0;
const CARDS: u16 = 2;
/// That of two offload processes: one with pipelines and buffers that are destroyed.
const TWO_SEED: u64 = 7;
/// Longer than a whole checkpoint takes.
const DELAY_NS: u64 = 5_000_000;

/// Verbs that are different work, packet by packet and not.
const VERBS_SEEDS: u64 = 8;
/// SCIF that is different work.
const SCIF_SEEDS: u64 = 3;
/// Jobs whose checkpoints are of different kinds.
const COORD_SEEDS: u64 = 2;
/// Phases at which pairs of faults happen.
const PHASES: u64 = 12;
/// Calls at which pairs of faults happen, and how far apart they are.
const CALLS: u64 = 8;
const CALLS_APART: u64 = 9;
/// Work requests at which pairs of faults happen.
const POSTS: u64 = 6;

/// The systems in which everything is tried.
fn undisturbed() -> Vec<Plan> {
    let offload = SCENARIOS.iter().map(|name| Plan::new(SEED, CARDS, name));
    let offload = offload.chain([two_offloads()]);
    let others = verbs().chain(scif()).chain(coord());
    offload.chain(others).collect()
}

/// Two offload processes that share buffers.
fn two_offloads() -> Plan {
    let workload = Workload {
        processes: 1,
        offloads: 2,
        pipelines: 1,
        runs: 2,
        buffers: 1,
        writes: 2,
    };
    Plan {
        workload,
        ..Plan::new(TWO_SEED, CARDS, "swap")
    }
}

fn scif() -> impl Iterator<Item = Plan> {
    let workload = Workload {
        processes: 1,
        offloads: 1,
        pipelines: 2,
        runs: 1,
        buffers: 1,
        writes: 1,
    };
    (0..SCIF_SEEDS).map(move |seed| Plan {
        workload,
        ..Plan::new(seed, CARDS, scif::SCENARIO)
    })
}

fn coord() -> impl Iterator<Item = Plan> {
    let workload = Workload {
        processes: 2,
        offloads: 1,
        pipelines: 2,
        runs: 8,
        buffers: 0,
        writes: 2,
    };
    (0..COORD_SEEDS).map(move |seed| Plan {
        workload,
        ..Plan::new(seed, 1, coord::SCENARIO)
    })
}

fn verbs() -> impl Iterator<Item = Plan> {
    let workload = Workload {
        processes: 2,
        pipelines: 2,
        runs: 4,
        ..Workload::default()
    };
    (0..VERBS_SEEDS).map(move |seed| Plan {
        workload,
        ..Plan::new(seed, CARDS, verbs::SCENARIO)
    })
}

/// All plans with one fault.
pub fn single() -> Vec<Plan> {
    undisturbed()
        .into_iter()
        .flat_map(|plan| {
            let outcome = run(&plan, Trace::default(), None);
            let reached = outcome.reached.into_iter();
            let faults = reached.flat_map(|(name, times, _)| {
                let all = (1..=times).map(move |nth| (name, nth));
                all.flat_map(|(name, nth)| faults_at(&plan, name, nth))
            });
            let with = |fault| Plan {
                faults: vec![fault],
                ..plan.clone()
            };
            faults.map(with).collect::<Vec<_>>()
        })
        .collect()
}

/// All plans with two faults, at the steps of Snapify's calls, of posts, or of SCIF calls: one process
/// dies (or a link), and another one, or the same again, at the same step or a later one.
pub fn pairs() -> Vec<Plan> {
    let with_two = |plan: Plan| {
        let deaths = match System::of(&plan.scenario) {
            System::Verbs => deaths_at_posts(&plan),
            System::Scif => deaths_at_calls(&plan),
            System::Coord => deaths_at_phases(&plan),
            System::Offload => deaths_at_steps(&plan),
        };
        let both = |(at, first): (usize, &Fault)| {
            let seconds = deaths[at + 1..].iter();
            let with = |second: &Fault| Plan {
                faults: vec![first.clone(), second.clone()],
                ..plan.clone()
            };
            seconds.map(with).collect::<Vec<_>>()
        };
        deaths.iter().enumerate().flat_map(both).collect::<Vec<_>>()
    };
    undisturbed().into_iter().flat_map(with_two).collect()
}

fn deaths_at_steps(plan: &Plan) -> Vec<Fault> {
    let crashes = |point: Point| {
        let all = processes(plan).into_iter();
        all.map(move |name| fault(point.name, 1, Kind::Crash(name)))
    };
    Step::ALL
        .into_iter()
        .map(of_step)
        .flat_map(crashes)
        .collect()
}

fn deaths_at_posts(plan: &Plan) -> Vec<Fault> {
    let deaths = |nth: u64| {
        let all = processes(plan).into_iter();
        let death = |name: String| match is_hca(&name) {
            true => Kind::Partition(name),
            false => Kind::Crash(name),
        };
        all.map(move |name| fault(snaprig_hca::faults::POST.name, nth, death(name)))
    };
    (1..=POSTS).flat_map(deaths).collect()
}

fn deaths_at_calls(plan: &Plan) -> Vec<Fault> {
    let call = snaprig_scif::faults::program::CALL.name;
    let deaths = |nth: u64| {
        let all = processes(plan).into_iter();
        all.map(move |name| fault(call, nth * CALLS_APART, Kind::Crash(name)))
    };
    (1..=CALLS).flat_map(deaths).collect()
}

fn deaths_at_phases(plan: &Plan) -> Vec<Fault> {
    let phase = snaprig_coord::faults::PHASE.name;
    let deaths = |nth: u64| {
        let all = processes(plan).into_iter();
        all.map(move |name| fault(phase, nth, Kind::Crash(name)))
    };
    (1..=PHASES).flat_map(deaths).collect()
}

fn fault(point: &str, nth: u64, kind: Kind) -> Fault {
    Fault {
        point: point.into(),
        when: When::Nth(nth),
        kind,
    }
}

fn faults_at(plan: &Plan, name: &'static str, nth: u64) -> Vec<Fault> {
    let points = points::all();
    let point = points.iter().find(|point| point.name == name);
    let kinds = point.map_or(Vec::new(), |point| kinds(plan, point));
    kinds
        .into_iter()
        .map(|kind| fault(name, nth, kind))
        .collect()
}

/// One of each kind that applies; where a process is named, each of them.
fn kinds(plan: &Plan, point: &Point) -> Vec<Kind> {
    let named = |is: fn(&str) -> bool, kind: fn(String) -> Kind| {
        let all = processes(plan).into_iter();
        all.filter(|name| is(name)).map(kind).collect()
    };
    let all = |name: &KindName| match name {
        KindName::Crash => named(|name| !is_hca(name), Kind::Crash),
        KindName::Hang => named(|name| !is_hca(name), Kind::Hang),
        KindName::Restart => named(is_card, Kind::Restart),
        KindName::LinkDown => named(is_card, Kind::LinkDown),
        KindName::Partition => named(is_card, Kind::Partition),
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
