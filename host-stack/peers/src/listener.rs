//! A socket at which peers are waited for.
//!
//! What must stay true: who sees a Unix socket's name can connect to it, because it has its name only once it listens.
//! Only the socket of one that is dead is replaced: neither a file of another kind, nor a socket that somebody listens
//! at. A listener takes away its own name when it is dropped, and not that of whoever came after it.

use std::{
    fs, io,
    net::{TcpListener, ToSocketAddrs},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::{FileTypeExt, MetadataExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::{
    address::{Address, connect_unix},
    name::Name,
    stream::Stream,
};

/// How long it is tried to connect to a socket that is there already.
const PROBE_MAX: Duration = Duration::from_millis(100);

/// A socket at which peers are waited for.
#[derive(Debug)]
pub enum Listener {
    /// In the file system.
    Unix(NamedListener),
    /// At a port.
    Tcp(TcpListener),
}

/// A Unix socket that listens, and its name.
#[derive(Debug)]
pub struct NamedListener {
    socket: UnixListener,
    path: PathBuf,
    /// Which file is its own: device and inode.
    file: (u64, u64),
}

impl Listener {
    /// Listens at an address; a socket that a dead process has left there is replaced.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => NamedListener::bind(path).map(Self::Unix),
            Address::Tcp(host) => bind_tcp(host).map(Self::Tcp),
        }
    }

    /// Whether accepting waits for a peer.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Unix(listener) => listener.socket.set_nonblocking(is_nonblocking),
            Self::Tcp(listener) => listener.set_nonblocking(is_nonblocking),
        }
    }

    /// Where it is: with the port that the kernel chose, if that was left to it.
    pub fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Unix(listener) => Address::Unix(listener.path.clone()),
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?.to_string()),
        })
    }

    /// The next connection.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener) => Ok(Stream::Unix(listener.socket.accept()?.0)),
            Self::Tcp(listener) => Stream::tcp(listener.accept()?.0),
        }
    }
}

/// Listens at a port.
pub fn bind_tcp(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => io::Error::new(
            error.kind(),
            "another process listens there; port 0 is any that is free",
        ),
        _ => error,
    })
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.socket.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl NamedListener {
    fn bind(path: &Path) -> io::Result<Self> {
        remove_dead(path)?;
        let unnamed = unused_name(path);
        let socket = UnixListener::bind(Name::of(&unnamed)?.as_path())?;
        let named = file_of(&unnamed).and_then(|file| {
            rename_new(&unnamed, path)?;
            Ok(file)
        });
        let file = named.inspect_err(|_| {
            // What is left of it is of no use to anybody.
            let _ = fs::remove_file(&unnamed);
        })?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            file,
        })
    }
}

impl Drop for NamedListener {
    fn drop(&mut self) {
        if file_of(&self.path).is_ok_and(|file| file == self.file) {
            // The name is of no use any more; if it stays, it is replaced some day.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Takes away the socket of a dead process. It is looked at under a name that nobody else knows, so that one that
/// somebody begins to listen at in this moment is found alive, and put back.
fn remove_dead(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path);
    let is_socket = found.is_ok_and(|found| found.file_type().is_socket());
    if !is_socket || is_alive(path) {
        // If there is something, it turns out when this one is to get the name.
        return Ok(());
    }
    let aside = unused_name(path);
    match fs::rename(path, &aside) {
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    match is_alive(&aside) {
        true => rename_new(&aside, path),
        false => fs::remove_file(&aside),
    }
}

/// Whether somebody listens at a socket. One whose queue is full does.
fn is_alive(path: &Path) -> bool {
    match connect_unix(path, PROBE_MAX) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Renames; fails if there is something of that name already.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::EXIST) => Err(io::ErrorKind::AddrInUse.into()),
        other => Ok(other?),
    }
}

/// A name beside another one that no other listener has, of whichever process.
fn unused_name(path: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{:x}-{number:x}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = Address::Unix(path.clone());
        // It ends without taking its name away, as if its process had been killed.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::bind(&address).unwrap();
        assert_eq!(listener.address().unwrap(), address);
        let again = Listener::bind(&address).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        address.connect(PROBE_MAX).unwrap();
        assert_eq!(names(directory.path()), ["socket"]);
        drop(listener);
        assert_eq!(names(directory.path()), Vec::<&str>::new());
    }

    #[test]
    fn a_file_of_another_kind_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "kept").unwrap();
        let refused = Listener::bind(&Address::Unix(path.clone())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        assert_eq!(names(directory.path()), ["file"]);
    }

    #[test]
    fn a_listener_leaves_the_name_to_its_successor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = Address::Unix(path.clone());
        let first = Listener::bind(&address).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Listener::bind(&address).unwrap();
        drop(first);
        address.connect(PROBE_MAX).unwrap();
        drop(second);
        assert!(!path.exists());
    }
}
