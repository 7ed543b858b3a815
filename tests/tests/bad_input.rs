//! Programs, snapshots, disks and cards that are no good: each is refused or reported with its
//! name, nothing hangs, nothing is left behind, and what still can go on does.

mod scene;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use scene::{SNAPRIG, Scene, TIMEOUT, quiet};
use snaprig_coi::{CoiError, Engine, Process};
use snaprig_fixtures::programs;
use snaprig_offload_wire::coi::Exit;
use snaprig_rig::{Rig, RigError};
use snaprig_snapify::Snapify;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn rig(cards: usize) -> Rig {
    Rig::builder()
        .exe(SNAPRIG)
        .cards(cards)
        .start()
        .expect("a rig")
}

fn faulty(rig: &Rig, arguments: &[&str]) -> Process {
    let engine = Engine::get(rig.dir(), 0).expect("card 1");
    let sink = programs::FAULTY_SINK.to_vec();
    let arguments = arguments.iter().map(|one| (*one).to_owned()).collect();
    Process::create(&engine, "faulty", sink, arguments, vec![]).expect("a process")
}

fn files_below(path: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(path).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files_below(&path),
            false => vec![path],
        })
        .collect()
}

#[test]
fn a_run_function_that_crashes_or_exits_ends_the_process_and_everybody_is_told() {
    let rig = rig(1);
    for (function, misc, exit) in [
        ("faulty_crash", vec![], Exit::Signal(libc::SIGSEGV)),
        ("faulty_exit", vec![3], Exit::Code(3)),
    ] {
        let process = faulty(&rig, &[]);
        let pipeline = process.pipeline().expect("a pipeline");
        let echo = process.function("faulty_echo").expect("it is there");
        let fault = process.function(function).expect("it is there");
        let run = |function, misc: &[u8]| pipeline.run(function, &[], misc, 4).expect("queued");
        let (first, second, third) = (run(echo, b"okay"), run(fault, &misc), run(echo, b"late"));
        assert_eq!(first.wait(TIMEOUT).expect("it ran"), b"okay");
        for event in [second, third] {
            match event.wait(TIMEOUT) {
                Err(CoiError::ProcessDied { exit: found, .. }) => assert_eq!(found, exit),
                other => panic!("{function}: {other:?}"),
            }
        }
        assert_eq!(process.wait(TIMEOUT).expect("it ended"), exit);
        let dir = tempfile::tempdir().expect("a directory");
        let snapify = Snapify::new(&process, quiet());
        let snapshot = dir.path().join("snapshot");
        snapify
            .pause(&snapshot)
            .expect_err("there is nothing to pause");
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }
}

#[test]
fn a_run_function_that_never_returns_can_be_given_up_moved_and_ended() {
    let rig = rig(2);
    // COIProcessWaitForShutdown waits for run functions that run, and a program need not call it: a
    // process that does not end is ended by force.
    for (function, arguments) in [
        ("faulty_spin", &[][..]),
        ("faulty_sleep", &["stubborn"][..]),
    ] {
        let process = faulty(&rig, arguments);
        let pipeline = process.pipeline().expect("a pipeline");
        let endless = process.function(function).expect("it is there");
        let event = pipeline.run(endless, &[], &[], 0).expect("queued");
        process.break_at(1, TIMEOUT).expect("it is sent");
        let waited = event.wait(Some(Duration::from_millis(50)));
        assert_eq!(waited, Err(CoiError::TimedOut));
        let dir = tempfile::tempdir().expect("a directory");
        let card_2 = Engine::get(rig.dir(), 1).expect("card 2");
        Snapify::new(&process, quiet())
            .migrate(&dir.path().join("snapshot"), &card_2)
            .expect("a function in flight moves along");
        let exit = process.destroy(Duration::from_secs(2));
        assert_eq!(exit, Ok(Exit::Signal(libc::SIGKILL)));
        event.wait(TIMEOUT).expect_err("it was ended");
    }
}

#[test]
fn a_card_with_too_little_memory_refuses_a_restore_and_another_takes_it() {
    let rig = Rig::builder()
        .exe(SNAPRIG)
        .cards(3)
        .memory_bytes_each(&[512 << 20, 64 << 20, 512 << 20])
        .start()
        .expect("a rig");
    let scene = Scene::on(rig);
    let ballast = scene.process.buffer(80 << 20).expect("card 1 has room");
    let snapify = Snapify::new(&scene.process, quiet());
    snapify.pause(&scene.snapshot()).expect("pause");
    snapify.capture(false).expect("capture starts");
    snapify.wait(TIMEOUT).expect("wait");
    let error = snapify
        .restore(&scene.engine(1))
        .expect_err("card 2 is too small");
    assert!(error.to_string().contains("more memory"), "{error}");
    snapify.restore(&scene.engine(2)).expect("card 3 takes it");
    snapify.resume().expect("resume");
    drop(ballast);
    scene.finish();
}

#[test]
fn cards_of_impossible_sizes_are_refused() {
    for bytes in [
        0,
        4096,
        (64 << 20) - 4096,
        (64 << 20) + 1,
        (16 << 30) + 4096,
    ] {
        let rig = Rig::builder().exe(SNAPRIG).memory_bytes(bytes).start();
        assert!(matches!(rig.err(), Some(RigError::Memory { .. })));
    }
    let rig = Rig::builder().exe(SNAPRIG).cores(0).start();
    assert!(matches!(
        rig.err(),
        Some(RigError::Processors { processors: 0 })
    ));
}

