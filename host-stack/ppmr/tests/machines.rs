//! Sources and a target together: all bytes come in order whatever happens when; who is slow is slow alone; what stands
//! still ends; and whatever a peer says, memory is bounded and nothing panics.

mod pair;

use pair::{CHUNK, Pair, Random, buffers};
use proptest::prelude::*;
use snaprig_ppmr::{
    Failure, Mode, Nonsense, Refusal, Source, Target, Times,
    message::{Open, Remote, ToSource, ToTarget, VERSION},
    source, target,
    target::StreamId,
};

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Pull), Just(Mode::Push)]
}

proptest! {
    #[test]
    fn all_bytes_come_in_order_whatever_happens_when(
        seed: u64, mode in modes(), sources in 1..4usize, ranks in 1..4u32, more in [0..6u32, 0..6u32]
    ) {
        let chunks = [ranks + more[0], sources as u32 * ranks + more[1]];
        let mut pair = Pair::new(seed, mode, sources, ranks, chunks);
        pair.rest();
        pair.assert_moved();
        pair.assert_nothing_is_left();
    }

    #[test]
    fn who_is_slow_is_slow_alone(seed: u64, mode in modes(), sources in 1..4usize, ranks in 2..4u32, more in 0..6u32) {
        let chunks = [ranks + more, sources as u32 * ranks + more];
        let mut pair = Pair::new(seed, mode, sources, ranks, chunks);
        let slow = StreamId { connection: 0, rank: 1 };
        pair.process(slow).is_stopped = true;
        pair.rest();
        for (stream, process) in &pair.processes {
            let is_over = process.ends == [Some(Ok(())); 2];
            prop_assert_eq!(is_over, *stream != slow, "{:?}", stream);
        }
        pair.process(slow).is_stopped = false;
        pair.rest();
        pair.assert_moved();
        pair.assert_nothing_is_left();
    }

    #[test]
    fn who_stands_still_fails_in_time_and_the_others_do_not(seed: u64, mode in modes(), more in 0..6u32) {
        let mut pair = Pair::new(seed, mode, 2, 2, [2 + more, 4 + more]);
        let slow = StreamId { connection: 0, rank: 1 };
        pair.process(slow).is_stopped = true;
        pair.time_passes();
        for (stream, process) in &pair.processes {
            let expected = match *stream == slow {
                true => Some(Err(Failure::ReaderStalled)),
                false => Some(Ok(())),
            };
            prop_assert_eq!(process.ends, [expected; 2], "{:?}", stream);
        }
        // It has not said yet that it touches nothing any more.
        pair.target(target::Input::ReaderGone { stream: slow }, 0);
        pair.assert_nothing_is_left();
    }

    #[test]
    fn a_connection_that_is_lost_at_any_step_fails_its_streams_alone(
        seed: u64, mode in modes(), steps in 0..300usize, more in 0..6u32
    ) {
        let mut pair = Pair::new(seed, mode, 2, 2, [2 + more, 4 + more]);
        for _ in 0..steps {
            pair.step();
        }
        let was_over = pair.over[0];
        pair.cut(0);
        pair.rest();
        for (stream, process) in &pair.processes {
            let is_whole = process.ends == [Some(Ok(())); 2];
            prop_assert!(is_whole || stream.connection == 0 && !was_over, "{:?}", stream);
            let is_over = process.ends.map(|end| end.is_some());
            prop_assert_eq!(is_over, [true, process.has_begun]);
        }
        prop_assert!(pair.over.iter().all(|over| *over));
    }

    #[test]
    fn a_writer_that_goes_at_any_step_fails_its_stream_alone(seed: u64, mode in modes(), steps in 0..200usize) {
        let mut pair = Pair::new(seed, mode, 1, 3, [5, 6]);
        for _ in 0..steps {
            pair.step();
        }
        pair.source(0, source::Input::WriterGone { rank: 2 }, 0);
        let gone = StreamId { connection: 0, rank: 2 };
        pair.rest();
        for stream in pair.processes.keys().copied().collect::<Vec<_>>() {
            let ends = pair.process(stream).ends;
            let failed = Some(Err(Failure::Writer));
            prop_assert!(ends == [Some(Ok(())); 2] || stream == gone && ends == [failed; 2], "{:?}", ends);
        }
        pair.target(target::Input::ReaderGone { stream: gone }, 0);
        pair.assert_nothing_is_left();
    }

    #[test]
    fn whatever_a_source_says_a_target_has_its_bounds(seed: u64, mode in modes()) {
        let mut random = Random(seed | 1);
        let config = target::Config { buffers: buffers(6), streams_max: 4, ..target::Config::default() };
        let mut target = Target::new(config, 0).expect("it is possible");
        let mut slots = Vec::new();
        for now in 0..400u64 {
            let connection = random.below(3) as u64;
            let stream = StreamId { connection, rank: random.below(3) as u32 };
            let input = match random.below(12) {
                0 => target::Input::Connected { connection },
                1 => target::Input::Want { stream },
                2 => target::Input::Took { stream, bytes: random.below(10) as u32 },
                3 => target::Input::Checked { stream, checksum: random.below(2) as u64 },
                4 if random.below(8) == 0 => target::Input::Closed { connection },
                5 if random.below(8) == 0 => target::Input::ReaderGone { stream },
                6 => match slots.pop() {
                    Some(slot) => target::Input::Pulled { slot, is_done: random.below(8) > 0 },
                    None => target::Input::Tick,
                },
                _ => target::Input::Message { connection, message: hostile_source(&mut random, mode) },
            };
            for output in target.handle(input, now) {
                if let target::Output::Pull { slot, bytes, .. } = output {
                    prop_assert!(slot < 6 && bytes <= CHUNK);
                    slots.push(slot);
                }
            }
            prop_assert!(target.used_chunks() <= 6);
        }
    }

    #[test]
    fn whatever_a_target_says_a_source_comes_to_its_end(seed: u64, mode in modes()) {
        let mut random = Random(seed | 1);
        let mut source = source_of(mode, 4, 2);
        let mut now = 0;
        for _ in 0..300 {
            let rank = random.below(2) as u32;
            let input = match random.below(10) {
                0 => source::Input::Want { rank },
                1 => source::Input::Wrote { rank, bytes: random.below(10) as u32 },
                2 => source::Input::Lent { rank, at: Remote::default(), bytes: random.below(10) as u32 },
                5 => source::Input::Flush { rank },
                3 if random.below(8) == 0 => source::Input::End { rank, checksum: 0 },
                4 => source::Input::Put { slot: random.below(5) as u32, is_done: random.below(8) > 0 },
                _ => source::Input::Message(hostile_target(&mut random)),
            };
            source.handle(input, now);
            prop_assert!(source.used_chunks() <= 4);
        }
        let mut outputs = Vec::new();
        while let Some(due) = source.deadline() {
            now = due;
            // It says that it is there, and nothing else, for ever.
            source.handle(source::Input::Message(ToSource::Alive), now);
            outputs = source.handle(source::Input::Tick, now);
            prop_assert!(now < 1_000_000_000_000);
        }
        outputs.extend(source.handle(source::Input::Closed, now));
        prop_assert!(outputs.contains(&source::Output::Over) || outputs.is_empty());
    }
}

