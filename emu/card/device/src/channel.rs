//! A DMA channel of the host's: its registers and what it does next. No I/O: the ring's bytes come
//! in, batches of descriptors go out.
//!
//! ```text
//! disabled --DCR 1--> idle --DHPR--> running --batch done--> idle
//!    ^                  |               | a descriptor fails
//!    '-----DCR 0--------+---------------+--> halted (DCHERR says why, DTPR which)
//! ```
//! Disabling forgets a running batch: its result, which carries an older generation, is ignored.
//! The next batch waits until it is over all the same: one batch of a channel is with the engine at
//! a time, however often the host disables and enables.

use snaprig_wire::{
    bar4,
    dma::{DESCRIPTOR_BYTES, Descriptor, HOST_BASE, error},
};

/// Descriptors of one batch.
const BATCH_MAX: u32 = 64;
/// DRAR_HI has 17 bits for the ring's size (Linux's former `drivers/dma/mic_x100_dma.c`), which also
/// bounds the work behind one write of DHPR.
const RING_LEN_MASK: u32 = 0x1_ffff;
/// Rings begin at multiples of this (`MIC_DMA_ALIGN_BYTES`).
const RING_ALIGNMENT: u64 = 64;

#[derive(Default)]
pub(super) struct Channel {
    enabled: bool,
    running: bool,
    generation: u64,
    head: u32,
    tail: u32,
    ring_lo: u32,
    ring_hi: u32,
    attributes: u32,
    error: u32,
    error_mask: u32,
    /// Something is to be said, and masked.
    pending: bool,
}

/// What to copy next.
pub(super) struct Batch {
    pub(super) generation: u64,
    pub(super) descriptors: Vec<Descriptor>,
}

impl Channel {
    pub(super) fn read(&self, register: u64) -> u32 {
        match register {
            bar4::DCAR => self.attributes,
            bar4::DHPR => self.head,
            bar4::DTPR => self.tail,
            bar4::DRAR_LO => self.ring_lo,
            bar4::DRAR_HI => self.ring_hi,
            bar4::DSTAT if self.enabled && !self.halted() => self.tail,
            bar4::DSTAT => self.tail | bar4::DSTAT_QUIET,
            bar4::DCHERR => self.error,
            bar4::DCHERRMSK => self.error_mask,
            _ => 0,
        }
    }

