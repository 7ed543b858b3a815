//! `snaprig card run`: what micnativeloadex does. One card, one program, its stdio, its status.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use snaprig_card_platform::Kind;
use snaprig_coi::{Engine, native};
use snaprig_offload_wire::coi::Exit;
use snaprig_rig::{Rig, files::CardFiles};

use crate::{AnyError, card_files::with_libraries, programs, size};

/// What `card run` is told.
#[derive(Args)]
pub struct Options {
    /// Memory of the card
    #[arg(long, default_value = "512M", value_parser = size::parse)]
    memory: u64,
    /// Cores of the card
    #[arg(long, default_value_t = 4)]
    cores: usize,
    /// Hardware threads of each core (a Knights Corner has 4)
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads_per_core: usize,
    /// kvm or ptrace [default: the best that works here]
    #[arg(long)]
    platform: Option<Kind>,
    /// Put a directory, a tar image (*.tar) or a file onto the card: HOST[:PATH_ON_CARD], an image
    /// at the card's root and all else where it is on the host unless told otherwise. Can be given
    /// more than once. Libraries that the program needs come along by themselves
    #[arg(long, value_name = "HOST[:CARD]")]
    files: Vec<CardFiles>,
    /// Let programs on cards read and write files in a directory of the host, with Snapify-IO. Can be given more than once
    #[arg(long, value_name = "DIR")]
    share: Vec<PathBuf>,
    /// Host and card have a network to each other: the card is 172.31.1.1, the host 172.31.1.254. Takes root, as in
    /// `unshare -rn`
    #[arg(long)]
    network: bool,
    /// A Linux program (x86-64), followed by its arguments; a name without a slash is looked for on
    /// PATH
    #[arg(required = true, last = true, value_name = "PROGRAM ARGS")]
    command: Vec<String>,
}

/// Boots a card, runs the program on it, and takes over its exit status: 128 + N for signal N, as
/// a shell reports it.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let program: CardFiles = programs::find(&options.command[0])?.parse()?;
    let path = program.card.clone();
    std::fs::File::open(&program.host).map_err(|e| format!("{}: {e}", program.host.display()))?;
    let mut files = options.files.clone();
    files.push(program);
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .memory_bytes(options.memory)
        .cores(options.cores)
        .threads_per_core(options.threads_per_core)
        .platform(options.platform)
        .files(with_libraries(&files))
        .shares(options.share.clone())
        .network(options.network)
        .start()?;
    let engine = Engine::get(rig.dir(), 0)?;
    let environment = std::env::vars()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    match native::run(&engine, &path, options.command.clone(), environment)? {
        Exit::Code(code) => Ok(ExitCode::from(code as u8)),
        Exit::Signal(signal) => {
            eprintln!("{}: ended by signal {signal}", path);
            Ok(ExitCode::from(128 + signal as u8))
        }
    }
}