fn hostile_source(random: &mut Random, mode: Mode) -> ToTarget {
    let rank = random.below(3) as u32;
    let offset = [0, 8, 16, u64::MAX][random.below(4)];
    match random.below(8) {
        0 | 1 => ToTarget::Open(Open {
            version: VERSION,
            mode,
            chunk_bytes: [CHUNK, 0, u32::MAX][random.below(8).saturating_sub(5)],
            chunks: [4, 0, u32::MAX][random.below(8).saturating_sub(5)],
            ranks: (0..random.below(4) as u32).collect(),
        }),
        2 => ToTarget::Written { rank, offset },
        3 => ToTarget::End {
            rank,
            bytes: offset,
            checksum: 0,
        },
        4 if random.below(4) == 0 => ToTarget::Fail {
            rank,
            failure: Failure::Writer,
        },
        5 => ToTarget::Alive,
        _ => ToTarget::Full {
            rank,
            offset,
            bytes: [CHUNK, 1, 0, u32::MAX][random.below(8).saturating_sub(4)],
            remote: Remote::default(),
        },
    }
}

fn hostile_target(random: &mut Random) -> ToSource {
    let rank = random.below(3) as u32;
    let offset = [0, 8, 16, u64::MAX][random.below(4)];
    match random.below(10) {
        0 => ToSource::Opened,
        1 if random.below(8) == 0 => ToSource::Refused(Refusal::Invalid),
        2 if random.below(8) == 0 => ToSource::Whole { rank },
        3 if random.below(8) == 0 => ToSource::Fail {
            rank,
            failure: Failure::Reader,
        },
        4 => ToSource::Place {
            rank,
            offset,
            remote: Remote::default(),
        },
        5 => ToSource::Done { rank, offset },
        _ => ToSource::Alive,
    }
}

