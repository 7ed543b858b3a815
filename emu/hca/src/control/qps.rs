//! Queue pairs, and the multicast groups they join.

use super::{
    Address, Capabilities, Control, Errno, QpAttributes, Reply, Request, Ring,
    attributes::{self, mask},
    errno,
    queues::{leave, reset_queue},
};
use crate::{
    Access, Hca, Host, Memory, State, Transport,
    memory::QPS_MAX,
    port::{GIDS_MAX, Gid, MULTICAST_LID, Port, gid_words, store_gid},
    qp::{Qp, RESOURCES_MAX, number, receiving},
    queue::{self, Queue},
};

impl Control {
    fn own_qp<'m>(&self, memory: &'m Memory, process: u32, qp: u32) -> Result<&'m Qp, Errno> {
        let entry = memory.qp(qp).filter(|_| self.qps.used.contains(&qp));
        let entry = entry.filter(|entry| entry.process.get() == process);
        entry.ok_or(errno::EINVAL)
    }

    pub(super) fn create_qp(
        &mut self,
        memory: &Memory,
        process: u32,
        request: &Request,
    ) -> Result<Reply, Errno> {
        let &Request::CreateQp {
            pd,
            transport,
            send_cq,
            recv_cq,
            srq,
            xrc_domain,
            signals_all,
            capabilities,
        } = request
        else {
            return Err(errno::EINVAL);
        };
        let transport = Transport::from_number(transport).ok_or(errno::EINVAL)?;
        let receives_only = transport == Transport::XrcReceive;
        let hca = match xrc_domain {
            Some(domain) if receives_only => self.xrcd(process, domain)?.hca,
            _ => self.pd(process, pd)?.hca,
        };
        let model = *self.model(hca)?;
        let shared =
            srq.is_some() || matches!(transport, Transport::XrcSend | Transport::XrcReceive);
        let capabilities = Capabilities {
            send_slots: if receives_only {
                0
            } else {
                capabilities.send_slots
            },
            receive_slots: if shared {
                0
            } else {
                capabilities.receive_slots
            },
            ..capabilities
        };
        let too_much = capabilities.send_slots > model.queue_slots
            || capabilities.receive_slots > model.queue_slots
            || capabilities.send_sges > model.sges
            || capabilities.receive_sges > model.sges
            || capabilities.inline_bytes > model.inline_bytes;
        if too_much {
            return Err(errno::EINVAL);
        }
        if !receives_only {
            self.own_cq(memory, process, send_cq)?;
            self.own_cq(memory, process, recv_cq)?;
        }
        let borrowed_sges = match srq {
            Some(srq) => self.own_srq(memory, process, srq)?.queue.sges.get(),
            None => model.sges,
        };
        let mine = self
            .qps
            .used
            .iter()
            .filter(|place| memory.qp(**place).is_some_and(|qp| qp.hca.get() == hca));
        if mine.count() >= model.qps as usize {
            return Err(errno::ENOMEM);
        }
        let (place, generation) = self.qps.take(QPS_MAX).ok_or(errno::ENOMEM)?;
        let granted = Capabilities {
            send_sges: capabilities.send_sges.max(1),
            receive_sges: capabilities.receive_sges.max(1),
            ..capabilities
        };
        let Some(qp) = memory.qp(place) else {
            return Err(errno::ENOMEM);
        };
        if let Err(error) = self.rings_of(qp, place, &granted, shared.then_some(borrowed_sges)) {
            self.free_rings_of(place);
            self.qps.give(place);
            return Err(error);
        }
        if receives_only {
            if let Some(domain) = xrc_domain {
                self.xrcd(process, domain)?.users += 1;
            }
        } else {
            self.pd(process, pd)?.users += 1;
            *self.cq_users.entry(send_cq).or_default() += 1;
            *self.cq_users.entry(recv_cq).or_default() += 1;
        }
        if let Some(srq) = srq {
            *self.srq_users.entry(srq).or_default() += 1;
        }
        qp.transport.set(transport as u32);
        qp.hca.set(hca);
        qp.process.set(process);
        qp.pd.set(if receives_only { 0 } else { pd });
        qp.send_cq.set(send_cq);
        qp.recv_cq
            .set(if receives_only { u32::MAX } else { recv_cq });
        qp.srq.set(srq.map_or(0, |srq| srq + 1));
        qp.signals_all.set(signals_all.into());
        qp.xrc_domain.set(xrc_domain.map_or(0, |domain| domain + 1));
        reset(qp);
        let end = &memory.header().qps_end;
        end.set(end.get().max(place + 1));
        let number = number(place, generation);
        qp.number.release(number);
        Ok(Reply::Qp(place, number, granted))
    }

    fn rings_of(
        &mut self,
        qp: &Qp,
        place: u32,
        granted: &Capabilities,
        borrowed_sges: Option<u32>,
    ) -> Result<(), Errno> {
        let send_words = Queue::send_words(granted.send_sges, granted.inline_bytes) as u64;
        let receive_words = Queue::receive_words(granted.receive_sges) as u64;
        let at = self.ring(
            Ring::Send(place),
            u64::from(queue::places(granted.send_slots)) * send_words * 8,
        )?;
        qp.sq.at.set(at);
        qp.sq.slots.set(granted.send_slots);
        qp.sq.sges.set(granted.send_sges);
        qp.sq.inline_bytes.set(granted.inline_bytes);
        let at = self.ring(
            Ring::Receive(place),
            u64::from(queue::places(granted.receive_slots)) * receive_words * 8,
        )?;
        qp.rq.at.set(at);
        qp.rq.slots.set(granted.receive_slots);
        qp.rq.sges.set(granted.receive_sges);
        qp.borrowed.slots.set(0);
        if let Some(sges) = borrowed_sges {
            let at = self.ring(Ring::Borrowed(place), Queue::receive_words(sges) as u64 * 8)?;
            qp.borrowed.at.set(at);
            qp.borrowed.slots.set(1);
            qp.borrowed.sges.set(sges);
        }
        Ok(())
    }

    fn free_rings_of(&mut self, place: u32) {
        for ring in [
            Ring::Send(place),
            Ring::Receive(place),
            Ring::Borrowed(place),
        ] {
            self.free_ring(ring);
        }
    }

    pub(super) fn destroy_qp<H: Host>(
        &mut self,
        hca: &Hca<'_, H>,
        process: u32,
        place: u32,
    ) -> Result<Reply, Errno> {
        let memory = hca.memory;
        let qp = self.own_qp(memory, process, place)?;
        if self.memberships.iter().any(|(member, _)| *member == place) {
            let groups: Vec<_> = self
                .memberships
                .iter()
                .filter(|m| m.0 == place)
                .copied()
                .collect();
            if self.processes.contains(&process) {
                return Err(errno::EBUSY);
            }
            for (_, gid) in groups {
                let _ = self.detach(memory, process, place, gid, 0);
            }
        }
        // Both, so that nobody is at work on it; then nobody finds it.
        let sending = hca.hold_lock(&qp.send_lock);
        let receiving = hca.hold_lock(&qp.receive_lock);
        qp.hand_over_traffic(memory);
        qp.state.set(State::Reset as u32);
        qp.requester.deadline_ns.set(0);
        qp.number.release(0);
        drop((receiving, sending));
        if qp.transport() == Some(Transport::XrcReceive) {
            if let Some(xrcd) = qp.xrc_domain.get().checked_sub(1) {
                self.leave_xrcd(xrcd);
            }
        } else {
            self.leave_pd(qp.pd.get());
            leave(&mut self.cq_users, qp.send_cq.get());
            leave(&mut self.cq_users, qp.recv_cq.get());
        }
        if let Some(srq) = qp.srq.get().checked_sub(1) {
            leave(&mut self.srq_users, srq);
        }
        self.free_rings_of(place);
        self.qps.give(place);
        Ok(Reply::Done)
    }

    /// Queue pairs of other processes that are connected to this one.
    pub(super) fn connected_to(&self, memory: &Memory, place: u32) -> Vec<u32> {
        let Some(qp) = memory.qp(place) else {
            return Vec::new();
        };
        let lid = memory
            .header()
            .ports
            .get(qp.port.get() as usize)
            .map(|port| port.lid.get());
        let points_here = |peer: &Qp| {
            peer.transport() != Some(Transport::Ud)
                && peer.dest_qp.get() == qp.number.get()
                && Some(peer.dest_lid.get()) == lid
                && peer.state().receives()
                && peer.process.get() != qp.process.get()
        };
        let used = self.qps.used.iter().copied();
        used.filter(|place| memory.qp(*place).is_some_and(points_here))
            .collect()
    }

    pub(super) fn modify_qp<H: Host>(
        &mut self,
        hca: &Hca<'_, H>,
        process: u32,
        place: u32,
        given: u32,
        new: &QpAttributes,
    ) -> Result<Reply, Errno> {
        let memory = hca.memory;
        let qp = self.own_qp(memory, process, place)?;
        let transport = qp.transport().ok_or(errno::EINVAL)?;
        let given = attributes::counted(transport, given);
        let now = qp.state();
        let from = if given & mask::CUR_STATE != 0 {
            let claimed = State::from_number(new.cur_state).ok_or(errno::EINVAL)?;
            if claimed != now || !matches!(now, State::Rtr | State::Rts | State::Sqd | State::Sqe) {
                return Err(errno::EINVAL);
            }
            claimed
        } else {
            now
        };
        let to = match given & mask::STATE {
            0 => from,
            _ => State::from_number(new.state).ok_or(errno::EINVAL)?,
        };
        if !attributes::allowed(transport, from, to, given) {
            return Err(errno::EINVAL);
        }
        self.check_values(memory, qp, given, new)?;
        let sending = hca.hold_lock(&qp.send_lock);
        let receiving = hca.hold_lock(&qp.receive_lock);
        // It may be at another port from now on.
        qp.hand_over_traffic(memory);
        if to == State::Reset {
            reset(qp);
        } else {
            apply(memory, qp, given, new, to);
            if transport == Transport::Ud {
                qp.path_mtu.set(self.model(qp.hca.get())?.mtu);
            }
        }
        qp.state.release(to as u32);
        drop((receiving, sending));
        match to {
            State::Error => {
                qp.flushes.set(u32::from(now != State::Error));
                hca.flush(place);
            }
            State::Rts | State::Sqd => hca.run(place),
            _ => {}
        }
        Ok(Reply::Done)
    }

    fn check_values(
        &self,
        memory: &Memory,
        qp: &Qp,
        given: u32,
        new: &QpAttributes,
    ) -> Result<(), Errno> {
        let model = self.model(qp.hca.get())?;
        let ok = |bit: u32, fine: bool| given & bit == 0 || fine;
        let port = find_port(memory, qp.hca.get(), new.port_number);
        let sgid_index = new.address.global.map(|(index, _)| index);
        let fine = ok(mask::PORT, port.is_some())
            && ok(
                mask::PKEY_INDEX,
                usize::from(new.pkey_index) < crate::port::PKEYS_MAX,
            )
            && ok(mask::PATH_MTU, (256..=model.mtu).contains(&new.path_mtu))
            && ok(
                mask::MAX_QP_RD_ATOMIC,
                u32::from(new.max_rd_atomic) <= model.rd_atomic,
            )
            && ok(
                mask::MAX_DEST_RD_ATOMIC,
                u32::from(new.max_dest_rd_atomic) <= model.rd_atomic,
            )
            && ok(mask::ACCESS_FLAGS, Access::from_bits(new.access).is_some())
            && ok(mask::TIMEOUT, new.timeout < 32)
            && ok(mask::RETRY_CNT, new.retry_cnt < 8)
            && ok(mask::RNR_RETRY, new.rnr_retry < 8)
            && ok(mask::MIN_RNR_TIMER, new.min_rnr_timer < 32)
            && ok(
                mask::AV,
                find_port(memory, qp.hca.get(), new.address.port_number).is_some()
                    && sgid_index.is_none_or(|index| usize::from(index) < GIDS_MAX),
            );
        if fine { Ok(()) } else { Err(errno::EINVAL) }
    }

    pub(super) fn attach(
        &mut self,
        memory: &Memory,
        process: u32,
        place: u32,
        gid: Gid,
        lid: u16,
    ) -> Result<Reply, Errno> {
        let qp = self.own_qp(memory, process, place)?;
        if gid[0] != 0xff
            || qp.transport() != Some(Transport::Ud)
            || lid != 0 && lid < MULTICAST_LID
        {
            return Err(errno::EINVAL);
        }
        if !self.memberships.insert((place, gid)) {
            return Ok(Reply::Done);
        }
        let words = gid_words(gid);
        let groups = &memory.header().groups;
        let there = memory
            .header()
            .group(gid)
            .or_else(|| groups.iter().find(|group| group.gid[0].get() == 0));
        let member = there.and_then(|group| group.members.iter().find(|member| member.get() == 0));
        let (Some(group), Some(member)) = (there, member) else {
            self.memberships.remove(&(place, gid));
            return Err(errno::ENOMEM);
        };
        member.set(place + 1);
        group.count.set(group.members.len() as u32);
        group.lid.set(lid.into());
        group.gid[1].set(words[1]);
        group.gid[0].set(words[0]);
        Ok(Reply::Done)
    }

    pub(super) fn detach(
        &mut self,
        memory: &Memory,
        process: u32,
        place: u32,
        gid: Gid,
        _lid: u16,
    ) -> Result<Reply, Errno> {
        self.own_qp(memory, process, place)?;
        if !self.memberships.remove(&(place, gid)) {
            return Err(errno::EINVAL);
        }
        if let Some(group) = memory.header().group(gid) {
            for member in &group.members {
                if member.get() == place + 1 {
                    member.set(0);
                }
            }
            if group.members.iter().all(|member| member.get() == 0) {
                group.gid[0].set(0);
                group.gid[1].set(0);
            }
        }
        Ok(Reply::Done)
    }
}

