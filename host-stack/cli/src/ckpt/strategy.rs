//! How the image of a member that moves comes to where it goes on, as it is said on the command line.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, TcpListener},
    path::{self, Path, PathBuf},
};

use clap::{Args, ValueEnum};
use snaprig_fabric::Node;
use snaprig_ppmr::{Buffers, Mode, driver::transport};
use snaprig_supervisor::{Copying, Pipelined, Strategy};

use super::mounted::FileSystem;
use crate::{AnyError, size};

/// The ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// As memory that both nodes have, since they are one machine; most of it goes before the member stands still
    Memory,
    /// Through a pipeline of RDMA (or TCP, where there is none), and read while it is written
    Ppmr,
    /// Through the same pipeline, into a file of the node's that is read when all of it is there
    RdmaLocal,
    /// To a file of the node's, copied by scp to one of the other node's
    Local,
    /// To a file of a file system that both nodes have
    Shared,
}

/// How chunks of a pipeline go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    Auto,
    /// Over a socket
    Tcp,
    /// By RDMA, or not at all
    Rdma,
}

/// What is said of it.
#[derive(Args, Clone, Debug)]
pub struct How {
    /// With rdma-local and local: where nodes have files of their own [default: the job's directory]. With shared: a directory
    /// of a file system that both nodes have mounted
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// With ppmr: most of the memory goes before the member stands still
    #[arg(long)]
    pre_copy: bool,
    /// With ppmr: most of the memory goes after the member has, which runs meanwhile, and waits for what it touches. If the
    /// way between both nodes is lost before the last of it, so is the member
    #[arg(long, conflicts_with = "pre_copy")]
    post_copy: bool,
    /// With ppmr and rdma-local: the pool of buffers at each end
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = size::parse)]
    pool: u64,
    /// And the chunks that it is of
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = size::parse)]
    chunk: u64,
    /// How chunks go [auto: by RDMA, where both nodes have a device and this program is built with the feature `rdma`]
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    transport: Transport,
    /// The node that the member leaves writes chunks, instead of the other one reading them
    #[arg(long)]
    push: bool,
    /// With ppmr and rdma-local: whether pages are compressed [auto: as long as the way between both nodes takes longer for
    /// all of them than for what is left, as measured while they go]
    #[arg(long, value_enum, default_value_t = Compress::Auto)]
    compress: Compress,
}

/// Whether pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compress {
    Auto,
    Never,
}

impl How {
    /// What the supervisor is told, where the member is to go on.
    pub fn by(&self, name: Name, job: &Path) -> Result<Strategy, AnyError> {
        let files = || match &self.files {
            Some(files) => Ok(absolute(files)),
            None if name == Name::Shared => {
                Err("--strategy shared needs --files: a directory that both nodes have")
            }
            None => Ok(absolute(job)),
        };
        Ok(match name {
            Name::Memory => Strategy::Descriptor,
            Name::Ppmr => Strategy::Pipeline(self.pipelined()?),
            Name::RdmaLocal => Strategy::RdmaLocal(self.pipelined()?, files()?),
            Name::Local => Strategy::Local(host(), files()?),
            Name::Shared => Strategy::Shared(files()?),
        })
    }

    /// The file system that the image is in meanwhile, seen from where the member is to go on; none: it is in no file.
    pub fn file_system(strategy: &Strategy) -> Option<FileSystem> {
        match strategy {
            Strategy::RdmaLocal(_, files) | Strategy::Local(_, files) | Strategy::Shared(files) => {
                FileSystem::of(files)
            }
            Strategy::Descriptor | Strategy::Pipeline(_) => None,
        }
    }

    fn pipelined(&self) -> Result<Pipelined, AnyError> {
        let chunk_bytes = u32::try_from(self.chunk).map_err(|_| "chunks are below 4 GiB")?;
        let buffers = Buffers {
            pool_bytes: self.pool,
            chunk_bytes,
        };
        buffers.chunks_for(1)?;
        Ok(Pipelined {
            host: host(),
            buffers,
            mode: match self.push {
                true => Mode::Push,
                false => Mode::Pull,
            },
            transport: match self.transport {
                Transport::Auto => transport::Transport::Auto,
                Transport::Tcp => transport::Transport::Tcp,
                Transport::Rdma => transport::Transport::Rdma,
            },
            copy: match (self.pre_copy, self.post_copy) {
                (true, _) => Copying::Before,
                (_, true) => Copying::After,
                _ => Copying::Stopped,
            },
            compress: self.compress == Compress::Auto,
        })
    }

    /// The same as words, for who is asked to do it elsewhere.
    pub fn words(&self, name: Name) -> Vec<OsString> {
        let mut words: Vec<OsString> = ["--strategy".into(), word(&name)].into();
        words.extend(["--transport".into(), word(&self.transport)]);
        words.extend(["--compress".into(), word(&self.compress)]);
        if let Some(files) = &self.files {
            words.extend(["--files".into(), absolute(files).into()]);
        }
        words.extend(["--pool".into(), self.pool.to_string().into()]);
        words.extend(["--chunk".into(), self.chunk.to_string().into()]);
        words.extend(self.push.then(|| "--push".into()));
        words.extend(self.pre_copy.then(|| "--pre-copy".into()));
        words.extend(self.post_copy.then(|| "--post-copy".into()));
        words
    }
}

impl Name {
    /// As it is said, with the file system that it goes by: `shared (nfs4, server:/export)`.
    pub fn by(self, files: Option<&FileSystem>) -> String {
        let name = word(&self).to_string_lossy().into_owned();
        match files {
            Some(files) => format!("{name} ({files})"),
            None => name,
        }
    }
}

/// The same directory, for processes that are elsewhere.
fn absolute(directory: &Path) -> PathBuf {
    path::absolute(directory).unwrap_or_else(|_| directory.to_owned())
}

/// A value as it is said.
fn word(value: &impl ValueEnum) -> OsString {
    let value = value.to_possible_value();
    value.map_or(OsString::new(), |value| value.get_name().into())
}

/// Where other nodes reach this one; without a network of its own, the machine itself.
fn host() -> IpAddr {
    let own = Node::from_env().map(Node::address);
    let here = own.filter(|own| TcpListener::bind((*own, 0)).is_ok());
    here.unwrap_or(Ipv4Addr::LOCALHOST).into()
}
