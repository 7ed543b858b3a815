//! Connects to a fabric's daemon, and starts it if nobody has.
//!
//! Who connects, and the daemon when it ends, hold the lock file: so nobody connects to a daemon
//! that is about to end, and two do not start it at once.

use std::{
    env,
    ffi::{self, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    fs::{FlockOperation, flock},
    net::SocketFlags,
};
use snaprig_hca::control::Fabric as Setup;
use snaprig_peers::packets;
use snaprig_sdk::program;
pub use snaprig_sdk::program::EXE_ENV;

use crate::place::{FABRIC_ENV, HCAS_ENV, MODEL_ENV, PKEYS_ENV, Place, model_letters, pkeys_text};

/// The command by which a `snaprig` program becomes the daemon.
pub const PROCESS: &str = "fabric-process";

/// Variables of the environment.
pub type Environment = Vec<(&'static str, OsString)>;

/// Connects. A daemon that is started for it has `environment` beside this process's own.
pub fn connect(place: &Place, setup: &Setup, environment: &Environment) -> io::Result<OwnedFd> {
    let _held = hold(place)?;
    match try_connect(&place.socket()) {
        Err(error) if packets::is_nobody(&error) => {}
        other => return other,
    }
    start(place, setup, environment)?;
    try_connect(&place.socket())
}

/// Waits for the lock file, which a daemon that ended meanwhile took away.
fn hold(place: &Place) -> io::Result<File> {
    loop {
        let lock = place.create().and_then(|()| File::create(place.lock()));
        let lock = match lock {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        flock(&lock, FlockOperation::LockExclusive)?;
        let there = std::fs::metadata(place.lock());
        if there.is_ok_and(|there| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino())) {
            return Ok(lock);
        }
    }
}

/// Connects to a daemon that runs.
pub fn try_connect(path: &Path) -> io::Result<OwnedFd> {
    packets::connect(path, SocketFlags::empty())
}

fn start(place: &Place, setup: &Setup, environment: &Environment) -> io::Result<()> {
    let named = environment.iter().find(|(name, _)| *name == EXE_ENV);
    let program = match named {
        Some((_, program)) => program.into(),
        None => find_program()?,
    };
    let mut command = Command::new(&program);
    command
        .arg0(program::NAME)
        .arg(PROCESS)
        .envs(environment.iter().cloned())
        .env(FABRIC_ENV, &place.name)
        .env(HCAS_ENV, setup.hcas.len().to_string())
        .env(MODEL_ENV, model_letters(setup))
        .env(PKEYS_ENV, pkeys_text(&setup.pkeys))
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH")
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(place.log())?);
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", program.display()));
    let mut child = command.spawn().map_err(named)?;
    let mut ready = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut ready)?;
    }
    // The process that was started forks and ends, so that the daemon is nobody's child.
    child.wait()?;
    if ready.trim_end() == "ready" {
        return Ok(());
    }
    let log = std::fs::read_to_string(place.log()).unwrap_or_default();
    let why = format!(
        "{} {PROCESS} did not start: {}",
        program.display(),
        log.trim_end()
    );
    Err(io::Error::other(why))
}

/// The `snaprig` program: named by the environment, beside this library, or on the path.
fn find_program() -> io::Result<PathBuf> {
    if let Some(named) = env::var_os(EXE_ENV).filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let library = own_file().and_then(|path| path.canonicalize().ok());
    let directory = library.as_deref().and_then(Path::parent);
    // As cargo leaves them; as a package does, with the library in lib/snaprig/verbs.
    let names = ["snaprig", "../snaprig", "../../../bin/snaprig"];
    let mut near = directory
        .iter()
        .flat_map(|directory| names.map(|name| directory.join(name)));
    match near.find(|path| path.is_file()) {
        Some(program) => Ok(program),
        None => program::find(Path::new(program::NAME)),
    }
}

/// The file that this code is in (dladdr(3)).
pub fn own_file() -> Option<PathBuf> {
    // SAFETY: the structure is of pointers alone, so that zeroes, which are null pointers, are a
    // value of it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr(3) only looks an address up, and any may be asked for; it writes to the
    // structure, which is on this stack.
    if unsafe { libc::dladdr(own_file as *const ffi::c_void, &mut info) } == 0
        || info.dli_fname.is_null()
    {
        return None;
    }
    // SAFETY: the call succeeded and the name is not null: it is then a string that ends with a
    // null byte, which belongs to the loader and stays for as long as the library is loaded, and
    // this function is in it.
    let name = unsafe { ffi::CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(ffi::OsStr::from_bytes(name.to_bytes())))
}
