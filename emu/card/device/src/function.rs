//! What the device does when the host accesses its function.

use std::{
    ops::Deref,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Weak, atomic::Ordering},
};

use rustix::process::{Resource, getrlimit};
use snaprig_dma::CopyError;
use snaprig_pci::{
    config::{MSIX_PBA, MSIX_TABLE},
    server::{Errnum, Function},
};
use snaprig_wire::{
    bar4::{self, cause},
    dma::{DESCRIPTOR_BYTES, error},
    pci,
};

use super::{
    Device, Window,
    channel::{Batch, Channel},
    lock,
    smpt::Smpt,
};

/// Most windows of a client.
const WINDOWS_MAX: usize = 16 << 10;
/// Bytes of the MSI-X table: 16 a vector.
const TABLE_START: u64 = MSIX_TABLE as u64;
const TABLE_END: u64 = TABLE_START + 16 * pci::MSIX_VECTORS as u64;
const PENDING: u64 = MSIX_PBA as u64;
const SMPT_END: u64 = bar4::SMPT00 + 4 * bar4::SMPT_COUNT;
const SPAD_END: u64 = bar4::SPAD0 + 4 * bar4::SPAD_COUNT;
/// Doorbells are 4 bytes apart, as Linux's `mic_x100.c` rings them.
const DOORBELL_STRIDE: u64 = 4;
const DOORBELL_END: u64 = bar4::SDBIC0 + DOORBELL_STRIDE * bar4::SDBIC_COUNT;
const DMA_END: u64 = bar4::DMA + bar4::DMA_STRIDE * bar4::HOST_DMA_CHANNELS as u64;

/// The device as the vfio-user server sees it.
pub(super) struct Port(pub(super) Arc<Device>);

impl Deref for Port {
    type Target = Arc<Device>;

    fn deref(&self) -> &Arc<Device> {
        &self.0
    }
}

impl Function for Port {
    fn attach(&self) {
        self.connected.store(true, Ordering::Release);
        self.tell_host(true);
    }

    fn detach(&self) {
        self.connected.store(false, Ordering::Release);
        self.reset();
        lock(&self.interrupts).set_vector(None);
        self.dma_unmap_all();
    }

