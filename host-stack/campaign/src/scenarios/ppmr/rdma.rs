//! Memory that peers reach by RDMA, and what goes there. An operation that fails leaves its queue pair in error.

use snaprig_ppmr::{faults, message::Remote, source, target};

use super::{
    Canary,
    world::{Event, SOURCE, TARGET, World},
};
use crate::stage::{Effect, System as _};

/// A chunk.
pub const CHUNK_BYTES: u32 = 16;
/// Where pools are, for whoever may reach them.
pub const POOL: Remote = Remote {
    address: 0x10_0000,
    rkey: 0x1234,
};
/// Where the writers' own memory begins, and their keys.
const LENT: Remote = Remote {
    address: 0x1_0000_0000,
    rkey: 0x5600,
};
/// The longest time that an operation takes.
const TRANSFER_NS: u64 = 100_000;

/// An operation that is under way.
#[derive(Clone, Debug)]
pub enum Transfer {
    /// Of the receiver: a chunk is read into its pool.
    Pull {
        wire: u64,
        slot: u32,
        bytes: u32,
        from: Remote,
    },
    /// Of a sender: a chunk is written into the receiver's pool.
    Put {
        wire: u64,
        slot: u32,
        bytes: u32,
        from: Remote,
        to: Remote,
    },
}

/// Where a chunk of a pool is.
pub fn in_pool(slot: u32) -> Remote {
    Remote {
        address: POOL.address + u64::from(slot) * u64::from(CHUNK_BYTES),
        rkey: POOL.rkey,
    }
}

/// Where a byte of a writer's own memory is.
pub fn in_image(rank: usize, at: usize) -> Remote {
    Remote {
        address: LENT.address + at as u64,
        rkey: LENT.rkey + rank as u32,
    }
}

/// These bytes of some memory that begins there.
pub fn part(memory: &[u8], begins: Remote, at: Remote, bytes: u32) -> Option<&[u8]> {
    let start = at.address.checked_sub(begins.address)? as usize;
    memory.get(start..start.checked_add(bytes as usize)?)
}

impl World {
    /// An operation begins.
    pub fn begin_transfer(&mut self, transfer: Transfer) {
        let process = match &transfer {
            Transfer::Pull { .. } => self.receiver,
            Transfer::Put { wire, .. } => self.trees[self.tree_of(*wire)].sender,
        };
        let by_ns = self.random.below(TRANSFER_NS);
        let event = Event::Transfer(transfer, false);
        self.stage.engine.after(process, by_ns, event);
    }

    /// It is done, or fails. Nothing of a connection that this side has closed is.
    pub fn transfer(&mut self, transfer: Transfer, was_late: bool) {
        let (wire, end) = match transfer {
            Transfer::Pull { wire, .. } => (wire, TARGET),
            Transfer::Put { wire, .. } => (wire, SOURCE),
        };
        if !self.net.is_open(wire, end) {
            return;
        }
        let own = match end {
            TARGET => self.receiver,
            _ => self.trees[self.tree_of(wire)].sender,
        };
        let (mut is_done, mut flipped) = (self.is_up(wire), None);
        if !was_late {
            match self.fault(own, &faults::TRANSFER) {
                Effect::Ended => return,
                Effect::Late(by_ns) => {
                    let event = Event::Transfer(transfer, true);
                    return self.stage.engine.after(own, by_ns, event);
                }
                Effect::Error(_) => is_done = false,
                Effect::Corrupt(bit) => flipped = Some(bit),
                _ => is_done &= self.is_up(wire),
            }
        }
        match transfer {
            Transfer::Pull {
                slot, bytes, from, ..
            } => {
                let is_done = is_done && self.copy(wire, from, in_pool(slot), bytes, flipped);
                self.no_promise(wire, from);
                self.receiver_handles(target::Input::Pulled { slot, is_done });
            }
            Transfer::Put {
                slot,
                bytes,
                from,
                to,
                ..
            } => {
                let is_done = is_done && self.copy(wire, from, to, bytes, flipped);
                self.no_promise(wire, from);
                // With this bug, it was said before.
                if self.canary != Some(Canary::RecycledEarly) {
                    let input = source::Input::Put { slot, is_done };
                    self.sender_handles(self.tree_of(wire), input);
                }
            }
        }
    }

    /// Bytes go from a source's memory to the receiver's pool; whether both may be reached.
    fn copy(
        &mut self,
        wire: u64,
        from: Remote,
        to: Remote,
        bytes: u32,
        flipped: Option<u64>,
    ) -> bool {
        let Some(mut copied) = self.source_memory(wire, from, bytes) else {
            return false;
        };
        if let Some(bit) = flipped {
            self.flip(&mut copied, bit);
        }
        let pool = self.managers.receiver.as_mut();
        let pool = pool
            .filter(|_| to.rkey == POOL.rkey)
            .map(|own| &mut own.pool);
        let start = to.address.checked_sub(POOL.address);
        let (Some(pool), Some(start)) = (pool, start) else {
            return false;
        };
        let start = start as usize;
        let place = start
            .checked_add(copied.len())
            .and_then(|end| pool.get_mut(start..end));
        match place {
            Some(place) => place.copy_from_slice(&copied),
            None => return false,
        }
        true
    }

    /// What is in a source's memory: in its sender's pool, or a writer's image.
    fn source_memory(&self, wire: u64, from: Remote, bytes: u32) -> Option<Vec<u8>> {
        let tree = &self.trees[self.tree_of(wire)];
        let sender = tree.manager.as_ref().filter(|own| own.wire == Some(wire))?;
        if from.rkey == POOL.rkey {
            return part(&sender.pool, POOL, from, bytes).map(<[u8]>::to_vec);
        }
        let writing = tree.writing.as_ref();
        let writing = writing.filter(|writing| writing.attempt == sender.attempt)?;
        let rank = from.rkey.checked_sub(LENT.rkey)?;
        let writer = writing.writers.get(rank as usize)?;
        part(&writer.image, LENT, from, bytes).map(<[u8]>::to_vec)
    }

    pub fn tree_of(&self, wire: u64) -> usize {
        self.net.wire(wire).map_or(0, |wire| wire.tree)
    }
}
