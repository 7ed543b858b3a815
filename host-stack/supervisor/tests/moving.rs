//! A member of a job moves to another supervisor while the others stay: with its connections, or not at all, whoever dies.

mod common;

use std::{fs, os::unix::fs::FileExt, thread, time::Duration};

use common::{Trees, compiled, program, rounds, wait_until};

const PYTHON: &str = "/usr/bin/python3";

/// A server and a client, whose supervisors kill themselves at a step.
fn streams(trees: &mut Trees, at: [Option<&str>; 2]) {
    trees.launch_to_die("server", at[0], &[PYTHON, &program("stream_server.py")]);
    let client = program("stream_client.py");
    trees.launch_to_die("client", at[1], &[PYTHON, &client, "client", "3"]);
    trees.wait_for("server ready");
    trees.wait_for("client client ready");
}

fn are_right(trees: &mut Trees) {
    trees.tell("stop");
    let ended = trees.ended();
    let output = trees.output();
    assert!(
        ended.iter().all(|status| *status == 0),
        "{ended:?}: {output}"
    );
    assert!(
        output.contains("server right") && output.contains("client client right"),
        "{output}"
    );
}

/// So many processes run this program.
fn runs(trees: &Trees, name: &str) -> usize {
    let marker = format!("{}/", trees.directory.path().display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_it = |path: std::path::PathBuf| {
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let cwd = fs::read_link(path.join("cwd")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.starts_with(PYTHON)
            && line.contains(name)
            && format!("{}/", cwd.display()).starts_with(&marker)
    };
    processes.filter(|entry| is_it(entry.path())).count()
}

#[test]
fn a_member_moves_with_its_connections_again_and_again() {
    let mut trees = Trees::new();
    streams(&mut trees, [None, None]);
    for (times, member) in [(1, "server"), (1, "client"), (2, "server")] {
        trees.begin_move(member, None);
        let said = format!("{member} has moved");
        wait_until(&said, || trees.output().matches(&said).count() == times);
        // Whoever asks for it finds it, and there is one of it.
        trees.dump(false).unwrap();
        assert_eq!(runs(&trees, &format!("stream_{member}")), 1);
    }
    are_right(&mut trees);
}

#[test]
fn a_member_that_has_moved_is_restarted_from_a_checkpoint_by_its_name() {
    let mut trees = Trees::new();
    streams(&mut trees, [None, None]);
    trees.begin_move("client", None);
    trees.wait_for("client has moved");
    trees.dump(true).unwrap();
    trees.ended();
    fs::write(trees.directory.path().join("out"), "").unwrap();
    trees.begin_restart(None);
    are_right(&mut trees);
}

/// Memory that others have is the same before and after; and one that does not move in the end is as it was.
#[test]
fn shared_memory_goes_along_as_it_is() {
    for dies in [None, Some("move.restored")] {
        let (_directory, along) = compiled("along.c", &[]);
        let mut trees = Trees::new();
        trees.launch("one", &[&along]);
        trees.wait_for("ready");
        let memory = memory_of(&along);
        let file = fs::File::open(&memory).unwrap();
        trees.begin_move("one", dies);
        match dies {
            None => trees.wait_for("one has moved"),
            Some(_) => assert_ne!(trees.last_ended(), 0),
        }
        trees.tell("go");
        let (ended, output) = (trees.ended(), trees.output());
        assert!(output.contains("right"), "{ended:?}: {output}");
        let mut first = [0; 13];
        file.read_exact_at(&mut first, 0).unwrap();
        assert_eq!(&first, b"written later");
    }
}

/// The memfd of a program, as one of its processes has it.
fn memory_of(program: &str) -> std::path::PathBuf {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let of_program = processes.filter(|entry| {
        let exe = fs::read_link(entry.path().join("exe"));
        exe.is_ok_and(|exe| exe.as_os_str() == program)
    });
    let files = of_program.filter_map(|entry| fs::read_dir(entry.path().join("fd")).ok());
    let mut files = files.flatten().flatten().map(|entry| entry.path());
    let is_it = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.as_os_str() == "/memfd:along (deleted)")
    };
    files.find(is_it).expect("it is open")
}

#[test]
fn who_cannot_move_stays() {
    let mut trees = Trees::new();
    streams(&mut trees, [None, None]);
    trees.begin_move("nobody", None);
    assert_ne!(trees.last_ended(), 0);
    trees.wait_for("no member \"nobody\"");
    are_right(&mut trees);
}

