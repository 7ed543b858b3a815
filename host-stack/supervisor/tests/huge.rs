//! Huge pages that several can map: what has been written to is there again, and nothing else is.

mod common;

use std::{
    fs::{self, File},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::Command,
    ptr,
};

use common::{
    HugePages, Job, NOBODY, Objects, Trees, compiled, ends_well, migrate_of_nobody, nobody,
    postgresql, wait_until,
};
use tempfile::TempDir;

/// As many as there are most often, in kB.
const USUAL: u64 = 2048;
/// What the program and its copy, while it migrates, have at most.
const PAGES: u64 = 96;
/// Pages that relatives share since fork(2), and do not any more after a restart.
const COPIES: u64 = 3;

/// A setting of the kernel, until it is dropped.
struct Setting(&'static str, String);

impl Setting {
    fn set(path: &'static str, value: &str) -> Self {
        let before = fs::read_to_string(path).unwrap();
        fs::write(path, value).unwrap();
        Self(path, before)
    }

    /// Ordinary users may make segments of huge pages.
    fn segments_of_nobody() -> Self {
        Self::set("/proc/sys/vm/hugetlb_shm_group", &NOBODY.to_string())
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.0, &self.1);
    }
}

/// A hugetlbfs, mounted until it is dropped.
struct Mounted(TempDir);

impl Mounted {
    fn mount() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "hugetlbfs", "none"])
            .arg(directory.path());
        assert!(mount.status().expect("it starts").success());
        let everybody = PermissionsExt::from_mode(0o777);
        fs::set_permissions(directory.path(), everybody).unwrap();
        Self(directory)
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    /// The file whose name begins so.
    fn file(&self, name: &str) -> PathBuf {
        let entries = fs::read_dir(self.0.path()).unwrap().flatten();
        let mut files = entries.map(|entry| entry.path());
        let is_it = |path: &PathBuf| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(name)
        };
        files.find(is_it).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut umount = Command::new("umount");
        let _ = umount.arg("-l").arg(self.0.path()).status();
    }
}

/// It has huge pages, is checkpointed, runs on, and is restarted twice.
fn is_what_it_was(mut job: Job, pages: &HugePages) {
    job.wait_for("ready");
    let _objects = Objects::of(&job);
    let free = pages.free();
    for _ in 0..2 {
        job.dump(false).unwrap();
        // Another program may have one meanwhile.
        wait_until("a checkpoint makes no pages", || pages.free() >= free);
    }
    for _ in 0..2 {
        job.over_again();
        wait_until("what was not there is not there", || {
            pages.free() + COPIES >= free
        });
    }
    ends_well(&job.path("go"), &mut job);
    let images = walk(&job.path("job"));
    assert!(images < 32 << 20, "{images} bytes");
}

/// Bytes of all files in a directory.
fn walk(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let sizes = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
        true => walk(&entry.path()),
        false => entry.metadata().unwrap().len(),
    });
    sizes.sum()
}

fn in_mode(user: Option<u32>, mode: &str) {
    let Some(pages) = HugePages::reserve(USUAL, PAGES) else {
        return;
    };
    let (_group, mounted) = (Setting::segments_of_nobody(), Mounted::mount());
    let (_directory, huge) = compiled("huge.c", &[]);
    let program = [huge.as_str(), "2", mounted.path()];
    is_what_it_was(Job::launch_with(user, &[("MODE", mode)], &program), &pages);
}

#[test]
#[cfg_attr(not(mounts_hugetlbfs), ignore = "a hugetlbfs cannot be mounted")]
fn full() {
    in_mode(None, "full");
}

#[test]
#[cfg_attr(not(mounts_hugetlbfs), ignore = "a hugetlbfs cannot be mounted")]
fn of_an_ordinary_user() {
    in_mode(nobody(), "full");
}

#[test]
#[cfg_attr(not(mounts_hugetlbfs), ignore = "a hugetlbfs cannot be mounted")]
fn in_increments() {
    in_mode(nobody(), "incremental");
}

