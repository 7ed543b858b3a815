//! Snapify-IO for programs on a card (paper section 6): a file on another node as a descriptor, which is a socket to
//! the card's Snapify-IO daemon.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use snaprig_snapify_io_client::{Kind, finish, open_read, open_write};
//!
//! let mut file = open_write(0, "/home/me/shared/results", Kind::Plain)?;
//! file.write_all(b"of a long computation")?;
//! finish(file)?;
//! let mut results = String::new();
//! open_read(0, "/home/me/shared/results", Kind::Plain)?.read_to_string(&mut results)?;
//! # std::io::Result::Ok(())
//! ```
//!
//! What must stay true: a file that is written takes its name in [`finish`], when all of it is on the disk, and a
//! descriptor that is closed before, also by the end of its process, leaves nothing. A file that is read ends with an
//! error unless all of it has come.

pub mod serve;

use std::{
    env,
    fs::File,
    io::{self, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use snaprig_offload_wire::snapify_io::{Failure, LocalOpen, Message, RIG_SOCKET, SOCKET, UNREAD};
pub use snaprig_offload_wire::snapify_io::{Kind, Mode};
use snaprig_wire::frame;

/// A file on another node, open for reading or for writing.
pub struct RemoteFile {
    stream: UnixStream,
    /// Bytes of it, if it is read.
    pub len: u64,
}

/// Opens a file for reading.
pub fn open_read(node: u16, path: &str, kind: Kind) -> io::Result<RemoteFile> {
    open(node, path, kind, Mode::Read)
}

/// Opens a file for writing. It takes its name in [`finish`].
pub fn open_write(node: u16, path: &str, kind: Kind) -> io::Result<RemoteFile> {
    open(node, path, kind, Mode::Write)
}

/// Opens a file in either mode. It waits while as many of its kind are open on this card as may be.
pub fn open(node: u16, path: &str, kind: Kind, mode: Mode) -> io::Result<RemoteFile> {
    let mut stream = connect()?;
    hold_more(&stream);
    let path = path.into();
    let mut request = frame::encode_framed(&LocalOpen {
        kind,
        node,
        mode,
        path,
    });
    if mode == Mode::Read {
        request.push(UNREAD);
    }
    stream.write_all(&request)?;
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let len = frame::frame_len(prefix).map_err(io::Error::other)?;
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    match frame::decode(&body).map_err(io::Error::other)? {
        Message::Opened { len } => Ok(RemoteFile { stream, len }),
        Message::Failed(failure) => Err(io::Error::other(failure)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The daemon of the card that this program is on, or that of the rig that it has been given (`SNAPRIG_RIG`).
fn connect() -> io::Result<UnixStream> {
    match env::var_os("SNAPRIG_RIG") {
        Some(rig) if !Path::new(SOCKET).exists() => {
            UnixStream::connect(Path::new(&rig).join(RIG_SOCKET))
        }
        _ => UnixStream::connect(SOCKET),
    }
}

/// Bytes of a file that may be on their way between a program and its daemon: with fewer they wake each other more often.
const ON_THE_WAY_BYTES: libc::c_int = 1 << 20;

/// Has a socket hold more of what is sent on it, if this program may ask for that.
fn hold_more(stream: &UnixStream) {
    let bytes = ON_THE_WAY_BYTES;
    // SAFETY: the option is an int, which is a variable of this function, and so long.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
}

/// The error number that is behind an error of this module.
pub fn errno(error: &io::Error) -> i32 {
    const EIO: i32 = 5;
    let failure = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<Failure>());
    let known = failure.map(|failure| failure.errno);
    known.or(error.raw_os_error()).unwrap_or(EIO)
}

/// What is read or written at once: each call is one of the card kernel's.
const CHUNK: usize = 256 << 10;

/// Copies all of it; the bytes.
pub fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    let mut copied = 0;
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(copied),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(chunk.get(..count).unwrap_or_default())?;
        copied += count as u64;
    }
}

/// Room for what a daemon says at the end of a file, in bytes.
const WORD_BYTES_MAX: usize = 64 << 10;

/// After the last write: waits until the file is safe under its name; returns its bytes.
pub fn finish(file: RemoteFile) -> io::Result<u64> {
    let mut word = LastWord::default();
    word.hear(&file)?;
    word.understand()
}

/// What the daemon says at the end of a file. It is heard and found to be good without a lock or the
/// heap.
pub struct LastWord {
    encoded: Vec<u8>,
    len: usize,
}

impl Default for LastWord {
    /// Room for it.
    fn default() -> Self {
        Self {
            encoded: vec![0; WORD_BYTES_MAX],
            len: 0,
        }
    }
}

impl LastWord {
    /// Waits for it, after the last write.
    pub fn hear(&mut self, file: &RemoteFile) -> io::Result<()> {
        let mut stream = &file.stream;
        // A daemon that has failed is not there to be told of the end, but has said why.
        let _ = stream.shutdown(Shutdown::Write);
        let mut prefix = [0; 4];
        stream.read_exact(&mut prefix)?;
        self.len = u32::from_le_bytes(prefix) as usize;
        let body = self.encoded.get_mut(..self.len);
        stream.read_exact(body.ok_or(io::ErrorKind::InvalidData)?)
    }

    fn encoded(&self) -> &[u8] {
        self.encoded.get(..self.len).unwrap_or_default()
    }

    /// The bytes of the file, if it is safe under its name.
    pub fn finished(&self) -> Option<u64> {
        Message::finished(self.encoded())
    }

    /// The same, or why it is not.
    pub fn understand(&self) -> io::Result<u64> {
        match frame::decode(self.encoded()) {
            Ok(Message::Finished { bytes }) => Ok(bytes),
            Ok(Message::Failed(failure)) => Err(io::Error::other(failure)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl RemoteFile {
    /// Reads all of it into a file on the card. A short stream is an error.
    pub fn copy_to(&mut self, to: &mut File) -> io::Result<()> {
        let copied = copy(&mut (&mut self.stream).take(self.len), to)?;
        if copied < self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

impl Read for RemoteFile {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.read(to)
    }
}

impl Write for RemoteFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The descriptor alone, to be read or written by whoever has it.
impl IntoRawFd for RemoteFile {
    fn into_raw_fd(self) -> RawFd {
        self.stream.into_raw_fd()
    }
}

/// A file that is written, whose descriptor somebody had, to be finished.
impl From<OwnedFd> for RemoteFile {
    fn from(fd: OwnedFd) -> Self {
        Self {
            stream: fd.into(),
            len: 0,
        }
    }
}

impl AsRawFd for RemoteFile {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}
