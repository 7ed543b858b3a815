//! Jobs of several trees that are connected over TCP or Unix sockets: checkpointed at the same moment, killed, restarted.

mod common;

use std::{io::Write, os::unix::net::UnixListener, thread, time::Duration};

use common::{Trees, compiled, program, rounds, wait_until};
use tempfile::TempDir;

/// A server in one tree, and clients in two others, each with several connections that are always full.
fn streams(trees: &mut Trees) {
    let python = "/usr/bin/python3";
    trees.launch("server", &[python, &program("stream_server.py")]);
    for name in ["one", "two"] {
        trees.launch(name, &[python, &program("stream_client.py"), name, "3"]);
    }
    for who in ["server", "client one", "client two"] {
        trees.wait_for(&format!("{who} ready"));
    }
}

fn end_well(trees: &mut Trees) {
    all_are_right(trees, &["server", "client one", "client two"]);
}

fn all_are_right(trees: &mut Trees, names: &[&str]) {
    trees.tell("stop");
    let statuses = trees.ended();
    let output = trees.output();
    assert!(
        statuses.iter().all(|status| *status == 0),
        "{statuses:?}: {output}"
    );
    for who in names {
        assert!(output.contains(&format!("{who} right")), "{output}");
    }
}

fn lose_nothing(mut trees: Trees) {
    streams(&mut trees);
    for round in 0..rounds(10) {
        // Random enough: what has been sent by then depends on the machine.
        thread::sleep(Duration::from_millis(round * 37 % 50));
        trees.dump(false).unwrap();
        trees.dump(true).unwrap();
        assert!(
            trees.ended().iter().all(|status| *status == 128 + 9),
            "{}",
            trees.output()
        );
        trees.restart();
    }
    end_well(&mut trees);
}

#[test]
fn connected_trees_lose_nothing() {
    lose_nothing(Trees::new());
}

#[test]
fn those_of_an_ordinary_user_neither() {
    lose_nothing(Trees::of_nobody());
}

#[test]
fn what_is_not_of_the_job_is_refused_by_name_and_the_job_runs_on() {
    let mut trees = Trees::new();
    streams(&mut trees);
    let (stranger, _) = trees.meet_a_stranger();
    let port = stranger.local_addr().unwrap().port();
    let why = trees.dump(false).unwrap_err();
    assert!(
        why.contains(&format!("connected to 127.0.0.1:{port}, which is outside")),
        "{why}"
    );
    drop(stranger);
    end_well(&mut trees);
}

/// Whose end is closed, not yet accepted, or on its way in a message is no stranger.
#[test]
fn connections_that_come_and_go_are_not_strangers() {
    let mut trees = Trees::new();
    let python = "/usr/bin/python3";
    trees.launch("server", &[python, &program("coming_server.py")]);
    for name in ["one", "two"] {
        trees.launch(name, &[python, &program("coming_client.py"), name]);
    }
    for who in ["server", "client one", "client two"] {
        trees.wait_for(&format!("{who} ready"));
    }
    for _ in 0..rounds(10) {
        trees.dump(false).unwrap();
    }
    trees.dump(true).unwrap();
    trees.ended();
    trees.restart();
    end_well(&mut trees);
}

/// Names, contents, descriptors on their way, ends of streams.
#[test]
fn unix_sockets_between_trees_stay_what_they_were() {
    for mut trees in [Trees::new(), Trees::of_nobody()] {
        let python = "/usr/bin/python3";
        for who in ["server", "client"] {
            trees.launch(who, &[python, &program(&format!("near_{who}.py"))]);
        }
        for who in ["server ready", "client ready"] {
            trees.wait_for(who);
        }
        for _ in 0..rounds(5) {
            trees.dump(false).unwrap();
            trees.dump(true).unwrap();
            trees.ended();
            trees.restart();
        }
        all_are_right(&mut trees, &["server", "client"]);
    }
}

