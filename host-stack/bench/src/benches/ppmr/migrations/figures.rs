//! The paper's figures of migrations, from what was measured.

use super::{
    Case, Measured,
    job::{Migrated, Strategy},
    lines::{COUNTS, large, of_processes, usual},
    paper,
};
use crate::report::figure::{Bar, Figure, Group};

/// The steps of a migration that are worth telling apart, as its report calls them. What they are: all come to rest; the processes
/// are written; what is left of that is carried; they are read and connected; they go on.
pub const STEPS: [&str; 5] = ["look", "stop", "write", "connect", "go"];

const WAYS: [Strategy; 6] = [
    Strategy::Local,
    Strategy::RdmaLocal,
    Strategy::Shared,
    Strategy::Ppmr,
    Strategy::PreCopy,
    Strategy::PostCopy,
];

/// Those of which there is something.
pub fn of(measured: &Measured) -> Vec<Figure> {
    let all = [
        steps(measured),
        speedups(measured),
        processes(measured),
        sizes(measured),
        kernels(measured),
    ];
    let is_measured = |figure: &Figure| !figure.groups.is_empty();
    all.into_iter().filter(is_measured).collect()
}

fn steps(measured: &Measured) -> Figure {
    let group = |strategy: Strategy| group_of_steps(measured, usual(strategy), strategy.name());
    Figure {
        title: "Figures 3 and 9: a migration of 8 processes, 320 MiB".into(),
        unit: "ms",
        of: "strategy",
        series: STEPS.into(),
        groups: WAYS.into_iter().filter_map(group).collect(),
        paper: format!(
            "The paper: local {} s, rdma-local {} s, shared {} s, ppmr {} s.",
            paper::LOCAL_S,
            paper::RDMA_LOCAL_S,
            paper::SHARED_S,
            paper::PPMR_S
        ),
    }
}

fn processes(measured: &Measured) -> Figure {
    let names = ["1", "2", "4", "8"];
    let group =
        |(count, name): (u32, &'static str)| group_of_steps(measured, of_processes(count), name);
    Figure {
        title: "Figure 11: the same memory in more processes".into(),
        unit: "ms",
        of: "processes",
        series: STEPS.into(),
        groups: COUNTS.into_iter().zip(names).filter_map(group).collect(),
        paper: "The paper: slightly less from 1 to 4, and the same at 8.".into(),
    }
}

fn group_of_steps(measured: &Measured, case: Case, name: &'static str) -> Option<Group> {
    let rounds = measured.migrations.get(&case)?.iter().flatten();
    let steps = |migrated: &Migrated| STEPS.iter().map(|step| migrated.step_ms(step)).collect();
    let series: Vec<_> = (0..STEPS.len()).collect();
    let bar = Bar::of(&series, rounds.map(steps).collect())?;
    Some(Group {
        name,
        bars: vec![bar],
    })
}

/// A group of bars that are not parts of one.
fn side_by_side(name: &'static str, bars: Vec<Option<Vec<f64>>>) -> Option<Group> {
    let bar = |(series, rounds): (usize, Option<Vec<f64>>)| {
        Bar::of(
            &[series],
            rounds?.into_iter().map(|one| vec![one]).collect(),
        )
    };
    let is_measured = bars
        .first()?
        .as_ref()
        .is_some_and(|rounds| !rounds.is_empty());
    let bars = bars.into_iter().enumerate().filter_map(bar).collect();
    is_measured.then_some(Group { name, bars })
}

fn took_ms(measured: &Measured, case: Case) -> Option<Vec<Option<f64>>> {
    let all = measured.migrations.get(&case)?.iter();
    Some(all.map(|one| one.as_ref().map(|one| one.took_ms)).collect())
}

fn speedups(measured: &Measured) -> Figure {
    let group = |(strategy, theirs_s): (Strategy, f64)| {
        let ours = took_ms(measured, usual(Strategy::Ppmr))?;
        let theirs = took_ms(measured, usual(strategy))?;
        let ratios = theirs.iter().zip(ours);
        let ratios = ratios.filter_map(|(theirs, ours)| Some((*theirs)? / ours?));
        let paper = theirs_s / paper::PPMR_S;
        side_by_side(
            strategy.name(),
            vec![Some(ratios.collect()), Some(vec![paper])],
        )
    };
    let beside = [
        (Strategy::Local, paper::LOCAL_S),
        (Strategy::RdmaLocal, paper::RDMA_LOCAL_S),
        (Strategy::Shared, paper::SHARED_S),
    ];
    Figure {
        title: "Figure 9: ppmr is so many times as fast".into(),
        unit: "times",
        of: "beside",
        series: vec!["here", "the paper"],
        groups: beside.into_iter().filter_map(group).collect(),
        paper: "Here, local goes over links of 1 Gbit/s if they can be limited.".into(),
    }
}

fn sizes(measured: &Measured) -> Figure {
    let group = |name, case: fn(Strategy) -> Case, (_, ppmr_s, shared_s): (u32, f64, f64)| {
        let seconds = |strategy| -> Option<Vec<f64>> {
            let all = took_ms(measured, case(strategy))?;
            Some(all.into_iter().flatten().map(|ms| ms / 1e3).collect())
        };
        let (ppmr, shared) = (seconds(Strategy::Ppmr), seconds(Strategy::Shared));
        let paper = [ppmr_s, shared_s].map(|seconds| Some(vec![seconds]));
        let [their_ppmr, their_shared] = paper;
        side_by_side(name, vec![ppmr, shared, their_ppmr, their_shared])
    };
    // Both, or there is nothing to compare.
    let large = group("3472 MB", large, paper::LARGE);
    let small = large
        .as_ref()
        .and_then(|_| group("320 MB", usual, paper::SMALL));
    Figure {
        title: "Table I: more memory".into(),
        unit: "s",
        of: "memory",
        series: vec!["ppmr", "shared", "ppmr, paper", "shared, paper"],
        groups: small.into_iter().chain(large).collect(),
        paper: "The paper's seconds are those of BT.C.64 and BT.D.64.".into(),
    }
}

fn kernels(measured: &Measured) -> Figure {
    let group = |name: &'static str| {
        let seconds = |strategy| -> Option<Vec<f64>> {
            let all = measured.kernels.get(&(name, strategy))?.iter();
            Some(all.flatten().map(|ms| ms / 1e3).collect())
        };
        let ways = [Strategy::Ppmr, Strategy::Shared, Strategy::Local];
        let migrated = ways.map(|strategy| seconds(Some(strategy)));
        let all = [seconds(None)].into_iter().chain(migrated);
        side_by_side(name, all.collect())
    };
    Figure {
        title: "Figure 10: kernels with three migrations".into(),
        unit: "s",
        of: "kernel",
        series: vec!["none", "ppmr", "shared", "local"],
        groups: ["lu", "bt", "sp"].into_iter().filter_map(group).collect(),
        paper: format!(
            "The paper, LU: {} % longer by ppmr, {} % by shared, {} % by local.",
            paper::LONGER_PPMR,
            paper::LONGER_SHARED,
            paper::LONGER_LOCAL
        ),
    }
}
