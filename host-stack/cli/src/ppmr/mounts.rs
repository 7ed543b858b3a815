//! A pipeline of images from node to node, as a file system at both of its ends: for checkpointers that know of files alone.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use snaprig_peers::{Address, Token};
use snaprig_ppmr::{
    Buffers, Times,
    driver::{
        source::{Moves, SourceNode},
        target::{Takes, TargetNode},
    },
};
use snaprig_ppmr_fuse::{Outcome, mount_source, mount_target};

use crate::{
    AnyError,
    signals::{ENDS, block},
    size,
};

/// What both sides are told.
#[derive(Args)]
struct Options {
    /// An empty directory, to mount on
    #[arg(long, value_name = "DIR")]
    mount: PathBuf,
    /// A file of 32 random bytes, the same on both sides, that only its owner can read
    #[arg(long, value_name = "FILE")]
    token: PathBuf,
    /// Memory for what is on its way
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "8MiB")]
    pool: u64,
    /// A chunk of it
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "128KiB")]
    chunk: u64,
    /// How many seconds everything may stand still, before the first file as well, until what is there fails
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    patience: u32,
    /// Print JSON, a line for each file
    #[arg(long)]
    json: bool,
}

/// What `ppmr source` is told.
#[derive(Args)]
pub struct Source {
    /// Where the target listens: HOST:PORT, or the path of a Unix socket, with a / in it
    #[arg(long, value_name = "ADDRESS")]
    to: Address,
    /// How many files are to go there: one a process
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    processes: u32,
    /// Which side moves chunks
    #[arg(long, value_enum, default_value = "pull")]
    mode: Mode,
    #[command(flatten)]
    options: Options,
}

/// What `ppmr target` is told.
#[derive(Args)]
pub struct Target {
    /// Where to listen: HOST:PORT, or the path of a Unix socket, with a / in it; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS")]
    listen: Address,
    /// How many files are to come [default: any number, at most 64 at one time]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    streams: Option<u32>,
    /// How many seconds whoever opens a file waits for it to come
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    wait: u32,
    #[command(flatten)]
    options: Options,
}

/// Which side moves chunks.
#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// The target reads them
    Pull,
    /// The source writes them
    Push,
}

impl From<Mode> for snaprig_ppmr::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Pull => Self::Pull,
            Mode::Push => Self::Push,
        }
    }
}

/// Streams of a target that is not told how many there will be.
const STREAMS: u32 = 64;

impl Options {
    fn buffers(&self) -> Result<Buffers, AnyError> {
        let too_large = |_| format!("--chunk {}: too large", size::show(self.chunk));
        Ok(Buffers {
            pool_bytes: self.pool,
            chunk_bytes: self.chunk.try_into().map_err(too_large)?,
        })
    }

    fn times(&self) -> Times {
        Times {
            stall_ns: u64::from(self.patience) * 1_000_000_000,
            ..Times::default()
        }
    }

    /// Prints what becomes of files. The exit status.
    fn follow(
        &self,
        wanted: Option<u32>,
        mut next: impl FnMut() -> Option<Outcome>,
    ) -> Result<ExitCode, AnyError> {
        let (mut whole, mut failed) = (0, 0);
        while let Some(outcome) = next() {
            match outcome.failure {
                None => whole += 1,
                Some(_) => failed += 1,
            }
            self.show(&outcome)?;
        }
        let is_well = failed == 0 && wanted.is_none_or(|wanted| whole == wanted);
        Ok(ExitCode::from(u8::from(!is_well)))
    }

    fn show(&self, outcome: &Outcome) -> Result<(), AnyError> {
        let line = match self.json {
            true => serde_json::to_string(&File {
                name: outcome.name.to_string_lossy().into(),
                bytes: outcome.bytes,
                failure: outcome.failure.as_deref(),
            })?,
            false => {
                let bytes = size::show(outcome.bytes);
                let result = outcome.failure.as_deref().unwrap_or("whole");
                format!("{}  {bytes}  {result}", outcome.name.display())
            }
        };
        Ok(print(&line)?)
    }

    /// The line that says what this process does.
    fn begin(&self, text: &str, address: &Address) -> Result<(), AnyError> {
        let mount = self.mount.display();
        match self.json {
            true => print(&serde_json::to_string(&Begun {
                mount: mount.to_string(),
                address: address.to_string(),
            })?)?,
            false => print(&format!("{mount}: {text} {address}"))?,
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Begun {
    mount: String,
    address: String,
}

#[derive(Serialize)]
struct File<'a> {
    name: String,
    bytes: u64,
    /// Why it is not whole.
    failure: Option<&'a str>,
}

fn print(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// A source, until all of its files are at the target, or have failed.
pub fn source(source: &Source) -> Result<ExitCode, AnyError> {
    let options = &source.options;
    let signals = block(&ENDS)?;
    let ranks: Vec<u32> = (0..source.processes).collect();
    let moves = Moves {
        buffers: options.buffers()?,
        mode: source.mode.into(),
        times: options.times(),
        ranks: ranks.clone(),
        ..Moves::default()
    };
    let token = Token::read(&options.token)?;
    let node = SourceNode::connect(&source.to, &token, moves)
        .map_err(|error| format!("{}: {error}", source.to))?;
    let mount = Arc::new(mount_source(node, ranks, &options.mount)?);
    let stops = Arc::downgrade(&mount);
    thread::spawn(move || {
        signals.wait();
        stops.upgrade().inspect(|mount| mount.stop());
    });
    options.begin("its files go to", &source.to)?;
    options.follow(Some(source.processes), || mount.next())
}

/// A target, until all files that are to come were read, or have failed.
pub fn target(target: &Target) -> Result<ExitCode, AnyError> {
    let options = &target.options;
    let signals = block(&ENDS)?;
    let takes = Takes {
        buffers: options.buffers()?,
        streams_max: target.streams.unwrap_or(STREAMS),
        times: options.times(),
        ..Takes::default()
    };
    let token = Token::read(&options.token)?;
    let node = TargetNode::listen(&target.listen, &token, takes)
        .map_err(|error| format!("{}: {error}", target.listen))?;
    let address = node.address();
    let how = snaprig_ppmr_fuse::Options {
        wait: Duration::from_secs(target.wait.into()),
        files: target.streams.map(|streams| streams as usize),
    };
    let mount = Arc::new(mount_target(node, &options.mount, how)?);
    let stops = Arc::downgrade(&mount);
    thread::spawn(move || {
        signals.wait();
        stops.upgrade().inspect(|mount| mount.stop());
    });
    options.begin("files come to", &address)?;
    options.follow(target.streams, || mount.next())
}
