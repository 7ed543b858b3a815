//! Full disks, damaged images, files that are missing or others: named and refused; the program runs on, or nothing of it
//! is left.

mod common;

use std::fs;

use common::{Job, compiled, program};

/// What a restart says that fails.
fn fails_to_restart(job: &mut Job) -> String {
    let before = job.output().len();
    job.restart_to_die("");
    assert_ne!(job.ended(), 0, "{}", job.output());
    job.output()[before..].to_owned()
}

#[test]
fn no_room_for_an_image() {
    let mut job = Job::launch(&["/usr/bin/python3", &program("grows.py")]);
    job.wait_for("ready");
    let limit = libc::rlimit {
        rlim_cur: 48 << 20,
        rlim_max: 48 << 20,
    };
    // SAFETY: `limit` is valid to read.
    let limited = unsafe {
        let none = std::ptr::null_mut();
        libc::prlimit(job.supervisor(), libc::RLIMIT_FSIZE, &raw const limit, none)
    };
    assert_eq!(limited, 0, "{}", std::io::Error::last_os_error());
    job.dump(false).unwrap();
    job.tell("grow");
    job.wait_for("grown");
    for kill in [false, true] {
        let why = job.dump(kill).unwrap_err();
        assert!(why.contains("File too large"), "{why}");
    }
    let rounds = fs::read_dir(job.path("job")).unwrap().flatten();
    let rounds = rounds.filter(|entry| entry.file_type().unwrap().is_dir());
    assert_eq!(rounds.count(), 1, "nothing half-written is left");
    job.tell("stop");
    assert_eq!((job.ended(), &*job.output()), (0, "ready\ngrown\nright\n"));
    fs::remove_file(job.path("stop")).unwrap();
    job.restart();
    job.tell("stop");
    assert_eq!(
        (job.ended(), &*job.output()),
        (0, "ready\ngrown\nright\ngrown\nright\n")
    );
}

#[test]
fn bits_that_flip_anywhere_are_found() {
    let (_directory, sums) = compiled("sums.c", &["-fopenmp"]);
    let mut job = Job::launch(&[&sums]);
    job.wait_for("begun");
    job.dump(true).unwrap();
    job.ended();
    let image = job.path("job/0001/tree.img");
    let sound = fs::read(&image).unwrap();
    for part in 0..6 {
        let mut bytes = sound.clone();
        let at = bytes.len() * part / 6 + part * 37;
        bytes[at] ^= 1 << part;
        fs::write(&image, &bytes).unwrap();
        let said = fails_to_restart(&mut job);
        assert!(said.contains("0001"), "{at}: {said}");
    }
    for part in 0..4 {
        fs::write(&image, &sound[..sound.len() * part / 4]).unwrap();
        let said = fails_to_restart(&mut job);
        assert!(said.contains("0001"), "{part}: {said}");
    }
    fs::write(&image, &sound).unwrap();
    job.restart();
    job.tell("stop");
    assert_eq!(job.ended(), 0, "{}", job.output());
}

/// The program's executable, and a library of its own.
#[test]
fn programs_and_libraries_that_are_others_are_named() {
    let (directory, sums) = compiled("sums.c", &["-fopenmp"]);
    let mut job = Job::launch(&[&sums]);
    job.wait_for("begun");
    job.dump(true).unwrap();
    job.ended();
    let kept = directory.path().join("kept");
    fs::rename(&sums, &kept).unwrap();
    let said = fails_to_restart(&mut job);
    assert!(
        said.contains(&sums) && said.contains("cannot be opened"),
        "{said}"
    );
    let mut other = fs::read(&kept).unwrap();
    other[0x40] ^= 1;
    fs::write(&sums, other).unwrap();
    let said = fails_to_restart(&mut job);
    assert!(
        said.contains(&sums) && said.contains("has changed"),
        "{said}"
    );
    // The same bytes at another time are the same.
    fs::copy(&kept, &sums).unwrap();
    job.restart();
    job.tell("stop");
    assert_eq!(job.ended(), 0, "{}", job.output());
}
