//! The requester: requests out of the send queue, responses in.
//!
//! ```text
//!   taken ........ next ........ posted          requests of the send queue
//!     | under way    | waits
//!   unacked ...... psn ...... psn_max            packets; psn < psn_max while some are sent again
//! ```
//!
//! Rules: InfiniBand Architecture 1, 9.7.3 (order), 9.7.5 (acknowledgement), 9.7.6 (timers). A
//! missing packet has all from it on sent again, from the reported number. An acknowledgement of a
//! later packet acknowledges earlier ones, save reads and atomics, whose responses must come.

use crate::{
    Access, Hca, Host, Opcode, Packet, Path, Segment, SendFlags, State, Status, Transport,
    canary::Canary,
    cell::U64,
    key::{self, KeyError, Scope},
    packet::{Body, Extra, Nak, Remote, Route},
    payload::{Payload, Places},
    port::{Port, load_gid},
    qp::Qp,
    queue::{SEND_HEAD_WORDS, Send, count_add, count_from, load_sges},
    types::psn,
};

/// Packets under way on a path that goes packet by packet.
const WINDOW_PACKETS: i32 = 64;
/// When who has no window looks again whether a path has room.
const ROOM_NS: u64 = 10_000;
/// Packets that one read asks for on such a path: a longer one asks again.
const READ_PACKETS: u64 = 16;
/// Every so many packets, an acknowledgement is asked for.
const ACKNOWLEDGE_EVERY: u32 = 16;

/// Time of a code of the RNR timer, in units of 10 us (InfiniBand Architecture 1, table 45).
const RNR_TIMER_10US: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Nanoseconds of a code of the RNR timer.
pub fn rnr_timer_ns(code: u8) -> u64 {
    RNR_TIMER_10US[usize::from(code) & 31] * 10_000
}

/// Nanoseconds that `timeout` (ibv_modify_qp(3)) stands for; none: for ever.
#[inline]
pub fn ack_timeout_ns(timeout: u32) -> Option<u64> {
    let timeout = timeout & 31;
    (timeout > 0).then(|| 4096u64 << timeout)
}

/// How long a queue pair tries before it gives its peer up.
pub fn give_up_ns(qp: &Qp) -> u64 {
    let tries = u64::from(qp.retry_cnt.get() & 7) + 1;
    ack_timeout_ns(qp.timeout.get()).map_or(u64::MAX, |timeout| timeout.saturating_mul(tries))
}

/// A request of the send queue that is being worked on.
struct Work<'s> {
    slot: &'s [U64],
    send: Send,
}

/// What to do after one request was looked at.
pub(crate) enum Next {
    /// Look at the next.
    Go,
    /// Nothing more can be done now.
    Wait,
}

