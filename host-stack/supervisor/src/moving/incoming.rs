//! The image of a tree that comes through a pipeline: a process beside the heir takes it, so that the heir has one thread.
//!
//! ```text
//! source ==== chunks ====> process: pool --> memory, or a file --.
//!                             |                                  | the same file
//!                             '-- "at BYTES", ..., "whole" ----> heir: reads as far as it has come
//! ```
//! What must stay true: the heir reads nothing that has not come, and the image's end only when all of it came as it was
//! written. The process ends with the heir.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write},
    net::SocketAddr,
    process,
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid},
};
use snaprig_peers::{Address, Token};
use snaprig_ppmr::driver::target::{Takes, TargetNode};
use snaprig_resources::error::{Error, Result};
use snaprig_tracee::faults::{begin_round, reached};

use super::{
    faults,
    way::{Pipelined, ToTarget},
};

/// What is read at a time.
const READ_BYTES: usize = 1 << 20;
const LISTENS: &str = "listens ";
const AT: &str = "at ";
const WHOLE: &str = "whole";

/// An image that comes.
pub struct Incoming {
    image: File,
    said: BufReader<PipeReader>,
    /// Bytes that have come, as far as is known.
    here: u64,
    is_whole: bool,
    child: Pid,
}

fn failed(source: impl Into<io::Error>) -> Error {
    Error::io(super::IMAGE, source.into())
}

impl Incoming {
    /// Has a process wait for an image, in memory or in this file; how it is reached. The calling process has one thread.
    pub fn start(pipelined: &Pipelined, file: Option<File>) -> Result<(Self, ToTarget)> {
        let image = match file {
            Some(file) => file,
            None => memfd_create("snaprig-coming", MemfdFlags::CLOEXEC)
                .map_err(failed)?
                .into(),
        };
        let secret = snaprig_peers::token::random().map_err(failed)?;
        let (said, says) = io::pipe().map_err(failed)?;
        let heir = rustix::process::getpid();
        // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
        let child = match unsafe { libc::fork() } {
            0 => {
                drop(said);
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                if rustix::process::getppid() == Some(heir) {
                    takes(pipelined, &Token::new(secret), &image, says);
                }
                process::exit(0);
            }
            child => Pid::from_raw(child).ok_or_else(|| failed(io::Error::last_os_error()))?,
        };
        drop(says);
        let mut incoming = Self {
            image,
            said: BufReader::new(said),
            here: 0,
            is_whole: false,
            child,
        };
        let line = incoming.line()?;
        let target = line.strip_prefix(LISTENS).and_then(|at| at.parse().ok());
        let to = ToTarget {
            target: target.ok_or_else(|| failed(io::Error::other(line)))?,
            secret,
            pool_bytes: pipelined.buffers.pool_bytes,
            chunk_bytes: pipelined.buffers.chunk_bytes,
            mode: pipelined.mode,
            pre_copy: pipelined.pre_copy,
        };
        Ok((incoming, to))
    }

    /// Where it is, when all of it has come.
    pub fn whole(mut self) -> Result<File> {
        while !self.is_whole {
            self.hear().map_err(failed)?;
        }
        self.image()
    }

    /// What it is in, as it comes.
    pub fn image(&self) -> Result<File> {
        self.image.try_clone().map_err(failed)
    }

    /// Waits until it is longer than this, or all of it is there; how long it is.
    pub fn wait_beyond(&mut self, bytes: u64) -> io::Result<u64> {
        while self.here <= bytes && !self.is_whole {
            self.hear()?;
        }
        Ok(self.here)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line).map_err(failed)?;
        Ok(line.trim_end().to_owned())
    }

    /// Waits until more of it is there, or all.
    fn hear(&mut self) -> io::Result<()> {
        let line = self.line().map_err(io::Error::other)?;
        match line.strip_prefix(AT).and_then(|at| at.parse().ok()) {
            Some(here) => self.here = here,
            None if line == WHOLE => self.is_whole = true,
            None if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => return Err(io::Error::other(line)),
        }
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // It has ended, or nobody wants what it does.
        let _ = kill_process(self.child, Signal::KILL);
        let _ = waitpid(Some(self.child), WaitOptions::empty());
    }
}

/// In a process of its own: takes an image.
fn takes(pipelined: &Pipelined, token: &Token, image: &File, mut says: PipeWriter) {
    begin_round();
    let mut take = || -> io::Result<()> {
        let takes = Takes {
            buffers: pipelined.buffers,
            streams_max: 1,
            transport: pipelined.transport,
            ..Takes::default()
        };
        let any = Address::Tcp(SocketAddr::from((pipelined.host, 0)).to_string());
        let target = TargetNode::listen(&any, token, takes)?;
        writeln!(says, "{LISTENS}{}", target.address())?;
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let mut reader = target.next_reader().ok_or_else(ended)?;
        let (mut buffer, mut to, mut here) = (vec![0; READ_BYTES], image, 0);
        loop {
            let count = reader.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            to.write_all(&buffer[..count])?;
            here += count as u64;
            reached(&faults::COMING);
            writeln!(says, "{AT}{here}")?;
        }
        // Of memory there is nothing to wait for.
        image.sync_all()?;
        // The source has been told by then: who hears the last word ends this process.
        drop((reader, target));
        writeln!(says, "{WHOLE}")
    };
    if let Err(error) = take() {
        // If the heir is not there, nobody is told.
        let _ = writeln!(says, "{error}");
    }
}
