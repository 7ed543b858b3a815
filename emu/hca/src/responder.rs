//! The responder: requests in, responses out.
//!
//! ```text
//!                       psn == expected                    psn > expected (reliable)
//!   NOTHING --first--> SEND | WRITE --last--> NOTHING      NAK sequence, once per gap
//!      |                                                   psn < expected (reliable)
//!      +--only / read / atomic--> NOTHING                  acknowledged, read or replayed again
//! ```
//!
//! Rules: InfiniBand Architecture 1, 9.7.4 (packet checks), 9.7.5 (acknowledgement), 9.9 (errors).
//! A receive is taken with the first packet that needs one, and given up with the last. `holds`
//! says that one is taken. Of a reliable connection, an error ends the connection after the NAK; of
//! an unreliable one, it drops the message.

use crate::{
    Access, Atomic, Event, Hca, Host, Opcode, Packet, Segment, State, Status, Transport,
    canary::Canary,
    cell::{U64, announce},
    key::{KeyError, Scope},
    lock::Held,
    packet::{Body, Extra, Nak, Remote, Route},
    payload::{Payload, Places},
    port::same_partition,
    qp::{Qp, RESOURCES_MAX, receiving},
    queue::{self, Receive, load_sges},
    srq::Srq,
    types::{completed, completion_flags, psn},
};

/// What becomes of a request that cannot be carried out.
pub(crate) enum Refusal {
    /// It is as if it never came.
    Drop,
    /// The requester is told, and tries again.
    NotReady,
    /// The requester is told, and both queue pairs end. The receive that is held ends so.
    Fatal(Nak, Option<Status>),
}

const INVALID: Refusal = Refusal::Fatal(Nak::InvalidRequest, None);
const FORBIDDEN: Refusal = Refusal::Fatal(Nak::RemoteAccess, None);

impl From<KeyError> for Refusal {
    fn from(_: KeyError) -> Self {
        FORBIDDEN
    }
}

/// Who a request came to, with its lock held.
struct Target<'q> {
    index: u32,
    qp: &'q Qp,
    held: Held<'q>,
}

