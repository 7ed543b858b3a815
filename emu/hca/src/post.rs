//! Posting: work requests into the rings, by their owner (ibv_post_send(3), ibv_post_recv(3)).
//!
//! A request is written whole before `posted` publishes it. Who posts sends also moves the
//! requester; who posts receives also moves the peer's, if that waits for one.

use std::cell::Cell;

use thiserror::Error;

use crate::{
    Hca, Host, SendFlags, State, Transport,
    cell::U64,
    lock::Held,
    qp::Qp,
    queue::{
        Queue, RECEIVE_HEAD_WORDS, Receive, SEND_HEAD_WORDS, SGES_MAX, Send, Sge, count_add,
        store_parts, store_sge,
    },
};

/// Why a request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// There is no such queue.
    #[error("there is no such queue")]
    Unknown,
    /// Requests are not taken in this state.
    #[error("requests are not taken in this state")]
    WrongState,
    /// The transport has no such operation.
    #[error("the transport has no such operation")]
    Unsupported,
    /// The queue is full.
    #[error("the queue is full")]
    Full,
    /// More scatter/gather entries than a request can have.
    #[error("more scatter/gather entries than a request can have")]
    TooManySges,
    /// More inline data than a request can have.
    #[error("more inline data than a request can have")]
    InlineTooLong,
}

/// Where the data of a send request is.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In one's own memory, by key.
    List(&'a [Sge]),
    /// Here; it is copied into the request.
    Inline(&'a [&'a [u8]]),
}

impl Data<'_> {
    /// No data.
    pub const EMPTY: Data<'static> = Data::List(&[]);
}

/// A send queue that is being filled, with its lock held. Dropped without [`Self::commit`], it is
/// as it was.
#[must_use]
#[derive(Debug)]
pub struct Sending<'s, 'm, H: Host> {
    hca: &'s Hca<'m, H>,
    index: u32,
    qp: &'m Qp,
    posted: Cell<u32>,
    held: Held<'m>,
}

impl<H: Host> Sending<'_, '_, H> {
    /// Writes one more request; `length`, `sges` and the flag of inline data follow from `data`.
    pub fn add(&self, send: &Send, data: Data<'_>) -> Result<(), PostError> {
        let queue = &self.qp.sq;
        let posted = self.posted.get();
        if send.opcode.is_local() && self.qp.transport() == Some(Transport::Ud) {
            return Err(PostError::Unsupported);
        }
        if queue.room_after(posted) == 0 {
            return Err(PostError::Full);
        }
        let slot = queue.send_slot(self.hca.memory, posted);
        let (head, rest) = slot
            .and_then(|slot| slot.split_at_checked(SEND_HEAD_WORDS))
            .ok_or(PostError::Unknown)?;
        let (flags, length, sges) = match data {
            Data::List(list) => {
                store_list(queue, rest, list)?;
                let length = list
                    .iter()
                    .fold(0u32, |sum, sge| sum.saturating_add(sge.length));
                (send.flags - SendFlags::INLINE, length, list.len() as u32)
            }
            Data::Inline(parts) => {
                let length: usize = parts.iter().map(|part| part.len()).sum();
                if length > queue.inline_bytes.get() as usize {
                    return Err(PostError::InlineTooLong);
                }
                store_parts(rest, parts);
                (send.flags | SendFlags::INLINE, length as u32, 0)
            }
        };
        let send = Send {
            flags,
            length,
            sges,
            ..*send
        };
        send.store(head);
        self.posted.set(count_add(posted, 1));
        Ok(())
    }

    /// Sends one more request at once if that can be, and else writes it as [`Self::add`] does. What
    /// was sent stays so, whatever becomes of the others.
    pub fn send(&self, send: &Send, data: Data<'_>) -> Result<(), PostError> {
        let posted = &self.qp.sq.posted;
        let is_next = self.posted.get() == posted.get();
        if is_next && self.hca.send_at_once(self.index, self.qp, send, data) {
            self.posted.set(posted.get());
            return Ok(());
        }
        self.add(send, data)
    }

