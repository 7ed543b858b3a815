//! The Snapify-IO daemon on the host: drives the server's machine
//! ([`snaprig_offload_wire::snapify_io`]) of each card's request with a file and RMA.
//!
//! What must stay true: a card names only files that a host process has granted
//! ([`crate::grant`]); a file that is written takes its name when all of it is on the disk, and if
//! the card or the disk fails before, nothing of it remains.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use snaprig_offload_wire::snapify_io::{
    BUFFER_BYTES, Failure, Input, Kind, Machine, Message, Mode, Output, SLOT_BYTES, Sink, Source,
    VERSION,
};
use snaprig_scif::client::{Endpoint, ScifError, SharedMemory};
use snaprig_wire::scif::port;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    grant::{self, Writing},
    packed::{self, PackedFile, PackedSource},
    plain::{PlainFile, PlainSource},
    stream::{Readable, SnapshotFile, Verified, Writable},
    sums::{self, StoreError, io_error},
};

/// Protection of the daemon's own window: the DMA engine reads and writes it.
pub(crate) const READ_WRITE: u8 = 3;
/// Most files that a card has open at once; each has a buffer of 4 MiB. A card's daemon has fewer: only one that is not ours
/// comes so far, and it is in no other card's way.
const TRANSFERS_MAX: usize = 32;
/// Connections that wait to be taken.
const BACKLOG: u32 = 64;

