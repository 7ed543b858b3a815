//! SIGKILL of the supervisor at every step and at random moments: the program runs on with right results, or, of a
//! restart that was not complete, nothing is left; and the last complete checkpoint restarts.

mod common;

use std::{fs, thread, time::Duration};

use common::{Job, compiled, draw, nobody, program, wait_until};
use snaprig_supervisor::{Request, faults};

/// How often at random; SNAPRIG_CKPT_KILLS says otherwise.
fn rounds() -> u64 {
    let rounds = std::env::var("SNAPRIG_CKPT_KILLS");
    rounds.map_or(4, |rounds| rounds.parse().unwrap())
}

/// Orphans are this process's children from now on, and can be waited for.
fn adopt() {
    // SAFETY: PR_SET_CHILD_SUBREAPER takes a number, so prctl(2) reads and writes no memory of this process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// The exit status of an orphan.
fn status_of(orphan: i32) -> i32 {
    let mut status = 0;
    wait_until("an orphan ends", || {
        // SAFETY: waitpid(2) writes an int, which is a variable of this function.
        unsafe { libc::waitpid(orphan, &raw mut status, libc::WNOHANG) == orphan }
    });
    status
}

/// Processes of a program, whoever is their parent.
fn processes_of(program: &str) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|one| fs::read_link(one.path().join("exe")).is_ok_and(|exe| exe.ends_with(program)))
        .count()
}

fn kill(pid: i32) {
    // SAFETY: kill(2) takes numbers alone; the callers pass processes of their test that have not been waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// A program under a supervisor that dies in the second checkpoint.
fn goes_on(job: Job, step: &str, begins: &str, stop: &str) {
    adopt();
    job.wait_for(begins);
    job.dump(false).unwrap();
    let root = job.processes()[1];
    let asked = snaprig_supervisor::ask(
        &job.path("job"),
        Request::Dump {
            kill: false,
            full: false,
        },
    );
    assert!(asked.is_err(), "{step}: {asked:?}");
    ends_well(job, root, step, stop);
}

/// A program whose supervisor has been killed: it ends well when it is told to, and so does its last checkpoint.
fn ends_well(mut job: Job, root: i32, step: &str, stop: &str) {
    assert_eq!(job.ended(), -1, "{step}");
    // Somebody else who has programs in the same directory is none of its concern.
    let other = Job::launch_in(&job, &["/bin/sleep", "600"]);
    other.dump(true).unwrap();
    fs::remove_dir_all(job.path("job").join(format!("{:04}", newest(&job)))).unwrap();
    job.tell(stop);
    assert_eq!(status_of(root), 0, "{step}: {}", job.output());
    let rights = |job: &Job| job.output().matches("right").count();
    assert_eq!(rights(&job), 1, "{step}: {}", job.output());
    fs::remove_file(job.path(stop)).unwrap();
    job.restart();
    job.dump(false).unwrap();
    job.tell(stop);
    assert_eq!(job.ended(), 0, "{step}: {}", job.output());
    let output = job.output();
    assert!(
        rights(&job) == 2 && !output.contains("wrong"),
        "{step}: {output}"
    );
}

/// The newest round of a job.
fn newest(job: &Job) -> u32 {
    let entries = fs::read_dir(job.path("job")).unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.max().unwrap()
}

/// Those that every checkpoint, or every restart, gets to.
fn steps(restart: bool) -> impl Iterator<Item = &'static str> {
    faults::all()
        .into_iter()
        .map(|point| point.name)
        .filter(move |step| step.starts_with("ckpt.restart_") == restart)
        .filter(|step| !step.contains(".flow_") && *step != "resources.terminal")
        .filter(|step| {
            let of_moves = ["departure.", "arrival.", "move."];
            !of_moves.iter().any(|moves| step.starts_with(moves))
        })
}

#[test]
fn threads_that_compute_go_on_at_every_step() {
    let (_directory, sums) = compiled("sums.c", &["-fopenmp"]);
    for (index, step) in steps(false).enumerate() {
        let user = nobody().filter(|_| index % 2 == 1);
        let job = Job::launch_to_die(user, &format!("{step}:2"), &[&sums]);
        goes_on(job, step, "begun", "stop");
    }
}

/// Before a thread stands still it may see a call interrupted, as signal(7) says of stops.
#[test]
fn calls_and_signals_go_on_at_every_step() {
    let (_directory, signals) = compiled("signals.c", &["-Wno-unused-result"]);
    for step in steps(false).filter(|step| step.contains(".ask")) {
        let job = Job::launch_to_die(None, &format!("{step}:2"), &[&signals]);
        goes_on(job, step, "ready", "go");
    }
}

#[test]
fn processes_go_on_at_every_third_step() {
    for step in steps(false).step_by(3) {
        let job = Job::launch_to_die(
            nobody(),
            &format!("{step}:2"),
            &["bash", &program("pipeline.sh")],
        );
        goes_on(job, step, "", "stop");
    }
}