    fn bar_read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Result<(), Errnum> {
        match bar {
            pci::BAR_APERTURE if self.memory.contains(offset, to.len() as u64) => {
                self.memory.read(offset, to);
                Ok(())
            }
            pci::BAR_MMIO if to.len() == 4 && offset.is_multiple_of(4) => {
                to.copy_from_slice(&self.register(offset).to_le_bytes());
                Ok(())
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn bar_write(&self, bar: u32, offset: u64, from: &[u8]) -> Result<(), Errnum> {
        match (bar, <[u8; 4]>::try_from(from)) {
            (pci::BAR_APERTURE, _) if self.memory.contains(offset, from.len() as u64) => {
                self.memory.write(offset, from);
                Ok(())
            }
            (pci::BAR_MMIO, Ok(bytes)) if offset.is_multiple_of(4) => {
                self.set_register(offset, u32::from_le_bytes(bytes));
                Ok(())
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn dma_map(&self, iova: u64, len: u64, fd: OwnedFd, offset: u64) -> Result<(), Errnum> {
        let end = iova.checked_add(len).ok_or(libc::EINVAL)?;
        if len == 0 {
            return Err(libc::EINVAL);
        }
        if !leaves_descriptors(&fd) {
            return Err(libc::EMFILE);
        }
        let region = self.engine.add_region(fd, offset, len);
        let region = region.map_err(|e| e.errno())?;
        let mut windows = lock(&self.windows);
        let below = windows.range(..end).next_back();
        let overlaps = below.is_some_and(|(start, window)| start + window.len > iova);
        if overlaps || windows.len() == WINDOWS_MAX {
            drop(windows);
            self.engine.remove_region(region);
            return Err(if overlaps { libc::EEXIST } else { libc::ENOSPC });
        }
        let shown = Weak::new();
        windows.insert(iova, Window { len, region, shown });
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Errnum> {
        let mut windows = lock(&self.windows);
        if windows.get(&iova).is_none_or(|window| window.len != len) {
            return Err(libc::ENOENT);
        }
        let window = windows.remove(&iova);
        drop(windows);
        window
            .iter()
            .for_each(|w| self.engine.remove_region(w.region));
        Ok(())
    }

    fn dma_unmap_all(&self) {
        let windows = std::mem::take(&mut *lock(&self.windows));
        windows
            .values()
            .for_each(|w| self.engine.remove_region(w.region));
    }

    fn set_vector(&self, _vector: u32, event: Option<OwnedFd>) {
        lock(&self.interrupts).set_vector(event);
    }

    fn mask_vectors(&self, is_masked: bool) {
        lock(&self.interrupts).mask_function(is_masked);
    }

    fn reset(&self) {
        self.reset_function();
    }
}

impl Device {
    /// On return no DMA of the host's goes on: a batch that has begun ends in the memory of the
    /// host that asked for it, not in that of the next.
    fn reset_function(&self) {
        self.channels.iter().for_each(|c| lock(c).reset());
        for (channel, idle) in self.channels.iter().zip(&self.idle) {
            let over = idle.wait_while(lock(channel), |channel| channel.running());
            drop(over.expect("no state is left half-changed"));
        }
        self.tell_host(false);
        lock(&self.interrupts).reset();
        *lock(&self.smpt) = Smpt::default();
        self.empty_rings();
        if self.host_connected() {
            self.tell_host(true);
        }
    }

    fn register(&self, offset: u64) -> u32 {
        match offset {
            bar4::SPAD0..SPAD_END => lock(&self.spads)[(offset - bar4::SPAD0) as usize / 4],
            bar4::SICR0 => lock(&self.interrupts).cause,
            bar4::SICE0 => lock(&self.interrupts).enabled,
            bar4::DCR => self.channel_control(),
            bar4::SMPT00..SMPT_END => lock(&self.smpt).read(word(offset, bar4::SMPT00)),
            TABLE_START..TABLE_END => lock(&self.interrupts).table(word(offset, TABLE_START)),
            PENDING => lock(&self.interrupts).pending_bits(),
            bar4::DMA..DMA_END => {
                let (channel, register) = channel_register(offset);
                lock(&self.channels[channel]).read(register)
            }
            _ => 0,
        }
    }

    fn set_register(self: &Arc<Self>, offset: u64, value: u32) {
        match offset {
            bar4::SICE0 => lock(&self.interrupts).enable(value),
            bar4::SICR0 | bar4::SICC0 => lock(&self.interrupts).cause &= !value,
            bar4::RGCR if value & bar4::RGCR_RESET != 0 => self.reset_function(),
            bar4::SDBIC0..DOORBELL_END => {
                let index = (offset - bar4::SDBIC0) / DOORBELL_STRIDE;
                let doorbell = lock(&self.doorbells)[index as usize].clone();
                doorbell.iter().for_each(|ring| ring());
            }
            bar4::DCR => self.set_channel_control(value),
            bar4::SMPT00..SMPT_END => lock(&self.smpt).write(word(offset, bar4::SMPT00), value),
            TABLE_START..TABLE_END => {
                lock(&self.interrupts).set_table(word(offset, TABLE_START), value);
            }
            bar4::DMA..DMA_END => {
                let (channel, register) = channel_register(offset);
                lock(&self.channels[channel]).write(register, value);
                self.run_channel(channel);
            }
            _ => {}
        }
    }

    fn channel_control(&self) -> u32 {
        let host = self.channels.iter().enumerate();
        let host = host.map(|(c, channel)| {
            1 << (2 * c) | u32::from(lock(channel).is_enabled()) << (2 * c + 1)
        });
        // The card's own are always enabled.
        let card = (bar4::HOST_DMA_CHANNELS..bar4::DMA_CHANNELS).map(|c| 2 << (2 * c));
        host.chain(card).sum()
    }

    fn set_channel_control(self: &Arc<Self>, value: u32) {
        for (c, channel) in self.channels.iter().enumerate() {
            lock(channel).enable(value >> (2 * c + 1) & 1 != 0);
            self.run_channel(c);
        }
    }

    /// Works on a channel of the host's until it is idle, halted, or waits for the engine.
    fn run_channel(self: &Arc<Self>, index: usize) {
        loop {
            let mut channel = lock(&self.channels[index]);
            let batch = channel.next(|address| self.read_descriptor(address));
            self.raise_for(index, &mut channel);
            drop(channel);
            let Some(batch) = batch else { return };
            let mut copies = Vec::with_capacity(batch.descriptors.len());
            let mut refused = None;
            for descriptor in &batch.descriptors {
                match self.resolve(descriptor) {
                    Ok(copy) => copies.push(copy),
                    Err(why) => {
                        refused = Some((copies.len(), why));
                        break;
                    }
                }
            }
            let verdict = move |result: Result<(), CopyError>| match result {
                Ok(()) => refused,
                Err(e) => Some((e.index, error::COPY)),
            };
            if let Some(result) = self.engine.try_now(index, &copies) {
                self.finish_batch(index, &batch, verdict(result));
                continue;
            }
            let device = self.clone();
            let done = move |result| {
                device.finish_batch(index, &batch, verdict(result));
                device.run_channel(index);
            };
            self.engine.submit(index, &copies, Box::new(done));
            return;
        }
    }

    fn read_descriptor(&self, address: u64) -> Option<[u8; DESCRIPTOR_BYTES]> {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let at = self.locate(address, DESCRIPTOR_BYTES as u64)?;
        self.engine.read(at, &mut bytes).then_some(bytes)
    }

    /// `failed`: which of the batch, and why.
    fn finish_batch(&self, index: usize, batch: &Batch, failed: Option<(usize, u32)>) {
        let done = failed.map_or(batch.descriptors.len(), |(which, _)| which);
        // Raised before the channel is let go of: a cause after a reset would be for nobody.
        let mut channel = lock(&self.channels[index]);
        channel.finished(batch, done, failed.map(|(_, why)| why));
        self.raise_for(index, &mut channel);
        self.idle[index].notify_all();
    }

    fn raise_for(&self, index: usize, channel: &mut Channel) {
        if channel.take_interrupt() {
            self.raise(cause::DMA0 << index);
        }
    }
}

/// Windows hold descriptors. A quarter of those that the process may have stays for everything else.
/// A new descriptor has the lowest free number (open(2)), so its number tells how many there are.
fn leaves_descriptors(fd: &OwnedFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (fd.as_raw_fd() as u64) < limit - limit / 4
}

/// Which of the 32-bit registers from `start` on.
fn word(offset: u64, start: u64) -> usize {
    ((offset - start) / 4) as usize
}

fn channel_register(offset: u64) -> (usize, u64) {
    let at = offset - bar4::DMA;
    ((at / bar4::DMA_STRIDE) as usize, at % bar4::DMA_STRIDE)
}
