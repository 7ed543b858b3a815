//! The `snaprig` command line: parses, calls, prints. What it does is in the crates below it.
//!
//! A library as well as a program, so that the integration tests can have a binary of their own
//! that is the same program.

mod adopted;
mod campaign;
mod card_exec;
mod card_files;
mod card_launchers;
mod card_list;
mod card_power;
mod card_rsh;
mod card_run;
mod card_syscalls;
mod cards;
mod ckpt;
mod completions;
mod demo;
mod doctor;
mod hold;
mod man;
mod mpss;
mod nodes;
mod ppmr;
mod programs;
mod report;
mod sdk;
mod serve;
mod signals;
mod size;
mod snapify;
mod snapshot;
mod stack;
mod verbs;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use snaprig_card_platform::Kind;
use snaprig_rig::control::Action;

use mpss::Named;

/// A test rig for checkpoint stacks: coprocessor cards that CI does not have, the offload stack
/// that runs on them, and faults on purpose.
#[derive(Parser)]
#[command(name = "snaprig", version, max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Snapshot an offload program in mid-run, kill its card (or everything), and finish it
    Demo(demo::Options),
    /// Work with one card
    #[command(subcommand)]
    Card(CardCommand),
    /// Break the whole stack in simulation, seed by seed, and check what must be true
    #[command(args_conflicts_with_subcommands = true)]
    Campaign {
        #[command(subcommand)]
        command: Option<CampaignCommand>,
        #[command(flatten)]
        options: campaign::Options,
    },
    /// Run a fault plan again: does it still fail, and the same way?
    Repro(campaign::Repro),
    /// List the places where something can go wrong
    Faults(campaign::Faults),
    /// Measure
    #[command(subcommand)]
    Bench(snaprig_bench::Choice),
    Run(stack::Options),
    Include(stack::IncludeOptions),
    BuildSink(stack::BuildOptions),
    Sdk(sdk::Options),
    Verbs(verbs::Options),
    Nodes(nodes::Options),
    /// A program on a node (what launchers start in rsh's place)
    #[command(hide = true)]
    NodesExec(nodes::Exec),
    Fabric(verbs::FabricOptions),
    Serve(serve::Options),
    #[command(subcommand)]
    Hold(hold::Command),
    /// Checkpoint programs of this machine, and restart them
    #[command(subcommand)]
    Ckpt(ckpt::Command),
    /// Have the processes of a node of a job go on at another node, and images of other checkpointers
    #[command(subcommand)]
    Ppmr(ppmr::Command),
    /// Snapshot, swap out and move the offload processes of a program that runs
    #[command(subcommand)]
    Snapify(snapify::Command),
    Micinfo(mpss::micinfo::Options),
    Micctrl(mpss::micctrl::Options),
    Micnativeloadex(mpss::micnativeloadex::Options),
    /// Look into snapshots
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    Doctor(doctor::Options),
    Completions(completions::Options),
    /// A manual page for each command (what packages are made with)
    #[command(hide = true)]
    Man(man::Options),
    /// The host side of a workload (what `demo` starts)
    #[command(subcommand, hide = true)]
    Workload(Workload),
    /// The control daemon of a fabric (what its first user starts)
    #[command(hide = true)]
    FabricProcess,
    /// One of two processes that are measured (what `bench verbs` starts)
    #[command(hide = true)]
    BenchVerbsProcess {
        #[arg(long)]
        side: u8,
    },
    /// One of two nodes that are measured (what `bench ppmr` starts)
    #[command(hide = true)]
    BenchPpmrProcess,
    /// The process that holds a rig (what a campaign starts)
    #[command(hide = true)]
    RigProcess {
        #[arg(long)]
        cards: usize,
        #[arg(long, value_delimiter = ',')]
        memory: Vec<u64>,
        #[arg(long)]
        platform: Option<Kind>,
    },
    /// The process that is a card (what a rig starts)
    #[command(hide = true)]
    CardProcess {
        options: String,
    },
    /// The process that is a branch of a checkpoint (what `ckpt branch` starts)
    #[command(hide = true)]
    CkptBranchProcess {
        task: String,
    },
    /// The process that is a supervisor (what a test starts)
    #[command(hide = true)]
    CkptProcess {
        task: String,
    },
}

#[derive(Subcommand)]
enum CardCommand {
    /// Run a Linux program on a card: its stdio is ours, and so is its exit status
    Run(card_run::Options),
    /// Run a Linux program on a card of a running rig: its stdio is ours, and so is its exit status
    Exec(card_exec::Options),
    /// Run words of a shell on a card of a running rig, as rsh(1) does on another machine: for launchers of MPI jobs
    Rsh(card_rsh::Options),
    /// List the cards of a running rig, and what state each is in
    List(card_list::Options),
    /// Kill a card of a running rig: its process ends, and the host notices
    Kill(card_power::Options),
    /// Kill the COI daemon on a card of a running rig: the card stops without it
    KillDaemon(card_power::Options),
    /// Reset a card of a running rig, whatever state it is in: it loses everything, and boots
    Reset(card_power::Options),
    /// Unplug a card of a running rig, in the middle of whatever it does
    Unplug(card_power::Options),
    /// Plug a card of a running rig in again
    Plug(card_power::Options),
    /// Shut a card of a running rig down in order
    ShutDown(card_power::Options),
    /// List the system calls of Linux: which a card has, which in part, which not
    Syscalls(card_syscalls::Options),
}

