//! The card is killed at every step of pause, capture and restore: whoever waits is told, nobody
//! hangs, and what the paper's protocol allows still works.

mod scene;

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use scene::{SNAPRIG, Scene, TIMEOUT, quiet};
use snaprig_coi::Engine;
use snaprig_fixtures::kmeans::{self, Workload};
use snaprig_rig::Rig;
use snaprig_snapify::{
    Snapify, Step, StepReport,
    control::{Client, Command as Control},
};

/// An observer that kills process `pid` when `step` begins.
fn killer(step: Step, pid: u32) -> Arc<dyn Fn(&StepReport) + Send + Sync> {
    let done = Mutex::new(false);
    Arc::new(move |report: &StepReport| {
        let mut done = done.lock().expect("no panic");
        if report.step == step && report.elapsed.is_none() && !*done {
            *done = true;
            // SAFETY: kill(2) takes numbers alone; the process is a card of this test's rig.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
    })
}

fn pid_of(scene: &Scene, card: usize) -> u32 {
    scene.rig.card(card).pid().expect("it is powered")
}

fn no_partial_files(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let name = entry
            .expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned();
        assert!(!name.contains("partial"), "{name} is left behind");
    }
}

#[test]
fn a_card_killed_during_pause_fails_the_pause_and_the_work() {
    for step in [Step::Agree, Step::Lock, Step::Drain] {
        let scene = Scene::new(1);
        let snapify = Snapify::new(&scene.process, killer(step, pid_of(&scene, 0)));
        snapify
            .pause(&scene.snapshot())
            .expect_err("the card is dead");
        assert!(!scene.snapshot().exists());
        no_partial_files(scene.dir.path());
        scene
            .work
            .join()
            .expect("no panic")
            .expect_err("nobody can finish it");
    }
}

#[test]
fn a_card_killed_during_capture_leaves_the_earlier_snapshot() {
    let scene = Scene::new(2);
    let before = checkpoint(&scene);
    scene.process.break_at(12, TIMEOUT).expect("it goes on");
    let pid = pid_of(&scene, 0);
    let second = Snapify::new(&scene.process, killer(Step::Capture, pid));
    second.pause(&scene.snapshot()).expect("pause");
    second.capture(false).expect("capture starts");
    second.wait(TIMEOUT).expect_err("the card is dead");
    assert_eq!(image_of(&scene.snapshot()), before);
    no_partial_files(scene.dir.path());
}

/// Takes a snapshot, and has the process go on; the image.
fn checkpoint(scene: &Scene) -> Vec<u8> {
    let snapify = Snapify::new(&scene.process, quiet());
    snapify.pause(&scene.snapshot()).expect("pause");
    snapify.capture(false).expect("capture");
    snapify.wait(TIMEOUT).expect("wait");
    snapify.resume().expect("resume");
    image_of(&scene.snapshot())
}

fn image_of(path: &Path) -> Vec<u8> {
    std::fs::read(path.join("offload_process.img")).expect("the snapshot is there")
}

#[test]
fn a_card_killed_during_restore_leaves_a_process_that_another_card_can_have() {
    for step in [Step::Restore, Step::Reconnect] {
        let scene = Scene::new(3);
        let pid = pid_of(&scene, 1);
        let snapify = Snapify::new(&scene.process, killer(step, pid));
        snapify.pause(&scene.snapshot()).expect("pause");
        snapify.capture(true).expect("capture");
        snapify.wait(TIMEOUT).expect("wait");
        snapify
            .restore(&scene.engine(1))
            .expect_err("card 2 is dead");
        snapify.restore(&scene.engine(2)).expect("card 3 takes it");
        snapify.resume().expect("resume");
        scene.finish();
    }
}

#[test]
fn swap_and_migration_finish_with_the_golden_result() {
    let scene = Scene::new(2);
    let snapify = Snapify::new(&scene.process, quiet());
    snapify.swap_out(&scene.snapshot()).expect("swap out");
    snapify
        .swap_in(&scene.engine(0))
        .expect("swap in on the same card");
    scene.process.break_at(15, TIMEOUT).expect("it goes on");
    snapify
        .migrate(&scene.snapshot(), &scene.engine(1))
        .expect("migrate");
    assert_eq!(scene.process.status().node, 2);
    scene.finish();
}

#[test]
fn a_process_whose_move_fails_goes_on_where_it_was() {
    for is_live in [false, true] {
        for step in [Step::Drain, Step::Restore, Step::Reconnect] {
            let scene = Scene::new(2);
            let before = checkpoint(&scene);
            let snapify = Snapify::new(&scene.process, killer(step, pid_of(&scene, 1)));
            let moved = match is_live {
                true => snapify.migrate_live(&scene.snapshot(), &scene.engine(1)),
                false => snapify.migrate(&scene.snapshot(), &scene.engine(1)),
            };
            moved.expect_err("card 2 is dead");
            assert_eq!(scene.process.status().node, 1);
            assert_eq!(image_of(&scene.snapshot()), before);
            no_partial_files(scene.dir.path());
            scene.finish();
        }
    }
}

