//! Operations of COI on real cards: what waits for what, and where bytes are.

mod scene;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use scene::{SNAPRIG, TIMEOUT, quiet};
use snaprig_coi::{
    Engine, Pipeline, Process,
    ops::{
        Access, Buffer, BufferOptions, Event, Foreign, MapKind, Order, Piece, State, StatePlace,
        on_complete, register_user_event, signal, unregister, wait,
    },
    process::NotificationKind,
};
use snaprig_fixtures::programs;
use snaprig_offload_wire::coi::Exit;
use snaprig_rig::Rig;
use snaprig_snapify::Snapify;

const WORDS: usize = 1000;
const BYTES: u64 = 8 * WORDS as u64;
/// Of several megabytes.
const LARGE_WORDS: u64 = (3 << 20) / 8 + 5;
/// What COIRESULT_common.h has for it.
const RETRY: u32 = 15;
const DIED: u32 = 23;
const CANCELED: u32 = 25;

fn rig(cards: usize) -> Rig {
    let rig = Rig::builder().exe(SNAPRIG).cards(cards).start();
    rig.expect("a rig")
}

fn process(rig: &Rig, card: u16) -> Process {
    let engine = Engine::get(rig.dir(), card).expect("a card");
    let sink = programs::GRAPH_SINK.to_vec();
    Process::create(&engine, "graph", sink, vec![], vec![]).expect("a process")
}

fn foreign<T>(memory: &mut [T]) -> Foreign {
    // SAFETY: the tests keep what they lend until the operation is done.
    unsafe { Foreign::new(memory.as_mut_ptr().cast(), size_of_val(memory)) }
}

fn buffer(processes: &[Process], words: &mut [u64]) -> Buffer {
    let options = BufferOptions {
        bytes: size_of_val(words) as u64,
        initial: Some(foreign(words)),
        ..BufferOptions::default()
    };
    Buffer::create(processes, options).expect("a buffer")
}

fn read(buffer: &Buffer) -> Vec<u64> {
    let mut words = vec![0u64; (buffer.len() / 8) as usize];
    let memory = foreign(&mut words);
    let piece = Piece { at: 0, memory };
    buffer.read(vec![piece], Order::now()).expect("read");
    words
}

/// Waits until all that was queued has returned.
fn drain(pipeline: &Pipeline) {
    run(pipeline, "graph_give_back", &[], 0, &mut [], Order::now());
}

fn run(
    pipeline: &Pipeline,
    name: &str,
    buffers: &[(&Buffer, Access)],
    misc: u64,
    returned: &mut [u64],
    order: Order<'_>,
) -> Event {
    let function = pipeline.process().function(name).expect("it is there");
    let misc = misc.to_le_bytes();
    pipeline
        .submit(function, buffers, &misc, foreign(returned), order)
        .expect("queued")
}

#[test]
fn run_functions_of_two_cards_take_turns_on_one_buffer() {
    let rig = rig(2);
    let processes = [process(&rig, 0), process(&rig, 1)];
    let pipelines = processes
        .clone()
        .map(|process| process.pipeline().expect("a pipeline"));
    let buffer = buffer(&processes, &mut [1; WORDS]);
    let mut expected = 1u64;
    let mut last = Vec::new();
    for number in 0..20 {
        let pipeline = &pipelines[(number % 2) as usize];
        let buffers = [(&buffer, Access::Write)];
        last.push(run(
            pipeline,
            "graph_step",
            &buffers,
            number,
            &mut [],
            Order::default(),
        ));
        expected = expected.wrapping_mul(3).wrapping_add(number);
    }
    wait(&last, true, TIMEOUT).expect("all done");
    assert_eq!(read(&buffer), [expected; WORDS]);
    let mut sums = [0; 2];
    for (pipeline, sum) in pipelines.iter().zip(&mut sums) {
        let sum = std::slice::from_mut(sum);
        let buffers = [(&buffer, Access::Read)];
        run(pipeline, "graph_sum", &buffers, 0, sum, Order::now());
    }
    assert_eq!(sums, [expected * WORDS as u64; 2]);
    let mut places = [0; 2];
    for (pipeline, place) in pipelines.iter().zip(&mut places) {
        let place = std::slice::from_mut(place);
        let buffers = [(&buffer, Access::Read)];
        run(pipeline, "graph_where", &buffers, 0, place, Order::now());
    }
    assert_eq!(places, [buffer.sink_address(None).expect("an address"); 2]);
    buffer.destroy().expect("nobody uses it");
    for process in &processes {
        let ended = process.destroy_with(TIMEOUT, false);
        assert_eq!(ended.expect("it ends"), Exit::Code(3));
        assert!(!process.is_alive());
    }
}

