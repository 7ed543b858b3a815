//! Bringing a process back (paper section 4.3): local store and binaries to the card, then the
//! image, on the fly.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::Path,
};

use snaprig_offload_wire::snapify::{BINARIES, LOCAL_STORE, Request, StoredFile, image};
use snaprig_snapify_io_client::{self as snapify_io, Kind};
use snaprig_wire::{
    checkpoint::{self, Preload, Restore},
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
pub fn restore(
    daemon: &Daemon,
    preloaded: Option<File>,
    request: &Request,
) -> Result<Pid, Failure> {
    let Request::Restore {
        snapshot,
        number,
        local_store,
        from,
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
        for file in local_store {
            let place = match *from {
                HOST => &format!("{snapshot}/{LOCAL_STORE}/{}", file.name),
                _ => &file.card_path,
            };
            // One that is there is that of a living process.
            let fetched = match Path::new(&file.card_path).exists() {
                true => Err(io::Error::from_raw_os_error(libc::EEXIST)),
                false => fetch((*from, place), file, false),
            };
            fetched.map_err(|error| describe(&file.card_path, &error))?;
            made.push(&file.card_path);
        }
        fetch_binaries(snapshot, *number, binaries)?;
        let name = image(*number);
        let mut started = |error| describe(&name, &error);
        let proxied = proxy.then(Proxy::new).transpose().map_err(&mut started)?;
        let written = proxied.as_ref().map(|(_, written)| written.fds());
        let [out, err] = written.map_or([1, 2], |fds| fds.map(|fd| fd.as_raw_fd()));
        // An image that builds on others needs them, and says so if they are not there.
        let service = preloaded.map_or_else(service, Ok).map_err(&mut started)?;
        let path = format!("{snapshot}/{name}");
        let pid = read_image(&service, &path, [0, out, err]).map_err(started)?;
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

pub fn describe(what: &str, error: &io::Error) -> Failure {
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

/// Does a `Preload` request, on what is left of the earlier ones of its connection.
pub fn preload(service: &File, request: &Request) -> Result<(), Failure> {
    let Request::Preload {
        snapshot,
        number,
        binaries,
    } = request
    else {
        return Ok(());
    };
    fetch_binaries(snapshot, *number, binaries)?;
    let name = image(*number);
    let read = || {
        let image = snapify_io::open_read(HOST, &format!("{snapshot}/{name}"), Kind::Snapshot)?;
        let fd = image.as_raw_fd();
        let (argument, request) = (Preload { fd }, checkpoint::PRELOAD.into());
        // SAFETY: the request's argument is a `Preload`, valid for the call.
        match unsafe { libc::ioctl(service.as_raw_fd(), request, &raw const argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    read().map_err(|error| describe(&name, &error))
}

/// The card's checkpoint service.
pub fn service() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).open(checkpoint::PATH)
}

fn read_image(service: &File, path: &str, stdio: [i32; 3]) -> io::Result<Pid> {
    let image = snapify_io::open_read(HOST, path, Kind::Snapshot)?;
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

/// The program and its libraries, with the first image of a chain: what is there already may even run, or be the card's own.
/// They are there for the others, unless they were an earlier life's on this card, and went with that.
fn fetch_binaries(snapshot: &str, number: u32, files: &[StoredFile]) -> Result<(), Failure> {
    for file in files {
        let path = Path::new(&file.card_path);
        let is_there = brought::is_own(path, file.len) || number > 0 && path.exists();
        if !is_there {
            let from = format!("{snapshot}/{BINARIES}/{}", file.name);
            let fetched = fetch((HOST, &from), file, true);
            fetched.map_err(|error| describe(&file.card_path, &error))?;
        }
    }
    Ok(())
}

/// Brings one file of another node to the card, under its name only when it is whole: whoever has an earlier one
/// open keeps that.
fn fetch((node, from): (u16, &str), file: &StoredFile, is_binary: bool) -> io::Result<()> {
    brought::named_when_whole(Path::new(&file.card_path), |partial| {
        let mut to = File::create(partial)?;
        snapify_io::open_read(node, from, Kind::Snapshot)?.copy_to(&mut to)?;
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
