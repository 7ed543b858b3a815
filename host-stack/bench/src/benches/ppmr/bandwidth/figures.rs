//! What was measured as the figures of the paper, and the ratios of what was measured side by side.

use std::collections::BTreeMap;

use super::{
    paper,
    point::{CHUNKS, Front, K128, M1, M8, MESSAGES, POOLS, Point, Size, Stage, WRITERS, Way},
};
use crate::{
    report::figure::{Bar, Figure, Group},
    table::{Aim, Row, Unit},
};

/// The pipeline beside the slower one of its halves, at least.
const PIPELINE: f64 = 0.8;
/// A front of files beside one of calls, at least.
const FUSE: f64 = 0.5;

/// GB/s, one a run.
#[derive(Default)]
pub struct Measured {
    pub points: BTreeMap<Point, Vec<f64>>,
    /// By their bytes.
    pub reads: BTreeMap<Size, Vec<f64>>,
}

type Series<'a> = (&'static str, Box<dyn Fn(Column) -> Option<Point> + 'a>);

/// What changes from group to group.
#[derive(Clone, Copy)]
enum Column {
    Size(Size),
    Writers(u32),
}

impl Column {
    fn pool(self, chunk: Size, stage: Stage, writers: u32) -> Option<Point> {
        match self {
            Self::Size(pool) => Point::new(stage, pool, chunk, writers),
            Self::Writers(_) => None,
        }
    }

    fn chunk(self, pool: Size, stage: Stage, writers: u32) -> Option<Point> {
        match self {
            Self::Size(chunk) => Point::new(stage, pool, chunk, writers),
            Self::Writers(_) => None,
        }
    }

    fn writers(self, stage: Stage) -> Option<Point> {
        match self {
            Self::Size(_) => None,
            Self::Writers(writers) => Point::new(stage, M8, K128, writers),
        }
    }
}

/// A figure of points, before anything is measured.
struct Plan<'a> {
    title: &'static str,
    of: &'static str,
    columns: Vec<(&'static str, Column)>,
    series: Vec<Series<'a>>,
    paper: &'static str,
    /// Beside the slower one of both halves, instead of in GB/s.
    is_ratio: bool,
}

fn sizes(all: &[Size]) -> Vec<(&'static str, Column)> {
    all.iter()
        .map(|size| (size.name, Column::Size(*size)))
        .collect()
}

fn writers(all: &[(u32, &'static str)]) -> Vec<(&'static str, Column)> {
    let column = |(writers, name): &(u32, &'static str)| (*name, Column::Writers(*writers));
    all.iter().map(column).collect()
}

/// One writer, and eight, without FUSE and with it.
fn aggregation<'a>(
    at: impl Fn(Column, Stage, u32) -> Option<Point> + Copy + 'a,
) -> Vec<Series<'a>> {
    let one = |name, front, writers| -> Series<'a> {
        let stage = Stage::Aggregation(front);
        (name, Box::new(move |column| at(column, stage, writers)))
    };
    vec![
        one("1 writer", Front::Calls, 1),
        one("8 writers", Front::Calls, 8),
        one("1, by FUSE", Front::Fuse, 1),
        one("8, by FUSE", Front::Fuse, 8),
    ]
}

/// Eight writers, by each way, and one.
fn ways<'a>(
    stage: fn(Way) -> Stage,
    at: impl Fn(Column, Stage, u32) -> Option<Point> + Copy + 'a,
) -> Vec<Series<'a>> {
    let one = |name, way, writers| -> Series<'a> {
        (
            name,
            Box::new(move |column| at(column, stage(way), writers)),
        )
    };
    vec![
        one("pull", Way::Pull, 8),
        one("push", Way::Push, 8),
        one("TCP", Way::Tcp, 8),
        one("pull, 1 writer", Way::Pull, 1),
    ]
}

