//! The node that processes leave, or the one that they come to: a process that does what it is told, line by line.
//!
//! ```text
//!   target:        Listening { address }                 Done
//!   them:    Take                         Fill
//!   source:                                     Seconds
//! ```
//!
//! Whoever measures knows what is written before it is: of a stream that readers are to let go by, its checksum.

use std::{
    fs::File,
    io::{self, BufRead, Read, Write, stdin, stdout},
    process::ExitCode,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_peers::{Address, Token};
use snaprig_ppmr::{
    Buffers, Digest, Mode, Times,
    driver::{
        source::{Moves, SourceNode, Writer},
        target::{Reader, Takes, TargetNode},
        transport::{Port, Transport},
    },
};
use snaprig_ppmr_fuse::{Options, Outcome, mount_source, mount_target};

use super::point::{Front, Stage, Way};
use crate::AnyError;

/// What is written and read at once: as much as a mount takes.
const AT_ONCE: usize = 1 << 20;
/// How long a reader waits for its file.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub stage: Stage,
    pub pool_bytes: u64,
    pub chunk_bytes: u32,
    pub writers: u32,
    /// The image of each of them.
    pub image_bytes: u64,
    pub token: [u8; 32],
    /// The node's own HCA.
    pub device: String,
}

/// What a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Be the target.
    Take(Task),
    /// Be the source of the target at this address; none: there is no target.
    Fill(Task, Option<Address>),
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A source may come.
    Listening(Address),
    /// All images are where they were to go, so long after their writers began.
    Seconds(f64),
    /// All have been taken.
    Done,
    /// Why not.
    Failed(String),
}

/// Runs the process.
pub fn run() -> Result<ExitCode, AnyError> {
    for line in stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)? {
            Order::Take(task) => task.take().map(|()| Answer::Done),
            Order::Fill(task, target) => task.fill(target.as_ref()).map(Answer::Seconds),
        };
        say(&answer.unwrap_or_else(|error| Answer::Failed(error.to_string())))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn say(answer: &Answer) -> Result<(), AnyError> {
    let mut out = stdout().lock();
    writeln!(out, "{}", serde_json::to_string(answer)?)?;
    Ok(out.flush()?)
}

impl Task {
    fn buffers(&self) -> Buffers {
        Buffers {
            pool_bytes: self.pool_bytes,
            chunk_bytes: self.chunk_bytes,
        }
    }

    fn transport(&self) -> Transport {
        match self.stage.way() {
            Some(Way::Pull | Way::Push) => Transport::Rdma,
            Some(Way::Tcp) | None => Transport::Tcp,
        }
    }

    fn port(&self) -> Port {
        Port {
            device: Some(self.device.clone()),
            ..Port::default()
        }
    }

    fn ranks(&self) -> Vec<u32> {
        (0..self.writers).collect()
    }

    /// Seconds until all images are where they were to go.
    fn fill(&self, target: Option<&Address>) -> Result<f64, AnyError> {
        let moves = Moves {
            buffers: self.buffers(),
            mode: match self.stage.way() {
                Some(Way::Push) => Mode::Push,
                _ => Mode::Pull,
            },
            times: Times::default(),
            ranks: self.ranks(),
            transport: self.transport(),
            lent_bytes: 0,
            port: self.port(),
        };
        let node = match target {
            Some(target) => SourceNode::connect(target, &Token::new(self.token), moves)?,
            None => SourceNode::alone(moves)?,
        };
        match self.stage.front() {
            Front::Calls => self.fill_by_calls(&node),
            Front::Fuse => self.fill_by_files(node),
        }
    }

    fn fill_by_calls(&self, node: &SourceNode) -> Result<f64, AnyError> {
        self.timed(|rank, image| {
            let writer = node.writer(rank);
            match self.stage {
                Stage::Network(_) => self.give(writer)?,
                _ => {
                    let mut writer = writer;
                    self.write(&mut writer, image)?;
                    writer.end();
                }
            }
            Ok(node.wait(rank).map_err(io::Error::other)?)
        })
    }

