//! Files by their names: what they must still be, and what they become again.
//!
//! ```text
//! not changed                  opened
//! only read, and has grown     opened: what the program knows of it is still there
//! only read, and has changed   refused by name
//! written to, and has changed  what it is now is kept beside it; then it is what it was at the checkpoint
//! gone, and was written to     made anew
//! ```
//! What must stay true: until the image has been read to its end, contents are in files without a name ([`Staging`]);
//! nothing that is in a file now is lost.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fmt,
    fs::{self, File, Permissions},
    io,
    mem::ManuallyDrop,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, OpenOptionsExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
};

use tempfile::TempPath;

use super::named::{modified, tail};
use crate::{
    error::{Error, Result, chain},
    event::{Event, Reporter},
    huge::pages::{self, Mapped},
    opened::{
        Item, Opened, damaged, is_there, missing, open_again, path_of, reopen, seek, set_flags,
    },
    state::{Contents, FileId, Kind, OpenFile, Tree},
};

/// Copies of one file that are kept at most.
const KEPT_MAX: u32 = 10_000;

/// Contents that have a file's place when all is well.
struct Staged {
    /// Where they are until then.
    fd: RawFd,
    /// Bytes: more may have been written, whole pages.
    size: u64,
    mode: u32,
    /// The file; none: it has no name.
    path: Option<PathBuf>,
    /// It was made for this.
    is_made: bool,
}

/// Names of files that lose them when all who have them open are opened, by the space of their contents: some flags go
/// with a name alone (`opened::OF_NAME`).
pub type Names = BTreeMap<u32, TempPath>;

/// Contents of files on their way into them.
#[derive(Default)]
pub struct Staging {
    /// By the space of the image, where they go; those whose files have not changed are not needed.
    pub contents: BTreeMap<u32, Option<RawFd>>,
    /// What takes its file's place when all is well.
    staged: Vec<Staged>,
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.contents).finish()
    }
}

/// Opens a file that has, or had, a name.
pub fn open(
    opened: &mut Opened,
    (staging, names): (&mut Staging, &mut Names),
    file: &OpenFile,
) -> Result<OwnedFd> {
    let Kind::Path {
        path,
        offset,
        file: id,
        tail,
        contents,
        unlinked,
        mode,
    } = &file.kind
    else {
        return Err(damaged("a file without a name"));
    };
    let path = path_of(path);
    let fd = match (contents, id) {
        (Some(contents), _) if *unlinked => {
            nameless((opened, staging, names), path, file.flags, *contents, *mode)?
        }
        (Some(contents), Some(id)) => {
            stage((opened, staging), path, id, *contents, *mode)?;
            reopen(path, file.flags)?
        }
        (None, Some(id)) => {
            let reads = file.flags & libc::O_ACCMODE == libc::O_RDONLY;
            if !(reads && has_grown(id, *tail)) {
                unchanged(id)?;
            }
            reopen(path, file.flags)?
        }
        (None, None) if !*unlinked => reopen(path, file.flags)?,
        _ => return Err(damaged("a file without contents")),
    };
    if file.flags & libc::O_PATH == 0 {
        seek(&fd, *offset)?;
    }
    Ok(fd)
}

/// Files that have come along. What is the same file by its name here is opened by that: who is in another mount namespace has
/// other names for what was opened in this one.
pub fn take_over(tree: &Tree, opened: &mut Opened) -> Result<()> {
    for number in opened.carried_files() {
        let Some(came) = opened.carried(Item::File(number)) else {
            continue;
        };
        let Some(OpenFile {
            flags,
            kind:
                Kind::Path {
                    path,
                    offset,
                    unlinked,
                    ..
                },
            ..
        }) = tree.files.get(number as usize)
        else {
            return Err(damaged("a file that comes along and has no name"));
        };
        let by_name = || reopen(path_of(path), *flags).ok();
        let own = if *unlinked { None } else { by_name() };
        let fd = match own.filter(|own| is_one(own, &came)) {
            Some(own) => {
                set_flags(&own, *flags)?;
                seek(&own, *offset)?;
                own
            }
            None => came,
        };
        opened.files[number as usize] = opened.keep(fd)?;
        if !unlinked && flags & libc::O_ACCMODE == libc::O_RDWR {
            opened.map_open(path, number);
        }
    }
    Ok(())
}

/// Whether both are of one file.
fn is_one(one: &OwnedFd, other: &OwnedFd) -> bool {
    let of = |fd| rustix::fs::fstat(fd).map(|it| (it.st_dev, it.st_ino));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other)
}

fn is_unchanged(file: &FileId) -> bool {
    let metadata = fs::metadata(path_of(&file.path));
    metadata.is_ok_and(|now| now.len() == file.size && modified(&now) == file.modified_nanos)
}

fn has_grown(file: &FileId, end: u64) -> bool {
    let path = path_of(&file.path);
    let is_longer = fs::metadata(path).is_ok_and(|now| now.len() > file.size);
    is_longer && tail(path, file.size).is_ok_and(|now| now == end)
}

