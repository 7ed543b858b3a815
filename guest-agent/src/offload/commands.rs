//! Case 3: the command server, one command after the other.

use std::{
    io,
    sync::{Arc, PoisonError},
};

use snaprig_wire::coi::{Answer, Command};

use super::{Runtime, channel::Channel, machine::Input, symbols};
use crate::scif::Endpoint;

/// Serves until the host's end is gone; then the process has no purpose left.
pub fn serve(runtime: &'static Runtime, channel: &Channel) {
    while let Ok(command) = channel.receive::<Command>(runtime) {
        let marker = command == Command::Shutdown;
        let answer = run(runtime, command).unwrap_or_else(|error| Answer::Failed {
            errno: error.raw_os_error().unwrap_or(0),
            why: error.to_string(),
        });
        if channel.send(&answer).is_err() {
            break;
        }
        if marker {
            runtime.tell(Input::Marker);
        }
    }
    std::process::exit(1);
}

fn run(runtime: &'static Runtime, command: Command) -> io::Result<Answer> {
    let mut buffers = runtime
        .buffers
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(match command {
        Command::Function(name) => match symbols::find(&name) {
            Some(address) => Answer::Function(address as u64),
            None => Answer::Failed {
                errno: libc::ENOENT,
                why: format!("{name}: no such function among the program's dynamic symbols"),
            },
        },
        Command::CreateBuffer { id, len } => {
            Answer::Window(buffers.create(id, len, &*dma(runtime)?)?)
        }
        Command::DestroyBuffer { id } => {
            buffers.destroy(id, &*dma(runtime)?)?;
            Answer::Done
        }
        Command::Windows => Answer::Windows(buffers.windows()),
        Command::Shutdown => Answer::Done,
        Command::EndProcess => {
            runtime.lock().ending = true;
            runtime.changed.notify_all();
            Answer::Done
        }
    })
}

fn dma(runtime: &Runtime) -> io::Result<Arc<Endpoint>> {
    Ok(runtime.dma().ok_or(io::ErrorKind::NotConnected)?.endpoint())
}