    fn fill_by_files(&self, node: SourceNode) -> Result<f64, AnyError> {
        let directory = tempfile::tempdir()?;
        let mount = mount_source(node, self.ranks(), directory.path())?;
        let begun = Instant::now();
        self.timed(|rank, image| {
            let mut file = File::create(directory.path().join(rank.to_string()))?;
            Ok(self.write(&mut file, image)?)
        })?;
        succeeded(|| mount.next())?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// How long it takes all writers together, which begin at once.
    fn timed(
        &self,
        write: impl Fn(u32, &[u8]) -> Result<(), AnyError> + Sync,
    ) -> Result<f64, AnyError> {
        let barrier = Barrier::new(self.writers as usize + 1);
        thread::scope(|scope| {
            let spawn = |rank| {
                let (barrier, write) = (&barrier, &write);
                scope.spawn(move || {
                    let image = vec![BYTE; AT_ONCE];
                    barrier.wait();
                    write(rank, &image)
                })
            };
            let writers: Vec<_> = (0..self.writers).map(spawn).collect();
            barrier.wait();
            let begun = Instant::now();
            writers.into_iter().try_for_each(joined)?;
            Ok(begun.elapsed().as_secs_f64())
        })
    }

    fn write(&self, to: &mut impl Write, image: &[u8]) -> io::Result<()> {
        self.parts()
            .try_for_each(|bytes| to.write_all(&image[..bytes]))
    }

    /// Parts of an image that are written at once.
    fn parts(&self) -> impl Iterator<Item = usize> {
        let (whole, rest) = (
            self.image_bytes / AT_ONCE as u64,
            self.image_bytes % AT_ONCE as u64,
        );
        let rest = (rest > 0).then_some(rest as usize);
        (0..whole).map(|_| AT_ONCE).chain(rest)
    }

    /// Gives chunks as they are.
    fn give(&self, mut writer: Writer) -> io::Result<()> {
        let mut left = self.image_bytes;
        while left > 0 {
            let most = u32::try_from(left).unwrap_or(u32::MAX);
            left -= u64::from(writer.give_unwritten(most)?);
        }
        writer.end();
        Ok(())
    }

    /// What writers write has this checksum.
    fn digest(&self) -> Digest {
        let (mut digest, image) = (Digest::default(), vec![BYTE; AT_ONCE]);
        if let Stage::Pipeline(_) = self.stage {
            self.parts()
                .for_each(|bytes| digest.update(&image[..bytes]));
        }
        digest
    }

    /// Takes all images.
    fn take(&self) -> Result<(), AnyError> {
        let digest = self.digest();
        let takes = Takes {
            buffers: self.buffers(),
            streams_max: self.writers,
            times: Times::default(),
            transport: self.transport(),
            port: self.port(),
            pool: None,
        };
        let any = Address::Tcp("127.0.0.1:0".into());
        let node = TargetNode::listen(&any, &Token::new(self.token), takes)?;
        let listening = Answer::Listening(node.address());
        match self.stage.front() {
            Front::Calls => {
                say(&listening)?;
                self.take_by_calls(&node, &digest)
            }
            Front::Fuse => self.take_by_files(node, &listening),
        }
    }

    fn take_by_calls(&self, node: &TargetNode, digest: &Digest) -> Result<(), AnyError> {
        thread::scope(|scope| {
            let readers = (0..self.writers).map_while(|_| {
                let mut reader = node.next_reader()?;
                Some(scope.spawn(move || {
                    let bytes = match self.stage {
                        Stage::Delivery(..) => read(&mut reader)?,
                        _ => {
                            reader.vouch(digest.clone());
                            let_go(&mut reader)?
                        }
                    };
                    self.is_all(bytes)
                }))
            });
            let readers: Vec<_> = readers.collect();
            readers.into_iter().try_for_each(joined)
        })
    }

    fn take_by_files(&self, node: TargetNode, listening: &Answer) -> Result<(), AnyError> {
        let directory = tempfile::tempdir()?;
        let options = Options {
            wait: PATIENCE,
            files: Some(self.writers as usize),
        };
        let mount = mount_target(node, directory.path(), options)?;
        say(listening)?;
        thread::scope(|scope| {
            let readers = self.ranks().into_iter().map(|rank| {
                let file = directory.path().join(rank.to_string());
                scope.spawn(move || self.is_all(read(&mut File::open(file)?)?))
            });
            let readers: Vec<_> = readers.collect();
            readers.into_iter().try_for_each(joined)
        })?;
        succeeded(|| mount.next())
    }

    fn is_all(&self, bytes: u64) -> Result<(), AnyError> {
        match bytes == self.image_bytes {
            true => Ok(()),
            false => Err(format!("{bytes} bytes came of {}", self.image_bytes).into()),
        }
    }
}

/// What images consist of.
const BYTE: u8 = 7;

fn read(from: &mut impl Read) -> io::Result<u64> {
    let (mut buffer, mut all) = (vec![0; AT_ONCE], 0);
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(all),
            count => all += count as u64,
        }
    }
}

fn let_go(reader: &mut Reader) -> io::Result<u64> {
    let mut all = 0;
    loop {
        match reader.take_unread()? {
            0 => return Ok(all),
            count => all += u64::from(count),
        }
    }
}

fn joined(thread: thread::ScopedJoinHandle<'_, Result<(), AnyError>>) -> Result<(), AnyError> {
    thread.join().map_err(|_| "a thread panicked")?
}

/// That all files of a mount are whole.
fn succeeded(next: impl FnMut() -> Option<Outcome>) -> Result<(), AnyError> {
    let failed = std::iter::from_fn(next).find_map(|outcome| outcome.failure);
    failed.map_or(Ok(()), |failure| Err(failure.into()))
}