/// The port of an HCA with this number.
pub fn find_port(memory: &Memory, hca: u32, number: u8) -> Option<(u32, &Port)> {
    let header = memory.header();
    (0..header.port_count.get())
        .map(|index| (index, &header.ports[index as usize % header.ports.len()]))
        .find(|(_, port)| port.hca.get() == hca && port.number.get() == u32::from(number))
}

/// The port that has this GID, at any place of its table.
fn port_with_gid(memory: &Memory, gid: Gid) -> Option<&Port> {
    let header = memory.header();
    header.ports[..(header.port_count.get() as usize).min(header.ports.len())]
        .iter()
        .find(|port| port.has_gid(gid))
}

/// The LID that packets to an address go to: with a global route, whoever has the GID.
pub fn destination_lid(memory: &Memory, address: &Address) -> u16 {
    let by_gid = address
        .global
        .and_then(|(_, gid)| port_with_gid(memory, gid));
    match by_gid {
        Some(port) if address.lid == 0 => port.lid.get() as u16,
        _ => address.lid,
    }
}

/// As new.
fn reset(qp: &Qp) {
    qp.state.set(State::Reset as u32);
    for queue in [&qp.sq, &qp.rq] {
        reset_queue(queue);
    }
    let (requester, responder) = (&qp.requester, &qp.responder);
    for word in [
        &requester.next,
        &requester.psn,
        &requester.unacked,
        &requester.psn_max,
        &requester.fetching,
        &requester.not_ready,
        &requester.retries,
        &requester.rnr_retries,
        &requester.slow,
        &requester.missed,
        &responder.psn,
        &responder.key,
        &responder.length,
        &responder.holds,
        &responder.nak_sent,
        &responder.established,
        &responder.result_next,
        &qp.flushes,
        &qp.access,
        &qp.pkey_index,
        &qp.port_number,
        &qp.port,
        &qp.qkey,
        &qp.dest_lid,
        &qp.dest_qp,
        &qp.service_level,
        &qp.path_bits,
        &qp.sgid,
        &qp.timeout,
        &qp.retry_cnt,
        &qp.rnr_retry,
        &qp.min_rnr_timer,
        &qp.max_rd_atomic,
        &qp.max_dest_rd_atomic,
        &qp.drain_event,
    ] {
        word.set(0);
    }
    for word in [
        &requester.offset,
        &requester.deadline_ns,
        &responder.offset,
        &responder.address,
    ] {
        word.set(0);
    }
    for place in 0..RESOURCES_MAX {
        responder.result_psns[place].set(0);
    }
    responder.receiving.set(receiving::NOTHING);
    qp.path_mtu.set(256);
}

