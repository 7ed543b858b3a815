//! Unreliable datagrams and multicast: one packet, no acknowledgement, no order.
//!
//! A packet for a group goes to every port that a host reaches, and the members behind each are found where it arrives. So
//! it may come from a device memory that is not this one, whose queue pairs have the numbers that those here have: who sent
//! it is known by port and number.
//!
//! The receive's first 40 bytes are for a global route header (ibv_post_recv(3)).

use std::ops::Range;

use crate::{
    Access, Completion, Hca, Host, Opcode, Packet, Path, SendFlags, State, Status, Transport,
    cell::U64,
    packet::{Body, Extra, Route},
    payload::{Payload, Places},
    port::{MULTICAST_LID, PORTS_MAX, same_partition},
    qp::Qp,
    queue::{Receive, SEND_HEAD_WORDS, Send, count_add, load_sges},
    requester::Next,
    types::{completed, completion_flags},
    wire,
};

/// Bytes before the data.
const GRH_BYTES: u64 = wire::GRH_BYTES as u64;

impl<H: Host> Hca<'_, H> {
    /// Sends a datagram. The caller holds the send lock; earlier requests are complete.
    pub(crate) fn send_datagram(&self, index: u32, qp: &Qp, slot: &[U64], send: &Send) -> Next {
        let mut places = Places::new();
        let built = self.datagram(qp, slot, send, &mut places);
        let packet = match built {
            Ok(packet) => packet,
            Err(status) => {
                self.fail_oldest(index, qp, status);
                return Next::Wait;
            }
        };
        if let Some(packet) = &packet {
            match self.datagram_path(&packet.route) {
                Path::Elsewhere => {
                    self.host.attention(index);
                    return Next::Wait;
                }
                Path::Packets if self.datagram_lacks_room(index, qp, &packet.route) => {
                    return Next::Wait;
                }
                Path::Packets => self.host.transmit(packet),
                Path::Whole => self.receive_datagram(packet),
            }
            qp.requester.flow.sent.count_packet(packet, qp.mtu());
        }
        let requester = &qp.requester;
        requester.next.set(count_add(requester.next.get(), 1));
        requester
            .psn
            .set(crate::types::psn::add(requester.psn.get(), 1));
        requester.unacked.set(requester.psn.get());
        self.complete_send(index, qp, send, Status::Success, send.length);
        Next::Go
    }

    /// How it goes; to a group, as to the port that is the hardest to reach.
    fn datagram_path(&self, route: &Route) -> Path {
        let path = |to_port| self.host.path(route.from_port, to_port);
        let mut all = self.receiving_ports(route).map(path);
        all.find(|path| *path != Path::Whole).unwrap_or(Path::Whole)
    }

    /// Whether it is to wait for room; to a group, for as long as the way to any port is full.
    fn datagram_lacks_room(&self, index: u32, qp: &Qp, route: &Route) -> bool {
        let is_full = |to_port| self.host.is_full(route.from_port, to_port);
        let full = self.receiving_ports(route).any(is_full);
        if full {
            self.wait_for_room(index, qp);
        }
        full
    }

    /// The ports that it goes to: those of a group may be behind any.
    fn receiving_ports(&self, route: &Route) -> Range<u32> {
        if route.is_multicast() {
            0..self.memory.header().port_count.get().min(PORTS_MAX)
        } else {
            route.to_port..route.to_port + 1
        }
    }

    /// The packet; none if nobody has the address.
    fn datagram<'p>(
        &self,
        qp: &Qp,
        slot: &'p [U64],
        send: &Send,
        places: &'p mut Places,
    ) -> Result<Option<Packet<'p>>, Status> {
        if !matches!(send.opcode, Opcode::Send | Opcode::SendImm) {
            return Err(Status::LocalOperation);
        }
        let header = self.memory.header();
        let from = header
            .ports
            .get(qp.port.get() as usize)
            .ok_or(Status::LocalOperation)?;
        if send.length > qp.mtu() {
            return Err(Status::LocalLength);
        }
        if !self.is_sane(qp, slot, send) {
            return Err(Status::LocalOperation);
        }
        let payload = if send.is_inline() {
            Payload::Slot {
                words: &slot[SEND_HEAD_WORDS..],
                at: 0,
                length: send.length as usize,
            }
        } else {
            for sge in load_sges(&slot[SEND_HEAD_WORDS..], send.sges) {
                if sge.length > 0 {
                    let place = self.memory.locate(
                        sge.key,
                        qp.scope(),
                        sge.address,
                        sge.length.into(),
                        Access::empty(),
                    );
                    places.push(place.map_err(|_| Status::LocalProtection)?);
                }
            }
            Payload::Memory(places.list())
        };
        let to = &send.to;
        let from_port = qp.port.get();
        let to_port = if to.lid >= MULTICAST_LID {
            from_port
        } else {
            match self.memory.port_of_lid(to.lid) {
                Some((port, _)) => port,
                None => return Ok(None),
            }
        };
        // A Q_Key with the top bit is the privileged one of the queue pair (10.2.5).
        let qkey = if to.qkey >> 31 != 0 {
            qp.qkey.get()
        } else {
            to.qkey
        };
        let global = to
            .global
            .and_then(|index| Some((from.gid(index.into())?, to.gid)));
        let extra = match send.opcode {
            Opcode::SendImm => Extra::Immediate(send.immediate),
            _ => Extra::None,
        };
        Ok(Some(Packet {
            route: Route {
                from_port,
                to_port,
                from_lid: from.lid.get() as u16 | u16::from(to.path_bits),
                to_lid: to.lid,
                from_qp: qp.number.get(),
                to_qp: to.qp,
                service_level: to.service_level,
                pkey: from.pkey(qp.pkey_index.get() as usize).unwrap_or(0),
                global,
            },
            transport: Transport::Ud,
            psn: qp.requester.psn.get(),
            count: 1,
            acknowledge: false,
            solicited: send.flags.contains(SendFlags::SOLICITED),
            srq: 0,
            body: Body::Datagram {
                qkey,
                extra,
                payload,
            },
        }))
    }

    /// Gives a datagram to whom it is for.
    pub(crate) fn receive_datagram(&self, packet: &Packet<'_>) {
        let route = &packet.route;
        let header = self.memory.header();
        if !header.is_up(route.from_port) {
            return;
        }
        if !route.is_multicast() {
            let Some(port) = header.ports.get(route.to_port as usize) else {
                return;
            };
            if header.is_up(route.to_port)
                && let Some((index, qp)) = self.memory.qp_numbered(route.to_qp, port.hca.get())
            {
                self.wait_for_receive(qp);
                self.receive_one(index, qp, packet);
            }
            return;
        }
        let Some((_, gid)) = route.global else { return };
        let Some(group) = header.group(gid) else {
            return;
        };
        for member in &group.members[..(group.count.get() as usize).min(group.members.len())] {
            let Some(index) = member.get().checked_sub(1) else {
                continue;
            };
            let Some(qp) = self.memory.qp(index) else {
                continue;
            };
            if !is_sender(qp, route) && header.is_up(qp.port.get()) {
                self.receive_one(index, qp, packet);
            }
        }
    }

    fn receive_one(&self, index: u32, qp: &Qp, packet: &Packet<'_>) {
        let Body::Datagram {
            qkey,
            extra,
            payload,
        } = &packet.body
        else {
            return;
        };
        let held = self.hold_lock(&qp.receive_lock);
        let ports = &self.memory.header().ports;
        let Some(port) = ports.get(qp.port.get() as usize) else {
            return;
        };
        if !qp.state().receives() || qp.transport() != Some(Transport::Ud) {
            return;
        }
        let mine = port.pkey(qp.pkey_index.get() as usize).unwrap_or(0);
        if !same_partition(mine, packet.route.pkey) {
            port.bad_pkeys.add(1);
            return;
        }
        if qp.qkey.get() != *qkey {
            port.bad_qkeys.add(1);
            return;
        }
        qp.responder.flow.received.count_packet(packet, qp.mtu());
        if !self.hold_for_datagram(qp, packet) {
            return;
        }
        let Some(slot) = self.held_receive(qp) else {
            return;
        };
        let receive = Receive::load(slot);
        let length = payload.length() + GRH_BYTES;
        let places = self
            .receive_places(qp, 0, GRH_BYTES)
            .and_then(|head| Ok((head, self.receive_places(qp, GRH_BYTES, payload.length())?)));
        let put = places.and_then(|(head, data)| {
            let header = wire::datagram_grh(packet);
            let header = header.map_or(Payload::EMPTY, |bytes| {
                Payload::Bytes(bytes.to_vec().into())
            });
            self.put(&header, head.list())
                .and_then(|()| self.put(payload, data.list()))
                .map_err(|_| Status::LocalProtection)
        });
        if let Err(status) = put {
            self.fail(index, qp, State::Error);
            self.end_receive(index, qp, &held, status);
            return;
        }
        let (flags, immediate) = match extra {
            Extra::Immediate(data) => (completion_flags::IMM, *data),
            _ => (0, 0),
        };
        let route = &packet.route;
        let completion = Completion {
            opcode: completed::RECEIVE,
            length: length as u32,
            immediate,
            flags: flags | route.global.map_or(0, |_| completion_flags::GRH),
            source_qp: route.from_qp,
            source_lid: route.from_lid,
            service_level: route.service_level,
            path_bits: 0,
            solicited: packet.solicited,
            ..self.receive_completion(index, qp, receive.wr_id)
        };
        self.complete(qp.recv_cq.get(), &completion);
        self.release_receive(qp);
    }
}

/// Whether a queue pair has sent it: the switch gives nothing back to that.
fn is_sender(qp: &Qp, route: &Route) -> bool {
    qp.number.get() == route.from_qp && qp.port.get() == route.from_port
}
