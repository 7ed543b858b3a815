//! `snaprig campaign --rig`: the demo's application on real rigs, with a process killed (SIGKILL) at
//! a step that the seed draws. Whoever still can finishes, with the golden result; everybody else
//! is told.

use std::{fmt, fs, process::ExitCode, time::Duration};

use serde::Serialize;
use snaprig_fixtures::kmeans::{self, Workload};
use snaprig_rig::Rig;
use snaprig_sim::Random;
use snaprig_snapify::{Step, control::Command as Control};

use super::Options;
use crate::{
    AnyError,
    host_process::{Controlled, Deadline, HostProcess},
};

const CARDS: u16 = 3;
/// Longest run; one takes about half a second, and twenty times as long in emulation.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Run functions after which a run may be interrupted, from 2.
const INTERRUPT_MAX: u64 = 28;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Victim {
    Card(u16),
    Host,
    Nobody,
}

/// What a seed draws.
#[derive(Clone, Debug, Serialize)]
struct Draw {
    seed: u64,
    interrupt_at: u64,
    terminate: bool,
    step: Step,
    victim: Victim,
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let victim = match self.victim {
            Victim::Card(node) => format!("card {node}"),
            Victim::Host => "the host process".into(),
            Victim::Nobody => "nobody".into(),
        };
        write!(
            f,
            "run function {}, {} dies at {:?}",
            self.interrupt_at, victim, self.step
        )
    }
}

fn draw(seed: u64) -> Draw {
    let mut random = Random::new(seed, "rig");
    let victim = match random.below(8) {
        0 => Victim::Nobody,
        1 => Victim::Host,
        2..=4 => Victim::Card(1),
        5 | 6 => Victim::Card(2),
        _ => Victim::Card(3),
    };
    Draw {
        seed,
        interrupt_at: 2 + random.below(INTERRUPT_MAX),
        terminate: random.one_in(2),
        step: random.pick(&Step::ALL).copied().unwrap_or(Step::Agree),
        victim,
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Ending {
    /// The application finished, with the golden result.
    Finished,
    /// It was killed, or told that its process is lost.
    Lost,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    draw: Draw,
    ending: Option<Ending>,
    violation: Option<String>,
}

/// Runs the seeds, one rig after the other.
pub fn campaign(options: &Options) -> Result<ExitCode, AnyError> {
    let bar = super::progress_bar();
    bar.set_length(options.seeds.end - options.seeds.start);
    let golden = kmeans::golden(&Workload::shipped()).to_text();
    let mut rows = Vec::new();
    for seed in options.seeds.clone() {
        let draw = draw(seed);
        let (ending, violation) = match run(&draw, options, &golden) {
            Ok(ending) => (Some(ending), None),
            Err(error) => (None, Some(error.to_string())),
        };
        if let Some(violation) = &violation {
            bar.suspend(|| eprintln!("seed {seed}: {draw}: {violation}"));
        }
        rows.push(Row {
            draw,
            ending,
            violation,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let violations = rows.iter().filter(|row| row.violation.is_some()).count();
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&rows)?),
        false => {
            let count = |ending| rows.iter().filter(|row| row.ending == Some(ending)).count();
            println!(
                "{} runs on real rigs: {} finished, {} lost; {violations} violations",
                rows.len(),
                count(Ending::Finished),
                count(Ending::Lost)
            );
        }
    }
    Ok(match violations {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// One run; a violation is an error.
fn run(draw: &Draw, options: &Options, golden: &str) -> Result<Ending, AnyError> {
    let deadline = Deadline::after(TIMEOUT);
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .cards(CARDS.into())
        .memory_bytes(256 << 20)
        .platform(options.platform)
        .start()?;
    let result = rig.dir().join("result.txt");
    let mut host = HostProcess::start(rig.dir(), &Workload::shipped(), &result, deadline)?;
    let mut control = Controlled::connect(rig.dir(), &host, deadline)?;
    let victim = match draw.victim {
        Victim::Card(node) => Some(rig.cards()[usize::from(node) - 1].pid()),
        Victim::Host => Some(host.pid()),
        Victim::Nobody => None,
    };
    if let Some(pid) = victim {
        control.run("kill", &Control::KillAt(draw.step, pid))?;
    }
    let well = script(draw, &mut control, &rig.dir().join("snapshot"));
    if !well {
        // Nobody will bring its process back: whoever runs it gives it up.
        host.kill()?;
    }
    let status = host.wait(deadline)?;
    let ending = match (status.success(), fs::read_to_string(&result)) {
        (true, Ok(text)) if text == golden => Ending::Finished,
        (true, _) => return Err("the result is not the golden one".into()),
        (false, _) => Ending::Lost,
    };
    let excused = match draw.victim {
        Victim::Nobody | Victim::Card(3) => false,
        // Once the capture is complete card 1 is not needed any more.
        Victim::Card(1) => draw.step <= Step::Capture,
        Victim::Card(_) => false,
        Victim::Host => true,
    };
    if ending == Ending::Lost && !excused {
        return Err("the application was lost, though its process could be brought back".into());
    }
    let partial = rig.dir().join("snapshot.partial");
    if draw.victim != Victim::Host && partial.exists() {
        return Err("a half-made snapshot is left".into());
    }
    Ok(ending)
}

/// Pause, capture, restore, resume, on whatever card will do; whether the application can go on.
fn script(draw: &Draw, control: &mut Controlled, snapshot: &std::path::Path) -> bool {
    let mut run = |step, command| control.run(step, &command).is_ok();
    if !run("run", Control::BreakAtRunFunction(draw.interrupt_at)) {
        return false;
    }
    if !run("pause", Control::Pause(snapshot.to_owned())) {
        // It goes on without a snapshot, or is told that its card is gone.
        return true;
    }
    let captured = run("capture", Control::Capture(draw.terminate)) && run("wait", Control::Wait);
    if !captured {
        return run("resume", Control::Resume);
    }
    (2..=CARDS).any(|card| run("restore", Control::Restore(card)) && run("resume", Control::Resume))
}
