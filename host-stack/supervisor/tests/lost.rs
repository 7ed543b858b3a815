//! Full disks, damaged images, files that are missing or others: named and refused; the program runs on, or nothing of it
//! is left.

mod common;

use std::{ffi::CString, fs, os::unix::ffi::OsStrExt};

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
    // SAFETY: prlimit(2) reads a struct rlimit, which is a variable of this test, and writes nothing to a null pointer.
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
    let (libraries, library) = compiled("odd.c", &["-shared", "-fPIC"]);
    let library = &*library;
    let (directory, sums) = compiled("sums.c", &["-fopenmp", "-Wl,--no-as-needed", library]);
    let mut job = Job::launch(&[&sums]);
    job.wait_for("begun");
    job.dump(true).unwrap();
    job.ended();
    for (file, kept) in [
        (&*sums, directory.path().join("kept")),
        (library, libraries.path().join("kept")),
    ] {
        fs::rename(file, &kept).unwrap();
        let said = fails_to_restart(&mut job);
        assert!(
            said.contains(file) && said.contains("cannot be opened"),
            "{said}"
        );
        let mut other = fs::read(&kept).unwrap();
        other[0x40] ^= 1;
        fs::write(file, other).unwrap();
        let said = fails_to_restart(&mut job);
        assert!(
            said.contains(file) && said.contains("has changed"),
            "{said}"
        );
        // The same bytes at another time are the same.
        fs::copy(&kept, file).unwrap();
    }
    job.restart();
    job.tell("stop");
    assert_eq!(job.ended(), 0, "{}", job.output());
}

/// A file system of this thread and of whom it starts, as large as it is; unmounted when it is dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    const ROOM: u64 = 64 << 20;
    const FILES: u64 = 64;

    fn mount() -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        let path = CString::new(disk.0.path().as_os_str().as_bytes()).unwrap();
        let options = format!("size={},nr_inodes={}\0", Self::ROOM, Self::FILES);
        let (none, tmpfs) = (std::ptr::null(), c"tmpfs".as_ptr());
        // SAFETY: the names and options end with zeros, and mount(2) only reads them; unshare(2) takes a number, and
        // gives this thread a root and a directory of its own, which no other thread of the test relies on.
        let is_mounted = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    tmpfs,
                    c"/".as_ptr(),
                    none,
                    libc::MS_REC | libc::MS_PRIVATE,
                    none.cast(),
                ) == 0
                && libc::mount(tmpfs, path.as_ptr(), tmpfs, 0, options.as_ptr().cast()) == 0
        };
        assert!(is_mounted, "{}", std::io::Error::last_os_error());
        disk
    }

    /// Leaves so many bytes.
    fn leave(&self, bytes: u64) {
        let filler = self.0.path().join("filler");
        let _ = fs::remove_file(&filler);
        let room = rustix::fs::statvfs(self.0.path()).unwrap();
        let room = room.f_bavail * room.f_frsize;
        fs::write(filler, vec![1; (room - bytes) as usize]).unwrap();
    }

    /// Leaves no file, or as many as before.
    fn fill(&self, is_full: bool) {
        for number in 0..Self::FILES {
            let name = self.0.path().join(format!("file-{number}"));
            let _ = if is_full {
                fs::write(name, "")
            } else {
                fs::remove_file(name)
            };
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = CString::new(self.0.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: umount2(2) reads the name, which ends with a zero.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

/// When the round begins, in the middle of its pages, at each of its last blocks (state, trailer, manifest), it fails,
/// says so, and leaves nothing behind.
#[test]
#[cfg_attr(not(mounts_tmpfs), ignore = "only root may mount a small disk")]
fn a_disk_that_is_full_at_any_step() {
    let disk = Disk::mount();
    const PAGE: u64 = 4096;
    let (_directory, sums) = compiled("sums.c", &["-fopenmp"]);
    let mut job = Job::launch_at(disk.0.path(), &[&sums]);
    job.wait_for("begun");
    let room = || rustix::fs::statvfs(disk.0.path()).unwrap().f_bavail * PAGE;
    let before = room();
    job.dump(false).unwrap();
    let whole = before - room();
    disk.fill(true);
    let is_full = |why: &str| why.contains("No space left") || why.contains("no room");
    let fails = |what: &str| {
        let why = job.dump(false).unwrap_err();
        assert!(is_full(&why), "{what}: {why}");
        let rounds = fs::read_dir(job.path("job")).unwrap().flatten();
        let rounds = rounds.filter(|entry| entry.file_type().unwrap().is_dir());
        assert_eq!(rounds.count(), 1, "{what}: nothing half-written is left");
    };
    fails("no file");
    disk.fill(false);
    disk.leave(0);
    fails("no page");
    disk.leave(whole / 2 / PAGE * PAGE);
    fails("half of it");
    // What it takes differs by what the program does: until it succeeds, at the very end.
    let mut missing: i64 = 16;
    loop {
        disk.leave(whole.saturating_add_signed(-missing * PAGE as i64));
        match job.dump(false) {
            Err(why) => assert!(is_full(&why), "{missing}: {why}"),
            Ok(()) => break,
        }
        assert!(missing > -16, "it takes much more than it took");
        missing -= 1;
    }
    disk.leave(Disk::ROOM / 4);
    job.dump(true).unwrap();
    job.ended();
    job.restart();
    job.tell("stop");
    assert_eq!((job.ended(), &*job.output()), (0, "begun\nright\n"));
}
