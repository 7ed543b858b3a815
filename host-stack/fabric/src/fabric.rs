//! A fabric of one's own, and programs in it.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    path::{self, Path, PathBuf},
    process::Command,
};

use snaprig_hca::{
    control::{Errno, FIRST_LID, Fabric as Setup},
    model::Model as Properties,
    port::PKEYS_MAX,
};
use snaprig_sdk::program::{self, EXE_ENV};
use tempfile::TempDir;

use crate::{
    Description, FaultRequest, Model, Node, Operator, PathFaults, Tcp, library,
    place::{
        self, CAPTURE_ENV, DEFAULT_FABRIC, DIRECTORY_ENV, FABRIC_ENV, FAULTS_ENV, HCAS_ENV,
        HCAS_MAX, MODEL_ENV, PKEYS_ENV, PLAN_ENV, Place, model_letters, pkeys_text,
    },
    start::{self, Environment},
    tcp::TCP_ENV,
};

/// Why there is no fabric, or it does not do what it is told.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// There cannot be so many HCAs.
    #[error("a fabric with {0} HCAs: it must be 1 to {HCAS_MAX}")]
    Hcas(usize),
    /// There cannot be so many P_Keys.
    #[error("{0} P_Keys: a port has at most {PKEYS_MAX}")]
    Pkeys(usize),
    /// No such HCA, or it has no such port.
    #[error("no port {port} of HCA {hca}")]
    NoPort {
        /// HCA, from 0.
        hca: usize,
        /// Port, from 1.
        port: u32,
    },
    /// No such node.
    #[error("there is no node {number}: a fabric of {hcas} HCAs, {each} a node, has {} of them", hcas / each)]
    NoNode {
        /// Its number, from 1.
        number: u32,
        /// HCAs of the fabric.
        hcas: u32,
        /// HCAs of a node.
        each: u32,
    },
    /// It cannot be set up or started.
    #[error("the fabric does not start: {0}")]
    Start(#[source] io::Error),
    /// Nobody uses it.
    #[error(
        "fabric {name}: it is not running ({source}); a program under `snaprig verbs` starts it"
    )]
    NotRunning {
        /// Its name.
        name: String,
        /// Why it cannot be reached.
        source: io::Error,
    },
    /// The daemon did not answer.
    #[error("the fabric's control daemon is gone: {0}")]
    Gone(#[from] io::Error),
    /// It said no.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Refused(Errno),
}

/// What a fabric is to be.
#[derive(Clone, Debug)]
#[must_use]
pub struct FabricBuilder {
    exe: PathBuf,
    place: Option<Place>,
    hcas: usize,
    hcas_each: u32,
    models: Vec<Model>,
    pkeys: Vec<u16>,
    faults: PathFaults,
    capture: Option<PathBuf>,
    plan: Option<PathBuf>,
    tcp: Option<Tcp>,
    node: Option<Node>,
}

impl FabricBuilder {
    /// The `snaprig` program, which is the fabric's control daemon and has the library (default:
    /// [`snaprig_sdk::program::default`]).
    pub fn exe(mut self, exe: impl Into<PathBuf>) -> Self {
        self.exe = exe.into();
        self
    }

    /// How many HCAs (1 to 64; default 1).
    pub fn hcas(mut self, hcas: usize) -> Self {
        self.hcas = hcas;
        self
    }

    /// How many HCAs each node has (default 1).
    pub fn node_hcas(mut self, hcas: u32) -> Self {
        self.hcas_each = hcas.max(1);
        self
    }

    /// The model of all HCAs (default A).
    pub fn model(self, model: Model) -> Self {
        self.models(&[model])
    }

    /// The model of each HCA; the last one holds for all further HCAs.
    pub fn models(mut self, models: &[Model]) -> Self {
        self.models = models.to_vec();
        self
    }

    /// The P_Key table of every port (default: the default partition alone); the highest bit makes a
    /// full member.
    pub fn pkeys(mut self, pkeys: &[u16]) -> Self {
        self.pkeys = pkeys.to_vec();
        self
    }

    /// What is wrong with every path from the start.
    pub fn faults(mut self, faults: PathFaults) -> Self {
        self.faults = faults;
        self
    }

    /// How many of a thousand packets are lost on every path.
    pub fn loss_per_mille(mut self, loss: u16) -> Self {
        self.faults.loss = loss;
        self
    }

    /// A file for every packet from the start (pcapng).
    pub fn capture(mut self, file: Option<PathBuf>) -> Self {
        self.capture = file;
        self
    }

    /// A fault plan of scenario "verbs": its faults of packets are carried out from the start.
    pub fn plan(mut self, file: Option<PathBuf>) -> Self {
        self.plan = file;
        self
    }

    /// Nodes share nothing but TCP: what is started is the daemon of the node that programs are on.
    pub fn tcp(mut self, tcp: Option<Tcp>) -> Self {
        self.tcp = tcp;
        self
    }