/// Who dies at a step of a move: the one whose tree it is, another one, or the one to whom it goes.
type Deaths = [Option<&'static str>; 3];

const DEATHS: [Deaths; 11] = [
    [Some("move.begun"), None, None],
    [Some("move.saved"), None, None],
    [Some("move.sent"), None, None],
    [Some("move.leaves"), None, None],
    [Some("move.left"), None, None],
    [None, Some("move.begun"), None],
    [None, Some("move.connected"), None],
    [None, Some("move.follows"), None],
    [None, None, Some("move.arrived")],
    [None, None, Some("move.restored")],
    [None, None, Some("move.decided")],
];

/// While an image is on its way from one to the other.
const DEATHS_ON_THE_WAY: [Deaths; 4] = [
    [Some("move.sending"), None, None],
    [Some("move.saved"), None, None],
    [None, None, Some("move.coming")],
    [None, None, Some("move.arrived")],
];

fn dies(strategy: &str, whoever: Deaths) {
    let [source, other, heir] = whoever;
    let mut trees = Trees::new();
    streams(&mut trees, [source, other]);
    trees.dump(false).unwrap();
    trees.begin_move_by("server", strategy, heir);
    if heir.is_some() {
        assert_ne!(trees.last_ended(), 0, "{strategy}: {whoever:?}");
    }
    let over = ["has moved", "does not move", "is not reachable"];
    wait_until(
        &format!("{strategy}: {whoever:?}: the move is over"),
        || over.iter().any(|said| trees.output().contains(said)),
    );
    let servers = runs(&trees, "stream_server");
    assert!(servers <= 1, "{strategy}: {whoever:?}: {servers}");
    // Who dies before it is decided to go there is not missed.
    if matches!(heir, Some("move.coming" | "move.arrived" | "move.restored")) {
        trees.dump(false).unwrap();
        return are_right(&mut trees);
    }
    trees.kill_all();
    fs::write(trees.directory.path().join("out"), "").unwrap();
    trees.begin_restart(None);
    are_right(&mut trees);
}

#[test]
fn whoever_dies_at_a_step_there_is_one_of_the_tree_or_a_checkpoint_of_all() {
    for whoever in DEATHS {
        dies("", whoever);
    }
}

#[test]
fn whoever_dies_while_an_image_is_on_its_way_there_is_one_of_the_tree() {
    for strategy in ["ppmr", "pre-copy", "rdma-local"] {
        for whoever in DEATHS_ON_THE_WAY {
            dies(strategy, whoever);
        }
    }
}

#[test]
fn whoever_dies_while_a_file_is_copied_there_is_one_of_the_tree() {
    for whoever in [
        [Some("move.sending"), None, None],
        [None, None, Some("move.arrived")],
    ] {
        dies("shared", whoever);
    }
}

#[test]
fn a_member_moves_by_each_way_that_its_image_may_take() {
    let mut trees = Trees::new();
    streams(&mut trees, [None, None]);
    for (times, strategy) in (1..).zip(["ppmr", "pre-copy", "rdma-local", "shared"]) {
        trees.begin_move_by("server", strategy, None);
        wait_until(&format!("server has moved by {strategy}"), || {
            trees.output().matches("server has moved").count() == times
        });
        assert_eq!(runs(&trees, "stream_server"), 1);
    }
    trees.dump(false).unwrap();
    are_right(&mut trees);
}

#[test]
fn the_coordinator_dies_at_any_moment_of_a_move() {
    for round in 0..rounds(12) {
        let mut trees = Trees::new();
        streams(&mut trees, [None, None]);
        trees.begin_move("server", None);
        thread::sleep(Duration::from_micros(round * 9_973 % 150_000));
        trees.kill_coordinator();
        // It has moved, or it has not.
        are_right_but_for_who_moved(&mut trees, round);
    }
}

fn are_right_but_for_who_moved(trees: &mut Trees, round: u64) {
    trees.tell("stop");
    let ended = trees.ended();
    let output = trees.output();
    assert_eq!(ended[..2], [0, 0], "round {round}, {ended:?}: {output}");
    assert!(
        output.contains("server right") && output.contains("client client right"),
        "round {round}: {output}"
    );
    assert_eq!(output.matches("server right").count(), 1, "{output}");
}

#[test]
fn private_memory_that_changes_goes_along() {
    let grown = ["grown", "grown-child"];
    for (program, at_last) in [("growing.c", &grown[..]), ("churn.c", &[])] {
        let (_directory, changing) = compiled(program, &[]);
        let mut trees = Trees::new();
        trees.launch("one", &[&changing]);
        trees.wait_for("ready");
        for times in 1..=5 {
            if times == 5 {
                wait_until("it does not grow any more", || {
                    at_last.iter().all(|name| trees.has(name))
                });
            }
            trees.begin_move("one", None);
            wait_until("one has moved", || {
                trees.output().matches("one has moved").count() == times
            });
        }
        trees.tell("go");
        let (ended, output) = (trees.ended(), trees.output());
        assert!(output.contains("right"), "{ended:?}: {output}");
    }
}
