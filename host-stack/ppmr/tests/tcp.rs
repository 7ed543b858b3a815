//! Sources and a target over TCP: images of several processes come as they were written, whoever is slow; and whoever dies,
//! dies in time, and fails nobody else.

use std::{
    io::{self, Read, Write},
    sync::Arc,
    thread,
};

use snaprig_image::{Filled, Memory, Pool, Sink};
use snaprig_peers::{Address, Token};

use snaprig_ppmr::{
    Buffers, Failure, Mode, Times,
    driver::{
        source::{Moves, SourceNode, Writer},
        target::{Reader, Takes, TargetNode},
    },
};

const BUFFERS: Buffers = Buffers {
    pool_bytes: 1 << 20,
    chunk_bytes: 32 << 10,
};

fn token() -> Token {
    Token::new([7; 32])
}

fn target() -> Arc<TargetNode> {
    let any = Address::Tcp("127.0.0.1:0".into());
    let takes = Takes {
        buffers: BUFFERS,
        streams_max: 16,
        times: times(),
        ..Takes::default()
    };
    Arc::new(TargetNode::listen(&any, &token(), takes).unwrap())
}

/// Who stands still fails soon, but later than anybody who is only slow.
fn times() -> Times {
    Times {
        stall_ns: 6_000_000_000,
        ..Times::default()
    }
}

fn source(target: &TargetNode, mode: Mode, ranks: std::ops::Range<u32>) -> SourceNode {
    let moves = Moves {
        buffers: BUFFERS,
        mode,
        times: times(),
        ranks: ranks.collect(),
        lent_bytes: 2 << 20,
        ..Moves::default()
    };
    SourceNode::connect(&target.address(), &token(), moves).unwrap()
}

/// The image of a process: of another length, and other bytes, for each.
fn image(rank: u32) -> Vec<u8> {
    let mut state = u64::from(rank) * 2 + 1;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..(3 << 20) + rank as usize * 12_345).map(next).collect()
}

/// Half of all images are written where they are sent from.
fn write(node: &SourceNode, rank: u32) -> thread::JoinHandle<Result<(), Failure>> {
    let (node, mut writer) = (node.clone(), node.writer(rank));
    thread::spawn(move || {
        if rank.is_multiple_of(2) {
            return lend(&node, rank, writer);
        }
        for part in image(rank).chunks(10_000 + rank as usize * 7) {
            if writer.write_all(part).is_err() {
                return node.wait(rank);
            }
            if rank.is_multiple_of(3) {
                writer.flush().unwrap();
            }
        }
        writer.end();
        node.wait(rank)
    })
}

/// Buffers that are longer than chunks, and some that are shorter, with memory of another kind among them.
fn lend(node: &SourceNode, rank: u32, mut writer: Writer) -> Result<(), Failure> {
    let mut lender = Lender(node.clone());
    let mut lent = Pool::lent_by(&mut lender, 3, 100_000).unwrap();
    let mut other = Pool::lent_by(&mut io::sink(), 1, 100_000).unwrap();
    for (index, part) in image(rank)
        .chunks(50_000 + rank as usize * 7_000)
        .enumerate()
    {
        let pool = if index % 5 == 4 {
            &mut other
        } else {
            &mut lent
        };
        let mut buffer = pool.take().unwrap();
        let range = index..index + part.len();
        buffer.bytes_mut()[range.clone()].copy_from_slice(part);
        if writer.write_lent(buffer.filled(range)).is_err() {
            return node.wait(rank);
        }
    }
    writer.end();
    let result = node.wait(rank);
    assert!(!node.settle(rank), "all has been given back");
    result
}

struct Lender(SourceNode);

impl Sink for Lender {
    fn memory(&mut self, bytes: usize) -> io::Result<Box<dyn Memory>> {
        Ok(Box::new(self.0.lend(bytes)?))
    }

    fn write(&mut self, _: Filled) -> io::Result<()> {
        unreachable!("it lends alone")
    }

    fn finish(&mut self) -> io::Result<()> {
        unreachable!("it lends alone")
    }
}

fn read(mut reader: Reader) -> thread::JoinHandle<(u32, io::Result<Vec<u8>>)> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let result = reader.read_to_end(&mut bytes);
        (reader.stream().rank, result.map(|_| bytes))
    })
}

