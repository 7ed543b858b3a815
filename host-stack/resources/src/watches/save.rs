//! What inotify instances watch: the kernel knows inodes, the image needs names.

use std::{
    collections::{HashSet, VecDeque},
    fs::{self, File},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::{
            ffi::OsStringExt,
            fs::{DirEntryExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
};

use crate::{
    calls::readable, descriptor::FoundDescriptor, error::Result, files::named::Named, state::Notice,
};

/// Names looked at in search of one that is watched.
const NAMES_MAX: usize = 1 << 18;

/// A line of fdinfo: `inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 fhandle-type:1
/// f_handle:7e9e0000640d1b6d`.
struct Line {
    wd: i32,
    id: (u64, u64),
    mask: u32,
    handle: Option<(i32, Vec<u8>)>,
}

/// Files that an instance watches, by their names. Events in it that nobody has read cannot be put into another: the
/// program is given a moment to read them.
pub fn describe(
    seen: &FoundDescriptor,
    copy: BorrowedFd,
    named: &mut Named,
) -> Result<Vec<Notice>> {
    if readable(copy).unwrap_or(0) > 0 {
        let error = seen.refused("it has events that the program has not read");
        return Err(error.for_now());
    }
    find_all(seen, named)
}

/// As [`describe`], of a program that runs.
pub fn find_all(seen: &FoundDescriptor, named: &mut Named) -> Result<Vec<Notice>> {
    let lines = seen.info.all("inotify");
    lines
        .map(|text| {
            let line = parse(text).ok_or_else(|| seen.refused(text))?;
            let path = find(seen, &line, named).ok_or_else(|| {
                seen.refused(&format!(
                    "it watches inode {} of device {:#x}, whose name cannot be found",
                    line.id.1, line.id.0
                ))
            })?;
            Ok(Notice {
                path: path.into_os_string().into_vec(),
                mask: line.mask,
                wd: line.wd,
            })
        })
        .collect()
}

fn parse(line: &str) -> Option<Line> {
    let field = |key: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix(':'))
    };
    let hex = |key| u64::from_str_radix(field(key)?, 16).ok();
    let device = hex("sdev")?;
    let bytes = field("f_handle").and_then(|text| {
        let digits = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        (0..text.len()).step_by(2).map(digits).collect()
    });
    let kind = hex("fhandle-type").map(|kind| kind as i32);
    Some(Line {
        wd: i32::try_from(hex("wd")?).ok()?,
        // The kernel's own way to pack it.
        id: (
            libc::makedev((device >> 20) as u32, device as u32 & 0xf_ffff),
            hex("ino")?,
        ),
        mask: hex("mask")? as u32,
        handle: kind.zip(bytes),
    })
}

fn find(seen: &FoundDescriptor, line: &Line, named: &mut Named) -> Option<PathBuf> {
    let is_it = |path: &Path| {
        let metadata = fs::symlink_metadata(path);
        metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == line.id)
    };
    if let Some(known) = named.watched.get(&line.id).filter(|path| is_it(path)) {
        return Some(known.clone());
    }
    let cwd = fs::read_link(format!("/proc/{}/cwd", seen.pid)).unwrap_or_else(|_| "/".into());
    let found = by_handle(line)
        .filter(|path| is_it(path))
        .or_else(|| search(&cwd, line.id))?;
    named.watched.insert(line.id, found.clone());
    Some(found)
}

/// By what the kernel calls it (open_by_handle_at(2)), which takes privileges.
fn by_handle(line: &Line) -> Option<PathBuf> {
    let (kind, bytes) = line.handle.as_ref()?;
    let mut handle = (bytes.len() as u32).to_ne_bytes().to_vec();
    handle.extend(kind.to_ne_bytes());
    handle.extend(bytes);
    let mounts = procfs::process::Process::myself().ok()?.mountinfo().ok()?;
    let (major, minor) = (libc::major(line.id.0), libc::minor(line.id.0));
    let device = format!("{major}:{minor}");
    let mount = mounts.into_iter().find(|mount| mount.majmin == device)?;
    let mount = File::open(mount.mount_point).ok()?;
    // SAFETY: open_by_handle_at(2) reads a struct file_handle, whose bytes behind the head are as many as it says,
    // which is what `handle` was made of; the descriptor that it returns is new, so nobody else owns it.
    let opened = unsafe {
        let fd = libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            handle.as_ptr(),
            libc::O_PATH | libc::O_CLOEXEC,
        );
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))?
    };
    fs::read_link(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd())).ok()
}

/// By looking for it: below a directory, then below those that it is in.
fn search(from: &Path, id: (u64, u64)) -> Option<PathBuf> {
    let (mut seen, mut left) = (HashSet::new(), NAMES_MAX);
    for ancestor in from.ancestors() {
        let metadata = fs::symlink_metadata(ancestor).ok()?;
        if (metadata.dev(), metadata.ino()) == id {
            return Some(ancestor.to_owned());
        }
        let mut directories = VecDeque::from([ancestor.to_owned()]);
        while let Some(directory) = directories.pop_front() {
            let Ok(entries) = fs::read_dir(&directory) else {
                continue;
            };
            for entry in entries.flatten() {
                left = left.checked_sub(1)?;
                let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if !is_directory && entry.ino() != id.1 {
                    continue;
                }
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
                let found = (metadata.dev(), metadata.ino());
                if found == id {
                    return Some(entry.path());
                }
                if is_directory && !is_made_up(&entry.path()) && seen.insert(found) {
                    directories.push_back(entry.path());
                }
            }
        }
    }
    None
}

fn is_made_up(path: &Path) -> bool {
    ["/proc", "/sys"].map(Path::new).contains(&path)
}
