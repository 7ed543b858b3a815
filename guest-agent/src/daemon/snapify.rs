//! Bringing a process back (paper section 4.3): local store and binaries to the card, then the
//! image, on the fly.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::Path,
};

use snaprig_offload_wire::snapify::{BINARIES, IMAGE, LOCAL_STORE, Request, StoredFile};
use snaprig_snapify_io_client::{self as snapify_io, Kind};
use snaprig_wire::{
    checkpoint::{self, Restore},
    scif::HOST,
};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Daemon,
    control::{PROGRAMS, Remains},
    machine::{Failure, Pid},
    proxy::Proxy,
};
use crate::brought;

/// Does a `Restore` request; the process's id. Nothing of a failed one stays on the card.
pub fn restore(daemon: &Daemon, request: &Request) -> Result<Pid, Failure> {
    let Request::Restore {
        snapshot,
        local_store,
        binaries,
        proxy,
    } = request
    else {
        let why = "no restore".into();
        return Err(Failure {
            errno: libc::EINVAL,
            why,
        });
    };
    let mut made = Vec::new();
    let result = (|| {
        for (directory, files) in [(LOCAL_STORE, local_store), (BINARIES, binaries)] {
            for file in files {
                // A program may be there already, and even run, and a library may be the card's own.
                // A local store that is there is that of a living process.
                let from = format!("{snapshot}/{directory}/{}", file.name);
                let path = Path::new(&file.card_path);
                let is_store = directory == LOCAL_STORE;
                let fetched = match path.exists() {
                    true if is_store => Err(io::Error::from_raw_os_error(libc::EEXIST)),
                    true if brought::is_own(path, file.len) => Ok(()),
                    _ => fetch(&from, file, !is_store),
                };
                fetched.map_err(|error| describe(&file.card_path, &error))?;
                if directory == LOCAL_STORE {
                    made.push(&file.card_path);
                }
            }
        }
        let image = format!("{snapshot}/{IMAGE}");
        let mut started = |error| describe(IMAGE, &error);
        let proxied = proxy.then(Proxy::new).transpose().map_err(&mut started)?;
        let written = proxied.as_ref().map(|(_, written)| written.fds());
        let [out, err] = written.map_or([1, 2], |fds| fds.map(|fd| fd.as_raw_fd()));
        let pid = read_image(&image, [0, out, err]).map_err(started)?;
        let mut files = binaries.iter().map(|file| file.card_path.clone());
        let program = files.find(|path| path.starts_with(PROGRAMS));
        let proxy = proxied.map(|(proxy, _)| proxy);
        let remains = Remains::of_restored(program.unwrap_or_default(), proxy);
        daemon.lock().remains.insert(pid, remains);
        Ok(pid)
    })();
    match result {
        Ok(_) => daemon.child_started(),
        Err(_) => {
            for path in made {
                // It may not have come so far.
                let _ = fs::remove_file(path);
            }
        }
    }
    result
}

fn describe(what: &str, error: &io::Error) -> Failure {
    let hint = match error.raw_os_error() {
        Some(libc::ENOMEM | libc::ENOSPC) => "; restore it on a card with more memory",
        Some(libc::EEXIST) => "; a process with its id runs on this card, restore it on another",
        _ => "",
    };
    Failure {
        errno: error.raw_os_error().unwrap_or(0),
        why: format!("{what}: {error}{hint}"),
    }
}

fn read_image(path: &str, stdio: [i32; 3]) -> io::Result<Pid> {
    let image = snapify_io::open_read(HOST, path, Kind::Snapshot)?;
    let service = OpenOptions::new()
        .read(true)
        .write(true)
        .open(checkpoint::PATH)?;
    let argument = Restore {
        fd: image.as_raw_fd(),
        stdio,
    };
    // SAFETY: the request's argument is a `Restore`, valid for the call.
    let pid = unsafe {
        libc::ioctl(
            service.as_raw_fd(),
            checkpoint::RESTORE.into(),
            &raw const argument,
        )
    };
    match pid {
        0.. => Ok(pid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Brings one file to the card, under its name only when it is whole: whoever has an earlier one
/// open keeps that.
fn fetch(from: &str, file: &StoredFile, is_binary: bool) -> io::Result<()> {
    brought::named_when_whole(Path::new(&file.card_path), |partial| {
        let mut to = File::create(partial)?;
        snapify_io::open_read(HOST, from, Kind::Snapshot)?.copy_to(&mut to)?;
        if is_binary {
            brought::mark(&to, hash(partial)?)?;
        }
        fs::set_permissions(partial, fs::Permissions::from_mode(file.mode))
    })
}

/// The hash of a file's bytes.
fn hash(path: &Path) -> io::Result<u64> {
    let mut hasher = Xxh3::new();
    io::copy(&mut File::open(path)?, &mut Hashing(&mut hasher))?;
    Ok(hasher.digest())
}

struct Hashing<'a>(&'a mut Xxh3);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
