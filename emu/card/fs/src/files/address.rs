//! Addresses of sockets: `struct sockaddr_un` (unix(7)), `sockaddr_in` and `sockaddr_in6` (ip(7), ipv6(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use snaprig_card_driver::errno::Errno;

/// Bytes of `struct sockaddr_un`, the longest that is known.
const UNIX_BYTES: usize = 110;
/// Bytes of `struct sockaddr_storage`, the longest that is taken.
pub const STORAGE_BYTES: u64 = 128;
const INTERNET_BYTES: usize = 16;
/// Of `struct sockaddr_in6`: with and without its scope.
const INTERNET6_BYTES: usize = 28;
const INTERNET6_MIN: usize = 24;

/// What an address means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A name in the file system.
    Path(String),
    /// A name that is none there.
    Abstract(Vec<u8>),
    /// No name: the kernel finds one (unix(7), autobind).
    Unnamed,
    /// A port.
    Port(Place),
    /// `AF_UNSPEC`: no peer any more.
    Nobody,
}

/// A port of an internet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address; one of IPv4 is never in the form that IPv6 has for it.
    pub ip: IpAddr,
    /// The port.
    pub port: u16,
}

impl Place {
    /// Any address of a family.
    pub fn any(domain: i32) -> Self {
        let ip = match domain {
            libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        Self { ip, port: 0 }
    }

    /// Where what is sent to it arrives, and what it is from: the loopback address for any.
    pub fn reached(self) -> Self {
        let ip = match self.ip {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Self { ip, ..self }
    }

    /// Whether it is of this machine, as far as its own loopback device reaches.
    pub fn is_here(self) -> bool {
        self.ip.is_loopback() || self.ip.is_unspecified()
    }

    /// Its `struct sockaddr` for a socket of this family.
    pub fn bytes(self, domain: i32) -> Vec<u8> {
        let mut bytes = (domain as u16).to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.port.to_be_bytes());
        match (self.ip, domain) {
            (IpAddr::V4(ip), libc::AF_INET) => {
                bytes.extend_from_slice(&ip.octets());
                bytes.resize(INTERNET_BYTES, 0);
            }
            (ip, _) => {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                // No flow; the address; no scope.
                bytes.extend_from_slice(&[0; 4]);
                bytes.extend_from_slice(&ip.octets());
                bytes.resize(INTERNET6_BYTES, 0);
            }
        }
        bytes
    }
}

/// Reads an address for a socket of this family.
pub fn parse(domain: i32, bytes: &[u8]) -> Result<Address, Errno> {
    let family = match bytes.first_chunk() {
        Some(family) => i32::from(u16::from_le_bytes(*family)),
        None => return Err(Errno::EINVAL),
    };
    match domain {
        libc::AF_UNIX => parse_unix(family, bytes),
        libc::AF_INET if bytes.len() < INTERNET_BYTES => Err(Errno::EINVAL),
        libc::AF_INET6 if bytes.len() < INTERNET6_MIN && family == libc::AF_INET6 => {
            Err(Errno::EINVAL)
        }
        _ if family == libc::AF_UNSPEC => Ok(Address::Nobody),
        _ if family != domain => Err(Errno::EAFNOSUPPORT),
        _ => Ok(Address::Port(parse_internet(domain, bytes))),
    }
}

fn parse_unix(family: i32, bytes: &[u8]) -> Result<Address, Errno> {
    if bytes.len() > UNIX_BYTES || family != libc::AF_UNIX && family != libc::AF_UNSPEC {
        return Err(Errno::EINVAL);
    }
    if family == libc::AF_UNSPEC {
        return Ok(Address::Nobody);
    }
    let name = &bytes[2..];
    Ok(match name.iter().position(|byte| *byte == 0) {
        _ if name.is_empty() => Address::Unnamed,
        Some(0) => Address::Abstract(name[1..].to_vec()),
        end => {
            let path = name[..end.unwrap_or(name.len())].to_vec();
            Address::Path(String::from_utf8(path).map_err(|_| Errno::EINVAL)?)
        }
    })
}

fn parse_internet(domain: i32, bytes: &[u8]) -> Place {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip = match domain {
        libc::AF_INET => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).into(),
        _ => {
            let octets: [u8; 16] = bytes[8..24].try_into().expect("16 bytes");
            let ip = Ipv6Addr::from(octets);
            match ip.to_ipv4_mapped() {
                Some(ip) => ip.into(),
                None => ip.into(),
            }
        }
    };
    Place { ip, port }
}
