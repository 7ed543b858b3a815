//! Multicast groups that ids are in.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;

use super::{Event, Group, Manager, PKEY, Reply};
use crate::{
    abi::{AhAttr, EventsReportedAnswer, IdAnswer},
    id::{EventBody, EventKind, PORT, PS_UDP, UDP_QKEY},
    wire::Params,
};

/// The queue pair number that all members of a group have.
const MULTICAST_QPN: u32 = 0xff_ffff;

impl Manager {
    pub(super) fn join(
        &mut self,
        owner: u32,
        uid: u64,
        address: Option<SocketAddr>,
    ) -> Result<Reply, Errno> {
        let address = address.ok_or(Errno::INVAL)?;
        let handle = self.new_handle()?;
        let id = self.id(owner)?;
        if id.port.is_none() {
            return Err(Errno::INVAL);
        }
        let ah = path_to(multicast_gid(address.ip(), id.space == PS_UDP));
        let channel = id.channel;
        self.groups.insert(handle, Group { owner, reported: 0 });
        let params = Params {
            qpn: MULTICAST_QPN,
            qkey: UDP_QKEY,
            ..Params::default()
        };
        let event = Event {
            uid,
            handle,
            owner,
            kind: EventKind::MulticastJoin,
            body: EventBody {
                params,
                ..EventBody::default()
            },
            ah: Some(ah),
        };
        self.queue(channel, event);
        Ok(Reply::answer(&IdAnswer { id: handle }))
    }

    pub(super) fn leave(&mut self, handle: u32) -> Result<Reply, Errno> {
        let left = self.groups.remove(&handle).ok_or(Errno::NOENT)?;
        if let Some(channel) = self.ids.get(&left.owner).map(|id| id.channel) {
            self.take_events(channel, |event| {
                event.kind == EventKind::MulticastJoin && event.handle == handle
            });
        }
        Ok(Reply::answer(&EventsReportedAnswer {
            events_reported: left.reported,
        }))
    }
}

fn path_to(group: [u8; 16]) -> AhAttr {
    AhAttr {
        dgid: group,
        hop_limit: 1,
        dlid: multicast_lid(group),
        is_global: 1,
        port_num: PORT,
        ..AhAttr::default()
    }
}

/// The group of an address (RFC 4391), or of the connection manager's own kind.
fn multicast_gid(address: IpAddr, udp: bool) -> [u8; 16] {
    let mut gid = [0; 16];
    match address.to_canonical() {
        address if address.is_unspecified() => return gid,
        IpAddr::V4(v4) => {
            gid[..4].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b]);
            gid[12..].copy_from_slice(&v4.octets());
            gid[12] &= 0x0f;
        }
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            // Assigned by subnet administration: it is a GID.
            if octets[0] == 0xff && octets[1] & 0xf0 == 0x10 && octets[2..4] == [0xa0, 0x1b] {
                return octets;
            }
            gid[..4].copy_from_slice(&[0xff, 0x12, 0x60, 0x1b]);
            gid[6..].copy_from_slice(&octets[6..]);
        }
    }
    gid[4..6].copy_from_slice(&PKEY.to_be_bytes());
    if udp {
        gid[3] = 0x01;
    }
    gid
}

/// Its LID: the same to all who ask.
fn multicast_lid(gid: [u8; 16]) -> u16 {
    let hash = gid.iter().fold(0u32, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(u32::from(*byte))
    });
    0xc000 + (hash % 0x3fff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_a_multicast_lid() {
        for group in ["224.0.0.1", "ff12:a01b:c445:e9c7:092e:828a:ef56:e4ff"] {
            let gid = multicast_gid(group.parse().expect("an address"), false);
            assert!(
                (0xc000..0xffff).contains(&multicast_lid(gid)),
                "{group}: {gid:x?}"
            );
        }
    }
}
