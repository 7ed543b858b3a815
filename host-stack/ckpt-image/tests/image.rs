//! Images: what is written is read, and nothing else.

mod support;

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use proptest::prelude::*;
use snaprig_ckpt_image::image::{
    CHUNK_MAX, FileSink, Header, ImageError, Item, Options, PAGE, Run, Scanner, Summary, Totals,
    WriteError, Writer,
};
use support::{Op, Page, Registers, Shared, Told, header, image, op, read};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_written_is_read(
        ops in prop::collection::vec(op(), 0..24),
        zstd in prop::option::of(1..4),
    ) {
        let mut expected = Told::default();
        ops.iter().for_each(|op| expected.tell(op));
        let (bytes, summary) = image(&header(), zstd, &ops);
        let (told, read) = read(&bytes[..]).unwrap();
        prop_assert_eq!(told, expected);
        prop_assert_eq!(read, summary);
        prop_assert_eq!(summary.totals.file_bytes, bytes.len() as u64);
    }
}

/// An image with something of every kind, and as small as that can be.
fn small(zstd: Option<i32>) -> Vec<u8> {
    let state = Registers {
        name: "thread".into(),
        words: vec![7; 2000],
    };
    let ops = [
        Op::State(state),
        Op::Pages(1, 16, vec![1, 2, 0, 3]),
        Op::Zeroes(1, 100, 5),
        Op::Gone(2, 3, 1),
    ];
    image(&header(), zstd, &ops).0
}

#[test]
fn every_cut_is_found() {
    for zstd in [None, Some(1)] {
        let bytes = small(zstd);
        for len in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
            let error = read(&bytes[..len]).unwrap_err();
            assert!(
                matches!(error, ImageError::Truncated { offset, .. } if offset == len as u64),
                "{len}: {error}"
            );
        }
    }
}

#[test]
fn every_flipped_bit_is_found() {
    for zstd in [None, Some(1)] {
        let mut bytes = small(zstd);
        for at in 0..bytes.len() {
            bytes[at] ^= 1 << (at % 8);
            let error = read(&bytes[..]).expect_err("a flipped bit");
            if let ImageError::Damaged { offset, .. } = &error {
                assert!(*offset <= at as u64, "{at}: {error}");
            }
            bytes[at] ^= 1 << (at % 8);
        }
        read(&bytes[..]).unwrap();
    }
}

#[test]
fn batches_of_another_image_or_in_another_order_are_found() {
    let pages = |byte| {
        [
            Op::Submit(vec![(1, 1, vec![byte])]),
            Op::Submit(vec![(1, 2, vec![byte + 1])]),
        ]
    };
    let (one, two) = (
        image(&header(), None, &pages(1)).0,
        image(&header(), None, &pages(3)).0,
    );
    let batch = 2 * PAGE as usize;
    let header = PAGE as usize;
    let mut swapped = one.clone();
    swapped[header..header + 2 * batch].rotate_left(batch);
    assert!(matches!(
        read(&swapped[..]),
        Err(ImageError::Damaged { batch: Some(0), .. })
    ));
    let mut foreign = one.clone();
    foreign[header..header + batch].copy_from_slice(&two[header..header + batch]);
    assert!(matches!(
        read(&foreign[..]),
        Err(ImageError::Damaged { batch: None, .. })
    ));
    let missing = [&one[..header + batch], &one[header + 2 * batch..]].concat();
    assert!(matches!(
        read(&missing[..]),
        Err(ImageError::Damaged { batch: None, .. })
    ));
}

#[test]
fn errors_say_what_and_where() {
    let mut bytes = small(None);
    let text = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    insta::assert_snapshot!(text(b"not an image".repeat(400).as_slice()), @"image is not a checkpoint image (wrong first bytes); name an image or a checkpoint");
    insta::assert_snapshot!(text(&bytes[..5000]), @"image is cut off at offset 5000; use an earlier checkpoint");
    bytes[8] = 4;
    insta::assert_snapshot!(text(&bytes), @"image is a checkpoint image of version 4, this snaprig reads version 5; restart it with the snaprig that wrote it");
    bytes[8] = 5;
    bytes[9000] ^= 1;
    insta::assert_snapshot!(text(&bytes), @"image is damaged at offset 8192 (batch 0): the checksum of a chunk differs; use an earlier checkpoint");
}

