//! Socket addresses, as commands carry them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rustix::io::Errno;
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout,
    byteorder::big_endian::{U16, U32, U64},
};

/// The family of InfiniBand's own addresses.
pub const AF_IB: u16 = 27;
const AF_UNSPEC: u16 = libc::AF_UNSPEC as u16;
const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
/// Bytes of `struct sockaddr_in` and of `struct sockaddr_in6`.
const SOCKADDR_IN_BYTES: u16 = 16;
const SOCKADDR_IN6_BYTES: u16 = 28;

/// `struct sockaddr_in6`, or a `struct sockaddr_in` in its place: the family says which.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sockaddr {
    /// Which address it is.
    pub family: u16,
    /// The port.
    pub port: U16,
    /// The address of IPv4; IPv6 has flow information here.
    pub v4: [u8; 4],
    /// The address of IPv6.
    pub v6: [u8; 16],
    /// The interface that an address of a link belongs to.
    pub scope_id: u32,
}

impl Sockaddr {
    /// The address; none if it has no family.
    pub fn get(&self) -> Result<Option<SocketAddr>, Errno> {
        let port = self.port.get();
        match self.family {
            AF_UNSPEC => Ok(None),
            AF_INET => Ok(Some(SocketAddr::new(IpAddr::from(self.v4), port))),
            AF_INET6 => {
                let address = Ipv6Addr::from(self.v6);
                Ok(Some(
                    SocketAddrV6::new(address, port, 0, self.scope_id).into(),
                ))
            }
            _ => Err(Errno::AFNOSUPPORT),
        }
    }
}

impl From<SocketAddr> for Sockaddr {
    fn from(address: SocketAddr) -> Self {
        let mut it = Self {
            port: address.port().into(),
            ..Self::default()
        };
        match address {
            SocketAddr::V4(v4) => {
                it.family = AF_INET;
                it.v4 = v4.ip().octets();
            }
            SocketAddr::V6(v6) => {
                it.family = AF_INET6;
                it.v6 = v6.ip().octets();
                it.scope_id = v6.scope_id();
            }
        }
        it
    }
}

/// `struct __kernel_sockaddr_storage`: room for any address.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SockaddrStorage {
    /// The address, if it is one of the Internet.
    pub address: Sockaddr,
    rest: [u8; 100],
}

impl Default for SockaddrStorage {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

impl SockaddrStorage {
    /// The address, and how many bytes of the storage it takes.
    pub fn of(address: SocketAddr) -> (Self, u16) {
        let bytes = match address {
            SocketAddr::V4(_) => SOCKADDR_IN_BYTES,
            SocketAddr::V6(_) => SOCKADDR_IN6_BYTES,
        };
        let it = Self {
            address: address.into(),
            ..Self::default()
        };
        (it, bytes)
    }

    /// The same for an address of InfiniBand.
    pub fn of_ib(address: &SockaddrIb) -> (Self, u16) {
        let mut it = Self::default();
        let bytes = address.as_bytes();
        it.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        (it, bytes.len() as u16)
    }
}

/// `struct sockaddr_ib`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SockaddrIb {
    /// [`AF_IB`].
    pub family: u16,
    /// The partition.
    pub pkey: U16,
    /// Flow information.
    pub flow_info: U32,
    /// The address of the port.
    pub gid: [u8; 16],
    /// The service, and which bits of it count.
    pub service_id: U64,
    /// Which bits of the service count.
    pub service_mask: U64,
    /// Unused.
    pub scope_id: u64,
}