/// The daemon, running until it is dropped.
pub struct Daemon {
    listener: Arc<Endpoint>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts it on node 0 of the rig in this directory.
    pub fn start(rig: &Path) -> Result<Self, ScifError> {
        let listener = Arc::new(Endpoint::open(rig)?);
        listener.bind(port::SNAPIFY_IO)?;
        listener.listen(BACKLOG)?;
        let (accepting, rig) = (listener.clone(), rig.to_owned());
        let thread = std::thread::spawn(move || accept(&accepting, &rig));
        Ok(Self {
            listener,
            thread: Some(thread),
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.listener.close();
        if let Some(thread) = self.thread.take() {
            // It ends when its endpoint is closed; there is nothing to learn from how.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &Endpoint, rig: &Path) {
    let running = Arc::new(Mutex::new(BTreeMap::new()));
    loop {
        let (card, node) = match listener.accept() {
            Ok((card, peer)) => (card, peer.node),
            // The endpoint is closed, or its node is gone.
            Err(error) if [libc::EBADF, libc::ECONNRESET].contains(&error.errno) => return,
            Err(error) => {
                tracing::warn!(%error, "Snapify-IO takes the next connection");
                continue;
            }
        };
        let Some(one) = Running::add(&running, node) else {
            // Dropping the connection is the answer.
            continue;
        };
        let rig = rig.to_owned();
        std::thread::spawn(move || {
            if let Err(failure) = transfer(&card, &rig) {
                tracing::warn!(%failure, "Snapify-IO");
            }
            drop(one);
        });
    }
}

/// Files that are open, by the cards' nodes.
pub(crate) type Open = Arc<Mutex<BTreeMap<u16, usize>>>;

/// One of them, until it is dropped.
pub(crate) struct Running {
    all: Open,
    node: u16,
}

impl Running {
    /// One more, if the card may.
    pub(crate) fn add(all: &Open, node: u16) -> Option<Self> {
        let mut open = all.lock().unwrap_or_else(PoisonError::into_inner);
        let of_card = open.entry(node).or_insert(0);
        if *of_card >= TRANSFERS_MAX {
            return None;
        }
        *of_card += 1;
        let all = all.clone();
        Some(Self { all, node })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut open = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_card) = open.get_mut(&self.node) {
            *of_card -= 1;
        }
    }
}

/// Serves one request.
fn transfer(card: &Endpoint, rig: &Path) -> Result<u64, Failure> {
    let opening = Failure {
        errno: libc::EPROTO,
        path: String::new(),
        offset: 0,
        why: "a card opened it with something else than Open".into(),
    };
    let Ok(Message::Open {
        version: VERSION,
        kind,
        mode,
        path,
        window,
    }) = card.receive_message()
    else {
        return Err(opening);
    };
    let path = PathBuf::from(path);
    let prepare = || {
        let writing = grant::check(rig, &path)?;
        let file = match (kind, mode) {
            (Kind::Snapshot, Mode::Read) if packed::path_of(&path).exists() => {
                Stored::Reading(Box::new(PackedSource::open(&path)?))
            }
            (Kind::Snapshot, Mode::Read) => Stored::Reading(Box::new(Verified::open(&path)?)),
            (Kind::Snapshot, Mode::Write) => Stored::Writing(match writing {
                Writing::Plain => Box::new(SnapshotFile::create(&path)?),
                Writing::Compressed => Box::new(PackedFile::create(&path)?),
                Writing::Passing => Box::new(SnapshotFile::passing(&path)?),
            }),
            (Kind::Plain, Mode::Read) => Stored::Reading(Box::new(PlainSource::open(&path)?)),
            (Kind::Plain, Mode::Write) => Stored::Writing(Box::new(PlainFile::create(&path)?)),
        };
        let memory = SharedMemory::new(BUFFER_BYTES).map_err(io_error(&path))?;
        Ok((file, memory))
    };
    let (file, memory) = match prepare() {
        Ok(prepared) => prepared,
        Err(error) => {
            let failure = describe(&path, error);
            // A card that is gone needs no telling.
            let _ = card.send_message(&Message::Failed(failure.clone()));
            return Err(failure);
        }
    };
    let own = card
        .register(&memory, 0, memory.len(), None, READ_WRITE)
        .map_err(|error| lost(&path, &error))?;
    let name = path.to_string_lossy();
    let mut machine: Box<dyn Machine> = match &file {
        Stored::Reading(file) => Box::new(Source::serve(&name, file.bytes())),
        Stored::Writing(..) => Box::new(Sink::serve(&name)),
    };
    let mut transfer = Transfer {
        path: &path,
        card,
        memory,
        own,
        window,
        file,
        copy: Vec::new(),
    };
    loop {
        let done = match machine.poll_output() {
            None => Ok(Some(
                card.receive_message().map_or(Input::Lost, Input::Peer),
            )),
            Some(Output::Done(result)) => return result,
            Some(output) => transfer.perform(output),
        };
        match done {
            Ok(Some(input)) => machine.handle(input),
            Ok(None) => {}
            Err(error) => machine.handle(Input::Failed(describe(&path, error))),
        }
    }
}

fn describe(path: &Path, error: StoreError) -> Failure {
    let (errno, offset) = match &error {
        StoreError::Io { source, .. } => (source.raw_os_error().unwrap_or(libc::EIO), 0),
        StoreError::Damaged { offset, .. } => (libc::EBADMSG, *offset),
        _ => (libc::EBADMSG, 0),
    };
    let why = match error {
        StoreError::Io { source, .. } => format!("{source}{}", sums::hint(&source)),
        other => other.to_string(),
    };
    let path = path.to_string_lossy().into_owned();
    Failure {
        errno,
        path,
        offset,
        why,
    }
}

fn lost(path: &Path, error: &ScifError) -> Failure {
    let path = path.to_string_lossy().into_owned();
    Failure {
        errno: error.errno,
        path,
        offset: 0,
        why: error.to_string(),
    }
}

/// The file of a transfer.
enum Stored {
    Reading(Box<dyn Readable>),
    Writing(Box<dyn Writable>),
}

/// One transfer's file, buffer and card.
struct Transfer<'a> {
    path: &'a Path,
    card: &'a Endpoint,
    memory: SharedMemory,
    /// Offset of `memory` in the daemon's registered address space.
    own: i64,
    /// Offset of the card's buffer in the card's.
    window: i64,
    file: Stored,
    /// What a slot had, to be written.
    copy: Vec<u8>,
}

impl Transfer<'_> {
    /// Does what the machine says; the answer that it waits for, if it does.
    fn perform(&mut self, output: Output) -> Result<Option<Input>, StoreError> {
        match output {
            Output::Send(message) => {
                // If the card's daemon is gone, its last words may still be there to be received.
                let _ = self.card.send_message(&message);
                Ok(None)
            }
            Output::Fill { slot } => self.fill(slot).map(Some),
            Output::Take { slot, len, hash } => self.take(slot, len, hash).map(Some),
            Output::Commit { .. } => self.commit().map(Some),
            Output::Opened { .. } | Output::Done(_) => Ok(None),
        }
    }

    fn fill(&mut self, slot: u8) -> Result<Input, StoreError> {
        let Stored::Reading(file) = &mut self.file else {
            return Ok(Input::Lost);
        };
        let start = usize::from(slot) * SLOT_BYTES;
        let bytes = file.next(SLOT_BYTES)?;
        if bytes.is_empty() {
            return Ok(Input::End);
        }
        self.memory.write(start, bytes);
        let (own, card) = (self.own + start as i64, self.window + start as i64);
        let (len, hash) = (bytes.len() as u32, xxh3_64(bytes));
        Ok(match self.card.writeto(own, len.into(), card) {
            Ok(()) => Input::Filled { len, hash },
            Err(_) => Input::Lost,
        })
    }

    fn take(&mut self, slot: u8, len: u32, hash: u64) -> Result<Input, StoreError> {
        let Stored::Writing(file) = &mut self.file else {
            return Ok(Input::Lost);
        };
        let start = usize::from(slot) * SLOT_BYTES;
        let (own, card) = (self.own + start as i64, self.window + start as i64);
        if self.card.readfrom(own, len.into(), card).is_err() {
            return Ok(Input::Lost);
        }
        // The card may go on writing to its buffer: what is checked and what is written is a copy.
        self.copy.resize(len as usize, 0);
        self.memory.read(start, &mut self.copy);
        if xxh3_64(&self.copy) != hash {
            return Err(StoreError::Damaged {
                path: self.path.to_owned(),
                offset: file.bytes(),
                len: len.into(),
            });
        }
        file.append(&self.copy)?;
        Ok(Input::Taken)
    }

    fn commit(&mut self) -> Result<Input, StoreError> {
        if let Stored::Writing(file) = &mut self.file {
            file.finish()?;
        }
        Ok(Input::Committed)
    }
}
