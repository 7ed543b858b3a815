//! The image of a tree that comes through a pipeline: a process beside the heir takes it, so that the heir has one thread.
//!
//! ```text
//! source ==== chunks ====> process: pool, which the heir has as well
//!                             | -- Part, as many as there are -----> |
//!                             | <- Took, when it has been read ----- | heir
//!                             | -- Drained ------------------------> |
//!                             | <- Checked ------------------------- |
//!                             | -- Whole --------------------------> |
//! ```
//! Or the process writes it to a file, and says when that is whole.
//!
//! What must stay true: the heir reads nothing that has not come, and the image's end only when all of it came as it was
//! written. No more of it is anywhere than the pools of both nodes have room for. The process ends with the heir.

use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter, Read, Write},
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process,
    sync::mpsc::{Sender, channel},
    thread,
};

use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid,
};
use serde::{Deserialize, Serialize};
use snaprig_peers::{Address, Token, packets};
use snaprig_ppmr::{
    Digest,
    driver::{
        common::{CommonPool, Part},
        target::{GivesBack, Reader, Takes, TargetNode},
        transport::Transport,
    },
};
use snaprig_resources::error::{Error, Result, chain};
use snaprig_tracee::faults::{begin_round, reached};

use super::{
    faults,
    spoken::{WHY_MAX, hear, say},
    way::{Pipelined, ToTarget},
};

/// What is read at a time.
const READ_BYTES: usize = 1 << 20;

/// What the process says.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// Where it waits for the source.
    Listens(String),
    /// Some of the image is there.
    Part(Part),
    /// All of it has been given back; is it an image?
    Drained,
    /// It is.
    Whole,
    /// Nothing comes any more.
    Failed(String),
}

/// What the heir says.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// So many bytes more have been read.
    Took(u32),
    /// All of it has been read, and is as it was written: an image checks itself.
    Checked,
}

/// An image that comes: read, it is there as far as it has come.
pub struct Incoming {
    socket: OwnedFd,
    pool: CommonPool,
    /// What is left of the part at hand, and how much of it has been read.
    part: Option<Part>,
    read_bytes: u32,
    is_whole: bool,
    child: Pid,
    /// A byte comes of it when chunks do: whether they come by RDMA.
    by_rdma: PipeReader,
}

fn failed(source: impl Into<io::Error>) -> Error {
    Error::io(super::IMAGE, source.into())
}

impl Incoming {
    /// Has a process wait for an image, to be read from its pool; how it is reached. The calling process has one thread.
    pub fn lent(pipelined: &Pipelined) -> Result<(Self, ToTarget)> {
        Self::start(pipelined, lends)
    }

    /// The same, to be [whole](Self::whole) in a file.
    pub fn written(pipelined: &Pipelined, file: &File) -> Result<(Self, ToTarget)> {
        Self::start(pipelined, |reader, _| writes(reader, file))
    }

    fn start(
        pipelined: &Pipelined,
        takes: impl FnOnce(Reader, &OwnedFd) -> io::Result<()>,
    ) -> Result<(Self, ToTarget)> {
        let pool = CommonPool::new(&pipelined.buffers, 1).map_err(failed)?;
        let secret = snaprig_peers::token::random().map_err(failed)?;
        let (socket, its_own) = packets::pair().map_err(failed)?;
        let (by_rdma, says_by_rdma) = io::pipe().map_err(failed)?;
        let heir = rustix::process::getpid();
        // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
        let child = match unsafe { libc::fork() } {
            0 => {
                drop(socket);
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                if rustix::process::getppid() == Some(heir) {
                    let target = (pipelined, Token::new(secret), pool);
                    beside(target, &its_own, says_by_rdma, takes);
                }
                process::exit(0);
            }
            child => super::child_of(child).map_err(failed)?,
        };
        drop(its_own);
        let incoming = Self {
            socket,
            pool,
            part: None,
            read_bytes: 0,
            is_whole: false,
            child,
            by_rdma,
        };
        let target = match incoming.hear().map_err(failed)? {
            Said::Listens(at) => at.parse().map_err(|_| failed(io::Error::other(at)))?,
            _ => return Err(failed(io::ErrorKind::InvalidData)),
        };
        let to = ToTarget {
            target,
            secret,
            pool_bytes: pipelined.buffers.pool_bytes,
            chunk_bytes: pipelined.buffers.chunk_bytes,
            mode: pipelined.mode,
            copy: pipelined.copy,
            compress: pipelined.compress,
        };
        Ok((incoming, to))
    }