    /// The ring may be changed only while the channel is disabled.
    pub(super) fn write(&mut self, register: u64, value: u32) {
        match register {
            bar4::DCAR => self.attributes = value & bar4::DCAR_MASK_HOST,
            bar4::DHPR if self.enabled => self.head = value,
            bar4::DRAR_LO if !self.enabled => self.ring_lo = value,
            bar4::DRAR_HI if !self.enabled => self.ring_hi = value,
            bar4::DCHERRMSK => self.error_mask = value,
            _ => {}
        }
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub(super) fn enable(&mut self, enable: bool) {
        match enable {
            true => self.enabled = true,
            false if self.enabled => self.disable(),
            false => {}
        }
    }

    /// As after power-on, but for a batch that is still being copied.
    pub(super) fn reset(&mut self) {
        *self = Self {
            running: self.running,
            generation: self.generation + 1,
            ..Self::default()
        };
    }

    /// Whether an interrupt is due now.
    pub(super) fn take_interrupt(&mut self) -> bool {
        self.attributes & bar4::DCAR_MASK_HOST == 0 && std::mem::take(&mut self.pending)
    }

    fn disable(&mut self) {
        *self = Self {
            running: self.running,
            generation: self.generation + 1,
            ring_lo: self.ring_lo,
            ring_hi: self.ring_hi,
            attributes: self.attributes,
            error_mask: self.error_mask,
            ..Self::default()
        };
    }

    /// The next batch, if there is something to do; `read` gets 16 bytes at a DMA address, or
    /// nothing if there is no memory. May halt the channel instead.
    pub(super) fn next(
        &mut self,
        read: impl Fn(u64) -> Option<[u8; DESCRIPTOR_BYTES]>,
    ) -> Option<Batch> {
        if !self.enabled || self.running || self.halted() || self.head == self.tail {
            return None;
        }
        let (len, base) = (self.len(), self.base());
        if len < 2 || self.head >= len || !base.is_multiple_of(RING_ALIGNMENT) {
            self.halt(error::RING);
            return None;
        }
        let ready = (self.head + (len - self.tail)) % len;
        let mut descriptors = Vec::new();
        for i in 0..ready.min(BATCH_MAX) {
            let at = base + u64::from(self.step(i, len)) * DESCRIPTOR_BYTES as u64;
            let bytes = read(at).ok_or(error::RING);
            match bytes.and_then(|bytes| Descriptor::decode(&bytes, at)) {
                Ok(descriptor) => descriptors.push(descriptor),
                // It is this one's turn once those before it are done.
                Err(_) if i > 0 => break,
                Err(why) => {
                    self.halt(why);
                    return None;
                }
            }
        }
        self.running = true;
        Some(Batch {
            generation: self.generation,
            descriptors,
        })
    }

    /// `done` descriptors of the batch were copied; `why` the one after was not. Ignored if the batch
    /// was forgotten.
    pub(super) fn finished(&mut self, batch: &Batch, done: usize, why: Option<u32>) {
        self.running = false;
        if batch.generation != self.generation {
            return;
        }
        self.tail = self.step(done as u32, self.len());
        self.pending |= batch.descriptors[..done].iter().any(|d| d.interrupt);
        if let Some(why) = why {
            self.halt(why);
        }
    }

    fn halt(&mut self, why: u32) {
        self.error = why;
        self.pending |= why & !self.error_mask != 0;
    }

    /// Whether a batch, forgotten or not, is being copied.
    pub(super) fn running(&self) -> bool {
        self.running
    }

    fn halted(&self) -> bool {
        self.error != 0
    }

    /// The ring's DMA address.
    fn base(&self) -> u64 {
        let (lo, hi) = (u64::from(self.ring_lo), u64::from(self.ring_hi));
        match self.ring_hi & bar4::DRAR_SYSTEM {
            0 => lo | (hi & 0xf) << 32,
            _ => HOST_BASE + ((hi >> 21 & 0x1f) << bar4::SMPT_SHIFT) + (lo | (hi & 3) << 32),
        }
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
    use snaprig_wire::dma;

    use super::*;

    fn start(channel: &mut Channel) {
        channel.enable(false);
        channel.write(bar4::DRAR_HI, 16 << 4);
        channel.enable(true);
        channel.write(bar4::DHPR, 1);
    }

    #[test]
    fn a_forgotten_batch_holds_up_the_next_and_changes_nothing_else() {
        let read = |_| Some(dma::copy_lines(0, 64, 1, true));
        let mut channel = Channel::default();
        start(&mut channel);
        let forgotten = channel.next(read).unwrap();
        for _ in 0..3 {
            start(&mut channel);
            assert!(channel.next(read).is_none() && channel.running());
        }
        channel.finished(&forgotten, 1, Some(error::COPY));
        assert_eq!((channel.read(bar4::DTPR), channel.halted()), (0, false));
        assert!(!channel.take_interrupt());
        let batch = channel.next(read).unwrap();
        channel.finished(&batch, 1, None);
        assert_eq!(channel.read(bar4::DTPR), 1);
        assert!(channel.take_interrupt() && !channel.take_interrupt());
    }

    #[test]
    fn what_is_masked_waits_and_masked_errors_say_nothing() {
        let mut channel = Channel::default();
        channel.write(bar4::DCAR, bar4::DCAR_MASK_HOST);
        start(&mut channel);
        let batch = channel.next(|_| Some(dma::copy_lines(0, 64, 1, true)));
        channel.finished(&batch.unwrap(), 1, None);
        assert!(!channel.take_interrupt());
        channel.write(bar4::DCAR, 0);
        assert!(channel.take_interrupt());
        for (mask, said) in [(error::LENGTH, false), (!error::LENGTH, true)] {
            channel.write(bar4::DCHERRMSK, mask);
            start(&mut channel);
            let batch = channel.next(|_| Some(dma::copy_lines(0, 64, 0, false)));
            assert!(batch.is_none() && channel.read(bar4::DCHERR) == error::LENGTH);
            assert_eq!(channel.take_interrupt(), said);
            assert_eq!(channel.read(bar4::DSTAT), bar4::DSTAT_QUIET);
        }
    }
}