#[test]
fn zeroes_cost_an_entry_and_alternating_pages_no_more_than_themselves() {
    let mut writer =
        Writer::new(Shared::default(), &Header::default(), Options::new("image")).unwrap();
    writer.zeroes(1, 0, 1 << 40).unwrap();
    let mut buffer = writer.buffer().unwrap();
    buffer.fill(0);
    for page in buffer.chunks_mut(2 * PAGE as usize) {
        page[PAGE as usize] = 1;
    }
    let run = Run {
        space: 1,
        address: 0,
        bytes: CHUNK_MAX as u64,
    };
    writer.submit(buffer, &[run]).unwrap();
    let (to, summary) = writer.finish().unwrap();
    let half = CHUNK_MAX as u64 / 2;
    assert_eq!(
        summary.totals,
        Totals {
            file_bytes: summary.totals.file_bytes,
            chunks: 1025,
            state_bytes: 0,
            page_bytes: half,
            stored_bytes: half,
            zero_bytes: (1 << 40) + half,
            gone_bytes: 0,
        }
    );
    assert!(summary.totals.file_bytes < half + 16 * PAGE);
    let bytes = to.0.lock().unwrap().clone();
    let mut reader = snaprig_ckpt_image::image::Reader::new(&bytes[..], "image").unwrap();
    while reader.next().unwrap().is_some() {}
}

#[test]
fn many_marks_and_pages_that_touch() {
    let mut ops: Vec<_> = (0..5000).map(|page| Op::Zeroes(1, 2 * page, 1)).collect();
    ops.extend((0..3000).map(|page| Op::Pages(1, page, vec![page as u8])));
    ops.extend((0..5000).map(|page| Op::Gone(1, 3 * page, 1)));
    let mut expected = Told::default();
    ops.iter().for_each(|op| expected.tell(op));
    let (bytes, _) = image(&header(), None, &ops);
    assert_eq!(read(&bytes[..]).unwrap().0, expected);
    assert_eq!(expected.pages[&(1, 3)], Page::Gone);
}

#[test]
fn state_longer_than_a_chunk() {
    let state = Registers {
        name: "long".into(),
        words: (0..700_000).map(|word| word << 40).collect(),
    };
    for zstd in [None, Some(1)] {
        let (bytes, summary) = image(&header(), zstd, &[Op::State(state.clone())]);
        assert!(summary.totals.chunks > 1);
        assert_eq!(
            read(&bytes[..]).unwrap().0.states,
            std::slice::from_ref(&state)
        );
    }
}

#[test]
fn what_cannot_be_in_an_image_is_refused() {
    let mut writer =
        Writer::new(Shared::default(), &Header::default(), Options::new("image")).unwrap();
    for (address, len) in [(1, 4096), (4096, 1), (4096, 0), (u64::MAX - 4095, 4096)] {
        let refused = writer.pages(1, address, &vec![0; len]);
        assert!(
            matches!(refused, Err(WriteError::Run { .. })),
            "{address} {len}"
        );
    }
    let buffers: Vec<_> = (0..4).map(|_| writer.buffer().unwrap()).collect();
    assert!(matches!(writer.buffer(), Err(WriteError::Buffers(4))));
    // What the writer copies itself needs none of those.
    for page in 0..3 {
        writer.pages(1, page << 32, &vec![1; CHUNK_MAX]).unwrap();
    }
    drop(buffers);
    let buffer = writer.buffer().unwrap();
    let run = Run {
        space: 1,
        address: 0,
        bytes: CHUNK_MAX as u64 + PAGE,
    };
    assert!(matches!(
        writer.submit(buffer, &[run]),
        Err(WriteError::Run { .. })
    ));
    let header = Header {
        kernel: "x".repeat(70_000),
        ..Header::default()
    };
    let refused = Writer::new(Shared::default(), &header, Options::new("image"));
    assert!(matches!(refused, Err(WriteError::Header)));
}

/// Has room for so many bytes.
struct Small(usize, io::ErrorKind);

