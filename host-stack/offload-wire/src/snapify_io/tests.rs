//! Source and sink joined in memory, stepped in a seeded order, torn at every step.

use super::*;
use alloc::{vec, vec::Vec};
use proptest::prelude::*;

/// A source and a sink, the slots between them, and the file behind the sink.
struct Pair {
    source: Source,
    sink: Sink,
    to_sink: VecDeque<Message>,
    to_source: VecDeque<Message>,
    slots: [Vec<u8>; SLOTS as usize],
    input: VecDeque<Vec<u8>>,
    partial: Vec<u8>,
    /// The file, once it was committed.
    file: Option<Vec<u8>>,
    results: [Option<Result<u64, Failure>>; 2],
}

impl Pair {
    fn new(mode: Mode, chunks: &[Vec<u8>]) -> Self {
        let total = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let (source, sink) = match mode {
            Mode::Write => (Source::request(Kind::Plain, "/f", 0), Sink::serve("/f")),
            Mode::Read => (
                Source::serve("/f", total),
                Sink::request(Kind::Plain, "/f", 0),
            ),
        };
        Self {
            source,
            sink,
            to_sink: VecDeque::new(),
            to_source: VecDeque::new(),
            slots: Default::default(),
            input: chunks.iter().cloned().collect(),
            partial: vec![],
            file: None,
            results: [None, None],
        }
    }

    /// One output or message of the source (`true`) or sink. Returns whether there was one.
    fn step(&mut self, source: bool) -> bool {
        if source {
            self.step_source()
        } else {
            self.step_sink()
        }
    }

    fn step_source(&mut self) -> bool {
        match self.source.poll_output() {
            // The server has taken the Open off the connection before it makes its machine.
            Some(Output::Send(Message::Open { .. })) => {}
            Some(Output::Send(message)) => self.to_sink.push_back(message),
            Some(Output::Opened { .. }) => {}
            Some(Output::Fill { slot }) => match self.input.pop_front() {
                Some(chunk) => {
                    let (len, hash) = (chunk.len() as u32, hash(&chunk));
                    self.slots[slot as usize] = chunk;
                    self.source.handle(Input::Filled { len, hash });
                }
                None => self.source.handle(Input::End),
            },
            Some(Output::Done(result)) => assert!(self.results[0].replace(result).is_none()),
            Some(other) => panic!("a source does not {other:?}"),
            None => match self.to_source.pop_front() {
                Some(message) => self.source.handle(Input::Peer(message)),
                None => return false,
            },
        }
        true
    }

    fn step_sink(&mut self) -> bool {
        match self.sink.poll_output() {
            Some(Output::Send(Message::Open { .. })) => {}
            Some(Output::Send(message)) => self.to_source.push_back(message),
            Some(Output::Opened { .. }) => {}
            Some(Output::Take {
                slot,
                len,
                hash: expected,
            }) => {
                let bytes = &self.slots[slot as usize];
                assert_eq!((bytes.len() as u32, hash(bytes)), (len, expected));
                self.partial.extend_from_slice(bytes);
                self.slots[slot as usize].clear();
                self.sink.handle(Input::Taken);
            }
            Some(Output::Commit { bytes }) => {
                assert_eq!(bytes, self.partial.len() as u64);
                assert!(self.file.replace(self.partial.clone()).is_none());
                self.sink.handle(Input::Committed);
            }
            Some(Output::Done(result)) => assert!(self.results[1].replace(result).is_none()),
            Some(other) => panic!("a sink does not {other:?}"),
            None => match self.to_sink.pop_front() {
                Some(message) => self.sink.handle(Input::Peer(message)),
                None => return false,
            },
        }
        true
    }

    /// Runs until nothing moves, or for `steps`; the order comes from `seed`.
    fn run(&mut self, mut seed: u64, steps: usize) -> usize {
        for step in 0..steps {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let first = seed >> 63 == 0;
            if !self.step(first) && !self.step(!first) {
                return step;
            }
        }
        steps
    }

    /// The connection tears: what was under way is gone, both sides learn of it.
    fn tear(&mut self, seed: u64) {
        self.to_sink.clear();
        self.to_source.clear();
        self.source.handle(Input::Lost);
        self.sink.handle(Input::Lost);
        self.run(seed, usize::MAX);
    }
}

/// FNV-1a: any hash will do here.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf29ce484222325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100000001b3)
    })
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Read), Just(Mode::Write)]
}

fn chunks() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..12)
}

