//! Case 1: starting programs, and what is left of them.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::OpenOptionsExt,
    },
    ptr,
};

use snaprig_wire::coi::{BINARY_BYTES_MAX, Program};

use super::{
    Daemon,
    machine::{Failure, Pid},
    native::Native,
};
use crate::{scif::Endpoint, spawn::Spawn};

/// Fetches a program and starts it; its id and path.
pub fn start(daemon: &Daemon, host: &Endpoint, program: &Program) -> io::Result<(Pid, String)> {
    let path = fetch(daemon, host, program)?;
    let stdin = File::open("/dev/null")?;
    let spawn = Spawn {
        path: &path,
        argv: &program.argv,
        env: &program.env,
        stdio: [Some(stdin.as_fd()), None, None],
        own_group: false,
    };
    let pid = spawn.start()?;
    daemon.child_started();
    Ok((pid, path))
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

/// Brings a program's bytes from the host into a file of their own.
fn fetch(daemon: &Daemon, host: &Endpoint, program: &Program) -> io::Result<String> {
    if program.bytes > BINARY_BYTES_MAX || program.name.contains('/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let directory = new_directory(daemon)?;
    let path = format!("{directory}/{}", program.name);
    if let Err(error) = fetch_into(&path, host, program) {
        let _ = fs::remove_dir_all(&directory);
        return Err(error);
    }
    Ok(path)
}

/// A directory for one program. A process that was restored here has brought the one that it had elsewhere.
fn new_directory(daemon: &Daemon) -> io::Result<String> {
    const PROGRAMS: &str = "/tmp/coi_procs/programs";
    fs::create_dir_all(PROGRAMS)?;
    loop {
        let number = {
            let mut inner = daemon.lock();
            inner.next_program += 1;
            inner.next_program
        };
        let directory = format!("{PROGRAMS}/{number}");
        match fs::create_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| directory),
        }
    }
}

/// By RDMA, straight into the file's pages.
fn fetch_into(path: &str, host: &Endpoint, program: &Program) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o755);
    let file = options.open(path)?;
    file.set_len(program.bytes)?;
    let len = program.bytes as usize;
    if len == 0 {
        return Ok(());
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let fd = file.as_raw_fd();
    // SAFETY: a new shared mapping of a file of ours; the result is checked.
    let pages = unsafe { libc::mmap(ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, 0) };
    if pages == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let fetched = host.vreadfrom(pages as usize, program.bytes, program.window);
    // SAFETY: the mapping is ours, and nothing refers to it.
    unsafe { libc::munmap(pages, len) };
    fetched
}

/// Takes away what an ended process leaves, and waits for its last output.
pub fn clean_up(pid: Pid, native: Option<Native>) {
    // It has no files if it had no buffers.
    let _ = fs::remove_dir_all(format!("/tmp/coi_procs/{pid}"));
    if let Some(native) = native {
        native.finish();
    }
}
