//! `snaprig bench snapify-io`: files between a card and the host, by Snapify-IO and by what a user would take instead: tables
//! 3 and 4 of the Snapify paper, with ours beside them.
//!
//! One program on the card (`fixtures/bench/snapify_io_card.c`) moves the same bytes by every way, compares what comes back,
//! and says how long each took; how that is repeated and put together is here.
//!
//! As JSON:
//!
//! ```text
//! { "runs": N, "left_out": { WAY: WHY, .. },
//!   "tables": [{ "table": 3 or 4, "direction": NAME, "rows": [{ "mib": N, "ways": { WAY: MEASURED, .. } }, ..] }, ..] }
//! MEASURED  { "seconds": [NUMBER, ..], "paper_seconds": NUMBER, "times": SPREAD, "paper_times": NUMBER }
//! SPREAD    { "median": NUMBER, "lowest": NUMBER, "highest": NUMBER }, of Snapify-IO's seconds, run by run
//! ```

mod paper;
pub(super) mod servers;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use clap::Args;
use serde::Serialize;
use snaprig_card_platform::Kind;
use snaprig_rig::{Rig, files::CardFiles, libraries};

use self::{
    paper::TABLES,
    servers::{NFS_PORT, Ssh},
};
use crate::{AnyError, BenchWith, compile::Programs, options::Common, progress};

/// Files between cards and the host.
pub static BENCH: BenchWith<Options> = BenchWith::new(
    "snapify-io",
    "Files between a card and the host: Snapify-IO beside scp, NFS and the card's memory",
    run,
);

/// What the benchmark is told.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    common: Common,
    /// Only files of 1 and 64 MiB
    #[arg(long)]
    quick: bool,
    /// Kind of card [default: the best that works here]
    #[arg(long)]
    platform: Option<Kind>,
}

/// How bytes come from a card to the host and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Way {
    /// scp(1), to an sshd on the host.
    #[serde(rename = "scp")]
    Scp,
    /// NFS, every write by itself.
    #[serde(rename = "nfs")]
    Nfs,
    /// NFS, what is written is collected where it comes from (the paper: in BLCR's kernel module).
    #[serde(rename = "nfs-kernel")]
    NfsKernel,
    /// NFS, what is written is collected by another process, behind a pipe.
    #[serde(rename = "nfs-user")]
    NfsUser,
    /// Not at all: it stays in the card's memory.
    #[serde(rename = "local")]
    Local,
    /// Ours.
    #[serde(rename = "snapify")]
    SnapifyIo,
}

impl Way {
    const ALL: [Self; 6] = [
        Self::Scp,
        Self::Nfs,
        Self::NfsKernel,
        Self::NfsUser,
        Self::Local,
        Self::SnapifyIo,
    ];

    /// In the program's output.
    fn key(self) -> &'static str {
        match self {
            Self::Scp => "scp",
            Self::Nfs => "nfs",
            Self::NfsKernel => "nfs-kernel",
            Self::NfsUser => "nfs-user",
            Self::Local => "local",
            Self::SnapifyIo => "snapify",
        }
    }

    /// At the head of a column.
    fn title(self) -> &'static str {
        match self {
            Self::Scp => "scp",
            Self::Nfs => "NFS",
            Self::NfsKernel => "NFS-k",
            Self::NfsUser => "NFS-u",
            Self::Local => "Local",
            Self::SnapifyIo => "S-IO",
        }
    }
}

const CARD: &str = include_str!("../../../../../fixtures/bench/snapify_io_card.c");
const RELAY: &str = include_str!("../../../../../fixtures/bench/snapify_io_relay.c");
/// Where the relay is on the card.
const RELAY_ON_CARD: &str = "/bin/snapify_io_relay";

/// Seconds, by table and direction, size, and way.
type Samples = BTreeMap<((u8, String), u32, Way), Vec<f64>>;

