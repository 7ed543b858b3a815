//! What programs ask of interfaces by ioctl(2) on any socket (netdevice(7)).

use std::net::Ipv4Addr;

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use crate::{
    call::FsCall,
    links::{Link, links},
};

/// Bytes of `struct ifreq`, and of the name in front.
const IFREQ_BYTES: usize = 40;
const NAME_BYTES: usize = 16;
/// All requests of this kind.
const REQUESTS: std::ops::RangeInclusive<u64> = 0x8910..=0x894f;
const SIOCGIFNAME: u64 = 0x8910;
const SIOCGIFCONF: u64 = 0x8912;
const SIOCGIFFLAGS: u64 = 0x8913;
const SIOCGIFADDR: u64 = 0x8915;
const SIOCGIFBRDADDR: u64 = 0x8919;
const SIOCGIFNETMASK: u64 = 0x891b;
const SIOCGIFMETRIC: u64 = 0x891d;
const SIOCGIFMTU: u64 = 0x8921;
const SIOCGIFHWADDR: u64 = 0x8927;
const SIOCGIFINDEX: u64 = 0x8933;

/// Runs one of these requests; `None` if it is none.
pub fn ioctl(call: &mut FsCall, request: u32, argument: u64) -> Option<SysResult> {
    let request = u64::from(request);
    if !REQUESTS.contains(&request) {
        return None;
    }
    let relay = call.sockets.relay.as_ref();
    let links = links(relay.map(|relay| relay.interface()));
    Some(match request {
        SIOCGIFCONF => list(call, &links, argument),
        request => one(call, &links, request, argument),
    })
}

/// `struct ifconf`: as many as there is room for, or how much room they take.
fn list(call: &mut FsCall, links: &[Link], argument: u64) -> SysResult {
    let mut bytes = [0; 16];
    call.cx.memory.read(argument, &mut bytes)?;
    let room = i32::from_le_bytes(*bytes.first_chunk().expect("4 bytes"));
    let to = u64::from_le_bytes(*bytes.last_chunk().expect("8 bytes"));
    let room = match to {
        0 => usize::MAX,
        _ => usize::try_from(room).map_err(|_| Errno::EINVAL)? / IFREQ_BYTES,
    };
    let mut told = Vec::new();
    for link in links.iter().take(room) {
        told.extend_from_slice(&named(link, &socket_address(link.address)));
    }
    if to != 0 {
        call.cx.memory.write(to, &told)?;
    }
    let len = (told.len() as i32).to_le_bytes();
    call.cx.memory.write(argument, &len)?;
    Ok(0)
}

/// `struct ifreq`: what is asked of one interface.
fn one(call: &mut FsCall, links: &[Link], request: u64, argument: u64) -> SysResult {
    let mut bytes = [0; IFREQ_BYTES];
    call.cx.memory.read(argument, &mut bytes)?;
    let (name, value) = bytes.split_at(NAME_BYTES);
    let end = name.iter().position(|byte| *byte == 0);
    let name = &name[..end.unwrap_or(NAME_BYTES)];
    let index = i32::from_le_bytes(*value.first_chunk().expect("4 bytes"));
    let link = links.iter().find(|link| match request {
        SIOCGIFNAME => link.index == index,
        _ => link.name.as_bytes() == name,
    });
    let link = link.ok_or(Errno::ENODEV)?;
    let value = match request {
        SIOCGIFNAME => value.to_vec(),
        SIOCGIFFLAGS => (link.flags as i16).to_le_bytes().to_vec(),
        SIOCGIFADDR => socket_address(link.address),
        SIOCGIFBRDADDR => socket_address(link.broadcast()),
        SIOCGIFNETMASK => socket_address(link.mask()),
        SIOCGIFMETRIC => vec![0; 4],
        SIOCGIFMTU => link.mtu.to_le_bytes().to_vec(),
        SIOCGIFHWADDR => [&link.kind.to_le_bytes()[..], &link.hardware].concat(),
        SIOCGIFINDEX => link.index.to_le_bytes().to_vec(),
        // Nobody changes them; and there is no hardware to ask more of (ethtool).
        _ => return Err(Errno::EOPNOTSUPP.into()),
    };
    call.cx.memory.write(argument, &named(link, &value))?;
    Ok(0)
}

fn named(link: &Link, value: &[u8]) -> [u8; IFREQ_BYTES] {
    let mut bytes = [0; IFREQ_BYTES];
    bytes[..link.name.len()].copy_from_slice(link.name.as_bytes());
    bytes[NAME_BYTES..][..value.len()].copy_from_slice(value);
    bytes
}

/// `struct sockaddr_in`, without a port.
fn socket_address(address: Ipv4Addr) -> Vec<u8> {
    let family = (libc::AF_INET as u16).to_le_bytes();
    [&family[..], &[0; 2], &address.octets(), &[0; 8]].concat()
}
