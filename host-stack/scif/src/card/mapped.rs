//! scif_mmap(3) on a card: mmap(2) of an endpoint.
//!
//! | the peer is | its pages are |
//! |---|---|
//! | on this card | frames of card memory, pinned by its window |
//! | on the host, or on another card | what the host has mapped for this card's DMA engine: [`Device::show`] |
//!
//! The kernel keeps a [`Mapping`] for as long as a page of it may be seen: until it is unmapped, the program
//! ends or executes another. What must stay true: the node hears of that end before any later call of a
//! program; it may come under the kernel's lock, where nobody can be woken, so another thread sees to that.
//!
//! [`Device::show`]: snaprig_card_device::Device::show

use std::sync::Arc;

use snaprig_card_driver::{device::DeviceMemory, errno::Errno, file::Cx, wait::SysResult};
use snaprig_card_memory::shown::Shown;
use snaprig_wire::{dma::HOST_BASE, scif::Extent};

use super::{Driver, Inner, file::ScifFile, lock};
use crate::node::{Input, MappingId, Op, Value};

/// What a program has mapped of its peer's.
struct Mapping {
    driver: Arc<Driver>,
    id: MappingId,
    shown: Vec<Arc<Shown>>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.shown.clear();
        lock(&self.driver.unmapped).push(self.id);
        let driver = Arc::downgrade(&self.driver);
        // The engine's thread holds no lock of the kernel's.
        let wake = move |_| {
            if let Some(driver) = driver.upgrade() {
                let mut inner = driver.lock();
                driver.flush(&mut inner);
                driver.wake(inner);
            }
        };
        self.driver.device.dma(Vec::new(), Box::new(wake));
    }
}

impl Driver {
    /// Tells the node of mappings that have ended.
    pub(super) fn tell_unmapped(self: &Arc<Self>, inner: &mut Inner) {
        let unmapped = std::mem::take(&mut *lock(&self.unmapped));
        for mapping in unmapped {
            self.step(inner, Input::Unmapped(mapping));
        }
    }

    /// Where the pages behind an extent of a peer's window are for this card's programs.
    fn pages(
        &self,
        is_here: bool,
        Extent { address, len }: Extent,
        shown: &mut Vec<Arc<Shown>>,
    ) -> Result<(u64, u64), Errno> {
        let inside = !is_here || self.device.memory().contains(address, len);
        // What is below is this card's, and nobody else has windows there. The memory of a peer that is gone is, too,
        // before this card is told.
        if is_here != (address < HOST_BASE) || !inside {
            return Err(Errno::ECONNRESET);
        }
        if is_here {
            return Ok((address, len));
        }
        let (at, one) = self
            .device
            .show(address, len)
            .map_err(|errno| match errno {
                libc::ENXIO => Errno::ECONNRESET,
                errno => Errno(errno),
            })?;
        if shown.last().is_none_or(|last| !Arc::ptr_eq(last, &one)) {
            shown.push(one);
        }
        Ok((at, len))
    }
}

impl ScifFile {
    /// The lanes of the connection ([`ioctl::LANES`](snaprig_wire::scif::ioctl::LANES)).
    pub(super) fn map_lanes(&self, cx: &mut Cx) -> SysResult<DeviceMemory> {
        let (id, extents) = match self.request(cx, |_, _| Ok(Op::MapLanes))? {
            Value::Lanes { mapping, extents } => (mapping, extents),
            _ => return Err(Errno::EPROTO.into()),
        };
        // From now on the driver says in them when they are over.
        self.lanes()?;
        match id {
            Some(id) => self.mapped(id, extents),
            None => Ok(self.driver.own_pages(&extents)),
        }
    }

    pub(super) fn map_window(
        &self,
        cx: &mut Cx,
        offset: u64,
        len: u64,
        prot: i32,
    ) -> SysResult<DeviceMemory> {
        let (offset, prot) = (offset as i64, prot as u8);
        let (id, extents) = match self.request(cx, |_, _| Ok(Op::Map { offset, len, prot }))? {
            Value::Mapped { mapping, extents } => (mapping, extents),
            _ => return Err(Errno::EPROTO.into()),
        };
        self.mapped(id, extents)
    }

    /// Memory of the peer's.
    fn mapped(&self, id: MappingId, extents: Vec<Extent>) -> SysResult<DeviceMemory> {
        let driver = self.driver.clone();
        let mut mapping = Mapping {
            driver: driver.clone(),
            id,
            shown: Vec::new(),
        };
        let endpoint = self.endpoint()?;
        let inner = driver.lock();
        let peer = inner.node.peer(endpoint).ok_or(Errno::ECONNRESET)?;
        let is_here = peer.node == inner.id;
        drop(inner);
        let pages = extents
            .into_iter()
            .map(|extent| driver.pages(is_here, extent, &mut mapping.shown));
        let pages: Vec<_> = pages.collect::<Result<_, _>>()?;
        Ok(DeviceMemory::new(pages, Arc::new(mapping)))
    }
}
