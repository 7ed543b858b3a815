//! Snapify-IO for programs on the card (paper section 6): a file on another node as a descriptor.

use std::{
    fs::File,
    io::{self, Read},
    net::Shutdown,
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
};

use snaprig_wire::snapify_io::{Local, LocalReply, Mode, SOCKET};

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
    frames::write(
        &mut stream,
        &Local {
            node,
            path: path.into(),
            mode,
        },
    )?;
    match frames::read(&mut stream)? {
        LocalReply::Opened { len } => Ok(RemoteFile { stream, len }),
        LocalReply::Failed { errno, why } => Err(failure(errno, why)),
        LocalReply::Finished { .. } => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// After the last write: waits until the file is safe under its name; returns its bytes.
pub fn finish(mut file: RemoteFile) -> io::Result<u64> {
    file.stream.shutdown(Shutdown::Write)?;
    match frames::read(&mut file.stream)? {
        LocalReply::Finished { bytes } => Ok(bytes),
        LocalReply::Failed { errno, why } => Err(failure(errno, why)),
        LocalReply::Opened { .. } => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn failure(errno: i32, why: String) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(errno).kind(), why)
}

impl RemoteFile {
    /// Reads all of it into a file on the card. A short stream is an error.
    pub fn copy_to(&mut self, to: &mut File) -> io::Result<()> {
        let copied = io::copy(&mut (&mut self.stream).take(self.len), to)?;
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

impl From<RemoteFile> for OwnedFd {
    fn from(file: RemoteFile) -> Self {
        file.stream.into()
    }
}
