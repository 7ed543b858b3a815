//! What is branched: the checkpoint of a tree of processes, or of a job.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use snaprig_ckpt::restart::read_tree;
use snaprig_ckpt_image::{chain::Chain, store::Store};
use snaprig_fabric::Node;
use snaprig_resources::state::{Kind, Tree};

use crate::BranchError;

/// The member of a job of `snaprig nodes` that starts the others.
pub const HEAD: &str = "head";

/// Of what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// One tree of processes.
    Tree,
    /// A job on this machine; one of its members.
    Job(String),
    /// A job of `snaprig nodes`, and how many nodes it had.
    Nodes(u32),
}

/// A checkpoint.
#[derive(Clone, Debug)]
pub struct Source {
    /// The directory, from the root.
    pub directory: PathBuf,
    /// Of what.
    pub what: What,
    /// Which checkpoint.
    pub round: u64,
    /// Directories that its processes work and write in.
    pub writes: BTreeSet<PathBuf>,
}

impl Source {
    /// The checkpoint of this number in a directory; none: the newest.
    pub fn open(directory: &Path, round: Option<u64>) -> Result<Self, BranchError> {
        let named = |why: String| BranchError::Source {
            directory: directory.to_owned(),
            why,
        };
        let said = |error: &dyn std::error::Error| named(snaprig_resources::error::chain(error));
        let absolute = directory.canonicalize().map_err(|error| said(&error))?;
        let is_job = absolute.join("job.json").is_file();
        let store = match is_job {
            true => absolute.join("checkpoints"),
            false => absolute.clone(),
        };
        if !store.is_dir() {
            return Err(named("there is no checkpoint yet".into()));
        }
        let store = Store::open(store).map_err(|error| said(&error))?;
        let rounds = store.rounds().map_err(|error| said(&error))?;
        let none =
            || named("there is no complete checkpoint: `snaprig ckpt dump` takes one".into());
        let round = round.or(rounds.last().copied()).ok_or_else(none)?;
        let checkpoint = store.checkpoint(round).map_err(|error| said(&error))?;
        let members: Vec<_> = checkpoint.manifest().members.iter().collect();
        let names: Vec<_> = members.iter().map(|member| member.name.as_str()).collect();
        let what = match (is_job, names.first()) {
            (false, _) => What::Tree,
            (true, _) if names.contains(&HEAD) => What::Nodes(nodes(&names)),
            (true, first) => What::Job(first.map_or(String::new(), ToString::to_string)),
        };
        let mut writes = BTreeSet::new();
        for name in names {
            let chain = checkpoint.chain(name).map_err(|error| said(&error))?;
            let chain = Chain::open(&chain).map_err(|error| said(&error))?;
            written(
                &read_tree(&chain).map_err(|error| said(&error))?,
                &mut writes,
            );
        }
        Ok(Self {
            directory: absolute,
            what,
            round,
            writes,
        })
    }
}

/// The highest number of a node.
fn nodes(members: &[&str]) -> u32 {
    let of = members.iter().filter_map(|name| name.split('.').next());
    of.filter_map(Node::number_of).max().unwrap_or(1)
}

/// Working directories, and those of files that the program may write to.
fn written(tree: &Tree, into: &mut BTreeSet<PathBuf>) {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let bodies = tree.processes.iter().filter_map(|it| it.body.as_ref());
    into.extend(bodies.map(|body| path(&body.cwd)));
    for file in &tree.files {
        if let Kind::Path {
            path: name,
            contents: Some(_),
            ..
        } = &file.kind
        {
            into.extend(path(name).parent().map(Path::to_owned));
        }
    }
}
