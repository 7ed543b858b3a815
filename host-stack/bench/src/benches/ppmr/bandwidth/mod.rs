//! Stages of a pipeline alone, and all of it: the paper's section V-B.
//!
//! | stage | the paper's | what it is here |
//! |---|---|---|
//! | read | Figure 6 | messages of each size, read by RDMA out of the other process, as `ib_read_bw` does |
//! | aggregation | A, Figure 7 | writers fill chunks of the source's pool, which are free again at once |
//! | network | B, Figure 8 | chunks that nobody has written go to the target's pool, where nobody reads them |
//! | pipeline | C, Figure 8 | what writers have written goes to the target's pool, where nobody reads it |
//! | delivery | | the same, to readers, who verify it |
//!
//! Source and target are processes with an HCA each, and half of the processors each: what a node does does not take those of
//! the other one. Chunks go by RDMA, pulled or put, and over TCP; without the feature `rdma` over TCP alone, and the report
//! says so. Writers and readers are threads, and write and read 1 MiB at once, which is what a mount takes (the paper: 128
//! KiB).
//!
//! | module | what it is |
//! |---|---|
//! | [`point`] | what is measured |
//! | [`nodes`] | source and target |
//! | [`process`] | what each of them does |
//! | [`figures`] | the paper's figures, and ratios |
//! | [`paper`] | what the paper says of them |

mod figures;
mod nodes;
mod paper;
mod point;
mod process;

pub use self::process::run as run_process;

use std::collections::BTreeSet;

use self::{
    figures::{Measured, points},
    nodes::Nodes,
    point::{Front, K128, M8, MESSAGES, Point, Size, Stage, Way},
};
use super::{Found, Samples};
use crate::{
    AnyError,
    benches::verbs::{
        Pair,
        process::{Order, Verb},
    },
    options::Chosen,
    progress,
    table::Unit,
};

/// All images of a point together.
const BYTES: f64 = (512 << 20) as f64;
/// The least of them, whatever the scale.
const BYTES_MIN: u64 = 8 << 20;
/// The least number of messages that are read, as `ib_read_bw` was told in the paper.
const READS_MIN: usize = 100;

/// Measures what was chosen.
pub fn measure(chosen: &Chosen) -> Result<Found, AnyError> {
    let (common, only) = (&chosen.common, chosen.only.as_str());
    let reads: Vec<_> = MESSAGES
        .into_iter()
        .filter(|size| read_name(*size).contains(only))
        .collect();
    let mut points = chosen_points(only);
    let mut found = Found::default();
    let mut nodes = Nodes::start()?;
    for (what, needs_it, stage) in NEEDS {
        if points.iter().any(needs_it)
            && let Err(why) = nodes.measure(probe(stage), BYTES_MIN)
        {
            found.left_out.push(format!("{what} is left out: {why}"));
            points.retain(|point| !needs_it(point));
            // One of them may wait for the other one still.
            nodes = Nodes::start()?;
        }
    }
    let directory = tempfile::tempdir()?;
    let mut pair = None;
    if !reads.is_empty() {
        let is_pinned = crate::baselines::processors()?.len() > 1;
        pair = Some(Pair::start(directory.path(), is_pinned)?);
    }
    let bytes = ((BYTES * common.scale) as u64).max(BYTES_MIN);
    let mut measured = Measured::default();
    let bar = progress::bar(usize::from(common.runs) * (points.len() + reads.len()));
    for run in 0..common.runs {
        if let Some(pair) = &mut pair {
            for size in &reads {
                bar.set_message(read_name(*size));
                let rate = read(pair, *size, bytes)?;
                measured.reads.entry(*size).or_default().push(rate);
                bar.inc(1);
            }
        }
        // What disturbs the machine for a while disturbs neighbours alike, and nobody always comes first.
        if run > 0 {
            points.reverse();
        }
        for point in &points {
            bar.set_message(point.name());
            let measured_rate = nodes.measure(*point, bytes);
            let rate = measured_rate.map_err(|why| format!("{}: {why}", point.name()))?;
            measured.points.entry(*point).or_default().push(rate);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    found.figures = measured.figures();
    found.rows = measured.rows();
    found.samples = samples(measured);
    Ok(found)
}

/// Those with this in their names, and what they are compared with, in the order in which they are measured.
fn chosen_points(only: &str) -> Vec<Point> {
    let all = points().into_iter();
    let named: Vec<_> = all.filter(|point| point.name().contains(only)).collect();
    let beside = named.iter().flat_map(|point| point.beside());
    let all: BTreeSet<_> = beside.chain(named.iter().copied()).collect();
    all.into_iter().collect()
}

/// Its name, which points need it, and the stage that shows whether it is there.
type Need = (&'static str, fn(&Point) -> bool, Stage);

/// What not every machine and not every build has.
const NEEDS: [Need; 2] = [
    ("RDMA", is_rdma, Stage::Network(Way::Pull)),
    ("FUSE", is_fuse, Stage::Aggregation(Front::Fuse)),
];

fn is_rdma(point: &Point) -> bool {
    matches!(point.stage.way(), Some(Way::Pull | Way::Push))
}

fn is_fuse(point: &Point) -> bool {
    point.stage.front() == Front::Fuse
}

fn probe(stage: Stage) -> Point {
    Point {
        pool: M8,
        chunk: K128,
        writers: 1,
        stage,
    }
}

fn read_name(size: Size) -> String {
    format!("read {}", size.name)
}

/// GB/s of messages of this size.
fn read(pair: &mut Pair, size: Size, bytes: u64) -> Result<f64, AnyError> {
    let rates = pair.measure(Order::Bandwidth {
        verb: Verb::Read,
        bytes: size.bytes as usize,
        streams: false,
        count: ((bytes / size.bytes) as usize).max(READS_MIN),
    })?;
    Ok(*rates.first().ok_or("nothing was measured")?)
}

fn samples(measured: Measured) -> Vec<Samples> {
    let unit = Unit::Rate;
    let reads = measured
        .reads
        .into_iter()
        .map(|(size, samples)| (read_name(size), samples));
    let points = measured
        .points
        .into_iter()
        .map(|(point, samples)| (point.name(), samples));
    let all = reads.chain(points).map(|(measure, samples)| Samples {
        measure,
        unit,
        samples,
    });
    all.collect()
}