/// Runs the benchmark.
fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let runs = options.common.runs;
    let sizes: &[u32] = match (options.quick, options.common.scale < 1.0) {
        (_, true) => &[1],
        (true, _) => &[1, 64],
        _ => &[1, 64, 128, 256, 512, 1024],
    };
    let programs = Programs::new()?;
    let directory = tempfile::tempdir()?;
    let shared = directory.path().canonicalize()?.join("shared");
    fs::create_dir(&shared)?;
    let relay = compile(&programs, "relay", RELAY, &["-lscif", "-lpthread"])?;
    let mut left_out = BTreeMap::new();
    let card = match compile(
        &programs,
        "card",
        CARD,
        &["-DWITH_NFS", "-lsnapify", "-lnfs"],
    ) {
        Ok(card) => card,
        Err(_) => {
            left_out.insert(Way::Nfs, "libnfs is not installed (libnfs-dev)".to_owned());
            compile(&programs, "card", CARD, &["-lsnapify"])?
        }
    };
    let ssh = Ssh::prepare(directory.path(), RELAY_ON_CARD);
    let rig = start(options, sizes, &shared, &relay, ssh.as_ref().ok())?;
    let started = ssh.and_then(|ssh| {
        let server = ssh.start(&programs, &relay, rig.dir())?;
        Ok((ssh, server))
    });
    let ssh = started.map_err(|error| left_out.insert(Way::Scp, error.to_string()));
    let ssh = ssh.ok();
    let nfs = match left_out.contains_key(&Way::Nfs) {
        true => None,
        false => {
            let started = servers::nfs(&programs, directory.path(), &shared, &relay, rig.dir());
            let failed = started.map_err(|error| left_out.insert(Way::Nfs, error.to_string()));
            failed.ok()
        }
    };
    for (way, why) in &left_out {
        eprintln!("{} is left out: {why}", way.title());
    }
    let ways = [
        (ssh.is_some(), Way::Scp),
        (nfs.is_some(), Way::Nfs),
        (true, Way::Local),
        (true, Way::SnapifyIo),
    ];
    let ways = ways.iter().filter(|(is_here, _)| *is_here);
    let ways: Vec<_> = ways.map(|(_, way)| way.key()).collect();
    let mut samples = Samples::new();
    let each_mib: u32 = sizes.iter().sum();
    let bar = progress::bar(usize::from(runs) * each_mib as usize);
    for _ in 0..runs {
        for mib in sizes {
            bar.set_message(format!("MiB, of {mib} MiB now"));
            let mut command = Command::new(std::env::current_exe()?);
            command
                .args(["card", "exec", "--rig"])
                .arg(rig.dir())
                .arg("--")
                .arg(&card)
                .arg(mib.to_string())
                .arg(&shared)
                .args([&ways.join(","), RELAY_ON_CARD, &NFS_PORT.to_string()])
                .env("SHELL", "/bin/sh");
            if let Some((ssh, _)) = &ssh {
                command.args(&ssh.arguments);
            }
            measure(&mut command, *mib, &mut samples)?;
            bar.inc(u64::from(*mib));
        }
    }
    bar.finish_and_clear();
    let report = report(runs, left_out, &samples);
    match options.common.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", text(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

fn compile(
    programs: &Programs,
    name: &str,
    text: &str,
    more: &[&str],
) -> Result<std::path::PathBuf, AnyError> {
    let source = format!("{name}.c");
    programs.write(&source, text)?;
    let program = programs.path(name);
    programs.gcc(&program, &[programs.path(source)], more)?;
    Ok(program)
}

