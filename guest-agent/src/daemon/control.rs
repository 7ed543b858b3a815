//! Case 1: starting programs, and what is left of them.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::AsFd,
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use snaprig_offload_wire::coi::{BINARY_BYTES_MAX, Exit, LIBRARIES_MAX, Program};

use super::{
    Daemon,
    machine::{Failure, Pid},
    native::Native,
    proxy::Proxy,
};
use crate::{brought, environment, scif::Endpoint, spawn::Spawn};

/// Where programs are, each in a directory of its own.
pub const PROGRAMS: &str = "/tmp/coi_procs/programs";
/// What the loader exits with when a library or a symbol is missing.
const LOADER_FAILED: i32 = 127;
/// Most bytes of what the loader has to say.
const COMPLAINT_BYTES_MAX: u64 = 64 << 10;

/// What is left of an offload process when it has ended.
#[derive(Default)]
pub struct Remains {
    /// Where its program is.
    path: String,
    env: Vec<String>,
    /// What it has written.
    pub proxy: Option<Proxy>,
}

impl Remains {
    /// Of a process that was restored.
    pub fn of_restored(path: String, proxy: Option<Proxy>) -> Self {
        let env = Vec::new();
        Self { path, env, proxy }
    }
}

/// Fetches a program and its libraries, and starts it; its id and path.
pub fn start(
    daemon: &Daemon,
    host: &Arc<Endpoint>,
    program: &Program,
) -> io::Result<(Pid, String)> {
    let path = fetch(host, program)?;
    let started = start_at(daemon, host, program, &path);
    if started.is_err() {
        remove_directory_of(&path);
    }
    started.map(|pid| (pid, path))
}

fn start_at(
    daemon: &Daemon,
    host: &Arc<Endpoint>,
    program: &Program,
    path: &str,
) -> io::Result<Pid> {
    let env = environment::of(program);
    let stdin = File::open("/dev/null")?;
    let proxied = program.proxy.then(Proxy::new).transpose()?;
    let written = proxied.as_ref().map(|(_, written)| written.fds());
    let [out, err] = written.map_or([None, None], |fds| fds.map(Some));
    let spawn = Spawn {
        path,
        argv: &program.argv,
        env: &env,
        stdio: [Some(stdin.as_fd()), out, err],
        own_group: false,
    };
    let pid = spawn.start()?;
    let proxy = proxied.map(|(proxy, _)| proxy);
    if let Some(proxy) = &proxy {
        proxy.start(host);
    }
    let path = path.to_owned();
    let remains = Remains { path, env, proxy };
    daemon.lock().remains.insert(pid, remains);
    daemon.child_started();
    Ok(pid)
}

/// Why a program did not start, and what to do about it.
pub fn describe(program: &Program, error: &io::Error) -> Failure {
    let hint = match error.raw_os_error() {
        Some(libc::ENOEXEC) => "; a card runs x86-64 ELF programs",
        // The program itself is there.
        Some(libc::ENOENT) => {
            "; its loader is not on the card: bring it along with its libraries, or link it with -static"
        }
        Some(libc::ENOMEM | libc::ENOSPC) => "; give the card more memory",
        _ => "",
    };
    Failure {
        errno: brought::errno(error),
        why: format!("{}: {error}{hint}", program.name),
    }
}

/// Why a program ended before it could be reached: what the loader misses, if it was that.
pub fn examine(remains: Option<(String, Vec<String>)>, exit: Exit) -> Failure {
    let complaint = remains
        .filter(|_| exit == Exit::Code(LOADER_FAILED))
        .and_then(|(path, env)| complaint_of_loader(&path, env).ok());
    let (errno, why) = complaint.unwrap_or_else(|| {
        let why = "the process ended before it could be reached (is it linked with libcoi_device?)";
        (0, format!("{why}: {exit:?}"))
    });
    Failure { errno, why }
}

