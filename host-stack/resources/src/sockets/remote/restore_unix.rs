//! Unix sockets to other trees of a job: the tree whose end accepts makes both ends, and hands the other one over.
//!
//! ```text
//! connecting tree                      board             accepting tree
//!   | -- "far": what its end is called --> |               |
//!   |                                      | <-- "hand" -- |   where it hands over
//!   | ---------------------------- which one ------------> |   by that socket
//!   | <--- its end, and a copy of the other one ---------- |   both fill their ends, each through the other one's
//!   | -- "filled" -----------------------> | <-- "filled" --|   before either is shut down or set to anything
//! ```
//! All trees do each of these steps for all of their ends before the next one: nobody waits for who waits for it.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            net::{UnixListener, UnixStream},
        },
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    board::Board,
    calls,
    error::{Error, Result},
    opened::path_of,
    sockets::{
        restore::{RestoredSockets, sockets},
        socket,
    },
    state::{Socket, Stage, Tree},
};

/// How long another tree may take, once it knows where.
const PATIENCE: Duration = Duration::from_secs(30);
/// A name of a connection (`save_unix`): longer ones are none.
const ID_MAX: usize = 256;

/// What an end is called that another tree makes.
#[derive(Serialize, Deserialize)]
struct RemoteEnd {
    local: Vec<u8>,
    directory: Vec<u8>,
}

/// An end of a connection to another tree.
#[derive(Clone, Copy)]
struct End<'a> {
    socket: &'a Socket,
    id: &'a [u8],
    accepts: bool,
}

impl<'a> End<'a> {
    fn of(socket: &'a Socket) -> Option<Self> {
        match &socket.stage {
            Stage::BetweenTrees { id, accepts, .. } if socket.family == libc::AF_UNIX => {
                Some(Self {
                    socket,
                    id,
                    accepts: *accepts,
                })
            }
            _ => None,
        }
    }

    fn key(&self, what: &str) -> Vec<u8> {
        [what.as_bytes(), self.id].concat()
    }

    /// What this end's tree says, or the other's.
    fn filled(&self, own: bool) -> Vec<u8> {
        let accepts = self.accepts == own;
        [&[u8::from(accepts)], &self.key("filled")[..]].concat()
    }
}

/// Makes all of them, empty.
pub fn connect(made: &mut RestoredSockets, board: Option<&Board>) -> Result<()> {
    let ends = made.all.iter().filter_map(|socket| End::of(socket));
    let (accepting, connecting): (Vec<End>, Vec<End>) = ends.partition(|end| end.accepts);
    let Some(board) = board.filter(|_| !accepting.is_empty() || !connecting.is_empty()) else {
        return Ok(());
    };
    let failed = |source| {
        let what = "a Unix socket to another tree, which must be restarted on the same machine";
        Error::io(what, source)
    };
    let far = |end: &End| RemoteEnd {
        local: end.socket.local.clone(),
        directory: end.socket.directory.clone(),
    };
    let said: Vec<_> = connecting
        .iter()
        .map(|end| (end.key("far"), far(end)))
        .collect();
    board.publish(&said)?;
    let room = tempfile::tempdir().map_err(failed)?;
    let path = room.path().join("hand");
    let listener = UnixListener::bind(&path).map_err(failed)?;
    let hand = |end: &End| (end.key("hand"), path.as_os_str().as_bytes().to_vec());
    board.publish(&accepting.iter().map(hand).collect::<Vec<_>>())?;
    let keys: Vec<_> = connecting.iter().map(|end| end.key("hand")).collect();
    let mut asked = Vec::new();
    for (end, path) in connecting.iter().zip(board.lookup::<Vec<u8>>(&keys)?) {
        asked.push((end.socket.inode, ask(&path, end.id).map_err(failed)?));
    }
    let keys: Vec<_> = accepting.iter().map(|end| end.key("far")).collect();
    let mut given = BTreeMap::new();
    for (end, far) in accepting.iter().zip(board.lookup::<RemoteEnd>(&keys)?) {
        let other = Socket {
            local: far.local,
            directory: far.directory,
            ..end.socket.clone()
        };
        let both = made.unix(end.socket, &other).map_err(failed)?;
        given.insert(end.id, (end.socket.inode, both));
    }
    for _ in 0..given.len() {
        give(&listener, &given).map_err(failed)?;
    }
    let given = given.into_values().collect::<Vec<_>>();
    for (inode, stream) in asked {
        let (own, other) = take(&stream).map_err(failed)?;
        made.made.insert(inode, own);
        made.lost.insert(inode, other);
    }
    for (inode, (own, other)) in given {
        made.made.insert(inode, own);
        made.lost.insert(inode, other);
    }
    Ok(())
}

/// All of a tree's are full: waits until the other ends are.
pub fn filled(tree: &Tree, board: Option<&Board>) -> Result<()> {
    let ends: Vec<End> = sockets(tree)
        .filter_map(|(_, socket)| End::of(socket))
        .collect();
    let Some(board) = board.filter(|_| !ends.is_empty()) else {
        return Ok(());
    };
    let said: Vec<_> = ends.iter().map(|end| (end.filled(true), ())).collect();
    board.publish(&said)?;
    let keys: Vec<_> = ends.iter().map(|end| end.filled(false)).collect();
    board.lookup::<()>(&keys).map(drop)
}

/// Says which end is wanted; it comes later.
fn ask(path: &[u8], id: &[u8]) -> io::Result<UnixStream> {
    let length = u8::try_from(id.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut stream = UnixStream::connect(path_of(path))?;
    stream.write_all(&[&[length], id].concat())?;
    Ok(stream)
}

type Both = (OwnedFd, OwnedFd);

/// Hands an end over to the next who asks, with a copy of the one that is kept.
fn give(listener: &UnixListener, given: &BTreeMap<&[u8], (u64, Both)>) -> io::Result<()> {
    wait(listener)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut length, mut id) = ([0], [0; ID_MAX]);
    stream.read_exact(&mut length)?;
    let id = &mut id[..length[0].into()];
    stream.read_exact(id)?;
    let (_, (own, other)) = given.get(&*id).ok_or(io::ErrorKind::NotFound)?;
    socket::send(&stream, b".", &[other.as_raw_fd(), own.as_raw_fd()], &[])?;
    Ok(())
}

fn take(stream: &UnixStream) -> io::Result<Both> {
    wait(stream)?;
    let message = socket::peek(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let ends: Result<[OwnedFd; 2], _> = message.files.try_into();
    let [own, other] = ends.map_err(|_| io::ErrorKind::UnexpectedEof)?;
    Ok((own, other))
}

fn wait(fd: impl AsFd) -> io::Result<()> {
    match calls::events(fd, libc::POLLIN, PATIENCE.as_millis() as i32)? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}
