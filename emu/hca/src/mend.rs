//! What a process that died in the middle of a step left half done, under a lock that it held.
//!
//! ```text
//! completion published, its channel told --> the request counts as taken
//! receive copied out of a shared queue   --> it counts as taken there
//! ```
//!
//! Who dies at an arrow leaves something that was done and is not counted: it would be done again.
//! The entry that waits in the completion queue, or the slot that its taker freed, tells; so does the
//! number of the receive that was copied.

use crate::{
    Hca, Host,
    cq::FREES_RECEIVE,
    qp::Qp,
    queue::{Queue, count_add, count_from},
};

impl<H: Host> Hca<'_, H> {
    /// Takes over the locks of queue pairs that a dead process held, and finishes its steps: one at a time does, so that
    /// whoever has waited for that finds all of them whole.
    pub(crate) fn mend_all(&self, dead: u32) {
        let header = self.memory.header();
        let _mending = self.hold_whole(&header.mending);
        for qp in (0..header.qps_end.acquire()).filter_map(|place| self.memory.qp(place)) {
            self.mend(qp, dead);
        }
    }

    fn mend(&self, qp: &Qp, dead: u32) {
        if let Some(_held) = qp.receive_lock.take_from(dead, self.me) {
            self.mend_shared(qp, dead);
            let cq = self.receive_cq(qp);
            if self.mend_queue(qp, &qp.rq, cq, FREES_RECEIVE) {
                qp.responder.holds.set(0);
            }
        }
        if let Some(_held) = qp.send_lock.take_from(dead, self.me) {
            self.mend_queue(qp, &qp.sq, qp.send_cq.get(), 0);
        }
    }

    /// Counts a request that was completed; whether there was one.
    fn mend_queue(&self, qp: &Qp, queue: &Queue, cq_index: u32, kind: u32) -> bool {
        let Some(cq) = self.memory.cq(cq_index) else {
            return false;
        };
        self.tell_again(cq_index, cq);
        let (taken, number) = (queue.taken.get(), qp.number.get());
        let next = count_add(taken, 1);
        let waits = self.has_waiting(cq, |entry| {
            entry.qp_number == number && entry.frees == next | kind
        });
        let complete = waits || count_from(queue.freed.acquire(), taken) == 1;
        if complete {
            queue.taken.set(next);
        }
        complete
    }

    /// Counts a receive that was taken from a shared queue.
    fn mend_shared(&self, qp: &Qp, dead: u32) {
        if qp.borrowed.slots.get() == 0 || qp.responder.holds.get() == 0 {
            return;
        }
        let Some(srq) = self.memory.srq(qp.borrowed.taken.get()) else {
            return;
        };
        let Some(_taking) = srq.take_lock.take_from(dead, self.me) else {
            return;
        };
        let taken = srq.queue.taken.get();
        if taken == qp.borrowed.posted.get() {
            srq.queue.taken.set(count_add(taken, 1));
        }
        srq.queue.freed.release(srq.queue.taken.get());
    }
}
