//! Programs that know nothing of COI (what micnativeloadex runs): stdio over the connection.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use snaprig_offload_wire::coi::{FromDaemon, LIBRARIES_MAX, Program};

use super::{Daemon, machine::Pid};
use crate::{brought, frames, scif::Endpoint, spawn::Spawn};

/// A native program's stdio.
pub struct Native {
    /// Its process group.
    group: Pid,
    stdin: Stdin,
    outputs: [JoinHandle<()>; 2],
}

/// Its standard input, until the host closes it or the program does.
#[derive(Clone)]
pub struct Stdin(Arc<Mutex<Option<PipeWriter>>>);

impl Native {
    /// Its standard input.
    pub fn stdin(&self) -> Stdin {
        self.stdin.clone()
    }

    /// Ends what it has left behind in its group, and waits until all output is on its way.
    pub fn finish(self) {
        super::kill(-self.group, libc::SIGKILL);
        for output in self.outputs {
            // It ends with the pipe; a panic in it has lost output and nothing else.
            let _ = output.join();
        }
    }
}

impl Stdin {
    /// Writes to it; no bytes close it.
    pub fn write(&self, bytes: &[u8]) {
        let mut stdin = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = !bytes.is_empty()
            && stdin
                .as_mut()
                .is_some_and(|stdin| stdin.write_all(bytes).is_ok());
        if !open {
            *stdin = None;
        }
    }
}

/// Brings what comes along, and starts a program with its stdio on the connection; its id and path.
pub fn start(
    daemon: &Daemon,
    host: &Arc<Endpoint>,
    program: &Program,
) -> io::Result<(Pid, String)> {
    if program.libraries.len() > LIBRARIES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for library in &program.libraries {
        brought::library(host, library)?;
    }
    let path = program.name.clone();
    let (stdin, to_stdin) = io::pipe()?;
    let (from_stdout, stdout) = io::pipe()?;
    let (from_stderr, stderr) = io::pipe()?;
    let spawn = Spawn {
        path: &path,
        argv: &program.argv,
        env: &program.env,
        stdio: [
            Some(stdin.as_fd()),
            Some(stdout.as_fd()),
            Some(stderr.as_fd()),
        ],
        own_group: true,
    };
    let pid = spawn.start()?;
    let native = Native {
        group: pid,
        stdin: Stdin(Arc::new(Mutex::new(Some(to_stdin)))),
        outputs: [pump(host, 1, from_stdout), pump(host, 2, from_stderr)],
    };
    daemon.lock().natives.insert(pid, native);
    daemon.child_started();
    Ok((pid, path))
}

fn pump(host: &Arc<Endpoint>, stream: u8, mut from: PipeReader) -> JoinHandle<()> {
    let host = host.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let output = FromDaemon::Output(stream, buffer[..count].to_vec());
            if frames::send(&host, &output).is_err() {
                return;
            }
        }
    })
}