impl<H: Host> Hca<'_, H> {
    /// Moves a queue pair's requester as far as it goes now, and flushes what fails. No lock may be
    /// held.
    pub fn run(&self, index: u32) {
        let Some(qp) = self.memory.qp(index) else {
            return;
        };
        if qp.number.get() == 0 {
            return;
        }
        let held = self.hold_lock(&qp.send_lock);
        self.work(index, qp);
        drop(held);
        if qp.flushes.get() != 0 {
            self.flush(index);
        }
        self.settle();
    }

    /// As [`Self::run`], by who holds the send lock; the caller settles.
    pub fn work(&self, index: u32, qp: &Qp) {
        match qp.state() {
            State::Rts | State::Sqd => {}
            State::Sqe | State::Error => return self.flush_sends(index, qp),
            State::Reset | State::Init | State::Rtr => return,
        }
        if qp.requester.deadline_ns.get() != 0 && !self.expire(index, qp) {
            return;
        }
        while let Next::Go = self.step(index, qp) {}
        self.arm(index, qp);
    }

    /// Looks at the deadline; whether requests may go on.
    fn expire(&self, index: u32, qp: &Qp) -> bool {
        let requester = &qp.requester;
        let waits = requester.not_ready.get() != 0;
        if self.host.now_ns() < requester.deadline_ns.get() {
            return !waits;
        }
        requester.deadline_ns.set(0);
        requester.not_ready.set(0);
        requester.missed.set(0);
        if waits {
            return true;
        }
        self.count_at_port(qp, |counters| &counters.local_ack_timeout_err);
        self.again(index, qp, Status::RetryExceeded)
    }

    /// Sends everything that is not acknowledged again, if there are tries left.
    fn again(&self, index: u32, qp: &Qp, status: Status) -> bool {
        let requester = &qp.requester;
        let Some(left) = requester.retries.get().checked_sub(1) else {
            self.fail_oldest(index, qp, status);
            return false;
        };
        requester.retries.set(left);
        self.go_back(qp);
        true
    }

    /// A response was lost on the way: as if that were reported, once.
    fn miss(&self, index: u32, qp: &Qp) {
        if qp.requester.missed.swap(1) == 0 {
            self.count_at_port(qp, |counters| &counters.implied_nak_seq_err);
            self.again(index, qp, Status::RetryExceeded);
        }
    }

    /// Sets the next packet to the oldest that is not acknowledged.
    fn go_back(&self, qp: &Qp) {
        let requester = &qp.requester;
        let from = requester.unacked.get();
        requester.next.set(qp.sq.taken.get());
        requester.offset.set(0);
        requester.psn.set(from);
        requester.fetching.set(0);
        let Some(work) = self.request(qp, qp.sq.taken.get()) else {
            return;
        };
        if self.has(Canary::GoBackForgetsOffset) {
            return;
        }
        if !work.send.opcode.is_local() && requester.psn_max.get() != from {
            let packets = psn::ahead(from, work.send.psn).max(0) as u64;
            requester.offset.set(packets * u64::from(qp.mtu()));
        }
    }

    /// Waits for an acknowledgement, if there is something to be acknowledged.
    fn arm(&self, index: u32, qp: &Qp) {
        let requester = &qp.requester;
        if requester.unacked.get() == requester.psn.get() {
            requester.slow.set(0);
            if requester.not_ready.get() == 0 {
                requester.deadline_ns.set(0);
            }
            let resends = requester.psn.get() != requester.psn_max.get();
            let begun = requester.offset.get() > 0;
            if qp.state() == State::Sqd && !resends && !begun && qp.drain_event.swap(0) != 0 {
                self.host.event(crate::Event::Drained, index);
            }
            return;
        }
        if requester.deadline_ns.get() != 0 || self.has(Canary::NoTimer) {
            return;
        }
        let Some(timeout_ns) = ack_timeout_ns(qp.timeout.get()) else {
            return;
        };
        let times = if self.has(Canary::SlowTimer) { 8 } else { 1 };
        requester
            .deadline_ns
            .set(self.host.now_ns() + times * timeout_ns);
        self.host.attention(index);
    }

    fn request<'s>(&'s self, qp: &Qp, index: u32) -> Option<Work<'s>> {
        let slot = qp.sq.send_slot(self.memory, index)?;
        Some(Work {
            slot,
            send: Send::load(slot)?,
        })
    }

    /// Transmits (the next packet of) the next request.
    fn step(&self, index: u32, qp: &Qp) -> Next {
        let requester = &qp.requester;
        let next = requester.next.get();
        let begun = requester.offset.get() > 0;
        let resends = requester.psn.get() != requester.psn_max.get();
        let drains = qp.state() == State::Sqd && !begun && !resends;
        let left = count_from(qp.sq.posted.acquire(), next);
        if left == 0 || requester.not_ready.get() != 0 || drains {
            return Next::Wait;
        }
        if !matches!(qp.state(), State::Rts | State::Sqd) {
            return Next::Wait;
        }
        let fits = left <= qp.sq.size();
        let Some(work) = self.request(qp, next).filter(|_| fits) else {
            // Who wrote it broke it: only the owner can.
            self.fail(index, qp, State::Error);
            return Next::Wait;
        };
        let oldest = next == qp.sq.taken.get();
        if work.send.opcode.is_local() {
            return if oldest {
                self.do_local(index, qp, &work)
            } else {
                Next::Wait
            };
        }
        let waits_for_fetch = work.send.flags.contains(SendFlags::FENCE)
            || work.send.opcode.fetches()
                && requester.fetching.get() >= qp.max_rd_atomic.get().max(1);
        let asks = !begun || work.send.opcode.fetches();
        if asks && requester.fetching.get() > 0 && waits_for_fetch {
            return Next::Wait;
        }
        if qp.transport() == Some(Transport::Ud) {
            return self.send_datagram(index, qp, work.slot, &work.send);
        }
        self.send_request(index, qp, &work, oldest)
    }

    fn send_request(&self, index: u32, qp: &Qp, work: &Work<'_>, oldest: bool) -> Next {
        let (requester, send) = (&qp.requester, &work.send);
        let Some(route) = self.route(qp) else {
            // Nobody has that address: as if the packets were lost.
            return self.lose(index, qp, work);
        };
        let path = self.host.path(route.from_port, route.to_port);
        if path == Path::Whole && requester.slow.get() != 0 {
            // Packets are under way that this message must not overtake.
            if requester.unacked.get() != requester.psn.get() {
                return Next::Wait;
            }
            requester.slow.set(0);
        }
        if path == Path::Elsewhere {
            self.host.attention(index);
            return Next::Wait;
        }
        if let Err(status) = self.check(qp, work) {
            // What was asked before it completes first.
            if oldest {
                self.fail_oldest(index, qp, status);
            }
            return Next::Wait;
        }
        let mtu = u64::from(qp.mtu());
        let offset = requester.offset.get();
        let rest = u64::from(send.length).saturating_sub(offset);
        let at = requester.psn.get();
        let windowed = psn::ahead(at, requester.unacked.get()) >= WINDOW_PACKETS;
        if path == Path::Packets && qp.is_reliable() && windowed {
            return Next::Wait;
        }
        if path == Path::Packets && !qp.is_reliable() && self.lacks_room(index, qp, &route) {
            return Next::Wait;
        }
        let fetches = send.opcode.fetches();
        let length = match path {
            Path::Whole => rest,
            // The same parts when it is asked again: the responder counts on it.
            _ if fetches => rest.min(mtu * READ_PACKETS - offset % (mtu * READ_PACKETS)),
            _ => rest.min(mtu),
        };
        let mut places = Places::new();
        let payload = if fetches {
            Payload::EMPTY
        } else {
            match self.gather(qp, work, offset, length, &mut places) {
                Ok(payload) => payload,
                Err(status) => {
                    if oldest {
                        self.fail_oldest(index, qp, status);
                    }
                    return Next::Wait;
                }
            }
        };
        let count = (rest.min(length).div_ceil(mtu) as u32).max(1);
        let (first, last) = (offset == 0, length == rest);
        let body = body(send, first, last, (offset, length), payload);
        let packet = Packet {
            route,
            transport: qp.transport().unwrap_or(Transport::Rc),
            psn: at,
            count,
            acknowledge: last || psn::add(at, 1).is_multiple_of(ACKNOWLEDGE_EVERY),
            solicited: last && send.flags.contains(SendFlags::SOLICITED),
            srq: send.srq,
            body,
        };
        self.advance(qp, work, count, length, last);
        self.dispatch(index, qp, &packet, path);
        if qp.is_reliable() {
            return if path == Path::Whole && requester.unacked.get() != requester.psn.get() {
                Next::Wait
            } else {
                Next::Go
            };
        }
        self.arrived(index, qp, work, last);
        Next::Go
    }

    /// Whether an unreliable queue pair is to wait for room on a path; if so, it looks again soon.
    pub(crate) fn lacks_room(&self, index: u32, qp: &Qp, route: &Route) -> bool {
        let full = self.host.is_full(route.from_port, route.to_port);
        if full {
            self.wait_for_room(index, qp);
        }
        full
    }

    /// It looks again soon.
    pub(crate) fn wait_for_room(&self, index: u32, qp: &Qp) {
        let deadline_ns = self.host.now_ns() + ROOM_NS;
        qp.requester.deadline_ns.set(deadline_ns);
        qp.requester.not_ready.set(1);
        self.host.attention(index);
    }

    /// Notes that a packet is under way, before it is: its response may come at once.
    fn advance(&self, qp: &Qp, work: &Work<'_>, count: u32, length: u64, last: bool) {
        let requester = &qp.requester;
        let at = requester.psn.get();
        if requester.offset.get() == 0 {
            work.send.store_psn(work.slot, at);
        }
        if work.send.opcode.fetches() {
            requester.fetching.set(requester.fetching.get() + 1);
        }
        let after = psn::add(at, count);
        requester.psn.set(after);
        if psn::ahead(after, requester.psn_max.get()) > 0 {
            requester.psn_max.set(after);
        }
        if last {
            requester.next.set(count_add(requester.next.get(), 1));
            requester.offset.set(0);
        } else {
            requester.offset.set(requester.offset.get() + length);
        }
        if !qp.is_reliable() {
            requester.unacked.set(after);
        }
    }

    /// On an unreliable connection, what is sent is done.
    fn arrived(&self, index: u32, qp: &Qp, work: &Work<'_>, last: bool) {
        if last && matches!(qp.state(), State::Rts | State::Sqd) {
            self.complete_send(index, qp, &work.send, Status::Success, work.send.length);
        }
    }

    /// Sends it to nobody.
    fn lose(&self, index: u32, qp: &Qp, work: &Work<'_>) -> Next {
        if qp.is_reliable() && qp.requester.unacked.get() != qp.requester.psn.get() {
            return Next::Wait;
        }
        let rest = u64::from(work.send.length).saturating_sub(qp.requester.offset.get());
        self.advance(qp, work, qp.packets(rest as u32), rest, true);
        if !qp.is_reliable() {
            self.arrived(index, qp, work, true);
            return Next::Go;
        }
        Next::Wait
    }

    fn dispatch(&self, index: u32, qp: &Qp, packet: &Packet<'_>, path: Path) {
        qp.requester.flow.sent.count_packet(packet, qp.mtu());
        if path == Path::Packets {
            qp.requester.slow.set(1);
            self.host.transmit(packet);
            return;
        }
        let header = self.memory.header();
        let Some(port) = header.ports.get(packet.route.to_port as usize) else {
            return;
        };
        if !header.is_up(packet.route.from_port) || !header.is_up(packet.route.to_port) {
            return;
        }
        if let Some((to, peer)) = self.memory.qp_numbered(packet.route.to_qp, port.hca.get())
            && peer.transport() == expected_peer(packet.transport)
        {
            if !qp.is_reliable() && packet.body.takes_receive() {
                self.wait_for_receive(peer);
            }
            self.receive_request(to, peer, packet, &mut |response| {
                self.handle_response(index, qp, response);
            });
        }
    }

    /// Whether a queue pair's packets are for this port: one without a global route does not look at GIDs.
    pub(crate) fn is_for(qp: &Qp, port: &Port) -> bool {
        qp.sgid.get() == 0 || port.has_gid(load_gid(&qp.dest_gid))
    }

    /// Where a connected queue pair's packets go; none: to nobody.
    pub(crate) fn route(&self, qp: &Qp) -> Option<Route> {
        let to_lid = qp.dest_lid.get() as u16;
        let ports = &self.memory.header().ports;
        let from = ports.get(qp.port.get() as usize)?;
        let global = qp
            .sgid
            .get()
            .checked_sub(1)
            .and_then(|index| Some((from.gid(index as usize)?, load_gid(&qp.dest_gid))));
        let (to_port, port) = self.memory.port_of_lid(to_lid)?;
        if !Self::is_for(qp, port) {
            return None;
        }
        Some(Route {
            from_port: qp.port.get(),
            to_port,
            from_lid: from.lid.get() as u16 | qp.path_bits.get() as u16,
            to_lid,
            from_qp: qp.number.get(),
            to_qp: qp.dest_qp.get(),
            service_level: qp.service_level.get() as u8,
            pkey: from.pkey(qp.pkey_index.get() as usize)?,
            global,
        })
    }

    /// What can be told to be wrong before anything is sent.
    fn check(&self, qp: &Qp, work: &Work<'_>) -> Result<(), Status> {
        let send = &work.send;
        let reliable = qp.is_reliable();
        let known = match send.opcode {
            Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => {
                reliable && qp.max_rd_atomic.get() > 0
            }
            Opcode::SendInvalidate => reliable,
            _ => true,
        };
        let atomic = matches!(send.opcode, Opcode::CompareSwap | Opcode::FetchAdd);
        if !known {
            return Err(Status::LocalOperation);
        }
        let too_long = send.length > 1 << 31 || qp.packets(send.length) >= 1 << 23;
        if atomic && send.length != 8 || too_long {
            return Err(Status::LocalLength);
        }
        let sane = self.is_sane(qp, work.slot, send);
        sane.then_some(()).ok_or(Status::LocalOperation)
    }

    /// Whether a request is as long as what it brings.
    pub(crate) fn is_sane(&self, qp: &Qp, slot: &[U64], send: &Send) -> bool {
        if send.is_inline() {
            return send.length <= qp.sq.inline_bytes.get();
        }
        let list = load_sges(&slot[SEND_HEAD_WORDS..], send.sges);
        list.map(|sge| u64::from(sge.length)).sum::<u64>() == u64::from(send.length)
    }

    /// The data of (a part of) a message, with keys checked.
    fn gather<'p>(
        &self,
        qp: &Qp,
        work: &Work<'p>,
        offset: u64,
        length: u64,
        places: &'p mut Places,
    ) -> Result<Payload<'p>, Status> {
        if work.send.is_inline() {
            return Ok(Payload::Slot {
                words: &work.slot[SEND_HEAD_WORDS..],
                at: offset as usize,
                length: length as usize,
            });
        }
        *places = self.send_places(qp, work, offset, length, Access::empty())?;
        Ok(Payload::Memory(places.list()))
    }

    /// Places of (a part of) a request's list.
    fn send_places(
        &self,
        qp: &Qp,
        work: &Work<'_>,
        mut at: u64,
        mut length: u64,
        access: Access,
    ) -> Result<Places, Status> {
        let mut places = Places::new();
        for sge in load_sges(&work.slot[SEND_HEAD_WORDS..], work.send.sges) {
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
                .locate(sge.key, qp.scope(), address, part, access);
            places.push(place.map_err(|_| Status::LocalProtection)?);
            length -= part;
        }
        Ok(places)
    }

    /// Completes the oldest request with an error, and with it the queue pair.
    pub(crate) fn fail_oldest(&self, index: u32, qp: &Qp, status: Status) {
        let connected = qp.is_reliable();
        self.fail(index, qp, if connected { State::Error } else { State::Sqe });
        if let Some(work) = self.request(qp, qp.sq.taken.get())
            && qp.sq.waiting() > 0
        {
            self.complete_send(index, qp, &work.send, status, 0);
        }
    }

    /// Takes a response. The caller holds the send lock.
    pub(crate) fn handle_response(&self, index: u32, qp: &Qp, packet: &Packet<'_>) {
        let requester = &qp.requester;
        let from_peer = packet.route.from_qp == qp.dest_qp.get();
        if !matches!(qp.state(), State::Rts | State::Sqd) || !from_peer {
            return;
        }
        // Of the packets that were ever sent, some of which may be about to be sent again.
        let known = psn::ahead(packet.psn, requester.psn_max.get()) < 0
            && psn::ahead(packet.psn, requester.unacked.get()) >= 0;
        let gap_at_end =
            matches!(packet.body, Body::Nak(_)) && packet.psn == requester.psn_max.get();
        if !known || gap_at_end {
            return;
        }
        requester.flow.received.count_packet(packet, qp.mtu());
        match &packet.body {
            Body::Ack if !self.acknowledge(index, qp, packet.psn) => self.miss(index, qp),
            Body::Nak(nak) => self.refused(index, qp, packet.psn, *nak),
            Body::ReadResponse { last, payload, .. } => {
                self.fetched(index, qp, packet, payload, *last);
            }
            Body::AtomicResponse(before) => {
                let bytes = before.to_ne_bytes();
                let payload = Payload::Bytes(bytes.as_slice().into());
                self.fetched(index, qp, packet, &payload, true);
            }
            _ => {}
        }
    }

    /// Everything up to `last` arrived. False if a response is missing among it.
    fn acknowledge(&self, index: u32, qp: &Qp, last: u32) -> bool {
        // What follows the oldest request may not have been sent yet, and has no number then.
        let mut begins = None;
        for _ in 0..qp.sq.size() {
            if qp.sq.waiting() == 0 {
                break;
            }
            let Some(work) = self.request(qp, qp.sq.taken.get()) else {
                break;
            };
            let first = begins.unwrap_or(work.send.psn);
            if work.send.opcode.is_local() || psn::ahead(last, first) < 0 {
                break;
            }
            if work.send.opcode.fetches() && !self.has(Canary::AcknowledgeCompletesReads) {
                self.progress(qp, first);
                return false;
            }
            let after = psn::add(first, qp.packets(work.send.length));
            if psn::ahead(last, after) < -1 {
                break;
            }
            self.complete_send(index, qp, &work.send, Status::Success, work.send.length);
            begins = Some(after);
        }
        self.progress(qp, psn::add(last, 1));
        true
    }

    /// Nothing before `unacked` is needed any more.
    fn progress(&self, qp: &Qp, unacked: u32) {
        let requester = &qp.requester;
        if psn::ahead(unacked, requester.unacked.get()) <= 0 {
            return;
        }
        requester.unacked.set(unacked);
        requester.retries.set(qp.retry_cnt.get());
        requester.rnr_retries.set(qp.rnr_retry.get());
        requester.deadline_ns.set(0);
        requester.not_ready.set(0);
        requester.missed.set(0);
        // What was to be sent again arrived after all.
        if psn::ahead(unacked, requester.psn.get()) > 0 {
            self.go_back(qp);
        }
    }

    fn refused(&self, index: u32, qp: &Qp, at: u32, nak: Nak) {
        let requester = &qp.requester;
        let before = psn::add(at, psn::MASK);
        if at != requester.unacked.get() && !self.acknowledge(index, qp, before) {
            return self.miss(index, qp);
        }
        match nak {
            Nak::Sequence => {
                self.count_at_port(qp, |counters| &counters.packet_seq_err);
                self.again(index, qp, Status::RetryExceeded);
            }
            Nak::NotReady(code) => {
                self.count_at_port(qp, |counters| &counters.rnr_nak_retry_err);
                let left = requester.rnr_retries.get();
                if left == 0 {
                    return self.fail_oldest(index, qp, Status::RnrRetryExceeded);
                }
                if left < 7 {
                    requester.rnr_retries.set(left - 1);
                }
                self.go_back(qp);
                // The deadline first: who waits without one waits for ever.
                let deadline_ns = self.host.now_ns() + rnr_timer_ns(code);
                requester.deadline_ns.set(deadline_ns);
                requester.not_ready.set(1);
                self.host.attention(index);
            }
            Nak::InvalidRequest => self.fail_oldest(index, qp, Status::RemoteInvalidRequest),
            Nak::RemoteAccess => self.fail_oldest(index, qp, Status::RemoteAccess),
            Nak::RemoteOperation => self.fail_oldest(index, qp, Status::RemoteOperation),
        }
    }

    /// Data of a read or an atomic came.
    fn fetched(&self, index: u32, qp: &Qp, packet: &Packet<'_>, payload: &Payload<'_>, last: bool) {
        let requester = &qp.requester;
        if packet.psn != requester.unacked.get() {
            let before = psn::add(packet.psn, psn::MASK);
            if !self.acknowledge(index, qp, before) {
                return self.miss(index, qp);
            }
        }
        let Some(work) = self.request(qp, qp.sq.taken.get()) else {
            return;
        };
        let send = &work.send;
        let part = psn::ahead(packet.psn, send.psn);
        if qp.sq.waiting() == 0 || !send.opcode.fetches() || part < 0 {
            return self.fail_oldest(index, qp, Status::BadResponse);
        }
        let at = part as u64 * u64::from(qp.mtu());
        let end = at + payload.length();
        let ends = end == u64::from(send.length);
        if end > u64::from(send.length) || ends && !last {
            return self.fail_oldest(index, qp, Status::BadResponse);
        }
        let put = self
            .send_places(qp, &work, at, payload.length(), Access::LOCAL_WRITE)
            .and_then(|places| {
                let put = self.put(payload, places.list());
                put.map_err(|_| Status::LocalProtection)
            });
        if let Err(status) = put {
            return self.fail_oldest(index, qp, status);
        }
        if last {
            requester
                .fetching
                .set(requester.fetching.get().saturating_sub(1));
        }
        if ends {
            self.complete_send(index, qp, send, Status::Success, send.length);
        }
        self.progress(qp, psn::add(packet.psn, packet.count));
    }

    /// Does what stays in the HCA.
    fn do_local(&self, index: u32, qp: &Qp, work: &Work<'_>) -> Next {
        let done = match work.send.opcode {
            Opcode::LocalInvalidate => self
                .invalidate(qp.scope(), work.send.immediate)
                .then_some(())
                .ok_or(Status::LocalProtection),
            _ => self.bind(qp, &work.send).map_err(|_| Status::WindowBind),
        };
        if let Err(status) = done {
            self.fail_oldest(index, qp, status);
            return Next::Wait;
        }
        qp.requester.next.set(count_add(qp.requester.next.get(), 1));
        self.complete_send(index, qp, &work.send, Status::Success, 0);
        Next::Go
    }

    /// Ends what a window's key of type 2 allows; whether it allowed anything.
    pub(crate) fn invalidate(&self, scope: Scope, number: u32) -> bool {
        let Ok(entry) = self.memory.valid_key(number, scope.hca) else {
            return false;
        };
        let fits = entry.kind.get() == key::WINDOW_2
            && entry.pd.get() == scope.pd
            && entry.qp.get() == scope.qp
            && entry.region.get() != 0;
        if fits {
            self.unbind(entry);
        }
        fits
    }

    /// Takes a window off its region.
    pub fn unbind(&self, window: &key::Key) {
        let Some(region) = window.region.swap(0).checked_sub(1) else {
            return;
        };
        window.length.set(0);
        if let Some(region) = self.memory.key(region) {
            region.windows.add(u32::MAX);
        }
    }

    /// Binds a window (ibv_bind_mw(3), ibv_wr_post(3)). `compare_add` has the window's new key and
    /// the region's, `swap` the access; the range is the remote one.
    fn bind(&self, qp: &Qp, send: &Send) -> Result<(), KeyError> {
        let scope = qp.scope();
        let (new, region_key) = (send.compare_add as u32, (send.compare_add >> 32) as u32);
        let window = self.memory.key(key::place(new)).ok_or(KeyError::Unknown)?;
        let kind = window.kind.get();
        let owned = window.hca.get() == scope.hca && window.pd.get() == scope.pd;
        if !matches!(kind, key::WINDOW_1 | key::WINDOW_2) || !owned {
            return Err(KeyError::Unknown);
        }
        if kind == key::WINDOW_2 && window.region.get() != 0 {
            return Err(KeyError::Unknown);
        }
        let length = u64::from(send.remote_key) | u64::from(send.immediate) << 32;
        let access = Access::from_bits_truncate(send.swap as u32);
        // Only type 2 has bases of zero (o10-36.2.2).
        if kind == key::WINDOW_1 && access.contains(Access::ZERO_BASED) {
            return Err(KeyError::Access);
        }
        // Only type 1 is unbound by that; type 2 is invalidated (10.6.7.2.5, o10-37.2.40).
        if length == 0 && kind == key::WINDOW_2 {
            return Err(KeyError::Bounds);
        }
        if length == 0 {
            self.unbind(window);
            window.tag.set(new & 0xff);
            return Ok(());
        }
        let region = self.memory.valid_key(region_key, scope.hca)?;
        let allowed = Access::from_bits_truncate(region.access.get());
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !allowed.contains(Access::BIND) || writes && !allowed.contains(Access::LOCAL_WRITE) {
            return Err(KeyError::Access);
        }
        let place: Segment = self.memory.locate(
            region_key,
            scope,
            send.remote_address,
            length,
            Access::empty(),
        )?;
        if region.kind.get() != key::REGION {
            return Err(KeyError::Unknown);
        }
        self.unbind(window);
        window.tag.set(new & 0xff);
        window.access.set(access.bits());
        let zero_based = access.contains(Access::ZERO_BASED);
        window
            .start
            .set(if zero_based { 0 } else { send.remote_address });
        window.length.set(length);
        window.address.set(place.address);
        window.process.set(place.process);
        window.pooled.set(place.pooled.into());
        window.qp.set(scope.qp);
        region.windows.add(1);
        window.region.set(key::place(region_key) + 1);
        Ok(())
    }

    /// Delivers a packet that the host took away.
    pub fn deliver(&self, packet: &Packet<'_>) {
        let header = self.memory.header();
        let Some(port) = header.ports.get(packet.route.to_port as usize) else {
            return;
        };
        // It was up when the packet was sent.
        if !header.is_up(packet.route.to_port) {
            return;
        }
        if packet.transport == Transport::Ud {
            self.receive_datagram(packet);
            return self.settle();
        }
        let Some((index, qp)) = self.memory.qp_numbered(packet.route.to_qp, port.hca.get()) else {
            return;
        };
        if packet.is_response() {
            let held = self.hold_lock(&qp.send_lock);
            self.handle_response(index, qp, packet);
            self.work(index, qp);
            drop(held);
        } else if qp.transport() == expected_peer(packet.transport) {
            self.receive_request(index, qp, packet, &mut |response| {
                self.host.transmit(response)
            });
        }
        self.settle();
    }

    /// A receive was posted: if a message waits for one, sends it on behalf of the peer.
    pub fn receive_posted(&self, qp: &Qp) {
        if qp.rq.starved.look() == 0 || qp.rq.starved.swap(0) == 0 {
            return;
        }
        let Some((_, port)) = self.memory.port_of_lid(qp.dest_lid.get() as u16) else {
            return;
        };
        let peer = self.memory.qp_numbered(qp.dest_qp.get(), port.hca.get());
        let Some((index, peer)) = peer else { return };
        let held = self.hold_lock(&peer.send_lock);
        if peer.requester.not_ready.swap(0) != 0 {
            peer.requester.deadline_ns.set(0);
            self.work(index, peer);
        }
        drop(held);
        self.settle();
    }
}

