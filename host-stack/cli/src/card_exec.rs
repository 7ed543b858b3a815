//! `snaprig card exec`: a program on a card of a rig that runs already.

use std::{env, fs, process::ExitCode, sync::Arc};

use clap::Args;
use snaprig_coi::{
    Engine,
    libraries::{self, File, Search},
    native,
};
use snaprig_offload_wire::coi::Exit;
use snaprig_rig::sdk::Sdk;

use crate::{AnyError, cards::RunningRig, programs};

/// Where the loader looks for libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// What `card exec` is told.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    rig: RunningRig,
    /// The card's SCIF node
    #[arg(long, value_name = "NODE", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    node: u16,
    /// A Linux program (x86-64), followed by its arguments; a name without a slash is looked for on
    /// PATH. It comes along, and so do its libraries; libscif.so.0 is ours
    #[arg(required = true, last = true, value_name = "PROGRAM ARGS")]
    command: Vec<String>,
}

/// Runs the program, and takes over its exit status: 128 + N for signal N, as a shell reports it.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let job = Job {
        node: options.node,
        command: options.command.clone(),
        variables: env::vars().collect(),
        library_path: env::var(LIBRARY_PATH).ok(),
        files: Vec::new(),
    };
    job.run(&options.rig)
}

/// A program for a card.
pub struct Job {
    /// The card's SCIF node.
    pub node: u16,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its environment, but for where its libraries are.
    pub variables: Vec<(String, String)>,
    /// Where those are looked for beside the usual places.
    pub library_path: Option<String>,
    /// What else comes along.
    pub files: Vec<File>,
}

impl Job {
    /// Runs it on a card of this rig.
    pub fn run(self, rig: &RunningRig) -> Result<ExitCode, AnyError> {
        rig.require_online(self.node)?;
        let sdk = Sdk::of(&env::current_exe()?)?;
        let program = std::path::absolute(programs::find(&self.command[0])?)?;
        let path = program.to_str().ok_or("the program's path is not UTF-8")?;
        let bytes = fs::read(&program).map_err(|error| format!("{path}: {error}"))?;
        let search = Search {
            own: vec![sdk.lib().into()],
            path: Search::directories(self.library_path.as_deref().or(Some(""))),
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
        files.extend(self.files.iter().cloned());
        let engine = Engine::get(&rig.directory()?, self.node - 1)?;
        let environment = self.environment(&sdk)?;
        let exit = native::run_brought(&engine, path, &files, self.command, environment)?;
        match exit {
            Exit::Code(code) => Ok(ExitCode::from(code as u8)),
            Exit::Signal(signal) => {
                eprintln!("{path}: ended by signal {signal}");
                Ok(ExitCode::from(128 + signal as u8))
            }
        }
    }

    /// With the libraries where they come to be on the card.
    fn environment(&self, sdk: &Sdk) -> Result<Vec<String>, AnyError> {
        let users = self
            .variables
            .iter()
            .filter(|(name, _)| name != LIBRARY_PATH);
        let mut environment: Vec<_> = users
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let path = sdk.library_path_before(self.library_path.as_deref().map(AsRef::as_ref))?;
        environment.push(format!("{LIBRARY_PATH}={}", path.to_string_lossy()));
        Ok(environment)
    }
}