/// What the loader says when it is asked to load a program, and not to run it (ld.so(8)).
fn complaint_of_loader(path: &str, mut env: Vec<String>) -> io::Result<(i32, String)> {
    env.extend(["LD_TRACE_LOADED_OBJECTS=1", "LD_WARN=1", "LD_BIND_NOW=1"].map(str::to_owned));
    let (from, to) = io::pipe()?;
    let spawn = Spawn {
        path,
        argv: &[path.to_owned()],
        env: &env,
        stdio: [None, Some(to.as_fd()), Some(to.as_fd())],
        own_group: false,
    };
    spawn.start()?;
    drop(to);
    let mut said = Vec::new();
    from.take(COMPLAINT_BYTES_MAX).read_to_end(&mut said)?;
    let said = String::from_utf8_lossy(&said);
    missing(&said).ok_or(io::ErrorKind::NotFound.into())
}

/// The error number and the text of what is missing, by what ldd(1) would print.
fn missing(said: &str) -> Option<(i32, String)> {
    let lines = |text: &str| {
        let lines = said.lines().map(str::trim);
        let lines: Vec<_> = lines.filter(|line| line.contains(text)).collect();
        lines.join("; ")
    };
    for (text, errno) in [
        ("not found", libc::ELIBACC),
        ("undefined symbol", libc::ENOSYS),
        ("error while loading shared libraries", libc::ELIBACC),
    ] {
        let found = lines(text);
        if !found.is_empty() {
            return Some((errno, found));
        }
    }
    None
}

/// Brings a program's bytes from the host into a file of their own, and its libraries.
fn fetch(host: &Endpoint, program: &Program) -> io::Result<String> {
    if program.bytes > BINARY_BYTES_MAX
        || program.libraries.len() > LIBRARIES_MAX
        || program.name.contains('/')
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let directory = new_directory()?;
    let path = format!("{directory}/{}", program.name);
    let fetched: io::Result<()> = (|| {
        brought::window(host, Path::new(&path), program.bytes, program.window)?;
        let mut libraries = program.libraries.iter();
        libraries.try_for_each(|library| brought::library(host, library))
    })();
    if fetched.is_err() {
        remove_directory_of(&path);
    }
    fetched.map(|()| path)
}

/// A directory for one program. A process that was restored here has brought the one that it had
/// elsewhere, so a name is one that no other card gives.
fn new_directory() -> io::Result<String> {
    fs::create_dir_all(PROGRAMS)?;
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        let directory = format!("{PROGRAMS}/{now:x}");
        match fs::create_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| directory),
        }
    }
}

/// Takes a program's own directory away.
fn remove_directory_of(path: &str) {
    let directory = Path::new(path).parent();
    if let Some(directory) = directory.filter(|one| one.parent() == Some(Path::new(PROGRAMS))) {
        // It may be gone already.
        let _ = fs::remove_dir_all(directory);
    }
}

/// Takes away what an ended process leaves, and waits for its last output.
pub fn clean_up(pid: Pid, native: Option<Native>, remains: Option<Remains>) {
    if let Some(Remains { path, proxy, .. }) = remains {
        if let Some(proxy) = proxy {
            proxy.finish();
        }
        remove_directory_of(&path);
    }
    // It has no files if it had no buffers.
    let _ = fs::remove_dir_all(format!("/tmp/coi_procs/{pid}"));
    if let Some(native) = native {
        native.finish();
    }
}

impl Remains {
    /// Its program and environment.
    pub fn program(&self) -> (String, Vec<String>) {
        (self.path.clone(), self.env.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let said =
            "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tliba.so => not found\n\tlibb.so => not found\n";
        let found = missing(said).unwrap();
        let expected = "liba.so => not found; libb.so => not found";
        assert_eq!(found, (libc::ELIBACC, expected.to_owned()));
        let (errno, why) = missing("x: undefined symbol: frobnicate\t(./x)\n").unwrap();
        assert!(errno == libc::ENOSYS && why.contains("frobnicate"));
        assert_eq!(missing("\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"), None);
    }
}