#[test]
#[cfg_attr(not(mounts_hugetlbfs), ignore = "a hugetlbfs cannot be mounted")]
fn in_the_background() {
    in_mode(nobody(), "background");
}

#[test]
#[cfg_attr(not(is_root), ignore = "only root reserves huge pages")]
fn of_a_gibibyte_each() {
    let Some(pages) = HugePages::reserve(1 << 20, 2) else {
        return;
    };
    let (_directory, huge) = compiled("huge.c", &[]);
    let mut job = Job::launch(&[&huge, "1024"]);
    job.wait_for("ready");
    assert_eq!(pages.free(), 1);
    job.dump(false).unwrap();
    assert_eq!(pages.free(), 1);
    job.over_again();
    assert_eq!(pages.free(), 1);
    ends_well(&job.path("go"), &mut job);
}

#[test]
#[cfg_attr(not(is_root), ignore = "only root reserves huge pages")]
fn they_migrate() {
    let Some(_pages) = HugePages::reserve(USUAL, PAGES) else {
        return;
    };
    let _group = Setting::segments_of_nobody();
    let (_directory, huge) = compiled("huge.c", &[]);
    let source = Job::launch_as_nobody(&[&huge, "2"]);
    source.wait_for("ready");
    let _objects = Objects::of(&source);
    let (go, mut jobs) = migrate_of_nobody(source, 2);
    ends_well(&go, jobs.last_mut().unwrap());
}

#[test]
#[cfg_attr(not(is_root), ignore = "only root reserves huge pages")]
fn of_a_job() {
    let Some(_pages) = HugePages::reserve(USUAL, PAGES) else {
        return;
    };
    let (_directory, huge) = compiled("huge.c", &["-DNO_SEGMENTS", "-Wno-unused-variable"]);
    let mut trees = Trees::new();
    for name in ["one", "two"] {
        trees.launch(name, &[&huge, "2"]);
    }
    wait_until("both are ready", || {
        trees.output().matches("ready").count() == 2
    });
    trees.dump(false).unwrap();
    for _ in 0..2 {
        trees.dump(true).unwrap();
        trees.ended();
        trees.restart();
    }
    trees.tell("go");
    let (statuses, output) = (trees.ended(), trees.output());
    assert!(statuses.iter().all(|status| *status == 0), "{output}");
    assert_eq!(output.matches("right").count(), 2, "{output}");
}

/// Who moves has all memory twice for a moment.
#[test]
#[cfg_attr(not(is_root), ignore = "only root reserves huge pages")]
fn who_moves_where_they_are_too_few_has_ordinary_ones() {
    let Some(pages) = HugePages::reserve(USUAL, PAGES) else {
        return;
    };
    for segments in ["-DSEGMENTS", "-DNO_SEGMENTS"] {
        let (_directory, huge) = compiled("huge.c", &["-DORDINARY_LATER", segments, "-Wno-unused"]);
        let mut trees = Trees::new();
        trees.launch("one", &[&huge, "2"]);
        trees.wait_for("ready");
        pages.set(0);
        trees.begin_move("one", None);
        trees.wait_for("one has moved");
        trees.wait_for("ordinary pages in place of huge ones");
        pages.set(PAGES);
        trees.tell("go");
        let (statuses, output) = (trees.ended(), trees.output());
        assert!(statuses.iter().all(|status| *status == 0), "{output}");
        assert_eq!(output.matches("right").count(), 1, "{output}");
        let of_tree = fs::read_to_string(trees.directory.path().join("objects"));
        let of_tree = of_tree.unwrap_or_default();
        let are_here = fs::read_to_string("/proc/sysvipc/shm").unwrap();
        let mut here = are_here
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1));
        assert!(
            here.all(|id| !of_tree.split(' ').any(|one| one == format!("m{id}"))),
            "segments stay where the tree was: {are_here}"
        );
    }
}

