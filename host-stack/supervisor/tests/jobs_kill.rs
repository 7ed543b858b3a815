//! SIGKILL for a supervisor, or for the coordinator, in each phase of a checkpoint and of a restart: the last complete
//! checkpoint restarts, a half one is never offered, and everybody else runs on.
//!
//! A member of the test's own, which has no tree, holds the others in a phase.

mod common;

use std::{fs, mem::MaybeUninit, thread, time::Duration};

use common::{Trees, program, wait_until};
use rustix::fs::inotify;
use snaprig_ckpt_image::{
    image::{Header, Options},
    store::{Joined, Member as Image, Store},
};
use snaprig_coord::{
    driver::{Locator, Member},
    job::JobDir,
    member::Event,
    phase::Phase,
};

const LONG: Duration = Duration::from_secs(60);
const NAME: &str = "holder";

/// A member without a tree.
struct Holder {
    member: Member,
    store: Store,
    joined: Option<Joined>,
}

impl Holder {
    fn join(trees: &Trees) -> Self {
        let job = JobDir::open(&trees.directory.path().join("job")).unwrap();
        let (name, token) = (job.name().to_owned(), job.token().unwrap());
        let store = Store::open(job.path("checkpoints")).unwrap();
        let member = Member::connect(Locator::Job(job), &name, token, NAME, LONG).unwrap();
        Self {
            member,
            store,
            joined: None,
        }
    }

