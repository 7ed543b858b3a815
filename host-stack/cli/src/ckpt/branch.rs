//! `snaprig ckpt branch`: a checkpoint that is restarted many times, each time with another fault plan.

use std::{
    fmt::Write,
    fs,
    io::{self, IsTerminal},
    ops::{ControlFlow, Range},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use snaprig_branch::{Branch, BranchError, Branches, Output, Results, Verdict, folder_name};
use snaprig_campaign::report::{escape, page, write_file};

use crate::AnyError;

/// Nothing can be branched.
const USAGE: u8 = 2;
/// What a shell says of who was interrupted.
const INTERRUPTED: u8 = 130;
/// Columns of the table.
const COLUMNS: usize = 80;
/// Columns of a row before its faults.
const FAULTS_AT: usize = 37;
/// Replay lines that are shown; the report has all.
const SHOWN_MAX: usize = 5;

/// What `ckpt branch` is told.
#[derive(Args)]
pub struct Options {
    /// Directory of a program's checkpoints, or of a job's
    #[arg(
        value_name = "DIR",
        env = "SNAPRIG_CKPT_DIR",
        default_value = "snaprig-ckpt"
    )]
    dir: PathBuf,
    /// Fault plans: a branch for each
    #[arg(long, value_name = "FILE", num_args = 1.., required_unless_present = "seeds")]
    plan: Vec<PathBuf>,
    /// A branch with a drawn plan for each seed, from A up to, but not including, B: a link that flaps, a GID that moves, a
    /// process that dies, packets that are lost, doubled, late or damaged
    #[arg(long, value_name = "A..B", value_parser = crate::campaign::range)]
    seeds: Option<Range<u64>>,
    /// What a program prints that has survived [default: what it prints without faults]
    #[arg(long, value_name = "FILE", conflicts_with = "any_output")]
    expect: Option<PathBuf>,
    /// Whatever it prints, its exit status counts alone
    #[arg(long)]
    any_output: bool,
    /// Lines of the output with this text in them do not count: what libraries say of faults
    #[arg(long, value_name = "TEXT", conflicts_with = "any_output")]
    ignore: Vec<String>,
    /// How long a branch may take; then it is killed [default: ten times as long as without faults, at least 10 s]
    #[arg(long, value_name = "SECONDS")]
    timeout_s: Option<f64>,
    /// How many branches run at once [default: as many as there are processors for their processes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Keep plans, outputs and a page in DIR, which is empty or not there yet
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// This checkpoint, and no other
    #[arg(long, value_name = "NUMBER")]
    round: Option<u64>,
    /// How many HCAs a branch has, or each of its nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    hcas: u32,
    /// How many nodes a job of `snaprig nodes` has [default: as many as it had]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// The model of all HCAs: A, B, or a letter for each
    #[arg(long, value_name = "LETTERS", default_value = "A", value_parser = letters)]
    model: String,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

fn letters(text: &str) -> Result<String, String> {
    let known = snaprig_fabric::place::parse_models(text);
    known
        .map(|_| text.to_owned())
        .ok_or(snaprig_fabric::place::MODELS.into())
}

/// Somebody at the terminal, or a signal, wants it to end.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: libc::c_int) {
    IS_STOPPED.store(true, Ordering::Relaxed);
}

