//! The Snapify-IO daemon on a card (paper section 6, figure 8): a local handler thread for each
//! user process, which drives the requester's machine ([`snaprig_offload_wire::snapify_io`]) with the
//! process's bytes and a registered 4 MiB buffer. Its socket is its standard input, bound by whoever
//! started it: users may connect from then on.
//!
//! What must stay true: a user process that dies, or closes its descriptor before the end of its
//! stream, has not finished: the connection is dropped, and with it the file.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::{UnixListener, UnixStream},
    },
};

use coi_device::{frames, scif::Endpoint};
use snaprig_offload_wire::snapify_io::{
    BUFFER_BYTES, Failure, Input, LocalOpen, Machine, Message, Mode, Output, SLOT_BYTES, Sink,
    Source,
};
use snaprig_wire::scif::{PortId, port};
use xxhash_rust::xxh3::xxh3_64;

fn main() -> io::Result<()> {
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    for user in listener.incoming() {
        // A connection that is gone before it is taken is no reason to stop.
        let Ok(mut user) = user else { continue };
        std::thread::spawn(move || {
            let done = LocalRequest::read(&mut user).and_then(|request| request.serve(&mut user));
            let reply = match done {
                // What was read has its own end; what was written is acknowledged.
                Ok(None) => return,
                Ok(Some(bytes)) => Message::Finished { bytes },
                Err(failure) => Message::Failed(failure),
            };
            // A user process that is gone needs no telling.
            let _ = frames::write(&mut user, &reply);
        });
    }
    Ok(())
}

struct LocalRequest(LocalOpen);

impl LocalRequest {
    fn read(user: &mut UnixStream) -> Result<Self, Failure> {
        frames::read(user)
            .map(Self)
            .map_err(|error| failure("", &error))
    }

    /// Moves the file; the bytes that were written, if it is written.
    fn serve(&self, user: &mut UnixStream) -> Result<Option<u64>, Failure> {
        let path = &self.0.path;
        let failed = |error: io::Error| failure(path, &error);
        let remote = self.connect().map_err(failed)?;
        let mut buffer = Buffer::new().map_err(failed)?;
        let window = remote
            .register(buffer.0 as usize, BUFFER_BYTES, None)
            .map_err(failed)?;
        match self.0.mode {
            Mode::Write => {
                let mut source = Source::request(path, window);
                run(path, user, &remote, &mut buffer, &mut source).map(Some)
            }
            Mode::Read => {
                let mut sink = Sink::request(path, window);
                run(path, user, &remote, &mut buffer, &mut sink).map(|_| None)
            }
        }
    }

    fn connect(&self) -> io::Result<Endpoint> {
        let remote = Endpoint::open()?;
        remote.connect(PortId {
            node: self.0.node,
            port: port::SNAPIFY_IO,
        })?;
        Ok(remote)
    }
}

fn failure(path: &str, error: &io::Error) -> Failure {
    Failure {
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        path: path.into(),
        offset: 0,
        why: error.to_string(),
    }
}

/// Does what the machine says until it is done.
fn run(
    path: &str,
    user: &mut UnixStream,
    remote: &Endpoint,
    buffer: &mut Buffer,
    machine: &mut dyn Machine,
) -> Result<u64, Failure> {
    loop {
        let done = match machine.poll_output() {
            None => Ok(Some(match frames::receive(remote) {
                Ok(message) => Input::Peer(message),
                Err(_) => Input::Lost,
            })),
            Some(Output::Send(message)) => {
                // If the host's daemon is gone, its last words may still be there to be received.
                let _ = frames::send(remote, &message);
                Ok(None)
            }
            Some(Output::Opened { len }) => {
                frames::write(user, &Message::Opened { len }).map(|()| None)
            }
            Some(Output::Fill { slot }) => fill(user, buffer.slot(slot)).map(Some),
            Some(Output::Take { slot, len, hash }) => {
                take(user, &buffer.slot(slot)[..len as usize], hash).map(Some)
            }
            Some(Output::Commit { .. }) => Ok(Some(Input::Committed)),
            Some(Output::Done(result)) => return result,
        };
        match done {
            Ok(Some(input)) => machine.handle(input),
            Ok(None) => {}
            Err(error) => machine.handle(Input::Failed(failure(path, &error))),
        }
    }
}

/// Reads until the slot is full or the stream at its end.
fn fill(from: &mut UnixStream, slot: &mut [u8]) -> io::Result<Input> {
    let mut len = 0;
    while len < slot.len() {
        match from.read(&mut slot[len..])? {
            0 if closed(from)? => return Err(io::ErrorKind::BrokenPipe.into()),
            0 => break,
            count => len += count,
        }
    }
    if len == 0 {
        return Ok(Input::End);
    }
    let hash = xxh3_64(&slot[..len]);
    let len = len as u32;
    Ok(Input::Filled { len, hash })
}

/// Checks what the host has put into a slot, and passes it on.
fn take(to: &mut UnixStream, bytes: &[u8], hash: u64) -> io::Result<Input> {
    if xxh3_64(bytes) != hash {
        return Err(io::Error::from_raw_os_error(libc::EBADMSG));
    }
    to.write_all(bytes)?;
    Ok(Input::Taken)
}

/// Whether the user process has closed its end altogether, instead of shutting down its stream and
/// waiting for the answer (unix(7): then there is no POLLHUP).
fn closed(user: &UnixStream) -> io::Result<bool> {
    let mut entry = libc::pollfd {
        fd: user.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: one entry, valid for the call.
    match unsafe { libc::poll(&raw mut entry, 1, 0) } {
        0.. => Ok(entry.revents & libc::POLLHUP != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The registered buffer: whole pages, read and written by the DMA engine too.
struct Buffer(*mut u8);

impl Buffer {
    fn new() -> io::Result<Self> {
        // SAFETY: a new private mapping; the result is checked.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BUFFER_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(address.cast()))
    }

    fn slot(&mut self, slot: u8) -> &mut [u8] {
        let start = usize::from(slot) * SLOT_BYTES;
        assert!(start + SLOT_BYTES <= BUFFER_BYTES, "the machine's slots");
        // SAFETY: the range is inside the mapping, which is ours; a slot belongs to one side at a
        // time, and the machine hands out only what is this side's.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), SLOT_BYTES) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; its pages stay pinned for as long as the window exists.
        unsafe { libc::munmap(self.0.cast(), BUFFER_BYTES) };
    }
}