fn plans() -> Vec<Plan<'static>> {
    let by_pool = |column: Column, stage, writers| column.pool(K128, stage, writers);
    let of_8m = |column: Column, stage, writers| column.chunk(M8, stage, writers);
    let of_1m = |column: Column, stage, writers| column.chunk(M1, stage, writers);
    let plan = |title, of, columns, series, paper| Plan {
        title,
        of,
        columns,
        series,
        paper,
        is_ratio: false,
    };
    let (chunks, pools) = (sizes(&CHUNKS), sizes(&POOLS));
    let by_front = |name, front| -> Series<'static> {
        let stage = Stage::Aggregation(front);
        (name, Box::new(move |column: Column| column.writers(stage)))
    };
    let delivered = |name, way, front| -> Series<'static> {
        let stage = Stage::Delivery(way, front);
        (name, Box::new(move |column: Column| column.writers(stage)))
    };
    let ratio = |plan: Plan<'static>| Plan {
        is_ratio: true,
        ..plan
    };
    vec![
        plan(
            "Figure 7 (a): aggregation, pool of 1M",
            "chunk",
            chunks.clone(),
            aggregation(of_1m),
            paper::AGGREGATION_1M,
        ),
        plan(
            "Figure 7 (b): aggregation, pool of 8M",
            "chunk",
            chunks.clone(),
            aggregation(of_8m),
            paper::AGGREGATION_8M,
        ),
        plan(
            "Figure 7 (c): aggregation, chunks of 128K",
            "pool",
            pools.clone(),
            aggregation(by_pool),
            paper::AGGREGATION_POOLS,
        ),
        plan(
            "Figure 7 (b): aggregation, pool of 8M, chunks of 128K",
            "writers",
            writers(&WRITERS),
            vec![
                by_front("without FUSE", Front::Calls),
                by_front("by FUSE", Front::Fuse),
            ],
            paper::AGGREGATION_WRITERS,
        ),
        plan(
            "Figure 8 (a): network, 8 writers, chunks of 128K",
            "pool",
            pools.clone(),
            ways(Stage::Network, by_pool),
            paper::NETWORK_POOLS,
        ),
        plan(
            "Network, 8 writers, pool of 8M",
            "chunk",
            chunks.clone(),
            ways(Stage::Network, of_8m),
            paper::NETWORK_CHUNKS,
        ),
        plan(
            "Figure 8 (b): pipeline, 8 writers, pool of 8M",
            "chunk",
            chunks.clone(),
            ways(Stage::Pipeline, of_8m),
            paper::PIPELINE_CHUNKS,
        ),
        plan(
            "Figure 8 (c): pipeline, 8 writers, chunks of 128K",
            "pool",
            pools.clone(),
            ways(Stage::Pipeline, by_pool),
            paper::PIPELINE_POOLS,
        ),
        ratio(plan(
            "Pipeline beside the slower one of aggregation and network, pool of 8M",
            "chunk",
            chunks,
            ways(Stage::Pipeline, of_8m),
            paper::BOUND,
        )),
        ratio(plan(
            "The same, chunks of 128K",
            "pool",
            pools,
            ways(Stage::Pipeline, by_pool),
            paper::BOUND,
        )),
        plan(
            "To readers, who verify: pool of 8M, chunks of 128K",
            "writers",
            writers(&WRITERS[..2]),
            vec![
                delivered("pull", Way::Pull, Front::Calls),
                delivered("push", Way::Push, Front::Calls),
                delivered("TCP", Way::Tcp, Front::Calls),
                delivered("pull, by FUSE", Way::Pull, Front::Fuse),
            ],
            paper::DELIVERY,
        ),
    ]
}

/// All points of all figures.
pub fn points() -> Vec<Point> {
    let all = plans();
    let points = all.iter().flat_map(|plan| {
        let columns = plan.columns.iter();
        columns.flat_map(|(_, column)| plan.series.iter().filter_map(|(_, at)| at(*column)))
    });
    points.collect()
}

impl Measured {
    /// GB/s of the slower one of both halves of a pipeline, run by run.
    fn bound(&self, pipeline: Point) -> Option<Vec<f64>> {
        let halves: Option<Vec<_>> = pipeline
            .beside()
            .into_iter()
            .map(|half| self.points.get(&half))
            .collect();
        let halves = halves?;
        let (one, other) = (halves.first()?, halves.get(1)?);
        Some(
            one.iter()
                .zip(*other)
                .map(|(one, other)| one.min(*other))
                .collect(),
        )
    }

    fn values(&self, plan: &Plan<'_>, point: Point) -> Option<Vec<f64>> {
        let own = self.points.get(&point)?;
        match plan.is_ratio {
            false => Some(own.clone()),
            true => {
                let pairs = own.iter().zip(self.bound(point)?);
                Some(pairs.map(|(own, bound)| own / bound).collect())
            }
        }
    }

    /// Figures, as far as they were measured.
    pub fn figures(&self) -> Vec<Figure> {
        let plans = plans();
        let all = [self.reads()]
            .into_iter()
            .chain(plans.iter().map(|plan| self.figure(plan)));
        all.filter(|figure| !figure.groups.is_empty()).collect()
    }

    fn reads(&self) -> Figure {
        let groups = MESSAGES.iter().filter_map(|size| {
            let samples = self.reads.get(size)?;
            group(size.name, vec![bar(0, samples)?])
        });
        Figure {
            title: "Figure 6: RDMA read, 8 under way".into(),
            unit: "GB/s",
            of: "message",
            series: vec!["RDMA read"],
            groups: groups.collect(),
            paper: paper::READ.into(),
        }
    }

    fn figure(&self, plan: &Plan<'_>) -> Figure {
        let groups = plan.columns.iter().filter_map(|(name, column)| {
            let bars = plan
                .series
                .iter()
                .enumerate()
                .filter_map(|(series, (_, at))| bar(series, &self.values(plan, at(*column)?)?));
            group(name, bars.collect())
        });
        Figure {
            title: plan.title.into(),
            unit: if plan.is_ratio { "times" } else { "GB/s" },
            of: plan.of,
            series: plan.series.iter().map(|(name, _)| *name).collect(),
            groups: groups.collect(),
            paper: plan.paper.into(),
        }
    }