/// Refuses a file that is not what it was: the same size and modification time, or the same bytes.
fn unchanged(file: &FileId) -> Result<()> {
    if is_unchanged(file) {
        return Ok(());
    }
    let path = path_of(&file.path);
    let now = fs::metadata(path).map_err(|error| missing(path, &error))?;
    let is_same = file.hash != 0
        && now.len() == file.size
        && crate::files::named::hash(path).is_ok_and(|hash| hash == file.hash);
    match is_same {
        true => Ok(()),
        false => Err(Error::Missing {
            what: format!("{} has changed since the checkpoint", path.display()),
        }),
    }
}

/// Opens a file that is mapped.
pub fn map(opened: &mut Opened, file: &FileId, write: bool) -> Result<()> {
    if opened.mapped(file, write).is_some() {
        return Ok(());
    }
    let path = path_of(&file.path);
    let mapped = File::options().read(true).write(write).open(path);
    let mapped = mapped.map_err(|error| missing(path, &error))?;
    if !write {
        unchanged(file)?;
    }
    opened.add_mapped(file, write, mapped.into())
}

/// Room for the contents of a file, if it is not what it was.
fn stage(
    (opened, staging): (&mut Opened, &mut Staging),
    path: &Path,
    id: &FileId,
    contents: Contents,
    mode: u32,
) -> Result<()> {
    if staging.contents.contains_key(&contents.space) {
        return Ok(());
    }
    if is_unchanged(id) {
        staging.contents.insert(contents.space, None);
        return Ok(());
    }
    let is_made = !is_there(path);
    if is_made {
        let made = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        made.map_err(|source| Error::io(path.display().to_string(), source))?;
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    let room = match pages::of_path(directory) {
        0 => tempfile::tempfile_in(directory).or_else(|_| tempfile::tempfile()),
        // Huge pages are not to be had twice, and not with write(2).
        _ => tempfile::tempfile(),
    };
    let fd = room
        .map_err(|source| Error::io(directory.display().to_string(), source))
        .and_then(|room| opened.keep(room.into()));
    let staged = Staged {
        fd: *fd.as_ref().unwrap_or(&-1),
        size: contents.size,
        mode,
        path: Some(path.to_owned()),
        is_made,
    };
    staging.staged.push(staged);
    staging.contents.insert(contents.space, Some(fd?));
    Ok(())
}

/// A file that has lost its name, or never had one: a new one in the same directory.
fn nameless(
    (opened, staging, names): (&mut Opened, &mut Staging, &mut Names),
    path: &Path,
    flags: i32,
    contents: Contents,
    mode: u32,
) -> Result<OwnedFd> {
    let is_temporary = flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let plain = flags & !libc::O_TMPFILE;
    if let Some(Some(fd)) = staging.contents.get(&contents.space) {
        return match names.get(&contents.space) {
            Some(name) => reopen(name, plain),
            None => open_again(*fd, plain),
        };
    }
    let directory = path.parent().filter(|parent| parent.is_dir());
    let directory = directory.map_or_else(env::temp_dir, Path::to_owned);
    let failed = |source| Error::io(directory.display().to_string(), source);
    let (fd, target) = if is_temporary {
        let made = File::options()
            .read(true)
            .write(true)
            .custom_flags(flags & !libc::O_ACCMODE)
            .mode(0o600)
            .open(&directory);
        let made = made.map_err(failed)?;
        let target = open_again(made.as_raw_fd(), libc::O_RDWR)?;
        (made.into(), target)
    } else {
        let made = tempfile::Builder::new()
            .prefix(".snaprig-")
            .tempfile_in(&directory);
        let (target, name) = made.map_err(failed)?.into_parts();
        let fd = reopen(&name, plain)?;
        names.insert(contents.space, name);
        (fd, target.into())
    };
    let target = opened.keep(target)?;
    staging.contents.insert(contents.space, Some(target));
    staging.staged.push(Staged {
        fd: target,
        size: contents.size,
        mode,
        path: None,
        is_made: true,
    });
    Ok(fd)
}

/// Makes a directory the working one; if it has been removed, one that is removed as well.
pub fn enter(path: &Path) -> io::Result<()> {
    let entered = env::set_current_dir(path);
    let name = path.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    let (Err(_), Some(lost)) = (&entered, name.map(path_of)) else {
        return entered;
    };
    if fs::create_dir(lost).is_ok() {
        let entered = env::set_current_dir(lost);
        return fs::remove_dir(lost).and(entered);
    }
    // There is another one of that name, or none in which it could be.
    let room = tempfile::tempdir()?;
    env::set_current_dir(room.path())
}

/// The image has been read to its end: files become what they were.
pub fn commit(staging: &Staging, reporter: &Reporter) -> Result<()> {
    for staged in &staging.staged {
        let contents = borrowed(staged.fd);
        let name = || {
            staged
                .path
                .as_deref()
                .unwrap_or(Path::new("a file"))
                .display()
                .to_string()
        };
        let failed = |source| Error::io(name(), source);
        contents.set_len(staged.size).map_err(failed)?;
        match &staged.path {
            None => {
                let mode = Permissions::from_mode(staged.mode);
                contents.set_permissions(mode).map_err(failed)?;
            }
            Some(path) => replace(path, &contents, staged, reporter).map_err(failed)?,
        }
    }
    Ok(())
}

/// The restart has failed: what was made for it goes away.
pub fn withdraw(staging: &Staging) {
    for staged in staging.staged.iter().filter(|staged| staged.is_made) {
        if let Some(path) = &staged.path
            && fs::metadata(path).is_ok_and(|now| now.len() == 0)
        {
            // What cannot be removed is an empty file.
            let _ = fs::remove_file(path);
        }
    }
}

fn borrowed(fd: RawFd) -> ManuallyDrop<File> {
    // SAFETY: the callers have the number from `Opened`, which keeps what it has open until all are closed, and the
    // file is not dropped, so it is not closed here.
    ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })
}

