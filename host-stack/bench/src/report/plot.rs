//! Where everything of a plot is: bars in groups, their parts, how far rounds are apart, the axis. In units of an SVG.

use serde::Serialize;

use super::figure::{Bar, Figure, Group, spread};
use crate::table::short;

/// The plot's size, and the room left of the axis, above and below.
const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const ABOVE: f64 = 12.0;
const BELOW: f64 = 28.0;
/// How much of its room a group takes.
const FILLED: f64 = 0.6;
/// Half the width of the ends of an error bar.
const CAP: f64 = 5.0;
/// About as many lines are across.
const TICKS: f64 = 5.0;

/// A plot.
#[derive(Debug, Serialize)]
pub struct Plot {
    width: f64,
    height: f64,
    left: f64,
    /// Where nothing is, and names are below.
    bottom: f64,
    ticks: Vec<Tick>,
    names: Vec<Name>,
    boxes: Vec<Part>,
    errors: Vec<Error>,
}

/// A line across.
#[derive(Debug, Serialize)]
struct Tick {
    y: f64,
    label: String,
}

/// What a group is called.
#[derive(Debug, Serialize)]
struct Name {
    x: f64,
    text: &'static str,
}

/// A part of a bar.
#[derive(Debug, Serialize)]
struct Part {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    series: usize,
    title: String,
}

/// From the lowest to the highest total.
#[derive(Debug, Serialize)]
struct Error {
    x: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    title: String,
}

/// Lays a figure out.
pub fn lay_out(figure: &Figure) -> Plot {
    let bars = figure.groups.iter().flat_map(|group| &group.bars);
    let highest = bars.map(|bar| bar.range.1.max(bar.total()));
    let highest = highest.fold(0.0, f64::max);
    let step = step(highest);
    let lines = (highest / step).ceil().max(1.0);
    let scale = Scale(lines * step);
    let mut plot = Plot {
        width: WIDTH,
        height: HEIGHT,
        left: LEFT,
        bottom: scale.y(0.0),
        ticks: ticks(step, lines as usize, &scale),
        names: Vec::new(),
        boxes: Vec::new(),
        errors: Vec::new(),
    };
    let room = (WIDTH - LEFT) / figure.groups.len().max(1) as f64;
    for (at, group) in figure.groups.iter().enumerate() {
        let left = LEFT + room * at as f64;
        plot.names.push(Name {
            x: rounded(left + room / 2.0),
            text: group.name,
        });
        plot.add(
            figure,
            group,
            left + room * (1.0 - FILLED) / 2.0,
            room,
            &scale,
        );
    }
    plot
}

/// What is at the top.
struct Scale(f64);

impl Scale {
    fn y(&self, value: f64) -> f64 {
        let room = HEIGHT - ABOVE - BELOW;
        rounded(HEIGHT - BELOW - room * value / self.0)
    }
}

impl Plot {
    fn add(&mut self, figure: &Figure, group: &Group, left: f64, room: f64, scale: &Scale) {
        let width = room * FILLED / group.bars.len().max(1) as f64;
        for (at, bar) in group.bars.iter().enumerate() {
            let x = left + width * at as f64;
            self.stack(figure, group, bar, (x, width), scale);
            let (lowest, highest) = bar.range;
            let middle = x + width / 2.0;
            self.errors.push(Error {
                x: rounded(middle),
                left: rounded(middle - CAP),
                right: rounded(middle + CAP),
                top: scale.y(highest),
                bottom: scale.y(lowest),
                title: format!("{}: {} {}", group.name, spread(bar), figure.unit),
            });
        }
    }

    fn stack(
        &mut self,
        figure: &Figure,
        group: &Group,
        bar: &Bar,
        (x, width): (f64, f64),
        scale: &Scale,
    ) {
        let mut below = 0.0;
        for (series, value) in &bar.parts {
            let (y, foot) = (scale.y(below + value), scale.y(below));
            below += value;
            let of = figure.series.get(*series).copied().unwrap_or_default();
            self.boxes.push(Part {
                x: rounded(x),
                y,
                width: rounded(width),
                height: rounded(foot - y),
                series: *series,
                title: format!("{}, {of}: {} {}", group.name, short(*value), figure.unit),
            });
        }
    }
}

fn ticks(step: f64, lines: usize, scale: &Scale) -> Vec<Tick> {
    let digits = if step < 1.0 { 2 } else { 0 };
    let tick = |at: usize| {
        let value = step * at as f64;
        Tick {
            y: scale.y(value),
            label: format!("{value:.digits$}"),
        }
    };
    (0..=lines).map(tick).collect()
}

/// 1, 2 or 5 of a power of ten.
fn step(highest: f64) -> f64 {
    let least = (highest / TICKS).max(0.01);
    let power = 10f64.powf(least.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let steps = factors.map(|factor| factor * power);
    let fits = steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9));
    fits.unwrap_or(10.0 * power)
}

/// To tenths: a document need not have more.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::snapify::figure;

    #[test]
    fn lines_are_at_round_numbers() {
        let steps = [
            (0.0, 0.01),
            (1.0, 0.2),
            (5.0, 1.0),
            (5.1, 2.0),
            (23_456.0, 5_000.0),
        ];
        for (highest, expected) in steps {
            assert!((step(highest) - expected).abs() < 1e-9, "{highest}");
        }
        assert!((step(f64::MAX.sqrt()) / f64::MAX.sqrt()) > 0.1);
    }

    #[test]
    fn nothing_is_outside_and_parts_stand_on_each_other() {
        for figure in figure::of_operations(&figure::tests::rows()) {
            let plot = lay_out(&figure);
            let is_within =
                |x: f64, y: f64| (LEFT..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y);
            for part in &plot.boxes {
                assert!(is_within(part.x, part.y), "{part:?}");
                let (right, foot) = (part.x + part.width, part.y + part.height);
                assert!(is_within(right, foot - 1e-9), "{part:?}");
            }
            assert!(
                plot.errors
                    .iter()
                    .all(|error| is_within(error.x, error.top))
            );
            for pair in plot.boxes.windows(2) {
                let foot = pair[1].y + pair[1].height;
                let stands = if pair[0].x == pair[1].x {
                    pair[0].y
                } else {
                    plot.bottom
                };
                assert!((foot - stands).abs() < 1e-6, "{pair:?}");
            }
            assert_eq!(plot.names.len(), figure.groups.len());
        }
    }
}
