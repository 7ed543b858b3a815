//! The faults of a plan, done to real processes when Snapify's steps begin: the host process says
//! which step it is about to begin, and waits until the harm is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    process::{Child, ChildStdin, ChildStdout},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use snaprig_sim::{Fault, Kind, Plan, When};
use snaprig_snapify::{Step, faults::of_step, oversubscribe::faults as oversubscribe};
use snaprig_snapify_io::faults::WRITE;

use crate::rig_process::Place;

/// How long a process that is stopped stays stopped: longer than any step takes, and much shorter
/// than what anybody waits before taking it for dead.
const STOP: Duration = Duration::from_millis(200);

/// What has happened.
#[derive(Debug, Default)]
pub struct Done {
    /// How often each point was reached, and how often something happened there.
    pub reached: BTreeMap<&'static str, (u64, u64)>,
    /// Processes that were killed, as plans name them.
    pub killed: BTreeSet<String>,
    /// Cards that were reset, as plans name them.
    pub restarted: BTreeSet<String>,
    /// What was done, for people.
    pub log: Vec<String>,
}

/// Whom faults can be done to.
pub struct Victims {
    pub rig: u32,
    /// Host processes, as plans name them.
    pub programs: BTreeMap<String, u32>,
    /// Who has them take turns.
    pub arbiter: Option<Arc<Mutex<Child>>>,
    /// Card 1 first; 0 for none.
    pub cards: Vec<u32>,
    /// The rig's standard input and output, as [`crate::rig_process`] has them.
    pub rig_input: Option<ChildStdin>,
    pub rig_output: Option<BufReader<ChildStdout>>,
}

/// Does a plan's faults.
pub struct Faults {
    pending: Vec<Fault>,
    victims: Victims,
    done: Arc<Mutex<Done>>,
    stopped: Vec<JoinHandle<()>>,
}

impl Faults {
    pub fn new(plan: &Plan, victims: Victims, done: Arc<Mutex<Done>>) -> Self {
        Self {
            pending: plan.faults.clone(),
            victims,
            done,
            stopped: Vec::new(),
        }
    }

    /// There is one more program that faults can be done to.
    pub fn add(&mut self, program: String, pid: u32) {
        self.victims.programs.insert(program, pid);
    }

    /// Serves a host process's announcements to their end.
    pub fn listen(faults: &Mutex<Self>, host: &UnixStream) {
        for line in BufReader::new(host).lines().map_while(Result::ok) {
            if let Ok(step) = serde_json::from_str(&line) {
                lock(faults).step(step);
            }
            // A host process that has just been killed does not care.
            let _ = (&mut &*host).write_all(&[0]);
        }
    }

    /// All announcements have ended: whoever was stopped runs again, and those who are left are returned.
    pub fn of_lock(faults: Mutex<Self>) -> Victims {
        faults
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .end()
    }

    fn end(self) -> Victims {
        for stopped in self.stopped {
            // It does nothing that could panic.
            let _ = stopped.join();
        }
        self.victims
    }

    fn step(&mut self, step: Step) {
        if self.victims.arbiter.is_some() {
            // A process that takes turns is only ever swapped, out and in.
            return match step {
                Step::Agree => self.at(oversubscribe::SWAP_OUT.name),
                Step::Verify => self.at(oversubscribe::SWAP_IN.name),
                _ => {}
            };
        }
        self.at(of_step(step).name);
        // The files are written by these.
        if matches!(step, Step::Drain | Step::Capture) {
            self.at(WRITE.name);
        }
    }

    fn at(&mut self, point: &'static str) {
        let times = {
            let mut done = lock(&self.done);
            let reached = done.reached.entry(point).or_default();
            reached.0 += 1;
            reached.0
        };
        let due = |fault: &Fault| fault.point == point && fault.when == When::Nth(times);
        let (due, pending) = std::mem::take(&mut self.pending).into_iter().partition(due);
        self.pending = pending;
        let due: Vec<Fault> = due;
        for fault in due {
            self.happen(point, &fault.kind);
        }
    }

    fn happen(&mut self, point: &'static str, kind: &Kind) {
        match kind {
            Kind::Crash(name) => self.kill(name),
            Kind::Hang(name) => self.stop(name),
            Kind::Restart(name) => self.reset(name),
            Kind::DiskFull => self.limit(0),
            Kind::TornWrite(bytes) => self.limit(*bytes),
            _ => return,
        }
        let mut done = lock(&self.done);
        done.reached.entry(point).or_default().1 += 1;
        done.log.push(format!("{point}: {kind:?}"));
    }

    fn pid(&self, name: &str) -> Option<Pid> {
        let card = |number: &str| {
            self.victims
                .cards
                .get(number.parse::<usize>().ok()? - 1)
                .copied()
        };
        let pid = match name {
            "rig" => Some(self.victims.rig),
            "arbiter" => self.victims.arbiter.as_ref().map(|one| lock(one).id()),
            _ => match self.victims.programs.get(name) {
                Some(pid) => Some(*pid),
                None => name.strip_prefix("card").and_then(card),
            },
        };
        Pid::from_raw(pid? as i32)
    }

    fn kill(&mut self, name: &str) {
        if let Some(pid) = self.pid(name) {
            // One that is gone already is what was wanted.
            let _ = kill_process(pid, Signal::KILL);
        } else if let Some(card) = name.strip_prefix("daemon") {
            self.order("daemon", card);
        }
        lock(&self.done).killed.insert(name.to_owned());
    }

    /// Returns when the card has booted, or has failed to.
    fn reset(&mut self, name: &str) {
        let Some(card) = name.strip_prefix("card") else {
            return;
        };
        self.order("reset", card);
        let mut line = String::new();
        let read = self.victims.rig_output.as_mut();
        // A rig that is gone says nothing.
        let _ = read.map(|output| output.read_line(&mut line));
        if let Ok(place) = serde_json::from_str::<Place>(&line) {
            self.victims.cards = place.cards;
        }
        let mut done = lock(&self.done);
        done.killed.remove(name);
        done.killed.remove(&format!("daemon{card}"));
        done.restarted.insert(name.to_owned());
    }

    fn order(&mut self, order: &str, card: &str) {
        if let Some(input) = &mut self.victims.rig_input {
            // A rig that is gone has no cards.
            let _ = writeln!(input, "{order} {card}").and_then(|()| input.flush());
        }
    }

    fn stop(&mut self, name: &str) {
        if let Some(pid) = self.pid(name)
            && kill_process(pid, Signal::STOP).is_ok()
        {
            self.stopped.push(std::thread::spawn(move || {
                std::thread::sleep(STOP);
                // It may have been killed meanwhile.
                let _ = kill_process(pid, Signal::CONT);
            }));
        }
    }

    /// Files of the rig's process get no longer: whatever it writes beyond fails (setrlimit(2)).
    fn limit(&self, bytes: u64) {
        let pid = Pid::from_raw(self.victims.rig as i32);
        let limit = Rlimit {
            current: Some(bytes),
            maximum: None,
        };
        // A rig that is gone writes nothing.
        let _ = prlimit(pid, Resource::Fsize, limit);
    }
}

/// Room again.
pub fn lift_limit(rig: u32) {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    // A rig that is gone needs none.
    let _ = prlimit(Pid::from_raw(rig as i32), Resource::Fsize, unlimited);
}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