/// Branches a checkpoint.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = stop as extern "C" fn(libc::c_int);
        // SAFETY: the handler stores to an atomic, which is async-signal-safe, and touches nothing else.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    let bar = progress_bar();
    let ran = branches(options).and_then(|branches| {
        Ok(branches.run_watched(&|done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            match IS_STOPPED.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?)
    });
    bar.finish_and_clear();
    let results = match ran {
        Ok(results) => results,
        // Not a branch that has not survived, whose exit status is another.
        Err(error) => {
            crate::report::error(&*error);
            let was_stopped = matches!(error.downcast_ref(), Some(BranchError::Stopped));
            return Ok(ExitCode::from(if was_stopped {
                INTERRUPTED
            } else {
                USAGE
            }));
        }
    };
    if let Some(report) = &options.report {
        let text = serde_json::to_vec_pretty(&results)?;
        write_file(&report.join("report.json"), &text)?;
        write_file(
            &report.join("report.html"),
            html(&results, options).as_bytes(),
        )?;
    }
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&results)?),
        false => print!("{}", table(&results)),
    }
    let others = results
        .branches
        .iter()
        .filter(|it| it.verdict != Verdict::Survived);
    for branch in others.take(SHOWN_MAX) {
        eprintln!("{}", replay(branch, options));
    }
    let all = results.survived() == results.branches.len();
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn branches(options: &Options) -> Result<Branches, AnyError> {
    let named = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let output = match &options.expect {
        Some(path) => Output::Exactly(fs::read(path).map_err(|error| named(path, error))?),
        None if options.any_output => Output::Any,
        None => Output::Same,
    };
    let time = options.timeout_s.map(super::seconds).transpose()?;
    let mut branches = Branches::of(&options.dir)
        .exe(std::env::current_exe()?)
        .round(options.round)
        .seeds(options.seeds.clone().unwrap_or_default())
        .hcas(options.hcas)
        .nodes(options.nodes)
        .models(&options.model)
        .output(output)
        .ignore(options.ignore.clone())
        .time(time)
        .jobs(options.jobs.map(usize::from))
        .report(options.report.clone());
    for file in &options.plan {
        branches = branches.plan_file(file)?;
    }
    Ok(branches)
}

fn progress_bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} branches, {eta} left")
        .expect("the template is a constant");
    let bar = ProgressBar::new(0).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A row for each branch, and below it how it ended if it has not survived; at most 80 columns.
fn table(results: &Results) -> String {
    let mut text = String::from("branch  verdict   seconds  happened  faults\n");
    for branch in std::iter::once(&results.undisturbed).chain(&results.branches) {
        let row = format!(
            "{:>6}  {:<8} {:>8.1}  {:>8}  {}",
            branch.number,
            branch.verdict.name(),
            branch.seconds,
            branch.faults,
            short(&branch.faults_text(), COLUMNS - FAULTS_AT)
        );
        text += &format!("{}\n", row.trim_end());
        let how = branch.verdict.to_string();
        if !how.is_empty() {
            text += &format!("        {}\n", short(&how, COLUMNS - 8));
        }
    }
    let (survived, count) = (results.survived(), results.branches.len());
    text += &format!("{survived} of {count} branches survived");
    let others = ["failed", "wrong", "hung"].map(|name| {
        let of = results.branches.iter();
        (of.filter(|it| it.verdict.name() == name).count(), name)
    });
    for (count, name) in others.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!(", {count} {name}");
    }
    text + "\n"
}

/// So many characters of it.
fn short(text: &str, columns: usize) -> String {
    match text.chars().count() > columns {
        true => text.chars().take(columns - 3).collect::<String>() + "...",
        false => text.to_owned(),
    }
}

/// The line that replays a branch.
fn replay(branch: &Branch, options: &Options) -> String {
    let mut line = format!("snaprig ckpt branch {}", options.dir.display());
    let kept = options.report.as_ref();
    let kept = kept.map(|report| report.join(folder_name(branch.number)).join("plan.json"));
    match (kept.or(branch.file.clone()), branch.plan.seed) {
        (Some(plan), _) => line += &format!(" --plan {}", plan.display()),
        (None, seed) => line += &format!(" --seeds {seed}..{}", seed.saturating_add(1)),
    }
    for (name, value) in [
        ("round", options.round.map(|it| it.to_string())),
        (
            "hcas",
            (options.hcas != 1).then(|| options.hcas.to_string()),
        ),
        ("nodes", options.nodes.map(|it| it.to_string())),
        (
            "model",
            (options.model != "A").then(|| options.model.clone()),
        ),
        (
            "expect",
            options.expect.as_ref().map(|it| it.display().to_string()),
        ),
        ("timeout-s", options.timeout_s.map(|it| it.to_string())),
    ] {
        if let Some(value) = value {
            line += &format!(" --{name} {value}");
        }
    }
    for text in &options.ignore {
        line += &format!(" --ignore '{}'", text.replace('\'', r"'\''"));
    }
    if options.any_output {
        line += " --any-output";
    }
    line
}

