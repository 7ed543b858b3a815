//! The pipes and FIFOs of a tree, and what is in them: it is copied by tee(2), and stays.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
        },
    },
    path::PathBuf,
};

use libc::pid_t;
use rustix::pipe::{PipeFlags, pipe_with};
use snaprig_tracee::descriptors::passed_on;

use crate::{
    calls::{check, events, readable},
    descriptor::FoundDescriptor,
    error::{Error, Result},
    state::{Fifo, Part, Pipe},
};

/// A pipe as it is met.
#[derive(Debug)]
struct FoundPipe {
    id: (u64, u64),
    pid: pid_t,
    fd: i32,
    path: PathBuf,
    fifo: Option<Fifo>,
    /// Those that can be read.
    readers: Vec<OwnedFd>,
    /// Those that can only be written to.
    writers: Vec<OwnedFd>,
    /// Some can be written to.
    has_writers: bool,
}

/// All pipes of a tree.
#[derive(Debug, Default)]
pub struct Pipes(Vec<FoundPipe>);

impl Pipes {
    /// An end of a pipe; its number. `copy` is of it.
    pub fn meet(&mut self, seen: &FoundDescriptor, copy: OwnedFd) -> u32 {
        let id = (seen.metadata.dev(), seen.metadata.ino());
        let number = self.0.iter().position(|met| met.id == id);
        let number = number.unwrap_or_else(|| {
            self.0.push(FoundPipe {
                id,
                pid: seen.pid,
                fd: seen.fd,
                path: seen.path(),
                fifo: fifo(seen),
                readers: Vec::new(),
                writers: Vec::new(),
                has_writers: false,
            });
            self.0.len() - 1
        });
        let (met, mode) = (&mut self.0[number], seen.info.flags & libc::O_ACCMODE);
        met.has_writers |= mode != libc::O_RDONLY;
        match mode {
            libc::O_WRONLY => met.writers.push(copy),
            _ => met.readers.push(copy),
        }
        number as u32
    }

    /// When all of their ends are known: what is in them. Who has its other end outside of the tree is refused.
    pub fn describe(&self) -> Result<Vec<Pipe>> {
        self.0.iter().map(FoundPipe::describe).collect()
    }
}

/// A FIFO's name; none: it is a pipe.
fn fifo(seen: &FoundDescriptor) -> Option<Fifo> {
    let name = seen.name.as_os_str().as_bytes();
    let path = seen.lost_name().unwrap_or(name);
    path.starts_with(b"/").then(|| Fifo {
        path: path.to_vec(),
        mode: seen.metadata.permissions().mode() & 0o7777,
        unlinked: seen.lost_name().is_some(),
    })
}

impl FoundPipe {
    fn describe(&self) -> Result<Pipe> {
        let failed = |source| Error::Process {
            pid: self.pid,
            what: format!("the pipe at descriptor {}", self.fd),
            source,
        };
        let end = self.readers.iter().chain(&self.writers).next();
        let end = end.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        // SAFETY: F_GETPIPE_SZ takes no argument, so fcntl(2) reads and writes no memory of this process.
        let capacity = check(unsafe { libc::fcntl(end.as_raw_fd(), libc::F_GETPIPE_SZ) });
        let capacity = capacity.map_err(failed)? as u32;
        let mut hung_up = self.hung_up().map_err(failed)?;
        let has_outside_end = self.has_outside_end(hung_up).map_err(failed)?;
        if has_outside_end && self.is_passed_on() {
            // `launch program > >(tee log)`: the shell's child is the supervisor's. Who restarts has a pipe of its own
            // there, or none.
            hung_up = true;
        } else if has_outside_end {
            let what = format!(
                "descriptor {} is a pipe whose other end a process outside has ({})",
                self.fd,
                fs::read_link(&self.path).unwrap_or_default().display()
            );
            return Err(Error::refused(self.pid, what));
        }
        let contents = match (self.readers.first(), readable(end).map_err(failed)?) {
            (_, 0) => Vec::new(),
            (Some(reader), _) => peek(reader, capacity).map_err(failed)?,
            // Only who opens it anew can read it.
            (None, _) => {
                let opened = File::options()
                    .read(true)
                    .custom_flags(libc::O_NONBLOCK)
                    .open(&self.path);
                peek(&opened.map_err(failed)?.into(), capacity).map_err(failed)?
            }
        };
        Ok(Pipe {
            fifo: self.fifo.clone(),
            capacity,
            contents,
            hung_up,
        })
    }

