//! Snapify-IO for programs on the card (paper section 6): a file on another node as a descriptor.
//!
//! A file that is written takes its name in [`finish`]; a descriptor that is closed before leaves
//! nothing.

use std::{
    fs::File,
    io::{self, Read},
    net::Shutdown,
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixStream,
    },
};

use snaprig_offload_wire::snapify_io::{LocalOpen, Message, Mode, SOCKET};
use snaprig_wire::frame;

use crate::frames;

/// A file on another node, open for reading or for writing.
pub struct RemoteFile {
    stream: UnixStream,
    /// Bytes of it, if it is read.
    pub len: u64,
}

/// Opens a file for reading.
pub fn open_read(node: u16, path: &str) -> io::Result<RemoteFile> {
    open(node, path, Mode::Read)
}

/// Opens a file for writing. It takes its name in [`finish`].
pub fn open_write(node: u16, path: &str) -> io::Result<RemoteFile> {
    open(node, path, Mode::Write)
}

fn open(node: u16, path: &str, mode: Mode) -> io::Result<RemoteFile> {
    let mut stream = UnixStream::connect(SOCKET)?;
    let path = path.into();
    frames::write(&mut stream, &LocalOpen { node, mode, path })?;
    match frames::read(&mut stream)? {
        Message::Opened { len } => Ok(RemoteFile { stream, len }),
        Message::Failed(failure) => Err(io::Error::other(failure)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// What is read or written at once: each call is one of the card kernel's.
const CHUNK: usize = 256 << 10;

/// Copies all of it; the bytes.
pub fn copy(from: &mut impl Read, to: &mut impl io::Write) -> io::Result<u64> {
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

impl io::Write for RemoteFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRawFd for RemoteFile {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}
