//! SCIF for programs on the card: ioctls on /dev/mic/scif (Linux uapi `scif_ioctl.h`), with the
//! same methods as the host's endpoints.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
};

use snaprig_wire::scif::PortId;

const DEVICE: &str = "/dev/mic/scif";
const BLOCK: i32 = 1;
const MAP_FIXED: i32 = 0x10;
/// Window protection: reading and writing.
pub const PROT_READ_WRITE: i32 = 3;

#[repr(C)]
struct Connect {
    own: [u16; 2],
    peer: [u16; 2],
}

#[repr(C)]
struct Accept {
    flags: i32,
    peer: [u16; 2],
    endpoint: u64,
}

#[repr(C)]
struct Message {
    address: u64,
    len: i32,
    flags: i32,
    out_len: i32,
}

#[repr(C)]
struct Register {
    address: u64,
    len: u64,
    offset: i64,
    prot: i32,
    flags: i32,
    out_offset: i64,
}

#[repr(C)]
struct Unregister {
    offset: i64,
    len: u64,
}

#[repr(C)]
struct NodeIds {
    nodes: u64,
    own: u64,
    len: i32,
}

#[repr(C)]
struct Copy {
    local: i64,
    len: u64,
    remote: i64,
    address: u64,
    flags: i32,
}

/// `_IOWR('s', number, T)`.
const fn iowr<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | (b's' as u64) << 8 | number
}

/// One endpoint.
pub struct Endpoint(File);

impl Endpoint {
    /// scif_open.
    pub fn open() -> io::Result<Self> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(DEVICE)
            .map(Self)
    }

    fn ioctl<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        loop {
            // SAFETY: `request` encodes the size of `T`, which the driver reads and writes; the
            // addresses inside it are of memory that the callers of this function borrow.
            let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, &raw mut *argument) };
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
        self.ioctl(iowr::<u64>(1), &mut argument)?;
        Ok(argument as u16)
    }

    /// scif_listen.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        // _IOW('s', 2, __s32): the number itself is the argument.
        // SAFETY: no pointer is passed.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), 0x4004_7302, backlog) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// scif_connect; returns the own port.
    pub fn connect(&self, peer: PortId) -> io::Result<u16> {
        let mut argument = Connect {
            own: [0; 2],
            peer: [peer.node, peer.port],
        };
        self.ioctl(iowr::<Connect>(3), &mut argument)?;
        Ok(argument.own[1])
    }

    /// scif_accept: waits for a connection.
    pub fn accept(&self) -> io::Result<(Self, PortId)> {
        let mut argument = Accept {
            flags: BLOCK,
            peer: [0; 2],
            endpoint: 0,
        };
        self.ioctl(iowr::<Accept>(4), &mut argument)?;
        let accepted = Self::open()?;
        accepted.ioctl(iowr::<u64>(5), &mut argument.endpoint)?;
        Ok((
            accepted,
            PortId {
                node: argument.peer[0],
                port: argument.peer[1],
            },
        ))
    }

    /// scif_send, all of it.
    pub fn send(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let mut argument = Message {
                address: data.as_ptr() as u64,
                len: data.len().min(1 << 20) as i32,
                flags: BLOCK,
                out_len: 0,
            };
            self.ioctl(iowr::<Message>(6), &mut argument)?;
            data = &data[argument.out_len as usize..];
        }
        Ok(())
    }

    /// scif_recv: at least one byte.
    pub fn recv(&self, to: &mut [u8]) -> io::Result<usize> {
        let mut argument = Message {
            address: to.as_mut_ptr() as u64,
            len: to.len().min(1 << 20) as i32,
            flags: BLOCK,
            out_len: 0,
        };
        self.ioctl(iowr::<Message>(7), &mut argument)?;
        Ok(argument.out_len as usize)
    }

    /// scif_recv of all of `to`.
    pub fn recv_exact(&self, to: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < to.len() {
            done += self.recv(&mut to[done..])?;
        }
        Ok(())
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
        self.ioctl(iowr::<Register>(8), &mut argument)?;
        Ok(argument.out_offset)
    }

    /// scif_unregister.
    pub fn unregister(&self, offset: i64, len: u64) -> io::Result<()> {
        self.ioctl(iowr::<Unregister>(9), &mut Unregister { offset, len })
    }

    /// scif_readfrom.
    pub fn readfrom(&self, local: i64, len: u64, remote: i64) -> io::Result<()> {
        self.ioctl(
            iowr::<Copy>(10),
            &mut Copy {
                local,
                len,
                remote,
                address: 0,
                flags: 0,
            },
        )
    }

    /// scif_vreadfrom: into a range of this process that need not be registered.
    pub fn vreadfrom(&self, address: usize, len: u64, remote: i64) -> io::Result<()> {
        self.ioctl(
            iowr::<Copy>(12),
            &mut Copy {
                local: 0,
                len,
                remote,
                address: address as u64,
                flags: 0,
            },
        )
    }

    /// scif_writeto.
    pub fn writeto(&self, local: i64, len: u64, remote: i64) -> io::Result<()> {
        self.ioctl(
            iowr::<Copy>(11),
            &mut Copy {
                local,
                len,
                remote,
                address: 0,
                flags: 0,
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
        self.ioctl(iowr::<NodeIds>(14), &mut argument)?;
        Ok(own)
    }

    /// Its descriptor.
    pub fn as_file(&self) -> &File {
        &self.0
    }
}
