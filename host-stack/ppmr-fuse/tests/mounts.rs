//! Files that are written into the mount of a source come out of that of the target as they were written, while they are
//! written; and never short.

mod pair;

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use snaprig_ppmr::Mode;

use pair::Pair;

/// What whoever reads or writes hears of a stream that has failed.
const EIO: Option<i32> = Some(5);
/// What whoever does not go front to back hears.
const ESPIPE: Option<i32> = Some(29);

/// Bytes of a file: others for each.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(next).collect()
}

fn cp(from: &Path, to: &Path) -> std::process::Child {
    Command::new("cp").args([from, to]).spawn().unwrap()
}

fn read(path: PathBuf) -> thread::JoinHandle<std::io::Result<Vec<u8>>> {
    thread::spawn(move || fs::read(path))
}

fn names(directory: &Path) -> Vec<OsString> {
    let names = fs::read_dir(directory).unwrap();
    names.map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn eight_files_at_once_come_as_they_were_written() {
    for mode in [Mode::Pull, Mode::Push] {
        let pair = Pair::new(mode, 8);
        let own = tempfile::tempdir().unwrap();
        let sizes = [0, 1, 4095, 70_001, 1 << 20, 2_345_678, 3 << 20, 5_000_003];
        let files = sizes.iter().enumerate();
        let images: Vec<_> = files.map(|(at, size)| bytes(at as u64, *size)).collect();
        // Who reads is there first, with other sizes of reads than those of writes.
        let readers: Vec<_> = (0..8)
            .map(|at| {
                let name = at.to_string();
                let out = own.path().join(format!("out{at}"));
                (cp(&pair.to(&name), &out), out)
            })
            .collect();
        let mut writers: Vec<_> = images
            .iter()
            .enumerate()
            .map(|(at, image)| {
                let place = own.path().join(format!("in{at}"));
                fs::write(&place, image).unwrap();
                cp(&place, &pair.from(&at.to_string()))
            })
            .collect();
        for writer in &mut writers {
            assert!(writer.wait().unwrap().success(), "{mode:?}");
        }
        for ((mut reader, out), image) in readers.into_iter().zip(&images) {
            assert!(reader.wait().unwrap().success(), "{mode:?}");
            assert!(fs::read(out).unwrap() == *image, "{mode:?}");
        }
        for _ in 0..8 {
            let (source, target) = pair.outcomes();
            assert_eq!((source.failure, target.failure), (None, None));
        }
        assert_eq!(pair.source.next(), None);
        assert_eq!(pair.target.as_ref().unwrap().next(), None);
        assert!(names(&pair.to("")).is_empty(), "what is read is gone");
    }
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn a_reader_that_stops_stalls_its_own_file_alone() {
    let pair = Pair::new(Mode::Pull, 3);
    let image = bytes(1, 4 << 20);
    let write = |name: &str| {
        let (path, image) = (pair.from(name), image.clone());
        thread::spawn(move || fs::write(path, image))
    };
    let slow = write("slow");
    let mut reader = File::open(pair.to("slow")).unwrap();
    let mut begun = [0; 1000];
    reader.read_exact(&mut begun).unwrap();
    for name in ["one", "two"] {
        let (writing, reading) = (write(name), read(pair.to(name)));
        writing.join().unwrap().unwrap();
        assert!(reading.join().unwrap().unwrap() == image);
    }
    assert!(!slow.is_finished());
    let mut rest = begun.to_vec();
    reader.read_to_end(&mut rest).unwrap();
    assert!(rest == image);
    slow.join().unwrap().unwrap();
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn a_writer_that_is_killed_leaves_no_short_file() {
    let pair = Pair::new(Mode::Pull, 2);
    for name in ["killed", "removed"] {
        let mut tee = Command::new("tee")
            .arg(pair.from(name))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut to = tee.stdin.take().unwrap();
        to.write_all(&bytes(2, 300_000)).unwrap();
        let mut reader = File::open(pair.to(name)).unwrap();
        reader.read_exact(&mut [0; 100_000]).unwrap();
        match name {
            "killed" => tee.kill().unwrap(),
            _ => fs::remove_file(pair.from(name)).unwrap(),
        }
        let mut rest = Vec::new();
        let error = reader.read_to_end(&mut rest).unwrap_err();
        assert_eq!(error.raw_os_error(), EIO);
        assert_eq!(reader.read(&mut [0]).unwrap_err().raw_os_error(), EIO);
        drop((to, reader));
        tee.wait().unwrap();
        let (source, target) = pair.outcomes();
        assert!(source.failure.is_some() && target.failure.is_some());
    }
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn whoever_writes_hears_that_the_target_or_its_reader_is_gone() {
    let write = |pair: &Pair, name: &str| {
        let path = pair.from(name);
        thread::spawn(move || {
            let mut file = File::create(path)?;
            file.write_all(&bytes(3, 8 << 20))?;
            file.sync_all()
        })
    };
    let mut pair = Pair::new(Mode::Push, 2);
    let writing = write(&pair, "one");
    let mut reader = File::open(pair.to("one")).unwrap();
    reader.read_exact(&mut vec![0; 2 << 20]).unwrap();
    drop(reader);
    let error = writing.join().unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), EIO);
    let writing = write(&pair, "two");
    let mut reader = File::open(pair.to("two")).unwrap();
    reader.read_exact(&mut [0; 1000]).unwrap();
    pair.target = None;
    let error = writing.join().unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), EIO);
    assert!(reader.read_to_end(&mut Vec::new()).is_err());
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn a_file_is_called_at_the_target_what_it_is_renamed_to() {
    let pair = Pair::new(Mode::Pull, 2);
    // While it is open: the name goes along.
    let image = bytes(4, 200_000);
    let mut file = File::create(pair.from("a.new1234")).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .unwrap();
    file.write_all(&image[..100_000]).unwrap();
    fs::rename(pair.from("a.new1234"), pair.from("a")).unwrap();
    file.write_all(&image[100_000..]).unwrap();
    drop(file);
    let mut reader = File::open(pair.to("a.new1234")).unwrap();
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    assert!(all == image);
    assert_eq!(names(&pair.to("")), ["a"]);
    assert_eq!(reader.metadata().unwrap().mode() & 0o7777, 0o600);
    drop(reader);
    assert_eq!(pair.outcomes().1.name, "a");
    // After it was closed: to the name that the target has from the beginning.
    let reading = read(pair.to("b.img"));
    fs::write(pair.from("b.img.temp"), &image).unwrap();
    assert!(reading.join().unwrap().unwrap() == image);
    let to = pair.from("c");
    let refused = fs::rename(pair.from("b.img.temp"), to).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceBusy);
    fs::rename(pair.from("b.img.temp"), pair.from("b.img")).unwrap();
    assert_eq!(pair.outcomes().1.name, "b.img");
    assert_eq!(pair.source.next(), None);
    let more = File::create(pair.from("more")).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::StorageFull);
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn files_go_front_to_back_with_holes_and_heads_that_are_read_again() {
    let pair = Pair::new(Mode::Pull, 1);
    let writing = {
        let path = pair.from("file");
        thread::spawn(move || {
            let mut file = File::create(path).unwrap();
            file.write_all(b"head").unwrap();
            let back = file.write_at(b"H", 0).unwrap_err();
            assert_eq!(back.raw_os_error(), ESPIPE);
            file.seek(SeekFrom::Start(3 << 20)).unwrap();
            file.write_all(b"tail").unwrap();
            file.set_len(4 << 20).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 4 << 20);
        })
    };
    let mut expected = vec![0; 4 << 20];
    expected[..4].copy_from_slice(b"head");
    expected[3 << 20..][..4].copy_from_slice(b"tail");
    // One who looks only at the head, and one who looks at it and then reads all.
    File::open(pair.to("file"))
        .unwrap()
        .read_exact(&mut [0; 4])
        .unwrap();
    let mut file = File::open(pair.to("file")).unwrap();
    file.read_exact(&mut [0; 64]).unwrap();
    file.rewind().unwrap();
    let mut all = vec![0; 4 << 20];
    file.read_exact(&mut all).unwrap();
    assert!(all == expected);
    let back = file.read_at(&mut [0], 0).unwrap_err();
    assert_eq!(back.raw_os_error(), ESPIPE);
    writing.join().unwrap();
    // Nobody has asked for its end, and it is whole.
    drop(file);
    let (source, target) = pair.outcomes();
    assert_eq!((source.failure, target.failure), (None, None));
    assert_eq!(target.bytes, 4 << 20);
}
