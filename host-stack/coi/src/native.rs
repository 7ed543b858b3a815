//! Programs that know nothing of COI, with their stdio on the host: what micnativeloadex does.

use std::{
    io::{Read, Write},
    sync::Arc,
};

use snaprig_wire::coi::{Exit, FromDaemon, Program, ToDaemon};

use crate::{CoiError, Engine};

/// Runs a program that is on the card, under `path`, to its end. Standard input, output and error
/// are the caller's.
pub fn run(
    engine: &Engine,
    path: &str,
    argv: Vec<String>,
    env: Vec<String>,
) -> Result<Exit, CoiError> {
    run_with(
        engine,
        path,
        argv,
        env,
        std::io::stdin(),
        |descriptor, bytes| {
            // A closed output of ours is the program's loss, as in a pipe.
            if descriptor == 2 {
                drop(std::io::stderr().write_all(bytes));
            } else {
                let mut out = std::io::stdout();
                drop(out.write_all(bytes).and_then(|()| out.flush()));
            }
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
    mut input: impl Read + Send + 'static,
    mut output: impl FnMut(u8, &[u8]),
) -> Result<Exit, CoiError> {
    let node = engine.node();
    let daemon = Arc::new(engine.connect_daemon()?);
    let program = Program {
        name: path.into(),
        bytes: 0,
        window: 0,
        argv,
        env,
    };
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
            FromDaemon::Failed { why, .. } => return Err(CoiError::Refused { node, why }),
            FromDaemon::Created { .. } | FromDaemon::Adopted => {
                return Err(CoiError::Protocol {
                    node,
                    what: "a native program",
                });
            }
        }
    }
}