/// The program is not lost, and restarts as soon as there are enough.
#[test]
#[cfg_attr(not(is_root), ignore = "only root reserves huge pages")]
fn too_few_are_refused_by_name() {
    let Some(pages) = HugePages::reserve(USUAL, PAGES) else {
        return;
    };
    let (_directory, huge) = compiled("huge.c", &[]);
    let mut job = Job::launch(&[&huge, "2"]);
    job.wait_for("ready");
    let _objects = Objects::of(&job);
    job.dump(true).unwrap();
    job.ended();
    pages.set(20);
    let why = job.refuses_to_restart();
    assert!(
        why.contains("huge pages of 2048 kB are needed, and") && why.contains("vm.nr_hugepages"),
        "{why}"
    );
    pages.set(PAGES);
    job.restart();
    ends_well(&job.path("go"), &mut job);
}

/// Who may not make segments of them is told who may.
#[test]
#[cfg_attr(not(is_root), ignore = "only root reserves huge pages")]
fn segments_are_refused_by_name() {
    let Some(_pages) = HugePages::reserve(USUAL, PAGES) else {
        return;
    };
    let group = Setting::segments_of_nobody();
    let (_directory, huge) = compiled("huge.c", &[]);
    // Who may lock memory may make some.
    let limited = ["sh", "-c", "ulimit -l 0 && exec \"$@\"", "sh", &huge, "2"];
    let mut job = Job::launch_with(nobody(), &[], &limited);
    job.wait_for("ready");
    let _objects = Objects::of(&job);
    job.dump(true).unwrap();
    job.ended();
    drop(group);
    let limits = limit_locked(0);
    let why = job.refuses_to_restart();
    limit_locked(limits);
    assert!(why.contains("vm.hugetlb_shm_group"), "{why}");
    let _group = Setting::segments_of_nobody();
    job.restart();
    ends_well(&job.path("go"), &mut job);
}

/// How much this process, and what it starts, may lock; what that was before.
fn limit_locked(bytes: u64) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: getrlimit(2) writes and setrlimit(2) reads a struct rlimit, which is a variable of this function.
    unsafe {
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit);
        let before = std::mem::replace(&mut limit.rlim_cur, bytes);
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit);
        before
    }
}

/// As any file that is mapped to be written to: what has changed since is kept beside it.
#[test]
#[cfg_attr(not(mounts_hugetlbfs), ignore = "a hugetlbfs cannot be mounted")]
fn a_file_that_has_changed_is_set_back() {
    let Some(_pages) = HugePages::reserve(USUAL, PAGES) else {
        return;
    };
    let mounted = Mounted::mount();
    let (_directory, huge) = compiled("huge.c", &[]);
    let mut job = Job::launch(&[&huge, "2", mounted.path()]);
    job.wait_for("ready");
    let _objects = Objects::of(&job);
    job.dump(true).unwrap();
    job.ended();
    let named = mounted.file("named");
    overwrite(&named, 2 << 20);
    job.restart();
    let kept = named.with_file_name(format!(
        "{}.snaprig-1",
        named.file_name().unwrap().to_str().unwrap()
    ));
    let mut bytes = [0; 8];
    let file = File::open(kept).unwrap();
    file.read_exact_at(&mut bytes, 2 << 20).unwrap();
    assert_eq!(&bytes, b"changed!");
    ends_well(&job.path("go"), &mut job);
}

/// Writes to a page of a file.
fn overwrite(path: &Path, offset: i64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at; one page of the file is mapped there,
    // which is written to within its length, and unmapped when nothing refers to it any more.
    unsafe {
        let (protection, bytes) = (libc::PROT_READ | libc::PROT_WRITE, 2 << 20);
        let at = libc::mmap(
            ptr::null_mut(),
            bytes,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset,
        );
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<[u8; 8]>().write(*b"changed!");
        libc::munmap(at, bytes);
    }
}

/// All of its shared memory is huge pages.
#[test]
#[cfg_attr(not(is_root), ignore = "only root reserves huge pages")]
#[cfg_attr(
    not(has_postgresql),
    ignore = "PostgreSQL is not installed (ci/setup installs it)"
)]
fn postgresql_in_huge_pages_loses_nothing() {
    let Some(_pages) = HugePages::reserve(USUAL, PAGES) else {
        return;
    };
    postgresql(&["-c", "huge_pages=on"]);
}
