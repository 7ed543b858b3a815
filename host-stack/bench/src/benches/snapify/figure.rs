//! Figures as the paper has them, before they are text or plots: groups of bars, a bar a stack of parts.
//!
//! A bar is the round in the middle by its total, so that its parts are those of one and the same round and come to its
//! total; beside it is how far the totals of the others are, from the lowest to the highest.

use super::{
    operations::{Operation, Phase, Piece, Row, Sample},
    overhead::{Overhead, WALL},
    paper,
};
use crate::table::short;

/// A figure.
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// What its numbers are given in.
    pub unit: &'static str,
    /// What bars, or their parts, are of.
    pub series: Vec<&'static str>,
    /// A group a workload.
    pub groups: Vec<Group>,
    /// What the paper says of it.
    pub paper: String,
}

/// What belongs together.
pub struct Group {
    /// A workload.
    pub name: &'static str,
    /// Side by side.
    pub bars: Vec<Bar>,
}

/// A bar.
pub struct Bar {
    /// Parts from below: which of the series, and how much.
    pub parts: Vec<(usize, f64)>,
    /// The lowest and the highest total of all rounds.
    pub range: (f64, f64),
}

impl Bar {
    /// Of what there is of rounds. There is none of no round.
    fn of(series: &[usize], mut rounds: Vec<Vec<f64>>) -> Option<Self> {
        rounds.sort_by(|one, other| total(one).total_cmp(&total(other)));
        let middle = rounds.get(rounds.len().saturating_sub(1) / 2)?;
        let parts = series.iter().copied().zip(middle.iter().copied());
        Some(Self {
            parts: parts.collect(),
            range: (total(rounds.first()?), total(rounds.last()?)),
        })
    }

    /// All parts together.
    pub fn total(&self) -> f64 {
        self.parts.iter().map(|(_, value)| value).sum()
    }
}

fn total(parts: &[f64]) -> f64 {
    parts.iter().sum()
}

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

/// The figure as a table, 80 columns wide.
pub fn table(figure: &Figure) -> String {
    let several = figure.groups.iter().any(|group| group.bars.len() > 1);
    let heads: String = match several {
        true => String::new(),
        false => columns(figure, figure.series.iter().map(|name| (*name).to_owned())),
    };
    let head = format!("{}, {}\n", figure.title, figure.unit);
    let mut text = head + &line("workload", "middle (lowest..highest)", &heads);
    for group in &figure.groups {
        for bar in &group.bars {
            let values = bar.parts.iter().map(|(_, value)| short(*value));
            let values = if several {
                // A bar is one of the series then.
                let names = bar
                    .parts
                    .iter()
                    .filter_map(|(at, _)| figure.series.get(*at));
                names.copied().collect::<Vec<_>>().join(", ")
            } else {
                columns(figure, values)
            };
            text += &line(group.name, &spread(bar), &values);
        }
    }
    text + &figure.paper + "\n"
}

/// A bar's total, and how far others are.
pub fn spread(bar: &Bar) -> String {
    let (lowest, highest) = bar.range;
    let [total, lowest, highest] = [bar.total(), lowest, highest].map(short);
    format!("{total} ({lowest}..{highest})")
}

/// Each as wide as what is above it.
fn columns(figure: &Figure, values: impl Iterator<Item = String>) -> String {
    let all = figure.series.iter().zip(values);
    let column = |(name, value): (&&str, String)| {
        let width = name.len().max(8);
        format!(" {value:>width$}")
    };
    all.map(column).collect()
}

fn line(name: &str, total: &str, rest: &str) -> String {
    let line = format!("{name:<8}  {total:<24}{rest}");
    line.trim_end().to_owned() + "\n"
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use super::*;

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
    fn a_bar_is_the_round_in_the_middle() {
        let bar = Bar::of(
            &[3, 4],
            vec![vec![4.0, 1.0], vec![1.0, 1.0], vec![3.0, 0.0]],
        );
        let bar = bar.expect("there are rounds");
        assert_eq!(bar.parts, [(3, 3.0), (4, 0.0)]);
        assert_eq!((bar.total(), bar.range), (3.0, (2.0, 5.0)));
        assert!(Bar::of(&[0], Vec::new()).is_none());
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