/// A card with room for the largest file, four times over.
fn start(
    options: &Options,
    sizes: &[u32],
    shared: &Path,
    relay: &Path,
    ssh: Option<&Ssh>,
) -> Result<Rig, AnyError> {
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let mut files = vec![CardFiles {
        host: relay.into(),
        card: RELAY_ON_CARD.into(),
    }];
    if let Some(ssh) = ssh {
        let brought = ssh.files.iter().map(|(host, card)| CardFiles {
            host: host.clone(),
            card: card.clone(),
        });
        files.extend(brought);
        let programs: Vec<_> = ssh.files.iter().map(|(host, _)| host.clone()).collect();
        files.extend(libraries::needed(&programs));
    }
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .platform(options.platform)
        .memory_bytes((512 + u64::from(largest) * 5) << 20)
        .files(files)
        .shares(vec![shared.into()])
        .start()?;
    Ok(rig)
}

fn measure(command: &mut Command, mib: u32, samples: &mut Samples) -> Result<(), AnyError> {
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the program on the card, {mib} MiB: {}", output.status).into());
    }
    for line in String::from_utf8(output.stdout)?.lines() {
        let (key, way, seconds) = parse(line).ok_or_else(|| format!("{line:?} is no measure"))?;
        samples.entry((key, mib, way)).or_default().push(seconds);
    }
    Ok(())
}

/// A line of the program's.
fn parse(line: &str) -> Option<((u8, String), Way, f64)> {
    let mut words = line.split(' ');
    let mut next = || words.next();
    let (table, direction, way, seconds) = (next()?, next()?, next()?, next()?);
    let way = Way::ALL.into_iter().find(|known| known.key() == way)?;
    let key = (table.parse().ok()?, direction.to_owned());
    Some((key, way, seconds.parse().ok()?))
}

#[derive(Serialize)]
struct Report {
    runs: u16,
    left_out: BTreeMap<Way, String>,
    tables: Vec<Measured>,
}

#[derive(Serialize)]
struct Measured {
    table: u8,
    direction: &'static str,
    #[serde(skip)]
    paper: &'static paper::Table,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    mib: u32,
    ways: BTreeMap<Way, Cell>,
}

#[derive(Serialize)]
struct Cell {
    seconds: Vec<f64>,
    paper_seconds: f64,
    times: Option<Spread>,
    paper_times: f64,
}

#[derive(Clone, Copy, Serialize)]
struct Spread {
    median: f64,
    lowest: f64,
    highest: f64,
}

fn report(runs: u16, left_out: BTreeMap<Way, String>, samples: &Samples) -> Report {
    let tables = TABLES.iter().map(|paper| {
        let (table, direction) = paper.key;
        let seconds = |mib, way| {
            let seconds = samples.get(&((table, direction.to_owned()), mib, way));
            seconds.cloned().unwrap_or_default()
        };
        let rows = paper.rows.iter().filter_map(|(mib, papers)| {
            let ours = seconds(*mib, Way::SnapifyIo);
            let papers_own = papers.last()?;
            let cells = paper.ways.iter().zip(*papers).map(|(way, paper_seconds)| {
                let seconds = seconds(*mib, *way);
                let times = seconds
                    .iter()
                    .zip(&ours)
                    .map(|(theirs, ours)| theirs / ours);
                let cell = Cell {
                    times: spread(times.collect()),
                    seconds,
                    paper_seconds: *paper_seconds,
                    paper_times: paper_seconds / papers_own,
                };
                (*way, cell)
            });
            let ways = cells.collect();
            (!ours.is_empty()).then_some(Row { mib: *mib, ways })
        });
        Measured {
            table,
            direction,
            paper,
            rows: rows.collect(),
        }
    });
    let tables = tables.collect();
    Report {
        runs,
        left_out,
        tables,
    }
}

fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    Some(Spread {
        median: *values.get(values.len() / 2)?,
        lowest: *values.first()?,
        highest: *values.last()?,
    })
}