    /// The ratios that are to be something.
    pub fn rows(&self) -> Vec<Row> {
        let row = |point: &Point, own: &Vec<f64>| {
            let beside = point.beside();
            let (name, baseline, beside, least) = match point.stage {
                Stage::Pipeline(way) => (way.name(), "slower half", self.bound(*point)?, PIPELINE),
                Stage::Aggregation(Front::Fuse) | Stage::Delivery(_, Front::Fuse) => {
                    let calls = self.points.get(beside.first()?)?;
                    let name = match point.stage {
                        Stage::Aggregation(_) => "FUSE",
                        _ => "mounts",
                    };
                    (name, "without FUSE", calls.clone(), FUSE)
                }
                _ => return None,
            };
            let name = format!("{name} {}", point.sizes());
            let mut row = Row::new(name, Unit::Rate, baseline, Some(Aim::AtLeast(least)));
            row.ours = own.clone();
            row.samples = Some(beside.into_iter().map(Some).collect());
            Some(row)
        };
        let mut points: Vec<_> = self.points.iter().collect();
        points.sort_by_key(|(point, _)| (point.stage, **point));
        points
            .into_iter()
            .filter_map(|(point, own)| row(point, own))
            .collect()
    }
}

fn bar(series: usize, samples: &[f64]) -> Option<Bar> {
    Bar::of(
        &[series],
        samples.iter().map(|sample| vec![*sample]).collect(),
    )
}

fn group(name: &'static str, bars: Vec<Bar>) -> Option<Group> {
    (!bars.is_empty()).then_some(Group { name, bars })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::figure::columns_of_spreads, table};

    /// Everything, as if each run had been faster than the one before.
    fn measured() -> Measured {
        let samples = |times: f64| [1.0, 12.0, 20.0].map(|sample| sample * times).to_vec();
        let points = points().into_iter().map(|point| {
            let times = match point.stage {
                Stage::Aggregation(Front::Calls) => 1.0,
                Stage::Network(_) => 0.75,
                Stage::Pipeline(_) | Stage::Aggregation(_) | Stage::Delivery(..) => 0.5,
            };
            (point, samples(times))
        });
        let reads = MESSAGES.iter().map(|size| (*size, samples(1.0)));
        Measured {
            points: points.collect(),
            reads: reads.collect(),
        }
    }

    #[test]
    fn tables_fit_eighty_columns_and_align() {
        let measured = measured();
        let figures = measured.figures();
        let mut rows = measured.rows();
        table::complete(&mut rows);
        let all: Vec<_> = figures.iter().map(columns_of_spreads).collect();
        let rows_text = table::table(&rows);
        for line in all
            .iter()
            .flat_map(|text| text.lines())
            .chain(rows_text.lines())
        {
            assert!(line.len() <= 80, "{line}");
        }
        insta::assert_snapshot!(all[1], @r"
        Figure 7 (a): aggregation, pool of 1M, GB/s
        chunk   1 writer          8 writers         1, by FUSE        8, by FUSE
        16K     12.0 (1.00..20.0) 12.0 (1.00..20.0) 6.00 (0.50..10.0) 6.00 (0.50..10.0)
        32K     12.0 (1.00..20.0) 12.0 (1.00..20.0) 6.00 (0.50..10.0) 6.00 (0.50..10.0)
        64K     12.0 (1.00..20.0) 12.0 (1.00..20.0) 6.00 (0.50..10.0) 6.00 (0.50..10.0)
        128K    12.0 (1.00..20.0) 12.0 (1.00..20.0) 6.00 (0.50..10.0) 6.00 (0.50..10.0)
        256K    12.0 (1.00..20.0) -                 6.00 (0.50..10.0) -
        512K    12.0 (1.00..20.0) -                 6.00 (0.50..10.0) -
        1M      12.0 (1.00..20.0) -                 6.00 (0.50..10.0) -
        The paper: poor with chunks above 256K, which are too few then.
        ");
        let lines: Vec<_> = rows_text
            .lines()
            .filter(|line| line.contains("32M 128K x8"))
            .collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        FUSE 32M 128K x8    6.00 GB/s  without FUSE  12.0 GB/s 0.50 (0.50..0.50) >=0.5
        pull 32M 128K x8    6.00 GB/s  slower half   9.00 GB/s 0.67 (0.67..0.67) >=0.8
        push 32M 128K x8    6.00 GB/s  slower half   9.00 GB/s 0.67 (0.67..0.67) >=0.8
        TCP 32M 128K x8     6.00 GB/s  slower half   9.00 GB/s 0.67 (0.67..0.67) >=0.8
        ");
    }

    #[test]
    fn what_is_compared_is_measured_too() {
        let points = points();
        for point in &points {
            assert!(
                point.beside().iter().all(|beside| points.contains(beside)),
                "{point:?}"
            );
        }
    }

    #[test]
    fn without_its_halves_a_pipeline_has_no_ratio() {
        let mut measured = measured();
        measured
            .points
            .retain(|point, _| !matches!(point.stage, Stage::Network(_)));
        let is_of_pipeline = |row: &Row| row.baseline == "slower half";
        assert!(!measured.rows().iter().any(is_of_pipeline));
    }
}
