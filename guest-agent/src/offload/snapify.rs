//! Snapify in the offload process (paper sections 4.1 to 4.3): the handler of the daemon's signal
//! wakes the Snapify thread, which connects to the daemon and serves its requests.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::{
        fd::{AsRawFd, FromRawFd, IntoRawFd},
        unix::net::UnixStream,
    },
    sync::atomic::{AtomicI32, Ordering},
};

use snaprig_wire::{
    checkpoint::{self, Capture, RESTARTED},
    coi::Channel as Kind,
    scif::HOST,
    snapify::{IMAGE, LOCAL_STORE, Purpose, Reply, Request, SIGNAL, StoredFile},
};

use super::{Runtime, announce};
use crate::{frames, snapify_io};

/// Where the handler writes and the thread reads.
static WAKE: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

extern "C" fn on_signal(_: libc::c_int) {
    // SAFETY: write(2) is async-signal-safe; the descriptor is that of the pipe. A full pipe means
    // that the thread has enough to read already.
    unsafe { libc::write(WAKE[1].load(Ordering::Relaxed), b"!".as_ptr().cast(), 1) };
}

/// Installs the handler.
pub fn install() -> io::Result<()> {
    let (read, write) = io::pipe()?;
    WAKE[0].store(read.into_raw_fd(), Ordering::Relaxed);
    WAKE[1].store(write.into_raw_fd(), Ordering::Relaxed);
    let handler: extern "C" fn(libc::c_int) = on_signal;
    // SAFETY: a zeroed sigaction is valid; the handler only calls write(2).
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(SIGNAL, &action, std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The Snapify thread.
pub fn serve(runtime: &'static Runtime) {
    // SAFETY: the descriptor is the pipe's reading end, which nobody else owns.
    let mut wake = unsafe { File::from_raw_fd(WAKE[0].load(Ordering::Relaxed)) };
    let mut byte = [0];
    while matches!(wake.read(&mut byte), Ok(1)) {
        let session = announce(&Purpose::Signalled).and_then(|daemon| {
            Session {
                runtime,
                daemon,
                quiet: false,
            }
            .run()
        });
        if let Err(error) = session {
            eprintln!("snapify: {error}");
        }
    }
}

struct Session {
    runtime: &'static Runtime,
    daemon: UnixStream,
    quiet: bool,
}

impl Session {
    /// Serves until resume, or until the daemon is gone, which resumes too.
    fn run(mut self) -> io::Result<()> {
        loop {
            let request = match frames::read::<Request>(&mut self.daemon) {
                Ok(request) => request,
                Err(error) => {
                    self.release();
                    return Err(error);
                }
            };
            let resumed = matches!(request, Request::Resume { .. });
            let reply = self.handle(request).unwrap_or_else(|error| Reply::Failed {
                step: "in the offload process".into(),
                errno: error.raw_os_error().unwrap_or(0),
                why: error.to_string(),
            });
            frames::write(&mut self.daemon, &reply)?;
            if resumed {
                return Ok(());
            }
        }
    }

    fn handle(&mut self, request: Request) -> io::Result<Reply> {
        match request {
            Request::Pause { .. } => Ok(Reply::Agreed),
            Request::Drain { snapshot, .. } => {
                self.quiet = true;
                self.runtime.quiesce();
                Ok(Reply::Drained {
                    local_store: self.save_local_store(&snapshot)?,
                })
            }
            Request::Capture {
                snapshot,
                terminate,
                ..
            } => self.capture(&snapshot, terminate),
            Request::Resume { .. } => {
                self.release();
                Ok(Reply::Resumed)
            }
            Request::Restore { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.quiet) {
            self.runtime.release();
        }
    }

    fn save_local_store(&self, snapshot: &str) -> io::Result<Vec<StoredFile>> {
        let files = self
            .runtime
            .buffers
            .lock()
            .map_err(|_| io::ErrorKind::Other)?
            .files();
        files
            .into_iter()
            .map(|(name, path, len)| {
                let mut from = File::open(&path)?;
                let to = format!("{snapshot}/{LOCAL_STORE}/{name}");
                let mut to = snapify_io::open_write(HOST, &to)?;
                io::copy(&mut from, &mut to)?;
                snapify_io::finish(to)?;
                let card_path = path.to_string_lossy().into_owned();
                Ok(StoredFile {
                    name,
                    card_path,
                    len,
                    mode: 0o600,
                })
            })
            .collect()
    }

    fn capture(&mut self, snapshot: &str, terminate: bool) -> io::Result<Reply> {
        let image = snapify_io::open_write(HOST, &format!("{snapshot}/{IMAGE}"))?;
        let service = OpenOptions::new()
            .read(true)
            .write(true)
            .open(checkpoint::PATH)?;
        let argument = Capture {
            fd: image.as_raw_fd(),
            flags: 0,
        };
        // SAFETY: the request's argument is a `Capture`, valid for the call.
        let result = unsafe {
            libc::ioctl(
                service.as_raw_fd(),
                checkpoint::CAPTURE.into(),
                &raw const argument,
            )
        };
        match i64::from(result) {
            RESTARTED => {
                self.reconnect()?;
                // This reply goes to the daemon of the new card, which waits for Hello only: the
                // session goes on with its next request.
                self.daemon_next()
            }
            0 => {
                let bytes = snapify_io::finish(image)?;
                if terminate {
                    frames::write(&mut self.daemon, &Reply::Captured { bytes })?;
                    std::process::exit(0);
                }
                Ok(Reply::Captured { bytes })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// In a restored process: a new daemon, a new port, the host's channels again (section 4.3).
    fn reconnect(&mut self) -> io::Result<()> {
        let port = self.runtime.listen()?;
        self.daemon = announce(&Purpose::Restarted { port })?;
        let listener = self
            .runtime
            .lock()
            .listener
            .clone()
            .ok_or(io::ErrorKind::NotConnected)?;
        let mut missing: Vec<_> = self.runtime.lock().channels.keys().copied().collect();
        while !missing.is_empty() {
            let kind = self.runtime.accept_one(&listener)?;
            missing.retain(|other| *other != kind);
            if kind == Kind::Dma {
                // The host connects this one first, and asks for the windows on a later one.
                let dma = self
                    .runtime
                    .dma()
                    .ok_or(io::ErrorKind::NotConnected)?
                    .endpoint();
                let buffers = self.runtime.buffers.lock();
                buffers
                    .map_err(|_| io::ErrorKind::Other)?
                    .register_again(&dma)?;
            }
        }
        self.runtime.changed.notify_all();
        Ok(())
    }

    /// The answer to the request that comes after a restore: Resume.
    fn daemon_next(&mut self) -> io::Result<Reply> {
        let request = frames::read::<Request>(&mut self.daemon)?;
        self.handle(request)
    }
}