#[test]
fn every_kind_of_damage_to_a_snapshot_is_refused_and_the_process_can_go_on() {
    let scene = Scene::new(2);
    let snapify = Snapify::new(&scene.process, quiet());
    snapify.pause(&scene.snapshot()).expect("pause");
    snapify.capture(false).expect("capture starts");
    snapify.wait(TIMEOUT).expect("wait");
    let refused = |name: &Path| {
        let error = snapify
            .restore(&scene.engine(1))
            .expect_err("it is damaged");
        let name = name.file_name().expect("a file").to_string_lossy();
        let error = error.to_string();
        assert!(error.contains(&*name), "{name}: {error}");
        error
    };
    for file in files_below(&scene.snapshot()) {
        let good = fs::read(&file).expect("it is there");
        for at in [0, good.len() / 2, good.len() - 1] {
            let mut damaged = good.clone();
            damaged[at] ^= 0x40;
            fs::write(&file, &damaged).expect("written");
            let error = refused(&file);
            assert!(error.contains("offset"), "{error}");
        }
        fs::write(&file, &good[..good.len() - 1]).expect("written");
        refused(&file);
        fs::remove_file(&file).expect("removed");
        refused(&file);
        fs::write(&file, &good).expect("written");
    }
    let elsewhere = scene.dir.path().join("elsewhere");
    fs::rename(scene.snapshot(), &elsewhere).expect("renamed");
    refused(&scene.snapshot());
    fs::rename(&elsewhere, scene.snapshot()).expect("renamed");
    snapify
        .restore(&scene.engine(1))
        .expect("it is whole again");
    snapify.resume().expect("resume");
    scene.finish();
}

/// Runs this test program's test `name` again in a mount namespace of its own, where it may mount
/// a small disk; false if this is that run.
fn elsewhere(name: &str) -> bool {
    if std::env::var_os("SNAPRIG_SMALL_DISK").is_some() {
        return false;
    }
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "--"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", name, "--nocapture"])
        .env("SNAPRIG_SMALL_DISK", "1")
        .output()
        .expect("util-linux is installed");
    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{all}");
    true
}

fn mount_small_disk(at: &Path, bytes: usize) {
    let status = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
        .arg(at)
        .status();
    assert!(status.expect("mount starts").success());
}

#[test]
#[cfg_attr(
    not(has_user_namespaces),
    ignore = "unshare(1) makes no user namespace in which a disk can be mounted"
)]
fn a_full_disk_fails_the_call_that_needs_it_and_the_process_goes_on() {
    if elsewhere("a_full_disk_fails_the_call_that_needs_it_and_the_process_goes_on") {
        return;
    }
    let binary = snaprig_fixtures::kmeans::SINK.len();
    // Room for less than the program, for it alone, for the local store too.
    for (bytes, pause_fails) in [
        (binary / 2, true),
        (binary + (100 << 10), true),
        (binary + (800 << 10), false),
        (binary + (1 << 20), false),
    ] {
        let scene = Scene::new(1);
        mount_small_disk(scene.dir.path(), bytes.next_multiple_of(4096));
        let snapify = Snapify::new(&scene.process, quiet());
        let paused = snapify.pause(&scene.snapshot());
        assert_eq!(paused.is_err(), pause_fails, "{bytes}: {paused:?}");
        let error = match paused {
            Err(error) => error,
            Ok(_) => {
                snapify.capture(false).expect("capture starts");
                let error = snapify.wait(TIMEOUT).expect_err("the disk is full");
                snapify.resume().expect("the process goes on");
                error
            }
        };
        assert!(error.to_string().contains("No space left"), "{error}");
        let left: Vec<_> = fs::read_dir(scene.dir.path())
            .expect("it is there")
            .collect();
        assert!(left.is_empty(), "{left:?}");
        let unmounted = Command::new("umount")
            .arg("-l")
            .arg(scene.dir.path())
            .status();
        assert!(unmounted.expect("umount starts").success());
        scene.finish();
    }
}

fn card_run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(SNAPRIG)
        .args(["card", "run"])
        .args(arguments)
        .arg("--")
        .arg(program)
        .output()
        .expect("it starts")
}

/// Writes a file that may be executed.
fn write_program(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, bytes).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("set");
}

#[test]
fn programs_that_are_none_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let hello = programs::HELLO;
    let machine = |low: u8| {
        let mut program = hello.to_vec();
        program[18] = low;
        program
    };
    let mut class_32 = hello.to_vec();
    class_32[4] = 1;
    let mut entry = hello.to_vec();
    entry[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut headers = hello.to_vec();
    headers[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    for (name, program) in [
        ("text", b"#!/nonexistent/sh\necho no\n".to_vec()),
        ("empty", vec![]),
        ("aarch64", machine(183)),
        ("i386", machine(3)),
        ("class32", class_32),
        ("half", hello[..hello.len() / 2].to_vec()),
        ("header", hello[..64].to_vec()),
        ("headers", headers),
    ] {
        let path = dir.path().join(name);
        write_program(&path, &program);
        let output = card_run(&path, &[]);
        let error = text(&output.stderr);
        assert!(!output.status.success(), "{name} ran");
        assert!(error.contains(name), "{error}");
    }
    // It is a program, and jumps to nowhere.
    let path = dir.path().join("entry");
    write_program(&path, &entry);
    assert_eq!(
        card_run(&path, &[]).status.code(),
        Some(128 + libc::SIGSEGV)
    );
    let missing = card_run(Path::new("/nonexistent/program"), &[]);
    assert!(text(&missing.stderr).contains("/nonexistent/program"));
    let huge = dir.path().join("huge");
    let file = fs::File::create(&huge).expect("created");
    std::io::Write::write_all(&mut &file, hello).expect("written");
    file.set_len(100 << 20).expect("extended");
    let output = card_run(&huge, &["--memory", "64M"]);
    let error = text(&output.stderr);
    assert!(
        !output.status.success() && error.contains("more memory"),
        "{error}"
    );
}
