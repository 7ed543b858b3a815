//! [`HostDevice`] over vfio-user.
//!
//! What must stay true: one command is outstanding at a time; a reply is taken only if its id and
//! command are those of the request (a late error of a posted write is skipped); after anything
//! that could leave the stream out of step the connection is closed, and every call fails.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags};

use crate::{
    host::{DeviceError, HostDevice, Mapping, region},
    socket::{Message, Socket, Until},
    vfio_user::{
        self as proto, ACCESS_BYTES, ERROR, NO_REPLY, REGION_INFO_BYTES, TYPE_COMMAND, TYPE_MASK,
        TYPE_REPLY, command, vfio,
    },
};

/// How long a living but silent device may take for one answer. Commands only touch registers and
/// tables, so past this it counts as hung.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Room for the capabilities that a server appends to a region's description.
const ARGSZ_MAX: u32 = 4096;

/// A device behind a vfio-user socket.
pub struct VfioUserClient {
    socket: Socket,
    state: Mutex<State>,
}

struct State {
    next_id: u16,
    closed: bool,
}

impl VfioUserClient {
    /// Connects, agrees on the version and checks that there is a PCI device.
    pub fn connect(path: &Path) -> Result<Self, DeviceError> {
        let unreachable = |source| DeviceError::Connect {
            path: path.display().to_string(),
            source,
        };
        let stream = UnixStream::connect(path).map_err(unreachable)?;
        let client = Self {
            socket: Socket::new(stream).map_err(unreachable)?,
            state: Mutex::new(State {
                next_id: 0,
                closed: false,
            }),
        };
        client.negotiate()?;
        Ok(client)
    }

    /// The memfd of a BAR, where the BAR is in it, and its size.
    fn region_file(&self, bar: u32) -> Result<(OwnedFd, u64, u64), DeviceError> {
        let what = "describe a BAR";
        let mut body = Vec::with_capacity(REGION_INFO_BYTES);
        proto::push_u32s(&mut body, &[ARGSZ_MAX, 0, region(bar)?, 0]);
        proto::push_u64s(&mut body, &[0, 0]);
        let mut reply = self.call(what, command::GET_REGION_INFO, &body, &[])?;
        let (Some(flags), Some(size), Some(offset)) = (
            proto::u32_at(&reply.body, 4),
            proto::u64_at(&reply.body, 16),
            proto::u64_at(&reply.body, 24),
        ) else {
            return Err(self.broken(what));
        };
        match reply.fds.pop() {
            Some(file) if flags & vfio::REGION_MMAP != 0 => Ok((file, offset, size)),
            _ => Err(DeviceError::Map {
                bar,
                why: "it is not memory",
            }),
        }
    }

    fn negotiate(&self) -> Result<(), DeviceError> {
        let what = "agree on a version";
        let mut body = vec![0, 0, 1, 0];
        let capabilities = format!("{{\"capabilities\":{{\"max_msg_fds\":{}}}}}\0", 1);
        body.extend_from_slice(capabilities.as_bytes());
        let reply = self.call(what, command::VERSION, &body, &[])?;
        if reply.body.get(..2) != Some(&[0, 0]) {
            return Err(self.broken(what));
        }
        let what = "describe itself";
        let mut body = Vec::new();
        proto::push_u32s(&mut body, &[16, 0, 0, 0]);
        let reply = self.call(what, command::GET_INFO, &body, &[])?;
        match proto::u32_at(&reply.body, 4) {
            Some(flags) if flags & vfio::DEVICE_PCI != 0 => Ok(()),
            _ => Err(self.broken(what)),
        }
    }

    /// Sends a command and waits for its reply.
    fn call(
        &self,
        what: &'static str,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, DeviceError> {
        let mut state = self.lock();
        let until = deadline();
        let id = self.send(&mut state, command, TYPE_COMMAND, body, fds, until)?;
        loop {
            let reply = match self.socket.receive(until) {
                Ok(reply) => reply,
                Err(e) => return Err(self.fail(&mut state, what, &e)),
            };
            let header = reply.header;
            if header.flags & TYPE_MASK != TYPE_REPLY {
                return Err(self.fail(&mut state, what, &io::ErrorKind::InvalidData.into()));
            }
            if header.id != id {
                continue;
            }
            if header.command != command {
                return Err(self.fail(&mut state, what, &io::ErrorKind::InvalidData.into()));
            }
            if header.flags & ERROR != 0 {
                let errno = i32::try_from(header.errno).unwrap_or(libc::EIO);
                return Err(DeviceError::Refused { what, errno });
            }
            return Ok(reply);
        }
    }

