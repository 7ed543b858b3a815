//! The Snapify-IO daemon on the host: serves cards' requests for files.
//!
//! What must stay true: a card names only files below a directory that a host process has granted
//! ([`grant`]); a file that is written takes its name when all of it is on the disk, and if the
//! card or the disk fails before, nothing of it remains.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Component, Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_scif::client::{Endpoint, ScifError, SharedMemory};
use snaprig_wire::{
    frame,
    scif::port,
    snapify_io::{BUFFER_BYTES, Message, Mode},
};

use crate::sums::{StoreError, Sums, Verified, io_error};

const GRANTS: &str = "snapify-io";
/// Protection of the daemon's own window: the DMA engine reads and writes it.
const READ_WRITE: u8 = 3;

/// Lets cards read and write below `directory`, for as long as the grant lives.
pub fn grant(rig: &Path, directory: &Path) -> Result<Grant, StoreError> {
    let grants = rig.join(GRANTS);
    fs::create_dir_all(&grants).map_err(io_error(&grants))?;
    let name = format!("{}-{:p}", std::process::id(), directory);
    let path = grants.join(name);
    fs::write(&path, directory.as_os_str().as_encoded_bytes()).map_err(io_error(&path))?;
    Ok(Grant(path))
}

/// A permission; dropped, it ends.
pub struct Grant(PathBuf);

impl Drop for Grant {
    fn drop(&mut self) {
        // It ends with the rig's directory at the latest.
        let _ = fs::remove_file(&self.0);
    }
}

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
        listener.listen(64)?;
        let (accepting, rig) = (listener.clone(), rig.to_owned());
        let thread = std::thread::spawn(move || {
            while let Ok((card, _)) = accepting.accept() {
                let rig = rig.clone();
                std::thread::spawn(move || serve(&card, &rig));
            }
        });
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

/// Why a transfer ended early.
enum Failure {
    /// The card is gone: nobody to tell.
    Gone,
    /// The file.
    File(StoreError),
}

impl From<ScifError> for Failure {
    fn from(_: ScifError) -> Self {
        Self::Gone
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::File(error)
    }
}

fn serve(card: &Endpoint, rig: &Path) {
    if let Err(Failure::File(error)) = transfer(card, rig) {
        tracing::warn!(%error, "Snapify-IO");
        let errno = match &error {
            StoreError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EBADMSG,
        };
        // A card that is gone needs no telling.
        let _ = send(
            card,
            &Message::Failed {
                errno,
                why: error.to_string(),
            },
        );
    }
}

fn transfer(card: &Endpoint, rig: &Path) -> Result<(), Failure> {
    let Message::Open { path, mode, window } = receive(card)? else {
        return Err(Failure::Gone);
    };
    let path = granted(rig, Path::new(&path))?;
    let memory = SharedMemory::new(BUFFER_BYTES).map_err(io_error(&path))?;
    let own = card.register(&memory, 0, memory.len(), None, READ_WRITE)?;
    let buffer = Buffer {
        memory,
        own,
        card: window,
    };
    match mode {
        Mode::Write => write(card, &buffer, &path),
        Mode::Read => read(card, &buffer, &path),
    }
}

struct Buffer {
    memory: SharedMemory,
    own: i64,
    card: i64,
}

fn granted(rig: &Path, path: &Path) -> Result<PathBuf, StoreError> {
    let plain = path.is_absolute()
        && path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let grants = fs::read_dir(rig.join(GRANTS))
        .into_iter()
        .flatten()
        .flatten();
    let allowed = grants
        .filter_map(|grant| fs::read(grant.path()).ok())
        .any(|bytes| String::from_utf8(bytes).is_ok_and(|directory| path.starts_with(directory)));
    if plain && allowed {
        return Ok(path.to_owned());
    }
    let source = io::Error::from_raw_os_error(libc::EACCES);
    Err(StoreError::Io {
        path: path.to_owned(),
        source,
    })
}

/// A file that is being written under another name; removed unless it is finished.
struct Partial {
    path: PathBuf,
    file: File,
    finished: bool,
}

impl Partial {
    fn create(path: &Path) -> Result<Self, StoreError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let path = PathBuf::from(name);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        Ok(Self {
            file: file.map_err(io_error(&path))?,
            path,
            finished: false,
        })
    }

    fn finish(mut self, path: &Path, sums: Sums) -> Result<(), StoreError> {
        self.file.sync_all().map_err(io_error(path))?;
        sums.save(path)?;
        fs::rename(&self.path, path).map_err(io_error(path))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.finished {
            // The whole snapshot's directory goes too if this cannot be removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn write(card: &Endpoint, buffer: &Buffer, path: &Path) -> Result<(), Failure> {
    let mut partial = Partial::create(path)?;
    send(card, &Message::Opened { len: 0 })?;
    let (mut sums, mut bytes) = (Sums::default(), vec![0; BUFFER_BYTES]);
    loop {
        match receive(card)? {
            Message::Filled { bytes: count } if count as usize <= BUFFER_BYTES => {
                let part = &mut bytes[..count as usize];
                card.readfrom(buffer.own, count.into(), buffer.card)?;
                buffer.memory.read(0, part);
                sums.update(part);
                partial.file.write_all(part).map_err(io_error(path))?;
                send(card, &Message::Drained)?;
            }
            Message::Finish { bytes } if bytes == sums.len() => {
                partial.finish(path, sums)?;
                send(card, &Message::Finished { bytes })?;
                return Ok(());
            }
            _ => return Err(Failure::Gone),
        }
    }
}

fn read(card: &Endpoint, buffer: &Buffer, path: &Path) -> Result<(), Failure> {
    let mut file = Verified::open(path)?;
    send(card, &Message::Opened { len: file.len() })?;
    loop {
        let mut filled = 0;
        while filled < BUFFER_BYTES {
            let chunk = file.next_chunk()?;
            if chunk.is_empty() {
                break;
            }
            buffer.memory.write(filled, &chunk);
            filled += chunk.len();
        }
        if filled > 0 {
            card.writeto(buffer.own, filled as u64, buffer.card)?;
        }
        send(
            card,
            &Message::Filled {
                bytes: filled as u32,
            },
        )?;
        if filled == 0 {
            return Ok(());
        }
        match receive(card)? {
            Message::Drained => {}
            _ => return Err(Failure::Gone),
        }
    }
}

fn send<T: Serialize>(to: &Endpoint, message: &T) -> Result<(), ScifError> {
    to.send(&frame::encode_framed(message))
}

fn receive<T: DeserializeOwned>(from: &Endpoint) -> Result<T, ScifError> {
    let mut prefix = [0; 4];
    from.recv_exact(&mut prefix)?;
    let broken = || ScifError {
        call: "scif_recv",
        errno: libc::EPROTO,
    };
    let mut body = vec![0; frame::frame_len(prefix).map_err(|_| broken())?];
    from.recv_exact(&mut body)?;
    frame::decode(&body).map_err(|_| broken())
}