#[test]
fn images_come_as_they_were_written() {
    for mode in [Mode::Pull, Mode::Push] {
        let target = target();
        let sources = [source(&target, mode, 0..4), source(&target, mode, 4..8)];
        let writers: Vec<_> = (0..8)
            .map(|rank| write(&sources[rank as usize / 4], rank))
            .collect();
        let readers: Vec<_> = (0..8)
            .map(|_| read(target.next_reader().unwrap()))
            .collect();
        for writer in writers {
            assert_eq!(writer.join().unwrap(), Ok(()));
        }
        for reader in readers {
            let (rank, bytes) = reader.join().unwrap();
            assert!(bytes.unwrap() == image(rank), "{mode:?}, {rank}");
        }
    }
}

#[test]
fn a_reader_that_does_nothing_fails_alone_and_one_that_goes_too() {
    for mode in [Mode::Pull, Mode::Push] {
        let target = target();
        let node = source(&target, mode, 0..4);
        let writers: Vec<_> = (0..4).map(|rank| write(&node, rank)).collect();
        let (mut idle, mut readers) = (None, Vec::new());
        for _ in 0..4 {
            let reader = target.next_reader().unwrap();
            match reader.stream().rank {
                1 => idle = Some(reader),
                2 => drop(reader),
                _ => readers.push(read(reader)),
            }
        }
        for reader in readers {
            let (rank, bytes) = reader.join().unwrap();
            assert!(bytes.unwrap() == image(rank));
        }
        let results: Vec<_> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        let [first, stalled, gone, last] = results[..] else {
            panic!()
        };
        assert_eq!((first, last), (Ok(()), Ok(())));
        assert_eq!(
            (stalled, gone),
            (Err(Failure::ReaderStalled), Err(Failure::Reader))
        );
        assert!(idle.unwrap().read(&mut [0]).is_err());
    }
}

#[test]
fn a_writer_that_goes_fails_alone() {
    let target = target();
    let node = source(&target, Mode::Pull, 0..2);
    let good = write(&node, 0);
    let mut bad = node.writer(1);
    bad.write_all(&image(1)[..100_000]).unwrap();
    drop(bad);
    for _ in 0..2 {
        let (rank, bytes) = read(target.next_reader().unwrap()).join().unwrap();
        match rank {
            0 => assert!(bytes.unwrap() == image(0)),
            _ => assert!(bytes.is_err()),
        }
    }
    assert_eq!(good.join().unwrap(), Ok(()));
    assert_eq!(node.wait(1), Err(Failure::Writer));
}

#[test]
fn who_dies_is_noticed_at_both_sides() {
    // The target goes: its sockets are closed.
    let gone = target();
    let node = source(&gone, Mode::Push, 0..1);
    let writing = write(&node, 0);
    let reader = gone.next_reader().unwrap();
    drop(gone);
    assert!(writing.join().unwrap().is_err());
    drop(reader);
    // A source goes in the middle of it, and the next one is served.
    let target = target();
    let node = source(&target, Mode::Pull, 0..1);
    let mut writer = node.writer(0);
    writer.write_all(&image(0)[..50_000]).unwrap();
    let mut reader = target.next_reader().unwrap();
    node.cancel();
    assert!(reader.read_to_end(&mut Vec::new()).is_err());
    let next = source(&target, Mode::Pull, 5..6);
    let writing = write(&next, 5);
    let (rank, bytes) = read(target.next_reader().unwrap()).join().unwrap();
    assert!(rank == 5 && bytes.unwrap() == image(5));
    assert_eq!(writing.join().unwrap(), Ok(()));
}

#[test]
fn a_target_that_goes_once_all_is_read_has_said_so() {
    for _ in 0..30 {
        let target = target();
        let node = source(&target, Mode::Pull, 0..1);
        let mut writer = node.writer(0);
        writer.write_all(b"all").unwrap();
        writer.end();
        let (_, bytes) = read(target.next_reader().unwrap()).join().unwrap();
        drop(target);
        assert_eq!((bytes.unwrap(), node.wait(0)), (b"all".to_vec(), Ok(())));
    }
}