/// The paper's tables with ours above each of its lines; behind seconds, how often Snapify-IO's they are.
fn text(report: &Report) -> String {
    let mut text = String::new();
    for table in &report.tables {
        let others = [Way::Scp, Way::Nfs];
        let others: Vec<_> = others
            .into_iter()
            .filter(|way| table.paper.ways.contains(way))
            .collect();
        // A string takes it all.
        let _ = write!(
            text,
            "{}; seconds\n{:>5} {:<5}",
            table.paper.title, "MiB", ""
        );
        for way in table.paper.ways {
            let _ = write!(text, " {:>7}", way.title());
        }
        for way in &others {
            let _ = write!(text, "  {:<17}", format!("{} : S-IO", way.title()));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        for row in &table.rows {
            for is_here in [true, false] {
                let mib = match is_here {
                    true => row.mib.to_string(),
                    false => String::new(),
                };
                let whose = if is_here { "here" } else { "paper" };
                let _ = write!(text, "{mib:>5} {whose:<5}");
                for cell in table.paper.ways.iter().filter_map(|way| row.ways.get(way)) {
                    let seconds = match is_here {
                        true => spread(cell.seconds.clone()).map(|spread| spread.median),
                        false => Some(cell.paper_seconds),
                    };
                    let seconds = seconds.map_or_else(|| "-".into(), short);
                    let _ = write!(text, " {seconds:>7}");
                }
                for cell in others.iter().filter_map(|way| row.ways.get(way)) {
                    let times = match (is_here, cell.times) {
                        (true, None) => "-".into(),
                        (true, Some(all)) => {
                            let [median, lowest, highest] =
                                [all.median, all.lowest, all.highest].map(short);
                            format!("{median} ({lowest}..{highest})")
                        }
                        (false, _) => short(cell.paper_times),
                    };
                    let _ = write!(text, "  {times:<17}");
                }
                text.truncate(text.trim_end().len());
                text.push('\n');
            }
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// A number in few characters.
fn short(number: f64) -> String {
    match number {
        ..0.0995 => format!("{number:.3}"),
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_papers_numbers_below_ours() {
        let lines = [
            "3 write scp 0.5",
            "3 write snapify 0.25",
            "3 read snapify 0.125",
            "4 checkpoint nfs 12.5",
            "4 checkpoint nfs-kernel 5",
            "4 checkpoint local 0.001",
            "4 checkpoint snapify 0.0625",
        ];
        let mut samples = Samples::new();
        for (factor, line) in [1.0, 2.0, 3.0]
            .iter()
            .flat_map(|f| lines.map(|line| (f, line)))
        {
            let (key, way, seconds) = parse(line).unwrap();
            let seconds = if way == Way::SnapifyIo {
                seconds
            } else {
                seconds * factor
            };
            samples.entry((key, 64, way)).or_default().push(seconds);
        }
        assert!(parse("3 write ftp 1").is_none());
        let report = report(3, BTreeMap::new(), &samples);
        let text = text(&report);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        insta::assert_snapshot!(text, @r"
        Table 3: a file is copied from the card to the host; seconds
          MiB           scp     NFS    S-IO  scp : S-IO         NFS : S-IO
           64 here     1.00       -    0.25  4.00 (2.00..6.00)  -
              paper    15.1    3.23    0.43  35.0               7.51

        Table 3: a file is copied from the host to the card; seconds
          MiB           scp     NFS    S-IO  scp : S-IO         NFS : S-IO
           64 here        -       -    0.12  -                  -
              paper    14.1    1.94    0.53  26.6               3.66

        Table 4: a checkpoint is written; seconds
          MiB         Local     NFS   NFS-k   NFS-u    S-IO  NFS : S-IO
           64 here    0.002    25.0    10.0       -   0.062  400 (200..600)
              paper    2.38    71.2    3.25    4.81    2.28  31.2

        Table 4: a checkpoint is read; seconds
          MiB         Local     NFS    S-IO  NFS : S-IO
        ");
        let json = serde_json::to_string(&report.tables[0].rows).unwrap();
        let scp = r#""scp":{"seconds":[0.5,1.0,1.5],"paper_seconds":15.07,"times":{"median":4.0,"lowest":2.0,"highest":6.0}"#;
        assert!(json.contains(scp), "{json}");
    }
}