#[test]
fn a_unix_socket_to_a_stranger_is_refused_by_name_and_the_job_runs_on() {
    let mut trees = Trees::new();
    let listener = UnixListener::bind(trees.directory.path().join("outside")).unwrap();
    let connects = "import os, socket, time\n\
        one = socket.socket(socket.AF_UNIX)\n\
        one.connect('outside')\n\
        print('ready', flush=True)\n\
        while not os.path.exists('stop'): time.sleep(0.01)\n\
        print(one.recv(100), flush=True)";
    trees.launch("one", &["/usr/bin/python3", "-c", connects]);
    trees.wait_for("ready");
    let (mut stranger, _) = listener.accept().unwrap();
    let why = trees.dump(false).unwrap_err();
    assert!(
        why.contains("is a Unix socket connected to a process outside"),
        "{why}"
    );
    stranger.write_all(b"heard").unwrap();
    trees.tell("stop");
    let (statuses, output) = (trees.ended(), trees.output());
    assert_eq!(statuses, [0], "{output}");
    assert!(output.contains("b'heard'"), "{output}");
}

#[test]
fn a_job_whose_coordinator_dies_is_checkpointed_by_the_next() {
    let mut trees = Trees::new();
    streams(&mut trees);
    trees.dump(false).unwrap();
    trees.kill_coordinator();
    trees.dump(true).unwrap();
    trees.ended();
    trees.restart();
    end_well(&mut trees);
}

#[test]
fn everything_is_killed_and_the_last_checkpoint_restarts() {
    let mut trees = Trees::new();
    streams(&mut trees);
    trees.dump(false).unwrap();
    trees.kill_all();
    trees.restart();
    trees.dump(false).unwrap();
    end_well(&mut trees);
}

/// What is wrong with one of its images is only found when it is read.
#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before_it() {
    let mut trees = Trees::new();
    streams(&mut trees);
    trees.dump(false).unwrap();
    trees.dump(false).unwrap();
    trees.kill_all();
    let image = trees.directory.path().join("job/checkpoints/0002/one.img");
    let mut bytes = std::fs::read(&image).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&image, bytes).unwrap();
    trees.restart();
    let output = trees.output();
    assert!(output.contains("checkpoint 2 is passed over"), "{output}");
    trees.dump(false).unwrap();
    end_well(&mut trees);
}

/// Checkpoints of a job, and what each builds on.
fn parents(trees: &Trees) -> Vec<(u64, Option<u64>)> {
    let store = trees.store();
    let rounds = store.rounds().unwrap().into_iter();
    let parent = |round| store.checkpoint(round).unwrap().manifest().parent;
    rounds.map(|round| (round, parent(round))).collect()
}

/// A member that knows what its memory must be, beside those that are connected.
fn with_churn(mode: &[(&str, &str)]) -> (TempDir, Trees) {
    let (directory, churn) = compiled("churn.c", &[]);
    let mut trees = Trees::with(mode);
    streams(&mut trees);
    trees.launch("churn", &[&churn]);
    trees.wait_for("ready\nready");
    (directory, trees)
}

fn all_end_well(trees: &mut Trees) {
    trees.tell("go");
    end_well(trees);
    assert!(trees.output().lines().any(|line| line == "right"));
}

/// Takes checkpoints at any moments, some of which are undone, and restarts the job from each of them.
fn any_round(mode: &[(&str, &str)]) {
    let (_directory, mut trees) = with_churn(mode);
    let mut expected = Vec::new();
    let mut last = None;
    for round in 1..=rounds(4) {
        thread::sleep(Duration::from_micros(round * 7919 % 20_011));
        trees.dump(false).unwrap();
        let number = *trees.store().rounds().unwrap().last().unwrap();
        expected.push((number, last));
        last = Some(number);
        if round % 2 == 1 {
            is_undone(&mut trees);
        }
    }
    assert_eq!(parents(&trees), expected);
    for (round, _) in &expected {
        trees.kill_all();
        trees.restart_from(*round);
        // Its memory is what it must be, and theirs, as long as nobody says otherwise.
        trees.tell("go");
        trees.wait_for("right");
        assert!(!trees.output().contains("wrong"), "{}", trees.output());
        let path = |name| trees.directory.path().join(name);
        std::fs::remove_file(path("go")).unwrap();
        std::fs::write(path("out"), "").unwrap();
    }
    end_well(&mut trees);
}

/// A checkpoint that is not one, for a stranger whom a member knows.
fn is_undone(trees: &mut Trees) {
    let (stranger, name) = trees.meet_a_stranger();
    let why = trees.dump(false).unwrap_err();
    assert!(why.contains("which is outside"), "{why}");
    drop(stranger);
    trees.wait_for(&format!("{name} has parted"));
    trees.left(&name);
}

