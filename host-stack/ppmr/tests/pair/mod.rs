//! Sources and a target, joined by queues, with memory to which RDMA goes; what happens next is drawn from a seed.

use std::collections::{BTreeMap, VecDeque};

use snaprig_ppmr::{
    Buffers, Digest, Failure, Mode, Times,
    message::{Remote, ToSource, ToTarget},
    source::{self, Source},
    target::{self, StreamId, Target},
};

pub const CHUNK: u32 = 8;

/// Marsaglia's xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as usize % n.max(1)
    }
}

/// A process: what is written of it, what was read of it.
#[derive(Default)]
pub struct Process {
    pub image: Vec<u8>,
    written: usize,
    room: Option<(u32, u32, u32)>,
    has_asked: bool,
    has_ended: bool,
    pub lends: bool,
    pub read: Vec<u8>,
    /// Chunks, places and lengths of what its reader has.
    parts: VecDeque<(u32, u32, u32)>,
    wants: bool,
    pub has_begun: bool,
    /// Its reader does nothing.
    pub is_stopped: bool,
    pub ends: [Option<Result<(), Failure>>; 2],
}

enum Transfer {
    Pull(usize, u32, u32, Remote),
    Put(usize, u32, Option<Remote>, u32, Remote),
}

pub struct Pair {
    pub random: Random,
    pub sources: Vec<Source>,
    pub target: Target,
    pub processes: BTreeMap<StreamId, Process>,
    pools: Vec<Vec<u8>>,
    pool: Vec<u8>,
    /// What sources say, and that they have hung up.
    to_target: Vec<VecDeque<Option<ToTarget>>>,
    to_source: Vec<VecDeque<ToSource>>,
    transfers: Vec<Transfer>,
    pub over: Vec<bool>,
    pub target_over: usize,
}

pub fn buffers(chunks: u32) -> Buffers {
    Buffers {
        pool_bytes: u64::from(chunks * CHUNK),
        chunk_bytes: CHUNK,
    }
}

/// The address of lent memory says where in the image it is.
const LENT: u64 = 1 << 40;

impl Pair {
    pub fn new(seed: u64, mode: Mode, sources: usize, ranks: u32, chunks: [u32; 2]) -> Self {
        let streams_max = sources as u32 * ranks;
        let config = target::Config {
            buffers: buffers(chunks[1]),
            streams_max,
            ..target::Config::default()
        };
        let mut random = Random(seed | 1);
        let new_source = |_| {
            let config = source::Config {
                buffers: buffers(chunks[0]),
                pool: Remote::default(),
                mode,
                times: Times::default(),
                ranks: (0..ranks).collect(),
            };
            Source::new(config, 0).expect("its pool is large enough")
        };
        let sources: Vec<_> = (0..sources).map(new_source).collect();
        let mut processes = BTreeMap::new();
        for connection in 0..sources.len() as u64 {
            for rank in 0..ranks {
                let bytes = random.below(300);
                let process = Process {
                    image: (0..bytes).map(|_| random.below(256) as u8).collect(),
                    lends: random.below(3) == 0,
                    ..Process::default()
                };
                processes.insert(StreamId { connection, rank }, process);
            }
        }
        let count = sources.len();
        let mut pair = Self {
            random,
            sources,
            target: Target::new(config, 0).expect("its pool is large enough"),
            processes,
            pools: vec![vec![0; (chunks[0] * CHUNK) as usize]; count],
            pool: vec![0; (chunks[1] * CHUNK) as usize],
            to_target: (0..count).map(|_| VecDeque::new()).collect(),
            to_source: (0..count).map(|_| VecDeque::new()).collect(),
            transfers: Vec::new(),
            over: vec![false; count],
            target_over: 0,
        };
        for at in 0..count {
            let connection = at as u64;
            pair.target(target::Input::Connected { connection }, 0);
            pair.source(at, source::Input::Tick, 0);
        }
        pair
    }

    pub fn source(&mut self, at: usize, input: source::Input, now: u64) {
        use source::Output;
        let connection = at as u64;
        for output in self.sources[at].handle(input, now) {
            match output {
                Output::Send(message) => self.to_target[at].push_back(Some(message)),
                Output::Room {
                    rank,
                    slot,
                    at,
                    bytes,
                } => {
                    self.process(StreamId { connection, rank }).room = Some((slot, at, bytes));
                }
                Output::Put {
                    slot,
                    lent,
                    bytes,
                    to,
                } => {
                    self.transfers
                        .push(Transfer::Put(at, slot, lent, bytes, to));
                }
                Output::StreamOver { rank, result } => {
                    let own = &mut self.process(StreamId { connection, rank }).ends[0];
                    assert_eq!(own.replace(result), None, "a stream is over once");
                }
                Output::Disconnect => {
                    self.source(at, source::Input::Closed, now);
                    self.to_target[at].push_back(None);
                }
                Output::Over => self.over[at] = true,
                Output::NoRoom { .. } | Output::GiveBack { .. } => {}
            }
        }
    }