#[derive(Subcommand)]
enum CampaignCommand {
    /// Add up the reports of shards
    Merge(campaign::Merge),
}

#[derive(Subcommand)]
enum SnapshotCommand {
    /// Verify every byte of a snapshot; damage is named by file and offset
    Verify(snapshot::Options),
}

#[derive(Subcommand)]
enum Workload {
    /// K-means, the paper's KM
    Kmeans(snaprig_fixtures::kmeans::Options),
}

/// Runs the program: arguments from the command line, result as its exit code.
pub fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("SNAPRIG_LOG"))
        .with_writer(std::io::stderr)
        .init();
    let outcome = match mpss::named(std::env::args_os().collect()) {
        Named::Tool(tool, arguments) => tool.run(arguments),
        Named::Command(arguments) => own(arguments),
    };
    outcome.unwrap_or_else(|error| {
        report::error(&*error);
        ExitCode::FAILURE
    })
}

/// Commands of its own.
fn own(arguments: Vec<OsString>) -> Result<ExitCode, AnyError> {
    match Cli::parse_from(arguments).command {
        Command::Demo(options) => demo::run(&options),
        Command::Card(CardCommand::Run(options)) => card_run::run(&options),
        Command::Card(CardCommand::Exec(options)) => card_exec::run(&options),
        Command::Card(CardCommand::Rsh(options)) => card_rsh::run(&options),
        Command::Card(CardCommand::List(options)) => card_list::run(&options),
        Command::Card(CardCommand::Kill(options)) => card_power::run(Action::Kill, &options),
        Command::Card(CardCommand::KillDaemon(options)) => {
            card_power::run(Action::KillDaemon, &options)
        }
        Command::Card(CardCommand::Reset(options)) => card_power::run(Action::Reset, &options),
        Command::Card(CardCommand::Unplug(options)) => card_power::run(Action::Unplug, &options),
        Command::Card(CardCommand::Plug(options)) => card_power::run(Action::Plug, &options),
        Command::Card(CardCommand::ShutDown(options)) => {
            card_power::run(Action::ShutDown, &options)
        }
        Command::Card(CardCommand::Syscalls(options)) => card_syscalls::run(&options),
        Command::Campaign {
            command: Some(CampaignCommand::Merge(options)),
            ..
        } => campaign::merge(&options),
        Command::Campaign { options, .. } => campaign::run_campaign(&options),
        Command::Bench(bench) => bench.run(),
        Command::Repro(options) => campaign::repro(&options),
        Command::Faults(options) => campaign::faults(&options),
        Command::Snapshot(SnapshotCommand::Verify(options)) => snapshot::verify(&options),
        Command::Ppmr(command) => command.run(),
        Command::Snapify(command) => snapify::run(&command),
        Command::Micinfo(options) => mpss::micinfo::run(&options),
        Command::Micctrl(options) => mpss::micctrl::run(&options),
        Command::Micnativeloadex(options) => mpss::micnativeloadex::run(&options),
        Command::Ckpt(command) => ckpt::run(&command),
        Command::Run(options) => stack::run(&options),
        Command::Include(options) => stack::include(&options),
        Command::BuildSink(options) => stack::build_sink(&options),
        Command::Sdk(options) => sdk::run(&options),
        Command::Verbs(options) => verbs::run(&options),
        Command::Nodes(options) => nodes::run(&options),
        Command::NodesExec(options) => nodes::exec(&options),
        Command::Fabric(options) => verbs::fabric(&options),
        Command::FabricProcess => {
            snaprig_verbs::daemon::process::main().map(|()| ExitCode::SUCCESS)
        }
        Command::Serve(options) => serve::run(&options),
        Command::Hold(command) => hold::run(&command),
        Command::BenchPpmrProcess => snaprig_bench::benches::ppmr::run_process(),
        Command::BenchVerbsProcess { side } => snaprig_bench::benches::verbs::process::run(side),
        Command::Doctor(options) => Ok(doctor::run(&options)),
        Command::Completions(options) => completions::run(&options),
        Command::Man(options) => man::run(&options),
        Command::Workload(Workload::Kmeans(options)) => snaprig_fixtures::kmeans::main(&options)
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        Command::RigProcess {
            cards,
            memory,
            platform,
        } => snaprig_rig_campaign::rig_process::run(cards, &memory, platform)
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        Command::CardProcess { options } => {
            snaprig_rig::card_process::main(&options).map(|()| ExitCode::SUCCESS)
        }
        Command::CkptBranchProcess { task } => {
            snaprig_branch::process::main(&task).map(|status| ExitCode::from(status as u8))
        }
        Command::CkptProcess { task } => {
            snaprig_supervisor::process::main(&task).map(|status| ExitCode::from(status as u8))
        }
    }
}

/// An error on its way to the user.
type AnyError = Box<dyn std::error::Error + Send + Sync>;
