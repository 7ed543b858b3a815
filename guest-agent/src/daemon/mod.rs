//! The COI daemon: one a card. It starts, watches and ends offload processes for host processes,
//! and coordinates Snapify's pause (paper sections 2 and 4.1).
//!
//! One thread serves each connection of a host process; one waits for the ends of all processes;
//! one takes the connections of offload processes on a Unix socket.
//!
//! What must stay true: a process lives as long as the control connection that it was created (or
//! adopted) on; a process that is swapped out has ended, not crashed.

mod control;
mod native;
mod snapify;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::Command,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use snaprig_wire::{
    coi::{Exit, Program, ToDaemon},
    scif::port,
    snapify::{Hello, SOCKET},
};

use crate::{frames, scif::Endpoint};

const SNAPIFY_IOD: &str = "/bin/snapify_iod";
/// Where the daemon says that it listens.
const STATE: &str = "/dev/card/state";

/// What the daemon's threads share.
#[derive(Default)]
pub struct Daemon {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// Connections of offload processes that nobody has claimed yet.
    hellos: BTreeMap<i32, (Hello, UnixStream)>,
    /// How processes ended, until somebody asks.
    ended: BTreeMap<i32, Exit>,
    /// Processes that have ended and whose files are gone.
    cleaned_up: BTreeSet<i32>,
    next_program: u64,
}

/// Runs for ever.
pub fn main() -> io::Result<()> {
    let daemon = Arc::new(Daemon::default());
    let local = UnixListener::bind(SOCKET)?;
    let taking = daemon.clone();
    std::thread::spawn(move || taking.take_hellos(&local));
    if Path::new(SNAPIFY_IOD).exists() {
        Command::new(SNAPIFY_IOD).spawn()?;
    }
    let reaping = daemon.clone();
    std::thread::spawn(move || reaping.reap());
    let listener = Endpoint::open()?;
    listener.bind(port::COI_DAEMON)?;
    listener.listen(64)?;
    if Path::new(STATE).exists() {
        fs::write(STATE, "online")?;
    }
    loop {
        let (host, _) = listener.accept()?;
        let daemon = daemon.clone();
        std::thread::spawn(move || {
            if let Err(error) = daemon.serve(&Arc::new(host)) {
                eprintln!("coi_daemon: {error}");
            }
        });
    }
}

impl Daemon {
    fn serve(self: &Arc<Self>, host: &Arc<Endpoint>) -> io::Result<()> {
        match frames::receive(host)? {
            ToDaemon::Create(program) => control::create(self, host, &program),
            ToDaemon::Adopt { pid } => control::watch(self, host, pid),
            ToDaemon::Native(program) => native::run(self, host, &program),
            ToDaemon::Snapify => snapify::serve(self, host),
            ToDaemon::Destroy | ToDaemon::Stdin(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn take_hellos(&self, listener: &UnixListener) {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            if let Ok(hello) = frames::read::<Hello>(&mut stream) {
                self.lock().hellos.insert(hello.pid, (hello, stream));
                self.changed.notify_all();
            }
        }
    }

    /// Waits for a process's connection, or its end.
    fn hello_of(&self, pid: i32) -> io::Result<(Hello, UnixStream)> {
        let mut inner = self.lock();
        loop {
            if let Some(found) = inner.hellos.remove(&pid) {
                return Ok(found);
            }
            if let Some(exit) = inner.ended.get(&pid) {
                return Err(io::Error::other(format!("the process ended: {exit:?}")));
            }
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the end of a process.
    fn end_of(&self, pid: i32) -> Exit {
        let mut inner = self.lock();
        loop {
            if let Some(exit) = inner.ended.remove(&pid) {
                return exit;
            }
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The process has ended and nothing of it is left.
    fn cleaned_up(&self, pid: i32) {
        self.lock().cleaned_up.insert(pid);
        self.changed.notify_all();
    }

    /// Waits until nothing of the process is left, so that its successor can have its id.
    fn wait_until_cleaned_up(&self, pid: i32) {
        let mut inner = self.lock();
        while !inner.cleaned_up.remove(&pid) {
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Collects the ends of all children.
    fn reap(&self) {
        loop {
            let mut status = 0;
            // SAFETY: `status` is valid to write to.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
            if pid > 0 {
                let exit = match libc::WIFSIGNALED(status) {
                    true => Exit::Signal(libc::WTERMSIG(status)),
                    false => Exit::Code(libc::WEXITSTATUS(status)),
                };
                self.lock().ended.insert(pid, exit);
                self.changed.notify_all();
            } else {
                // No child now: wait until a thread says that there is one.
                let inner = self.lock();
                drop(
                    self.changed
                        .wait(inner)
                        .unwrap_or_else(PoisonError::into_inner),
                );
            }
        }
    }

    /// There is a new child.
    fn child_started(&self) {
        self.changed.notify_all();
    }

    /// Receives a program's bytes and puts them into a file of their own.
    fn receive_program(&self, host: &Endpoint, program: &Program) -> io::Result<String> {
        use std::os::unix::fs::PermissionsExt;
        if program.bytes > snaprig_wire::coi::BINARY_BYTES_MAX || program.name.contains('/') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let number = {
            let mut inner = self.lock();
            inner.next_program += 1;
            inner.next_program
        };
        let directory = format!("/tmp/coi_procs/programs/{number}");
        fs::create_dir_all(&directory)?;
        let path = format!("{directory}/{}", program.name);
        let received = receive_file(host, &path, program.bytes);
        let made =
            received.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
        if let Err(error) = made {
            let _ = fs::remove_dir_all(&directory);
            return Err(error);
        }
        Ok(path)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All bytes are taken off the connection even if they cannot be kept.
fn receive_file(host: &Endpoint, path: &str, bytes: u64) -> io::Result<()> {
    use std::io::Write;
    let mut file = fs::File::create(path);
    let (mut left, mut buffer) = (bytes, vec![0; 64 << 10]);
    let mut result = Ok(());
    while left > 0 {
        let want = buffer.len().min(left as usize);
        let count = host.recv(&mut buffer[..want])?;
        left -= count as u64;
        if let (Ok(()), Ok(file)) = (&result, &mut file) {
            result = file.write_all(&buffer[..count]);
        }
    }
    file.map(|_| ()).and(result)
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: no memory is involved. A process that is gone already is what was wanted.
    unsafe { libc::kill(pid, signal) };
}
