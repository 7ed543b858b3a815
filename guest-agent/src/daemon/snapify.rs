//! Snapify's coordinator (paper section 4.1, figure 3): relays requests of the host process to the
//! offload process, and restores processes.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::Path,
    sync::Arc,
};

use snaprig_wire::{
    checkpoint::{self, Restore},
    scif::HOST,
    snapify::{BINARIES, IMAGE, LOCAL_STORE, Purpose, Reply, Request, SIGNAL, StoredFile},
};

use super::{Daemon, kill};
use crate::{frames, scif::Endpoint, snapify_io};

/// Serves one host process's snapshots of one process.
pub fn serve(daemon: &Arc<Daemon>, host: &Arc<Endpoint>) -> io::Result<()> {
    // The paper's pipe to the offload process, from pause to resume.
    let mut pipe: Option<UnixStream> = None;
    loop {
        let request: Request = match frames::receive(host) {
            Ok(request) => request,
            // The host process is gone; dropping the pipe resumes the offload process, whose own
            // control connection decides about its life.
            Err(_) => return Ok(()),
        };
        let reply = handle(daemon, &mut pipe, request).unwrap_or_else(|error| Reply::Failed {
            step: "in the COI daemon".into(),
            errno: error.raw_os_error().unwrap_or(0),
            why: error.to_string(),
        });
        frames::send(host, &reply)?;
    }
}

fn handle(
    daemon: &Arc<Daemon>,
    pipe: &mut Option<UnixStream>,
    request: Request,
) -> io::Result<Reply> {
    match request {
        Request::Pause { pid } => {
            if pipe.is_some() {
                return Err(io::Error::other("the process is paused already"));
            }
            kill(pid, SIGNAL);
            let (hello, mut stream) = daemon.hello_of(pid)?;
            if hello.why != Purpose::Signalled {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let reply = ask(&mut stream, &request)?;
            *pipe = Some(stream);
            Ok(reply)
        }
        Request::Capture {
            pid,
            terminate: true,
            ..
        } => {
            let reply = relay(pipe, &request)?;
            if let Reply::Captured { .. } = reply {
                daemon.wait_until_cleaned_up(pid);
                *pipe = None;
            }
            Ok(reply)
        }
        Request::Drain { .. } | Request::Capture { .. } => relay(pipe, &request),
        Request::Resume { .. } => {
            let reply = relay(pipe, &request)?;
            *pipe = None;
            Ok(reply)
        }
        Request::Restore {
            snapshot,
            local_store,
            binaries,
        } => {
            let (pid, port, stream) = restore(daemon, &snapshot, &local_store, &binaries)?;
            *pipe = Some(stream);
            Ok(Reply::Restored { pid, port })
        }
    }
}

fn relay(pipe: &mut Option<UnixStream>, request: &Request) -> io::Result<Reply> {
    let stream = pipe
        .as_mut()
        .ok_or(io::Error::other("the process is not paused"))?;
    ask(stream, request)
}

fn ask(stream: &mut UnixStream, request: &Request) -> io::Result<Reply> {
    frames::write(stream, request)?;
    frames::read(stream)
}

/// Section 4.3: local store and binaries to the card, then the image, on the fly.
fn restore(
    daemon: &Arc<Daemon>,
    snapshot: &str,
    local_store: &[StoredFile],
    binaries: &[StoredFile],
) -> io::Result<(i32, u16, UnixStream)> {
    let mut made = Vec::new();
    let result = (|| {
        for (directory, files) in [(LOCAL_STORE, local_store), (BINARIES, binaries)] {
            for file in files {
                made.push(file.card_path.clone());
                fetch(&format!("{snapshot}/{directory}/{}", file.name), file)?;
            }
        }
        let image = snapify_io::open_read(HOST, &format!("{snapshot}/{IMAGE}"))?;
        let service = OpenOptions::new()
            .read(true)
            .write(true)
            .open(checkpoint::PATH)?;
        let argument = Restore {
            fd: image.as_raw_fd(),
            stdio: [0, 1, 2],
        };
        // SAFETY: the request's argument is a `Restore`, valid for the call.
        let pid = unsafe {
            libc::ioctl(
                service.as_raw_fd(),
                checkpoint::RESTORE.into(),
                &raw const argument,
            )
        };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        daemon.child_started();
        let (hello, stream) = daemon.hello_of(pid)?;
        match hello.why {
            Purpose::Restarted { port } => Ok((pid, port, stream)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    })();
    if result.is_err() {
        for path in made {
            // Nothing of a failed restore stays on the card.
            let _ = fs::remove_file(path);
        }
    }
    result
}

fn fetch(from: &str, file: &StoredFile) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let path = Path::new(&file.card_path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut source = snapify_io::open_read(HOST, from)?;
    let mut to = File::create(path)?;
    source.copy_to(&mut to)?;
    fs::set_permissions(path, fs::Permissions::from_mode(file.mode))
}