fn messages() -> impl Strategy<Value = Message> {
    let failure = Failure {
        errno: 5,
        path: "/f".into(),
        offset: 0,
        why: "disk".into(),
    };
    prop_oneof![
        (any::<u32>(), any::<i64>()).prop_map(|(version, window)| Message::Open {
            version,
            kind: Kind::Snapshot,
            mode: Mode::Read,
            path: "/f".into(),
            window
        }),
        any::<u64>().prop_map(|len| Message::Opened { len }),
        (0..4u8, 0..9u32).prop_map(|(slot, len)| Message::Filled { slot, len, hash: 0 }),
        any::<u32>().prop_map(|len| Message::Filled {
            slot: 0,
            len,
            hash: 0
        }),
        (0..4u8).prop_map(|slot| Message::Drained { slot }),
        (0..20u64).prop_map(|bytes| Message::Finish { bytes }),
        (0..20u64).prop_map(|bytes| Message::Finished { bytes }),
        Just(Message::Failed(failure)),
    ]
}

proptest! {
    #[test]
    fn every_byte_arrives_in_order_whatever_the_interleaving(
        mode in modes(), chunks in chunks(), seed: u64,
    ) {
        let mut pair = Pair::new(mode, &chunks);
        pair.run(seed, usize::MAX);
        let all = chunks.concat();
        let len = all.len() as u64;
        prop_assert_eq!(pair.file, Some(all));
        prop_assert_eq!(pair.results, [Some(Ok(len)), Some(Ok(len))]);
    }

    #[test]
    fn a_connection_that_tears_leaves_a_whole_file_or_none(
        mode in modes(), chunks in chunks(), seed: u64,
    ) {
        let steps = Pair::new(mode, &chunks).run(seed, usize::MAX);
        for torn_at in 0..steps {
            let mut pair = Pair::new(mode, &chunks);
            pair.run(seed, torn_at);
            pair.tear(seed);
            let [source, sink] = pair.results.map(|result| result.expect("each side ends"));
            prop_assert_eq!(sink.is_ok(), pair.file.is_some());
            prop_assert!(source.is_err() || sink.is_ok(), "the source believes in a lost file");
            if let Some(file) = pair.file {
                prop_assert_eq!(file, chunks.concat());
            }
        }
    }

    #[test]
    fn a_failure_on_either_side_ends_both(
        mode in modes(), chunks in chunks(), seed: u64, source_fails: bool, at in 0..60usize,
    ) {
        let mut pair = Pair::new(mode, &chunks);
        pair.run(seed, at);
        let failure = Failure { errno: 28, path: "/f".into(), offset: 1, why: "full".into() };
        let input = Input::Failed(failure);
        if source_fails { pair.source.handle(input) } else { pair.sink.handle(input) }
        pair.run(seed, usize::MAX);
        let [source, sink] = pair.results.map(|result| result.expect("each side ends"));
        prop_assert_eq!(sink.is_ok(), pair.file.is_some());
        prop_assert!(source.is_err() || sink.is_ok());
    }

    #[test]
    fn a_hostile_peer_cannot_make_a_machine_panic_or_commit_what_it_did_not_get(
        mode in modes(), hostile in prop::collection::vec(messages(), 0..30),
    ) {
        let mut pair = Pair::new(mode, &[]);
        for message in hostile {
            pair.source.handle(Input::Peer(message.clone()));
            pair.sink.handle(Input::Peer(message));
            let mut taken = 0;
            while let Some(output) = pair.sink.poll_output() {
                match output {
                    Output::Take { len, .. } => {
                        prop_assert!(len as usize <= SLOT_BYTES);
                        taken += u64::from(len);
                        pair.partial.resize(pair.partial.len() + len as usize, 0);
                        pair.sink.handle(Input::Taken);
                    }
                    Output::Commit { bytes } => prop_assert_eq!(bytes, pair.partial.len() as u64),
                    _ => {}
                }
            }
            prop_assert!(taken <= SLOT_BYTES as u64);
        }
    }

    #[test]
    fn messages_survive_the_wire(message in messages()) {
        let bytes = snaprig_wire::frame::encode(&message);
        prop_assert_eq!(snaprig_wire::frame::decode(&bytes), Ok(message));
    }
}

proptest! {
    #[test]
    fn what_is_read_without_the_heap_is_what_was_written(bytes: u64, other: Vec<u8>) {
        let encoded = snaprig_wire::frame::encode(&Message::Finished { bytes });
        prop_assert_eq!(Message::finished(&encoded), Some(bytes));
        let longer = [&*encoded, &[0]].concat();
        prop_assert_eq!(Message::finished(&longer), None);
        prop_assert_eq!(Message::finished(&snaprig_wire::frame::encode(&Message::Finish { bytes })), None);
        let found = match snaprig_wire::frame::decode(&other) {
            Ok(Message::Finished { bytes }) => Some(bytes),
            _ => None,
        };
        prop_assert_eq!(Message::finished(&other), found);
        let mut room = [0; 32];
        let framed = snaprig_wire::frame::encode_framed_in(&Message::Finished { bytes }, &mut room);
        let expected = snaprig_wire::frame::encode_framed(&Message::Finished { bytes });
        prop_assert_eq!(framed, Some(&*expected));
        prop_assert_eq!(snaprig_wire::frame::encode_framed_in(&bytes, &mut room[..3]), None);
    }
}