impl Write for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match bytes.len().min(self.0) {
            0 => Err(self.1.into()),
            count => {
                self.0 -= count;
                Ok(count)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes until an error comes.
fn fill(kind: io::ErrorKind) -> WriteError {
    let to = Small(10 << 20, kind);
    let mut writer = Writer::new(to, &Header::default(), Options::new("/x/a.img")).unwrap();
    for chunk in 0..8 {
        let mut buffer = match writer.buffer() {
            Ok(buffer) => buffer,
            Err(error) => return error,
        };
        buffer.fill(1);
        let run = Run {
            space: 1,
            address: chunk << 32,
            bytes: CHUNK_MAX as u64,
        };
        if let Err(error) = writer.submit(buffer, &[run]) {
            return error;
        }
    }
    writer.finish().map(|_| ()).unwrap_err()
}

#[test]
fn a_full_disk_is_told_from_other_errors() {
    let full = fill(io::ErrorKind::StorageFull);
    assert!(
        matches!(&full, WriteError::Full { name, written, needed }
            if name == "/x/a.img" && *written <= 10 << 20 && *needed >= PAGE),
        "{full}"
    );
    let other = fill(io::ErrorKind::Other);
    assert!(matches!(other, WriteError::Io { .. }), "{other}");
}

/// Reads an image in a file, its pages apart from the rest.
fn scan(path: &Path) -> Result<(Told, Summary), ImageError> {
    let (mut scanner, mut scratch) = (Scanner::open(path)?, Vec::new());
    let (mut told, mut pages) = (Told::default(), Vec::new());
    while let Some(item) = scanner.next()? {
        match item {
            Item::State(state) => told.states.push(state.decode()?),
            Item::Pages(stored) => pages.push(stored),
            Item::Zeroes(run) => {
                told.tell(&Op::Zeroes(run.space, run.address / PAGE, run.bytes / PAGE))
            }
            Item::Gone(run) => {
                told.tell(&Op::Gone(run.space, run.address / PAGE, run.bytes / PAGE))
            }
        }
    }
    for stored in pages {
        assert!(stored.offset.is_multiple_of(PAGE));
        let mut bytes = vec![0; stored.run.bytes as usize];
        scanner.load(&stored, &mut bytes, &mut scratch)?;
        let first = bytes.iter().step_by(PAGE as usize).copied().collect();
        told.tell(&Op::Pages(
            stored.run.space,
            stored.run.address / PAGE,
            first,
        ));
    }
    Ok((told, *scanner.summary()))
}

#[test]
fn an_image_in_a_file_is_read_in_place() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("a.img");
    let mut ops = vec![Op::Zeroes(1, 0, 3), Op::Gone(1, 10, 2)];
    ops.extend((1..9).map(|run| Op::Submit(vec![(2, run << 20, vec![run as u8; 1000])])));
    ops.push(Op::State(Registers {
        name: "r".into(),
        words: vec![1; 100_000],
    }));
    let mut expected = Told::default();
    ops.iter().for_each(|op| expected.tell(op));
    for zstd in [None, Some(1)] {
        let sink = FileSink::new(File::create(&path).unwrap()).unwrap();
        let options = Options {
            zstd,
            ..Options::new("a.img")
        };
        let mut writer = Writer::new(sink, &header(), options).unwrap();
        ops.iter().for_each(|op| support::write_op(&mut writer, op));
        let (_, summary) = writer.finish().unwrap();
        assert_eq!(scan(&path).unwrap(), (expected.clone(), summary));
        assert_eq!(
            read(File::open(&path).unwrap()).unwrap(),
            (expected.clone(), summary)
        );
    }
    let whole = fs::read(&path).unwrap();
    for len in (0..whole.len()).step_by(4095).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..len]).unwrap();
        assert!(
            matches!(scan(&path), Err(ImageError::Truncated { .. })),
            "{len}"
        );
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    scan(&path).unwrap_err();
    let mut flipped = whole.clone();
    for at in (0..whole.len()).step_by(1021) {
        flipped[at] ^= 0x10;
        fs::write(&path, &flipped).unwrap();
        let error = scan(&path).expect_err("a flipped bit").to_string();
        assert!(error.contains("a.img"), "{error}");
        flipped[at] = whole[at];
    }
}
