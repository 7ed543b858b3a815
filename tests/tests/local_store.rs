//! The local store of a process whose host lives on. A run function goes on while its process is paused: what it writes to
//! buffers after the local store was saved belongs to the snapshot all the same. A process that has left its card, on purpose
//! or not, leaves no memory behind.

mod scene;

use std::time::{Duration, Instant};

use scene::{SNAPRIG, TIMEOUT, quiet};
use snaprig_coi::{Engine, Process};
use snaprig_fixtures::programs;
use snaprig_rig::Rig;
use snaprig_snapify::Snapify;

#[test]
fn what_a_run_function_writes_during_a_pause_is_in_the_snapshot() {
    let rig = Rig::builder().exe(SNAPRIG).cards(2).start().expect("a rig");
    let engine = |index| Engine::get(rig.dir(), index).expect("a card");
    let sink = programs::MIRROR_SINK.to_vec();
    let process = Process::create(&engine(0), "mirror", sink, vec![], vec![]).expect("a process");
    let store = process.buffer(512 << 10).expect("a buffer");
    let control = process.buffer(4096).expect("a buffer");
    let pipeline = process.pipeline().expect("a pipeline");
    let run = process.function("mirror_run").expect("it is there");
    let event = pipeline
        .run(run, &[&store, &control], b"", 16)
        .expect("queued");
    let dir = tempfile::tempdir().expect("a directory");
    let snapify = Snapify::new(&process, quiet());
    // There and back: a snapshot of a process that a snapshot was made of.
    for target in [1, 0] {
        let snapshot = dir.path().join(format!("to-{target}"));
        snapify.pause(&snapshot).expect("paused");
        snapify.capture(true).expect("begun");
        snapify.wait(TIMEOUT).expect("captured");
        snapify.restore(&engine(target)).expect("restored");
        snapify.resume().expect("resumed");
    }
    control.write(0, &1u64.to_le_bytes()).expect("told to stop");
    let returned = event.wait(TIMEOUT).expect("it returned");
    let word = |at: usize| u64::from_le_bytes(returned[at..at + 8].try_into().expect("8 bytes"));
    let (written, changed) = (word(0), word(8));
    assert!(written > 0);
    assert_eq!(changed, 0, "of {written} words");
    let mut last = vec![0; store.len()];
    store.read(0, &mut last).expect("read");
    let largest = last
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8")));
    assert_eq!(largest.max(), Some(written));
}

#[test]
fn a_card_has_its_memory_back_when_a_process_has_left() {
    const BYTES: u64 = 32 << 20;
    let rig = Rig::builder().exe(SNAPRIG).start().expect("a rig");
    let engine = Engine::get(rig.dir(), 0).expect("a card");
    let dir = tempfile::tempdir().expect("a directory");
    let free = || engine.info().expect("it is there").free_bytes;
    let before = free();
    let has_back = || {
        // The daemon keeps files of programs, and what ends takes a moment.
        let deadline = Instant::now() + Duration::from_secs(30);
        while free() + BYTES / 4 < before {
            assert!(Instant::now() < deadline, "{before} became {}", free());
            std::thread::yield_now();
        }
    };
    let sink = programs::MIRROR_SINK.to_vec();
    let process = Process::create(&engine, "mirror", sink, vec![], vec![]).expect("a process");
    let buffer = process.buffer(BYTES as usize).expect("a buffer");
    buffer.write(0, &vec![1; BYTES as usize]).expect("written");
    assert!(free() + BYTES <= before);
    let snapify = Snapify::new(&process, quiet());
    let snapshot = dir.path().join("snapshot");
    snapify.swap_out(&snapshot).expect("swapped out");
    has_back();
    snapify.swap_in(&engine).expect("swapped in");
    let mut last = vec![0; BYTES as usize];
    buffer.read(0, &mut last).expect("read");
    assert!(last.iter().all(|byte| *byte == 1));
    assert!(free() + BYTES <= before);
    drop((snapify, process, buffer));
    has_back();
}