    fn send(
        &self,
        state: &mut State,
        command: u16,
        flags: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        until: Until<'_>,
    ) -> Result<u16, DeviceError> {
        if state.closed {
            return Err(DeviceError::Gone);
        }
        let id = state.next_id;
        state.next_id = id.wrapping_add(1);
        let message = proto::message(id, command, flags, 0, body);
        match self.socket.send(&message, fds, until) {
            Ok(()) => Ok(id),
            Err(e) => Err(self.fail(state, "take a command", &e)),
        }
    }

    /// Closes the connection, for good.
    fn fail(&self, state: &mut State, what: &'static str, e: &io::Error) -> DeviceError {
        state.closed = true;
        self.socket.shutdown();
        match e.kind() {
            io::ErrorKind::InvalidData => DeviceError::Protocol { what },
            _ => DeviceError::Gone,
        }
    }

    fn broken(&self, what: &'static str) -> DeviceError {
        self.fail(&mut self.lock(), what, &io::ErrorKind::InvalidData.into())
    }

    fn region_read(&self, region: u32, offset: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        let what = "read a register";
        let body = proto::access(offset, region, to.len() as u32, &[]);
        let reply = self.call(what, command::REGION_READ, &body, &[])?;
        match reply.body.get(ACCESS_BYTES..) {
            Some(data) if data.len() == to.len() => to.copy_from_slice(data),
            _ => return Err(self.broken(what)),
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no state is left half-changed")
    }
}

impl HostDevice for VfioUserClient {
    fn config_read(&self, offset: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        self.region_read(vfio::REGION_CONFIG, offset, to)
    }

    fn config_write(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let body = proto::access(offset, vfio::REGION_CONFIG, from.len() as u32, from);
        self.call("write its configuration", command::REGION_WRITE, &body, &[])?;
        Ok(())
    }

    fn bar_read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        self.region_read(region(bar)?, offset, to)
    }

    fn bar_write(&self, bar: u32, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let body = proto::access(offset, region(bar)?, from.len() as u32, from);
        let mut state = self.lock();
        let flags = TYPE_COMMAND | NO_REPLY;
        self.send(
            &mut state,
            command::REGION_WRITE,
            flags,
            &body,
            &[],
            deadline(),
        )?;
        Ok(())
    }

    fn map_bar(&self, bar: u32) -> Result<Mapping, DeviceError> {
        let (file, offset, size) = self.region_file(bar)?;
        let mapping = Mapping::of_memfd(file.as_fd(), offset, size);
        mapping.map_err(|why| DeviceError::Map { bar, why })
    }

    fn bar_file(&self, bar: u32) -> Option<(OwnedFd, u64)> {
        let (file, offset, _) = self.region_file(bar).ok()?;
        Some((file, offset))
    }

    fn dma_map(
        &self,
        iova: u64,
        len: u64,
        fd: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), DeviceError> {
        let mut body = Vec::new();
        proto::push_u32s(&mut body, &[32, vfio::DMA_READ | vfio::DMA_WRITE]);
        proto::push_u64s(&mut body, &[offset, iova, len]);
        self.call("map memory for DMA", command::DMA_MAP, &body, &[fd])?;
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError> {
        let mut body = Vec::new();
        proto::push_u32s(&mut body, &[24, 0]);
        proto::push_u64s(&mut body, &[iova, len]);
        self.call("unmap memory", command::DMA_UNMAP, &body, &[])?;
        Ok(())
    }

    fn set_vector(&self, vector: u32, event: BorrowedFd<'_>) -> Result<(), DeviceError> {
        let mut body = Vec::new();
        let flags = vfio::IRQ_SET_EVENTFD | vfio::IRQ_SET_TRIGGER;
        proto::push_u32s(&mut body, &[20, flags, vfio::IRQ_MSIX, vector, 1]);
        self.call(
            "set an interrupt vector",
            command::SET_IRQS,
            &body,
            &[event],
        )?;
        Ok(())
    }

    fn reset(&self) -> Result<(), DeviceError> {
        self.call("reset", command::RESET, &[], &[])?;
        Ok(())
    }

    fn hang_up(&self) -> Option<PollFd<'_>> {
        Some(PollFd::from_borrowed_fd(
            self.socket.as_fd(),
            PollFlags::RDHUP,
        ))
    }

    fn close(&self) {
        self.socket.shutdown();
    }
}

fn deadline() -> Until<'static> {
    Until {
        stop: None,
        deadline: Some(Instant::now() + ANSWER_MAX),
    }
}
