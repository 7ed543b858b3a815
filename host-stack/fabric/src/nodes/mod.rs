//! Several nodes of one fabric, and programs that start others on them, as a cluster's launchers do.
//!
//! ```text
//!   snaprig nodes 2 -- mpirun ...
//!     head (a network namespace, 10.77.0.254) --- bridge --- node1 (a network namespace, 10.77.0.1, HCA 0)
//!       mpirun --rsh--> snaprig nodes-exec node2 orted ...  '--- node2 (10.77.0.2, HCA 1)
//! ```
//! Where network namespaces cannot be made, all nodes have this machine's network, and are told apart by what is in the
//! environment of their programs.
//!
//! What must stay true: all of it goes with the process that has made it, however that ends.

pub mod launchers;
mod namespaces;
pub mod requests;

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::{self, Command},
};

use tempfile::TempDir;

use self::{namespaces::Namespaces, requests::REQUESTS_ENV};
use crate::{
    Fabric, FabricBuilder, FabricError,
    node::{NODE_HCAS_ENV, Node},
};

/// The directory that says where nodes are, for [`exec`].
pub const NODES_ENV: &str = "SNAPRIG_NODES";

/// The command by which a `snaprig` program becomes a program on a node ([`exec`]): the node's name, and words for a shell.
pub const PROCESS: &str = "nodes-exec";

/// Nodes that run.
#[derive(Debug)]
pub struct Nodes {
    fabric: Fabric,
    directory: TempDir,
    namespaces: Option<Namespaces>,
    count: u32,
}

impl Nodes {
    /// Starts a fabric with so many nodes, each with so many HCAs. The calling process has one thread; it is in the
    /// head's network from then on, if there are namespaces.
    pub fn start(fabric: FabricBuilder, count: u32, hcas_each: u32) -> Result<Self, FabricError> {
        Self::with_guests(fabric, count, hcas_each, 0)
    }

    /// As many, and so many more behind them that have a name and a network, and no HCAs of their own.
    pub fn with_guests(
        fabric: FabricBuilder,
        count: u32,
        hcas_each: u32,
        guests: u32,
    ) -> Result<Self, FabricError> {
        let hcas = count as usize * hcas_each as usize;
        let fabric = fabric.hcas(hcas).node_hcas(hcas_each).start()?;
        let nodes = (1..=count).map(|number| fabric.node(number).map(|node| node.node()));
        let mut nodes: Vec<Node> = nodes.collect::<Result<_, _>>()?;
        let guests = count + 1..=count + guests;
        nodes.extend(guests.filter_map(|number| Node::new(number, hcas_each)));
        let made = || -> io::Result<(TempDir, Option<Namespaces>)> {
            let directory = TempDir::with_prefix("snaprig-nodes-")?;
            let namespaces = Namespaces::make(&nodes, directory.path())?;
            launchers::write(&nodes, directory.path(), fabric.program())?;
            Ok((directory, namespaces))
        };
        let (directory, namespaces) = made().map_err(FabricError::Start)?;
        Ok(Self {
            fabric,
            directory,
            namespaces,
            count,
        })
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether each has a network of its own.
    pub fn have_networks(&self) -> bool {
        self.namespaces.is_some()
    }

    /// A program that starts others on nodes: `mpirun`, `mpiexec`.
    pub fn launcher(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.fabric.command(program);
        let directory = self.directory.path();
        command.env(NODES_ENV, directory);
        command.env(NODE_HCAS_ENV, self.fabric.hcas_each().to_string());
        command.envs(launchers::environment(directory));
        command
    }
}

/// Becomes a program on a node, as rsh(1) would start it there: `host` is the node's name, and the words are joined for a
/// shell. Where its launcher is checkpointed, somebody else starts it, and this process ends as it does. Returns only if it
/// cannot.
pub fn exec(host: &str, words: &[std::ffi::OsString]) -> io::Error {
    if let Some(directory) = std::env::var_os(REQUESTS_ENV) {
        let words = words.join(OsStr::new(" "));
        return match requests::ask(Path::new(&directory), host, &words) {
            Ok(status) => process::exit(status),
            Err(error) => error,
        };
    }
    match command_on(host, words) {
        Ok(mut command) => std::os::unix::process::CommandExt::exec(&mut command),
        Err(error) => error,
    }
}

fn command_on(host: &str, words: &[std::ffi::OsString]) -> io::Result<Command> {
    let directory = std::env::var_os(NODES_ENV).map(PathBuf::from);
    let directory = directory.ok_or_else(|| {
        io::Error::other("there are no nodes here: `snaprig nodes COUNT -- PROGRAM` makes some")
    })?;
    let each = std::env::var(NODE_HCAS_ENV)
        .ok()
        .and_then(|each| each.parse().ok());
    let node = Node::number_of(host).and_then(|number| Node::new(number, each.unwrap_or(1)));
    let place = crate::place::Place::from_env()?;
    let unknown = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no node {host:?}"),
        )
    };
    let node = node.filter(|node| directory.join(node.name()).is_file());
    let node = node.ok_or_else(unknown)?;
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(words.join(OsStr::new(" ")));
    command.envs(node.environment(&place)?);
    let holder = fs::read_to_string(directory.join(node.name()))?;
    if let Ok(holder) = holder.trim().parse() {
        namespaces::enter(holder)?;
    }
    Ok(command)
}
