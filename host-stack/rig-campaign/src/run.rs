//! One run of a plan: a rig in a process of its own, the demo's application, a script of snapshots,
//! and what is left of all that.

use std::{
    fs::{self, File},
    os::unix::net::UnixListener,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{Arc, Mutex},
    time::Duration,
};

use snaprig_campaign::scenarios::offload::{Parameters, Variant};
use snaprig_card_platform::Kind;
use snaprig_fixtures::kmeans::Workload;
use snaprig_sim::Plan;
use snaprig_snapify::control::Command as Control;

use crate::{
    Error,
    check::{self, Violation},
    deadline::Deadline,
    faults::{Done, Faults, Victims, lift_limit, lock},
    host_process::{Controlled, HostProcess},
    plan::{Shape, interrupt_at},
    rig_process::RigProcess,
    shared,
    work::Work,
};

/// Longest run; one takes about a second, and twenty times as long in emulation.
const TIMEOUT: Duration = Duration::from_secs(180);
const CARD_BYTES: u64 = 256 << 20;

/// How the application ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It finished, with the golden result.
    Finished,
    /// It finished, with another one.
    Wrong,
    /// It was killed, or told that its process is lost.
    Lost,
}

impl Ending {
    /// Of a program that has left, or not, this result.
    pub fn of(status: ExitStatus, result: &Path, golden: &str) -> Self {
        match (status.success(), fs::read_to_string(result)) {
            (true, Ok(text)) if text == golden => Self::Finished,
            (true, _) => Self::Wrong,
            (false, _) => Self::Lost,
        }
    }
}

/// What there is to know of a run.
pub struct Seen {
    pub ending: Ending,
    /// Nothing could have brought its process back.
    pub can_be_lost: bool,
    /// Captures that were told to be complete.
    pub captures: u32,
    /// What commands were told.
    pub errors: Vec<String>,
    pub host_said: String,
    pub killed: Vec<String>,
    pub snapshot: PathBuf,
}

impl Seen {
    pub fn was_killed(&self, name: &str) -> bool {
        self.killed.iter().any(|killed| killed == name)
    }
}

/// What came of a run.
pub struct Outcome {
    pub violation: Violation,
    pub done: Done,
    /// What everybody said, for the report.
    pub log: String,
}

/// Runs a plan. An error is one of this program's or this machine's, not of what is tested.
pub fn run(plan: &Plan, platform: Option<Kind>, golden: &str) -> Result<Outcome, Error> {
    let deadline = Deadline::after(TIMEOUT);
    let Shape { cards, shared } = Shape::of(plan)?;
    let work = Work::new()?;
    let done: Arc<Mutex<Done>> = Arc::default();
    let said = work.path().join("rig.log");
    let err = File::create(&said)?.into();
    let memory = if shared {
        shared::CARD_BYTES
    } else {
        CARD_BYTES
    };
    let rig = RigProcess::start(cards, &[memory], platform, err, None, deadline);
    let mut rig = rig.map_err(|error| error.said(fs::read_to_string(&said).unwrap_or_default()))?;
    let rig_dir = rig.place.dir.clone();
    let ran = match shared {
        true => shared::run(plan, &mut rig, work.path(), &done, deadline),
        false => Application::run(plan, &mut rig, work.path(), &done, golden, deadline)
            .map(|seen| check::check(&seen)),
    };
    let left = rig.end(deadline);
    let done = std::mem::take(&mut *lock(&done));
    let log = log(work.path(), &done);
    let violation = match (ran, left) {
        (Err(error), _) | (_, Err(error)) if deadline.left().is_zero() => {
            check::a_hang(error.to_string())
        }
        (Err(error), _) | (_, Err(error)) => return Err(error.said(log)),
        (Ok(violation), Ok(left)) => violation.or_else(|| check::leaks(&rig_dir, &left)),
    };
    Ok(Outcome {
        violation,
        done,
        log,
    })
}

fn log(work: &Path, done: &Done) -> String {
    let mut log = done.log.join("\n");
    let entries = fs::read_dir(work).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "log"));
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&path).unwrap_or_default();
        log += &format!("\n== {name}\n{text}");
    }
    log
}

/// The host process, and the script.
struct Application<'a> {
    control: Controlled,
    rig: u32,
    cards: u16,
    done: &'a Mutex<Done>,
    /// The card that its process is on.
    home: u16,
    captures: u32,
    /// The snapshot of the present pause is complete.
    captured: bool,
    /// There is another pause to come: until then the application is not to end.
    holds: bool,
    errors: Vec<String>,
}

