//! Images for tests, and what they say.
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    sync::{Arc, Mutex},
};

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::image::{
    Header, ImageError, Options, PAGE, Piece, Reader, Run, Summary, Writer,
};

/// A `Write` whose bytes are to be had afterwards.
#[derive(Clone, Default)]
pub struct Shared(pub Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A state, as an engine may have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registers {
    pub name: String,
    pub words: Vec<u64>,
}

/// What one call of a writer's says.
#[derive(Clone, Debug)]
pub enum Op {
    State(Registers),
    /// Pages, each full of one byte.
    Pages(u32, u64, Vec<u8>),
    /// The same, in a buffer.
    Submit(Vec<(u32, u64, Vec<u8>)>),
    Zeroes(u32, u64, u64),
    Gone(u32, u64, u64),
}

/// What an image says about a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    Full(u8),
    Gone,
}

/// What an image says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub states: Vec<Registers>,
    /// By space and page number.
    pub pages: BTreeMap<(u32, u64), Page>,
}

impl Told {
    pub fn tell(&mut self, op: &Op) {
        match op {
            Op::State(state) => self.states.push(state.clone()),
            Op::Pages(space, page, bytes) => self.fill(*space, *page, bytes),
            Op::Submit(runs) => {
                for (space, page, bytes) in runs {
                    self.fill(*space, *page, bytes);
                }
            }
            Op::Zeroes(space, page, count) => {
                self.fill(*space, *page, &vec![0; *count as usize]);
            }
            Op::Gone(space, page, count) => {
                for page in *page..page + count {
                    self.pages.insert((*space, page), Page::Gone);
                }
            }
        }
    }

    fn fill(&mut self, space: u32, page: u64, bytes: &[u8]) {
        for (page, byte) in (page..).zip(bytes) {
            self.pages.insert((space, page), Page::Full(*byte));
        }
    }
}

/// Whole pages, each full of one byte.
pub fn whole(bytes: &[u8]) -> Vec<u8> {
    bytes
        .iter()
        .flat_map(|byte| [*byte; PAGE as usize])
        .collect()
}

/// Does to a writer what `op` says.
pub fn write_op<S: snaprig_ckpt_image::image::Sink>(writer: &mut Writer<S>, op: &Op) {
    match op {
        Op::State(state) => writer.state(state).unwrap(),
        Op::Pages(space, page, bytes) => {
            writer.pages(*space, page * PAGE, &whole(bytes)).unwrap();
        }
        Op::Submit(all) => {
            let mut buffer = writer.buffer().unwrap();
            let (mut runs, mut used) = (Vec::new(), 0);
            for (space, page, bytes) in all {
                let bytes = whole(bytes);
                buffer[used..used + bytes.len()].copy_from_slice(&bytes);
                used += bytes.len();
                runs.push(Run {
                    space: *space,
                    address: page * PAGE,
                    bytes: bytes.len() as u64,
                });
            }
            writer.submit(buffer, &runs).unwrap();
        }
        Op::Zeroes(space, page, count) => {
            writer.zeroes(*space, page * PAGE, count * PAGE).unwrap();
        }
        Op::Gone(space, page, count) => writer.gone(*space, page * PAGE, count * PAGE).unwrap(),
    }
}

/// The image that these calls make.
pub fn image(header: &Header, zstd: Option<i32>, ops: &[Op]) -> (Vec<u8>, Summary) {
    let options = Options {
        zstd,
        ..Options::new("image")
    };
    image_with(header, options, ops)
}

/// The image that these calls make with these options.
pub fn image_with(header: &Header, options: Options, ops: &[Op]) -> (Vec<u8>, Summary) {
    let to = Shared::default();
    let mut writer = Writer::new(to.clone(), header, options).unwrap();
    for op in ops {
        write_op(&mut writer, op);
    }
    let (_, summary) = writer.finish().unwrap();
    let bytes = std::mem::take(&mut *to.0.lock().unwrap());
    (bytes, summary)
}

/// Reads an image to its end.
pub fn read(from: impl Read) -> Result<(Told, Summary), ImageError> {
    let mut reader = Reader::new(from, "image")?;
    let mut told = Told::default();
    while let Some(piece) = reader.next()? {
        match piece {
            Piece::State(state) => told.states.push(state.decode()?),
            Piece::Pages {
                space,
                address,
                bytes,
            } => {
                for (page, bytes) in (address / PAGE..).zip(bytes.chunks(PAGE as usize)) {
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                    told.pages.insert((space, page), Page::Full(bytes[0]));
                }
            }
            Piece::Zeroes {
                space,
                address,
                bytes,
            } => told.tell(&Op::Zeroes(space, address / PAGE, bytes / PAGE)),
            Piece::Gone {
                space,
                address,
                bytes,
            } => told.tell(&Op::Gone(space, address / PAGE, bytes / PAGE)),
        }
    }
    Ok((told, *reader.summary().unwrap()))
}

/// A header with a parent.
pub fn header() -> Header {
    Header {
        kernel: "6.18.0".into(),
        page_bytes: 4096,
        cpu_features: vec!["sse2".into(), "avx2".into()],
        round: 7,
        parent: Some("00000000000000ff".parse().unwrap()),
    }
}

fn pages() -> impl Strategy<Value = (u32, u64, Vec<u8>)> {
    let bytes = prop::collection::vec(prop_oneof![Just(0), 0..4u8, any::<u8>()], 1..24);
    (0..3u32, 0..64u64, bytes)
}

/// Any call.
pub fn op() -> impl Strategy<Value = Op> {
    let state = (".{0,20}", prop::collection::vec(any::<u64>(), 0..2000));
    prop_oneof![
        state.prop_map(|(name, words)| Op::State(Registers { name, words })),
        pages().prop_map(|(space, page, bytes)| Op::Pages(space, page, bytes)),
        prop::collection::vec(pages(), 0..12).prop_map(Op::Submit),
        (0..3u32, 0..64u64, 1..40u64).prop_map(|(s, p, n)| Op::Zeroes(s, p, n)),
        (0..3u32, 0..64u64, 1..40u64).prop_map(|(s, p, n)| Op::Gone(s, p, n)),
    ]
}
