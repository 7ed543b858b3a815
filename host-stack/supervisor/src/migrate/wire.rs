//! What the two sides of a migration say to each other.
//!
//! ```text
//! source                                           target
//!   | -- Hello { nonce } ----------------------->    |
//!   | <- Hello { nonce }, Proof -----------------    |     each knows the token: a keyed hash (BLAKE3) of both nonces
//!   | -- Proof, Begin { command } -------------->    |
//!   | == image ================================>    |     pages while the tree runs; what is left when it stands still
//!   | == files of plugins =====================>    |     what they have put into the checkpoint's directory
//!   | <- Ready --- or Failed(why) ---------------    |     all is read, checked and restored, and stands still
//!   |    its tree ends                               |
//!   | -- Go ------------------------------------>    |     its tree runs
//!   | <- Running --------------------------------    |
//! ```
//! Before Ready has come, the source's tree runs on whatever happens. The target's runs when Go has come, and not
//! before; so there are never two. If Go is lost, there is none: the source's has ended. The target then keeps the
//! image as a checkpoint, and says so: whoever knows that the source's tree has ended can restart it.
//!
//! A message is its length (four bytes) and postcard. A peer on a Unix socket is the same user, or root; one on TCP
//! knows the token. Neither messages nor pages are encrypted: elsewhere than on a trusted network, a Unix socket can be
//! forwarded by ssh(1).

use std::{
    fs::File,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream, ToSocketAddrs},
    os::fd::AsRawFd,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{CWD, RenameFlags};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use snaprig_resources::error::{Error, Result};

/// Of what is said here.
const VERSION: u32 = 2;
/// Longest message: a command line.
const MESSAGE_MAX: u32 = 4 << 20;
/// How long connecting takes at most, and a peer that has not proven who it is.
const UNPROVEN: Duration = Duration::from_secs(5);
/// How long a peer may be silent.
const SILENCE: Duration = Duration::from_secs(30);
/// How long it takes at most to restore a tree.
const RESTORING: Duration = Duration::from_secs(120);
/// Bytes of a token, at least and at most.
const TOKEN: std::ops::RangeInclusive<usize> = 16..=4096;

/// Where a target is: the path of a Unix socket, with a `/` in it, or HOST:PORT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A host and its port, and a file with what both sides know.
    Tcp(String, PathBuf),
}

type Nonce = [u8; 32];
type Proof = [u8; 32];

#[derive(Serialize, Deserialize)]
struct Hello {
    version: u32,
    nonce: Nonce,
}

/// What the source begins with.
#[derive(Serialize, Deserialize)]
pub struct Begin {
    /// The program's command line.
    pub command: Vec<String>,
}

/// What the target says of a tree.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It stands restored.
    Ready,
    /// It cannot be had.
    Failed(String),
}

/// What the source says then.
#[derive(Serialize, Deserialize)]
pub struct Go;

/// What the target says last.
#[derive(Serialize, Deserialize)]
pub struct Running;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Of this machine.
    Unix(UnixStream),
    /// Of any.
    Tcp(TcpStream),
}

/// Where a target listens.
pub enum Listener {
    /// In the file system; the socket goes with it.
    Unix(UnixListener, PathBuf),
    /// At a port.
    Tcp(TcpListener),
}

impl Address {
    /// Connects.
    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Self::Tcp(host, _) => {
                let mut last = io::ErrorKind::AddrNotAvailable.into();
                for address in host.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, UNPROVEN) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Listens; the socket of one that has died is replaced.
    pub fn listen(&self) -> io::Result<Listener> {
        match self {
            Self::Unix(path) => {
                let found = std::fs::symlink_metadata(path);
                let is_socket = found.is_ok_and(|found| found.file_type().is_socket());
                if is_socket && UnixStream::connect(path).is_err() {
                    std::fs::remove_file(path)?;
                }
                Ok(Listener::Unix(listen_at(path)?, path.clone()))
            }
            Self::Tcp(host, _) => TcpListener::bind(host).map(Listener::Tcp),
        }
    }

    /// What both sides know; nothing, where the kernel says who they are.
    pub fn token(&self) -> Result<Option<Token>> {
        match self {
            Self::Unix(_) => Ok(None),
            Self::Tcp(_, path) => Token::read(path).map(Some),
        }
    }
}

/// A socket that has its name from when it listens: who sees it can connect.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let unnamed = path.with_file_name(format!(".{}", std::process::id()));
    let listener = UnixListener::bind(&unnamed)?;
    rustix::fs::renameat_with(CWD, &unnamed, CWD, path, RenameFlags::NOREPLACE).inspect_err(
        |_| {
            // What is left of it is of no use to anybody.
            let _ = std::fs::remove_file(&unnamed);
        },
    )?;
    Ok(listener)
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(host, _) => host.fmt(f),
        }
    }
}

