//! The vfio-user server: shows a [`Function`] to one client after another.
//!
//! ```text
//! listening --accept--> serving --hang-up, bad message--> detach --> listening
//!        \_________________\____ stop readable ____> socket removed, thread ends
//! ```
//!
//! What must stay true: the client is hostile. A command is refused with an errno, or, when the
//! stream can no longer be in step, the client is dropped; nothing it sends ends the thread. After
//! `detach` the function holds nothing of the client's: no memory, no eventfd.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::Arc,
    thread::JoinHandle,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};
use snaprig_wire::pci;

use crate::{
    config::{CONFIG_BYTES, ConfigSpace},
    socket::{Message, Socket, Until},
    vfio_user::{
        self as proto, ACCESS_BYTES, DATA_MAX, ERROR, NO_REPLY, REGION_INFO_BYTES, TYPE_COMMAND,
        TYPE_MASK, TYPE_REPLY, command, vfio,
    },
};

/// An error number, the answer to a command that failed.
pub type Errnum = i32;

/// What a device does when its PCI function is accessed. Called from the server's thread; the
/// client waits, so nothing here may block for long.
pub trait Function: Send + Sync {
    /// A client is there.
    fn attach(&self);
    /// The client is gone: drop its memory and vectors, stop its DMA.
    fn detach(&self);
    /// Reads a BAR: any offset, up to 64 KiB.
    fn bar_read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Result<(), Errnum>;
    /// Writes a BAR: any offset, up to 64 KiB.
    fn bar_write(&self, bar: u32, offset: u64, from: &[u8]) -> Result<(), Errnum>;
    /// The client's memory at `iova` is `len` bytes at `offset` of `fd`, which is not checked yet.
    fn dma_map(&self, iova: u64, len: u64, fd: OwnedFd, offset: u64) -> Result<(), Errnum>;
    /// The range is the client's no more; on return no copy uses it.
    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Errnum>;
    /// All ranges at once.
    fn dma_unmap_all(&self);
    /// Where to signal a vector (below [`pci::MSIX_VECTORS`]): a non-blocking eventfd, or nowhere.
    fn set_vector(&self, vector: u32, event: Option<OwnedFd>);
    /// Whether all vectors are masked, by the function mask of the MSI-X capability: signals are to wait.
    fn mask_vectors(&self, is_masked: bool);
    /// Function-level reset.
    fn reset(&self);
}

/// A socket that clients can connect to, though nobody serves them yet. Its name is there until somebody
/// removes it.
pub struct Listener(UnixListener);

impl Listener {
    /// Makes the socket.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = UnixListener::bind(path)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }
}

/// Serves `function` at a socket until `stop` (an eventfd) is readable. `aperture` is the memfd
/// behind BAR0 and its size.
pub fn serve(
    listener: Listener,
    aperture: (OwnedFd, u64),
    function: Arc<dyn Function>,
    stop: OwnedFd,
) -> io::Result<JoinHandle<()>> {
    let server = Server {
        listener: listener.0,
        aperture: aperture.0,
        aperture_bytes: aperture.1,
        function,
        stop,
    };
    std::thread::Builder::new()
        .name("vfio-user".into())
        .spawn(move || server.run())
}

struct Server {
    listener: UnixListener,
    aperture: OwnedFd,
    aperture_bytes: u64,
    function: Arc<dyn Function>,
    stop: OwnedFd,
}

/// A reply's body and the descriptor that goes with it.
struct Reply<'a>(Vec<u8>, Option<BorrowedFd<'a>>);

impl Server {
    fn run(self) {
        while let Some(stream) = self.accept() {
            self.function.attach();
            let ended = Socket::new(stream).and_then(|socket| self.session(&socket));
            if let Err(e) = ended
                && e.kind() != io::ErrorKind::UnexpectedEof
            {
                tracing::warn!("vfio-user client dropped: {e}");
            }
            self.function.detach();
        }
    }

