//! The server: files of this card, for the host and for other cards.
//!
//! What must stay true: the host may have any file, and another card those in [`SHARED`], where the local store of a process
//! is, too, which another card fetches when the process moves there; a file that is written takes its name when all of it is
//! there, and if it fails before, nothing of it remains; what is checked is what is written, so no other node can reach the
//! memory that it is in.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Component, Path, PathBuf},
    thread,
};

use snaprig_offload_wire::snapify_io::{
    Failure, Input, Kind, Machine, Message, Mode, Output, SLOT_BYTES, Sink, Source, VERSION,
};
use snaprig_wire::scif::HOST;
use xxhash_rust::xxh3::xxh3_64;

use super::{log, turns::Turns};
use crate::{brought::Partial, frames, scif::Endpoint};

/// What cards have of each other.
const SHARED: &str = "/tmp";
/// They do not wait for programs of this card, which may wait for such a turn on another one; nor do those of processes
/// that move wait for others.
static SERVED: Turns = Turns::new();
static MOVING: Turns = Turns::new();

/// Serves other nodes, for as long as there is the endpoint that they connect to; why there is none any more.
pub fn serve_nodes(listener: &Endpoint) -> io::Result<()> {
    loop {
        let (peer, from) = listener.accept()?;
        thread::spawn(move || log(serve(&peer, from.node)));
    }
}

/// Serves one request.
fn serve(peer: &Endpoint, node: u16) -> Result<(), Failure> {
    let Ok(Message::Open {
        version: VERSION,
        kind,
        mode,
        path,
        window,
    }) = frames::receive(peer)
    else {
        return Err(Failure {
            errno: libc::EPROTO,
            path: String::new(),
            offset: 0,
            why: "a node opened it with something else than Open".into(),
        });
    };
    let _turn = match kind {
        Kind::Snapshot => MOVING.take(),
        Kind::Plain => SERVED.take(),
    };
    let failed = |error: io::Error| Failure {
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        path: path.clone(),
        offset: 0,
        why: error.to_string(),
    };
    let file = Served::open(node, kind, mode, &path).map_err(failed);
    let mut file = file.inspect_err(|failure| {
        // A node that is gone needs no telling.
        let _ = frames::send(peer, &Message::Failed(failure.clone()));
    })?;
    let mut slots = vec![0; SLOT_BYTES];
    let mut machine: Box<dyn Machine> = match &file {
        Served::Reading(file) => Box::new(Source::serve(&path, file.limit())),
        Served::Writing { .. } => Box::new(Sink::serve(&path)),
    };
    loop {
        let done = match machine.poll_output() {
            None => Ok(Some(frames::receive(peer).map_or(Input::Lost, Input::Peer))),
            Some(Output::Send(message)) => {
                // If the other daemon is gone, its last words may still be there to be received.
                let _ = frames::send(peer, &message);
                Ok(None)
            }
            Some(Output::Fill { slot }) => {
                let to = window + place(slot);
                file.fill(&mut slots, peer, to).map(Some)
            }
            Some(Output::Take { slot, len, hash }) => {
                let from = window + place(slot);
                let bytes = slots.get_mut(..len as usize).unwrap_or_default();
                file.take(bytes, peer, from, hash).map(Some)
            }
            Some(Output::Commit { .. }) => file.commit().map(|()| Some(Input::Committed)),
            Some(Output::Opened { .. }) => Ok(None),
            Some(Output::Done(result)) => return result.map(drop),
        };
        match done {
            Ok(Some(input)) => machine.handle(input),
            Ok(None) => {}
            Err(error) => machine.handle(Input::Failed(failed(error))),
        }
    }
}

/// Where a slot is in a window.
fn place(slot: u8) -> i64 {
    i64::from(slot) * SLOT_BYTES as i64
}

/// A file that another node has open.
enum Served {
    /// As long as it was when it was opened.
    Reading(io::Take<File>),
    /// Until it has its name.
    Writing { file: File, partial: Partial },
}

