//! What rtnetlink(7) answers: which links, addresses and routes there are. Nothing can be changed.

use std::net::Ipv4Addr;

use snaprig_card_driver::{errno::Errno, network::Interface};

use crate::links::{Link, links};

/// Bytes of `struct nlmsghdr`, and what messages and attributes are padded to.
const HEADER_BYTES: usize = 16;
const ALIGN: usize = 4;
/// Bytes of `struct ifinfomsg`, `ifaddrmsg` and `rtmsg`.
const LINK_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;
/// IF_OPER_UP of linux/if.h.
const OPER_UP: u8 = 6;

/// A request.
struct Request<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The messages that answer those of one datagram, of a socket with this port, one datagram each.
pub fn answer(interface: Option<&Interface>, datagram: &[u8], port: u32) -> Vec<Vec<u8>> {
    let links = links(interface);
    let mut answers = Vec::new();
    let mut rest = datagram;
    while let Some((request, next)) = Request::first(rest) {
        rest = next;
        let told = request.told(&links, interface);
        let is_dump = i32::from(request.flags) & libc::NLM_F_DUMP == libc::NLM_F_DUMP;
        let flags = if is_dump { libc::NLM_F_MULTI } else { 0 };
        let mut bytes = Vec::new();
        let result = told.map(|told| {
            for (kind, body) in told {
                bytes.extend(request.message(kind, flags, port, &body));
            }
        });
        match result {
            Ok(()) if is_dump => {
                let done = libc::NLMSG_DONE as u16;
                bytes.extend(request.message(done, flags, port, &[0; 4]));
            }
            Ok(()) if i32::from(request.flags) & libc::NLM_F_ACK == 0 => {}
            result => {
                let errno = result.err().map_or(0, |errno| errno.0);
                // What it was about: the header of the request.
                let about = &datagram[datagram.len() - rest.len() - request.len()..];
                let body = [&(-errno).to_le_bytes()[..], &about[..HEADER_BYTES]].concat();
                bytes.extend(request.message(libc::NLMSG_ERROR as u16, 0, port, &body));
            }
        }
        answers.push(bytes);
    }
    answers.retain(|answer| !answer.is_empty());
    answers
}

impl<'a> Request<'a> {
    /// The first of them, and what follows.
    fn first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let len = word(0) as usize;
        let body = bytes.get(HEADER_BYTES..len)?;
        let request = Self {
            kind: half(4),
            flags: half(6),
            sequence: word(8),
            body,
        };
        let next = len.next_multiple_of(ALIGN).min(bytes.len());
        Some((request, &bytes[next..]))
    }

    /// With its header and its padding.
    fn len(&self) -> usize {
        (HEADER_BYTES + self.body.len()).next_multiple_of(ALIGN)
    }

    fn message(&self, kind: u16, flags: i32, port: u32, body: &[u8]) -> Vec<u8> {
        let len = (HEADER_BYTES + body.len()) as u32;
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&(flags as u16).to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&port.to_le_bytes());
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes
    }

    /// Kinds of messages, and what each says.
    fn told(
        &self,
        links: &[Link],
        interface: Option<&Interface>,
    ) -> Result<Vec<(u16, Vec<u8>)>, Errno> {
        let family = self.body.first().copied().map_or(0, i32::from);
        let is_of = |wanted: i32| family == libc::AF_UNSPEC || family == wanted;
        let is_dump = i32::from(self.flags) & libc::NLM_F_DUMP == libc::NLM_F_DUMP;
        let all = |kind: u16, of: &dyn Fn(&Link) -> Vec<u8>| {
            links.iter().map(|link| (kind, of(link))).collect()
        };
        match self.kind {
            libc::RTM_GETLINK if is_dump => Ok(all(libc::RTM_NEWLINK, &link_told)),
            libc::RTM_GETLINK => {
                let link = self.link(links).ok_or(Errno::ENODEV)?;
                Ok(vec![(libc::RTM_NEWLINK, link_told(link))])
            }
            libc::RTM_GETADDR if !is_of(libc::AF_INET) => Ok(Vec::new()),
            libc::RTM_GETADDR => Ok(all(libc::RTM_NEWADDR, &address_told)),
            libc::RTM_GETROUTE if !is_of(libc::AF_INET) && is_dump => Ok(Vec::new()),
            libc::RTM_GETROUTE if is_dump => {
                let routes = links.iter().filter(|link| link.kind == libc::ARPHRD_ETHER);
                let to_network =
                    |link: &Link| route_told(link, Some(link.network()), link.prefix, None);
                let mut told: Vec<_> = routes
                    .map(|link| (libc::RTM_NEWROUTE, to_network(link)))
                    .collect();
                if let (Some(interface), Some(link)) = (interface, links.last()) {
                    let route = route_told(link, None, 0, Some(interface.gateway));
                    told.push((libc::RTM_NEWROUTE, route));
                }
                Ok(told)
            }
            libc::RTM_GETROUTE => {
                let to = self.attribute(ROUTE_BYTES, libc::RTA_DST);
                let to = to.and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
                let to = Ipv4Addr::from(to.ok_or(Errno::EINVAL)?);
                Ok(vec![(libc::RTM_NEWROUTE, way_to(to, links, interface)?)])
            }
            // Of another kind that asks; the others would change something.
            kind if kind % 4 == 2 => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EPERM),
        }
    }

    /// The link that it asks for, by number or name.
    fn link<'b>(&self, links: &'b [Link]) -> Option<&'b Link> {
        let index = self.body.get(4..8)?.try_into().ok()?;
        let name = self.attribute(LINK_BYTES, libc::IFLA_IFNAME);
        let name = name.and_then(|name| name.split(|byte| *byte == 0).next());
        links.iter().find(|link| match i32::from_le_bytes(index) {
            0 => name == Some(link.name.as_bytes()),
            index => link.index == index,
        })
    }

    /// An attribute behind so many bytes.
    fn attribute(&self, from: usize, kind: u16) -> Option<&[u8]> {
        let mut rest = self.body.get(from..)?;
        loop {
            let [l0, l1, k0, k1] = *rest.first_chunk()?;
            let len = usize::from(u16::from_le_bytes([l0, l1]));
            let value = rest.get(4..len)?;
            if u16::from_le_bytes([k0, k1]) == kind {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(ALIGN)..)?;
        }
    }
}

