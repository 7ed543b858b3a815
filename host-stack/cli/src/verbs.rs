//! `snaprig verbs`, `snaprig fabric`, and the process that is a fabric's control daemon.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use snaprig_fabric::{
    Fabric, FabricBuilder, FaultRequest, Model, Node, Operator, PathFaults,
    faults::parse_share,
    place::{DEFAULT_FABRIC, HCAS_MAX, MODELS, PKEYS, Place, parse_models, parse_pkeys},
    start::Environment,
    tcp::{Addresses, Tcp},
};
use snaprig_sim::Plan;
use snaprig_verbs::daemon::check_plan;

use crate::{
    AnyError,
    programs::{exports, not_started},
};

/// What a path does to packets
#[derive(Args)]
struct Faults {
    /// Packets that are lost
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = parse_share)]
    loss: u16,
    /// Packets that come twice
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = parse_share)]
    duplicate: u16,
    /// Packets that others overtake
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = parse_share)]
    reorder: u16,
    /// Packets that are damaged
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = parse_share)]
    corrupt: u16,
    /// How much later packets arrive, in microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    delay_us: u64,
}

impl Faults {
    fn of_paths(&self) -> PathFaults {
        PathFaults {
            loss: self.loss,
            duplicate: self.duplicate,
            reorder: self.reorder,
            corrupt: self.corrupt,
            delay_ns: self.delay_us.saturating_mul(1000),
        }
    }
}

/// What a fabric is to be, if this starts it
#[derive(Args)]
pub struct Setup {
    /// How many HCAs the fabric has, if this starts it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=HCAS_MAX as i64))]
    hcas: u8,
    /// Their model: A, B, or a letter for each
    #[arg(long, value_name = "LETTERS", default_value = "A", value_parser = models)]
    model: Models,
    /// The P_Key table of every port, if this starts the fabric: 8xxx is a full member, 0xxx a limited one
    #[arg(long, value_name = "HEX,HEX,...", default_value = "0xffff", value_parser = pkeys)]
    pkeys: Pkeys,
    #[command(
        flatten,
        next_help_heading = "Faults of every path, if this starts the fabric"
    )]
    faults: Faults,
    /// Carry out this fault plan's faults of packets, if this starts the fabric
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Write every packet to this file (pcapng), if this starts the fabric
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
}

impl Setup {
    /// The fabric with this name.
    pub fn builder(&self, name: &str) -> Result<FabricBuilder, AnyError> {
        let plan = self.plan.as_deref();
        let plan = plan
            .map(|path| checked_plan(path, self.hcas.into()))
            .transpose()?;
        Ok(Fabric::builder()
            .exe(std::env::current_exe()?)
            .at(Place::named(name)?)
            .hcas(self.hcas.into())
            .models(&self.model.0)
            .pkeys(&self.pkeys.0)
            .faults(self.faults.of_paths())
            .capture(self.capture.clone())
            .plan(plan))
    }
}

/// Run a program with HCAs: its libibverbs is ours
#[derive(Args)]
pub struct Options {
    /// Which fabric
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC)]
    fabric: String,
    /// The node that the program is on, of which it sees the HCAs alone; `slurm`: that of this task of srun(1)
    #[arg(long, value_name = "N", value_parser = node_number)]
    node: Option<u32>,
    /// How many HCAs each node has
    #[arg(long, value_name = "N", default_value_t = 1, requires = "node", value_parser = clap::value_parser!(u32).range(1..=HCAS_MAX as i64))]
    node_hcas: u32,
    /// Nodes share nothing but TCP: where the daemons of all of them listen, in order. This node's is started by its first
    /// program
    #[arg(long, value_name = "ADDRESS:PORT,...", requires_all = ["node", "tcp_token"], conflicts_with = "hcas")]
    tcp: Option<Addresses>,
    /// With --tcp: the file of a token that all nodes have (`head -c 32 /dev/urandom > FILE; chmod 600 FILE`)
    #[arg(long, value_name = "FILE", requires = "tcp")]
    tcp_token: Option<PathBuf>,
    #[command(flatten)]
    setup: Setup,
    /// Print what to set in the environment instead of running anything
    #[arg(long, conflicts_with = "program")]
    env: bool,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "env", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A model for each HCA; the last one for all the rest.
#[derive(Clone)]
struct Models(Vec<Model>);

fn models(letters: &str) -> Result<Models, String> {
    parse_models(letters).map(Models).ok_or(MODELS.into())
}

/// A node, from 1, or where Slurm says that this task is.
fn node_number(text: &str) -> Result<u32, String> {
    let number = match text {
        "slurm" => {
            let node = std::env::var("SLURM_NODEID").ok();
            let node: Option<u32> = node.and_then(|node| node.parse().ok());
            node.map(|node| node + 1)
                .ok_or("there is no SLURM_NODEID here: it is for programs that srun(1) starts")?
        }
        text => text.parse().map_err(|_| "a number, from 1, or slurm")?,
    };
    Ok(number)
}

