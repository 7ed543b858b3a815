//! The short way of a message that can go at once: straight from the request to where it belongs.
//! The request is never written to its ring, and no packet is made of it.
//!
//! Most messages go like that: a send or a write of one piece, with nothing under way before it, to
//! a peer that is ready for it, over a path that takes messages whole. What it does is what
//! `requester` and `responder` would do, in the same order. Whatever is not as it mostly is, is left
//! to them: they know what is wrong, and what follows of it. So nothing is changed here before all is
//! known to be well, save what they would do alike.

use std::{borrow::Cow, slice};

use crate::{
    Access, Completion, Hca, Host, Opcode, Path, Segment, SendFlags, State, Status, Transport,
    payload::Payload,
    port::same_partition,
    post::Data,
    qp::{Qp, receiving},
    queue::{Receive, Send, count_add},
    types::psn,
};

/// Longer messages are not worth a short way. Far below what is too long for a message.
const BYTES_MAX: u64 = 1 << 30;

impl<H: Host> Hca<'_, H> {
    /// Sends a request that is not in the ring, if that can be done at once. The caller holds the
    /// send lock, and settles.
    pub(crate) fn send_at_once(&self, index: u32, qp: &Qp, send: &Send, data: Data<'_>) -> bool {
        self.try_at_once(index, qp, send, data).is_some()
    }

    fn try_at_once(&self, index: u32, qp: &Qp, send: &Send, data: Data<'_>) -> Option<()> {
        let has_nothing_before = has_nothing_under_way(qp) && qp.sq.room() > 0;
        if !has_nothing_before || !matches!(send.opcode, Opcode::Send | Opcode::Write) {
            return None;
        }
        let source;
        let payload = match data {
            Data::Inline([part]) if part.len() <= qp.sq.inline_bytes.get() as usize => {
                Payload::Bytes(Cow::Borrowed(part))
            }
            Data::List([sge]) if sge.length > 0 => {
                let (length, access) = (sge.length.into(), Access::empty());
                let place = self
                    .memory
                    .locate(sge.key, qp.scope(), sge.address, length, access);
                source = place.ok()?;
                Payload::Memory(slice::from_ref(&source))
            }
            _ => return None,
        };
        let length = Some(payload.length()).filter(|length| (1..=BYTES_MAX).contains(length))?;
        let (to, peer) = self.ready_peer(qp)?;
        let held = self.hold_lock(&peer.receive_lock);
        if !self.expects(peer, qp) {
            return None;
        }
        match send.opcode {
            Opcode::Write => {
                let place = self.place_of_write(peer, send, length)?;
                self.put(&payload, &[place]).ok()?;
            }
            _ => self.receive_at_once(to, peer, send, &payload, length)?,
        }
        let packets = qp.packets(length as u32);
        let after = psn::add(qp.requester.psn.get(), packets);
        let responder = &peer.responder;
        responder.flow.received.count(packets, length);
        responder.psn.set(after);
        responder.nak_sent.set(0);
        drop(held);
        let requester = &qp.requester;
        requester.flow.sent.count(packets, length);
        for word in [&requester.psn, &requester.psn_max, &requester.unacked] {
            word.set(after);
        }
        let posted = count_add(qp.sq.posted.get(), 1);
        requester.next.set(posted);
        qp.sq.posted.release(posted);
        self.complete_send(index, qp, send, Status::Success, length as u32);
        Some(())
    }

    /// The peer, if messages reach it whole.
    fn ready_peer(&self, qp: &Qp) -> Option<(u32, &Qp)> {
        let header = self.memory.header();
        let (from_port, to_lid) = (qp.port.get(), qp.dest_lid.get() as u16);
        let (to_port, port) = self.memory.port_of_lid(to_lid)?;
        let goes = self.host.path(from_port, to_port) == Path::Whole
            && header.is_up(from_port)
            && header.is_up(to_port)
            && Self::is_for(qp, port);
        let (index, peer) = self.memory.qp_numbered(qp.dest_qp.get(), port.hca.get())?;
        let is_there =
            goes && peer.port.get() == to_port && peer.transport.get() == qp.transport.get();
        is_there.then_some((index, peer))
    }

    /// Whether the message is the one that the peer expects, in a partition that both are in. The
    /// caller holds the peer's receive lock.
    fn expects(&self, peer: &Qp, qp: &Qp) -> bool {
        let ports = &self.memory.header().ports;
        let pkey = |qp: &Qp| {
            let port = ports.get(qp.port.get() as usize)?;
            port.pkey(qp.pkey_index.get() as usize)
        };
        peer.state() == State::Rts
            && peer.dest_qp.get() == qp.number.get()
            && peer.responder.psn.get() == qp.requester.psn.get()
            && peer.responder.receiving.get() == receiving::NOTHING
            && pkey(qp).is_some_and(|ours| same_partition(pkey(peer).unwrap_or(0), ours))
    }

    /// Where a write goes, if it may.
    fn place_of_write(&self, peer: &Qp, send: &Send, length: u64) -> Option<Segment> {
        let access = Access::REMOTE_WRITE;
        let allowed = Access::from_bits_truncate(peer.access.get()).contains(access);
        let (key, address) = (send.remote_key, send.remote_address);
        let place = self
            .memory
            .locate(key, peer.scope(), address, length, access);
        place.ok().filter(|_| allowed)
    }

    /// Puts a send into the peer's next receive, and completes that.
    fn receive_at_once(
        &self,
        index: u32,
        peer: &Qp,
        send: &Send,
        payload: &Payload<'_>,
        length: u64,
    ) -> Option<()> {
        // Its line comes while the data is copied.
        self.want_entry(self.receive_cq(peer));
        self.hold(peer, 0).ok()?;
        let places = self.receive_places(peer, 0, length).ok()?;
        self.put(payload, places.list()).ok()?;
        let receive = Receive::load(self.held_receive(peer)?);
        let completion = Completion {
            length: length as u32,
            solicited: send.flags.contains(SendFlags::SOLICITED),
            ..self.receive_completion(index, peer, receive.wr_id)
        };
        let told = self.complete(self.receive_cq(peer), &completion);
        self.release_receive(peer);
        // The next one's line comes while something else is done.
        if let Some([first, ..]) = self.held_receive(peer) {
            first.want();
        }
        told.then_some(())
    }
}

/// Whether all that was ever posted is done, and more may follow at once.
fn has_nothing_under_way(qp: &Qp) -> bool {
    let (requester, posted) = (&qp.requester, qp.sq.posted.get());
    let (psn, connected) = (requester.psn.get(), [Transport::Rc, Transport::Uc]);
    qp.state() == State::Rts
        && connected
            .iter()
            .any(|one| qp.transport.get() == *one as u32)
        && requester.next.get() == posted
        && qp.sq.taken.get() == posted
        && requester.unacked.get() == psn
        && requester.psn_max.get() == psn
        && requester.slow.get() == 0
        && requester.deadline_ns.get() == 0
        && requester.not_ready.get() == 0
}