/// Which transport the queue pair that a packet is for must have.
#[inline]
fn expected_peer(transport: Transport) -> Option<Transport> {
    Some(match transport {
        Transport::XrcSend => Transport::XrcReceive,
        other => other,
    })
}

#[inline]
fn body<'a>(
    send: &Send,
    first: bool,
    last: bool,
    (offset, length): (u64, u64),
    payload: Payload<'a>,
) -> Body<'a> {
    let remote = Remote {
        address: send.remote_address,
        key: send.remote_key,
        length: send.length,
    };
    let extra = match send.opcode {
        _ if !last => Extra::None,
        Opcode::SendImm | Opcode::WriteImm => Extra::Immediate(send.immediate),
        Opcode::SendInvalidate => Extra::Invalidate(send.immediate),
        _ => Extra::None,
    };
    match send.opcode {
        Opcode::Write | Opcode::WriteImm => Body::Write {
            remote: first.then_some(remote),
            last,
            extra,
            payload,
        },
        Opcode::Read => Body::Read(Remote {
            address: send.remote_address.wrapping_add(offset),
            length: length as u32,
            ..remote
        }),
        opcode @ (Opcode::CompareSwap | Opcode::FetchAdd) => Body::Atomic {
            opcode,
            remote,
            compare_add: send.compare_add,
            swap: send.swap,
        },
        _ => Body::Send {
            first,
            last,
            extra,
            payload,
        },
    }
}
