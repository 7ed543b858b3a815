//! Case 3: the command server, one command after the other.

use std::{io, sync::Arc};

use snaprig_offload_wire::coi::{Answer, Command, FUNCTION_NAME_MAX, LIBRARIES_MAX, Library};

use super::{Runtime, channel::Channel, lock, machine::Input, pipeline};
use crate::{brought, scif::Endpoint};

/// Serves until the host's end is gone; then the process has no purpose left.
pub fn serve(runtime: &'static Runtime, channel: &Channel) {
    while let Ok(command) = channel.receive::<Command>(runtime) {
        let marker = command == Command::Shutdown;
        let answer = run(runtime, command).unwrap_or_else(|error| Answer::Failed {
            errno: brought::errno(&error),
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
    Ok(match command {
        Command::Function(name) => {
            // A name that is too long is none.
            let short = name.len() < FUNCTION_NAME_MAX;
            let found = short.then(|| lock(&runtime.libraries).find(&name));
            match found.flatten() {
                Some(address) => Answer::Function(address as u64),
                None => Answer::Failed {
                    errno: libc::ENOENT,
                    why: format!("{name}: no such function among the program's dynamic symbols"),
                },
            }
        }
        Command::CreateMemory { id, len, address } => {
            let dma = dma(runtime)?;
            Answer::Window(lock(&runtime.buffers).create(id, len, address, &dma)?)
        }
        Command::AdoptMemory { id, address, len } => {
            let dma = dma(runtime)?;
            Answer::Window(lock(&runtime.buffers).adopt(id, address, len, &dma)?)
        }
        Command::DestroyMemory { id } => {
            let dma = dma(runtime)?;
            lock(&runtime.buffers).destroy(id, &dma)?;
            Answer::Done
        }
        Command::CreatePipeline {
            number,
            mask,
            stack_bytes,
        } => {
            pipeline::create(runtime, number, &mask, stack_bytes)?;
            Answer::Done
        }
        Command::DestroyPipeline { number } => {
            pipeline::destroy(runtime, number)?;
            Answer::Done
        }
        Command::LoadLibrary { files, flags } => load(runtime, &files, flags)?,
        Command::UnloadLibrary { library } => match lock(&runtime.libraries).unload(library) {
            Ok(()) => Answer::Done,
            Err((errno, why)) => Answer::Failed { errno, why },
        },
        Command::LibraryLoaded {
            request,
            result,
            library,
        } => {
            runtime.library_loaded(request, result, library);
            Answer::Done
        }
        Command::Windows => Answer::Windows(lock(&runtime.buffers).windows()),
        Command::Shutdown => Answer::Done,
        Command::EndProcess => {
            runtime.lock().ending = true;
            runtime.changed.notify_all();
            Answer::Done
        }
    })
}

/// Brings the files along, and loads the last one.
fn load(runtime: &Runtime, files: &[Library], flags: i32) -> io::Result<Answer> {
    let Some(library) = files.last().filter(|_| files.len() <= LIBRARIES_MAX) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dma = dma(runtime)?;
    for file in files {
        brought::library(&dma, file)?;
    }
    Ok(match lock(&runtime.libraries).load(&library.path, flags) {
        Ok(number) => Answer::Library(number),
        Err((errno, why)) => Answer::Failed { errno, why },
    })
}

fn dma(runtime: &Runtime) -> io::Result<Arc<Endpoint>> {
    Ok(runtime.dma().ok_or(io::ErrorKind::NotConnected)?.endpoint())
}