    pub fn target(&mut self, input: target::Input, now: u64) {
        use target::Output;
        for output in self.target.handle(input, now) {
            match output {
                Output::Send {
                    connection,
                    message,
                } => {
                    self.to_source[connection as usize].push_back(message);
                }
                Output::Pull {
                    connection,
                    slot,
                    bytes,
                    from,
                } => {
                    let pull = Transfer::Pull(connection as usize, slot, bytes, from);
                    self.transfers.push(pull);
                }
                Output::Part {
                    stream,
                    slot,
                    at,
                    bytes,
                } => {
                    let own = self.process(stream);
                    own.parts.push_back((slot, at, bytes));
                    own.wants = false;
                }
                Output::Drained { stream } => {
                    let mut digest = Digest::default();
                    digest.update(&self.process(stream).read);
                    let checksum = digest.checksum();
                    self.target(target::Input::Checked { stream, checksum }, now);
                }
                Output::StreamOver { stream, result } => {
                    let own = &mut self.process(stream).ends[1];
                    assert_eq!(own.replace(result), None, "a stream is over once");
                }
                Output::Disconnect { connection, .. } => {
                    self.target(target::Input::Closed { connection }, now);
                    self.source(connection as usize, source::Input::Closed, now);
                }
                Output::Over { .. } => self.target_over += 1,
                Output::Begin { stream } => self.process(stream).has_begun = true,
                Output::NoPart { .. } => {}
            }
        }
    }

    pub fn process(&mut self, stream: StreamId) -> &mut Process {
        self.processes
            .get_mut(&stream)
            .expect("there is such a process")
    }

    /// Something happens somewhere, if anything can; whether it did.
    pub fn step(&mut self) -> bool {
        let mut can: Vec<(u8, usize)> = Vec::new();
        let all = || 0..self.sources.len();
        can.extend(
            all()
                .filter(|at| !self.to_target[*at].is_empty())
                .map(|at| (0, at)),
        );
        can.extend(
            all()
                .filter(|at| !self.to_source[*at].is_empty())
                .map(|at| (1, at)),
        );
        can.extend((0..self.transfers.len()).map(|at| (2, at)));
        for (at, one) in self.processes.values().enumerate() {
            let writes = one.ends[0].is_none() && !one.has_ended;
            if writes && (one.room.is_some() || !one.has_asked) {
                can.push((3, at));
            }
            let reads = one.has_begun && one.ends[1].is_none() && !one.is_stopped;
            if reads && (!one.parts.is_empty() || !one.wants) {
                can.push((4, at));
            }
        }
        if can.is_empty() {
            return false;
        }
        let (what, at) = can[self.random.below(can.len())];
        let stream = |pair: &Self| *pair.processes.keys().nth(at).expect("it is there");
        match what {
            0 => {
                let message = self.to_target[at].pop_front().expect("it is there");
                let connection = at as u64;
                let input = match message {
                    Some(message) => target::Input::Message {
                        connection,
                        message,
                    },
                    None => target::Input::Closed { connection },
                };
                self.target(input, 0);
            }
            1 => {
                let message = self.to_source[at].pop_front().expect("it is there");
                self.source(at, source::Input::Message(message), 0);
            }
            2 => self.transfer(at),
            3 => self.write(stream(self)),
            _ => self.read(stream(self)),
        }
        true
    }

    fn source_bytes(&self, at: usize, from: Remote, bytes: u32) -> Vec<u8> {
        let range = |start: u64| start as usize..start as usize + bytes as usize;
        match from.address {
            LENT.. => {
                let stream = StreamId {
                    connection: at as u64,
                    rank: from.rkey,
                };
                self.processes[&stream].image[range(from.address - LENT)].to_vec()
            }
            _ => self.pools[at][range(from.address)].to_vec(),
        }
    }

