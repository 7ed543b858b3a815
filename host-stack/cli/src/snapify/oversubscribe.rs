//! `snaprig snapify oversubscribe`: offload processes of all programs of a rig take turns on its cards.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use clap::Args;
use snaprig_scif::client::rig_from_environment;
use snaprig_snapify::oversubscribe::{self, Oversubscriber, Report, policy::Settings};

use super::existing;
use crate::{AnyError, signals};

/// The most that is shown of a program's name.
const NAME_MAX: usize = 15;

/// What `oversubscribe` is told.
#[derive(Args)]
pub struct Options {
    /// The rig's directory [default: $SNAPRIG_RIG]
    #[arg(long, value_name = "DIR")]
    rig: Option<PathBuf>,
    /// A directory that there is, for snapshots of processes that are out [default: one of the rig's, which ends with it]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The shortest stay of a process on a card, in milliseconds. It is at least nine times as long as its swaps
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    quantum: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `evacuate` is told.
#[derive(Args)]
pub struct Evacuate {
    /// The card
    #[arg(value_name = "NODE", value_parser = clap::value_parser!(u16).range(1..))]
    card: u16,
    /// It is not about to fail any more
    #[arg(long)]
    cancel: bool,
    /// The rig's directory [default: $SNAPRIG_RIG]
    #[arg(long, value_name = "DIR")]
    rig: Option<PathBuf>,
}

fn rig(named: Option<&Path>) -> Result<PathBuf, AnyError> {
    let rig = named.map(Path::to_owned).or_else(rig_from_environment);
    Ok(rig.ok_or("which rig? --rig DIR, or SNAPRIG_RIG")?)
}

/// Runs until it is interrupted, or the rig ends.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    // Before there are other threads, which must not take the signals.
    let signals = signals::block(&signals::ENDS)?;
    let settings = Settings {
        quantum: Duration::from_millis(options.quantum),
        ..Settings::default()
    };
    let oversubscriber = Oversubscriber::start(oversubscribe::Options {
        rig: rig(options.rig.as_deref())?,
        directory: options.dir.as_deref().map(existing).transpose()?,
        settings,
    })?;
    eprintln!("processes take turns; interrupt to end that");
    let stop = oversubscriber.stopper();
    thread::spawn(move || {
        signals.wait();
        stop();
    });
    let report = oversubscriber.wait().ok_or("the arbiter has failed")?;
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", show(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells the one that runs.
pub fn evacuate(options: &Evacuate) -> Result<ExitCode, AnyError> {
    let rig = rig(options.rig.as_deref())?;
    oversubscribe::tell_failing(&rig, options.card, !options.cancel)?;
    Ok(ExitCode::SUCCESS)
}

/// A table of at most 80 columns, and what it comes to.
fn show(report: &Report) -> String {
    let mut text =
        "HOST PID  PROCESS  CARD   WANTED   SERVED  SHARE  SWAPS  FAILED  PROGRAM\n".to_owned();
    for row in &report.processes {
        let card = match (row.card, row.has_ended) {
            (Some(card), _) => card.to_string(),
            (None, true) => "-".into(),
            (None, false) => "out".into(),
        };
        let name: String = row.name.chars().take(NAME_MAX).collect();
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1e3);
        text += &format!(
            "{:>8}  {:>7}  {card:>4}  {:>7}  {:>7}  {:>4.0}%  {:>5}  {:>6}  {name}\n",
            row.host_pid,
            row.process,
            seconds(row.wanted_ms),
            seconds(row.served_ms),
            100.0 * row.share,
            row.swaps_out,
            row.failed,
        );
    }
    let out = report.processes.iter();
    let out = out.filter(|row| row.card.is_none() && !row.has_ended);
    let out: BTreeSet<_> = out.map(|row| row.host_pid.to_string()).collect();
    text += &format!(
        "fairness {:.3} (Jain's index), {:.1}% of the time went into swaps\n",
        report.fairness,
        100.0 * report.swapping
    );
    if !out.is_empty() {
        let hosts: Vec<_> = out.into_iter().collect();
        text += "`snaprig snapify swapin PID` brings back who is out; PID: ";
        text += &format!("{}\n", hosts.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use snaprig_snapify::oversubscribe::Row;

    use super::*;

    #[test]
    fn a_table_aligns_and_fits_eighty_columns() {
        let row = |host_pid, card, has_ended, name: &str| Row {
            host_pid,
            process: 1,
            name: name.into(),
            card,
            has_ended,
            wanted_ms: 61_300,
            served_ms: 20_400,
            resident_ms: 30_000,
            swapping_ms: 1500,
            swaps_out: 17,
            swaps_in: 17,
            failed: 0,
            share: 0.333,
        };
        let report = Report {
            processes: vec![
                row(77, None, true, "kmeans"),
                row(4_194_304, Some(2), false, "a-program-with-a-long-name"),
                row(78, None, false, "sort"),
            ],
            fairness: 0.9987,
            swapping: 0.0476,
        };
        let text = show(&report);
        assert!(text.lines().all(|line| line.chars().count() <= 80));
        insta::assert_snapshot!(text, @r"
        HOST PID  PROCESS  CARD   WANTED   SERVED  SHARE  SWAPS  FAILED  PROGRAM
              77        1     -   61.3 s   20.4 s    33%     17       0  kmeans
         4194304        1     2   61.3 s   20.4 s    33%     17       0  a-program-with-
              78        1   out   61.3 s   20.4 s    33%     17       0  sort
        fairness 0.999 (Jain's index), 4.8% of the time went into swaps
        `snaprig snapify swapin PID` brings back who is out; PID: 78
        ");
    }
}
