//! Full images, chains of increments, and copying in the background: a restart of any of them is the program as it was.

mod common;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    thread,
    time::Duration,
};

use common::{Job, compiled, nobody, program, wait_until};
use snaprig_ckpt_image::{chain::Chain, image::ImageError, store::Store};

/// Checkpoints of a chain.
fn rounds() -> u64 {
    common::rounds(5)
}

/// Takes checkpoints at any moments, and restarts the program from each of them.
fn any_round(mut job: Job) {
    job.wait_for("ready");
    let mut parents = 0;
    for round in 1..=rounds() {
        // The moment is what is random, nothing is waited for.
        thread::sleep(Duration::from_micros(round * 7919 % 20_011));
        let dumped = job.dumped(round == rounds(), false).unwrap();
        assert_eq!(dumped.round, round);
        parents += u64::from(dumped.parent.is_some());
        assert_no_userfaultfd(&job);
    }
    assert_eq!(parents, rounds() - 1);
    job.ended();
    for round in 1..=rounds() {
        let _ = fs::remove_file(job.path("go"));
        job.restart_from(&[&round.to_string()]);
        if round == 2 {
            // A chain of its own begins.
            assert_eq!(job.dumped(false, false).unwrap().parent, None);
            let parent = job.dumped(true, false).unwrap().parent;
            assert_eq!(parent, Some(rounds() + 1));
            job.ended();
            job.restart();
        }
        job.tell("go");
        let status = job.ended();
        let output = job.output();
        assert!(
            status == 0 && !output.contains("wrong"),
            "{round}: {status}: {output}"
        );
    }
    assert_eq!(
        job.output(),
        "ready\n".to_owned() + &"right\n".repeat(rounds() as usize)
    );
}

/// No process of a job has one of ours.
fn assert_no_userfaultfd(job: &Job) {
    for pid in &job.processes()[1..] {
        let links = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        let links = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        for link in links {
            assert!(
                !link.to_string_lossy().contains("userfaultfd"),
                "{pid}: {link:?}"
            );
        }
    }
}

#[test]
fn a_chain_restarts_from_any_round() {
    let (_directory, churn) = compiled("churn.c", &[]);
    any_round(Job::launch_with(
        None,
        &[("MODE", "incremental")],
        &[&churn],
    ));
}

#[test]
fn a_chain_of_an_ordinary_user() {
    let (_directory, churn) = compiled("churn.c", &[]);
    any_round(Job::launch_with(
        nobody(),
        &[("MODE", "incremental")],
        &[&churn],
    ));
}

#[test]
fn what_was_copied_in_the_background_restarts_from_any_round() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let mode = [("MODE", "background"), ("ZSTD", "1")];
    any_round(Job::launch_with(None, &mode, &[&churn]));
}

#[test]
fn the_background_of_an_ordinary_user() {
    let (_directory, churn) = compiled("churn.c", &[]);
    any_round(Job::launch_with(
        nobody(),
        &[("MODE", "background")],
        &[&churn],
    ));
}

#[test]
fn a_tree_of_processes_and_files() {
    let mode = [("MODE", "background")];
    let mut job = Job::launch_with(None, &mode, &["/usr/bin/python3", &program("threads.py")]);
    job.wait_for("begun");
    for _ in 0..rounds() {
        job.dump(false).unwrap();
        job.over_again();
    }
    job.tell("stop");
    let status = job.ended();
    let output = job.output();
    assert!(
        status == 0 && output.contains("right") && !output.contains("wrong"),
        "{output}"
    );
}

#[test]
fn what_cannot_be_tracked_is_saved_whole() {
    let mode = [("MODE", "background")];
    let python = ["/usr/bin/python3", &program("narrow.py")];
    let mut job = Job::launch_with(None, &mode, &python);
    job.wait_for("ready");
    for _ in 0..3 {
        let dumped = job.dumped(false, false).unwrap();
        assert!(dumped.copied.stopped > 8 << 20, "{dumped:?}");
    }
    job.over_again();
    job.tell("go");
    assert_eq!((job.ended(), job.output().as_str()), (0, "ready\nright\n"));
}

/// What the images of a round say together: spaces by what is in them, whatever their numbers.
fn contents(job: &Job, round: u64) -> Vec<BTreeMap<u64, Vec<u8>>> {
    let checkpoint = Store::open(job.path("job"))
        .unwrap()
        .checkpoint(round)
        .unwrap();
    let chain = Chain::open(&checkpoint.chain("tree").unwrap()).unwrap();
    let mut spaces: BTreeMap<u32, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
    let mut loader = chain.loader();
    for part in chain.parts() {
        let space = spaces.entry(part.run.space).or_default();
        let loaded = loader.load(&part, |at, pages| -> Result<(), ImageError> {
            let pages = pages.chunks(4096).map(<[u8]>::to_vec);
            space.extend((part.run.address + at..).step_by(4096).zip(pages));
            Ok(())
        });
        loaded.unwrap();
    }
    let mut spaces: Vec<_> = spaces.into_values().collect();
    spaces.sort();
    spaces
}

