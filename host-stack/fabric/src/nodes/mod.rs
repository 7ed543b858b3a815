//! Several nodes of one fabric, and programs that start others on them, as a cluster's launchers do.
//!
//! ```text
//!   snaprig nodes 2 -- mpirun ...
//!     head (a network namespace, 10.77.0.254) --- bridge --- node1 (a network namespace, 10.77.0.1, HCA 0)
//!       mpirun --rsh--> snaprig nodes-exec node2 orted ...  '--- node2 (10.77.0.2, HCA 1)
//! ```
//! All nodes are of one fabric with one control daemon; or each has a daemon of its own, in its network, and they share nothing
//! but TCP ([`Nodes::over_tcp`]).
//!
//! Where network namespaces cannot be made, all nodes have this machine's network, and are told apart by what is in the
//! environment of their programs.
//!
//! What must stay true: all of it goes with the process that has made it, however that ends.

pub mod launchers;
pub mod link;
mod namespaces;
pub mod requests;
mod tcp;

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::{self, Command},
};

use tempfile::TempDir;

use self::{
    link::{BitRate, LinkError},
    namespaces::Namespaces,
    requests::REQUESTS_ENV,
};
use crate::{
    Fabric, FabricBuilder, FabricError,
    node::{NODE_HCAS_ENV, Node},
    place::{DIRECTORY_ENV, Place},
    start::Environment,
};

/// The directory that says where nodes are, for [`exec`].
pub const NODES_ENV: &str = "SNAPRIG_NODES";

/// The command by which a `snaprig` program becomes a program on a node ([`exec`]): the node's name, and words for a shell.
pub const PROCESS: &str = "nodes-exec";

/// Nodes that run.
#[derive(Debug)]
pub struct Nodes {
    /// That of all nodes, or one for each.
    fabrics: Vec<Fabric>,
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
        let nodes = all(count + guests, hcas_each);
        let (directory, namespaces) = make(&nodes, &fabric).map_err(FabricError::Start)?;
        Ok(Self {
            fabrics: vec![fabric],
            directory,
            namespaces,
            count,
        })
    }

    /// The same, where each node has a control daemon of its own and they share nothing but TCP. Guests have none.
    pub fn over_tcp(
        fabric: FabricBuilder,
        count: u32,
        hcas_each: u32,
        guests: u32,
    ) -> Result<Self, FabricError> {
        let nodes = all(count + guests, hcas_each);
        let hcas = count as usize * hcas_each as usize;
        let fabric = fabric.hcas(hcas).node_hcas(hcas_each);
        let directory = TempDir::with_prefix("snaprig-nodes-").map_err(FabricError::Start)?;
        let made = Namespaces::make(&nodes, directory.path());
        let namespaces = made.map_err(FabricError::Start)?;
        let own = nodes.get(..count as usize).unwrap_or_default();
        let fabrics = tcp::start(&fabric, own, directory.path(), namespaces.as_ref())?;
        if let Some(first) = fabrics.first() {
            launchers::write(&nodes, directory.path(), first.program())
                .map_err(FabricError::Start)?;
        }
        Ok(Self {
            fabrics,
            directory,
            namespaces,
            count,
        })
    }

    /// The fabric of a node, from 1.
    pub fn fabric(&self, number: u32) -> Option<&Fabric> {
        let at = number.checked_sub(1)? as usize;
        self.fabrics.get(at.min(self.fabrics.len().checked_sub(1)?))
    }

    /// What a program has in its environment to have the HCAs of a node, wherever it is.
    pub fn environment(&self, number: u32) -> io::Result<Environment> {
        let node = Node::new(number, self.hcas_each()).ok_or(io::ErrorKind::NotFound)?;
        let fabric = self.fabrics.first().ok_or(io::ErrorKind::NotFound)?;
        environment(self.directory.path(), node, fabric.place())
    }

    fn hcas_each(&self) -> u32 {
        self.fabrics.first().map_or(1, Fabric::hcas_each)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether each has a network of its own.
    pub fn have_networks(&self) -> bool {
        self.namespaces.is_some()
    }

    /// Gives the link of each node to all others this rate, each way.
    pub fn limit_links(&self, rate: BitRate) -> Result<(), LinkError> {
        let namespaces = self.namespaces.as_ref();
        link::limit(namespaces.ok_or(LinkError::NoNetworks)?, rate)
    }

    /// A program that starts others on nodes: `mpirun`, `mpiexec`.
    pub fn launcher(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.fabrics.first() {
            Some(fabric) => fabric.command(program),
            None => Command::new(program),
        };
        let directory = self.directory.path();
        command.env(NODES_ENV, directory);
        command.env(NODE_HCAS_ENV, self.hcas_each().to_string());
        command.envs(launchers::environment(directory));
        command
    }
}

/// So many nodes.
fn all(count: u32, hcas_each: u32) -> Vec<Node> {
    (1..=count)
        .filter_map(|number| Node::new(number, hcas_each))
        .collect()
}

/// The networks of nodes, and what launchers need.
fn make(nodes: &[Node], fabric: &Fabric) -> io::Result<(TempDir, Option<Namespaces>)> {
    let directory = TempDir::with_prefix("snaprig-nodes-")?;
    let namespaces = Namespaces::make(nodes, directory.path())?;
    launchers::write(nodes, directory.path(), fabric.program())?;
    Ok((directory, namespaces))
}

/// What programs on a node have in their environment beside what all have: its HCAs, and where its daemon is, which may be one
/// of its own.
fn environment(directory: &Path, node: Node, all: &Place) -> io::Result<Environment> {
    let own = tcp::place(directory, node)?;
    let place = if own.directory.is_dir() { &own } else { all };
    let mut environment = node.environment(place)?;
    if let Some(fabrics) = place.directory.parent() {
        environment.push((DIRECTORY_ENV, fabrics.into()));
    }
    Ok(environment)
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
    let place = Place::from_env()?;
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
    command.envs(environment(&directory, node, &place)?);
    let holder = fs::read_to_string(directory.join(node.name()))?;
    if let Ok(holder) = holder.trim().parse() {
        namespaces::enter(holder)?;
    }
    Ok(command)
}