/// What the page looks like beside what all reports do.
const STYLE: &str = "\
table { border-collapse: collapse } th { text-align: left; color: #3c4650 }
th, td { padding: .3em .8em; border-bottom: 1px solid #c9d1d9; vertical-align: top }
td.number { text-align: right } .survived { color: #2f6f4e } .failed, .wrong, .hung { color: #b3261e; font-weight: bold }
code { font: 12px ui-monospace, monospace; color: #3c4650 }
";

/// The page of a report.
fn html(results: &Results, options: &Options) -> String {
    let (survived, count) = (results.survived(), results.branches.len());
    let mut rows = String::new();
    for branch in std::iter::once(&results.undisturbed).chain(&results.branches) {
        let folder = folder_name(branch.number);
        let verdict = branch.verdict.name();
        // Writing to a string cannot fail.
        let _ = writeln!(
            rows,
            "<tr><td class=\"number\">{}</td><td class=\"{verdict}\">{verdict}</td><td class=\"number\">{:.1}</td>\
             <td class=\"number\">{}</td><td>{}<br><code>{}</code></td>\
             <td><a href=\"{folder}/plan.json\">plan</a> <a href=\"{folder}/stdout\">stdout</a> \
             <a href=\"{folder}/stderr\">stderr</a></td><td>{}</td></tr>",
            branch.number,
            branch.seconds,
            branch.faults,
            escape(&branch.faults_text()),
            escape(&replay(branch, options)),
            escape(&branch.verdict.to_string()),
        );
    }
    let title = format!("{survived} of {count} branches survived");
    let body = format!(
        "<h1>{title}</h1><p>checkpoint {} of {}; branch 0 is the one without faults</p>\n\
         <table><tr><th>branch</th><th>verdict</th><th>seconds</th><th>happened</th><th>faults, and the line that replays \
         them</th><th>files</th><th>how it ended</th></tr>\n{rows}</table>",
        results.round,
        escape(&results.directory.display().to_string()),
    );
    page(&title, STYLE, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use snaprig_sim::Plan;

    fn branch(number: usize, faults: &str, verdict: Verdict) -> Branch {
        let text = format!(
            r#"{{"version": 1, "seed": {number}, "scenario": "verbs", "cards": 1, "faults": [{faults}]}}"#
        );
        let plan = Plan::parse(&text, "").expect("a plan");
        let happened = plan.faults.len() as u64;
        Branch {
            number,
            plan,
            file: None,
            verdict,
            has_run: true,
            faults: happened,
            seconds: 1.5,
        }
    }

    #[test]
    fn the_table_fits_eighty_columns() {
        let flap = r#"{"point": "fabric.time", "at_ns": 5000000, "kind": {"link_down": "hca1"}},
            {"point": "fabric.time", "at_ns": 90000000, "kind": {"link_up": "hca1"}}"#;
        let crash = r#"{"point": "fabric.time", "at_ns": 0, "kind": {"crash": "process2"}}"#;
        let damage = r#"{"point": "hca.packet", "per_mille": 15, "kind": {"corrupt": 7}}"#;
        let late = r#"{"point": "hca.response", "nth": 3, "kind": {"delay": 20000}}"#;
        let failed = Verdict::Failed {
            status: 137,
            said: "a rank was lost, and ".repeat(8),
        };
        let wrong = Verdict::Wrong {
            line: 3,
            said: Some("lu: iteration 30: 0".into()),
        };
        let results = Results {
            directory: "job".into(),
            round: 1,
            undisturbed: branch(0, "", Verdict::Survived),
            branches: vec![
                branch(1, flap, Verdict::Survived),
                branch(2, crash, failed),
                branch(3, damage, wrong),
                branch(4, late, Verdict::Hung),
            ],
        };
        let text = table(&results);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS));
        insta::assert_snapshot!(text, @r"
        branch  verdict   seconds  happened  faults
             0  survived      1.5         0  none
             1  survived      1.5         2  link_down hca1 at 5 ms, link_up hca1 at ...
             2  failed        1.5         1  crash process2 at 0 ms
                status 137: a rank was lost, and a rank was lost, and a rank was lost...
             3  wrong         1.5         1  corrupt packet 1.5%
                line 3: lu: iteration 30: 0
             4  hung          1.5         1  delay 20 us response 3
                killed when its time was over
        1 of 4 branches survived, 1 failed, 1 wrong, 1 hung
        ");
    }
}
