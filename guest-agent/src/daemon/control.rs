//! Case 1: creating and destroying offload processes.

use std::{
    fs, io,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use snaprig_wire::{
    coi::{FromDaemon, Program, ToDaemon},
    snapify::Purpose,
};

use super::{Daemon, kill};
use crate::{frames, scif::Endpoint};

/// Makes a process and looks after it.
pub fn create(daemon: &Arc<Daemon>, host: &Arc<Endpoint>, program: &Program) -> io::Result<()> {
    let (pid, port, path) = match start(daemon, host, program) {
        Ok(started) => started,
        Err(error) => return frames::send(host, &failed(program, &error)),
    };
    frames::send(host, &FromDaemon::Created { pid, port, path })?;
    watch(daemon, host, pid)
}

/// The answer to a request that could not be done.
pub fn failed(program: &Program, error: &io::Error) -> FromDaemon {
    let hint = match error.raw_os_error() {
        Some(libc::ENOEXEC) => "; a card runs x86-64 ELF programs",
        Some(libc::ENOMEM | libc::ENOSPC) => "; give the card more memory",
        _ => "",
    };
    FromDaemon::Failed {
        errno: error.raw_os_error().unwrap_or(0),
        why: format!("{}: {error}{hint}", program.name),
    }
}

fn start(daemon: &Daemon, host: &Endpoint, program: &Program) -> io::Result<(i32, u16, String)> {
    let path = daemon.receive_program(host, program)?;
    let child = command(&path, program).stdin(Stdio::null()).spawn()?;
    daemon.child_started();
    let pid = child.id() as i32;
    match daemon.hello_of(pid)?.0.why {
        Purpose::Started { port } => Ok((pid, port, path)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A program with its arguments and environment.
pub fn command(path: &str, program: &Program) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(path);
    if let Some((name, arguments)) = program.argv.split_first() {
        command.arg0(name).args(arguments);
    }
    command.env_clear();
    command.envs(program.env.iter().filter_map(|entry| entry.split_once('=')));
    command
}

/// Tells the host how the process ended; ends it when the host asks, or is gone.
pub fn watch(daemon: &Arc<Daemon>, host: &Arc<Endpoint>, pid: i32) -> io::Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    let (telling, to, has_ended) = (daemon.clone(), host.clone(), ended.clone());
    std::thread::spawn(move || {
        let exit = telling.end_of(pid);
        has_ended.store(true, Ordering::SeqCst);
        // It has no files if it had no buffers.
        let _ = fs::remove_dir_all(format!("/tmp/coi_procs/{pid}"));
        telling.cleaned_up(pid);
        // A host process that is gone needs no telling.
        let _ = frames::send(&to, &FromDaemon::Exited(exit));
    });
    // Whatever else comes, Destroy or the end of the connection, means the end of the process. If
    // it has ended already, its id may by now be that of its restored successor.
    while !matches!(
        frames::receive::<ToDaemon>(host),
        Ok(ToDaemon::Destroy) | Err(_)
    ) {}
    if !ended.load(Ordering::SeqCst) {
        kill(pid, libc::SIGKILL);
    }
    Ok(())
}
