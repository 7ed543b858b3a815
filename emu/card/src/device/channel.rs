//! A DMA channel of the host's: its registers and what it does next. No I/O: the ring's bytes come
//! in, batches of descriptors go out.
//!
//! ```text
//! disabled --DCAR 1--> idle --DHPR--> running --batch done--> idle
//!    ^                   |               | a descriptor fails
//!    '-----DCAR 0--------+---------------+--> halted (DSTAT 1, DCHERR index, errno)
//! ```
//! Disabling forgets a running batch: its result, which carries an older generation, is ignored.
//! The next batch waits until it is over all the same: one batch of a channel is with the engine at
//! a time, however often the host disables and enables.

use snaprig_wire::{
    bar4,
    dma::{DESCRIPTOR_BYTES, Descriptor},
};

/// Descriptors of one batch.
const BATCH_MAX: u32 = 64;
/// DRAR_HI has 17 bits for the ring's size (Linux's former `drivers/dma/mic_x100_dma.c`), which also
/// bounds the work behind one write of DHPR.
const RING_LEN_MASK: u32 = 0x1_ffff;

#[derive(Default)]
pub(super) struct Channel {
    enabled: bool,
    running: bool,
    generation: u64,
    head: u32,
    tail: u32,
    ring_lo: u32,
    ring_hi: u32,
    error: Option<(u32, i32)>,
}

/// What to copy next.
pub(super) struct Batch {
    pub(super) generation: u64,
    pub(super) descriptors: Vec<Descriptor>,
}

impl Channel {
    pub(super) fn read(&self, register: u64) -> u32 {
        match register {
            bar4::DCAR => self.enabled.into(),
            bar4::DHPR => self.head,
            bar4::DTPR => self.tail,
            bar4::DRAR_LO => self.ring_lo,
            bar4::DRAR_HI => self.ring_hi,
            bar4::DSTAT => self.error.is_some().into(),
            bar4::DCHERR => self.error.map_or(0, |(index, _)| index),
            bar4::DCHERRMSK => self.error.map_or(0, |(_, errno)| errno as u32),
            _ => 0,
        }
    }

    /// The ring may be changed only while the channel is disabled.
    pub(super) fn write(&mut self, register: u64, value: u32) {
        match register {
            bar4::DCAR if value & 1 == 0 => self.disable(),
            bar4::DCAR => self.enabled = true,
            bar4::DHPR if self.enabled => self.head = value,
            bar4::DRAR_LO if !self.enabled => self.ring_lo = value,
            bar4::DRAR_HI if !self.enabled => self.ring_hi = value,
            _ => {}
        }
    }

    pub(super) fn disable(&mut self) {
        *self = Self {
            running: self.running,
            generation: self.generation + 1,
            ring_lo: self.ring_lo,
            ring_hi: self.ring_hi,
            ..Self::default()
        };
    }

    /// The next batch, if there is something to do; `read` gets 16 bytes at a card address, or
    /// nothing if they are not card memory. May halt the channel instead.
    pub(super) fn next(
        &mut self,
        read: impl Fn(u64) -> Option<[u8; DESCRIPTOR_BYTES]>,
    ) -> Option<Batch> {
        if !self.enabled || self.running || self.error.is_some() || self.head == self.tail {
            return None;
        }
        let len = self.len();
        if len < 2 || self.head >= len {
            self.error = Some((self.tail, libc::EINVAL));
            return None;
        }
        let base = u64::from(self.ring_lo) | u64::from(self.ring_hi & 0xf) << 32;
        let ready = (self.head + (len - self.tail)) % len;
        let mut descriptors = Vec::new();
        for i in 0..ready.min(BATCH_MAX) {
            let index = u64::from(self.step(i, len));
            let bytes = read(base + index * DESCRIPTOR_BYTES as u64);
            match bytes.map(|bytes| Descriptor::decode(&bytes)) {
                Some(Ok(descriptor)) => descriptors.push(descriptor),
                _ => break,
            }
        }
        if descriptors.is_empty() {
            self.error = Some((self.tail, libc::EINVAL));
            return None;
        }
        self.running = true;
        Some(Batch {
            generation: self.generation,
            descriptors,
        })
    }

    /// `done` descriptors of the batch were copied; `error` is the errno of the one after. False if
    /// the batch was forgotten.
    pub(super) fn finished(&mut self, generation: u64, done: usize, error: Option<i32>) -> bool {
        self.running = false;
        if generation != self.generation {
            return false;
        }
        self.tail = self.step(done as u32, self.len());
        self.error = error.map(|errno| (self.tail, errno));
        true
    }

    /// Whether a batch, forgotten or not, is being copied.
    pub(super) fn running(&self) -> bool {
        self.running
    }

    pub(super) fn halted(&self) -> bool {
        self.error.is_some()
    }

    fn len(&self) -> u32 {
        self.ring_hi >> 4 & RING_LEN_MASK
    }

    /// `tail` moved on by `n`, which is less than `len`, as is `tail`.
    fn step(&self, n: u32, len: u32) -> u32 {
        (self.tail + n) % len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(channel: &mut Channel) {
        channel.write(bar4::DCAR, 0);
        channel.write(bar4::DRAR_HI, 16 << 4);
        channel.write(bar4::DCAR, 1);
        channel.write(bar4::DHPR, 1);
    }

    #[test]
    fn a_forgotten_batch_holds_up_the_next_and_changes_nothing_else() {
        let read = |_| {
            let copy = Descriptor {
                src: 0,
                dst: 64,
                len: 64,
                interrupt: false,
            };
            Some(copy.encode())
        };
        let mut channel = Channel::default();
        start(&mut channel);
        let forgotten = channel.next(read).unwrap();
        for _ in 0..3 {
            start(&mut channel);
            assert!(channel.next(read).is_none() && channel.running());
        }
        assert!(!channel.finished(forgotten.generation, 1, Some(libc::EFAULT)));
        assert_eq!((channel.read(bar4::DTPR), channel.halted()), (0, false));
        let batch = channel.next(read).unwrap();
        assert!(channel.finished(batch.generation, 1, None));
        assert_eq!(channel.read(bar4::DTPR), 1);
    }
}
