//! The Snapify thread: woken by the handler of the daemon's signal, it connects to the daemon and
//! drives [`super::machine`] with its requests and with what the other threads report.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, IntoRawFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::atomic::{AtomicI32, Ordering},
};

use snaprig_offload_wire::{
    coi::Channel as Kind,
    snapify::{LOCAL_STORE, Link, Purpose, Reply, Request, SIGNAL, StoredFile, image},
};
use snaprig_snapify_io_client::{self as snapify_io, Kind as FileKind, LastWord, RemoteFile};
use snaprig_wire::{
    checkpoint::{self, APART, Capture, HOLD, INCREMENT, LIVE, MAPPED, RESTARTED, TRACK, Wrote},
    frame,
    scif::HOST,
};

use super::{
    Runtime, announce, lock,
    machine::{Captured, Failure, Input, Output},
};
use crate::frames;

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

/// The Snapify thread: one session after the other.
pub fn serve(runtime: &'static Runtime, mut nudged: io::PipeReader) {
    // SAFETY: the descriptor is the pipe's reading end, which nobody else owns.
    let mut wake = unsafe { File::from_raw_fd(WAKE[0].load(Ordering::Relaxed)) };
    let mut byte = [0];
    while matches!(wake.read(&mut byte), Ok(1)) {
        let session = announce(&Purpose::Signalled).and_then(|daemon| {
            let stays = false;
            Session {
                runtime,
                daemon,
                stays,
            }
            .run(&mut nudged)
        });
        if let Err(error) = session {
            eprintln!("snapify: {error}");
        }
    }
}

struct Session {
    runtime: &'static Runtime,
    daemon: UnixStream,
    /// The local store stays where it is, for another card to fetch it.
    stays: bool,
}

impl Session {
    /// Serves until resume, or until the daemon is gone, which resumes too.
    fn run(mut self, nudged: &mut io::PipeReader) -> io::Result<()> {
        let result = self.serve(nudged);
        if result.is_err() {
            let mut state = self.runtime.lock();
            state.machine.handle(Input::DaemonGone);
            // There is nobody left to be told.
            while state.machine.poll_output().is_some() {}
            drop(state);
            self.runtime.look_again();
        }
        result
    }

    fn serve(&mut self, nudged: &mut io::PipeReader) -> io::Result<()> {
        loop {
            loop {
                let output = self.runtime.lock().machine.poll_output();
                match output {
                    None => break,
                    Some(Output::Reply(reply)) => {
                        frames::write(&mut self.daemon, &reply)?;
                        if reply == Reply::Resumed {
                            return Ok(());
                        }
                    }
                    Some(output) => self.perform(output)?,
                }
            }
            if readable(&self.daemon, nudged)? {
                // What it says is in the machine.
                let _ = nudged.read(&mut [0; 64])?;
                continue;
            }
            let request = frames::read(&mut self.daemon)?;
            self.runtime.lock().machine.handle(Input::Request(request));
        }
    }

    fn perform(&mut self, output: Output) -> io::Result<()> {
        match output {
            Output::SaveLocalStore(snapshot) => {
                let saved = self.save_local_store(&snapshot);
                let saved = saved.map_err(failure);
                self.runtime.lock().machine.handle(Input::Saved(saved));
            }
            Output::ListLocalStore => {
                self.stays = true;
                let files = lock(&self.runtime.buffers).files();
                let files = Ok(files.into_iter().map(stored).collect());
                self.runtime.lock().machine.handle(Input::Saved(files));
            }
            Output::Capture {
                snapshot,
                terminate,
                last,
            } => {
                let captured = self.how(last).and_then(|how| match terminate {
                    true => capture_and_end(&self.daemon, &snapshot, how),
                    false => capture(&snapshot, how),
                });
                let captured = captured.map_err(failure);
                self.runtime
                    .lock()
                    .machine
                    .handle(Input::Captured(captured));
            }
            Output::Copy { snapshot, link } => {
                let copied = self.how(Some(link)).and_then(|how| copy(&snapshot, how));
                let copied = copied.map_err(failure);
                self.runtime.lock().machine.handle(Input::Copied(copied));
            }
            Output::Reconnect => self.reconnect()?,
            Output::Released => self.runtime.look_again(),
            Output::Reply(_) => {}
        }
        Ok(())
    }

