//! The figures that the paper has of Snapify.

use super::{
    operations::{Operation, Phase, Piece, Row, Sample},
    overhead::{Overhead, WALL},
    paper,
};
use crate::report::figure::{Bar, Figure, Group};

/// What a group is of.
const OF: &str = "workload";

/// The paper's Figure 9.
pub fn of_overhead(overhead: &Overhead) -> Figure {
    let group = |row: &super::overhead::Row| {
        let samples = row.measures.get(WALL)?;
        let bar = |series, samples: &[f64]| {
            let rounds = samples.iter().map(|sample| vec![*sample]);
            Bar::of(&[series], rounds.collect())
        };
        let bars = [bar(0, &samples.with)?, bar(1, &samples.without)?];
        Some(Group {
            name: row.workload,
            bars: bars.into(),
        })
    };
    let (average, worst) = paper::OVERHEAD_PERCENT;
    Figure {
        title: "Figure 9: runtime without a snapshot".into(),
        unit: "ms",
        of: OF,
        series: vec!["with Snapify", "without"],
        groups: overhead.rows.iter().filter_map(group).collect(),
        paper: format!("The paper: {average} % more on average, less than {worst} % at worst."),
    }
}

/// The paper's Figure 10, as far as it was measured.
pub fn of_operations(rows: &[Row]) -> Vec<Figure> {
    let time = |title: &str, operation| {
        let phases = Operation::phases(operation);
        let value = |sample: &Sample| {
            let value = |phase| sample.phases_ms.get(phase).copied().unwrap_or(0.0);
            phases.iter().map(value).collect()
        };
        let of = |operation| groups(rows, operation, phases.len(), value);
        let groups = of(operation);
        let here = range(&groups, 1e3, "s");
        let paper = match paper::seconds(operation) {
            Some((from, to)) => format!("The paper: {from} to {to} s. Here: {here}."),
            None => format!(
                "Here: {here}.\nStopped, it takes {}.",
                times(&of(Operation::Migration), &groups)
            ),
        };
        Figure {
            title: title.into(),
            unit: "ms",
            of: OF,
            series: phases.iter().map(|phase| phase_name(*phase)).collect(),
            paper,
            groups,
        }
    };
    let all = [
        time("Figure 10 (a): checkpoint", Operation::Checkpoint),
        sizes(rows),
        time("Figure 10 (c): restart", Operation::Restart),
        time("Figure 10 (d): migration", Operation::Migration),
        time("How long a live migration stands still", Operation::Live),
        time("Figure 10 (e): swapping out", Operation::SwapOut),
        time("Figure 10 (f): swapping in", Operation::SwapIn),
    ];
    let is_measured = |figure: &Figure| !figure.groups.is_empty();
    all.into_iter().filter(is_measured).collect()
}

/// How many times as long as a live migration one takes that is stopped, from the least to the most.
fn times(stopped: &[Group], live: &[Group]) -> String {
    let times = live.iter().filter_map(|live| {
        let stopped = stopped.iter().find(|one| one.name == live.name)?;
        let total = |group: &Group| group.bars.first().map(Bar::total);
        Some((total(stopped)? / total(live)?, live.name))
    });
    match extremes(times) {
        Some(((least, of), (most, at_most))) => {
            format!("{least:.1} ({of}) to {most:.1} ({at_most}) times as long")
        }
        None => "as long".into(),
    }
}

fn sizes(rows: &[Row]) -> Figure {
    const PIECES: [Piece; 3] = [Piece::HostImage, Piece::OffloadImage, Piece::LocalStore];
    let value = |sample: &Sample| {
        let value = |piece| sample.bytes.get(piece).copied().unwrap_or(0) as f64 / 1e6;
        PIECES.iter().map(value).collect()
    };
    let groups = groups(rows, Operation::Checkpoint, PIECES.len(), value);
    let (from, to) = paper::CHECKPOINT_MB;
    Figure {
        title: "Figure 10 (b): size of a checkpoint".into(),
        unit: "MB",
        of: OF,
        series: vec!["host image", "offload image", "local store"],
        paper: format!(
            "The paper: {from} to {to} MB. Here: {}.",
            range(&groups, 1.0, "MB")
        ),
        groups,
    }
}

fn groups(
    rows: &[Row],
    operation: Operation,
    parts: usize,
    of: impl Fn(&Sample) -> Vec<f64>,
) -> Vec<Group> {
    let series: Vec<_> = (0..parts).collect();
    let rows = rows.iter().filter(|row| row.operation == operation);
    let group = |row: &Row| {
        let bar = Bar::of(&series, row.samples.iter().map(&of).collect())?;
        Some(Group {
            name: row.workload,
            bars: vec![bar],
        })
    };
    rows.filter_map(group).collect()
}

/// The lowest and the highest of the bars, with their names.
fn range(groups: &[Group], divisor: f64, unit: &str) -> String {
    let bars = groups.iter().flat_map(|group| {
        let bars = group.bars.iter();
        bars.map(|bar| (bar.total() / divisor, group.name))
    });
    match extremes(bars) {
        Some(((lowest, least), (highest, most))) => {
            format!("{lowest:.2} ({least}) to {highest:.2} {unit} ({most})")
        }
        None => "nothing".into(),
    }
}

/// A number, and what it is of.
type Named = (f64, &'static str);

/// The lowest and the highest.
fn extremes(all: impl Iterator<Item = Named>) -> Option<(Named, Named)> {
    let mut all: Vec<_> = all.collect();
    all.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    Some((*all.first()?, *all.last()?))
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Pause => "pause",
        Phase::Capture => "capture",
        Phase::Host => "host",
        Phase::Write => "write",
        Phase::Restore => "restore",
        Phase::Resume => "resume",
        Phase::Rest => "rest",
    }
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::report::figure::table;

    /// Rounds with fixed numbers: checkpoints of two workloads, and migrations of one.
    pub fn rows() -> Vec<Row> {
        let row = |workload, operation: Operation, totals: &[f64]| {
            let sample = |total: &f64| {
                let phases = operation.phases();
                let each = total / phases.len() as f64;
                Sample {
                    total_ms: *total,
                    phases_ms: phases.iter().map(|phase| (*phase, each)).collect(),
                    bytes: match operation {
                        Operation::Checkpoint => BTreeMap::from([
                            (Piece::HostImage, 1_000_000 + *total as u64),
                            (Piece::OffloadImage, 2_500_000),
                            (Piece::LocalStore, 128_000_000),
                        ]),
                        _ => BTreeMap::new(),
                    },
                }
            };
            Row {
                workload,
                operation,
                samples: totals.iter().map(sample).collect(),
            }
        };
        vec![
            row("MD", Operation::Checkpoint, &[60.0, 100.0, 50.0]),
            row("LU-MZ", Operation::Checkpoint, &[12_345.0, 23_456.0]),
            row("MD", Operation::Migration, &[25.0]),
            row("MD", Operation::Live, &[5.0]),
        ]
    }

    #[test]
    fn tables_fit_eighty_columns() {
        let figures = of_operations(&rows());
        let text: Vec<_> = figures.iter().map(table).collect();
        let text = text.join("\n");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        insta::assert_snapshot!(text);
    }
}
