//! `snaprig nodes`: several machines of a cluster on this one, and a program that starts others on them.

use std::{ffi::OsString, process::ExitCode};

use clap::Args;
use snaprig_fabric::{
    Fabric, Nodes, nodes,
    place::{HCAS_MAX, parse_models},
};

use crate::{AnyError, programs::not_started};

/// Run a program that starts others on nodes of a cluster: mpirun, mpiexec
///
/// Each node has HCAs, a name (node1, node2, ...) and, where network namespaces can be made, an address of its own. Open MPI's mpirun and MPICH's mpiexec start their ranks on them.
#[derive(Args)]
pub struct Options {
    /// How many nodes
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=HCAS_MAX as i64))]
    count: u32,
    /// How many HCAs each has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=HCAS_MAX as i64))]
    hcas: u32,
    /// The model of all HCAs: A, B, or a letter for each
    #[arg(long, value_name = "LETTERS", default_value = "A")]
    model: String,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Its exit status is that of the program.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let models = parse_models(&options.model).ok_or("the models of HCAs are A and B")?;
    let fabric = Fabric::builder()
        .exe(std::env::current_exe()?)
        .models(&models);
    let nodes = Nodes::start(fabric, options.count, options.hcas)?;
    if !nodes.have_networks() {
        eprintln!("snaprig: nodes share this machine's network: namespaces need root and ip(8)");
    }
    let (program, arguments) = options.program.split_first().ok_or("no program")?;
    let status = nodes.launcher(program).args(arguments).status();
    let status = status.map_err(|error| not_started(program, &error))?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    let code = status.code().or(signal.map(|signal| 128 + signal));
    Ok(ExitCode::from(code.unwrap_or(1) as u8))
}

/// What launchers start in rsh's place.
#[derive(Args)]
pub struct Exec {
    /// The node's name
    node: String,
    /// For its shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    words: Vec<OsString>,
}

/// Becomes the program.
pub fn exec(options: &Exec) -> Result<ExitCode, AnyError> {
    Err(nodes::exec(&options.node, &options.words).into())
}