    /// Takes part until this phase begins, or the round is over; whether it has begun.
    fn until(&mut self, wanted: Option<Phase>) -> bool {
        loop {
            match self
                .member
                .next_event(Some(LONG))
                .expect("an event in time")
            {
                Event::Begin { phase, .. } if wanted == Some(phase) => return true,
                Event::Begin { round, phase, .. } => self.go(round, phase),
                Event::Undo {
                    round, in_doubt, ..
                } => {
                    if let Some(joined) = self.joined.take().filter(|_| !in_doubt) {
                        joined.discard(NAME).unwrap();
                    }
                    self.member.done(round, Phase::Undo, Ok(String::new()));
                }
                Event::Finished { .. } => return false,
                Event::Joined | Event::Apart { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn go(&mut self, round: u64, phase: Phase) {
        let mut report = String::new();
        match phase {
            Phase::Look => {
                self.joined = Some(self.store.join(round).unwrap());
                // Where others meet to find strangers, when most of their memory is copied, and to count their plugins.
                // Undone meanwhile: it is said next.
                for name in ["seen", "seen again", "copied", "plugins-counted"] {
                    let _ = self.member.barrier(round, name, LONG);
                }
            }
            // Where others meet to tell each other of their connections.
            Phase::Drain => {
                // Undone meanwhile: it is said next.
                let _ = self.member.barrier(round, "ends", LONG);
            }
            // Where others count their plugins.
            Phase::Refill => {
                let _ = self.member.barrier(round, "plugins-counted", LONG);
            }
            Phase::Write => {
                let joined = self.joined.as_ref().unwrap();
                // Undone meanwhile, there is no directory for it any more: it is said next.
                let begun = joined.image(NAME, &Header::default(), Options::new(NAME));
                if let Ok(writer) = begun
                    && let Ok((_, summary)) = writer.finish()
                {
                    let image = Image::new(NAME, &summary);
                    report = serde_json::json!({ "image": image, "parent": null }).to_string();
                }
            }
            _ => {}
        }
        self.member.done(round, phase, Ok(report));
    }
}

fn streams(trees: &mut Trees) {
    let python = "/usr/bin/python3";
    trees.launch("server", &[python, &program("stream_server.py")]);
    trees.launch(
        "client",
        &[python, &program("stream_client.py"), "client", "3"],
    );
    trees.wait_for("server ready");
    trees.wait_for("client client ready");
}

/// Complete checkpoints, every byte of which is right.
fn complete(trees: &Trees) -> Vec<u64> {
    let store = Store::open(trees.directory.path().join("job/checkpoints")).unwrap();
    let rounds = store.rounds().unwrap();
    for round in &rounds {
        store.checkpoint(*round).unwrap().verify().unwrap();
    }
    rounds
}

fn order(trees: &Trees, kill: bool) -> thread::JoinHandle<Result<(), String>> {
    let mut command = trees.driver();
    command
        .args(["dump-job", "job"])
        .args(kill.then_some("kill"));
    thread::spawn(move || {
        let output = command.output().unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    })
}

/// The trees go on where their checkpoint was, to a right end.
fn restarts(trees: &mut Trees) {
    trees.kill_all();
    // What they have said since is not their checkpoint's.
    fs::write(trees.directory.path().join("out"), "").unwrap();
    for name in ["server", "client"] {
        trees.begin_restart(Some(name));
    }
    let mut holder = Holder::join(trees);
    assert!(!holder.until(None), "it is over");
    holder.member.leave();
    trees.tell("stop");
    let ended = trees.ended();
    let output = trees.output();
    assert_eq!(ended, [0, 0], "{output}");
    assert!(
        output.contains("server right") && output.contains("client client right"),
        "{output}"
    );
}

const PHASES: [(Phase, bool); 8] = [
    (Phase::Look, false),
    (Phase::Stop, false),
    (Phase::Drain, false),
    (Phase::Freeze, false),
    (Phase::Resume, false),
    (Phase::Write, false),
    (Phase::Write, true),
    (Phase::End, true),
];

#[test]
fn a_supervisor_dies_in_each_phase() {
    for (phase, kill) in PHASES {
        let mut trees = Trees::new();
        streams(&mut trees);
        let mut holder = Holder::join(&trees);
        let first = order(&trees, false);
        assert!(!holder.until(None), "it is over");
        first.join().unwrap().unwrap();
        let second = order(&trees, kill);
        assert!(holder.until(Some(phase)), "{}", trees.output());
        trees.kill_tree(1);
        let round = holder
            .member
            .status()
            .unwrap()
            .round
            .map(|round| round.round);
        holder.go(round.unwrap_or(0), phase);
        if phase != Phase::End {
            holder.until(None);
        }
        let complete = complete(&trees);
        assert_eq!(
            second.join().unwrap().is_ok(),
            phase == Phase::End,
            "{phase:?}"
        );
        assert_eq!(
            complete.len(),
            1 + usize::from(phase == Phase::End),
            "{phase:?}"
        );
        holder.member.leave();
        restarts(&mut trees);
    }
}

#[test]
fn the_coordinator_dies_in_each_phase() {
    for (phase, kill) in PHASES {
        let mut trees = Trees::new();
        streams(&mut trees);
        let mut holder = Holder::join(&trees);
        let first = order(&trees, false);
        assert!(!holder.until(None), "it is over");
        first.join().unwrap().unwrap();
        let second = order(&trees, kill);
        assert!(holder.until(Some(phase)), "{}", trees.output());
        let round = holder.member.status().unwrap().round.unwrap().round;
        trees.kill_coordinator();
        assert!(second.join().unwrap().is_err());
        holder.go(round, phase);
        if phase == Phase::End {
            // It was decided: who has heard of it has ended.
            assert_eq!(complete(&trees).len(), 2);
        } else {
            assert_eq!(complete(&trees).len(), 1, "{phase:?}");
            // All run on, and the next coordinator has them checkpointed.
            let third = order(&trees, false);
            assert!(!holder.until(None), "{}", trees.output());
            third.join().unwrap().unwrap();
            assert_eq!(complete(&trees).len(), 2);
        }
        holder.member.leave();
        restarts(&mut trees);
    }
}

#[test]
fn a_restart_that_is_cut_short_leaves_nothing_and_is_begun_again() {
    for (phase, is_coordinator) in [
        (Phase::Connect, false),
        (Phase::Refill, false),
        (Phase::Connect, true),
        (Phase::Refill, true),
    ] {
        let mut trees = Trees::new();
        streams(&mut trees);
        let mut holder = Holder::join(&trees);
        let dumped = order(&trees, false);
        assert!(!holder.until(None), "it is over");
        dumped.join().unwrap().unwrap();
        holder.member.leave();
        trees.kill_all();
        for name in ["server", "client"] {
            trees.begin_restart(Some(name));
        }
        let mut holder = Holder::join(&trees);
        assert!(holder.until(Some(phase)), "{}", trees.output());
        match is_coordinator {
            true => trees.kill_coordinator(),
            false => {
                trees.kill_tree(0);
                assert!(!holder.until(None), "it is undone");
            }
        }
        // Whoever is left ends: nothing of a half restart runs.
        assert!(
            trees.ended().iter().all(|status| *status != 0),
            "{}",
            trees.output()
        );
        assert_eq!(complete(&trees).len(), 1);
        drop(holder);
        restarts(&mut trees);
    }
}

/// Nothing is lost, doubled or out of order of what is on its way between trees, whichever of them loses its supervisor.
#[test]
fn a_supervisor_dies_when_a_full_connection_is_looked_at() {
    for step in ["resources.flow_grown", "resources.flow_read"] {
        for (index, victim) in ["sender", "receiver"].into_iter().enumerate() {
            let mut trees = [Trees::new, Trees::of_nobody][index]();
            for name in ["receiver", "sender"] {
                let at = format!("{step}:2");
                let at = Some(&*at).filter(|_| name == victim);
                let saturated = ["/usr/bin/python3", &*program("saturated.py"), name];
                trees.launch_to_die(name, at, &saturated);
            }
            trees.wait_for("receiver ready");
            trees.wait_for("sender ready");
            order(&trees, false).join().unwrap().unwrap();
            trees.tell("go");
            trees.wait_for("full");
            assert!(order(&trees, false).join().unwrap().is_err(), "{step}");
            trees.tell("stop");
            for says in ["right", "sent"] {
                trees.wait_for(says);
            }
            assert_eq!(complete(&trees), [1], "{step}");
            trees.kill_all();
            fs::write(trees.directory.path().join("out"), "").unwrap();
            fs::remove_file(trees.directory.path().join("stop")).unwrap();
            trees.restart();
            trees.wait_for("full");
            trees.tell("stop");
            trees.wait_for("sent");
            let output = trees.output();
            assert!(
                output.contains("right") && !output.contains("wrong"),
                "{step}: {output}"
            );
        }
    }
}

/// One that is being killed has closed its socket, and its lock is not free yet: whoever finds it so starts another one
/// when it is.
#[test]
fn a_coordinator_that_has_not_quite_ended_has_a_successor() {
    let mut trees = Trees::new();
    let directory = trees.directory.path().join("job");
    let job = JobDir::create(&directory, "job").unwrap();
    let lock = job.claim().unwrap();
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let opened = inotify::init(flags).unwrap();
    inotify::add_watch(&opened, job.path("lock"), inotify::WatchFlags::OPEN).unwrap();
    trees.begin_launch("program", None, &["/bin/true"]);
    let mut events = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&opened, &mut events);
    for which in ["the first one looks for the lock", "the next one does"] {
        wait_until(which, || events.next().is_ok());
    }
    drop(lock);
    assert_eq!(trees.ended(), [0], "{}", trees.output());
}

#[test]
fn a_stranger_is_refused_before_anybody_stops() {
    let mut trees = Trees::new();
    streams(&mut trees);
    let (stranger, _) = trees.meet_a_stranger();
    let port = stranger.local_addr().unwrap().port();
    let mut holder = Holder::join(&trees);
    let ordered = order(&trees, false);
    assert!(!holder.until(Some(Phase::Stop)), "it has begun to stop");
    let why = ordered.join().unwrap().unwrap_err();
    let said = format!("connected to 127.0.0.1:{port}, which is outside");
    assert!(why.contains(&said), "{why}");
}
