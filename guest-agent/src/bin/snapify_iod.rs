//! The Snapify-IO daemon on a card (paper section 6, figure 8): a local handler thread for each
//! user process, which moves its bytes through a registered 4 MiB buffer.

use std::{
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
};

use coi_device::{frames, scif::Endpoint};
use snaprig_wire::{
    scif::{PortId, port},
    snapify_io::{BUFFER_BYTES, Local, LocalReply, Message, Mode, SOCKET},
};

fn main() -> io::Result<()> {
    let listener = UnixListener::bind(SOCKET)?;
    for user in listener.incoming() {
        let mut user = user?;
        std::thread::spawn(move || {
            if let Err(error) = handle(&mut user) {
                let reply = LocalReply::Failed {
                    errno: error.raw_os_error().unwrap_or(libc::EIO),
                    why: error.to_string(),
                };
                // A user process that is gone needs no telling.
                let _ = frames::write(&mut user, &reply);
            }
        });
    }
    Ok(())
}

fn handle(user: &mut UnixStream) -> io::Result<()> {
    let request: Local = frames::read(user)?;
    let remote = Endpoint::open()?;
    remote.connect(PortId {
        node: request.node,
        port: port::SNAPIFY_IO,
    })?;
    let mut buffer = Buffer::new()?;
    let window = remote.register(buffer.0 as usize, BUFFER_BYTES, None)?;
    frames::send(
        &remote,
        &Message::Open {
            path: request.path,
            mode: request.mode,
            window,
        },
    )?;
    match frames::receive(&remote)? {
        Message::Opened { len } => frames::write(user, &LocalReply::Opened { len })?,
        other => return refuse(other),
    }
    match request.mode {
        Mode::Write => forward(user, &remote, &mut buffer),
        Mode::Read => backward(user, &remote, &mut buffer),
    }
}

fn forward(user: &mut UnixStream, remote: &Endpoint, buffer: &mut Buffer) -> io::Result<()> {
    let mut total = 0;
    loop {
        let filled = fill(user, buffer.bytes())?;
        if filled > 0 {
            total += filled as u64;
            frames::send(
                remote,
                &Message::Filled {
                    bytes: filled as u32,
                },
            )?;
            match frames::receive(remote)? {
                Message::Drained => {}
                other => return refuse(other),
            }
        }
        if filled < BUFFER_BYTES {
            break;
        }
    }
    frames::send(remote, &Message::Finish { bytes: total })?;
    match frames::receive(remote)? {
        Message::Finished { bytes } => frames::write(user, &LocalReply::Finished { bytes }),
        other => refuse(other),
    }
}

fn backward(user: &mut UnixStream, remote: &Endpoint, buffer: &mut Buffer) -> io::Result<()> {
    loop {
        match frames::receive(remote)? {
            Message::Filled { bytes: 0 } => return Ok(()),
            Message::Filled { bytes } if bytes as usize <= BUFFER_BYTES => {
                user.write_all(&buffer.bytes()[..bytes as usize])?;
                frames::send(remote, &Message::Drained)?;
            }
            other => return refuse(other),
        }
    }
}

/// Reads until the buffer is full or the stream at its end.
fn fill(from: &mut UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match from.read(&mut buffer[done..])? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

fn refuse(message: Message) -> io::Result<()> {
    match message {
        Message::Failed { why, .. } => Err(io::Error::other(why)),
        _ => Err(io::ErrorKind::InvalidData.into()),
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

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours, and the protocol lets only one side touch the buffer at a
        // time: the host between Filled and Drained (writing) or before Filled (reading).
        unsafe { std::slice::from_raw_parts_mut(self.0, BUFFER_BYTES) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; its pages stay pinned for as long as the window exists.
        unsafe { libc::munmap(self.0.cast(), BUFFER_BYTES) };
    }
}
