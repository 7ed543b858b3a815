//! Case 1: starting programs, and what is left of them.

use std::{
    fs,
    io::{self, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Stdio},
};

use snaprig_wire::coi::{BINARY_BYTES_MAX, Program};

use super::{
    Daemon,
    machine::{Failure, Pid},
    native::Native,
};
use crate::scif::Endpoint;

/// Receives a program and starts it; its id and path.
pub fn start(daemon: &Daemon, host: &Endpoint, program: &Program) -> io::Result<(Pid, String)> {
    let path = receive(daemon, host, program)?;
    let child = command(&path, program).stdin(Stdio::null()).spawn()?;
    daemon.child_started();
    Ok((child.id() as Pid, path))
}

/// A program with its arguments and environment.
pub fn command(path: &str, program: &Program) -> Command {
    let mut command = Command::new(path);
    if let Some((name, arguments)) = program.argv.split_first() {
        command.arg0(name).args(arguments);
    }
    command.env_clear();
    command.envs(program.env.iter().filter_map(|entry| entry.split_once('=')));
    command
}

/// Why a program did not start, and what to do about it.
pub fn describe(program: &Program, error: &io::Error) -> Failure {
    let hint = match error.raw_os_error() {
        Some(libc::ENOEXEC) => "; a card runs x86-64 ELF programs",
        // The program itself is there.
        Some(libc::ENOENT) => "; its loader is not on the card, link it with -static",
        Some(libc::ENOMEM | libc::ENOSPC) => "; give the card more memory",
        _ => "",
    };
    Failure {
        errno: error.raw_os_error().unwrap_or(0),
        why: format!("{}: {error}{hint}", program.name),
    }
}

/// Receives a program's bytes and puts them into a file of their own.
pub fn receive(daemon: &Daemon, host: &Endpoint, program: &Program) -> io::Result<String> {
    if program.bytes > BINARY_BYTES_MAX || program.name.contains('/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let number = {
        let mut inner = daemon.lock();
        inner.next_program += 1;
        inner.next_program
    };
    let directory = format!("/tmp/coi_procs/programs/{number}");
    fs::create_dir_all(&directory)?;
    let path = format!("{directory}/{}", program.name);
    let received = receive_file(host, &path, program.bytes);
    let executable = fs::Permissions::from_mode(0o755);
    let made = received.and_then(|()| fs::set_permissions(&path, executable));
    if let Err(error) = made {
        let _ = fs::remove_dir_all(&directory);
        return Err(error);
    }
    Ok(path)
}

/// All bytes are taken off the connection even if they cannot be kept.
fn receive_file(host: &Endpoint, path: &str, bytes: u64) -> io::Result<()> {
    let mut file = fs::File::create(path);
    let (mut left, mut buffer) = (bytes, vec![0; 64 << 10]);
    let mut result = Ok(());
    while left > 0 {
        let part = &mut buffer[..left.min(64 << 10) as usize];
        host.recv_exact(part)?;
        left -= part.len() as u64;
        if let (Ok(()), Ok(file)) = (&result, &mut file) {
            result = file.write_all(part);
        }
    }
    file.map(|_| ()).and(result)
}

/// Takes away what an ended process leaves, and waits for its last output.
pub fn clean_up(pid: Pid, native: Option<Native>) {
    // It has no files if it had no buffers.
    let _ = fs::remove_dir_all(format!("/tmp/coi_procs/{pid}"));
    if let Some(native) = native {
        native.finish();
    }
}