fn apply(memory: &Memory, qp: &Qp, given: u32, new: &QpAttributes, to: State) {
    let has = |bit: u32| given & bit != 0;
    if has(mask::PORT)
        && let Some((index, _)) = find_port(memory, qp.hca.get(), new.port_number)
    {
        qp.port_number.set(new.port_number.into());
        qp.port.set(index);
    }
    if has(mask::PKEY_INDEX) {
        qp.pkey_index.set(new.pkey_index.into());
    }
    if has(mask::ACCESS_FLAGS) {
        qp.access.set(new.access);
    }
    if has(mask::QKEY) {
        qp.qkey.set(new.qkey);
    }
    if has(mask::AV) {
        let address = &new.address;
        qp.dest_lid.set(destination_lid(memory, address).into());
        qp.service_level.set(address.service_level.into());
        qp.path_bits.set(address.path_bits.into());
        qp.sgid
            .set(address.global.map_or(0, |(index, _)| u32::from(index) + 1));
        store_gid(&qp.dest_gid, address.global.map_or([0; 16], |(_, gid)| gid));
    }
    if has(mask::PATH_MTU) {
        qp.path_mtu.set(new.path_mtu);
    }
    if has(mask::DEST_QPN) {
        qp.dest_qp.set(new.dest_qp & 0xff_ffff);
    }
    if has(mask::RQ_PSN) {
        qp.responder.psn.set(new.rq_psn & 0xff_ffff);
    }
    if has(mask::SQ_PSN) {
        let psn = new.sq_psn & 0xff_ffff;
        for word in [
            &qp.requester.psn,
            &qp.requester.unacked,
            &qp.requester.psn_max,
        ] {
            word.set(psn);
        }
    }
    let small = [
        (
            mask::MAX_DEST_RD_ATOMIC,
            &qp.max_dest_rd_atomic,
            new.max_dest_rd_atomic,
        ),
        (mask::MAX_QP_RD_ATOMIC, &qp.max_rd_atomic, new.max_rd_atomic),
        (mask::MIN_RNR_TIMER, &qp.min_rnr_timer, new.min_rnr_timer),
        (mask::TIMEOUT, &qp.timeout, new.timeout),
        (mask::RETRY_CNT, &qp.retry_cnt, new.retry_cnt),
        (mask::RNR_RETRY, &qp.rnr_retry, new.rnr_retry),
        (
            mask::EN_SQD_ASYNC_NOTIFY,
            &qp.drain_event,
            new.en_sqd_async_notify.into(),
        ),
    ];
    for (bit, word, value) in small {
        if has(bit) {
            word.set(value.into());
        }
    }
    if to == State::Rts {
        qp.requester.retries.set(qp.retry_cnt.get());
        qp.requester.rnr_retries.set(qp.rnr_retry.get());
    }
    if to == State::Rts && qp.state() == State::Sqe {
        qp.requester.next.set(qp.sq.taken.get());
        qp.requester.offset.set(0);
    }
}
