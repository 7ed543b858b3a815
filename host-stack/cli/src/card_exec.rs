//! `snaprig card exec`: a program on a card of a rig that runs already.

use std::{env, fs, path::PathBuf, process::ExitCode, sync::Arc};

use clap::Args;
use snaprig_coi::{
    Engine,
    libraries::{self, File, Search},
    native,
};
use snaprig_offload_wire::coi::Exit;
use snaprig_rig::sdk::Sdk;
use snaprig_scif::client::rig_from_environment;

use crate::AnyError;

/// What `card exec` is told.
#[derive(Args)]
pub struct Options {
    /// The rig's directory [default: $SNAPRIG_RIG]
    #[arg(long, value_name = "DIR")]
    rig: Option<PathBuf>,
    /// The card's SCIF node
    #[arg(long, value_name = "NODE", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    node: u16,
    /// A Linux program (x86-64), followed by its arguments. It comes along, and so do its libraries;
    /// libscif.so.0 is ours
    #[arg(required = true, last = true, value_name = "PROGRAM ARGS")]
    command: Vec<String>,
}

/// Runs the program, and takes over its exit status: 128 + N for signal N, as a shell reports it.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let rig = options.rig.clone().or_else(rig_from_environment);
    let rig = rig.ok_or("no rig is named: give --rig DIR, or set SNAPRIG_RIG")?;
    let sdk = Sdk::of(&env::current_exe()?)?;
    let program = std::path::absolute(&options.command[0])?;
    let path = program.to_str().ok_or("the program's path is not UTF-8")?;
    let bytes = fs::read(&program).map_err(|error| format!("{path}: {error}"))?;
    let search = Search {
        own: vec![sdk.lib().into()],
        path: Search::directories(env::var("LD_LIBRARY_PATH").ok().as_deref().or(Some(""))),
        ..Search::default()
    };
    // A card has it, also for programs that ask for it later (dlopen(3)).
    let scif = match libraries::is_dynamic(&bytes) {
        true => vec![sdk.lib().join("libscif.so.0")],
        false => vec![],
    };
    let mut files = libraries::resolve(path, &bytes, program.parent(), &scif, &search)?;
    files.push(File {
        path: path.into(),
        bytes: Arc::new(bytes),
    });
    let engine = Engine::get(&rig, options.node - 1)?;
    let environment = environment(&sdk)?;
    let exit = native::run_brought(&engine, path, &files, options.command.clone(), environment)?;
    match exit {
        Exit::Code(code) => Ok(ExitCode::from(code as u8)),
        Exit::Signal(signal) => {
            eprintln!("{path}: ended by signal {signal}");
            Ok(ExitCode::from(128 + signal as u8))
        }
    }
}

/// Ours, with the libraries where they come to be on the card.
fn environment(sdk: &Sdk) -> Result<Vec<String>, AnyError> {
    const PATH: &str = "LD_LIBRARY_PATH";
    let ours = env::vars().filter(|(name, _)| name != PATH);
    let mut environment: Vec<_> = ours
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let path = sdk.library_path()?;
    environment.push(format!("{PATH}={}", path.to_string_lossy()));
    Ok(environment)
}
