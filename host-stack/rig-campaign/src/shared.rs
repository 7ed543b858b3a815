//! A run of programs that share cards which are too small for all of them: their processes take turns, and whoever is
//! harmed while one goes or comes, the others finish.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::net::{UnixListener, UnixStream},
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use snaprig_campaign::scenarios::oversubscribe::Parameters;
use snaprig_fixtures::kmeans::{self, Workload};
use snaprig_sim::Plan;
use snaprig_snapify::control::Command as Control;

use crate::{
    Error,
    check::{self, Violation},
    deadline::Deadline,
    faults::{Done, Faults, Victims, lock},
    host_process::{Controlled, HostProcess},
    rig_process::RigProcess,
    run::Ending,
};

/// Two processes fit on a card of this size, as these programs have them, and leave room for what nobody is asked for: heaps,
/// and files.
pub const CARD_BYTES: u64 = 128 << 20;
/// Points of each program: 34 MB, and some seconds of work where they take turns.
const POINTS: usize = 1_400_000;
/// How long a process stays at least, in milliseconds.
const QUANTUM: &str = "50";
/// Before another arbiter is started in place of one that has ended, whatever it died of.
const PAUSE: Duration = Duration::from_millis(100);

/// The program of this number, from 1, in plans.
pub fn program(number: usize) -> String {
    format!("program{number}")
}

/// How one of the programs ended.
pub struct Program {
    pub name: String,
    pub ending: Ending,
    /// On standard error.
    pub said: String,
}

/// The arbiter; whoever looks after the machine starts it again when it is killed.
struct Arbiter {
    child: Arc<Mutex<Child>>,
    is_over: Arc<(Mutex<bool>, Condvar)>,
    keeper: Option<thread::JoinHandle<()>>,
}

fn start(rig: &Path, said: Stdio) -> Result<Child, Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["snapify", "oversubscribe", "--quantum", QUANTUM, "--rig"])
        .arg(rig)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(said);
    Ok(command.spawn()?)
}

impl Arbiter {
    /// Starts it, and waits until programs can ask it.
    fn start(rig: &Path, deadline: Deadline) -> Result<Self, Error> {
        let mut child = start(rig, Stdio::piped())?;
        let said = child.stderr.take().expect("it is piped");
        let mut arbiter = Self {
            child: Arc::new(Mutex::new(child)),
            is_over: Arc::default(),
            keeper: None,
        };
        deadline.wait_for("the arbiter's start", &said)?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let (child, is_over) = (arbiter.child.clone(), arbiter.is_over.clone());
        let rig = rig.to_owned();
        let keep = move || {
            let (over, changed) = &*is_over;
            let mut is_over = over.lock().unwrap_or_else(PoisonError::into_inner);
            while !*is_over {
                let mut child = lock(&child);
                if child.try_wait().is_ok_and(|status| status.is_some())
                    && let Ok(next) = start(&rig, Stdio::null())
                {
                    *child = next;
                }
                drop(child);
                let waited = changed.wait_timeout(is_over, PAUSE);
                is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        };
        arbiter.keeper = Some(thread::spawn(keep));
        Ok(arbiter)
    }
}

impl Drop for Arbiter {
    fn drop(&mut self) {
        let (over, changed) = &*self.is_over;
        *lock(over) = true;
        changed.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // It does nothing that could panic.
            let _ = keeper.join();
        }
        let mut child = lock(&self.child);
        // It may have ended with its rig.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Where the files of one program are.
fn paths(work: &Path, number: usize) -> (PathBuf, PathBuf) {
    let of = |what: &str| work.join(format!("{}.{what}", program(number)));
    (of("result"), of("log"))
}

/// Where a program says which step it is about to begin.
fn announcements(
    rig: &Path,
    host: &HostProcess,
    socket: PathBuf,
    deadline: Deadline,
) -> Result<UnixStream, Error> {
    let listener = UnixListener::bind(&socket)?;
    let mut control = Controlled::connect(rig, host.pid(), deadline)?;
    control.run("steps", &Control::TellSteps(socket))?;
    Ok(listener.accept()?.0)
}

/// Runs a plan; what does not hold.
pub fn run(
    plan: &Plan,
    rig: &mut RigProcess,
    work: &Path,
    done: &Arc<Mutex<Done>>,
    deadline: Deadline,
) -> Result<Violation, Error> {
    let Parameters { programs, .. } = plan.parameters_as()?;
    let workload = Workload::generated(POINTS, 1).map_err(std::io::Error::other)?;
    let golden = kmeans::golden(&workload).to_text();
    let dir = rig.place.dir.clone();
    let arbiter = Arbiter::start(&dir, deadline)?;
    let victims = Victims {
        rig: rig.child.id(),
        programs: BTreeMap::new(),
        arbiter: Some(arbiter.child.clone()),
        cards: rig.place.cards.clone(),
        rig_input: rig.input.take(),
        rig_output: rig.output.take(),
    };
    let faults = Arc::new(Mutex::new(Faults::new(plan, victims, done.clone())));
    let (mut hosts, mut harm) = (Vec::new(), Vec::new());
    for number in 1..=programs.into() {
        let (result, log) = paths(work, number);
        let log = File::create(log)?.into();
        let host = match HostProcess::start(&dir, &workload, &result, log, deadline) {
            Ok(host) => host,
            // Harm may come to it before it is ready.
            Err(Error::HostStart(status)) => {
                hosts.push(Err(status));
                continue;
            }
            Err(error) => return Err(error),
        };
        lock(&faults).add(program(number), host.pid());
        let socket = work.join(format!("{}.steps", program(number)));
        // One that has come to its end says itself how.
        if let Ok(steps) = announcements(&dir, &host, socket, deadline) {
            let faults = faults.clone();
            harm.push(thread::spawn(move || Faults::listen(&faults, &steps)));
        }
        hosts.push(Ok(host));
    }
    let mut seen = Vec::new();
    for (number, host) in (1..).zip(hosts) {
        let status = match host {
            Ok(mut host) => host.wait(deadline)?,
            Err(status) => status,
        };
        let (result, log) = paths(work, number);
        seen.push(Program {
            name: program(number),
            ending: Ending::of(status, &result, &golden),
            said: fs::read_to_string(log)?,
        });
    }
    // The announcements end with the host processes.
    for listener in harm {
        listener.join().unwrap_or_else(|panic| resume_unwind(panic));
    }
    drop(arbiter);
    if let Some(victims) = Arc::into_inner(faults).map(Faults::of_lock) {
        (rig.input, rig.output) = (victims.rig_input, victims.rig_output);
        rig.place.cards = victims.cards;
    }
    Ok(check::programs(&seen, &lock(done)))
}