    /// The node that programs are on, which see its HCAs alone. It needs a place ([`Self::at`]).
    pub fn on_node(mut self, node: Node) -> Self {
        self.hcas_each = node.hcas_each;
        self.node = Some(node);
        self
    }

    /// Where others find it too, in place of a directory of its own.
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// What programs have in their environment to be in the fabric. The first of them starts it, and
    /// the last one ends it.
    pub fn environment(&self) -> Result<Environment, FabricError> {
        let program = program::find(&self.exe).map_err(FabricError::Start)?;
        let libraries = library::directory(&program).map_err(FabricError::Start)?;
        // For files of ours to be there, our library comes before libc; in a program that has it from
        // another library, or by dlopen(3), only so. After the user's own: sanitizers must be first.
        let mut preload = env::var_os("LD_PRELOAD").unwrap_or_default();
        if !preload.is_empty() {
            preload.push(":");
        }
        preload.push(libraries.join(library::LIBRARY.name));
        let path = env::var_os("LD_LIBRARY_PATH").filter(|path| !path.is_empty());
        let path = env::join_paths(
            std::iter::once(libraries).chain(path.iter().flat_map(env::split_paths)),
        );
        let path = path.map_err(|error| FabricError::Start(io::Error::other(error)))?;
        let capture = self.capture.as_deref().map(path::absolute).transpose()?;
        let plan = self.plan.as_deref().map(path::absolute).transpose()?;
        let setup = self.setup()?;
        let mut environment = vec![
            ("LD_LIBRARY_PATH", path),
            ("LD_PRELOAD", preload),
            (EXE_ENV, program.into()),
            (HCAS_ENV, setup.hcas.len().to_string().into()),
            (MODEL_ENV, model_letters(&setup).into()),
            (PKEYS_ENV, pkeys_text(&setup.pkeys).into()),
            (CAPTURE_ENV, capture.unwrap_or_default().into()),
            (PLAN_ENV, plan.unwrap_or_default().into()),
            (FAULTS_ENV, self.faults.to_string().into()),
        ];
        match &self.tcp {
            Some(tcp) => environment.extend(tcp.environment()),
            None => environment.push((TCP_ENV, OsString::new())),
        }
        if let Some(place) = &self.place {
            if let Some(node) = self.node {
                environment.extend(node.environment(place)?);
            }
            environment.push((FABRIC_ENV, place.name.clone().into()));
            if let Some(fabrics) = place.directory.parent() {
                environment.push((DIRECTORY_ENV, fabrics.into()));
            }
        }
        Ok(environment)
    }

    /// A program in the fabric; see [`Self::environment`].
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command, FabricError> {
        Ok(in_environment(program.as_ref(), &self.environment()?))
    }

    /// Starts it, in a directory of its own unless a place was given, where none may run.
    pub fn start(mut self) -> Result<Fabric, FabricError> {
        let setup = self.setup()?;
        let (place, directory) = match self.place.take() {
            Some(place) if start::try_connect(&place.socket()).is_ok() => {
                let why = format!("fabric {} runs already", place.name);
                let error = io::Error::new(io::ErrorKind::AddrInUse, why);
                return Err(FabricError::Start(error));
            }
            Some(place) => (place, None),
            None => {
                let directory = TempDir::with_prefix("snaprig-").map_err(FabricError::Start)?;
                let place = Place::named_in(directory.path(), DEFAULT_FABRIC);
                (place.map_err(FabricError::Start)?, Some(directory))
            }
        };
        self.place = Some(place.clone());
        let environment = self.environment()?;
        let socket = start::connect(&place, &setup, &environment).map_err(FabricError::Start)?;
        Ok(Fabric {
            operator: Operator::new(socket)?,
            environment,
            setup,
            place,
            hcas_each: self.hcas_each,
            _directory: directory,
        })
    }

    fn setup(&self) -> Result<Setup, FabricError> {
        if !(1..=HCAS_MAX).contains(&self.hcas) {
            return Err(FabricError::Hcas(self.hcas));
        }
        if self.pkeys.len() > PKEYS_MAX {
            return Err(FabricError::Pkeys(self.pkeys.len()));
        }
        Ok(Setup {
            pkeys: self.pkeys.clone(),
            ..place::setup(self.hcas, &self.models)
        })
    }
}

