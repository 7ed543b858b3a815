//! Figures, before they are text or plots: groups of bars, a bar a stack of parts.
//!
//! A bar is the round in the middle by its total, so that its parts are those of one and the same round and come to its
//! total; beside it is how far the totals of the others are, from the lowest to the highest.

use crate::table::short;

/// A figure.
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// What its numbers are given in.
    pub unit: &'static str,
    /// What groups are of.
    pub of: &'static str,
    /// What bars, or their parts, are of.
    pub series: Vec<&'static str>,
    /// In this order.
    pub groups: Vec<Group>,
    /// What the paper says of it.
    pub paper: String,
}

/// What belongs together.
pub struct Group {
    /// What it is of.
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
    pub fn of(series: &[usize], mut rounds: Vec<Vec<f64>>) -> Option<Self> {
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

/// The figure as a table, 80 columns wide.
pub fn table(figure: &Figure) -> String {
    let several = figure.groups.iter().any(|group| group.bars.len() > 1);
    let heads: String = match several {
        true => String::new(),
        false => columns(figure, figure.series.iter().map(|name| (*name).to_owned())),
    };
    let head = format!("{}, {}\n", figure.title, figure.unit);
    let mut text = head + &line(figure.of, "middle (lowest..highest)", &heads);
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

/// The figure as a table in which each series is a column, at most four of them: bars that are grouped, side by side.
pub fn columns_of_spreads(figure: &Figure) -> String {
    let line = |name: &str, cells: &mut dyn Iterator<Item = String>| {
        let cells: String = cells.map(|cell| format!("{cell:<18}")).collect();
        format!("{name:<7} {cells}").trim_end().to_owned() + "\n"
    };
    let heads = &mut figure.series.iter().map(|name| (*name).to_owned());
    let mut text = format!("{}, {}\n", figure.title, figure.unit) + &line(figure.of, heads);
    for group in &figure.groups {
        let cell = |series| {
            let is_of = |bar: &&Bar| bar.parts.first().is_some_and(|(of, _)| *of == series);
            group
                .bars
                .iter()
                .find(is_of)
                .map_or_else(|| "-".into(), spread)
        };
        text += &line(group.name, &mut (0..figure.series.len()).map(cell));
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
mod tests {
    use super::*;

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
}
