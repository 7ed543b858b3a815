//! A daemon's side of a program ([`crate::open`]; paper section 6, figure 8, the local handler): the requester's machine
//! ([`snaprig_offload_wire::snapify_io`]), with the program's bytes and a window for the other node's daemon.
//!
//! What must stay true: a program that dies, or closes its descriptor before the end of its stream, has not finished: the
//! connection is dropped, and with it the file.

use std::{
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
};

use snaprig_offload_wire::snapify_io::{
    Failure, Input, LocalOpen, Machine, Message, Mode, Output, Sink, Source,
};
use snaprig_wire::frame;
use xxhash_rust::xxh3::xxh3_64;

use crate::hold_more;

/// A connection to the daemon of the node that has the file, and a window of it with slots
/// ([`snaprig_offload_wire::snapify_io::SLOT_BYTES`]).
pub trait Remote {
    /// Sends one message.
    fn send(&mut self, message: &Message) -> io::Result<()>;

    /// Waits for one.
    fn receive(&mut self) -> io::Result<Message>;

    /// Where the window is.
    fn window(&self) -> i64;

    /// Room for a slot's bytes.
    fn room(&mut self, slot: u8) -> &mut [u8];

    /// So many bytes of the room are the slot's.
    fn put(&mut self, slot: u8, len: usize);

    /// So many bytes of a slot.
    fn get(&mut self, slot: u8, len: usize) -> &[u8];
}

/// Serves one program, with a connection to the node that it wants; why its file is not there: it has been told.
pub fn serve<R: Remote>(
    program: &mut UnixStream,
    connect: impl FnOnce(&LocalOpen) -> io::Result<R>,
) -> Result<(), Failure> {
    hold_more(program);
    let mut opened = false;
    let request = read(program);
    let reads = matches!(&request, Ok(request) if request.mode == Mode::Read);
    let done = request.and_then(|request| {
        let remote = connect(&request).map_err(|error| match error.raw_os_error() {
            // No such node: here, no such device is one that has no daemon.
            Some(libc::ENODEV) => io::Error::from_raw_os_error(libc::ENXIO),
            _ => error,
        });
        let remote = remote.map_err(|error| failure(&request.path, &error))?;
        transfer(&request, program, remote, &mut opened)
    });
    let reply = match &done {
        // What was read has its own end.
        Ok(_) if reads => {
            // It is there already ([`LocalOpen`]).
            let _ = program.read(&mut [0]);
            return Ok(());
        }
        // A message would be taken for bytes of the file.
        Err(_) if reads && opened => None,
        Ok(bytes) => Some(Message::Finished { bytes: *bytes }),
        Err(failure) => Some(Message::Failed(failure.clone())),
    };
    if let Some(reply) = reply {
        // A program that is gone needs no telling.
        let _ = program.write_all(&frame::encode_framed(&reply));
    }
    done.map(|_| ())
}

fn read(program: &mut UnixStream) -> Result<LocalOpen, Failure> {
    let mut read = || {
        let mut prefix = [0; 4];
        program.read_exact(&mut prefix)?;
        let mut body = vec![0; frame::frame_len(prefix).map_err(io::Error::other)?];
        program.read_exact(&mut body)?;
        frame::decode(&body).map_err(io::Error::other)
    };
    read().map_err(|error| failure("", &error))
}

fn failure(path: &str, error: &io::Error) -> Failure {
    Failure {
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        path: path.into(),
        offset: 0,
        why: error.to_string(),
    }
}

/// Moves the file; its bytes.
fn transfer(
    request: &LocalOpen,
    program: &mut UnixStream,
    mut remote: impl Remote,
    opened: &mut bool,
) -> Result<u64, Failure> {
    let (kind, path) = (request.kind, &request.path);
    let mut machine: Box<dyn Machine> = match request.mode {
        Mode::Write => Box::new(Source::request(kind, path, remote.window())),
        Mode::Read => Box::new(Sink::request(kind, path, remote.window())),
    };
    loop {
        let done = match machine.poll_output() {
            None => Ok(Some(match remote.receive() {
                Ok(message) => Input::Peer(message),
                Err(_) => Input::Lost,
            })),
            Some(Output::Send(message)) => {
                // If the other daemon is gone, its last words may still be there to be received.
                let _ = remote.send(&message);
                Ok(None)
            }
            Some(Output::Opened { len }) => {
                *opened = true;
                let message = frame::encode_framed(&Message::Opened { len });
                program.write_all(&message).map(|()| None)
            }
            Some(Output::Fill { slot }) => fill(program, &mut remote, slot).map(Some),
            Some(Output::Take { slot, len, hash }) => {
                take(program, remote.get(slot, len as usize), hash).map(Some)
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
fn fill(program: &mut UnixStream, remote: &mut impl Remote, slot: u8) -> io::Result<Input> {
    let room = remote.room(slot);
    let mut len = 0;
    while len < room.len() {
        match program.read(&mut room[len..])? {
            0 if has_closed(program)? => return Err(io::ErrorKind::BrokenPipe.into()),
            0 => break,
            count => len += count,
        }
    }
    if len == 0 {
        return Ok(Input::End);
    }
    let hash = xxh3_64(&room[..len]);
    remote.put(slot, len);
    let len = len as u32;
    Ok(Input::Filled { len, hash })
}

/// Checks what the other daemon has put into a slot, and passes it on.
fn take(program: &mut UnixStream, bytes: &[u8], hash: u64) -> io::Result<Input> {
    if xxh3_64(bytes) != hash {
        return Err(io::Error::from_raw_os_error(libc::EBADMSG));
    }
    program.write_all(bytes)?;
    Ok(Input::Taken)
}

/// Whether the program has closed its end altogether, instead of shutting down its stream and waiting for the answer (unix(7):
/// then there is no POLLHUP).
fn has_closed(program: &UnixStream) -> io::Result<bool> {
    let mut entry = libc::pollfd {
        fd: program.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: one entry, valid for the call.
    match unsafe { libc::poll(&raw mut entry, 1, 0) } {
        0.. => Ok(entry.revents & libc::POLLHUP != 0),
        _ => Err(io::Error::last_os_error()),
    }
}