/// Nothing is lost, doubled or out of order of what is on its way.
#[test]
fn full_connections_go_on_at_every_step_of_theirs() {
    for user in [None, nobody()] {
        // Who may look at what a sender still has needs no room for it.
        let needs_room = user == nobody();
        let steps = [
            "tracee.frozen",
            "resources.flow_grown",
            "resources.flow_read",
            "supervisor.described",
            "tracee.let_go",
        ]
        .into_iter();
        for step in steps.filter(|step| needs_room || *step != "resources.flow_grown") {
            let flow = ["/usr/bin/python3", &program("flow.py")];
            let job = Job::launch_to_die(user, &format!("{step}:2"), &flow);
            goes_on(job, step, "ready", "stop");
        }
    }
}

/// Nothing is lost of what is in terminals.
#[test]
fn full_terminals_go_on_at_every_step_of_theirs() {
    for user in [None, nobody()] {
        for step in [
            "tracee.frozen",
            "resources.terminal",
            "supervisor.described",
            "supervisor.written",
            "tracee.let_go",
        ] {
            let terminals = ["/usr/bin/python3", &program("terminal.py")];
            let job = Job::launch_to_die(user, &format!("{step}:2"), &terminals);
            goes_on(job, step, "ready", "go");
        }
    }
}

#[test]
fn a_restart_is_whole_or_nothing_at_every_step() {
    let (_directory, sums) = compiled("sums.c", &["-fopenmp"]);
    for (index, step) in steps(true).enumerate() {
        let program = [&*sums];
        let mut job = match index % 2 {
            0 => Job::launch(&program),
            _ => Job::launch_as_nobody(&program),
        };
        job.wait_for("begun");
        job.dump(true).unwrap();
        job.ended();
        job.restart_to_die(step);
        let at = |name: &str| steps(true).position(|it| it == name);
        if at(step) < at("ckpt.restart_complete") {
            assert_ne!(job.ended(), 0, "{step}");
            wait_until("nothing is left", || processes_of(&sums) == 0);
            job.restart();
        }
        job.tell("stop");
        assert_eq!(
            (job.ended(), &*job.output()),
            (0, "begun\nright\n"),
            "{step}"
        );
    }
}

#[test]
fn programs_go_on_whenever_it_is_killed() {
    adopt();
    let (_directory, sums) = compiled("sums.c", &["-fopenmp"]);
    for round in 0..rounds() {
        let job = match round % 2 {
            0 => Job::launch(&[&sums]),
            _ => Job::launch_as_nobody(&["bash", &program("pipeline.sh")]),
        };
        job.wait_for(if round % 2 == 0 { "begun" } else { "" });
        job.dump(false).unwrap();
        let (root, path) = (job.processes()[1], job.path("job"));
        let dumps = thread::spawn(move || {
            while snaprig_supervisor::ask(
                &path,
                Request::Dump {
                    kill: false,
                    full: false,
                },
            )
            .is_ok()
            {}
        });
        // The moment is what is random, nothing is waited for.
        thread::sleep(Duration::from_micros(draw(0, round) % 100_000));
        kill(job.supervisor());
        dumps.join().unwrap();
        ends_well(job, root, &format!("round {round}"), "stop");
    }
}

#[test]
fn restarts_are_whole_or_nothing_whenever_they_are_killed() {
    let (_directory, sums) = compiled("sums.c", &["-fopenmp"]);
    let mut job = Job::launch(&[&sums]);
    job.wait_for("begun");
    job.dump(true).unwrap();
    job.ended();
    let mut rights = 0;
    for round in 0..rounds() * 2 {
        job.restart_to_die("");
        thread::sleep(Duration::from_micros(draw(0, round) % 60_000));
        // Behind those outside and process 1: the leader of its session, and its supervisor.
        job.processes().into_iter().skip(3).take(2).for_each(kill);
        job.tell("stop");
        rights += usize::from(job.ended() == 0);
        wait_until("nothing is left", || processes_of(&sums) == 0);
        let output = job.output();
        assert_eq!(output.matches("right").count(), rights, "{output}");
        fs::remove_file(job.path("stop")).unwrap();
    }
    job.restart();
    job.tell("stop");
    assert_eq!(job.ended(), 0);
}

/// Children that are killed and born all the time: checkpoints succeed or say why not, and the last restarts.
#[test]
fn a_process_of_the_tree_may_be_killed_at_any_moment() {
    let (_directory, nursery) = compiled("nursery.c", &["-Wno-unused-result"]);
    for mut job in [Job::launch(&[&nursery]), Job::launch_as_nobody(&[&nursery])] {
        job.wait_for("ready");
        let path = job.path("job");
        let dumps = thread::spawn(move || {
            let mut done = 0;
            while done < 20 {
                match snaprig_supervisor::ask(
                    &path,
                    Request::Dump {
                        kill: false,
                        full: false,
                    },
                )
                .unwrap()
                {
                    snaprig_supervisor::Reply::Failed(why) => eprintln!("{why}"),
                    _ => done += 1,
                }
            }
        });
        let mut round = 0;
        while !dumps.is_finished() {
            round += 1;
            thread::sleep(Duration::from_micros(draw(0, round) % 3000));
            let children = job.processes();
            if let Some(victim) = children.get(2 + draw(0, round) as usize % 4) {
                kill(*victim);
            }
        }
        dumps.join().unwrap();
        job.over_again();
        job.tell("stop");
        assert_eq!((job.ended(), &*job.output()), (0, "ready\nright\n"));
    }
}
