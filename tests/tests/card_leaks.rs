//! Whatever happens to cards, nothing of it stays with the host: a test program of its own, for it
//! counts what its process has.

mod scene;

use std::{
    fs,
    time::{Duration, Instant},
};

use scene::SNAPRIG;
use snaprig_coi::{Engine, Process};
use snaprig_fixtures::kmeans;
use snaprig_rig::{Card, Rig};

const BYTES: usize = 4 << 20;

/// Descriptors, threads, mappings of cards' memory, children.
fn held() -> [usize; 4] {
    let count = |path: &str| fs::read_dir(path).expect("it is there").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("it is there");
    let tasks = fs::read_dir("/proc/self/task").expect("it is there");
    let children = tasks.flatten().map(|task| {
        let list = fs::read_to_string(task.path().join("children"));
        list.unwrap_or_default().split_whitespace().count()
    });
    [
        count("/proc/self/fd"),
        count("/proc/self/task"),
        maps.lines().filter(|line| line.contains("memfd:")).count(),
        children.sum(),
    ]
}

/// A process with a window and a transfer under way, when this happens to its card.
fn lose(rig: &Rig, harm: fn(&Card) -> Result<(), snaprig_rig::RigError>) {
    let engine = Engine::get(rig.dir(), 0).expect("a card");
    let sink = kmeans::SINK.to_vec();
    let process = Process::create(&engine, "kmeans", sink, vec![], vec![]).expect("a process");
    let buffer = process.buffer(BYTES).expect("a buffer");
    let (started, is_started) = std::sync::mpsc::channel();
    let transfers = std::thread::spawn(move || {
        while buffer.write(0, &vec![1; BYTES]).is_ok() {
            // Nobody listens after the first time.
            let _ = started.send(());
        }
    });
    is_started.recv().expect("the first one succeeds");
    harm(rig.card(0)).expect("it is done");
    transfers.join().expect("no panic");
}

#[test]
fn cards_that_come_and_go_leave_nothing_behind() {
    let rig = Rig::builder().exe(SNAPRIG).cards(2).start().expect("a rig");
    let cycle = || {
        lose(&rig, Card::reset);
        lose(&rig, Card::unplug);
        rig.card(0).plug().expect("a new card");
        lose(&rig, Card::kill);
        rig.card(0).reset().expect("it comes back");
    };
    cycle();
    let before = held();
    (0..4).for_each(|_| cycle());
    // What is on its way out may take a moment.
    let deadline = Instant::now() + Duration::from_secs(30);
    while held().iter().zip(before).any(|(now, before)| *now > before) {
        assert!(Instant::now() < deadline, "{before:?} became {:?}", held());
        std::thread::yield_now();
    }
}
