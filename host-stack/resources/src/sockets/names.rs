//! Names of sockets: those that an earlier instance has left behind are waited for.

use std::{
    env, fs, io,
    net::SocketAddr,
    os::{fd::AsFd, unix::fs::FileTypeExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use procfs::net::{TcpNetEntry, TcpState};

use super::socket;
use crate::{
    event::{Event, Reporter},
    opened::path_of,
    state::Socket,
};

/// What an earlier instance has left of its connections is gone after so long (TIME_WAIT is reused after a second).
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Where SO_REUSEADDR was not set it is not reused, but ends after a minute (TCP_TIMEWAIT_LEN).
const TIME_WAIT: Duration = Duration::from_secs(75);
/// Errors of bind(2), and of connect(2), of who may have it later.
const IN_USE: [Option<i32>; 2] = [Some(libc::EADDRINUSE), Some(libc::EADDRNOTAVAIL)];
/// A look whether it is gone.
const LOOK: Duration = Duration::from_millis(20);

/// SO_REUSEADDR for now; the program's own setting comes with its other options.
pub fn reuse(fd: impl AsFd) -> bool {
    socket::set_number(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).is_ok()
}

/// Whether a name is another's for now.
pub fn is_in_use(error: &io::Error) -> bool {
    IN_USE.contains(&error.raw_os_error())
}

/// Tries until names of an earlier instance are free.
pub fn patiently<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match work() {
            Err(error) if is_in_use(&error) && begun.elapsed() < PATIENCE => {
                thread::sleep(LOOK);
            }
            done => return done,
        }
    }
}

/// The same, for as long as nothing but earlier connections are at an address (TIME_WAIT): to bind where they were takes
/// SO_REUSEADDR of both, and theirs is what it was (inet_bind_conflict).
pub fn outlast<T>(
    address: SocketAddr,
    reporter: &Reporter,
    mut work: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let begun = Instant::now();
    let mut is_said = false;
    loop {
        let done = patiently(&mut work);
        if !done.as_ref().is_err_and(is_in_use)
            || begun.elapsed() > TIME_WAIT
            || !is_left_behind(address)
        {
            return done;
        }
        if !is_said {
            is_said = true;
            let port = address.port();
            reporter.tell(Event::PortWaits { port });
        }
    }
}

/// Whether all sockets that are bound to an address are connections that have ended.
fn is_left_behind(address: SocketAddr) -> bool {
    let mut entries = procfs::net::tcp().unwrap_or_default();
    // There may be no IPv6.
    entries.extend(procfs::net::tcp6().unwrap_or_default());
    let port = |entry: &&TcpNetEntry| entry.local_address.port() == address.port();
    let mut here = entries.iter().filter(port).peekable();
    here.peek().is_some() && here.all(|entry| entry.state == TcpState::TimeWait)
}

/// Binds a socket to its name; a file of an earlier socket makes room.
pub fn bind(fd: impl AsFd, socket: &Socket) -> io::Result<()> {
    if socket.local.is_empty() {
        return Ok(());
    }
    if let Some(address) = socket::address(&socket.local) {
        // Nobody has bound it.
        if address.port() == 0 && address.ip().is_unspecified() {
            return Ok(());
        }
        return patiently(|| socket::bind(&fd, &socket.local));
    }
    if socket.family == libc::AF_NETLINK {
        // Its number may be another's by now: then the kernel chooses.
        return socket::bind(&fd, &socket.local).or(Ok(()));
    }
    within(socket, || {
        if let Some(path) = socket
            .local
            .get(2..)
            .filter(|path| path.first() != Some(&0))
        {
            let end = path
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(path.len());
            let path = path_of(&path[..end]);
            if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
                fs::remove_file(path)?;
            }
        }
        patiently(|| socket::bind(&fd, &socket.local))
    })
}

/// Works in the directory at which a socket's name begins.
pub fn within<T>(socket: &Socket, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let is_relative = socket.family == libc::AF_UNIX
        && !socket.directory.is_empty()
        && socket
            .local
            .get(2)
            .is_some_and(|first| ![0, b'/'].contains(first));
    if !is_relative {
        return work();
    }
    let before = env::current_dir()?;
    env::set_current_dir(path_of(&socket.directory))?;
    let done = work();
    env::set_current_dir::<&Path>(&before)?;
    done
}