    /// Publishes what was written, and sends what can be sent.
    pub fn commit(self) {
        let Self {
            hca,
            index,
            qp,
            posted,
            held,
        } = self;
        if qp.sq.posted.get() != posted.get() {
            qp.sq.posted.release(posted.get());
            hca.work(index, qp);
        }
        drop(held);
        hca.settle();
    }
}

impl<'m, H: Host> Hca<'m, H> {
    /// Begins to fill a send queue. In error, requests are taken, and flushed.
    pub fn sending(&self, index: u32) -> Result<Sending<'_, 'm, H>, PostError> {
        let qp = self.existing(index)?;
        let held = self.hold_lock(&qp.send_lock);
        if matches!(qp.state(), State::Reset | State::Init | State::Rtr) {
            return Err(PostError::WrongState);
        }
        Ok(Sending {
            hca: self,
            index,
            qp,
            posted: Cell::new(qp.sq.posted.get()),
            held,
        })
    }

    /// Posts a send request.
    pub fn post_send(&self, index: u32, send: &Send, data: Data<'_>) -> Result<(), PostError> {
        let sending = self.sending(index)?;
        sending.send(send, data)?;
        sending.commit();
        Ok(())
    }

    /// Posts a receive.
    pub fn post_receive(&self, index: u32, wr_id: u64, list: &[Sge]) -> Result<(), PostError> {
        let qp = self.existing(index)?;
        let held = self.hold_whole(&qp.post_lock);
        if qp.state() == State::Reset {
            return Err(PostError::WrongState);
        }
        self.add_receive(&qp.rq, wr_id, list)?;
        drop(held);
        self.receive_posted(qp);
        // Looked at after it was published: who failed it meanwhile may not have seen this receive.
        if qp.state() == State::Error {
            self.flush(index);
        }
        Ok(())
    }

    /// Posts a receive to a shared queue.
    pub fn post_shared_receive(
        &self,
        index: u32,
        wr_id: u64,
        list: &[Sge],
    ) -> Result<(), PostError> {
        let srq = self.memory.srq(index).filter(|srq| srq.used.acquire() != 0);
        let srq = srq.ok_or(PostError::Unknown)?;
        let held = self.hold_whole(&srq.post_lock);
        self.add_receive(&srq.queue, wr_id, list)?;
        drop(held);
        if srq.queue.starved.look() != 0 && srq.queue.starved.swap(0) != 0 {
            self.host.srq_attention(index);
        }
        Ok(())
    }

    fn existing(&self, index: u32) -> Result<&'m Qp, PostError> {
        let qp = self.memory.qp(index).filter(|qp| qp.number.acquire() != 0);
        qp.ok_or(PostError::Unknown)
    }

    /// Publishes one more receive. The caller holds the queue's lock for posting.
    fn add_receive(&self, queue: &Queue, wr_id: u64, list: &[Sge]) -> Result<(), PostError> {
        let posted = queue.posted.get();
        if queue.room() == 0 {
            return Err(PostError::Full);
        }
        let slot = queue.receive_slot(self.memory, posted);
        let (head, rest) = slot
            .and_then(|slot| slot.split_at_checked(RECEIVE_HEAD_WORDS))
            .ok_or(PostError::Unknown)?;
        store_list(queue, rest, list)?;
        let sges = list.len() as u32;
        Receive { wr_id, sges }.store(head);
        queue.posted.announce(count_add(posted, 1));
        Ok(())
    }
}

fn store_list(queue: &Queue, words: &[U64], list: &[Sge]) -> Result<(), PostError> {
    if list.len() > (queue.sges.get() as usize).min(SGES_MAX) {
        return Err(PostError::TooManySges);
    }
    for (index, sge) in list.iter().enumerate() {
        store_sge(words, index, *sge);
    }
    Ok(())
}