impl Listener {
    /// The next connection.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
            Self::Tcp(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What both sides know.
pub struct Token([u8; 32]);

impl Token {
    fn read(path: &Path) -> Result<Self> {
        let failed = |source| Error::io(path.display().to_string(), source);
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode();
        let mut bytes = Vec::new();
        let most = *TOKEN.end() as u64 + 1;
        file.take(most).read_to_end(&mut bytes).map_err(failed)?;
        let wrong = |what: &str| Error::File {
            path: path.to_owned(),
            what: what.to_owned(),
        };
        if mode & 0o077 != 0 {
            return Err(wrong(
                "others can read the token; `chmod 600` it, and make a new one",
            ));
        }
        if !TOKEN.contains(&bytes.len()) {
            return Err(wrong(
                "not a token: `head -c 32 /dev/urandom` makes one, the same for both sides",
            ));
        }
        Ok(Self(*blake3::hash(&bytes).as_bytes()))
    }

    fn proof(&self, of: &[u8; 7], own: &Nonce, peer: &Nonce) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"snaprig migration 1: ").update(of);
        *hasher.update(own).update(peer).finalize().as_bytes()
    }
}

const SOURCE: &[u8; 7] = b"source ";
const TARGET: &[u8; 7] = b"target ";

/// The source's side of an introduction.
pub fn greet(stream: &mut Stream, token: Option<&Token>) -> io::Result<()> {
    introduce(stream, token, SOURCE, TARGET)
}

/// The target's.
pub fn meet(stream: &mut Stream, token: Option<&Token>) -> io::Result<()> {
    introduce(stream, token, TARGET, SOURCE)
}

fn introduce(
    stream: &mut Stream,
    token: Option<&Token>,
    own: &[u8; 7],
    other: &[u8; 7],
) -> io::Result<()> {
    stream.set_timeout(UNPROVEN)?;
    stream.check_user()?;
    let mut nonce = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    let version = VERSION;
    send(stream, &Hello { version, nonce })?;
    let hello: Hello = receive(stream)?;
    if hello.version != VERSION {
        let what = format!("it speaks version {}, and this {VERSION}", hello.version);
        return Err(io::Error::other(what));
    }
    if let Some(token) = token {
        // The target proves itself first: it is not told anything by somebody who has not proven who it is.
        if own == TARGET {
            send(stream, &token.proof(own, &nonce, &hello.nonce))?;
        }
        let proof: Proof = receive(stream)?;
        let expected = token.proof(other, &hello.nonce, &nonce);
        // In constant time.
        if blake3::Hash::from_bytes(proof) != blake3::Hash::from_bytes(expected) {
            return Err(io::Error::other("it does not know the token (--token)"));
        }
        if own == SOURCE {
            send(stream, &token.proof(own, &nonce, &hello.nonce))?;
        }
    }
    stream.set_timeout(SILENCE)
}

impl Stream {
    /// Whether the other side is on this machine.
    pub fn is_here(&self) -> io::Result<bool> {
        match self {
            Self::Unix(_) => Ok(true),
            Self::Tcp(stream) => Ok(stream.local_addr()?.ip() == stream.peer_addr()?.ip()),
        }
    }

    /// Another one for the same connection.
    pub fn again(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    /// The other side restores.
    pub fn be_patient(&self) -> io::Result<()> {
        self.set_timeout(RESTORING)
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout);
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    /// Whose it is, if the kernel can say.
    fn check_user(&self) -> io::Result<()> {
        let Self::Unix(stream) = self else {
            return Ok(());
        };
        let (peer, own) = (user_of_peer(stream)?, rustix::process::geteuid().as_raw());
        match peer == 0 || peer == own {
            true => Ok(()),
            false => Err(io::Error::other("it is another user's")),
        }
    }
}

/// The user of the process at the other end (SO_PEERCRED). A process outside of this PID namespace has the number 0,
/// which `rustix` has no value for.
fn user_of_peer(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` is valid to write to, and as long as `length` says, beyond which the kernel does not write.
    let asked = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    match asked {
        0 => Ok(peer.uid),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(to),
            Self::Tcp(stream) => stream.read(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a message.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut all = length.to_le_bytes().to_vec();
    all.extend_from_slice(&bytes);
    to.write_all(&all)
}

/// Waits for a message.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_MAX {
        return Err(io::Error::other("a message that is too long"));
    }
    let mut bytes = Vec::new();
    from.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() != length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}
