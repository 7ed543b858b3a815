//! Programs that know nothing of COI (what micnativeloadex runs): stdio over the connection.

use std::{
    io::{self, Read, Write},
    process::Stdio,
    sync::Arc,
};

use snaprig_wire::coi::{FromDaemon, Program, ToDaemon};

use super::{Daemon, control, kill};
use crate::{frames, scif::Endpoint};

/// Runs the program to its end.
pub fn run(daemon: &Arc<Daemon>, host: &Arc<Endpoint>, program: &Program) -> io::Result<()> {
    let spawned = daemon.receive_program(host, program).and_then(|path| {
        control::command(&path, program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    });
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return frames::send(host, &control::failed(program, &error)),
    };
    daemon.child_started();
    let pid = child.id() as i32;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let pumps = [pump(host, 1, out), pump(host, 2, err)];
    let mut stdin = child.stdin.take();
    let from = host.clone();
    std::thread::spawn(move || {
        loop {
            match frames::receive(&from) {
                Ok(ToDaemon::Stdin(bytes)) if bytes.is_empty() => stdin = None,
                Ok(ToDaemon::Stdin(bytes)) => {
                    if stdin
                        .as_mut()
                        .is_some_and(|to| to.write_all(&bytes).is_err())
                    {
                        stdin = None;
                    }
                }
                _ => break kill(pid, libc::SIGKILL),
            }
        }
    });
    let exit = daemon.end_of(pid);
    for pump in pumps {
        // It ends with the pipe; a panic in it has lost output and nothing else.
        let _ = pump.join();
    }
    frames::send(host, &FromDaemon::Exited(exit))
}

fn pump(
    host: &Arc<Endpoint>,
    stream: u8,
    from: Option<impl Read + Send + 'static>,
) -> std::thread::JoinHandle<()> {
    let host = host.clone();
    std::thread::spawn(move || {
        let Some(mut from) = from else { return };
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let output = FromDaemon::Output(stream, buffer[..count].to_vec());
            if frames::send(&host, &output).is_err() {
                return;
            }
        }
    })
}