impl<H: Host> Hca<'_, H> {
    /// Takes a request of a connected transport; hands each response to `reply`.
    pub(crate) fn receive_request(
        &self,
        index: u32,
        qp: &Qp,
        packet: &Packet<'_>,
        reply: &mut dyn FnMut(&Packet<'_>),
    ) {
        let held = self.hold_lock(&qp.receive_lock);
        let to = Target { index, qp, held };
        if !self.belongs(qp, packet) {
            return;
        }
        let flow = &qp.responder.flow;
        flow.received.count_packet(packet, qp.mtu());
        let reply: &mut dyn FnMut(&Packet<'_>) = &mut |response| {
            flow.sent.count_packet(response, qp.mtu());
            reply(response);
        };
        if qp.state() == State::Rtr && qp.responder.established.swap(1) == 0 {
            self.host.event(Event::Established, index);
        }
        let responder = &qp.responder;
        let expected = responder.psn.get();
        let ahead = psn::ahead(packet.psn, expected);
        if !qp.is_reliable() {
            return self.receive_unreliable(&to, packet, ahead);
        }
        if ahead > 0 {
            self.count_at_port(qp, |counters| &counters.out_of_sequence);
            if responder.nak_sent.swap(1) == 0 {
                reply(&response(qp, packet, expected, Body::Nak(Nak::Sequence)));
            }
            return;
        }
        if ahead < 0 && !self.has(Canary::NoDuplicateCheck) {
            self.count_at_port(qp, |counters| &counters.duplicate_request);
            return self.receive_again(&to, packet, reply);
        }
        responder.nak_sent.set(0);
        match self.execute(&to, packet, reply) {
            Ok(()) => {
                responder.psn.set(psn::add(expected, packet.count));
                let last = psn::add(expected, packet.count.wrapping_sub(1));
                let answered = matches!(packet.body, Body::Read(_) | Body::Atomic { .. });
                if packet.acknowledge && !answered {
                    reply(&response(qp, packet, last, Body::Ack));
                }
            }
            Err(Refusal::Drop) => {}
            Err(Refusal::NotReady) => {
                self.count_at_port(qp, |counters| &counters.out_of_buffer);
                // What follows it is not missed: it comes again.
                responder.nak_sent.set(1);
                let timer = Nak::NotReady(qp.min_rnr_timer.get() as u8);
                reply(&response(qp, packet, expected, Body::Nak(timer)));
            }
            Err(Refusal::Fatal(nak, status)) => {
                reply(&response(qp, packet, expected, Body::Nak(nak)));
                self.refuse(&to, nak, status);
            }
        }
    }

    /// Whether the packet is from the peer, in a state and a partition that take it.
    fn belongs(&self, qp: &Qp, packet: &Packet<'_>) -> bool {
        let ports = &self.memory.header().ports;
        let Some(port) = ports.get(qp.port.get() as usize) else {
            return false;
        };
        let from_peer = packet.route.from_qp == qp.dest_qp.get()
            || qp.transport() == Some(Transport::XrcReceive);
        if !qp.state().receives() || !from_peer || packet.route.to_port != qp.port.get() {
            return false;
        }
        let mine = port.pkey(qp.pkey_index.get() as usize).unwrap_or(0);
        let same = same_partition(mine, packet.route.pkey);
        if !same {
            port.bad_pkeys.add(1);
        }
        same
    }

    /// A connection fails for what its peer asked.
    fn refuse(&self, to: &Target<'_>, nak: Nak, status: Option<Status>) {
        // First of all: who dies in here leaves a queue pair that is to be flushed.
        self.fail(to.index, to.qp, State::Error);
        if let Some(status) = status
            && to.qp.responder.holds.get() != 0
        {
            self.end_receive(to.index, to.qp, &to.held, status);
        }
        match nak {
            Nak::RemoteAccess => self.host.event(Event::QpAccessError, to.index),
            Nak::InvalidRequest if status.is_none() => {
                self.host.event(Event::QpRequestError, to.index);
            }
            _ => {}
        }
    }

    fn receive_unreliable(&self, to: &Target<'_>, packet: &Packet<'_>, ahead: i32) {
        let responder = &to.qp.responder;
        let begins = match &packet.body {
            Body::Send { first, .. } => *first,
            Body::Write { remote, .. } => remote.is_some(),
            _ => return,
        };
        // A gap, or a new message before the old one ended: what came of that is dropped (9.8.2).
        if ahead != 0 || begins {
            responder.receiving.set(receiving::NOTHING);
        }
        responder.psn.set(psn::add(packet.psn, packet.count));
        if responder.receiving.get() == receiving::NOTHING && !begins {
            return;
        }
        match self.execute(to, packet, &mut |_| {}) {
            Ok(()) => {}
            Err(Refusal::Fatal(nak, Some(status))) => self.refuse(to, nak, Some(status)),
            Err(_) => responder.receiving.set(receiving::NOTHING),
        }
    }

    /// A request that came before: its response was lost, or is on its way.
    fn receive_again(
        &self,
        to: &Target<'_>,
        packet: &Packet<'_>,
        reply: &mut dyn FnMut(&Packet<'_>),
    ) {
        let (qp, responder) = (to.qp, &to.qp.responder);
        match packet.body {
            Body::Read(remote) => {
                // A key that has gone since ends nothing: the requester's timer will (9.7.5.1.4).
                let done = self.read(qp, packet, remote, reply).is_ok();
                // A read that was asked for in parts may be asked for as one when the path changes.
                let after = psn::add(packet.psn, packet.count);
                if done && psn::ahead(after, responder.psn.get()) > 0 {
                    responder.psn.set(after);
                    responder.nak_sent.set(0);
                }
            }
            Body::Atomic { .. } => {
                let kept = responder
                    .result_psns
                    .iter()
                    .position(|kept| kept.get() == packet.psn + 1);
                if let Some(at) = kept {
                    let result = Body::AtomicResponse(responder.results[at].get());
                    reply(&response(qp, packet, packet.psn, result));
                }
            }
            _ => {
                let last = psn::add(responder.psn.get(), psn::MASK);
                reply(&response(qp, packet, last, Body::Ack));
            }
        }
    }

    fn execute(
        &self,
        to: &Target<'_>,
        packet: &Packet<'_>,
        reply: &mut dyn FnMut(&Packet<'_>),
    ) -> Result<(), Refusal> {
        let (qp, responder) = (to.qp, &to.qp.responder);
        let under_way = responder.receiving.get();
        match &packet.body {
            Body::Send {
                first,
                last,
                extra,
                payload,
            } => {
                let fits = if *first {
                    receiving::NOTHING
                } else {
                    receiving::SEND
                };
                if under_way != fits {
                    return Err(INVALID);
                }
                if *first {
                    self.hold(to.qp, packet.srq)?;
                    responder.offset.set(0);
                    responder.receiving.set(receiving::SEND);
                }
                self.fill_receive(to, payload)?;
                if *last {
                    self.end_send(to, packet, *extra)?;
                }
            }
            Body::Write {
                remote,
                last,
                extra,
                payload,
            } => {
                let fits = if remote.is_some() {
                    receiving::NOTHING
                } else {
                    receiving::WRITE
                };
                if under_way != fits {
                    return Err(INVALID);
                }
                self.write(to, packet, *remote, *last, *extra, payload)?;
            }
            Body::Read(remote) => {
                if under_way != receiving::NOTHING || qp.max_dest_rd_atomic.get() == 0 {
                    return Err(INVALID);
                }
                self.read(qp, packet, *remote, reply)?;
            }
            Body::Atomic {
                opcode,
                remote,
                compare_add,
                swap,
            } => {
                if under_way != receiving::NOTHING || qp.max_dest_rd_atomic.get() == 0 {
                    return Err(INVALID);
                }
                let operation = match opcode {
                    Opcode::CompareSwap => Atomic::CompareSwap(*compare_add, *swap),
                    _ => Atomic::FetchAdd(*compare_add),
                };
                let before = self.atomic(qp, packet.srq, *remote, operation)?;
                let at = responder.result_next.get() as usize % RESOURCES_MAX;
                responder.results[at].set(before);
                responder.result_psns[at].set(packet.psn + 1);
                responder
                    .result_next
                    .set((at as u32 + 1) % RESOURCES_MAX as u32);
                reply(&response(
                    qp,
                    packet,
                    packet.psn,
                    Body::AtomicResponse(before),
                ));
            }
            _ => return Err(Refusal::Drop),
        }
        Ok(())
    }

    fn allows(&self, qp: &Qp, access: Access) -> Result<(), Refusal> {
        let allowed = Access::from_bits_truncate(qp.access.get());
        if allowed.contains(access) {
            Ok(())
        } else {
            Err(INVALID)
        }
    }

    /// For whom keys are checked that a request names. An extended connection has no protection
    /// domain of its own: that of the shared queue counts.
    fn target_scope(&self, qp: &Qp, srq: u32) -> Scope {
        let shared = match qp.transport() {
            Some(Transport::XrcReceive) => self.memory.srq(srq),
            _ => None,
        };
        let fits = |srq: &&Srq| srq.xrc_domain.get() == qp.xrc_domain.get();
        Scope {
            pd: shared.filter(fits).map_or(qp.pd.get(), |srq| srq.pd.get()),
            ..qp.scope()
        }
    }

    fn write(
        &self,
        to: &Target<'_>,
        packet: &Packet<'_>,
        remote: Option<Remote>,
        last: bool,
        extra: Extra,
        payload: &Payload<'_>,
    ) -> Result<(), Refusal> {
        let (qp, responder) = (to.qp, &to.qp.responder);
        self.allows(qp, Access::REMOTE_WRITE)?;
        if let Some(remote) = remote {
            if remote.length > 0 {
                self.memory.locate(
                    remote.key,
                    self.target_scope(qp, packet.srq),
                    remote.address,
                    remote.length.into(),
                    Access::REMOTE_WRITE,
                )?;
            }
            responder.address.set(remote.address);
            responder.key.set(remote.key);
            responder.length.set(remote.length);
            responder.offset.set(0);
        }
        let (done, length) = (responder.offset.get(), payload.length());
        let after = done + length;
        let whole = u64::from(responder.length.get());
        if after > whole || last && after != whole {
            return Err(INVALID);
        }
        // Before anything is written: a write that finds no receive is done again.
        if extra != Extra::None && responder.holds.get() == 0 {
            self.hold(to.qp, packet.srq)?;
        }
        if length > 0 {
            let address = responder.address.get().wrapping_add(done);
            let key = responder.key.get();
            let scope = self.target_scope(qp, packet.srq);
            let place = self
                .memory
                .locate(key, scope, address, length, Access::REMOTE_WRITE)?;
            self.put(payload, &[place])
                .map_err(|_| Refusal::Fatal(Nak::RemoteOperation, Some(Status::LocalAccess)))?;
        }
        responder.offset.set(after);
        responder.receiving.set(receiving::WRITE);
        if last {
            responder.receiving.set(receiving::NOTHING);
            if extra != Extra::None {
                self.finish_receive(
                    to,
                    packet,
                    extra,
                    completed::RECEIVE_WRITE_IMM,
                    whole as u32,
                )?;
            }
        }
        Ok(())
    }

    fn read(
        &self,
        qp: &Qp,
        packet: &Packet<'_>,
        remote: Remote,
        reply: &mut dyn FnMut(&Packet<'_>),
    ) -> Result<(), Refusal> {
        self.allows(qp, Access::REMOTE_READ)?;
        let place = match remote.length {
            0 => Segment::EMPTY,
            length => self.memory.locate(
                remote.key,
                self.target_scope(qp, packet.srq),
                remote.address,
                length.into(),
                Access::REMOTE_READ,
            )?,
        };
        let parts = qp.packets(remote.length);
        let whole =
            self.host.path(packet.route.to_port, packet.route.from_port) == crate::Path::Whole;
        if whole {
            let payload = Payload::Memory(std::slice::from_ref(&place));
            let body = Body::ReadResponse {
                first: true,
                last: true,
                payload,
            };
            let mut packet = response(qp, packet, packet.psn, body);
            packet.count = parts;
            reply(&packet);
            return Ok(());
        }
        let mtu = u64::from(qp.mtu());
        for part in 0..parts {
            let segment = place.part(u64::from(part) * mtu, mtu);
            let body = Body::ReadResponse {
                first: part == 0,
                last: part + 1 == parts,
                payload: Payload::Memory(std::slice::from_ref(&segment)),
            };
            reply(&response(qp, packet, psn::add(packet.psn, part), body));
        }
        Ok(())
    }

    fn atomic(&self, qp: &Qp, srq: u32, remote: Remote, operation: Atomic) -> Result<u64, Refusal> {
        self.allows(qp, Access::REMOTE_ATOMIC)?;
        if !remote.address.is_multiple_of(8) {
            return Err(INVALID);
        }
        let place = self.memory.locate(
            remote.key,
            self.target_scope(qp, srq),
            remote.address,
            8,
            Access::REMOTE_ATOMIC,
        )?;
        self.host
            .atomic(place, operation)
            .ok_or(Refusal::Fatal(Nak::RemoteOperation, None))
    }

    /// The shared queue that receives come from, if there is one.
    fn shared<'s>(&'s self, qp: &Qp, srq: u32) -> Result<Option<(u32, &'s Srq)>, Refusal> {
        let index = if qp.transport() == Some(Transport::XrcReceive) {
            srq
        } else {
            match qp.srq.get().checked_sub(1) {
                None => return Ok(None),
                Some(index) => index,
            }
        };
        let srq = self.memory.srq(index).filter(|srq| srq.used.get() != 0);
        let srq = srq.ok_or(INVALID)?;
        if qp.transport() == Some(Transport::XrcReceive)
            && srq.xrc_domain.get() != qp.xrc_domain.get()
        {
            return Err(INVALID);
        }
        Ok(Some((index, srq)))
    }

    /// Has a message that may be lost wait for a receive, as long as the host is patient. Where one has been lost no other waits,
    /// until there are more receives. The caller holds no lock of the queue pair that it is for.
    pub(crate) fn wait_for_receive(&self, qp: &Qp) {
        let queue = match self.shared(qp, 0) {
            Ok(Some((_, srq))) => &srq.queue,
            Ok(None) => &qp.rq,
            Err(_) => return,
        };
        let mut looked = 0;
        while qp.state().receives()
            && !queue.has_waiting()
            && queue.starved.get() == 0
            && self.host.is_patient(looked)
        {
            looked += 1;
        }
    }

    /// Takes a receive for the message that begins; `srq` is that of an extended connection.
    pub(crate) fn hold(&self, qp: &Qp, srq: u32) -> Result<(), Refusal> {
        let responder = &qp.responder;
        if responder.holds.get() != 0 {
            return Ok(());
        }
        let Some((srq_index, srq)) = self.shared(qp, srq)? else {
            if !qp.rq.has_waiting() {
                qp.rq.starved.set(1);
                announce();
                if !qp.rq.has_waiting() {
                    return Err(Refusal::NotReady);
                }
            }
            responder.holds.set(1);
            return Ok(());
        };
        let _taking = self.hold_lock(&srq.take_lock);
        if !srq.queue.has_waiting() {
            srq.queue.starved.set(1);
            qp.rq.starved.set(1);
            announce();
            if !srq.queue.has_waiting() {
                return Err(Refusal::NotReady);
            }
        }
        let taken = srq.queue.taken.get();
        let from = srq.queue.receive_slot(self.memory, taken).ok_or(INVALID)?;
        let into = qp.borrowed.receive_slot(self.memory, 0).ok_or(INVALID)?;
        for (to, from) in into.iter().zip(from) {
            to.set(from.get());
        }
        qp.borrowed.taken.set(srq_index);
        qp.borrowed.posted.set(taken);
        qp.rq.posted.set(queue::count_add(qp.rq.posted.get(), 1));
        responder.holds.set(1);
        srq.queue.taken.set(queue::count_add(taken, 1));
        srq.queue.freed.release(queue::count_add(taken, 1));
        if srq.queue.waiting() < srq.limit.get() {
            self.host.event(Event::SrqLimit, srq_index);
            srq.limit.set(0);
        }
        Ok(())
    }

    /// Takes a receive for a datagram; without one, it is dropped.
    pub(crate) fn hold_for_datagram(&self, qp: &Qp, packet: &Packet<'_>) -> bool {
        self.hold(qp, packet.srq).is_ok()
    }

    /// The slot of the receive that is held.
    pub(crate) fn held_receive<'s>(&'s self, qp: &Qp) -> Option<&'s [U64]> {
        let shared = qp.srq.get() != 0 || qp.transport() == Some(Transport::XrcReceive);
        if shared {
            qp.borrowed.receive_slot(self.memory, 0)
        } else {
            qp.rq.receive_slot(self.memory, qp.rq.taken.get())
        }
    }

    /// Where its completion goes.
    pub(crate) fn receive_cq(&self, qp: &Qp) -> u32 {
        let own = qp.recv_cq.get();
        if qp.transport() != Some(Transport::XrcReceive) {
            return own;
        }
        let srq = self.memory.srq(qp.borrowed.taken.get());
        let srq = srq.filter(|srq| srq.used.get() != 0);
        srq.map_or(own, |srq| srq.cq.get())
    }

    /// Places of `length` bytes of the receive that is held, from byte `at` on.
    pub(crate) fn receive_places(
        &self,
        qp: &Qp,
        mut at: u64,
        mut length: u64,
    ) -> Result<Places, Status> {
        let slot = self.held_receive(qp).ok_or(Status::LocalOperation)?;
        let receive = Receive::load(slot);
        let scope = match qp.srq.get().checked_sub(1).map(|at| self.memory.srq(at)) {
            Some(Some(srq)) => Scope {
                pd: srq.pd.get(),
                ..qp.scope()
            },
            _ => self.target_scope(qp, qp.borrowed.taken.get()),
        };
        let mut places = Places::new();
        for sge in load_sges(&slot[queue::RECEIVE_HEAD_WORDS..], receive.sges) {
            if length == 0 {
                break;
            }
            let skip = at.min(sge.length.into());
            at -= skip;
            let part = (u64::from(sge.length) - skip).min(length);
            if part == 0 {
                continue;
            }
            let address = sge.address.wrapping_add(skip);
            let place = self
                .memory
                .locate(sge.key, scope, address, part, Access::LOCAL_WRITE)
                .map_err(|_| Status::LocalProtection)?;
            places.push(place);
            length -= part;
        }
        if length > 0 {
            Err(Status::LocalLength)
        } else {
            Ok(places)
        }
    }

    fn fill_receive(&self, to: &Target<'_>, payload: &Payload<'_>) -> Result<(), Refusal> {
        let responder = &to.qp.responder;
        let (done, length) = (responder.offset.get(), payload.length());
        let fatal = |status| {
            let nak = if status == Status::LocalLength {
                Nak::InvalidRequest
            } else {
                Nak::RemoteOperation
            };
            Refusal::Fatal(nak, Some(status))
        };
        let places = self.receive_places(to.qp, done, length).map_err(fatal)?;
        self.put(payload, places.list())
            .map_err(|_| fatal(Status::LocalProtection))?;
        responder.offset.set(done + length);
        Ok(())
    }

    fn end_send(&self, to: &Target<'_>, packet: &Packet<'_>, extra: Extra) -> Result<(), Refusal> {
        let responder = &to.qp.responder;
        if let Extra::Invalidate(key) = extra
            && !self.invalidate(self.target_scope(to.qp, packet.srq), key)
        {
            return Err(FORBIDDEN);
        }
        responder.receiving.set(receiving::NOTHING);
        let length = responder.offset.get() as u32;
        self.finish_receive(to, packet, extra, completed::RECEIVE, length)
    }

    /// Completes the receive that is held. If that cannot be told, the message is not acknowledged
    /// either (9.9.3, class G).
    fn finish_receive(
        &self,
        to: &Target<'_>,
        packet: &Packet<'_>,
        extra: Extra,
        opcode: u32,
        length: u32,
    ) -> Result<(), Refusal> {
        let slot = self.held_receive(to.qp).ok_or(INVALID)?;
        let receive = Receive::load(slot);
        let (flags, immediate) = match extra {
            Extra::None => (0, 0),
            Extra::Immediate(data) => (completion_flags::IMM, data),
            Extra::Invalidate(key) => (completion_flags::INVALIDATED, key),
        };
        let mut completion = crate::Completion {
            opcode,
            length,
            immediate,
            flags,
            solicited: packet.solicited,
            ..self.receive_completion(to.index, to.qp, receive.wr_id)
        };
        if to.qp.transport() == Some(Transport::XrcReceive) {
            completion.source_qp = to.qp.borrowed.taken.get();
        }
        let cq = self.receive_cq(to.qp);
        let told = self.complete(cq, &completion);
        self.release_receive(to.qp);
        if told { Ok(()) } else { Err(Refusal::Drop) }
    }
}

/// A response to `packet`.
#[inline]
fn response<'a>(qp: &Qp, packet: &Packet<'_>, psn: u32, body: Body<'a>) -> Packet<'a> {
    let route = &packet.route;
    Packet {
        route: Route {
            from_port: route.to_port,
            to_port: route.from_port,
            from_lid: route.to_lid,
            to_lid: route.from_lid,
            from_qp: qp.number.get(),
            to_qp: route.from_qp,
            service_level: route.service_level,
            pkey: route.pkey,
            global: route
                .global
                .map(|(source, destination)| (destination, source)),
        },
        transport: packet.transport,
        psn,
        count: 1,
        acknowledge: false,
        solicited: false,
        srq: 0,
        body,
    }
}