#[test]
fn increments_restart_from_any_round() {
    any_round(&[("MODE", "incremental")]);
}

#[test]
fn what_was_copied_in_the_background_restarts_from_any_round() {
    any_round(&[("MODE", "background"), ("ZSTD", "1")]);
}

#[test]
fn a_full_one_builds_on_nothing_and_older_ones_go() {
    let (_directory, mut trees) = with_churn(&[("MODE", "incremental"), ("KEEP", "2")]);
    for _ in 0..3 {
        trees.dump(false).unwrap();
    }
    assert_eq!(parents(&trees), [(1, None), (2, Some(1)), (3, Some(2))]);
    trees.dump_with(&["full"]).unwrap();
    trees.dump(false).unwrap();
    assert_eq!(parents(&trees), [(4, None), (5, Some(4))]);
    trees.dump_with(&["background", "kill"]).unwrap();
    assert_eq!(parents(&trees), [(4, None), (5, Some(4)), (6, Some(5))]);
    trees.ended();
    // What others build on is made whole, and then goes.
    trees.store().collapse(6, None).unwrap();
    assert_eq!(trees.store().prune(1).unwrap(), [4, 5]);
    trees.restart();
    all_end_well(&mut trees);
}

#[test]
fn a_damaged_image_of_a_chain_is_passed_over_with_all_that_build_on_it() {
    let (_directory, mut trees) = with_churn(&[("MODE", "incremental")]);
    for words in [&[][..], &["full"], &[]] {
        trees.dump_with(words).unwrap();
    }
    assert_eq!(parents(&trees), [(1, None), (2, None), (3, Some(2))]);
    trees.kill_all();
    let image = trees.store().dir().join("0002/churn.img");
    let len = std::fs::metadata(&image).unwrap().len();
    let file = std::fs::File::options().write(true).open(image).unwrap();
    for at in (4096 * 3..len - 4096).step_by(4096) {
        std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5], at + 99).unwrap();
    }
    trees.restart();
    let output = trees.output();
    for round in [3, 2] {
        let said = format!("checkpoint {round} is passed over");
        assert!(output.contains(&said), "{output}");
    }
    all_end_well(&mut trees);
}

/// Who was launched later has no image that the others' rounds know of.
#[test]
fn a_member_that_comes_later_begins_with_a_whole_image() {
    let (_directory, mut trees) = with_churn(&[("MODE", "background")]);
    trees.dump(false).unwrap();
    trees.launch("later", &["/usr/bin/python3", &program("large.py")]);
    trees.wait_for("ready\nready\nready");
    trees.dump(false).unwrap();
    trees.dump(true).unwrap();
    assert_eq!(parents(&trees), [(1, None), (2, Some(1)), (3, Some(2))]);
    let store = trees.store();
    let lengths = |name| store.checkpoint(3).unwrap().chain(name).unwrap().len();
    assert_eq!((lengths("churn"), lengths("later")), (3, 2));
    trees.ended();
    trees.restart();
    all_end_well(&mut trees);
}

#[test]
fn checkpoints_are_made_at_an_interval_whoever_comes_and_goes() {
    let mode = [("MODE", "background"), ("INTERVAL", "100"), ("KEEP", "3")];
    let mut trees = Trees::with(&mode);
    streams(&mut trees);
    let reaches = |trees: &Trees, more: u64| {
        let last = |trees: &Trees| trees.store().rounds().unwrap().last().copied();
        let before = last(trees).unwrap_or(0);
        wait_until("there are more", || last(trees) >= Some(before + more));
    };
    reaches(&trees, 3);
    // One that is not connected comes, and goes.
    let code = "import os, time\nwhile not os.path.exists('leave'): time.sleep(0.01)";
    trees.launch("four", &["/usr/bin/python3", "-c", code]);
    reaches(&trees, 2);
    trees.tell("leave");
    trees.left("four");
    reaches(&trees, 2);
    assert!(trees.store().rounds().unwrap().len() <= 18);
    trees.kill_all();
    trees.restart();
    // The job is what it was told to be.
    reaches(&trees, 2);
    end_well(&mut trees);
}