fn source_of(mode: Mode, chunks: u32, ranks: u32) -> Source {
    let config = source::Config {
        buffers: buffers(chunks),
        pool: Remote::default(),
        mode,
        times: Times::default(),
        ranks: (0..ranks).collect(),
    };
    Source::new(config, 0).expect("it is possible")
}

fn target_of(chunks: u32, streams_max: u32) -> Target {
    let config = target::Config {
        buffers: buffers(chunks),
        streams_max,
        ..target::Config::default()
    };
    Target::new(config, 0).expect("it is possible")
}

/// What a target does that is told this by its first source.
fn told(target: &mut Target, messages: impl IntoIterator<Item = ToTarget>) -> Vec<target::Output> {
    let connection = 1;
    let mut outputs = target.handle(target::Input::Connected { connection }, 0);
    for message in messages {
        outputs.extend(target.handle(
            target::Input::Message {
                connection,
                message,
            },
            0,
        ));
    }
    outputs
}

fn open(ranks: u32) -> ToTarget {
    ToTarget::Open(Open {
        version: VERSION,
        mode: Mode::Pull,
        chunk_bytes: CHUNK,
        chunks: 4,
        ranks: (0..ranks).collect(),
    })
}

fn full(offset: u64, bytes: u32) -> ToTarget {
    ToTarget::Full {
        rank: 0,
        offset,
        bytes,
        remote: Remote::default(),
    }
}

#[test]
fn a_target_with_too_little_memory_says_so() {
    let outputs = told(&mut target_of(2, 2), [open(3)]);
    let refusal = Refusal::Memory { streams: 2 };
    assert!(outputs.contains(&target::Output::Send {
        connection: 1,
        message: ToSource::Refused(refusal)
    }));
    let mut source = source_of(Mode::Pull, 4, 1);
    let refused = source::Input::Message(ToSource::Refused(refusal));
    let outputs = source.handle(refused, 0);
    let result = Err(Failure::Refused(refusal));
    assert!(outputs.contains(&source::Output::StreamOver { rank: 0, result }));
}

#[test]
fn nonsense_has_a_name() {
    let cases = [
        (vec![full(0, 1)], Nonsense::Now),
        (vec![open(1), open(1)], Nonsense::Now),
        (vec![open(1), full(1, 1)], Nonsense::Offset),
        (vec![open(1), full(0, 0)], Nonsense::Length),
        (vec![open(1), full(0, CHUNK + 1)], Nonsense::Length),
        (vec![open(1), full(0, 1), full(0, 1)], Nonsense::Offset),
        (
            vec![
                open(1),
                full(0, 1),
                full(1, 1),
                full(2, 1),
                full(3, 1),
                full(4, 1),
            ],
            Nonsense::Chunks,
        ),
        (
            vec![open(1), ToTarget::Written { rank: 0, offset: 0 }],
            Nonsense::Now,
        ),
        (
            vec![
                open(1),
                ToTarget::Fail {
                    rank: 7,
                    failure: Failure::Writer,
                },
            ],
            Nonsense::Rank,
        ),
        (
            vec![
                open(1),
                full(0, 1),
                ToTarget::End {
                    rank: 0,
                    bytes: 2,
                    checksum: 0,
                },
            ],
            Nonsense::Total,
        ),
    ];
    for (messages, nonsense) in cases {
        let outputs = told(&mut target_of(2, 2), messages);
        let failure = Failure::Nonsense(nonsense);
        let disconnect = target::Output::Disconnect {
            connection: 1,
            failure,
        };
        assert!(outputs.contains(&disconnect), "{nonsense}: {outputs:?}");
    }
}