impl<'a> Application<'a> {
    fn run(
        plan: &Plan,
        rig: &mut RigProcess,
        work: &Path,
        done: &'a Arc<Mutex<Done>>,
        golden: &str,
        deadline: Deadline,
    ) -> Result<Seen, Error> {
        let (result, snapshot) = (work.join("result.txt"), work.join("snapshot"));
        let said = work.join("host.log");
        let log = File::create(&said)?.into();
        let dir = &rig.place.dir;
        let mut host = HostProcess::start(dir, &Workload::shipped(), &result, log, deadline)?;
        let mut application = Self {
            control: Controlled::connect(dir, host.pid(), deadline)?,
            rig: rig.child.id(),
            cards: plan.parameters_as::<Parameters>()?.cards,
            done,
            home: 1,
            captures: 0,
            captured: false,
            holds: false,
            errors: Vec::new(),
        };
        let listener = UnixListener::bind(work.join("steps.sock"))?;
        let steps = Control::TellSteps(work.join("steps.sock"));
        application.control.run("steps", &steps)?;
        let (announcements, _) = listener.accept()?;
        let victims = Victims {
            rig: rig.child.id(),
            programs: [("host".to_owned(), host.pid())].into(),
            arbiter: None,
            cards: rig.place.cards.clone(),
            rig_input: rig.input.take(),
            rig_output: rig.output.take(),
        };
        let faults = Mutex::new(Faults::new(plan, victims, done.clone()));
        let harm = std::thread::spawn(move || {
            Faults::listen(&faults, &announcements);
            Faults::of_lock(faults)
        });
        if !application.script(plan, &snapshot) {
            // Nobody will bring its process back: whoever runs it gives it up.
            host.kill()?;
        }
        fs::write(work.join("commands.log"), application.errors.join("\n"))?;
        let status = host.wait(deadline)?;
        // The announcements end with the host process.
        let victims = harm.join().unwrap_or_else(|panic| resume_unwind(panic));
        (rig.input, rig.output) = (victims.rig_input, victims.rig_output);
        rig.place.cards = victims.cards;
        Ok(Seen {
            ending: Ending::of(status, &result, golden),
            can_be_lost: application.can_be_lost(),
            captures: application.captures,
            errors: application.errors,
            host_said: fs::read_to_string(&said)?,
            killed: lock(done).killed.iter().cloned().collect(),
            snapshot,
        })
    }

    fn command(&mut self, step: &str, command: &Control) -> bool {
        match self.control.run(step, command) {
            Ok(_) => true,
            Err(error) => {
                self.errors.push(error.to_string());
                false
            }
        }
    }

    /// Snapshots as the scenario says; whether the application can go on.
    fn script(&mut self, plan: &Plan, snapshot: &Path) -> bool {
        let hold = Control::BreakAtRunFunction(interrupt_at(plan));
        if !self.command("run", &hold) {
            return false;
        }
        // A plan of another scenario is refused before it is run.
        let variant = Variant::named(&plan.scenario).unwrap_or(Variant::ALL[0]);
        self.holds = variant.rounds > 1;
        if !self.round(variant, snapshot) {
            return false;
        }
        if std::mem::take(&mut self.holds) {
            // Until now it was held. It goes on by one run function, as far as it gets.
            let next = Control::BreakAtRunFunction(interrupt_at(plan) + 1);
            let _ = self.command("run", &next);
            return self.round(variant, snapshot);
        }
        true
    }

    /// The application goes on from the pause; or no further than it is, if there is another one to come.
    fn resume(&mut self) -> bool {
        let hold = Control::BreakAtRunFunction(0);
        // If that fails, so does what comes next.
        let _ = self.holds && self.command("hold", &hold);
        self.command("resume", &Control::Resume)
    }

    fn round(&mut self, variant: Variant, snapshot: &Path) -> bool {
        self.captured = false;
        if variant.live {
            let next = self.home % self.cards + 1;
            // If that fails, it is paused without.
            let _ = self.command("copy", &Control::Copy(snapshot.to_owned(), Some(next)));
        }
        let paused = self.command("pause", &Control::Pause(snapshot.to_owned()));
        if !paused {
            lift_limit(self.rig);
            // It goes on without a snapshot, or is told that its card is gone.
            return true;
        }
        let begun = self.command("capture", &Control::Capture(variant.ends));
        self.captured = begun && self.command("wait", &Control::Wait);
        lift_limit(self.rig);
        if !self.captured {
            return self.resume();
        }
        self.captures += 1;
        if !variant.comes_back && self.resume() {
            return true;
        }
        // From the card after its own on, its own last: it is there still if it was not ended, and
        // has no successor.
        let (home, cards) = (self.home, self.cards);
        let mut is_at_home = !variant.ends && !self.was_reset(home);
        let targets = (0..cards).map(|step| (home + step) % cards + 1);
        targets.into_iter().any(|card| {
            let there =
                card == home && is_at_home || self.command("restore", &Control::Restore(card));
            is_at_home &= !there;
            let back = there && self.resume();
            if back {
                self.home = card;
            }
            back
        })
    }

    fn can_be_lost(&self) -> bool {
        let done = lock(self.done);
        let dead = |card: u16| {
            let names = [format!("card{card}"), format!("daemon{card}")];
            names.iter().any(|name| done.killed.contains(name))
        };
        let gone = ["rig", "host"]
            .iter()
            .any(|name| done.killed.contains(*name));
        let lost = dead(self.home) || done.restarted.contains(&format!("card{}", self.home));
        gone || !self.captured && lost || (1..=self.cards).all(dead)
    }

    fn was_reset(&self, card: u16) -> bool {
        lock(self.done).restarted.contains(&format!("card{card}"))
    }
}