    fn transfer(&mut self, index: usize) {
        let is_done = true;
        let to_range = |start: u64, bytes: u32| start as usize..start as usize + bytes as usize;
        match self.transfers.swap_remove(index) {
            Transfer::Pull(at, slot, bytes, from) => {
                let came = self.source_bytes(at, from, bytes);
                self.pool[to_range(u64::from(slot * CHUNK), bytes)].copy_from_slice(&came);
                self.target(target::Input::Pulled { slot, is_done }, 0);
            }
            Transfer::Put(at, slot, lent, bytes, to) => {
                let from = lent.unwrap_or(Remote {
                    address: u64::from(slot * CHUNK),
                    rkey: 0,
                });
                let went = self.source_bytes(at, from, bytes);
                self.pool[to_range(to.address, bytes)].copy_from_slice(&went);
                self.source(at, source::Input::Put { slot, is_done }, 0);
            }
        }
    }

    fn write(&mut self, stream: StreamId) {
        let StreamId { connection, rank } = stream;
        let at = connection as usize;
        let own = self.processes.get_mut(&stream).expect("it is there");
        let left = own.image.len() - own.written;
        let Some((slot, start, most)) = own.room.take() else {
            if left > 0 && self.random.below(4) == 0 {
                return self.source(at, source::Input::Flush { rank }, 0);
            }
            own.has_asked = true;
            if left > 0 {
                return self.source(at, source::Input::Want { rank }, 0);
            }
            own.has_ended = true;
            let mut digest = Digest::default();
            digest.update(&own.image);
            let checksum = digest.checksum();
            return self.source(at, source::Input::End { rank, checksum }, 0);
        };
        own.has_asked = false;
        let bytes = (1 + self.random.below(most as usize)).min(left);
        let place = (slot * CHUNK + start) as usize;
        let from = own.written;
        own.written += bytes;
        let lent = Remote {
            address: LENT + from as u64,
            rkey: rank,
        };
        let input = match own.lends {
            true => source::Input::Lent {
                rank,
                at: lent,
                bytes: bytes as u32,
            },
            false => {
                self.pools[at][place..place + bytes]
                    .copy_from_slice(&own.image[from..from + bytes]);
                source::Input::Wrote {
                    rank,
                    bytes: bytes as u32,
                }
            }
        };
        self.source(at, input, 0);
    }

    fn read(&mut self, stream: StreamId) {
        let wants_next = self.random.below(2) == 0;
        let own = self.processes.get_mut(&stream).expect("it is there");
        let wants = !own.wants && (wants_next || own.parts.is_empty());
        if wants {
            own.wants = true;
            return self.target(target::Input::Want { stream }, 0);
        }
        let Some((slot, at, most)) = own.parts.pop_front() else {
            return;
        };
        let bytes = 1 + self.random.below(most as usize);
        if (bytes as u32) < most {
            let left = (slot, at + bytes as u32, most - bytes as u32);
            own.parts.push_front(left);
        }
        let start = (slot * CHUNK + at) as usize;
        own.read.extend_from_slice(&self.pool[start..start + bytes]);
        self.target(
            target::Input::Took {
                stream,
                bytes: bytes as u32,
            },
            0,
        );
    }

    /// A connection is lost, with all that is under way on it.
    pub fn cut(&mut self, at: usize) {
        self.transfers.retain(|transfer| {
            let (Transfer::Pull(of, ..) | Transfer::Put(of, ..)) = transfer;
            *of != at
        });
        self.to_source[at].clear();
        self.to_target[at].clear();
        let connection = at as u64;
        self.source(at, source::Input::Closed, 0);
        self.target(target::Input::Closed { connection }, 0);
    }

    /// Goes on until nothing can happen any more.
    pub fn rest(&mut self) {
        while self.step() {}
    }

    /// Time passes, machine by machine, until no machine waits for it.
    pub fn time_passes(&mut self) {
        for _ in 0..1000 {
            self.rest();
            let due = self.sources.iter().filter_map(Source::deadline);
            let Some(now) = due.chain(self.target.deadline()).min() else {
                return;
            };
            for at in 0..self.sources.len() {
                self.source(at, source::Input::Tick, now);
            }
            self.target(target::Input::Tick, now);
        }
        panic!("it never ends");
    }

    pub fn assert_moved(&self) {
        for (stream, process) in &self.processes {
            assert_eq!(process.ends, [Some(Ok(())); 2], "{stream:?}");
            assert!(process.read == process.image, "{stream:?}");
        }
    }

    pub fn assert_nothing_is_left(&self) {
        assert!(self.over.iter().all(|over| *over));
        assert_eq!(self.target_over, self.sources.len());
        assert_eq!(self.target.used_chunks(), 0);
    }
}
