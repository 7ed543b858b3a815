//! Jobs of several trees that are connected over TCP: checkpointed at the same moment, killed, restarted.

mod common;

use std::{thread, time::Duration};

use common::{Trees, program, rounds};

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
    trees.tell("stop");
    let statuses = trees.ended();
    let output = trees.output();
    assert!(
        statuses.iter().all(|status| *status == 0),
        "{statuses:?}: {output}"
    );
    for who in ["server", "client one", "client two"] {
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
    let stranger = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = stranger.local_addr().unwrap().port();
    let code = format!(
        "import os, socket, time\ns = socket.create_connection(('127.0.0.1', {port}))\nprint('met', flush=True)\n\
         while not os.path.exists('stop'): time.sleep(0.01)"
    );
    trees.launch("three", &["/usr/bin/python3", "-c", &code]);
    trees.wait_for("met");
    let why = trees.dump(false).unwrap_err();
    assert!(
        why.contains(&format!("connected to 127.0.0.1:{port}, which is outside")),
        "{why}"
    );
    end_well(&mut trees);
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