/// Gives a file its contents again. Who else has it open, or knows it by another name, sees them as well.
fn replace(path: &Path, contents: &File, staged: &Staged, reporter: &Reporter) -> io::Result<()> {
    let target = File::options().read(true).write(true).open(path);
    // Who may not read it now may have been allowed to write to it.
    let target = target.or_else(|_| File::options().write(true).open(path))?;
    if is_same(&target, contents).unwrap_or(false) {
        return Ok(());
    }
    if !staged.is_made {
        let kept = keep(path, &target)?;
        reporter.tell(Event::FileSetBack {
            path: path.to_owned(),
            kept,
        });
    }
    copy(contents, &target)?;
    if staged.is_made {
        target.set_permissions(Permissions::from_mode(staged.mode))?;
    }
    target.sync_data()
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut mine, mut yours) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    loop {
        let count = one.read_at(&mut mine, at)?;
        if count == 0 {
            return Ok(true);
        }
        other.read_exact_at(&mut yours[..count], at)?;
        if mine[..count] != yours[..count] {
            return Ok(false);
        }
        at += count as u64;
    }
}

/// Keeps what is in a file under a name beside it: `NAME.snaprig-1`, or the first number that is free.
fn keep(path: &Path, file: &File) -> io::Result<PathBuf> {
    for number in 1..KEPT_MAX {
        let mut name = OsString::from(path);
        name.push(format!(".snaprig-{number}"));
        let mode = file.metadata()?.permissions().mode() & 0o7777;
        let made = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&name);
        match made {
            Ok(made) => {
                // Also through a descriptor that cannot be read.
                let copied = File::open(path).and_then(|from| copy(&from, &made));
                if let Err(error) = copied.and_then(|()| made.sync_all()) {
                    // A part of it is of no use, and takes the room that was missing.
                    let _ = fs::remove_file(&name);
                    return Err(error);
                }
                return Ok(name.into());
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many of its former states are kept"))
}

/// Makes a file's bytes another's, but leaves holes; in a hugetlbfs, what is zero as well: it has no others.
fn copy(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    to.set_len(0)?;
    to.set_len(size)?;
    let whence = |at: u64, what| {
        // SAFETY: lseek(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
        // process.
        let at = unsafe { libc::lseek(from.as_raw_fd(), at as i64, what) };
        u64::try_from(at).ok()
    };
    let mut bytes = vec![0; 1 << 20];
    // write(2) is not for them.
    let mapped = match pages::of_file(to) {
        1.. if size > 0 => Some(Mapped::map(to, size, true)?),
        _ => None,
    };
    let mut at = 0;
    // No data behind: a hole to the end.
    while let Some(data) = whence(at, libc::SEEK_DATA).filter(|_| at < size) {
        let end = whence(data, libc::SEEK_HOLE).unwrap_or(size);
        at = data;
        while at < end {
            let count = (end - at).min(bytes.len() as u64) as usize;
            from.read_exact_at(&mut bytes[..count], at)?;
            match &mapped {
                None => to.write_all_at(&bytes[..count], at)?,
                Some(_) if bytes[..count].iter().all(|byte| *byte == 0) => {}
                Some(mapped) => mapped.write(at, &bytes[..count]).map_err(|error| {
                    let advice = pages::advice(pages::of_file(to));
                    io::Error::other(format!("{}: {advice}", chain(&error)))
                })?,
            }
            at += count as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_copy_has_the_holes_of_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sparse");
        let mut file = File::create_new(&path).unwrap();
        file.write_all(b"beginning").unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"end", (64 << 20) - 3).unwrap();
        let kept = keep(&path, &file).unwrap();
        let kept = File::open(kept).unwrap();
        assert!(is_same(&File::open(&path).unwrap(), &kept).unwrap());
        let blocks = std::os::unix::fs::MetadataExt::blocks(&kept.metadata().unwrap());
        assert!(blocks * 512 < 1 << 20, "{blocks} blocks");
        let mut read = String::new();
        let mut start = kept.take(9);
        start.read_to_string(&mut read).unwrap();
        assert_eq!(read, "beginning");
    }
}