/// Adds `struct rtattr`.
fn add(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend_from_slice(&(value.len() as u16 + 4).to_le_bytes());
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
}

fn named(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

fn link_told(link: &Link) -> Vec<u8> {
    let mut bytes = vec![libc::AF_UNSPEC as u8, 0];
    bytes.extend_from_slice(&link.kind.to_le_bytes());
    bytes.extend_from_slice(&link.index.to_le_bytes());
    bytes.extend_from_slice(&link.flags.to_le_bytes());
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    add(&mut bytes, libc::IFLA_IFNAME, &named(&link.name));
    add(&mut bytes, libc::IFLA_MTU, &link.mtu.to_le_bytes());
    add(&mut bytes, libc::IFLA_OPERSTATE, &[OPER_UP]);
    add(&mut bytes, libc::IFLA_ADDRESS, &link.hardware);
    bytes
}

fn address_told(link: &Link) -> Vec<u8> {
    let scope = match link.kind {
        libc::ARPHRD_LOOPBACK => libc::RT_SCOPE_HOST,
        _ => libc::RT_SCOPE_UNIVERSE,
    };
    let permanent = libc::IFA_F_PERMANENT as u8;
    let mut bytes = vec![libc::AF_INET as u8, link.prefix, permanent, scope];
    bytes.extend_from_slice(&link.index.to_le_bytes());
    add(&mut bytes, libc::IFA_ADDRESS, &link.address.octets());
    add(&mut bytes, libc::IFA_LOCAL, &link.address.octets());
    if link.flags & libc::IFF_BROADCAST != 0 {
        add(&mut bytes, libc::IFA_BROADCAST, &link.broadcast().octets());
    }
    add(&mut bytes, libc::IFA_LABEL, &named(&link.name));
    bytes
}

/// A route over a link to an address of so many bits, or to all; by a gateway, if it has one.
fn route_told(link: &Link, to: Option<Ipv4Addr>, bits: u8, gateway: Option<Ipv4Addr>) -> Vec<u8> {
    let is_local = link.kind == libc::ARPHRD_LOOPBACK;
    let (table, kind) = match is_local {
        true => (libc::RT_TABLE_LOCAL, libc::RTN_LOCAL),
        false => (libc::RT_TABLE_MAIN, libc::RTN_UNICAST),
    };
    let scope = match gateway {
        Some(_) => libc::RT_SCOPE_UNIVERSE,
        None if is_local => libc::RT_SCOPE_HOST,
        None => libc::RT_SCOPE_LINK,
    };
    let family = libc::AF_INET as u8;
    // No source, no type of service; flags.
    let mut bytes = vec![family, bits, 0, 0, table, libc::RTPROT_KERNEL, scope, kind];
    bytes.extend_from_slice(&[0; 4]);
    if let Some(to) = to {
        add(&mut bytes, libc::RTA_DST, &to.octets());
    }
    add(&mut bytes, libc::RTA_OIF, &link.index.to_le_bytes());
    add(&mut bytes, libc::RTA_PREFSRC, &link.address.octets());
    if let Some(gateway) = gateway {
        add(&mut bytes, libc::RTA_GATEWAY, &gateway.octets());
    }
    bytes
}

/// The route that a packet for an address would take.
fn way_to(to: Ipv4Addr, links: &[Link], interface: Option<&Interface>) -> Result<Vec<u8>, Errno> {
    let [lo, rest @ ..] = links else {
        return Err(Errno::ENETUNREACH);
    };
    if to.is_loopback() || links.iter().any(|link| link.address == to) {
        return Ok(route_told(lo, Some(to), 32, None));
    }
    let link = rest.first().ok_or(Errno::ENETUNREACH)?;
    let is_near = to & link.mask() == link.network();
    let gateway = interface
        .filter(|_| !is_near)
        .map(|interface| interface.gateway);
    Ok(route_told(link, Some(to), 32, gateway))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(kind: u16, flags: i32, body: &[u8]) -> Vec<Vec<u8>> {
        let interface = Interface {
            name: "mic0".into(),
            address: Ipv4Addr::new(172, 31, 1, 1),
            prefix: 24,
            gateway: Ipv4Addr::new(172, 31, 1, 254),
            hosts: Vec::new(),
        };
        let request = Request {
            kind,
            flags: flags as u16,
            sequence: 7,
            body: &[],
        };
        let datagram = request.message(kind, flags, 0, body);
        answer(Some(&interface), &datagram, 5)
    }

    /// Kinds of the messages of a datagram.
    fn kinds(mut bytes: &[u8]) -> Vec<u16> {
        let mut kinds = Vec::new();
        while let Some((message, rest)) = Request::first(bytes) {
            assert_eq!(message.sequence, 7);
            kinds.push(message.kind);
            bytes = rest;
        }
        assert!(bytes.is_empty());
        kinds
    }

    #[test]
    fn all_links_and_addresses_are_told() {
        let dump = libc::NLM_F_DUMP;
        for (asks, tells) in [
            (libc::RTM_GETLINK, libc::RTM_NEWLINK),
            (libc::RTM_GETADDR, libc::RTM_NEWADDR),
            (libc::RTM_GETROUTE, libc::RTM_NEWROUTE),
        ] {
            let told = ask(asks, dump, &[0; 16]);
            assert_eq!(told.len(), 1);
            assert_eq!(kinds(&told[0]), [tells, tells, libc::NLMSG_DONE as u16]);
        }
        let six = ask(libc::RTM_GETADDR, dump, &[libc::AF_INET6 as u8]);
        assert_eq!(kinds(&six[0]), [libc::NLMSG_DONE as u16]);
    }

    #[test]
    fn a_way_leads_by_the_gateway_unless_it_is_near() {
        for (to, by) in [
            ([172, 31, 1, 254], None),
            ([172, 31, 2, 1], Some([172, 31, 1, 254])),
        ] {
            let mut body = vec![libc::AF_INET as u8, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            add(&mut body, libc::RTA_DST, &to);
            let told = ask(libc::RTM_GETROUTE, 0, &body);
            let (route, _) = Request::first(&told[0]).unwrap();
            assert_eq!(route.kind, libc::RTM_NEWROUTE);
            let gateway = route.attribute(ROUTE_BYTES, libc::RTA_GATEWAY);
            assert_eq!(gateway, by.as_ref().map(|by| &by[..]));
        }
    }

    #[test]
    fn what_would_change_something_is_refused_and_rubbish_is_ignored() {
        let told = ask(libc::RTM_NEWADDR, libc::NLM_F_ACK, &[0; 8]);
        let (error, _) = Request::first(&told[0]).unwrap();
        assert_eq!(error.kind, libc::NLMSG_ERROR as u16);
        assert_eq!(error.body[..4], (-libc::EPERM).to_le_bytes());
        for rubbish in [&[0xff; 40][..], &[0; 40], &[16, 0, 0, 0], &[]] {
            assert!(answer(None, rubbish, 0).is_empty(), "{rubbish:?}");
        }
        let mut short = ask(libc::RTM_GETLINK, 0, &[]);
        assert_eq!(kinds(&short.remove(0)), [libc::NLMSG_ERROR as u16]);
        let attribute = [[0; 12].as_slice(), &[1, 0, 1, 0]].concat();
        let told = ask(libc::RTM_GETROUTE, 0, &attribute);
        assert_eq!(kinds(&told[0]), [libc::NLMSG_ERROR as u16]);
    }
}