#[test]
fn events_of_the_user_and_failures_go_where_they_are_awaited() {
    let rig = rig(1);
    let process = process(&rig, 0);
    let pipeline = process.pipeline().expect("a pipeline");
    let buffer = buffer(std::slice::from_ref(&process), &mut [0; WORDS]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let id = process.notify(Arc::new(move |note| {
        notes.lock().expect("no panic").push((note.kind, note.tag));
    }));

    // A run function that runs until it is written to.
    let go = register_user_event(0);
    let order = Order {
        after: &[go],
        tag: 5,
        ..Order::default()
    };
    let buffers = [(&buffer, Access::Write)];
    let waits = run(&pipeline, "graph_await", &buffers, 0, &mut [], order);
    let early = wait(&[waits], true, Some(Duration::from_millis(50)));
    assert_eq!(early.map_err(|error| error.code()), Err(9));
    signal(go).expect("a user event");
    let mut word = [1u64];
    let piece = Piece {
        at: 0,
        memory: foreign(&mut word),
    };
    let to = Some(&process);
    // It may come before the run function does, and then it is there as well.
    buffer
        .write(to, vec![piece], false, Order::now())
        .expect("written");
    wait(&[waits], true, TIMEOUT).expect("it saw that");

    // The process signals an event; a callback comes before it is told.
    let event = register_user_event(9);
    let called = Arc::new(Mutex::new(None));
    let result = called.clone();
    on_complete(event, move |event, how| {
        *result.lock().expect("no panic") = Some((event, how));
    });
    let function = process.function("graph_signal").expect("it is there");
    let misc: Vec<u8> = [event.0, 1]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    pipeline
        .submit(function, &[], &misc, Foreign::none(), Order::now())
        .expect("it ran");
    wait(&[event], true, TIMEOUT).expect("signaled");
    assert_eq!(*called.lock().expect("no panic"), Some((event, Ok(()))));

    process.stop_notifying(id);
    use NotificationKind::*;
    let seen = seen.lock().expect("no panic").clone();
    let of = |tag| {
        seen.iter()
            .filter(move |note| note.1 == tag)
            .map(|note| note.0)
    };
    assert_eq!(of(5).collect::<Vec<_>>(), [RunReady, RunStart, RunComplete]);
    assert_eq!(of(9).collect::<Vec<_>>(), [UserEvent]);

    let never = register_user_event(0);
    unregister(never).expect("a user event");
    let told = wait(&[never], true, TIMEOUT);
    assert_eq!(told.map_err(|error| error.code()), Err(CANCELED));

    // What waits when the process ends is told so.
    let never = register_user_event(0);
    let order = Order {
        after: &[never],
        ..Order::default()
    };
    let buffers = [(&buffer, Access::Read)];
    let lost = run(&pipeline, "graph_sum", &buffers, 0, &mut [], order);
    process
        .destroy_with(Some(Duration::ZERO), true)
        .expect("ended");
    let told = wait(&[lost], true, TIMEOUT);
    assert_eq!(told.map_err(|error| error.code()), Err(DIED));
}

#[test]
fn maps_copies_states_and_references() {
    let rig = rig(1);
    let process = process(&rig, 0);
    let own = std::slice::from_ref(&process);
    let pipeline = process.pipeline().expect("a pipeline");
    let a = buffer(own, &mut [1; WORDS]);
    let mut memory = vec![2u64; WORDS];
    let options = BufferOptions {
        bytes: BYTES,
        memory: Some(foreign(&mut memory)),
        ..BufferOptions::default()
    };
    let b = Buffer::create(own, options).expect("a buffer of memory of ours");
    let step = |buffer: &Buffer| {
        let buffers = [(buffer, Access::Write)];
        run(&pipeline, "graph_step", &buffers, 1, &mut [], Order::now())
    };
    step(&b);
    let (mapping, _) = b
        .map(0, 0, MapKind::ReadWrite, Order::now())
        .expect("mapped");
    assert_eq!(mapping.pointer().cast(), memory.as_mut_ptr());
    assert_eq!(memory, [7; WORDS]);
    let refused = b.copy_from(None, 0, &a, 0, 8, false, Order::now());
    assert_eq!(refused.map_err(|error| error.code()), Err(RETRY));
    assert_eq!(b.destroy().map_err(|error| error.code()), Err(RETRY));
    memory.fill(8);
    mapping.unmap(Order::now()).expect("unmapped");
    step(&b);
    assert_eq!(read(&b), [25; WORDS]);

    // From the card's copy of one to the card's copy of the other.
    step(&a);
    b.copy_from(Some(&process), 8, &a, 80, 16, false, Order::now())
        .expect("copied");
    assert_eq!(read(&b)[..4], [25, 4, 4, 25]);
    let here = StatePlace::Process(&process);
    b.set_state(here, State::Invalid, true, Order::now())
        .expect("moved to the host");
    assert_eq!(memory[..4], [25, 4, 4, 25]);

    // While the process keeps it, run functions wait and transfers do not.
    let buffers = [(&a, Access::Write)];
    run(&pipeline, "graph_keep", &buffers, 0, &mut [], Order::now());
    let buffers = [(&a, Access::Write)];
    let waits = run(
        &process.pipeline().expect("a second pipeline"),
        "graph_step",
        &buffers,
        1,
        &mut [],
        Order::default(),
    );
    assert_eq!(read(&a), [4; WORDS]);
    let early = wait(&[waits], true, Some(Duration::from_millis(50)));
    assert_eq!(early.map_err(|error| error.code()), Err(9));
    run(&pipeline, "graph_give_back", &[], 0, &mut [], Order::now());
    wait(&[waits], true, TIMEOUT).expect("it runs now");
    assert_eq!(read(&a), [13; WORDS]);
    for buffer in [&a, &b] {
        buffer.destroy().expect("nobody uses it");
    }
    pipeline.destroy().expect("nothing runs");
    let next = process.pipeline().expect("it has the number again");
    let mut none = [];
    run(
        &next,
        "graph_keep",
        &[(&buffer(own, &mut [1]), Access::Read)],
        0,
        &mut none,
        Order::now(),
    );
}

#[test]
fn what_is_written_past_the_hosts_copy_is_seen_there_too() {
    let rig = rig(1);
    let process = process(&rig, 0);
    let mut words: Vec<u64> = (0..LARGE_WORDS).collect();
    let options = BufferOptions {
        bytes: 8 * LARGE_WORDS,
        open_cl: true,
        ..BufferOptions::default()
    };
    let buffer = Buffer::create(std::slice::from_ref(&process), options).expect("a buffer");
    let write = |words: &mut [u64], at: usize, count: usize| {
        let memory = foreign(&mut words[at..at + count]);
        let at = 8 * at as u64;
        let written = buffer.write(
            Some(&process),
            vec![Piece { at, memory }],
            false,
            Order::now(),
        );
        written.expect("written");
    };
    let all = words.len();
    write(&mut words, 0, all);
    assert!(read(&buffer) == words);
    let kind = MapKind::ReadWrite;
    let (mapping, _) = buffer.map(0, 0, kind, Order::now()).expect("mapped");
    // SAFETY: the buffer is mapped and has so many words, and nobody writes while this looks.
    let seen = || unsafe { std::slice::from_raw_parts(mapping.pointer().cast::<u64>(), all) };
    assert!(seen() == words);
    // The host looks at it all the while, and of OpenCL's kind it may be written to.
    words.reverse();
    write(&mut words, 1, all / 2);
    let (start, written, end) = (seen()[0], &seen()[1..=all / 2], seen()[all - 1]);
    assert!((start, end) == (0, LARGE_WORDS - 1) && *written == words[1..=all / 2]);
    mapping.unmap(Order::now()).expect("unmapped");
    write(&mut words, 0, all);
    assert!(read(&buffer) == words);
}

#[test]
fn memory_of_the_process_is_a_buffer_and_stays_one_on_another_card() {
    let rig = rig(2);
    let process = process(&rig, 0);
    let own = std::slice::from_ref(&process);
    let pipeline = process.pipeline().expect("a pipeline");
    let mut table = [0];
    run(&pipeline, "graph_table", &[], 0, &mut table, Order::now());
    let options = BufferOptions {
        bytes: BYTES,
        sink_memory: Some(table[0]),
        ..BufferOptions::default()
    };
    let a = Buffer::create(own, options).expect("a buffer");
    assert_eq!(a.sink_address(None), Ok(table[0]));
    let mut expected: Vec<u64> = (1..=WORDS as u64).collect();
    assert_eq!(read(&a), expected);
    let dir = tempfile::tempdir().expect("a directory");
    let snapify = Snapify::new(&process, quiet());
    let engine = Engine::get(rig.dir(), 1).expect("card 2");
    let moved = snapify.migrate(&dir.path().join("snapshot"), &engine);
    moved.expect("it moves along");
    let buffers = [(&a, Access::Write)];
    run(&pipeline, "graph_step", &buffers, 1, &mut [], Order::now());
    for word in &mut expected {
        *word = *word * 3 + 1;
    }
    assert_eq!(read(&a), expected);
    a.destroy().expect("nobody uses it");
}

/// Buffers that share memory: what is only on the card, what is only on the host, what has never been
/// written to, and what takes the place of another while the process is paused.
#[test]
fn small_buffers_move_along_with_what_is_in_each() {
    const COUNT: usize = 1200;
    let rig = rig(2);
    let process = process(&rig, 0);
    let own = std::slice::from_ref(&process);
    let pipeline = process.pipeline().expect("a pipeline");
    let blank = |words: usize| {
        let options = BufferOptions {
            bytes: 8 * words as u64,
            ..BufferOptions::default()
        };
        (
            Buffer::create(own, options).expect("a buffer"),
            vec![0; words],
        )
    };
    let made = |words: &[u64]| (buffer(own, &mut words.to_vec()), words.to_vec());
    let step = |(buffer, expected): &mut (Buffer, Vec<u64>), number: u64| {
        let buffers = [(&*buffer, Access::Write)];
        run(
            &pipeline,
            "graph_step",
            &buffers,
            number,
            &mut [],
            Order::default(),
        );
        expected
            .iter_mut()
            .for_each(|word| *word = *word * 3 + number);
    };
    let mut all: Vec<_> = (0..COUNT)
        .map(|at| match at % 4 {
            0 => blank(1 + at % 600),
            _ => made(&[at as u64 + 1; 3]),
        })
        .collect();
    for (at, one) in all.iter_mut().enumerate().filter(|(at, _)| at % 3 != 1) {
        step(one, at as u64);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let snapify = Snapify::new(&process, quiet());
    drain(&pipeline);
    snapify.pause(&dir.path().join("snapshot")).expect("paused");
    for at in (0..COUNT).step_by(5) {
        all[at].0.destroy().expect("nobody uses it");
        all[at] = match at % 2 {
            0 => blank(2),
            _ => made(&[7, at as u64]),
        };
    }
    snapify.capture(true).expect("begun");
    snapify.wait(TIMEOUT).expect("captured");
    let engine = Engine::get(rig.dir(), 1).expect("card 2");
    snapify.restore(&engine).expect("restored");
    snapify.resume().expect("resumed");
    for (at, one) in all.iter_mut().enumerate().filter(|(at, _)| at % 2 == 0) {
        step(one, at as u64);
    }
    drain(&pipeline);
    for (at, (buffer, expected)) in all.iter().enumerate() {
        assert_eq!(read(buffer), *expected, "buffer {at}");
        buffer.destroy().expect("nobody uses it");
    }
}

#[test]
fn a_process_takes_its_graph_along_to_another_card() {
    let rig = rig(2);
    let process = process(&rig, 0);
    let own = std::slice::from_ref(&process);
    let spare = process.pipeline().expect("a pipeline");
    let pipeline = process.pipeline().expect("a pipeline");
    spare.destroy().expect("it is not used");
    let a = buffer(own, &mut [1; WORDS]);
    let buffers = [(&a, Access::Write)];
    run(&pipeline, "graph_keep", &buffers, 0, &mut [], Order::now());
    let other = process.pipeline().expect("a pipeline");
    let waits = run(&other, "graph_step", &buffers, 1, &mut [], Order::default());
    let dir = tempfile::tempdir().expect("a directory");
    let snapify = Snapify::new(&process, quiet());
    snapify.pause(&dir.path().join("snapshot")).expect("paused");
    // Asked for while nothing moves.
    let mut words = vec![0u64; WORDS];
    let piece = Piece {
        at: 0,
        memory: foreign(&mut words),
    };
    let reading = a.read(vec![piece], Order::default()).expect("queued");
    snapify.capture(true).expect("begun");
    snapify.wait(TIMEOUT).expect("captured");
    let engine = Engine::get(rig.dir(), 1).expect("card 2");
    snapify.restore(&engine).expect("restored");
    snapify.resume().expect("resumed");
    wait(&[reading], true, TIMEOUT).expect("read");
    assert_eq!(words, [1; WORDS]);
    run(&pipeline, "graph_give_back", &[], 0, &mut [], Order::now());
    wait(&[waits], true, TIMEOUT).expect("it runs at last");
    assert_eq!(read(&a), [4; WORDS]);
    a.destroy().expect("nobody uses it");
}
