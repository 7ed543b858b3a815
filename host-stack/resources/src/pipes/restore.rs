//! Pipes and FIFOs, with what was in them.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    pipe::{PipeFlags, pipe_with},
};

use crate::{
    calls::{check, readable},
    error::{Error, Result},
    opened::{Opened, damaged, duplicate, missing, open_again, path_of, reopen, set_flags},
    state::{Fifo, Kind, OpenFile, Part, Pipe, Tree},
};

/// Opens all ends of all pipes.
pub fn open(tree: &Tree, opened: &mut Opened) -> Result<()> {
    for (number, pipe) in tree.pipes.iter().enumerate() {
        let is_end = |(_, file): &(usize, &OpenFile)| matches!(file.kind, Kind::Pipe(pipe) if pipe as usize == number);
        let ends: Vec<_> = tree.files.iter().enumerate().filter(is_end).collect();
        let flags: Vec<i32> = ends.iter().map(|(_, file)| file.flags).collect();
        let made = match &pipe.fifo {
            None => plain(pipe, &flags)?,
            Some(name) => fifo(pipe, name, &flags)?,
        };
        for ((file, _), (fd, flags)) in ends.iter().zip(made.into_iter().zip(&flags)) {
            set_flags(&fd, *flags)?;
            opened.files[*file] = opened.keep(fd)?;
        }
    }
    let is_lost = |(number, file): (usize, &OpenFile)| {
        matches!(file.kind, Kind::Pipe(_)) && opened.files[number] < 0
    };
    match tree.files.iter().enumerate().any(is_lost) {
        true => Err(damaged("an end of no pipe")),
        false => Ok(()),
    }
}

/// Flags to open an end with: it does not wait for the other one, and is told later that it is of packets.
fn opening(flags: i32) -> i32 {
    flags & !libc::O_DIRECT | libc::O_NONBLOCK
}

fn plain(pipe: &Pipe, flags: &[i32]) -> Result<Vec<OwnedFd>> {
    let failed = |source| Error::io("a pipe", source);
    let made = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
    let (reader, writer) = made.map_err(|errno| failed(errno.into()))?;
    fill(&writer, pipe).map_err(failed)?;
    let mut is_given = [false; 2];
    let ends = flags.iter().map(|flags| {
        let (side, end) = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => (0, &reader),
            libc::O_WRONLY => (1, &writer),
            _ => return open_again(reader.as_raw_fd(), opening(*flags)),
        };
        // Each open file has flags of its own; the first of each side is that of pipe(2).
        match std::mem::replace(&mut is_given[side], true) {
            false => duplicate(end.as_raw_fd()),
            true => open_again(end.as_raw_fd(), opening(*flags)),
        }
    });
    ends.collect()
}

/// Somebody has both sides of a FIFO while its ends are opened, unless readers are to be there before any writer.
fn fifo(pipe: &Pipe, fifo: &Fifo, flags: &[i32]) -> Result<Vec<OwnedFd>> {
    let (path, is_temporary) = name(fifo)?;
    let failed = |source| Error::io(path.display().to_string(), source);
    let writes = |flags: &i32| flags & libc::O_ACCMODE != libc::O_RDONLY;
    let has_been_written = pipe.hung_up || !pipe.contents.is_empty() || flags.iter().any(writes);
    let keeper = match has_been_written {
        true => Some(reopen(&path, libc::O_RDWR | libc::O_NONBLOCK)?),
        false => None,
    };
    if let Some(keeper) = &keeper {
        if readable(keeper).map_err(failed)? > 0 {
            return Err(Error::Missing {
                what: format!(
                    "somebody else has written to the FIFO {} meanwhile",
                    path.display()
                ),
            });
        }
        fill(keeper, pipe).map_err(failed)?;
    }
    let ends = flags.iter().map(|flags| reopen(&path, opening(*flags)));
    let ends: Result<Vec<OwnedFd>> = ends.collect();
    if let (None, Ok([first, ..])) = (&keeper, ends.as_deref()) {
        set_size(first, pipe).map_err(failed)?;
    }
    if is_temporary {
        fs::remove_file(&path).map_err(failed)?;
    }
    ends
}

/// Where a FIFO is, which is made if it is not there; whether it is to lose its name.
fn name(fifo: &Fifo) -> Result<(PathBuf, bool)> {
    let path = path_of(&fifo.path);
    match (fifo.unlinked, fs::metadata(path)) {
        (true, _) => {
            let directory = path.parent().filter(|parent| parent.is_dir());
            let directory = directory.map_or_else(std::env::temp_dir, Path::to_owned);
            let made = tempfile::Builder::new()
                .prefix(".snaprig-")
                .make_in(&directory, |path| make(path, fifo.mode));
            let made = made.and_then(|made| made.into_temp_path().keep().map_err(Into::into));
            let made = made.map_err(|source| Error::io(directory.display().to_string(), source))?;
            Ok((made, true))
        }
        (false, Ok(found)) if found.file_type().is_fifo() => Ok((path.to_owned(), false)),
        (false, Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            make(path, fifo.mode).map_err(|error| missing(path, &error))?;
            Ok((path.to_owned(), false))
        }
        (false, Err(error)) => Err(missing(path, &error)),
        (false, Ok(_)) => Err(Error::Missing {
            what: format!("{} is no FIFO any more", path.display()),
        }),
    }
}

fn make(path: &Path, mode: u32) -> io::Result<()> {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Gives a pipe its size and its contents.
fn fill(writer: &OwnedFd, pipe: &Pipe) -> io::Result<()> {
    set_size(writer, pipe)?;
    for Part { bytes, is_packet } in &pipe.contents {
        let packets = if *is_packet { libc::O_DIRECT } else { 0 };
        // SAFETY: F_SETFL takes a number, so fcntl(2) reads and writes no memory of this process.
        check(unsafe {
            let flags = libc::O_NONBLOCK | packets;
            libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags)
        })?;
        File::from(writer.try_clone()?).write_all(bytes)?;
    }
    Ok(())
}

fn set_size(end: &OwnedFd, pipe: &Pipe) -> io::Result<()> {
    let capacity = i32::try_from(pipe.capacity).unwrap_or(i32::MAX);
    // SAFETY: F_SETPIPE_SZ takes a number, so fcntl(2) reads and writes no memory of this process.
    check(unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETPIPE_SZ, capacity) }).map(drop)
}