fn in_environment(program: &OsStr, environment: &[(&'static str, OsString)]) -> Command {
    let mut command = Command::new(program);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

/// A fabric that runs. When it is dropped it ends, and whoever uses it still sees its HCAs die.
///
/// HCAs are counted from 0, ports from 1.
#[derive(Debug)]
pub struct Fabric {
    operator: Operator,
    environment: Environment,
    setup: Setup,
    place: Place,
    hcas_each: u32,
    _directory: Option<TempDir>,
}

/// A node of a fabric, to start programs on.
#[derive(Debug)]
pub struct NodeOf<'a> {
    fabric: &'a Fabric,
    node: Node,
}

impl NodeOf<'_> {
    /// Its name, address and HCAs.
    pub fn node(&self) -> Node {
        self.node
    }

    /// A place for files of its own, which goes with the fabric.
    pub fn directory(&self) -> PathBuf {
        self.node.directory(&self.fabric.place)
    }

    /// A program on it, which sees its HCAs alone.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command, FabricError> {
        let mut command = self.fabric.command(program);
        command.envs(self.node.environment(&self.fabric.place)?);
        Ok(command)
    }
}

impl Fabric {
    /// A fabric of one HCA of model A without faults, made by the default program ([`FabricBuilder::exe`]).
    pub fn builder() -> FabricBuilder {
        FabricBuilder {
            exe: program::default(),
            place: None,
            hcas: 1,
            hcas_each: 1,
            models: vec![Model::A],
            pkeys: Vec::new(),
            faults: PathFaults::default(),
            capture: None,
            plan: None,
            tcp: None,
            node: None,
        }
    }

    /// A program in the fabric: `ibv_devinfo`, or the one under test.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        in_environment(program.as_ref(), &self.environment)
    }

    /// A node, counted from 1.
    pub fn node(&self, number: u32) -> Result<NodeOf<'_>, FabricError> {
        let (hcas, each) = (self.setup.hcas.len() as u32, self.hcas_each);
        let node = Node::new(number, each).filter(|node| node.hcas(hcas).len() == each as usize);
        let unknown = FabricError::NoNode { number, hcas, each };
        let node = node.ok_or(unknown)?;
        Ok(NodeOf { fabric: self, node })
    }

    /// Where it is.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The `snaprig` program, which its control daemon is.
    pub(crate) fn program(&self) -> &Path {
        let program = self.environment.iter().find(|(name, _)| *name == EXE_ENV);
        program.map_or(Path::new(program::NAME), |(_, program)| Path::new(program))
    }

    /// How many HCAs each node has.
    pub fn hcas_each(&self) -> u32 {
        self.hcas_each
    }

    /// What programs have in their environment to be in the fabric.
    pub fn environment(&self) -> &[(&'static str, OsString)] {
        &self.environment
    }

    /// Has every path do this to packets from now on.
    pub fn fault(&self, faults: PathFaults) -> Result<(), FabricError> {
        self.operator.fault(FaultRequest::Set {
            from: None,
            to: None,
            faults,
        })
    }

    /// Has the path from one port to another do this; each is an HCA and its port.
    pub fn fault_path(
        &self,
        from: (usize, u32),
        to: (usize, u32),
        faults: PathFaults,
    ) -> Result<(), FabricError> {
        self.operator.fault(FaultRequest::Set {
            from: Some(self.lid(from.0, from.1)?),
            to: Some(self.lid(to.0, to.1)?),
            faults,
        })
    }

    /// Takes a port's link down.
    pub fn link_down(&self, hca: usize, port: u32) -> Result<(), FabricError> {
        let lid = self.lid(hca, port)?;
        self.operator.fault(FaultRequest::Link { lid, up: false })
    }

    /// Brings a port's link up.
    pub fn link_up(&self, hca: usize, port: u32) -> Result<(), FabricError> {
        let lid = self.lid(hca, port)?;
        self.operator.fault(FaultRequest::Link { lid, up: true })
    }

    /// Makes everything as new.
    pub fn heal(&self) -> Result<(), FabricError> {
        self.operator.fault(FaultRequest::Heal)
    }

    /// Has it carry out a fault plan's faults of packets, from now on, in place of an earlier plan.
    pub fn plan(&self, file: &Path) -> Result<(), FabricError> {
        self.operator.plan(file)
    }

    /// Has every packet written to a file (pcapng) from now on; with none, no more.
    pub fn capture(&self, file: Option<&Path>) -> Result<(), FabricError> {
        self.operator.capture(file)
    }

    /// Ports, links, what is wrong with the paths, queue pairs: a value, which is displayed for people.
    pub fn describe(&self) -> Result<Description, FabricError> {
        self.operator.describe()
    }

    /// The LID of a port: they are given out in order.
    pub fn lid(&self, hca: usize, port: u32) -> Result<u16, FabricError> {
        let ports = |hca: usize| Properties::of(self.setup.hcas[hca].model).ports;
        if hca >= self.setup.hcas.len() || !(1..=ports(hca)).contains(&port) {
            return Err(FabricError::NoPort { hca, port });
        }
        let before: u32 = (0..hca).map(ports).sum();
        Ok(FIRST_LID + (before + port - 1) as u16)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // It may have ended before: then there is nothing to end.
        let _ = self.operator.end();
    }
}
