//! Queue pairs that failed: what is left in their queues completes as flushed, in order
//! (InfiniBand Architecture 1, 10.3.1).

use crate::{
    Canary, Completion, FAILED_MAX, Hca, Host,
    cq::FREES_RECEIVE,
    lock::Held,
    qp::Qp,
    queue::{Receive, Send, count_add, count_from},
    types::{Event, State, Status},
};

impl<H: Host> Hca<'_, H> {
    /// Puts a queue pair into error, and has it flushed as soon as no lock is held.
    pub(crate) fn fail(&self, index: u32, qp: &Qp, state: State) {
        // Before the state, so that whoever dies in between leaves a trace.
        qp.flushes.set(1);
        match state {
            // No way back from an error that was met elsewhere.
            State::Sqe => {
                let from = [State::Rts, State::Sqd].map(|from| from as u32);
                let _ = from
                    .iter()
                    .any(|from| qp.state.replace(*from, state as u32));
            }
            _ => {
                qp.state.swap(state as u32);
            }
        }
        let (mut failed, count) = (self.failed.get(), self.failed_count.get());
        if failed[..count].contains(&index) {
            return;
        }
        if count == FAILED_MAX {
            self.host.attention(index);
            return;
        }
        failed[count] = index;
        self.failed.set(failed);
        self.failed_count.set(count + 1);
    }

    /// Flushes what failed in this call. No lock may be held.
    pub fn settle(&self) {
        while let Some(count) = self.failed_count.get().checked_sub(1) {
            self.failed_count.set(count);
            self.flush(self.failed.get()[count]);
        }
    }

    /// Fails a queue pair whose peer is gone. No lock may be held.
    pub fn disconnect(&self, index: u32) {
        if let Some(qp) = self.memory.qp(index) {
            self.host.event(Event::QpFatal, index);
            self.fail(index, qp, State::Error);
            self.settle();
        }
    }

    /// Flushes a queue pair in error. No lock may be held.
    pub fn flush(&self, index: u32) {
        let Some(qp) = self.memory.qp(index) else {
            return;
        };
        let held = self.hold_lock(&qp.send_lock);
        self.flush_sends(index, qp);
        drop(held);
        if qp.state() == State::Error {
            let held = self.hold_lock(&qp.receive_lock);
            self.flush_receives(index, qp, &held);
        }
        // Last: who dies before has it done by the daemon.
        qp.flushes.set(0);
    }

    /// Flushes the send queue, whose lock the caller holds.
    pub(crate) fn flush_sends(&self, index: u32, qp: &Qp) {
        if !matches!(qp.state(), State::Error | State::Sqe) {
            return;
        }
        let requester = &qp.requester;
        requester.deadline_ns.set(0);
        if self.has(Canary::FlushForgetsSends) {
            qp.sq.taken.set(qp.sq.posted.get());
        }
        requester.not_ready.set(0);
        requester.offset.set(0);
        requester.fetching.set(0);
        requester.unacked.set(requester.psn.get());
        requester.psn_max.set(requester.psn.get());
        for _ in 0..qp.sq.size() {
            if qp.sq.waiting() == 0 {
                break;
            }
            let slot = qp.sq.send_slot(self.memory, qp.sq.taken.get());
            let Some(send) = slot.and_then(Send::load) else {
                break;
            };
            self.complete_send(index, qp, &send, Status::Flushed, 0);
        }
        requester.next.set(qp.sq.taken.get());
    }

    /// Completes the oldest request of the send queue, whose lock the caller holds.
    pub(crate) fn complete_send(
        &self,
        index: u32,
        qp: &Qp,
        send: &Send,
        status: Status,
        length: u32,
    ) {
        let taken = count_add(qp.sq.taken.get(), 1);
        let signaled = qp.signals_all.get() != 0
            || send.flags.contains(crate::SendFlags::SIGNALED)
            || status != Status::Success;
        if !signaled {
            qp.sq.taken.set(taken);
            return;
        }
        let completion = Completion {
            wr_id: send.wr_id,
            status,
            opcode: send.opcode.completed(),
            vendor_error: vendor_error(status),
            length,
            immediate: 0,
            qp_number: qp.number.get(),
            source_qp: 0,
            flags: 0,
            pkey_index: 0,
            source_lid: 0,
            service_level: 0,
            path_bits: 0,
            qp: index,
            frees: taken,
            solicited: false,
            time_ns: self.stamp(qp.send_cq.get()),
        };
        // In this order: see `mend`.
        self.complete(qp.send_cq.get(), &completion);
        qp.sq.taken.set(taken);
    }

    /// Flushes the receive queue, whose lock the caller holds.
    pub(crate) fn flush_receives(&self, index: u32, qp: &Qp, held: &Held<'_>) {
        if qp.state() != State::Error {
            return;
        }
        if qp.responder.holds.get() != 0 {
            self.end_receive(index, qp, held, Status::Flushed);
        }
        if qp.srq.get() != 0 {
            if qp.flushes.get() != 0 {
                self.host.event(Event::LastWqe, index);
            }
            return;
        }
        for _ in 0..qp.rq.size() {
            if qp.rq.waiting() == 0 {
                break;
            }
            qp.responder.holds.set(1);
            self.end_receive(index, qp, held, Status::Flushed);
        }
    }

    /// Completes the receive that is held with an error.
    pub(crate) fn end_receive(&self, index: u32, qp: &Qp, _held: &Held<'_>, status: Status) {
        let Some(slot) = self.held_receive(qp) else {
            return;
        };
        let receive = Receive::load(slot);
        let completion = Completion {
            status,
            vendor_error: vendor_error(status),
            ..self.receive_completion(index, qp, receive.wr_id)
        };
        let cq = self.receive_cq(qp);
        self.complete(cq, &completion);
        self.release_receive(qp);
    }

    /// A completion of the receive that is held, to be filled in.
    pub(crate) fn receive_completion(&self, index: u32, qp: &Qp, wr_id: u64) -> Completion {
        let frees = count_add(qp.rq.taken.get(), 1) | FREES_RECEIVE;
        Completion {
            wr_id,
            status: Status::Success,
            opcode: crate::types::completed::RECEIVE,
            vendor_error: 0,
            length: 0,
            immediate: 0,
            qp_number: qp.number.get(),
            source_qp: 0,
            flags: 0,
            pkey_index: 0,
            source_lid: qp.dest_lid.get() as u16,
            service_level: qp.service_level.get() as u8,
            path_bits: qp.path_bits.get() as u8,
            qp: index,
            frees,
            solicited: false,
            time_ns: self.stamp(self.receive_cq(qp)),
        }
    }

    /// Gives up the receive that is held: its completion was published.
    pub(crate) fn release_receive(&self, qp: &Qp) {
        qp.responder.holds.set(0);
        qp.rq.taken.set(count_add(qp.rq.taken.get(), 1));
    }

    /// Requests of the send queue that are on their way or wait.
    pub fn outstanding(&self, qp: &Qp) -> u32 {
        count_from(qp.sq.posted.get(), qp.sq.taken.get())
    }
}

/// What the HCA says beside a status, in the manner of vendors: the syndrome in the low byte.
pub(crate) fn vendor_error(status: Status) -> u32 {
    match status {
        Status::Success => 0,
        Status::Flushed => 0xf5,
        Status::LocalLength => 0x68,
        Status::LocalOperation => 0x6f,
        Status::LocalProtection => 0x51,
        Status::WindowBind => 0x53,
        Status::BadResponse => 0x3c,
        Status::LocalAccess => 0x56,
        Status::RemoteInvalidRequest => 0x8a,
        Status::RemoteAccess => 0x88,
        Status::RemoteOperation => 0x89,
        Status::RetryExceeded => 0x81,
        Status::RnrRetryExceeded => 0x82,
    }
}
