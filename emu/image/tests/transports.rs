//! What is given to a sink is what its source lends, whatever the transport.

use std::{
    fs::{self, File},
    io::{self, Cursor, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::Arc,
    thread,
};

use proptest::prelude::*;
use snaprig_image::{
    Pool, Sink, Source,
    transport::{FileSink, FileSource, Outbox, Reading},
};

const BUFFER: usize = 3 * 4096;

/// Gives `bytes` to a sink, cut where `cuts` say.
fn give(sink: &mut impl Sink, mut bytes: &[u8], cuts: &[usize], mut between: impl FnMut()) {
    let mut pool = Pool::lent_by(sink, 4, BUFFER).unwrap();
    let mut cuts = cuts.iter().cycle();
    while !bytes.is_empty() {
        let (now, later) = bytes.split_at((*cuts.next().unwrap()).min(bytes.len()));
        let mut buffer = pool.take().unwrap();
        buffer.bytes_mut()[..now.len()].copy_from_slice(now);
        sink.write(buffer.filled(0..now.len())).unwrap();
        // What a sink keeps it gives back.
        while sink.settle().unwrap() {}
        between();
        bytes = later;
    }
    sink.finish().unwrap();
}

/// All that a source has, asked for as `asks` say; every other part is left out and read as zeroes.
fn ask(source: &mut impl Source, asks: &[usize], len: usize, skips: bool) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    for (index, ask) in asks.iter().cycle().enumerate() {
        if skips && index % 2 == 1 && all.len() + ask < len {
            source.skip(*ask as u64)?;
            all.resize(all.len() + ask, 0);
            continue;
        }
        let lent = source.lend(*ask)?;
        all.extend_from_slice(lent);
        if lent.len() < *ask {
            break;
        }
    }
    Ok(all)
}

fn directories() -> [PathBuf; 2] {
    // On a disk, and in memory, where nothing bypasses the page cache.
    [env!("CARGO_TARGET_TMPDIR").into(), "/dev/shm".into()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn what_a_sink_is_given_its_source_lends(
        bytes in prop::collection::vec(any::<u8>(), 0..60_000),
        mut cuts in prop::collection::vec(1..=BUFFER, 1..5),
        asks in prop::collection::vec(1..10_000usize, 1..5),
        is_whole: bool,
    ) {
        if is_whole {
            cuts.iter_mut().for_each(|cut| *cut = cut.next_multiple_of(4096).min(BUFFER));
        }
        for directory in directories() {
            let file = tempfile::NamedTempFile::new_in(directory).unwrap();
            let mut sink = FileSink::new(file.reopen().unwrap()).unwrap();
            give(&mut sink, &bytes, &cuts, || {});
            prop_assert_eq!(&fs::read(file.path()).unwrap(), &bytes);
            let mut source = FileSource::new(Arc::new(File::open(file.path()).unwrap()));
            prop_assert_eq!(&ask(&mut source, &asks, bytes.len(), false).unwrap(), &bytes);
            let mut source = FileSource::new(Arc::new(File::open(file.path()).unwrap()));
            let from_file = ask(&mut source, &asks, bytes.len(), true).unwrap();
            let from_memory = ask(&mut &bytes[..], &asks, bytes.len(), true).unwrap();
            let mut reading = Reading::new(Cursor::new(&bytes));
            let read = ask(&mut reading, &asks, bytes.len(), true).unwrap();
            prop_assert_eq!(&from_file, &from_memory);
            prop_assert_eq!(&from_file, &read);
        }

        let (to, from) = UnixStream::pair().unwrap();
        let (asked, len) = (asks.clone(), bytes.len());
        let reader = thread::spawn(move || ask(&mut Reading::new(from), &asked, len, false));
        let mut to = to;
        give(&mut to, &bytes, &cuts, || {});
        drop(to);
        prop_assert_eq!(&reader.join().unwrap().unwrap(), &bytes);
    }

    #[test]
    fn an_outbox_is_emptied_from_its_front(
        bytes in prop::collection::vec(any::<u8>(), 0..60_000),
        cuts in prop::collection::vec(1..=BUFFER, 1..5),
        most in 1..20_000usize,
    ) {
        let mut outbox = Outbox::default();
        let mut pool = Pool::lent_by(&mut outbox, 2, BUFFER).unwrap();
        let (mut taken, mut left, mut cuts) = (Vec::new(), &bytes[..], cuts.iter().cycle());
        while !left.is_empty() || outbox.front().is_some() {
            if let Some(front) = outbox.front() {
                let now = front.len().min(most);
                taken.write_all(&front[..now]).unwrap();
                outbox.took(now);
                continue;
            }
            let (now, later) = left.split_at((*cuts.next().unwrap()).min(left.len()));
            let mut buffer = pool.take().unwrap();
            buffer.bytes_mut()[..now.len()].copy_from_slice(now);
            outbox.write(buffer.filled(0..now.len())).unwrap();
            left = later;
        }
        prop_assert_eq!(taken, bytes);
    }
}
