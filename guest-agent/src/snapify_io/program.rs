//! The requester for one program of the card, with a registered buffer of 4 MiB.

use std::io;

use snaprig_offload_wire::snapify_io::{BUFFER_BYTES, Kind, LocalOpen, Message, SLOT_BYTES};
use snaprig_snapify_io_client::serve::Remote;
use snaprig_wire::scif::{PortId, port};

use super::turns::{Turn, Turns};
use crate::{frames, scif::Endpoint};

/// Snapshots have turns of their own: they do not wait for programs, which may stand still because of them.
static SNAPSHOTS: Turns = Turns::new();
static PROGRAMS: Turns = Turns::new();

/// Another node's daemon, and the buffer. Its window ends with the endpoint, which is dropped first.
pub struct OnCard {
    remote: Endpoint,
    window: i64,
    buffer: Buffer,
    _turn: Turn,
}

impl OnCard {
    /// Waits for a turn.
    pub fn connect(request: &LocalOpen) -> io::Result<Self> {
        let turn = match request.kind {
            Kind::Snapshot => SNAPSHOTS.take(),
            Kind::Plain => PROGRAMS.take(),
        };
        let remote = Endpoint::open()?;
        remote.connect(PortId {
            node: request.node,
            port: port::SNAPIFY_IO,
        })?;
        let buffer = Buffer::new()?;
        Ok(Self {
            window: remote.register(buffer.0 as usize, BUFFER_BYTES, None)?,
            remote,
            buffer,
            _turn: turn,
        })
    }
}

impl Remote for OnCard {
    fn send(&mut self, message: &Message) -> io::Result<()> {
        frames::send(&self.remote, message)
    }

    fn receive(&mut self) -> io::Result<Message> {
        frames::receive(&self.remote)
    }

    fn window(&self) -> i64 {
        self.window
    }

    fn room(&mut self, slot: u8) -> &mut [u8] {
        self.buffer.slot(slot)
    }

    fn put(&mut self, _: u8, _: usize) {}

    fn get(&mut self, slot: u8, len: usize) -> &[u8] {
        &self.buffer.slot(slot)[..len]
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
