//! The table of a benchmark: ours beside a baseline, and the spread of their ratio over several runs.

use serde::Serialize;

use crate::AnyError;

/// What a measure is given in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// GB/s.
    #[serde(rename = "GB/s")]
    Rate,
    /// GFLOP/s.
    #[serde(rename = "GFLOP/s")]
    Arithmetic,
    /// MiB.
    #[serde(rename = "MiB")]
    Mebibytes,
}

/// What the ratio of ours to the baseline's is to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// That, or less.
    AtMost(f64),
    /// That, or more.
    AtLeast(f64),
}

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What is measured.
    pub measure: String,
    /// What it is given in.
    pub unit: Unit,
    /// A sample a run.
    pub ours: Vec<f64>,
    /// What it is compared with.
    pub baseline: &'static str,
    /// Samples of that; those of runs in which it failed are missing. None: it is not installed.
    pub samples: Option<Vec<Option<f64>>>,
    /// Filled in when it is printed.
    pub ratio: Option<Spread>,
    /// What the ratio is to be.
    pub aim: Option<Aim>,
}

/// Ratios of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    median: f64,
    lowest: f64,
    highest: f64,
}

#[derive(Serialize)]
struct Report {
    runs: u16,
    pinned: bool,
    rows: Vec<Row>,
}

/// Prints the rows of so many runs, with their ratios.
pub fn print(mut rows: Vec<Row>, runs: u16, pinned: bool, json: bool) -> Result<(), AnyError> {
    complete(&mut rows);
    if json {
        let report = Report { runs, pinned, rows };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table(&rows));
    }
    Ok(())
}

/// Fills ratios in.
pub fn complete(rows: &mut [Row]) {
    for row in rows {
        row.ratio = row.spread();
    }
}

impl Row {
    /// Without samples.
    pub fn new(measure: String, unit: Unit, baseline: &'static str, aim: Option<Aim>) -> Self {
        Self {
            measure,
            unit,
            ours: Vec::new(),
            baseline,
            samples: Some(Vec::new()),
            ratio: None,
            aim,
        }
    }

    /// Whether its measure has this in its name.
    pub fn is_named(&self, text: &str) -> bool {
        self.measure.contains(text)
    }

    fn spread(&self) -> Option<Spread> {
        let samples = self.samples.iter().flatten();
        let ratios = self.ours.iter().zip(samples);
        let mut ratios: Vec<_> = ratios
            .filter_map(|(ours, theirs)| Some(ours / (*theirs)?))
            .collect();
        ratios.sort_by(f64::total_cmp);
        Some(Spread {
            median: median(&ratios)?,
            lowest: *ratios.first()?,
            highest: *ratios.last()?,
        })
    }
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

/// The table, 80 columns wide.
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<19} {:>9}  {:<13} {:>9} {:<17} {}\n",
        "measure", "ours", "baseline", "", "ratio", "aim"
    );
    for row in rows {
        let value = |mut samples: Vec<f64>| {
            samples.sort_by(f64::total_cmp);
            let value = median(&samples)?;
            Some(match row.unit {
                Unit::Milliseconds => format!("{} ms", short(value)),
                Unit::Microseconds => format!("{value:.3} us"),
                Unit::Nanoseconds => format!("{} ns", short(value)),
                Unit::Rate => format!("{} GB/s", short(value)),
                Unit::Arithmetic => format!("{} GF/s", short(value)),
                Unit::Mebibytes => format!("{} MiB", short(value)),
            })
        };
        let theirs = match &row.samples {
            None => "missing".into(),
            Some(samples) => {
                let samples = samples.iter().copied().flatten().collect();
                value(samples).unwrap_or_else(|| "failed".into())
            }
        };
        let ratio = row.ratio.map_or_else(
            || "-".into(),
            |Spread {
                 median,
                 lowest,
                 highest,
             }| {
                format!("{} ({}..{})", short(median), short(lowest), short(highest))
            },
        );
        let aim = match row.aim {
            None => String::new(),
            Some(Aim::AtMost(most)) => format!("<={most}"),
            Some(Aim::AtLeast(least)) => format!(">={least}"),
        };
        let line = format!(
            "{:<19} {:>9}  {:<13} {:>9} {ratio:<17} {aim}",
            row.measure,
            value(row.ours.clone()).unwrap_or_default(),
            row.baseline,
            theirs,
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number in four characters, or as few more as it takes.
pub(crate) fn short(number: f64) -> String {
    match number {
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measure: &str, unit: Unit, ours: &[f64], aim: Option<Aim>) -> Row {
        Row {
            measure: measure.into(),
            unit,
            ours: ours.into(),
            baseline: "UCX tag",
            samples: Some(vec![Some(0.5), None, Some(0.25)]),
            ratio: None,
            aim,
        }
    }

    fn rows() -> Vec<Row> {
        let (us, rate) = (Unit::Microseconds, Unit::Rate);
        let least = Some(Aim::AtLeast(0.8));
        let mut rows = vec![
            row("send 8 B, 1024 QPs", us, &[0.5, 0.75, 1.0], None),
            row("write 64 KiB, cold", rate, &[120.0, 60.0, 5.0], least),
            row("write 8 B", us, &[0.5], Some(Aim::AtMost(2.0))),
            row("send 8 B, mean", us, &[0.5], None),
        ];
        rows[2].samples = Some(vec![None]);
        rows[3].samples = None;
        rows[3].baseline = "libfabric shm";
        for row in &mut rows {
            row.ratio = row.spread();
        }
        rows
    }

    #[test]
    fn a_table_names_what_is_missing_and_fits_eighty_columns() {
        let text = table(&rows());
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        insta::assert_snapshot!(text, @r"
        measure                  ours  baseline                ratio             aim
        send 8 B, 1024 QPs   0.750 us  UCX tag        0.500 us 4.00 (1.00..4.00)
        write 64 KiB, cold  60.0 GB/s  UCX tag       0.50 GB/s 240 (20.0..240)   >=0.8
        write 8 B            0.500 us  UCX tag          failed -                 <=2
        send 8 B, mean       0.500 us  libfabric shm   missing -
        ");
    }

    #[test]
    fn json_has_all_samples() {
        let json = serde_json::to_string(&rows()).expect("it has no maps");
        insta::assert_snapshot!(json.replace("},{", "},\n{"), @r#"
        [{"measure":"send 8 B, 1024 QPs","unit":"us","ours":[0.5,0.75,1.0],"baseline":"UCX tag","samples":[0.5,null,0.25],"ratio":{"median":4.0,"lowest":1.0,"highest":4.0},"aim":null},
        {"measure":"write 64 KiB, cold","unit":"GB/s","ours":[120.0,60.0,5.0],"baseline":"UCX tag","samples":[0.5,null,0.25],"ratio":{"median":240.0,"lowest":20.0,"highest":240.0},"aim":{"at_least":0.8}},
        {"measure":"write 8 B","unit":"us","ours":[0.5],"baseline":"UCX tag","samples":[null],"ratio":null,"aim":{"at_most":2.0}},
        {"measure":"send 8 B, mean","unit":"us","ours":[0.5],"baseline":"libfabric shm","samples":null,"ratio":null,"aim":null}]
        "#);
    }
}
