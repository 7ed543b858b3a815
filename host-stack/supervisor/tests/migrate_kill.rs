//! Either side of a migration is killed at every step, and started again: the program runs at one of them, never at both,
//! and what it writes is what it writes when nothing goes wrong.

mod common;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use common::{Job, compiled, wait_until};
use snaprig_supervisor::{Reply, Request, Target, faults};

/// How long a process is watched to find out whether it runs, and how often it must.
const WATCH: Duration = Duration::from_millis(20);
const WATCHES: usize = 4;

/// Processes of a program, and how often each has given up its processor.
fn processes(program: &Path) -> BTreeMap<i32, u64> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|one| one.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|pid: i32| {
            let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let count = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            (exe == program).then_some((pid, count.trim().parse().ok()?))
        })
        .collect()
}

/// Looks all the time whether two processes of a program run.
struct Watch {
    is_over: Arc<AtomicBool>,
    watching: Option<thread::JoinHandle<bool>>,
}

impl Watch {
    fn begin(program: &str) -> Self {
        let program = PathBuf::from(program);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let watching = thread::spawn(move || {
            let mut before = processes(&program);
            // How often in a row each was seen to have run.
            let mut runs: BTreeMap<i32, usize> = BTreeMap::new();
            while !over.load(Ordering::Relaxed) {
                thread::sleep(WATCH);
                let now = processes(&program);
                let has_run = |pid: &i32| before.get(pid).is_some_and(|was| now[pid] > *was);
                let seen = now.keys().filter(|pid| has_run(pid));
                runs = seen
                    .map(|pid| (*pid, runs.get(pid).unwrap_or(&0) + 1))
                    .collect();
                if runs.values().filter(|count| **count >= WATCHES).count() > 1 {
                    return false;
                }
                before = now;
            }
            true
        });
        Self {
            is_over,
            watching: Some(watching),
        }
    }

    /// Whether there was one at most, at all times.
    fn end(mut self) -> bool {
        self.is_over.store(true, Ordering::Relaxed);
        let watching = self.watching.take().expect("it watches");
        watching.join().expect("it does not panic")
    }
}

/// Both sides, and a client that has asked for the migration.
struct Scene {
    program: String,
    _directory: tempfile::TempDir,
    source: Job,
    target: Job,
    watch: Watch,
    asking: thread::JoinHandle<Option<Reply>>,
}

impl Scene {
    /// A program that has a checkpoint, and is told to move; one side dies at a step.
    fn begin(step: &str) -> Self {
        let (directory, program) = compiled("count.c", &[]);
        let program = fs::canonicalize(program).unwrap();
        let program = program.to_str().unwrap().to_owned();
        let (at_source, at_target) = match step.starts_with("departure.") {
            // It has taken one checkpoint before.
            true => (format!("{step}:2"), "none".to_owned()),
            false => ("none".to_owned(), step.to_owned()),
        };
        let source = match &*at_source {
            "none" => Job::launch(&[&program]),
            at => Job::launch_to_die(None, at, &[&program]),
        };
        let watch = Watch::begin(&program);
        source.wait_for("ready");
        source.dump(false).unwrap();
        let target = match &*at_target {
            "none" => Job::receive(None, &["socket"]),
            at => Job::receive_to_die(at, &["socket"]),
        };
        let socket = target.path("socket");
        wait_until("it listens", || socket.exists());
        let directory_of_source = source.path("job");
        let asking = thread::spawn(move || {
            let to = Target::unix(socket);
            snaprig_supervisor::ask(&directory_of_source, Request::Migrate { to }).ok()
        });
        Self {
            program,
            _directory: directory,
            source,
            target,
            watch,
            asking,
        }
    }

