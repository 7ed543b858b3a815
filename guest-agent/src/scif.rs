//! SCIF for programs on the card ([`ioctl`]), with the same methods as the host's endpoints.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use snaprig_scif_lanes::card::{OnCard, be_willing};
use snaprig_wire::{
    frame::Incoming,
    scif::{
        PortId,
        ioctl::{
            self, Accept, BLOCK, Connect, Copy, DEVICE, MAP_FIXED, Message, NodeIds, Register,
            Unregister,
        },
    },
};

/// Window protection: reading and writing.
pub const PROT_READ_WRITE: i32 = ioctl::PROT;

/// One endpoint.
pub struct Endpoint {
    file: File,
    /// Of a connection.
    end: OnceLock<OnCard>,
    /// Of its messages, what has come.
    incoming: Mutex<Incoming>,
}

impl Endpoint {
    /// scif_open.
    pub fn open() -> io::Result<Self> {
        let endpoint = Self::open_device()?;
        be_willing(endpoint.file.as_raw_fd());
        Ok(endpoint)
    }

    fn open_device() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        Ok(file.into())
    }

    /// It is this side of a connection.
    fn connected(&self, side: usize) {
        self.end
            .get_or_init(|| OnCard::new(self.file.as_raw_fd(), side));
    }

    /// Its end of the lanes, if its connection has any.
    fn lanes(&self) -> Option<&OnCard> {
        self.end.get().filter(|end| end.is_there())
    }

    fn ioctl<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        loop {
            // SAFETY: `request` encodes the size of `T`, which the driver reads and writes; the
            // addresses inside it are of memory that the callers of this function borrow.
            let result =
                unsafe { libc::ioctl(self.file.as_raw_fd(), request.into(), &raw mut *argument) };
            match result {
                0 => return Ok(()),
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }

    /// scif_bind: port 0 takes a free one.
    pub fn bind(&self, port: u16) -> io::Result<u16> {
        let mut argument = u64::from(port);
        self.ioctl(ioctl::BIND, &mut argument)?;
        Ok(argument as u16)
    }

    /// scif_listen.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the request takes a number in place of an address, so the driver reads and writes no memory of this
        // process.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), ioctl::LISTEN.into(), backlog) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// scif_connect; returns the own port.
    pub fn connect(&self, peer: PortId) -> io::Result<u16> {
        let mut argument = Connect {
            peer_node: peer.node,
            peer_port: peer.port,
            ..Connect::default()
        };
        self.ioctl(ioctl::CONNECT, &mut argument)?;
        self.connected(0);
        Ok(argument.own_port)
    }

    /// scif_accept: waits for a connection.
    pub fn accept(&self) -> io::Result<(Self, PortId)> {
        let mut argument = Accept {
            flags: BLOCK,
            ..Accept::default()
        };
        self.ioctl(ioctl::ACCEPT, &mut argument)?;
        let accepted = Self::open_device()?;
        accepted.ioctl(ioctl::ACCEPT_CLAIM, &mut argument.endpoint)?;
        accepted.connected(1);
        Ok((
            accepted,
            PortId {
                node: argument.peer_node,
                port: argument.peer_port,
            },
        ))
    }

    /// scif_send, all of it.
    pub fn send(&self, mut data: &[u8]) -> io::Result<()> {
        if let Some(lanes) = self.lanes() {
            while !data.is_empty() {
                let sent = lanes.send(data.as_ptr().expose_provenance(), data.len(), true);
                data = &data[uninterrupted(sent)?..];
            }
            return Ok(());
        }
        while !data.is_empty() {
            let mut argument = Message {
                address: data.as_ptr() as u64,
                len: data.len().min(1 << 20) as i32,
                flags: BLOCK,
                out_len: 0,
            };
            self.ioctl(ioctl::SEND, &mut argument)?;
            data = &data[argument.out_len as usize..];
        }
        Ok(())
    }

    /// scif_recv: at least one byte.
    pub fn recv(&self, to: &mut [u8]) -> io::Result<usize> {
        if let Some(lanes) = self.lanes() {
            loop {
                let at = to.as_mut_ptr().expose_provenance();
                let received = lanes.recv(at, to.len(), 1.min(to.len()));
                match uninterrupted(received)? {
                    0 if !to.is_empty() => {}
                    count => return Ok(count),
                }
            }
        }
        let mut argument = Message {
            address: to.as_mut_ptr() as u64,
            len: to.len().min(1 << 20) as i32,
            flags: BLOCK,
            out_len: 0,
        };
        self.ioctl(ioctl::RECV, &mut argument)?;
        Ok(argument.out_len as usize)
    }

    /// The same, of a connection that has lanes, without sleeping: what is there, or comes within the time that receiving
    /// spins. 0: nothing.
    pub fn recv_soon(&self, to: &mut [u8]) -> io::Result<usize> {
        match self.lanes() {
            Some(lanes) => {
                uninterrupted(lanes.recv_soon(to.as_mut_ptr().expose_provenance(), to.len()))
            }
            None => Ok(0),
        }
    }

    /// Its messages ([`crate::frames::receive`]). Whoever has them is the one who receives.
    pub fn incoming(&self) -> MutexGuard<'_, Incoming> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// scif_register: a range of whole pages of this process, which must stay mapped until
    /// [`Endpoint::unregister`] (the pages are pinned, but the program would see others).
    pub fn register(&self, address: usize, len: usize, offset: Option<i64>) -> io::Result<i64> {
        let mut argument = Register {
            address: address as u64,
            len: len as u64,
            offset: offset.unwrap_or(0),
            prot: PROT_READ_WRITE,
            flags: if offset.is_some() { MAP_FIXED } else { 0 },
            out_offset: 0,
        };
        self.ioctl(ioctl::REGISTER, &mut argument)?;
        Ok(argument.out_offset)
    }

    /// scif_unregister.
    pub fn unregister(&self, offset: i64, len: u64) -> io::Result<()> {
        self.ioctl(ioctl::UNREGISTER, &mut Unregister { offset, len })
    }

    /// scif_readfrom, as all of these with SCIF_RMA_SYNC.
    pub fn readfrom(&self, local: i64, len: u64, remote: i64) -> io::Result<()> {
        self.ioctl(
            ioctl::READ_FROM,
            &mut Copy {
                local,
                len,
                remote,
                address: 0,
                flags: ioctl::RMA_SYNC,
            },
        )
    }

    /// scif_vreadfrom: into a range of this process that need not be registered.
    pub fn vreadfrom(&self, address: usize, len: u64, remote: i64) -> io::Result<()> {
        self.ioctl(
            ioctl::VREAD_FROM,
            &mut Copy {
                local: 0,
                len,
                remote,
                address: address as u64,
                flags: ioctl::RMA_SYNC,
            },
        )
    }

    /// scif_writeto.
    pub fn writeto(&self, local: i64, len: u64, remote: i64) -> io::Result<()> {
        self.ioctl(
            ioctl::WRITE_TO,
            &mut Copy {
                local,
                len,
                remote,
                address: 0,
                flags: ioctl::RMA_SYNC,
            },
        )
    }

    /// scif_vwriteto: out of memory that need not be registered.
    pub fn vwriteto(&self, bytes: &[u8], remote: i64) -> io::Result<()> {
        self.ioctl(
            ioctl::VWRITE_TO,
            &mut Copy {
                local: 0,
                len: bytes.len() as u64,
                remote,
                address: bytes.as_ptr() as u64,
                flags: ioctl::RMA_SYNC,
            },
        )
    }

    /// scif_get_nodeIDs: the node of this card.
    pub fn node(&self) -> io::Result<u16> {
        let (mut nodes, mut own) = ([0_u16; 1], 0_u16);
        let mut argument = NodeIds {
            nodes: nodes.as_mut_ptr() as u64,
            own: (&raw mut own) as u64,
            len: nodes.len() as i32,
        };
        self.ioctl(ioctl::NODE_IDS, &mut argument)?;
        Ok(own)
    }

    /// Its descriptor.
    pub fn as_file(&self) -> &File {
        &self.file
    }
}

/// One that another process has made to listen.
impl From<File> for Endpoint {
    fn from(file: File) -> Self {
        Self {
            file,
            end: OnceLock::new(),
            incoming: Mutex::default(),
        }
    }
}

/// How much went; nothing, if a signal came first.
fn uninterrupted(moved: Result<usize, i32>) -> io::Result<usize> {
    match moved {
        Err(libc::EINTR) => Ok(0),
        moved => moved.map_err(io::Error::from_raw_os_error),
    }
}
