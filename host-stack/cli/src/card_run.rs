//! `snaprig card run`: what micnativeloadex does. One card, one program, its stdio, its status.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use snaprig_card::platform::Kind;
use snaprig_coi::{Engine, native};
use snaprig_rig::Rig;
use snaprig_wire::coi::Exit;

use crate::{AnyError, size};

/// What `card run` is told.
#[derive(Args)]
pub struct Options {
    /// Memory of the card
    #[arg(long, default_value = "512M", value_parser = size::parse)]
    memory: u64,
    /// Cores of the card
    #[arg(long, default_value_t = 4)]
    cores: usize,
    /// kvm or ptrace [default: the best that works here]
    #[arg(long)]
    platform: Option<Kind>,
    /// A Linux program (x86-64), followed by its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM ARGS")]
    command: Vec<String>,
}

/// Boots a card, runs the program on it, and takes over its exit status: 128 + N for signal N, as
/// a shell reports it.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let program = PathBuf::from(&options.command[0]);
    let binary = std::fs::read(&program).map_err(|e| format!("{}: {e}", program.display()))?;
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .memory_bytes(options.memory)
        .cores(options.cores)
        .platform(options.platform)
        .start()?;
    let engine = Engine::get(rig.dir(), 0)?;
    let environment = std::env::vars()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    match native::run(&engine, &binary, options.command.clone(), environment)? {
        Exit::Code(code) => Ok(ExitCode::from(code as u8)),
        Exit::Signal(signal) => {
            eprintln!("{}: ended by signal {signal}", program.display());
            Ok(ExitCode::from(128 + signal as u8))
        }
    }
}