    /// The program that there is comes to its end, and has written what it should.
    fn ends_well(self, step: &str) {
        let Self {
            program,
            source,
            target,
            watch,
            ..
        } = self;
        let path = PathBuf::from(&program);
        let written = || fs::read_to_string(source.path("numbers")).unwrap();
        let before = written().len();
        wait_until("it runs", || written().len() > before);
        // A target that waits for Go has one as well, which stands still.
        let outputs = || format!("{step}: {} --- {}", source.output(), target.output());
        source.tell("go");
        wait_until("it ends", || {
            let outputs = source.output() + &target.output();
            outputs.contains("right")
        });
        let is_one = watch.end();
        assert!(is_one, "two ran: {}", outputs());
        let rights = (source.output() + &target.output())
            .matches("right")
            .count();
        assert_eq!(rights, 1, "{}", outputs());
        let numbers: Vec<u64> = written().lines().map(|it| it.parse().unwrap()).collect();
        let all = 1..=numbers.len() as u64;
        assert!(
            numbers.iter().copied().eq(all),
            "{}: {numbers:?}",
            outputs()
        );
        drop((source, target));
        wait_until("nothing is left", || processes(&path).is_empty());
    }
}

fn steps(side: &str) -> impl Iterator<Item = &'static str> {
    let all = faults::all().into_iter().map(|point| point.name);
    let prefix = format!("{side}.");
    all.filter(move |step| step.starts_with(&prefix))
}

#[test]
fn a_source_that_dies_at_any_step_leaves_one_of_it() {
    for step in steps("departure") {
        let mut scene = Scene::begin(step);
        assert_eq!(scene.source.ended(), -1, "{step}");
        match step {
            // It stood still, and has died. There is no image to be had.
            "departure.bound" => {
                assert_ne!(scene.target.ended(), 0, "{step}");
                scene.source.restart();
            }
            // There is, and nobody asks for it.
            "departure.copied" => {
                let prepared = scene.target.path("job/0001.tmp/manifest.json");
                wait_until("it is restored", || prepared.exists());
                scene.source.restart();
            }
            // The target is asked now, if it was not before, and has it.
            _ => {
                let why = scene.source.refuses_to_restart();
                assert!(why.contains("has migrated to"), "{step}: {why}");
                wait_until("it is supervised", || scene.target.answers());
                let socket = scene.target.path("socket");
                // Who was gone already did not say so.
                wait_until("nobody asks any more", || {
                    step == "departure.gone" || !socket.exists()
                });
            }
        }
        scene.ends_well(step);
    }
}

#[test]
fn a_target_that_dies_at_any_step_leaves_one_of_it() {
    for step in steps("arrival") {
        let mut scene = Scene::begin(step);
        let decision = scene.target.path("job/0001");
        // What runs, and is not supervised any more, is waited for by the process that was told to receive.
        match step {
            "arrival.runs" | "arrival.answered" => {
                wait_until("it is decided", || decision.exists());
                wait_until("its supervisor has died", || !scene.target.answers());
            }
            _ => assert_ne!(scene.target.ended(), 0, "{step}"),
        }
        let is_decided = decision.exists();
        match step {
            // The source has not heard that it is ready.
            "arrival.begun" | "arrival.received" | "arrival.restored" => {
                assert!(!is_decided && scene.source.answers(), "{step}");
            }
            "arrival.ready" | "arrival.deciding" => {
                assert!(!is_decided, "{step}");
                scene.target.receive_again(&["socket"]);
                wait_until("it is known", || scene.asking.is_finished());
                assert!(!decision.exists());
            }
            "arrival.decided" => {
                assert!(is_decided, "{step}");
                scene.target.restart();
                assert_eq!(scene.source.ended(), 128 + libc::SIGKILL, "{step}");
            }
            // It runs, and nobody supervises it; who answers need not.
            _ => {
                assert!(is_decided, "{step}");
                scene.target.receive_again(&["socket"]);
                assert_eq!(scene.source.ended(), 128 + libc::SIGKILL, "{step}");
            }
        }
        scene.ends_well(step);
    }
}

/// A target that is restarted from its decision answers, too, when it has taken checkpoints since, and forgotten the first.
#[test]
fn a_later_checkpoint_of_the_target_names_who_may_ask() {
    let mut scene = Scene::begin("departure.asked");
    assert_eq!(scene.source.ended(), -1);
    wait_until("it runs there", || scene.target.answers());
    scene.target.dump(true).unwrap();
    // It answers for a while yet.
    scene.target.kill();
    fs::remove_dir_all(scene.target.path("job/0001")).unwrap();
    scene.target.restart();
    let why = scene.source.refuses_to_restart();
    assert!(why.contains("has migrated to"), "{why}");
    wait_until("nobody asks any more", || {
        !scene.target.path("socket").exists()
    });
    scene.ends_well("departure.asked");
}
