//! `snaprig ckpt launch --verbs` at moments that nobody chose: checkpoints in the middle of anything, and SIGKILL of anybody in the
//! middle of a checkpoint, after which the one before is good.

mod checkpointed;
mod fabric;

use std::{
    fs,
    ops::Range,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use checkpointed::{Checkpointed, JobOnNodes, long_enough, with_count};
use fabric::{SNAPRIG, assert_success, text, wait_until};
use snaprig_fixtures::mpi::KERNELS;

/// Programs, what both ends are told, how much they do at least, and what is printed in the end. They verify what comes, or count it.
const PAIRS: [(&str, &str, u64, &str); 9] = [
    ("ibv_rc_pingpong", "-c -n COUNT", 300_000, "COUNT iters"),
    (
        "ib_write_bw",
        "-F -q 4 -n COUNT -s 4096",
        400_000,
        "4*COUNT",
    ),
    ("ibv_srq_pingpong", "-c -n COUNT", 300_000, "COUNT iters"),
    ("ibv_ud_pingpong", "-c -n COUNT", 300_000, "COUNT iters"),
    (
        "ib_send_bw",
        "-F -c XRC -n COUNT -s 1024",
        1_500_000,
        "COUNT",
    ),
    ("ibv_rc_pingpong", "-c -e -n COUNT", 100_000, "COUNT iters"),
    ("ib_atomic_bw", "-F -n COUNT", 1_500_000, "COUNT"),
    ("ib_write_bw", "-F -R -n COUNT -s 4096", 1_000_000, "COUNT"),
    ("ib_send_lat", "-F -e -n COUNT", 100_000, "COUNT"),
];

/// Whom to kill.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Server,
    Client,
    Daemon,
    Supervisor,
}

/// Which rounds: so many, or those of the variable, as how many or as FIRST..END.
fn rounds(variable: &str, count: u64) -> Range<u64> {
    let rounds = std::env::var(variable).unwrap_or(count.to_string());
    let (first, end) = rounds.split_once("..").unwrap_or(("0", &rounds));
    let number = |text: &str| text.parse().expect("a number of rounds");
    number(first)..number(end)
}

/// The pair of a round.
struct Pair {
    ends: Checkpointed,
    name: &'static str,
    /// What it says at its end.
    said: String,
}

/// What comes of the pair of a round that has been at work for some time (none: it has ended too soon), with the pair.
fn at_some_moment<T>(round: u64, next: impl Fn(&Pair, fabric::Running) -> Option<T>) -> (Pair, T) {
    let (name, words, count, said) = PAIRS[round as usize % PAIRS.len()];
    long_enough(count, |count| {
        let server = format!("{name} -p PORT {}", with_count(words, count));
        let pair = Pair {
            ends: Checkpointed::new(),
            name,
            said: with_count(said, count),
        };
        let mut running = pair
            .ends
            .launch_pair(&server, &format!("{server} 127.0.0.1"));
        pair.ends.is_at_work(&mut running, name, 1).then_some(())?;
        std::thread::sleep(Duration::from_micros(round * 7919 % 60_000));
        let comes = next(&pair, running)?;
        Some((pair, comes))
    })
}

fn goes_on(pair: &Pair, round: u64, (elsewhere, of): (&[&str], &[&str])) {
    let ran = pair.ends.restart_of(elsewhere, of);
    assert_success(&format!("round {round}"), std::slice::from_ref(&ran));
    assert!(
        text(&ran).contains(&pair.said),
        "round {round}: {}",
        text(&ran)
    );
}

#[test]
#[cfg_attr(
    not(has_program = "ib_write_bw"),
    ignore = "ib_write_bw is not installed (ci/setup)"
)]
fn at_any_moment() {
    for round in rounds("SNAPRIG_MOMENTS", 3) {
        let (pair, ()) = at_some_moment(round, |pair, running| {
            let killed = pair.ends.killed_or_over(running, round as u32 % 3 + 1)?;
            (!text(&killed).contains(&pair.said)).then_some(())
        });
        let model = ["A", "B"][round as usize / PAIRS.len() % 2];
        goes_on(&pair, round, (&["--model", model], &[]));
    }
}