#[test]
fn a_writer_that_writes_nothing_fails_though_the_target_lives() {
    let (mut source, times) = (source_of(Mode::Pull, 4, 2), Times::default());
    source.handle(source::Input::Message(ToSource::Opened), 0);
    source.handle(source::Input::Want { rank: 0 }, 0);
    source.handle(
        source::Input::End {
            rank: 1,
            checksum: 0,
        },
        0,
    );
    let whole = source::Input::Message(ToSource::Whole { rank: 1 });
    source.handle(whole, 0);
    let (mut now, mut outputs) = (0, Vec::new());
    while now < times.stall_ns {
        now = source.deadline().expect("it waits");
        assert_eq!(outputs, []);
        source.handle(source::Input::Message(ToSource::Alive), now);
        outputs = source.handle(source::Input::Tick, now);
        outputs.retain(|output| *output != source::Output::Send(ToTarget::Alive));
    }
    let failure = Failure::WriterStalled;
    let (rank, result) = (0, Err(failure));
    let expected = [
        source::Output::StreamOver { rank, result },
        source::Output::Send(ToTarget::Fail { rank, failure }),
        source::Output::Disconnect,
    ];
    assert_eq!(outputs, expected);
}

#[test]
fn room_and_parts_are_whose_they_are_until_they_are_given_back() {
    let mut source = source_of(Mode::Pull, 2, 2);
    source.handle(source::Input::Want { rank: 0 }, 0);
    source.handle(source::Input::Cancel, 0);
    assert_eq!(source.used_chunks(), 1);
    source.handle(source::Input::Wrote { rank: 0, bytes: 8 }, 0);
    assert_eq!(source.used_chunks(), 0);

    let mut target = target_of(2, 2);
    told(&mut target, [open(1), full(0, 8)]);
    let (slot, is_done) = (0, true);
    target.handle(target::Input::Pulled { slot, is_done }, 0);
    let (connection, rank) = (1, 0);
    let stream = StreamId { connection, rank };
    target.handle(target::Input::Want { stream }, 0);
    target.handle(target::Input::Closed { connection }, 0);
    assert_eq!(target.used_chunks(), 1);
    let outputs = target.handle(target::Input::Took { stream, bytes: 8 }, 0);
    assert_eq!(outputs, [target::Output::Over { connection }]);
    assert_eq!(target.used_chunks(), 0);
}

#[test]
fn who_is_silent_is_gone() {
    let times = Times::default();
    let mut source = source_of(Mode::Pull, 4, 1);
    source.handle(source::Input::Message(ToSource::Opened), 0);
    let mut target = target_of(2, 2);
    told(&mut target, [open(1)]);
    let (mut of_source, mut of_target) = (Vec::new(), Vec::new());
    for second in 1..=30 {
        let now = second * 1_000_000_000;
        of_source.extend(source.handle(source::Input::Tick, now));
        of_target.extend(target.handle(target::Input::Tick, now));
        let is_over = now >= times.silence_ns;
        assert_eq!(of_source.contains(&source::Output::Disconnect), is_over);
        let (connection, failure) = (1, Failure::Silent);
        let disconnect = target::Output::Disconnect {
            connection,
            failure,
        };
        assert_eq!(of_target.contains(&disconnect), is_over);
    }
}

#[test]
fn a_checksum_that_is_another_one_is_a_failure() {
    let mut target = target_of(2, 2);
    told(
        &mut target,
        [
            open(1),
            ToTarget::End {
                rank: 0,
                bytes: 0,
                checksum: 1,
            },
        ],
    );
    let stream = StreamId {
        connection: 1,
        rank: 0,
    };
    let outputs = target.handle(target::Input::Want { stream }, 0);
    assert_eq!(outputs, [target::Output::Drained { stream }]);
    let outputs = target.handle(
        target::Input::Checked {
            stream,
            checksum: 2,
        },
        0,
    );
    let result = Err(Failure::Checksum);
    assert_eq!(outputs[0], target::Output::StreamOver { stream, result });
}

#[test]
fn a_chunk_on_its_way_is_kept_though_nobody_wants_it_any_more() {
    let mut target = target_of(2, 2);
    let failed = ToTarget::Fail {
        rank: 0,
        failure: Failure::Writer,
    };
    let outputs = told(&mut target, [open(1), full(0, 8), failed]);
    let slot = outputs.iter().find_map(|output| match output {
        target::Output::Pull { slot, .. } => Some(*slot),
        _ => None,
    });
    assert_eq!(target.used_chunks(), 1);
    let is_done = true;
    let slot = slot.expect("it is pulled");
    let outputs = target.handle(target::Input::Pulled { slot, is_done }, 0);
    let message = ToSource::Done { rank: 0, offset: 0 };
    assert_eq!(
        outputs,
        [target::Output::Send {
            connection: 1,
            message
        }]
    );
    assert_eq!(target.used_chunks(), 0);
}