    /// Whether its other end is the supervisor's, who was launched with it.
    fn is_passed_on(&self) -> bool {
        let is_it = |fd: i32| {
            let metadata = fs::metadata(format!("/proc/self/fd/{fd}"));
            metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.id)
        };
        passed_on().into_iter().any(is_it)
    }

    /// Whether readers see that there are no writers any more.
    fn hung_up(&self) -> io::Result<bool> {
        for reader in &self.readers {
            if events(reader, 0, 0)? & libc::POLLHUP != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether its other end is somebody's, but nobody's of the tree.
    fn has_outside_end(&self, hung_up: bool) -> io::Result<bool> {
        if self.readers.is_empty() {
            // Who writes sees an error if nobody reads.
            let writer = self.writers.first();
            return writer.map_or(Ok(false), |writer| {
                Ok(events(writer, 0, 0)? & libc::POLLERR == 0)
            });
        }
        if self.has_writers || hung_up {
            return Ok(false);
        }
        // A FIFO that nobody has opened to write yet is at its end, and does not say so to poll(2).
        let reader = &self.readers[0];
        Ok(readable(reader)? > 0 || !is_at_end(reader)?)
    }
}

fn is_at_end(reader: &OwnedFd) -> io::Result<bool> {
    let (_ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    match tee(reader, &theirs, 1) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        copied => Ok(copied? == 0),
    }
}

fn tee(from: &OwnedFd, to: &OwnedFd, bytes: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_NONBLOCK;
    // SAFETY: tee(2) takes numbers alone and no address, so the kernel reads and writes no memory of this process.
    let copied = unsafe { libc::tee(from.as_raw_fd(), to.as_raw_fd(), bytes, flags) };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// A pipe with all that is in another; both its ends, which do not block.
fn copied(end: &OwnedFd, capacity: u32) -> io::Result<(File, OwnedFd)> {
    let bytes = readable(end)?;
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // SAFETY: F_SETPIPE_SZ takes a number, so fcntl(2) reads and writes no memory of this process.
    check(unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETPIPE_SZ, capacity) })?;
    match tee(end, &theirs, bytes as usize)? as u64 == bytes {
        true => Ok((ours.into(), theirs)),
        false => Err(io::Error::other("not all of it can be copied")),
    }
}

/// What is in a pipe. A read ends with a packet, but not with the bytes of a stream: those it joins with a byte that is
/// put behind them.
fn peek(end: &OwnedFd, capacity: u32) -> io::Result<Vec<Part>> {
    let (mut ours, theirs) = copied(end, capacity)?;
    let mut buffer = vec![0; capacity as usize + 1];
    let (mut parts, mut is_marked) = (Vec::new(), false);
    loop {
        // A full pipe has room for it when something has been read.
        is_marked = is_marked || rustix::io::write(&theirs, &[0]).is_ok();
        let count = ours.read(&mut buffer)?;
        let is_last = readable(&ours)? == 0;
        let bytes = &buffer[..count - usize::from(is_last && is_marked)];
        if !bytes.is_empty() {
            parts.push(Part {
                bytes: bytes.to_vec(),
                is_packet: !is_last,
            });
        }
        if is_last {
            break;
        }
    }
    match parts.iter().any(|part| part.is_packet) {
        true => check_packets(end, capacity, &parts).map(|()| parts),
        false => Ok(parts),
    }
}

/// The first byte that is read of a packet takes the rest away; of bytes of a stream before it, that are in the same
/// part, it does not.
fn check_packets(end: &OwnedFd, capacity: u32, parts: &[Part]) -> io::Result<()> {
    let (mut ours, _theirs) = copied(end, capacity)?;
    for part in parts.iter().filter(|part| part.is_packet) {
        let before = readable(&ours)?;
        ours.read_exact(&mut [0])?;
        if before - readable(ours.as_fd())? != part.bytes.len() as u64 {
            return Err(io::Error::other("a packet behind bytes of a stream"));
        }
    }
    Ok(())
}