#[test]
fn a_card_killed_while_its_process_leaves_it_is_a_loss_until_the_other_card_has_that() {
    for step in [Step::Restore, Step::Reconnect] {
        let scene = Scene::new(2);
        let snapify = Snapify::new(&scene.process, killer(step, pid_of(&scene, 0)));
        let moved = snapify.migrate(&scene.snapshot(), &scene.engine(1));
        no_partial_files(scene.dir.path());
        if step == Step::Reconnect {
            moved.expect("card 2 has it");
            scene.finish();
            continue;
        }
        moved.expect_err("card 1 is dead");
        let work = scene.work.join().expect("no panic");
        work.expect_err("nobody can finish it");
    }
}

#[test]
fn calls_out_of_order_and_damaged_snapshots_are_refused() {
    let scene = Scene::new(2);
    let snapify = Snapify::new(&scene.process, quiet());
    snapify.resume().expect_err("it is not paused");
    snapify.pause(&scene.snapshot()).expect("pause");
    snapify
        .pause(&scene.snapshot())
        .expect_err("it is paused already");
    snapify.capture(false).expect("capture");
    snapify.wait(TIMEOUT).expect("wait");
    let image = scene.snapshot().join("offload_process.img");
    let good = std::fs::read(&image).expect("it is there");
    let mut damaged = good.clone();
    damaged[70_000] ^= 8;
    std::fs::write(&image, &damaged).expect("written");
    let error = snapify
        .restore(&scene.engine(1))
        .expect_err("it is damaged")
        .to_string();
    assert!(
        error.contains("offload_process.img") && error.contains("offset 65536"),
        "{error}"
    );
    std::fs::write(&image, &good).expect("written");
    snapify.resume().expect("the application is still usable");
    scene.finish();
}

#[test]
fn a_card_killed_once_its_process_is_captured_is_no_loss() {
    for step in [Step::Commit, Step::Verify, Step::Resume] {
        let scene = Scene::new(2);
        let snapify = Snapify::new(&scene.process, killer(step, pid_of(&scene, 0)));
        snapify.pause(&scene.snapshot()).expect("pause");
        snapify.capture(false).expect("capture starts");
        snapify.wait(TIMEOUT).expect("the image is on the host");
        if step == Step::Resume {
            snapify.resume().expect_err("card 1 is dead");
        }
        snapify.restore(&scene.engine(1)).expect("card 2 takes it");
        snapify.resume().expect("resume");
        scene.finish();
    }
}

#[test]
fn a_card_killed_while_the_restored_process_resumes_can_be_replaced_again() {
    let scene = Scene::new(3);
    let pid = pid_of(&scene, 1);
    let snapify = Snapify::new(&scene.process, killer(Step::Resume, pid));
    snapify.pause(&scene.snapshot()).expect("pause");
    snapify.capture(true).expect("capture starts");
    snapify.wait(TIMEOUT).expect("wait");
    snapify.restore(&scene.engine(1)).expect("card 2 takes it");
    snapify.resume().expect_err("card 2 is dead");
    snapify.restore(&scene.engine(2)).expect("card 3 takes it");
    snapify.resume().expect("resume");
    scene.finish();
}

#[test]
fn a_host_process_killed_at_any_command_leaves_cards_that_others_can_use() {
    let rig = Rig::builder().exe(SNAPRIG).cards(2).start().expect("a rig");
    let dir = tempfile::tempdir().expect("a directory");
    let snapshot = dir.path().join("snapshot");
    let commands = [
        Control::BreakAtRunFunction(9),
        Control::Pause(snapshot.clone()),
        Control::Capture(false),
        Control::Wait,
        Control::Restore(2),
        Control::Resume,
    ];
    for count in 0..=commands.len() {
        let mut host = std::process::Command::new(SNAPRIG)
            .args(["workload", "kmeans", "--result"])
            .arg(dir.path().join("result"))
            .env("SNAPRIG_RIG", rig.dir())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut ready = [0; 5];
        let stdout = host.stdout.as_mut().expect("it is piped");
        std::io::Read::read_exact(stdout, &mut ready).expect("it is ready");
        let mut client = Client::connect(rig.dir(), host.id()).expect("it listens");
        for command in &commands[..count] {
            let done = client.run(command, TIMEOUT.expect("30 s"));
            done.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        }
        host.kill().expect("killed");
        host.wait().expect("gone");
    }
    for card in 0..2 {
        let engine = Engine::get(rig.dir(), card).expect("a card");
        let (name, sink) = ("kmeans", kmeans::SINK.to_vec());
        let process = snaprig_coi::Process::create(&engine, name, sink, vec![], vec![]);
        let outcome = kmeans::run(&process.expect("a process"), &Workload::shipped());
        let golden = kmeans::golden(&Workload::shipped()).to_text();
        assert_eq!(outcome.expect("it finishes").to_text(), golden);
    }
}
