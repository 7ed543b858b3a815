//! A run function goes on while its process is paused. What it writes to buffers after the local
//! store was saved belongs to the snapshot all the same.

mod scene;

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
