//! What is compared with what, and what the paper has of it.

use super::{Case, LARGE_MIB, Measured, PROCESSES, USUAL_MIB, job::Strategy, paper};
use crate::table::{Aim, Row, Unit};

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// All strategies.
    Ways,
    /// Without a limit of links.
    Unlimited,
    /// The same memory in more and more processes.
    Processes,
    /// Much memory.
    Large,
    /// A kernel that computes.
    Kernel(&'static str),
}

impl Part {
    /// Whether nodes' links have the paper's rate.
    pub fn has_links(self) -> bool {
        matches!(self, Self::Ways | Self::Large | Self::Kernel(_))
    }
}

/// Something that was measured, in milliseconds.
#[derive(Clone, Copy)]
pub enum Of {
    Took(Case),
    Blackout(Case),
    Yardstick,
    /// No measure: what it may take.
    Milliseconds(f64),
    /// A run of a kernel, and how it is migrated.
    Kernel(&'static str, Option<Strategy>),
}

/// A row of the table.
pub struct Line {
    pub part: Part,
    pub measure: &'static str,
    ours: Of,
    baseline: &'static str,
    theirs: Of,
    aim: Option<Aim>,
}

/// Processes of a node, of which the first is compared with the others.
pub const COUNTS: [u32; 4] = [1, 2, 4, 8];

/// How long processes may run nowhere, if most of their memory is copied before.
const BLACKOUT_MS: f64 = 50.0;
/// The share of what the slowest of capture, copy and restore allows.
const OF_YARDSTICK: f64 = 0.7;
/// By how much the number of processes may matter.
const FLAT: f64 = 1.15;
/// By how much three migrations may prolong a kernel.
const LONGER: f64 = 1.05;

const fn case(part: Part, strategy: Strategy, processes: u32, mib: u32) -> Case {
    Case {
        part,
        strategy,
        processes,
        mib,
    }
}

/// 8 processes, 320 MiB.
pub const fn usual(strategy: Strategy) -> Case {
    case(Part::Ways, strategy, PROCESSES, USUAL_MIB)
}

const fn unlimited(strategy: Strategy) -> Case {
    case(Part::Unlimited, strategy, PROCESSES, USUAL_MIB)
}

pub const fn large(strategy: Strategy) -> Case {
    case(Part::Large, strategy, PROCESSES, LARGE_MIB)
}

/// The case of so many processes.
pub const fn of_processes(processes: u32) -> Case {
    case(Part::Processes, Strategy::Ppmr, processes, USUAL_MIB)
}

const fn line(
    part: Part,
    (measure, ours): (&'static str, Of),
    (baseline, theirs): (&'static str, Of),
    aim: Option<Aim>,
) -> Line {
    Line {
        part,
        measure,
        ours,
        baseline,
        theirs,
        aim,
    }
}

/// As fast beside it as in the paper.
const fn as_the_papers(ours_s: f64, theirs_s: f64) -> Option<Aim> {
    // Two digits are what the paper has.
    let hundredths = (ours_s / theirs_s * 100.0 + 0.5) as u64;
    Some(Aim::AtMost(hundredths as f64 / 100.0))
}

const fn ways(baseline: &'static str, theirs: Of, aim: Option<Aim>) -> Line {
    let ours = ("migration 320M", Of::Took(usual(Strategy::Ppmr)));
    line(Part::Ways, ours, (baseline, theirs), aim)
}

const fn pre_copy(baseline: &'static str, theirs: Of, aim: Option<Aim>) -> Line {
    let ours = ("blackout, pre-copy", Of::Blackout(usual(Strategy::PreCopy)));
    line(Part::Ways, ours, (baseline, theirs), aim)
}

const fn post_copy(measure: &'static str, ours: Of, theirs: Of) -> Line {
    line(Part::Ways, (measure, ours), ("ppmr", theirs), None)
}

const fn processes(measure: &'static str, count: u32) -> Line {
    let ours = (measure, Of::Took(of_processes(count)));
    let theirs = ("1 process", Of::Took(of_processes(1)));
    line(Part::Processes, ours, theirs, Some(Aim::AtMost(FLAT)))
}

const fn kernel(
    measure: &'static str,
    name: &'static str,
    strategy: Strategy,
    aim: Option<Aim>,
) -> Line {
    let ours = (measure, Of::Kernel(name, Some(strategy)));
    line(
        Part::Kernel(name),
        ours,
        ("none", Of::Kernel(name, None)),
        aim,
    )
}

/// By which ways a kernel is migrated: the paper has all of LU alone.
pub fn ways_of(kernel: &str) -> Vec<Strategy> {
    let of = |line: &Line| match line.ours {
        Of::Kernel(name, strategy) if name == kernel => strategy,
        _ => None,
    };
    LINES.iter().filter_map(of).collect()
}

/// All of them. Those of a part are neighbours.
pub const LINES: &[Line] = &[
    ways(
        "local, 1gbit",
        Of::Took(usual(Strategy::Local)),
        as_the_papers(paper::PPMR_S, paper::LOCAL_S),
    ),
    ways(
        "shared",
        Of::Took(usual(Strategy::Shared)),
        as_the_papers(paper::PPMR_S, paper::SHARED_S),
    ),
    ways(
        "rdma-local",
        Of::Took(usual(Strategy::RdmaLocal)),
        as_the_papers(paper::PPMR_S, paper::RDMA_LOCAL_S),
    ),
    ways("yardstick", Of::Yardstick, as_the_papers(1.0, OF_YARDSTICK)),
    pre_copy(
        "50 ms",
        Of::Milliseconds(BLACKOUT_MS),
        Some(Aim::AtMost(1.0)),
    ),
    pre_copy("ppmr", Of::Blackout(usual(Strategy::Ppmr)), None),
    post_copy(
        "blackout, post-copy",
        Of::Blackout(usual(Strategy::PostCopy)),
        Of::Blackout(usual(Strategy::Ppmr)),
    ),
    post_copy(
        "in all, post-copy",
        Of::Took(usual(Strategy::PostCopy)),
        Of::Took(usual(Strategy::Ppmr)),
    ),
    line(
        Part::Unlimited,
        ("migration 320M", Of::Took(unlimited(Strategy::Ppmr))),
        ("local", Of::Took(unlimited(Strategy::Local))),
        None,
    ),
    processes("2 processes", 2),
    processes("4 processes", 4),
    processes("8 processes", 8),
    line(
        Part::Large,
        ("migration 3472M", Of::Took(large(Strategy::Ppmr))),
        ("shared", Of::Took(large(Strategy::Shared))),
        as_the_papers(paper::LARGE.1, paper::LARGE.2),
    ),
    kernel(
        "lu, 3 by ppmr",
        "lu",
        Strategy::Ppmr,
        Some(Aim::AtMost(LONGER)),
    ),
    kernel("lu, 3 by shared", "lu", Strategy::Shared, None),
    kernel("lu, 3 by local", "lu", Strategy::Local, None),
    kernel(
        "bt, 3 by ppmr",
        "bt",
        Strategy::Ppmr,
        Some(Aim::AtMost(LONGER)),
    ),
    kernel(
        "sp, 3 by ppmr",
        "sp",
        Strategy::Ppmr,
        Some(Aim::AtMost(LONGER)),
    ),
];

impl Line {
    /// Its row; none where ours is not measured.
    pub fn row(&self, measured: &Measured) -> Option<Row> {
        let ours = measured.of(self.ours)?;
        let mut row = Row::new(
            self.measure.to_owned(),
            Unit::Milliseconds,
            self.baseline,
            self.aim,
        );
        let theirs = measured.of(self.theirs);
        let is_there: Vec<_> = ours.iter().map(Option::is_some).collect();
        row.ours = ours.into_iter().flatten().collect();
        // Runs in which ours failed have no ratio.
        row.samples = theirs.map(|theirs| {
            let both = theirs.into_iter().zip(is_there);
            both.filter(|(_, is_there)| *is_there)
                .map(|(theirs, _)| theirs)
                .collect()
        });
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims_are_the_papers_ratios() {
        assert_eq!(
            as_the_papers(paper::PPMR_S, paper::LOCAL_S),
            Some(Aim::AtMost(0.09))
        );
        assert_eq!(as_the_papers(1.0, OF_YARDSTICK), Some(Aim::AtMost(1.43)));
    }

    #[test]
    fn lines_of_a_part_are_neighbours_and_fit_the_table() {
        let mut parts: Vec<_> = LINES.iter().map(|line| line.part).collect();
        parts.dedup();
        for (at, part) in parts.iter().enumerate() {
            assert!(!parts[at + 1..].contains(part), "{part:?}");
        }
        assert!(
            LINES
                .iter()
                .all(|line| line.measure.len() <= 19 && line.baseline.len() <= 13)
        );
        assert_eq!(
            ways_of("lu"),
            [Strategy::Ppmr, Strategy::Shared, Strategy::Local]
        );
        assert_eq!(ways_of("sp"), [Strategy::Ppmr]);
    }

    #[test]
    fn who_is_compared_with_nobody_has_a_row() {
        let mut measured = Measured::default();
        let line = LINES.last().unwrap();
        assert!(line.row(&measured).is_none());
        measured.kernels.insert(
            ("sp", Some(Strategy::Ppmr)),
            vec![Some(1.0), None, Some(3.0)],
        );
        let row = line.row(&measured).unwrap();
        assert_eq!((row.ours, row.samples), (vec![1.0, 3.0], None));
        measured
            .kernels
            .insert(("sp", None), vec![Some(1.0), Some(2.0), None]);
        let row = line.row(&measured).unwrap();
        assert_eq!(row.samples, Some(vec![Some(1.0), None]));
    }
}
