//! What Snapify needs of COI on the host (paper section 4): the locks of the four cases with the
//! marker, and new connections after a restore.

use std::{
    env,
    sync::{Arc, LazyLock},
    time::Duration,
};

use snaprig_offload_wire::{
    coi::{Answer, FromDaemon, ToDaemon},
    snapify::Wrote,
};
use snaprig_scif::client::Endpoint;

use crate::{
    CoiError, Engine, Process,
    libraries::File,
    machine::{Input, Value},
    ops::{self, Windows},
    process::{Links, Place, lock},
};

/// The variable that does without Snapify.
const SWITCH: &str = "SNAPRIG_SNAPIFY";

/// Whether this process does without Snapify (`SNAPRIG_SNAPIFY=off`): nothing of it can be snapshot, and
/// what is there for that alone is left out. It shows what Snapify costs.
pub fn is_off() -> bool {
    static OFF: LazyLock<bool> =
        LazyLock::new(|| env::var_os(SWITCH).is_some_and(|it| it == "off"));
    *OFF
}

/// The same for the offload processes of this one, in their environment.
pub(crate) fn switch() -> Option<String> {
    is_off().then(|| format!("{SWITCH}=off"))
}

/// A window's offsets before and after a restore: the paper's lookup table of addresses. Small
/// buffers share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The memory that it is of.
    pub memory: u64,
    /// Offset on the old card.
    pub old: i64,
    /// Offset on the new one.
    pub new: i64,
}

/// What a snapshot is of.
pub struct Identity {
    /// The card.
    pub engine: Engine,
    /// The process on it.
    pub pid: i32,
    /// The program's name.
    pub name: String,
    /// The program on the card.
    pub path: String,
    /// The program's bytes.
    pub binary: Vec<u8>,
    /// The libraries that were brought along.
    pub libraries: Vec<File>,
    /// What it writes comes to the host.
    pub proxy: bool,
}

/// Takes the host's locks, case by case, and sends the marker. The host sends nothing afterwards.
/// Returns how many run functions it has ever sent, pipeline by pipeline. If it fails, [`release`]
/// the locks.
pub fn quiesce(process: &Process, timeout: Duration) -> Result<Vec<u64>, CoiError> {
    if is_off() {
        return Err(CoiError::NotSupported("SNAPRIG_SNAPIFY is off"));
    }
    process.0.call(Input::Pause, Some(timeout))?;
    Ok(process.0.sent())
}

/// Waits until so many results, pipeline by pipeline, and so many notices have been received: all that
/// were ever sent.
pub fn settle(
    process: &Process,
    returned: Vec<u64>,
    notices: u64,
    timeout: Duration,
) -> Result<(), CoiError> {
    let settle = |ticket| Input::Settle(ticket, returned, notices);
    process.0.call(settle, Some(timeout)).map(|_| ())
}

/// All offload processes of this host process that are alive; those of its parent are the parent's.
pub fn living() -> Vec<Process> {
    let own = std::process::id();
    let mut all = ops::processes();
    all.retain(|process| process.0.owner == own && process.is_alive());
    all
}

/// The process is paused, and its rig is another one: that, too, is watched.
pub fn watch_anew(process: &Process) -> Result<(), CoiError> {
    process.0.watch_anew()
}

/// Releases the host's locks.
pub fn release(process: &Process) {
    process.0.handle(Input::Resume);
}

/// The process is (or is not any more) ended on purpose: its end is not a crash.
pub fn swapped_out(process: &Process, is: bool) {
    process.0.handle(Input::SwappedOut(is));
}

/// What there is to snapshot.
pub fn identity(process: &Process) -> Identity {
    let place = process.0.place();
    Identity {
        engine: place.engine,
        pid: place.pid,
        name: process.0.name.clone(),
        path: place.path,
        binary: process.0.binary.clone(),
        libraries: lock(&process.0.files).clone(),
        proxy: process.0.proxy.is_some(),
    }
}

/// What this process has written to memory of buffers since it was asked last; all that it will have written from now on is
/// told the next time.
pub fn written(process: &Process) -> Vec<Wrote> {
    let arenas: Vec<Arc<_>> = lock(&process.0.arenas).values().cloned().collect();
    let told = arenas.iter().flat_map(|arena| {
        let ranges = arena.written(process.0.id);
        ranges.into_iter().map(|range| Wrote {
            memory: arena.id,
            range: (range.start, range.end),
        })
    });
    told.collect()
}

/// The connection to the daemon of a restored process. Before that is resumed over another one somebody must own it.
fn adopt(engine: &Engine, pid: i32) -> Result<Endpoint, CoiError> {
    let control = engine.connect_daemon()?;
    control.send_message(&ToDaemon::Adopt { pid })?;
    let node = engine.node();
    match control.receive_message() {
        Ok(FromDaemon::Adopted) => Ok(control),
        Ok(_) => {
            let what = "adopt";
            Err(CoiError::Protocol { node, what })
        }
        Err(_) => Err(CoiError::CardLost { node }),
    }
}

/// Connects everything to a restored process, and registers the windows anew (section 4.3).
pub fn reconnect(
    process: &Process,
    engine: &Engine,
    pid: i32,
    port: u16,
) -> Result<Vec<Moved>, CoiError> {
    let inner = &process.0;
    let links = Links::open(engine, port, || adopt(engine, pid), &inner.pipelines())?;
    let arenas: Vec<Arc<_>> = lock(&inner.arenas).values().cloned().collect();
    let own = arenas
        .iter()
        .map(|arena| arena.register(&links.dma))
        .collect::<Result<Vec<_>, _>>()?;
    let place = Place {
        engine: engine.clone(),
        pid,
        port,
        ..inner.place()
    };
    inner.replace(place, links);
    let Value::Answer(Answer::Windows(windows)) = inner.call(Input::Windows, None)? else {
        return Err(inner.protocol("the windows of all memory"));
    };
    let mut moved = Vec::new();
    for (arena, own) in arenas.iter().zip(own) {
        let window = windows.iter().find(|window| window.id == arena.id);
        let card = window
            .ok_or_else(|| inner.protocol("the windows of all memory"))?
            .offset;
        let old = arena.replace_windows(inner.id, Windows { own, card });
        moved.push(Moved {
            memory: arena.id,
            old: old.unwrap_or_default().card,
            new: card,
        });
    }
    Ok(moved)
}