/// A table of P_Keys.
#[derive(Clone)]
struct Pkeys(Vec<u16>);

fn pkeys(text: &str) -> Result<Pkeys, String> {
    parse_pkeys(text).map(Pkeys).ok_or(PKEYS.into())
}

/// Runs the program in place of this one.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let mut fabric = options.setup.builder(&options.fabric)?;
    if let (Some(addresses), Some(token)) = (&options.tcp, &options.tcp_token) {
        fabric = fabric
            .hcas((addresses.count() * options.node_hcas) as usize)
            .tcp(Some(Tcp {
                addresses: addresses.clone(),
                token: std::path::absolute(token)?,
            }));
    }
    let node = match options.node {
        Some(number) => node_environment(options, number)?,
        None => Vec::new(),
    };
    if options.env {
        print!("{}{}", exports(&fabric.environment()?), exports(&node));
        return Ok(ExitCode::SUCCESS);
    }
    let (program, arguments) = options.program.split_first().ok_or("no program")?;
    let mut command = fabric.command(program)?;
    command.envs(node);
    let error = command.args(arguments).exec();
    Err(not_started(program, &error).into())
}

/// What programs on a node have in their environment beside the fabric's.
fn node_environment(options: &Options, number: u32) -> Result<Environment, AnyError> {
    let none = || {
        format!(
            "node {number} with {} HCAs: counted from 1, of {HCAS_MAX} HCAs in all",
            options.node_hcas
        )
    };
    let node = Node::new(number, options.node_hcas).ok_or_else(none)?;
    Ok(node.environment(&Place::named(&options.fabric)?)?)
}

/// The path of a plan that a fabric of so many HCAs can carry out.
fn checked_plan(path: &Path, hcas: usize) -> Result<PathBuf, AnyError> {
    let named = |why: AnyError| format!("{}: {why}", path.display());
    let plan = Plan::read(path)?;
    check_plan(&plan, hcas).map_err(|error| named(error.into()))?;
    Ok(path.into())
}

/// Look at a fabric, break it, heal it
#[derive(Args)]
pub struct FabricOptions {
    /// Which fabric
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC, global = true)]
    fabric: String,
    #[command(subcommand)]
    command: FabricCommand,
}

#[derive(Subcommand)]
enum FabricCommand {
    /// Ports, links, and what is wrong with the paths
    List {
        /// Print JSON: with counters, and all queue pairs
        #[arg(long)]
        json: bool,
    },
    /// Lose, double, overtake, damage or delay packets; shares are in percent
    Fault {
        /// From the port with this LID [default: all]
        #[arg(long, value_name = "LID")]
        from: Option<u16>,
        /// To the port with this LID [default: all]
        #[arg(long, value_name = "LID")]
        to: Option<u16>,
        /// Carry out this fault plan's faults of packets, from now on
        #[arg(long, value_name = "FILE", conflicts_with_all =
              ["from", "to", "loss", "duplicate", "reorder", "corrupt", "delay_us"])]
        plan: Option<PathBuf>,
        #[command(flatten)]
        faults: Faults,
    },
    /// Take a port's link down
    Down {
        /// The port's LID
        lid: u16,
    },
    /// Bring a port's link up
    Up {
        /// The port's LID
        lid: u16,
    },
    /// Write every packet to a file that Wireshark reads (pcapng), from now on
    Capture {
        /// The file
        #[arg(required_unless_present = "stop")]
        file: Option<PathBuf>,
        /// Write no more
        #[arg(long, conflicts_with = "file")]
        stop: bool,
    },
    /// Make everything as new
    Heal,
}

/// Tells the fabric's daemon.
pub fn fabric(options: &FabricOptions) -> Result<ExitCode, AnyError> {
    let operator = Operator::connect(&Place::named(&options.fabric)?)?;
    match &options.command {
        FabricCommand::List { json: false } => {}
        FabricCommand::List { json: true } => {
            let description = serde_json::to_string_pretty(&operator.describe()?)?;
            println!("{description}");
            return Ok(ExitCode::SUCCESS);
        }
        FabricCommand::Fault {
            plan: Some(path), ..
        } => operator.plan(&checked_plan(path, HCAS_MAX)?)?,
        FabricCommand::Fault {
            from, to, faults, ..
        } => operator.fault(FaultRequest::Set {
            from: *from,
            to: *to,
            faults: faults.of_paths(),
        })?,
        FabricCommand::Down { lid } => operator.fault(FaultRequest::Link {
            lid: *lid,
            up: false,
        })?,
        FabricCommand::Up { lid } => operator.fault(FaultRequest::Link {
            lid: *lid,
            up: true,
        })?,
        FabricCommand::Capture { file, .. } => operator.capture(file.as_deref())?,
        FabricCommand::Heal => operator.fault(FaultRequest::Heal)?,
    }
    print!("{}", operator.describe()?);
    Ok(ExitCode::SUCCESS)
}