    /// Waits until the source has come: how chunks go, in whatever process that is asked; none: it does not come.
    pub fn transport(&self) -> Option<Transport> {
        let mut by_rdma = [0];
        (&self.by_rdma).read_exact(&mut by_rdma).ok()?;
        Some(match by_rdma {
            [0] => Transport::Tcp,
            _ => Transport::Rdma,
        })
    }

    /// Waits until the file that it is written to has all of it.
    pub fn whole(self) -> Result<()> {
        match self.hear().map_err(failed)? {
            Said::Whole => Ok(()),
            _ => Err(failed(io::ErrorKind::InvalidData)),
        }
    }

    /// What can be read when more of it has come; none: all has.
    pub fn comes(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_whole).then(|| self.socket.as_fd())
    }

    /// What is said next, if it goes on.
    fn hear(&self) -> io::Result<Said> {
        let (said, _) = hear(&self.socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        match said {
            Said::Failed(why) => Err(io::Error::other(why)),
            said => Ok(said),
        }
    }

    /// The next part; none: that was all.
    fn next_part(&mut self) -> io::Result<Option<Part>> {
        if self.is_whole {
            return Ok(None);
        }
        loop {
            match self.hear()? {
                Said::Part(part) => return Ok(Some(part)),
                Said::Drained => {
                    say(&self.socket, &Answer::Checked, &[])?;
                }
                Said::Whole => {
                    self.is_whole = true;
                    return Ok(None);
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

impl Read for Incoming {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        let Some(part) = self
            .part
            .take()
            .map_or_else(|| self.next_part(), |part| Ok(Some(part)))?
        else {
            return Ok(0);
        };
        let (count, left) = self.pool.copy(part, to)?;
        self.read_bytes += count as u32;
        self.part = left;
        if left.is_none() {
            let bytes = std::mem::take(&mut self.read_bytes);
            say(&self.socket, &Answer::Took(bytes), &[])?;
        }
        Ok(count)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // It has ended, or nobody wants what it does.
        let _ = kill_process(self.child, Signal::KILL);
        let _ = waitpid(Some(self.child), WaitOptions::empty());
    }
}

/// In a process of its own: waits for an image, and has it taken.
fn beside(
    (pipelined, token, pool): (&Pipelined, Token, CommonPool),
    heir: &OwnedFd,
    mut by_rdma: PipeWriter,
    takes: impl FnOnce(Reader, &OwnedFd) -> io::Result<()>,
) {
    begin_round();
    let run = || -> io::Result<()> {
        let any = Address::Tcp(SocketAddr::from((pipelined.host, 0)).to_string());
        let target = Takes {
            buffers: pipelined.buffers,
            streams_max: 1,
            transport: pipelined.transport,
            pool: Some(pool),
            ..Takes::default()
        };
        let target = TargetNode::listen(&any, &token, target)?;
        say(heir, &Said::Listens(target.address().to_string()), &[])?;
        let reader = target.next_reader();
        let reader = reader.ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(transport) = reader.transport() {
            // If nobody is there to be told, nobody asks.
            let _ = by_rdma.write(&[u8::from(transport == Transport::Rdma)]);
        }
        takes(reader, heir)
        // The source has been told by now: who hears the last word ends this process.
    };
    let last = match run() {
        Ok(()) => Said::Whole,
        Err(error) => Said::Failed(chain(&error).chars().take(WHY_MAX).collect()),
    };
    // If the heir is not there, nobody is told.
    let _ = say(heir, &last, &[]);
}

/// The heir reads it where it is.
fn lends(mut reader: Reader, heir: &OwnedFd) -> io::Result<()> {
    let (checks, checked) = channel();
    let (hears, gives_back) = (heir.try_clone()?, reader.gives_back());
    thread::spawn(move || answers(&hears, &gives_back, &checks));
    while let Some(part) = reader.next_part()? {
        say(heir, &Said::Part(part), &[])?;
        reached(&faults::COMING);
    }
    say(heir, &Said::Drained, &[])?;
    checked.recv().map_err(|_| io::ErrorKind::UnexpectedEof)?;
    reader.check(Digest::none().checksum())
}

/// What the heir says, until it says nothing more.
fn answers(heir: &OwnedFd, gives_back: &GivesBack, checks: &Sender<()>) {
    while let Ok(Some((answer, _))) = hear(heir) {
        match answer {
            Answer::Took(bytes) => gives_back.took(bytes),
            Answer::Checked => {
                // It is waited for, or nothing is.
                let _ = checks.send(());
            }
        }
    }
}

/// It is kept in a file.
fn writes(mut reader: Reader, mut file: &File) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    // Whoever reads the file checks it.
    reader.vouch(Digest::none());
    loop {
        match reader.read(&mut buffer)? {
            0 => return file.sync_all(),
            count => file.write_all(&buffer[..count])?,
        }
        reached(&faults::COMING);
    }
}