/// All processes of a job stop, as job control has it.
fn stop(job: &Job) {
    wait_until("all have stopped", || {
        for pid in &job.processes()[1..] {
            // SAFETY: kill(2) takes numbers alone; they are a supervisor's descendants, which have not been waited for.
            unsafe { libc::kill(*pid, libc::SIGSTOP) };
        }
        // Those, too, that were born meanwhile.
        let states = |pid: &i32| tasks(*pid).iter().all(|state| matches!(state, 'T' | 'Z'));
        job.processes()[1..].iter().all(states)
    });
}

/// The states of a process's threads (proc_pid_stat(5)).
fn tasks(pid: i32) -> Vec<char> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats
        .filter_map(|stat| stat.rsplit(") ").next()?.chars().next())
        .collect()
}

fn chain_is_what_a_full_image_is(mode: &str) {
    let (_directory, churn) = compiled("churn.c", &[]);
    // The kernel writes the number of its processor into a thread's memory, also between two checkpoints (rseq(2)).
    let no_rseq = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let job = Job::launch_with(None, &[("MODE", mode), no_rseq], &[&churn]);
    job.wait_for("ready");
    for round in 0..rounds() {
        thread::sleep(Duration::from_micros(round * 7919 % 20_011));
        job.dump(false).unwrap();
    }
    stop(&job);
    let increment = job.dumped(false, false).unwrap();
    let full = job.dumped(false, true).unwrap();
    assert!(increment.parent.is_some() && full.parent.is_none());
    let (chain, whole) = (contents(&job, increment.round), contents(&job, full.round));
    let pages: usize = whole.iter().map(BTreeMap::len).sum();
    assert!(pages > 200, "{pages}");
    assert!(chain == whole, "{}", differences(&chain, &whole));
    // And of what is collapsed.
    let store = Store::open(job.path("job")).unwrap();
    store.collapse(increment.round, None).unwrap();
    assert!(contents(&job, increment.round) == whole);
}

/// Pages that are not the same, and where they differ first.
fn differences(one: &[BTreeMap<u64, Vec<u8>>], other: &[BTreeMap<u64, Vec<u8>>]) -> String {
    let mut text = String::new();
    for (one, other) in one.iter().zip(other) {
        text += &format!("{} and {} pages", one.len(), other.len());
        for (at, page) in one {
            let Some(same) = other.get(at).filter(|same| *same != page) else {
                continue;
            };
            let first = (0..4096).find(|byte| page[*byte] != same[*byte]).unwrap() / 8 * 8;
            let count = (0..4096).filter(|byte| page[*byte] != same[*byte]).count();
            let (page, same) = (&page[first..first + 32], &same[first..first + 32]);
            text += &format!("; {at:x}+{first:x}: {count} bytes: {page:x?} {same:x?}");
        }
        text += "\n";
    }
    text
}

#[test]
fn a_chain_says_what_a_full_image_of_the_same_moment_says() {
    chain_is_what_a_full_image_is("incremental");
}

#[test]
fn so_does_one_that_was_copied_in_the_background() {
    chain_is_what_a_full_image_is("background");
}

#[test]
fn writes_to_an_area_are_seen_after_another_was_joined_to_it() {
    let (_directory, joined) = compiled("joined.c", &[]);
    let mut job = Job::launch_with(None, &[("MODE", "incremental")], &[&joined]);
    job.wait_for("ready");
    job.dump(false).unwrap();
    job.tell("move");
    job.wait_for("moved");
    assert!(job.dumped(true, false).unwrap().parent.is_some());
    job.ended();
    job.restart();
    job.tell("go");
    assert_eq!(job.ended(), 0);
    assert_eq!(job.output(), "ready\nmoved\nright\n");
}

/// Changes a byte in the middle of a round's pages.
fn damage(job: &Job, round: u64) {
    let path = job.path(&format!("job/{round:04}/tree.img"));
    let file = File::options().read(true).write(true).open(path).unwrap();
    let at = file.metadata().unwrap().len() / 2 / 4096 * 4096 + 17;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_passed_over_by_name() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let mut job = Job::launch(&[&churn]);
    job.wait_for("ready");
    for round in 1..=3 {
        job.dump(round == 3).unwrap();
    }
    job.ended();
    damage(&job, 3);
    damage(&job, 2);
    job.restart();
    job.tell("go");
    assert_eq!(job.ended(), 0);
    let output = job.output();
    for round in [3, 2] {
        let said = format!("snaprig: checkpoint {round} is passed over: ");
        assert!(
            output.contains(&said) && output.contains(&format!("{round:04}/tree.img")),
            "{output}"
        );
    }
    assert!(output.ends_with("right\n"), "{output}");
}

