//! What Snapify needs of COI on the host (paper section 4): the locks of the four cases, the
//! marker, and new connections after a restore.

use std::sync::Arc;

use snaprig_wire::coi::{Answer, Channel as Kind, Command, ToDaemon};

use crate::{
    CoiError, Engine, Process, channel,
    process::{lock, open},
};

/// A window's offsets before and after a restore: the paper's lookup table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The buffer.
    pub buffer: u64,
    /// Offset on the old card.
    pub old: i64,
    /// Offset on the new one.
    pub new: i64,
}

/// Takes the host's locks, case by case, and sends the marker. Nothing is in any channel of the
/// host's making afterwards.
pub fn quiesce(process: &Process) -> Result<(), CoiError> {
    let inner = &process.0;
    inner.lock().paused = true;
    inner.lifecycle.close();
    inner.rdma.close();
    inner.commands.close();
    let marker = inner.command_now(&Command::Shutdown);
    inner.sends.close();
    match marker {
        Ok(Answer::Done) => Ok(()),
        Ok(_) => Err(inner.protocol("the shutdown marker")),
        Err(error) => Err(error),
    }
}

/// Releases the host's locks.
pub fn release(process: &Process) {
    let inner = &process.0;
    let mut state = inner.lock();
    (state.paused, state.swapped_out, state.hold_at) = (false, false, None);
    drop(state);
    inner.sends.open();
    inner.commands.open();
    inner.rdma.open();
    inner.lifecycle.open();
    inner.changed.notify_all();
    inner.look_again();
}

/// The process was ended on purpose: its end is not a crash.
pub fn swapped_out(process: &Process) {
    process.0.lock().swapped_out = true;
}

/// The process's card, id, program on the card, and the program's bytes on the host.
pub fn identity(process: &Process) -> (Engine, i32, String, String, Vec<u8>) {
    let state = process.0.lock();
    let (engine, pid, path) = (state.engine.clone(), state.pid, state.path.clone());
    (
        engine,
        pid,
        process.0.name.clone(),
        path,
        process.0.binary.clone(),
    )
}

/// Connects everything to a restored process, and registers the windows anew (section 4.3).
pub fn reconnect(
    process: &Process,
    engine: &Engine,
    pid: i32,
    port: u16,
) -> Result<Vec<Moved>, CoiError> {
    let inner = &process.0;
    let control = engine.connect_daemon()?;
    channel::send(&control, &ToDaemon::Adopt { pid })?;
    let dma = open(engine, port, Kind::Dma)?;
    let command = open(engine, port, Kind::Command)?;
    let pipelines = lock(&inner.pipelines).clone();
    let successors = pipelines
        .iter()
        .map(|pipeline| open(engine, port, Kind::Pipeline(pipeline.number)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut own = Vec::new();
    for buffer in lock(&inner.buffers).values() {
        own.push((buffer.clone(), buffer.register(&dma)?));
    }
    let mut state = inner.lock();
    (state.engine, state.pid, state.port) = (engine.clone(), pid, port);
    (state.control, state.ended, state.swapped_out) = (Arc::new(control), None, false);
    drop(state);
    process.watch();
    inner.dma.replace(dma);
    inner.command.replace(command);
    for (pipeline, successor) in pipelines.iter().zip(successors) {
        pipeline.channel.replace(successor);
    }
    let Answer::Windows(windows) = inner.command_now(&Command::Windows)? else {
        return Err(inner.protocol("the windows of all buffers"));
    };
    let mut moved = Vec::new();
    for (buffer, own) in own {
        let window = windows.iter().find(|window| window.id == buffer.id);
        let new = window
            .ok_or_else(|| inner.protocol("the windows of all buffers"))?
            .offset;
        let mut offsets = lock(&buffer.windows);
        moved.push(Moved {
            buffer: buffer.id,
            old: offsets.1,
            new,
        });
        *offsets = (own, new);
    }
    Ok(moved)
}