    /// The next client, or `None` when it is time to stop.
    fn accept(&self) -> Option<UnixStream> {
        loop {
            let mut ready = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Err(Errno::INTR) => continue,
                Err(_) => return None,
                Ok(_) if !ready[1].revents().is_empty() => return None,
                Ok(_) => {}
            }
            match self.listener.accept() {
                Ok((stream, _)) => return Some(stream),
                // A client that left at once, or no descriptor free just now: neither is for ever.
                Err(e) => tracing::warn!("accepting a vfio-user client: {e}"),
            }
        }
    }

    fn session(&self, socket: &Socket) -> io::Result<()> {
        let until = Until {
            stop: Some(self.stop.as_fd()),
            deadline: None,
        };
        let mut config = ConfigSpace::new(self.aperture_bytes);
        loop {
            let message = socket.receive(until)?;
            let header = message.header;
            if header.flags & TYPE_MASK != TYPE_COMMAND {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let result = self.handle(&mut config, message);
            if header.flags & NO_REPLY != 0 {
                continue;
            }
            let reply = |flags, errno, body: &[u8]| {
                proto::message(header.id, header.command, TYPE_REPLY | flags, errno, body)
            };
            match result {
                Ok(Reply(body, fd)) => {
                    let fds: Vec<_> = fd.into_iter().collect();
                    socket.send(&reply(0, 0, &body), &fds, until)?;
                }
                Err(errno) => socket.send(&reply(ERROR, errno as u32, &[]), &[], until)?,
            }
        }
    }

    fn handle(&self, config: &mut ConfigSpace, message: Message) -> Result<Reply<'_>, Errnum> {
        let body = &message.body[..];
        let plain = |body| Ok(Reply(body, None));
        match message.header.command {
            command::VERSION => plain(version(body)?),
            command::GET_INFO => plain(device_info()),
            command::GET_REGION_INFO => self.region_info(body),
            command::GET_IRQ_INFO => plain(irq_info(body)?),
            command::SET_IRQS => self.set_irqs(body, message.fds).map(|()| none()),
            command::REGION_READ => plain(self.region_read(config, body)?),
            command::REGION_WRITE => plain(self.region_write(config, body)?),
            command::DMA_MAP => self.dma_map(body, message.fds).map(|()| none()),
            command::DMA_UNMAP => plain(self.dma_unmap(body)?),
            command::RESET => {
                *config = ConfigSpace::new(self.aperture_bytes);
                self.function.reset();
                Ok(none())
            }
            _ => Err(libc::EOPNOTSUPP),
        }
    }

    fn region_info(&self, body: &[u8]) -> Result<Reply<'_>, Errnum> {
        let index = proto::u32_at(body, 8).ok_or(libc::EINVAL)?;
        let access = vfio::REGION_READ | vfio::REGION_WRITE;
        let (flags, size, fd) = match index {
            pci::BAR_APERTURE => (
                access | vfio::REGION_MMAP,
                self.aperture_bytes,
                Some(self.aperture.as_fd()),
            ),
            pci::BAR_MMIO => (access, pci::BAR_MMIO_SIZE, None),
            vfio::REGION_CONFIG => (access, CONFIG_BYTES as u64, None),
            _ if index < vfio::REGION_COUNT => (0, 0, None),
            _ => return Err(libc::EINVAL),
        };
        let mut reply = Vec::with_capacity(REGION_INFO_BYTES);
        proto::push_u32s(&mut reply, &[REGION_INFO_BYTES as u32, flags, index, 0]);
        proto::push_u64s(&mut reply, &[size, 0]);
        Ok(Reply(reply, fd))
    }

    fn region_read(&self, config: &ConfigSpace, body: &[u8]) -> Result<Vec<u8>, Errnum> {
        let (offset, region, count) = access(body)?;
        let mut data = vec![0; count];
        match region {
            vfio::REGION_CONFIG => config.read(offset, &mut data),
            0..vfio::REGION_CONFIG => self.function.bar_read(region, offset, &mut data)?,
            _ => return Err(libc::EINVAL),
        }
        Ok(proto::access(offset, region, count as u32, &data))
    }

    fn region_write(&self, config: &mut ConfigSpace, body: &[u8]) -> Result<Vec<u8>, Errnum> {
        let (offset, region, count) = access(body)?;
        let data = &body[ACCESS_BYTES..];
        if data.len() != count {
            return Err(libc::EINVAL);
        }
        match region {
            vfio::REGION_CONFIG => {
                config.write(offset, data);
                self.function.mask_vectors(config.masks_vectors());
            }
            0..vfio::REGION_CONFIG => self.function.bar_write(region, offset, data)?,
            _ => return Err(libc::EINVAL),
        }
        Ok(proto::access(offset, region, count as u32, &[]))
    }

    fn dma_map(&self, body: &[u8], mut fds: Vec<OwnedFd>) -> Result<(), Errnum> {
        let (Some(flags), Some(offset), Some(iova), Some(len)) = (
            proto::u32_at(body, 4),
            proto::u64_at(body, 8),
            proto::u64_at(body, 16),
            proto::u64_at(body, 24),
        ) else {
            return Err(libc::EINVAL);
        };
        // Memory is mapped for both directions: a client that grants only one is not served.
        if flags != vfio::DMA_READ | vfio::DMA_WRITE || fds.len() > 1 {
            return Err(libc::EINVAL);
        }
        let fd = fds.pop().ok_or(libc::EOPNOTSUPP)?;
        self.function.dma_map(iova, len, fd, offset)
    }

    fn dma_unmap(&self, body: &[u8]) -> Result<Vec<u8>, Errnum> {
        let (Some(flags), Some(iova), Some(len)) = (
            proto::u32_at(body, 4),
            proto::u64_at(body, 8),
            proto::u64_at(body, 16),
        ) else {
            return Err(libc::EINVAL);
        };
        match (flags, iova, len) {
            (vfio::UNMAP_ALL, 0, 0) => self.function.dma_unmap_all(),
            (0, ..) => self.function.dma_unmap(iova, len)?,
            _ => return Err(libc::EINVAL),
        }
        Ok(body[..24].to_vec())
    }

    fn set_irqs(&self, body: &[u8], fds: Vec<OwnedFd>) -> Result<(), Errnum> {
        let field = |at| proto::u32_at(body, at).ok_or(libc::EINVAL);
        let (flags, index, start, count) = (field(4)?, field(8)?, field(12)?, field(16)?);
        let end = start.checked_add(count).ok_or(libc::EINVAL)?;
        if index != vfio::IRQ_MSIX || end > pci::MSIX_VECTORS {
            return Err(libc::EINVAL);
        }
        const TO_EVENTFD: u32 = vfio::IRQ_SET_TRIGGER | vfio::IRQ_SET_EVENTFD;
        const TO_NOWHERE: u32 = vfio::IRQ_SET_TRIGGER | vfio::IRQ_SET_NONE;
        match flags {
            TO_EVENTFD if fds.len() == count as usize => {
                fds.iter().try_for_each(check_eventfd)?;
                for (vector, fd) in (start..end).zip(fds) {
                    self.function.set_vector(vector, Some(fd));
                }
            }
            TO_NOWHERE if count == 0 => {
                (0..pci::MSIX_VECTORS).for_each(|v| self.function.set_vector(v, None));
            }
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }
}