    /// How an image is captured, after the kernel has been told what is to be in it.
    fn how(&self, link: Option<Link>) -> io::Result<How> {
        let Some(Link { number, wrote }) = link else {
            let flags = if self.stays { APART } else { 0 };
            return Ok(How { number: 0, flags });
        };
        let service = service()?;
        let buffers = lock(&self.runtime.buffers);
        for one in wrote {
            // Memory that is no more is not in the image either.
            if let Some((address, bytes)) = buffers.bytes(one.memory, one.range) {
                let argument = Wrote { address, bytes };
                let request = checkpoint::WROTE.into();
                // SAFETY: the request's argument is a `Wrote`, valid for the call.
                if unsafe { libc::ioctl(service.as_raw_fd(), request, &raw const argument) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        let flags = match number {
            0 => TRACK | MAPPED,
            _ => INCREMENT | MAPPED,
        };
        Ok(How { number, flags })
    }

    fn save_local_store(&self, snapshot: &str) -> io::Result<Vec<StoredFile>> {
        mark()?;
        let files = lock(&self.runtime.buffers).files();
        files
            .into_iter()
            .map(|file| {
                let file = stored(file);
                let mut from = File::open(&file.card_path)?;
                let to = format!("{snapshot}/{LOCAL_STORE}/{}", file.name);
                let mut to = snapify_io::open_write(HOST, &to, FileKind::Snapshot)?;
                // A daemon that has failed says why when it is asked for the end.
                let copied = snapify_io::copy(&mut from, &mut to);
                snapify_io::finish(to)?;
                copied.map(|_| file)
            })
            .collect()
    }

    /// In a restored process: a new daemon, a new port, the host's channels again (section 4.3).
    fn reconnect(&mut self) -> io::Result<()> {
        self.runtime.lock().restored += 1;
        let port = self.runtime.listen()?;
        self.daemon = announce(&Purpose::Restarted { port })?;
        let listener = self.runtime.lock().listener.clone();
        let listener = listener.ok_or(io::ErrorKind::NotConnected)?;
        while self.runtime.lock().machine.is_reconnecting() {
            // The host connects the one for RDMA first, and asks for the windows on a later one.
            if self.runtime.accept_one(&listener)? == Kind::Dma
                && let Some(dma) = self.runtime.dma()
            {
                lock(&self.runtime.buffers).register_again(&dma.endpoint())?;
            }
        }
        self.runtime.look_again();
        Ok(())
    }
}

/// A file of the local store, by its name, path and length.
fn stored((name, path, len): (String, PathBuf, u64)) -> StoredFile {
    StoredFile {
        name,
        card_path: path.to_string_lossy().into_owned(),
        len,
        mode: 0o600,
    }
}

fn failure(error: io::Error) -> Failure {
    (error.raw_os_error().unwrap_or(0), error.to_string())
}

/// Waits for the daemon or another thread; whether it is another thread.
fn readable(daemon: &UnixStream, nudged: &io::PipeReader) -> io::Result<bool> {
    let entry = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries = [entry(nudged.as_raw_fd()), entry(daemon.as_raw_fd())];
    // SAFETY: two entries, valid for the call.
    while unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(entries[0].revents != 0)
}

fn service() -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(checkpoint::PATH)
}

/// The files of the local store are saved from now on, and run functions run on: what they write to
/// a file from now on may come too late for it, and is to be in the image.
fn mark() -> io::Result<()> {
    // SAFETY: the request takes no argument.
    match unsafe { libc::ioctl(service()?.as_raw_fd(), checkpoint::MARK.into(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Which image of a process is captured.
#[derive(Clone, Copy)]
struct How {
    number: u32,
    flags: u32,
}

/// While the process works.
fn copy(snapshot: &str, how: How) -> io::Result<u64> {
    let image = open_image(snapshot, how)?;
    match stream(&service()?, &image, how.flags | LIVE) {
        Ok(_) => snapify_io::finish(image),
        Err(error) => Err(snapify_io::finish(image).err().unwrap_or(error)),
    }
}

fn capture(snapshot: &str, how: How) -> io::Result<Captured> {
    let image = open_image(snapshot, how)?;
    match stream(&service()?, &image, how.flags) {
        Ok(RESTARTED) => Ok(Captured::Restarted),
        Ok(_) => snapify_io::finish(image).map(Captured::Saved),
        // The service saw a broken stream; the daemon knows what broke it.
        Err(error) => Err(snapify_io::finish(image).err().unwrap_or(error)),
    }
}

/// The process's last capture here: once the image is written this thread alone runs, waits until it is
/// safe, tells the daemon, and ends the process when it is told to. Others may have been stopped with any
/// lock, the heap's too: all that wants one is done before. If the image does not become safe, or the
/// snapshot not complete, they go on.
fn capture_and_end(daemon: &UnixStream, snapshot: &str, how: How) -> io::Result<Captured> {
    let image = open_image(snapshot, how)?;
    let service = service()?;
    let mut word = LastWord::default();
    // A handler might want a lock.
    let blocked = Blocked::all();
    match stream(&service, &image, how.flags | HOLD) {
        Ok(RESTARTED) => return Ok(Captured::Restarted),
        Ok(_) => {}
        Err(error) => return Err(snapify_io::finish(image).err().unwrap_or(error)),
    }
    let (told, failed) = match (word.hear(&image), word.finished()) {
        (Ok(()), Some(bytes)) => match end_if_told(daemon, bytes) {
            Ok(()) => (true, None),
            Err(error) => (false, Some(error)),
        },
        (heard, _) => (false, heard.err()),
    };
    // SAFETY: the request takes no argument. It does not fail on this device.
    unsafe { libc::ioctl(service.as_raw_fd(), checkpoint::RELEASE.into(), 0) };
    drop(blocked);
    if told {
        return Ok(Captured::GoesOn);
    }
    let failed = failed.or_else(|| word.understand().err());
    Err(failed.unwrap_or(io::ErrorKind::InvalidData.into()))
}

/// Answers the daemon, and ends the process if that is what it asks for next, or if it is gone: the snapshot may be
/// complete by then. Without a lock or the heap. Returns when it asks for something else, which is not read yet.
fn end_if_told(mut daemon: &UnixStream, bytes: u64) -> io::Result<()> {
    let mut room = [0; 32];
    let reply = frame::encode_framed_in(&Reply::Captured { bytes }, &mut room);
    daemon.write_all(reply.unwrap_or_default())?;
    // SAFETY: getpid(2) takes no argument and cannot fail.
    let pid = unsafe { libc::getpid() };
    let end = frame::encode_framed_in(&Request::End { pid }, &mut room).unwrap_or_default();
    // What is as long as it may still be something else.
    if may_start_with(daemon, &end[..4]) && may_start_with(daemon, end) {
        // SAFETY: it returns to nobody. What exit(3) would have done is done by the one that comes back.
        unsafe { libc::_exit(0) }
    }
    Ok(())
}

/// Waits until as many bytes have come; false if they are others. They stay where they are.
fn may_start_with(stream: &UnixStream, bytes: &[u8]) -> bool {
    let mut room = [0_u8; 32];
    let peeked = &mut room[..bytes.len()];
    let (to, flags) = (peeked.as_mut_ptr(), libc::MSG_PEEK | libc::MSG_WAITALL);
    // SAFETY: there is room for as many bytes. All signals are blocked, so it is not interrupted.
    let read = unsafe { libc::recv(stream.as_raw_fd(), to.cast(), bytes.len(), flags) };
    read != bytes.len() as isize || peeked == bytes
}

fn open_image(snapshot: &str, how: How) -> io::Result<RemoteFile> {
    let path = format!("{snapshot}/{}", image(how.number));
    snapify_io::open_write(HOST, &path, FileKind::Snapshot)
}

/// Has the process streamed; what the request returns.
fn stream(service: &File, image: &RemoteFile, flags: u32) -> io::Result<i64> {
    let fd = image.as_raw_fd();
    let argument = Capture { fd, flags };
    let request = checkpoint::CAPTURE.into();
    // SAFETY: the request's argument is a `Capture`, valid for the call.
    match unsafe { libc::ioctl(service.as_raw_fd(), request, &raw const argument) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result.into()),
    }
}

/// All signals wait, for the calling thread.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Self {
        // SAFETY: sigset_t is numbers only; both are valid for the calls, which fail for nothing here.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is valid for the call.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}
