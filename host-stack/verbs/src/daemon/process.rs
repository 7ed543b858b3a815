//! The process that is a fabric's control daemon.

use std::{error::Error, fs, io};

use snaprig_fabric::place::{self, Place};

use super::Daemon;

/// Becomes the daemon of the fabric that the environment names: what a `snaprig` program does for
/// [`snaprig_fabric::start::PROCESS`]. The calling process has one thread.
pub fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let daemon = Daemon::start(Place::from_env()?, place::setup_from_env()?)?;
    // So that it is nobody's child: who started it waits for this process alone.
    // SAFETY: this process has one thread, for the daemon starts its own later, so its child is a whole copy of it, and
    // may do what it likes.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error().into()),
        0 => {}
        _ => return Ok(()),
    }
    rustix::process::setsid()?;
    println!("ready");
    // The end of what it prints is what its starter waits for.
    let null = fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    daemon.run()?;
    Ok(())
}