#[test]
#[cfg_attr(
    not(has_program = "ib_write_bw"),
    ignore = "ib_write_bw is not installed (ci/setup)"
)]
fn whoever_is_killed_in_a_checkpoint_the_one_before_is_good() {
    const VICTIMS: [Victim; 4] = [
        Victim::Supervisor,
        Victim::Server,
        Victim::Daemon,
        Victim::Client,
    ];
    for round in rounds("SNAPRIG_KILLS", 3) {
        let begun = Instant::now();
        let (pair, running) = at_some_moment(round, |pair, mut running| {
            let is_saved = pair.ends.dump_or_over(&mut running, "--leave-running");
            is_saved.then_some(running)
        });
        let (ends, name) = (&pair.ends, pair.name);
        let victim = VICTIMS[(round as usize + round as usize / PAIRS.len()) % VICTIMS.len()];
        let both = ends.processes(name);
        let pids: Vec<i32> = match victim {
            Victim::Supervisor => ends.supervisors(),
            Victim::Server => both.first().map(|pid| *pid as i32).into_iter().collect(),
            Victim::Client => both.last().map(|pid| *pid as i32).into_iter().collect(),
            Victim::Daemon => ends.fabric.daemons(),
        };
        let mut dump = ends.command(&["dump", "--leave-running"]);
        let dump = dump.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut dump = dump.expect("snaprig starts");
        std::thread::sleep(Duration::from_micros(round * 6113 % 50_000));
        for pid in pids {
            // SAFETY: kill(2) takes numbers alone; it is a process of this test's, whose parent waits for it no sooner than it ends.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        // It has succeeded, or not: nobody waits for ever. What it saved may be a tree that has lost somebody.
        dump.wait().expect("it is ours");
        ends.fabric.kill_all();
        drop(running);
        goes_on(&pair, round, (&[], &["--round", "1"]));
        eprintln!(
            "round {round}: {name}, {victim:?} killed, {:.1?}",
            begun.elapsed()
        );
    }
}

/// One of two processes is killed when the other one's plugins wait for it, with the patience of an hour.
#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn who_is_killed_amid_a_drain_keeps_nobody_waiting() {
    let job = Checkpointed::new();
    let program = job.directory.path().join("ended");
    compile_with_plugins("ended", &program);
    let files = ["stop", "victim", "waits"].map(|file| job.directory.path().join(file));
    let words = [&program, &files[0], &files[1], &files[2]];
    let words = words.map(|path| path.to_str().expect("a name"));
    let running = job.launch(&words);
    let victim = || fs::read_to_string(&files[1]).ok()?.parse::<i32>().ok();
    wait_until("both are at work", || victim().is_some());
    let mut dump = job.command(&["dump", "--leave-running"]);
    let mut dump = dump.spawn().expect("snaprig starts");
    wait_until("one waits for the other", || files[2].exists());
    let victim = victim().expect("it is at work");
    // SAFETY: kill(2) takes numbers alone; it is a process of this test's, whose parent waits for it no sooner than it ends.
    unsafe { libc::kill(victim, libc::SIGKILL) };
    wait_until("nobody waits", || {
        dump.try_wait().expect("it is ours").is_some()
    });
    // Who is left may first have to find out that its peer is gone.
    wait_until("there is a checkpoint of the rest", || {
        job.ckpt(&["dump", "--leave-running"]).status.success()
    });
    job.killed(running, 1);
    fs::write(&files[0], "").expect("a file");
    let text = job.goes_on("ended", &[]);
    assert_eq!(text.matches("all as it should be").count(), 1, "{text}");
}

/// Compiles a program of tests/verbs that has plugins of its own.
fn compile_with_plugins(name: &str, to: &Path) {
    let flags = Command::new(SNAPRIG).args(["include", "--ckpt"]).output();
    let flags = text(&flags.expect("snaprig starts"));
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("verbs");
    let source = kit.join(name).join(name).with_extension("c");
    let mut gcc = Command::new("gcc");
    gcc.arg("-O1").arg(source).args(flags.split_whitespace());
    let status = gcc.arg("-libverbs").arg("-o").arg(to).status();
    assert!(status.expect("gcc").success());
}

/// What becomes of a job.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is checkpointed, and goes on.
    GoesOn,
    /// One node's part of it moves to another node, and back, while the others stay.
    Moves,
    /// It is checkpointed, and restarted on so many nodes, and with what.
    Restarted(&'static str, &'static [&'static str]),
}

const FATES: [Fate; 6] = [
    Fate::GoesOn,
    Fate::Restarted("4", &[]),
    Fate::Moves,
    Fate::Restarted("4", &["--model", "B"]),
    Fate::Restarted("4", &["--tcp"]),
    Fate::Restarted("1", &[]),
];

#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn mpi_jobs_on_four_nodes_at_any_moment() {
    let _alone = fabric::one_job();
    for round in rounds("SNAPRIG_JOBS", 1) {
        let begun = Instant::now();
        let index = round as usize % KERNELS.len();
        let kernel = KERNELS[index].name;
        // In each turn of all kernels, each has another one.
        let turn = round as usize / KERNELS.len();
        let fate = FATES[(index + turn + 1) % FATES.len()];
        let pace = ["--pace-us", "500000"];
        let mut job = match fate {
            Fate::Moves => JobOnNodes::launched_beside_a_spare(kernel, &pace),
            _ => JobOnNodes::launched(kernel, ("4", 8), &pace),
        };
        std::thread::sleep(Duration::from_micros(round * 7919 % 60_000));
        let said = match fate {
            Fate::GoesOn => {
                job.dump("--leave-running");
                job.ended()
            }
            Fate::Moves => {
                job.moves("node3", "node5");
                job.moves("node3", "node3");
                job.ended()
            }
            Fate::Restarted(count, arguments) => {
                job.dump("--kill");
                job.before = job.ended();
                job.restarted(count, arguments)
            }
        };
        assert_eq!(said, job.kernel.golden, "round {round}: {kernel}, {fate:?}");
        eprintln!("round {round}: {kernel}, {fate:?}, {:.1?}", begun.elapsed());
    }
}