#[test]
fn an_increment_is_not_restarted_on_a_damaged_parent() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let mut job = Job::launch_with(None, &[("MODE", "incremental")], &[&churn]);
    job.wait_for("ready");
    job.dump(false).unwrap();
    job.dumped(false, true).unwrap();
    job.dump(true).unwrap();
    job.ended();
    // Of its pages the increment may need none that is damaged: all of them are.
    let path = job.path("job/0002/tree.img");
    let len = fs::metadata(&path).unwrap().len();
    let file = File::options().write(true).open(path).unwrap();
    for at in (4096 * 3..len - 4096).step_by(4096) {
        file.write_all_at(&[0xa5], at + 99).unwrap();
    }
    job.restart();
    job.tell("go");
    assert_eq!(job.ended(), 0, "{}", job.output());
    assert!(
        job.output().contains("checkpoint 3 is passed over"),
        "{}",
        job.output()
    );
    assert!(
        job.output().contains("checkpoint 2 is passed over"),
        "{}",
        job.output()
    );
}

#[test]
fn what_is_copied_in_the_background_is_not_copied_when_it_stands_still() {
    let python = ["/usr/bin/python3", &program("large.py")];
    let mut job = Job::launch_with(None, &[("MODE", "background")], &python);
    job.wait_for("ready");
    let first = job.dumped(false, false).unwrap();
    assert!(
        first.copied.ahead > 192 << 20 && first.copied.stopped < 64 << 20,
        "{first:?}"
    );
    let second = job.dumped(true, false).unwrap();
    assert!(second.bytes < 64 << 20, "{second:?}");
    job.ended();
    job.restart();
    job.tell("go");
    assert_eq!((job.ended(), job.output().as_str()), (0, "ready\nright\n"));
}

#[test]
fn a_supervisor_that_is_killed_while_it_copies_leaves_the_checkpoint_before() {
    let python = ["/usr/bin/python3", &program("large.py")];
    let mut job = Job::launch_with(None, &[("MODE", "background")], &python);
    job.wait_for("ready");
    job.dump(false).unwrap();
    let asking = {
        let directory = job.path("job");
        let request = snaprig_supervisor::Request::Dump {
            kill: false,
            full: true,
        };
        thread::spawn(move || drop(snaprig_supervisor::ask(&directory, request)))
    };
    let image = job.path("job/0002.tmp/tree.img");
    wait_until("it writes", || {
        fs::metadata(&image).is_ok_and(|image| image.len() > 1 << 20)
    });
    job.kill();
    asking.join().unwrap();
    assert!(!job.path("job/0002").exists());
    job.restart();
    job.dump(false).unwrap();
    job.tell("go");
    assert_eq!((job.ended(), job.output().as_str()), (0, "ready\nright\n"));
}

#[test]
fn a_chain_ends_before_it_is_long() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let mut job = Job::launch_with(None, &[("MODE", "incremental")], &[&churn]);
    job.wait_for("ready");
    let parents = (1..=18).map(|_| job.dumped(false, false).unwrap().parent);
    let expected = (1..=18).map(|round| (round != 1 && round != 17).then(|| round - 1));
    assert!(parents.eq(expected));
    job.kill();
    // The longest.
    job.restart_from(&["16"]);
    job.tell("go");
    assert_eq!(job.ended(), 0);
}

#[test]
fn what_was_removed_is_not_built_on() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let mut job = Job::launch_with(None, &[("MODE", "incremental")], &[&churn]);
    job.wait_for("ready");
    job.dump(false).unwrap();
    assert_eq!(job.dumped(false, false).unwrap().parent, Some(1));
    fs::remove_dir_all(job.path("job/0001")).unwrap();
    assert_eq!(job.dumped(true, false).unwrap().parent, None);
    job.ended();
    job.restart();
    job.tell("go");
    assert_eq!(job.ended(), 0);
}

#[test]
fn older_checkpoints_go_but_for_those_that_are_built_on() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let mode = [("MODE", "incremental"), ("KEEP", "2")];
    let mut job = Job::launch_with(None, &mode, &[&churn]);
    job.wait_for("ready");
    for round in 1..=5 {
        job.dumped(round == 5, round == 4).unwrap();
    }
    job.ended();
    let store = Store::open(job.path("job")).unwrap();
    assert_eq!(store.rounds().unwrap(), [4, 5]);
    job.restart();
    job.tell("go");
    assert_eq!(job.ended(), 0);
}

#[test]
fn checkpoints_are_made_as_often_as_they_may_cost() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let mode = [("MODE", "background"), ("OVERHEAD", "50"), ("KEEP", "3")];
    let mut job = Job::launch_with(None, &mode, &[&churn]);
    job.wait_for("ready");
    wait_until("there are some", || {
        let rounds = Store::open(job.path("job")).unwrap().rounds().unwrap();
        rounds.last() > Some(&4)
    });
    job.kill();
    job.restart();
    job.tell("go");
    assert_eq!(job.ended(), 0);
}