impl Served {
    fn open(node: u16, kind: Kind, mode: Mode, path: &str) -> io::Result<Self> {
        if (kind, mode) == (Kind::Snapshot, Mode::Write) {
            // Checksums are kept where snapshots are: by the host.
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let path = permitted(node, mode, Path::new(path))?;
        match mode {
            Mode::Read => {
                // A FIFO without a writer would be waited for.
                let mut options = File::options();
                let file = options
                    .read(true)
                    .custom_flags(libc::O_NONBLOCK)
                    .open(path)?;
                let there = file.metadata()?;
                match there.is_file() {
                    true => Ok(Self::Reading(file.take(there.len()))),
                    false => Err(io::Error::from_raw_os_error(libc::EINVAL)),
                }
            }
            Mode::Write => {
                let partial = Partial::of(&path);
                let file = File::create_new(partial.aside())?;
                Ok(Self::Writing { file, partial })
            }
        }
    }

    /// Reads the next bytes, and puts them into the other node's window.
    fn fill(&mut self, slots: &mut [u8], peer: &Endpoint, to: i64) -> io::Result<Input> {
        let Self::Reading(file) = self else {
            return Ok(Input::Lost);
        };
        // What has been appended since does not count; what is missing is an error.
        let want = file.limit().min(slots.len() as u64) as usize;
        let bytes = &mut slots[..want];
        file.read_exact(bytes)?;
        if bytes.is_empty() {
            return Ok(Input::End);
        }
        let (len, hash) = (bytes.len() as u32, xxh3_64(bytes));
        Ok(match peer.vwriteto(bytes, to) {
            Ok(()) => Input::Filled { len, hash },
            Err(_) => Input::Lost,
        })
    }

    /// Brings bytes out of the other node's window, and writes them.
    fn take(
        &mut self,
        bytes: &mut [u8],
        peer: &Endpoint,
        from: i64,
        hash: u64,
    ) -> io::Result<Input> {
        let Self::Writing { file, .. } = self else {
            return Ok(Input::Lost);
        };
        let address = bytes.as_mut_ptr() as usize;
        if peer.vreadfrom(address, bytes.len() as u64, from).is_err() {
            return Ok(Input::Lost);
        }
        if xxh3_64(bytes) != hash {
            return Err(io::Error::from_raw_os_error(libc::EBADMSG));
        }
        file.write_all(bytes)?;
        Ok(Input::Taken)
    }

    fn commit(&mut self) -> io::Result<()> {
        match self {
            Self::Writing { partial, .. } => partial.name(),
            Self::Reading(_) => Ok(()),
        }
    }
}

/// The file that a node means, if it may have that.
fn permitted(node: u16, mode: Mode, path: &Path) -> io::Result<PathBuf> {
    let error = |errno| Err(io::Error::from_raw_os_error(errno));
    let is_up = path.components().any(|part| part == Component::ParentDir);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return error(libc::EINVAL);
    };
    if !path.is_absolute() || is_up {
        return error(libc::EINVAL);
    }
    if node == HOST {
        return Ok(path.to_owned());
    }
    // Symbolic links may lead elsewhere.
    let path = match mode {
        Mode::Read => fs::canonicalize(path)?,
        Mode::Write => fs::canonicalize(parent)?.join(name),
    };
    match path.starts_with(SHARED) {
        true => Ok(path),
        false => error(libc::EACCES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_have_of_each_other_what_they_share() {
        let errno = |path: &str, node| {
            let permitted = permitted(node, Mode::Write, Path::new(path));
            permitted.err().and_then(|error| error.raw_os_error())
        };
        for path in ["tmp/a", "/tmp/../etc/a", "/", "", "/tmp/.."] {
            assert_eq!(errno(path, 2), Some(libc::EINVAL), "{path}");
            assert_eq!(errno(path, HOST), Some(libc::EINVAL), "{path}");
        }
        assert_eq!(errno("/etc/a", 2), Some(libc::EACCES));
        assert_eq!(errno("/etc/a", HOST), None);
        assert_eq!(errno("/tmp/a", 2), None);
        assert_eq!(errno("/tmp/no such directory/a", 2), Some(libc::ENOENT));
        let directory = tempfile::tempdir_in(SHARED).unwrap();
        let (link, file) = (directory.path().join("link"), directory.path().join("file"));
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        let through = link.join("a");
        assert_eq!(errno(through.to_str().unwrap(), 2), Some(libc::EACCES));
        assert!(permitted(2, Mode::Read, &file).is_err());
        // A name is not followed where it is given to another file.
        assert!(permitted(2, Mode::Write, &file).is_ok());
    }
}
