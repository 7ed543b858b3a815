//! A source and a target of one process, mounted.

use std::{path::PathBuf, time::Duration};

use snaprig_peers::{Address, Token};
use snaprig_ppmr::{
    Buffers, Mode, Times,
    driver::{
        source::{Moves, SourceNode},
        target::{Takes, TargetNode},
    },
};
use snaprig_ppmr_fuse::{Options, Outcome, SourceMount, TargetMount, mount_source, mount_target};
use tempfile::TempDir;

/// Smaller than any file of a test that is to wait for its reader.
pub const BUFFERS: Buffers = Buffers {
    pool_bytes: 1 << 20,
    chunk_bytes: 32 << 10,
};

/// Both mounts. They go before their directories do, whatever happens.
pub struct Pair {
    pub source: SourceMount,
    /// None: it is gone.
    pub target: Option<TargetMount>,
    from: TempDir,
    to: TempDir,
}

impl Pair {
    /// For so many files.
    pub fn new(mode: Mode, files: u32) -> Self {
        let [from, to] = [(), ()].map(|()| tempfile::tempdir().unwrap());
        let (any, token) = (Address::Tcp("127.0.0.1:0".into()), Token::new([7; 32]));
        // Nothing but a defect stands still for so long.
        let times = Times {
            stall_ns: 60_000_000_000,
            ..Times::default()
        };
        let takes = Takes {
            buffers: BUFFERS,
            streams_max: files,
            times,
            ..Takes::default()
        };
        let target = TargetNode::listen(&any, &token, takes).unwrap();
        let ranks: Vec<u32> = (0..files).collect();
        let moves = Moves {
            buffers: BUFFERS,
            mode,
            times,
            ranks: ranks.clone(),
            ..Moves::default()
        };
        let source = SourceNode::connect(&target.address(), &token, moves).unwrap();
        let options = Options {
            wait: Duration::from_secs(60),
            files: Some(files as usize),
        };
        Self {
            source: mount_source(source, ranks, from.path()).unwrap(),
            target: Some(mount_target(target, to.path(), options).unwrap()),
            from,
            to,
        }
    }

    /// A file at the source.
    pub fn from(&self, name: &str) -> PathBuf {
        self.from.path().join(name)
    }

    /// A file at the target.
    pub fn to(&self, name: &str) -> PathBuf {
        self.to.path().join(name)
    }

    /// What became of a file at each side.
    pub fn outcomes(&self) -> (Outcome, Outcome) {
        let target = self.target.as_ref().unwrap();
        (self.source.next().unwrap(), target.next().unwrap())
    }
}
