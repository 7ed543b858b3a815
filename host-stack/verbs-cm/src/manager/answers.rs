//! Answers to questions about ids, and events as the program reads them.

use std::net::SocketAddr;

use rustix::io::Errno;
use snaprig_verbs_abi as verbs;

use super::{Event, Manager, PKEY, Reply};
use crate::{
    abi::{
        AF_IB, ConnParam, Ece, EventAnswer, PRIVATE_DATA_BYTES, PathRecord, QueryAddrAnswer,
        QueryPathAnswer, QueryRouteAnswer, SaPathRecord, SockaddrIb, SockaddrStorage, UdParam,
    },
    host::Host,
    id::{EventKind, Id, PORT},
    wire::Endpoint,
};

/// 100 Gb/s, and 4.096 us << 14: of all paths.
const RATE: u8 = verbs::IBV_RATE_100_GBPS as u8;
const LIFE_TIME: u8 = 14;
/// A selector of subnet administration: exactly so. It is in the upper bits of a byte in a record of the wire.
const EXACTLY: u8 = 2;
const EXACTLY_BITS: u8 = EXACTLY << 6;
/// Reversible, one path.
const REVERSIBLE_ONE_PATH: u8 = 0x81;
/// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_OUTBOUND | IB_PATH_INBOUND_REVERSE`.
const PATH_FLAGS: u32 = 1 | 2 | 8 | 32;

/// `enum ibv_mtu` of the largest packet on all paths.
pub(super) fn mtu(host: &dyn Host) -> u8 {
    match host.mtu_bytes() {
        2048 => verbs::IBV_MTU_2048 as u8,
        _ => verbs::IBV_MTU_4096 as u8,
    }
}

impl Manager {
    /// The program reads an event.
    pub(super) fn report(&mut self, event: &Event) -> Reply {
        if let Some(owner) = self.ids.get_mut(&event.owner) {
            owner.reported += 1;
        }
        if event.kind == EventKind::MulticastJoin
            && let Some(group) = self.groups.get_mut(&event.handle)
        {
            group.reported += 1;
        }
        let (vendor_id, attr_mod) = event.body.params.ece;
        Reply::answer(&EventAnswer {
            uid: event.uid,
            id: event.handle,
            event: event.kind as u32,
            status: event.body.status,
            param: match event.ah {
                Some(_) => ud_param(event).into(),
                None => conn_param(event).into(),
            },
            reserved: 0,
            ece: Ece {
                vendor_id,
                attr_mod,
            },
        })
    }

    pub(super) fn query_address(&mut self, handle: u32, gids: bool) -> Result<Reply, Errno> {
        let id = self.id(handle)?;
        let mut answer = QueryAddrAnswer::default();
        if let Some(port) = id.port {
            answer.node_guid = port.node_guid.into();
            answer.port_num = PORT;
            answer.pkey = PKEY.into();
            answer.device_index = port.hca;
        }
        let address = |address: Option<SocketAddr>, endpoint: Endpoint| match address {
            _ if gids => SockaddrStorage::of_ib(&gid_address(id, address, endpoint)),
            Some(address) => SockaddrStorage::of(address),
            None => Default::default(),
        };
        (answer.source, answer.source_bytes) = address(id.local, id.endpoint());
        (answer.target, answer.target_bytes) = address(id.remote, id.peer);
        Ok(Reply::answer(&answer))
    }

    pub(super) fn query_route(&mut self, handle: u32, host: &dyn Host) -> Result<Reply, Errno> {
        let id = self.id(handle)?;
        let mut answer = QueryRouteAnswer::default();
        if let Some(port) = id.port {
            answer.node_guid = port.node_guid.into();
            answer.port_num = PORT;
            answer.device_index = port.hca;
            answer.path = path_record(id, mtu(host));
            answer.num_paths = id.has_route().into();
        }
        answer.source = id.local.map(Into::into).unwrap_or_default();
        answer.target = id.remote.map(Into::into).unwrap_or_default();
        Ok(Reply::answer(&answer))
    }

    /// One path, as subnet administration has it.
    pub(super) fn query_path(&mut self, handle: u32, host: &dyn Host) -> Result<Reply, Errno> {
        let id = self.id(handle)?;
        let mut answer = QueryPathAnswer::default();
        if id.has_route() {
            answer.num_paths = 1;
            answer.flags = PATH_FLAGS;
            answer.path = SaPathRecord {
                dgid: id.peer.gid,
                sgid: id.endpoint().gid,
                dlid: id.peer.lid.into(),
                slid: id.endpoint().lid.into(),
                reversible_numb_path: REVERSIBLE_ONE_PATH,
                pkey: PKEY.into(),
                mtu: mtu(host) | EXACTLY_BITS,
                rate: RATE | EXACTLY_BITS,
                packet_life_time: LIFE_TIME | EXACTLY_BITS,
                ..SaPathRecord::default()
            };
        }
        Ok(Reply::answer(&answer))
    }
}

/// Private data with zeros behind it, and how long the program is told that it is: as long as the message's room.
fn private_data(event: &Event) -> ([u8; PRIVATE_DATA_BYTES], u8) {
    let mut room = [0; PRIVATE_DATA_BYTES];
    let data = &event.body.params.data;
    let bytes = data.len().min(event.body.data).min(room.len());
    room[..bytes].copy_from_slice(&data[..bytes]);
    (room, event.body.data as u8)
}

fn conn_param(event: &Event) -> ConnParam {
    let params = &event.body.params;
    let (private_data, private_data_bytes) = private_data(event);
    ConnParam {
        qp_num: params.qpn,
        private_data,
        private_data_bytes,
        srq: params.srq.into(),
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        flow_control: params.flow_control.into(),
        retry_count: params.retry_count,
        rnr_retry_count: params.rnr_retry_count,
        ..ConnParam::default()
    }
}

fn ud_param(event: &Event) -> UdParam {
    let (private_data, private_data_bytes) = private_data(event);
    UdParam {
        qp_num: event.body.params.qpn,
        qkey: event.body.params.qkey,
        ah_attr: event.ah.unwrap_or_default(),
        private_data,
        private_data_bytes,
        ..UdParam::default()
    }
}

fn gid_address(id: &Id, address: Option<SocketAddr>, endpoint: Endpoint) -> SockaddrIb {
    let port = address.map_or(0, |address| address.port());
    SockaddrIb {
        family: AF_IB,
        pkey: PKEY.into(),
        flow_info: 0.into(),
        gid: endpoint.gid,
        service_id: (u64::from(id.space) << 16 | u64::from(port)).into(),
        service_mask: u64::MAX.into(),
        scope_id: 0,
    }
}

fn path_record(id: &Id, mtu: u8) -> PathRecord {
    PathRecord {
        dgid: id.peer.gid,
        sgid: id.endpoint().gid,
        dlid: id.peer.lid.into(),
        slid: id.endpoint().lid.into(),
        reversible: 1,
        mtu: mtu.into(),
        pkey: PKEY.into(),
        numb_path: 1,
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        rate: RATE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: LIFE_TIME,
        ..PathRecord::default()
    }
}
