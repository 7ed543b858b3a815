//! Programs that know nothing of COI, with their stdio on the host: what micnativeloadex does.

use std::{io::Read, sync::Arc};

use snaprig_offload_wire::coi::{Exit, FromDaemon, Program, ToDaemon};

use crate::{
    CoiError, Engine,
    libraries::File,
    process::create::{Cargo, announce, to_own_output},
};

/// Runs a program that is on the card, under `path`, to its end. Standard input, output and error
/// are the caller's.
pub fn run(
    engine: &Engine,
    path: &str,
    argv: Vec<String>,
    env: Vec<String>,
) -> Result<Exit, CoiError> {
    run_brought(engine, path, &[], argv, env)
}

/// [`run`], with files that are brought to the card first; the program may be one of them. What the
/// card has of its own under such a path stays.
pub fn run_brought(
    engine: &Engine,
    path: &str,
    files: &[File],
    argv: Vec<String>,
    env: Vec<String>,
) -> Result<Exit, CoiError> {
    let output = to_own_output();
    let program = program(path, argv, env);
    run_program(
        engine,
        program,
        files,
        std::io::stdin(),
        |descriptor, bytes| {
            output(descriptor, bytes);
        },
    )
}

/// [`run`], with standard input read from `input` and what is written to descriptors 1 and 2 given to
/// `output`.
pub fn run_with(
    engine: &Engine,
    path: &str,
    argv: Vec<String>,
    env: Vec<String>,
    input: impl Read + Send + 'static,
    output: impl FnMut(u8, &[u8]),
) -> Result<Exit, CoiError> {
    run_program(engine, program(path, argv, env), &[], input, output)
}

fn program(path: &str, argv: Vec<String>, env: Vec<String>) -> Program {
    Program {
        name: path.into(),
        bytes: 0,
        window: 0,
        argv,
        env,
        libraries: Vec::new(),
        proxy: true,
    }
}

fn run_program(
    engine: &Engine,
    mut program: Program,
    files: &[File],
    mut input: impl Read + Send + 'static,
    mut output: impl FnMut(u8, &[u8]),
) -> Result<Exit, CoiError> {
    let node = engine.node();
    let daemon = Arc::new(engine.connect_daemon()?);
    let contents: Vec<_> = files.iter().map(|file| &file.bytes[..]).collect();
    // The window goes with the connection.
    let cargo = Cargo::load(&daemon, &contents)?;
    let places = files.iter().zip(&cargo.places);
    program.libraries = places.map(|(file, place)| announce(file, *place)).collect();
    daemon.send_message(&ToDaemon::Native(program))?;
    let to = daemon.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        loop {
            let count = input.read(&mut buffer).unwrap_or(0);
            let sent = to.send_message(&ToDaemon::Stdin(buffer[..count].to_vec()));
            if count == 0 || sent.is_err() {
                return;
            }
        }
    });
    loop {
        match daemon
            .receive_message()
            .map_err(|_| CoiError::CardLost { node })?
        {
            FromDaemon::Output(descriptor, bytes) => output(descriptor, &bytes),
            FromDaemon::Exited(exit) => return Ok(exit),
            FromDaemon::Failed { errno, why } => {
                return Err(CoiError::Refused { node, errno, why });
            }
            FromDaemon::Flush(number) => {
                // If it cannot be sent, the next thing that is received is the end.
                let _ = daemon.send_message(&ToDaemon::Flushed(number));
            }
            FromDaemon::Created { .. }
            | FromDaemon::Adopted
            | FromDaemon::SwappedOut
            | FromDaemon::Info(_) => {
                return Err(CoiError::Protocol {
                    node,
                    what: "a native program",
                });
            }
        }
    }
}