fn none<'a>() -> Reply<'a> {
    Reply(Vec::new(), None)
}

fn version(body: &[u8]) -> Result<Vec<u8>, Errnum> {
    // Major 0 is the only version; capabilities of the client do not change what we send.
    if body.get(..2) != Some(&[0, 0]) {
        return Err(libc::EPROTONOSUPPORT);
    }
    let capabilities =
        format!("{{\"capabilities\":{{\"max_msg_fds\":1,\"max_data_xfer_size\":{DATA_MAX}}}}}\0");
    let mut reply = vec![0, 0, 1, 0];
    reply.extend_from_slice(capabilities.as_bytes());
    Ok(reply)
}

fn device_info() -> Vec<u8> {
    let mut reply = Vec::new();
    let flags = vfio::DEVICE_PCI | vfio::DEVICE_RESET;
    proto::push_u32s(
        &mut reply,
        &[16, flags, vfio::REGION_COUNT, vfio::IRQ_COUNT],
    );
    reply
}

fn irq_info(body: &[u8]) -> Result<Vec<u8>, Errnum> {
    let index = proto::u32_at(body, 8).ok_or(libc::EINVAL)?;
    let (flags, count) = match index {
        vfio::IRQ_MSIX => (vfio::IRQ_INFO_EVENTFD, pci::MSIX_VECTORS),
        _ if index < vfio::IRQ_COUNT => (0, 0),
        _ => return Err(libc::EINVAL),
    };
    let mut reply = Vec::new();
    proto::push_u32s(&mut reply, &[16, flags, index, count]);
    Ok(reply)
}

/// Offset, region and length of a region access.
fn access(body: &[u8]) -> Result<(u64, u32, usize), Errnum> {
    let (Some(offset), Some(region), Some(count)) = (
        proto::u64_at(body, 0),
        proto::u32_at(body, 8),
        proto::u32_at(body, 12),
    ) else {
        return Err(libc::EINVAL);
    };
    match count as usize {
        count if count <= DATA_MAX => Ok((offset, region, count)),
        _ => Err(libc::E2BIG),
    }
}

/// Only an eventfd may be signalled: a write to a full pipe, say, could block the device.
fn check_eventfd(fd: &OwnedFd) -> Result<(), Errnum> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let target = std::fs::read_link(link).map_err(|_| libc::EIO)?;
    if target != Path::new("anon_inode:[eventfd]") {
        return Err(libc::EINVAL);
    }
    let flags = fcntl_getfl(fd).map_err(Errno::raw_os_error)?;
    fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(Errno::raw_os_error)
}
