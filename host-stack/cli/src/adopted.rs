//! Checkpoints of programs that nobody supervises ([`snaprig_supervisor::dump_adopted`]).

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use snaprig_supervisor::{Dumped, Error, Event, Mode, Options, Reporter, dump_adopted};

use crate::AnyError;

/// What a checkpoint of such a program is.
pub struct Wanted<'a> {
    /// The program.
    pub pid: u32,
    /// Directory of its checkpoints.
    pub directory: &'a Path,
    /// It ends when the checkpoint is complete.
    pub kill: bool,
    /// Compressed with zstd, at this level.
    pub zstd: Option<i32>,
    /// What it has, and when that is copied.
    pub mode: Mode,
}

/// Takes a checkpoint. `invite` tells plugins of the program of the supervisor that they can connect to; how many they are.
pub fn dump(
    wanted: &Wanted<'_>,
    invite: impl FnOnce(&Path) -> Result<u32, AnyError>,
) -> Result<Dumped, AnyError> {
    // What happens is said afterwards: until then standard error is the program's.
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = said.clone();
    let options = Options {
        zstd: wanted.zstd,
        mode: wanted.mode,
        reporter: Reporter::to(move |event: &Event| {
            let mut said = heard.lock().unwrap_or_else(PoisonError::into_inner);
            said.push(event.to_string());
        }),
        ..Options::default()
    };
    let invite = |supervisor: &Path| {
        invite(supervisor).map_err(|error| Error::Refusal {
            what: error.to_string(),
        })
    };
    let pid = wanted.pid.cast_signed();
    let dumped = dump_adopted(wanted.directory, pid, wanted.kill, &options, invite);
    let said = said.lock().unwrap_or_else(PoisonError::into_inner);
    said.iter().for_each(|event| eprintln!("snaprig: {event}"));
    Ok(dumped?)
}
