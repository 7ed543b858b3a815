//! Memory of windows: of host programs, for cards and for each other, and of cards, for host programs
//! and other cards.
//!
//! | the window is of | and is used by | which sees it at |
//! |---|---|---|
//! | a host program | a card | a DMA address that is mapped for that card |
//! | a host program | a host program | an address that stands for the pool and the place in it |
//! | a card | a host program | its card-physical address: BAR0 |
//! | a card | another card | a DMA address: BAR0 of the one is mapped for the other |
//!
//! A host program's window is a part of its pool, or of a file that it shares with others. Such a file may
//! become shorter at any time: unless it can be sealed against that, it is read and written, here and by a card's
//! DMA engine, and not mapped.
//!
//! What must stay true: a segment lies in memory that is there, whatever a card says.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Weak},
};

use rustix::{
    fs::{FileType, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat},
    io::pwrite,
};
use snaprig_pci::host::Mapping;
use snaprig_wire::{
    dma::HOST_BASE,
    scif::{Body, Extent, HOST, Message, NodeId, PAGE, Way},
};

use super::{
    Shared, State,
    cards::Attachment,
    protocol::{SEGMENTS_MAX, Segment},
};
use crate::node::{BackingId, EndpointId};

/// Addresses of windows between host programs end here.
const LOOPBACK_END: u64 = 1 << 40;

/// A program's registered pages, each at its address; or a file that it shares.
pub(super) struct Pool {
    id: u64,
    file: OwnedFd,
    /// Device, inode, and how the file is open.
    what: (u64, u64, OFlags),
    /// It never becomes shorter: whoever has it mapped is safe.
    is_sealed: bool,
}

/// What a backing of a host program's window is.
pub(super) struct Backing {
    /// Where cards have it mapped.
    attachment: Option<Attachment>,
    address: u64,
}

/// A window of a host program that another host program, or a signal, can find.
pub(super) struct HostWindow {
    len: u64,
    pool: Arc<Pool>,
    offset: u64,
}

/// BAR0 of a card, as a file.
pub(super) struct Aperture {
    id: u64,
    file: OwnedFd,
    offset: u64,
    len: u64,
}

#[derive(Default)]
pub(super) struct Windows {
    backings: BTreeMap<BackingId, Backing>,
    /// By the node that uses them, and the address there.
    by_address: BTreeMap<(NodeId, u64), HostWindow>,
    pools: BTreeMap<u64, Weak<Pool>>,
    pool_of: BTreeMap<EndpointId, Arc<Pool>>,
}

impl State {
    /// The memory of an endpoint's program.
    pub(super) fn pool(&mut self, endpoint: EndpointId, file: OwnedFd) -> Result<(), i32> {
        let pool = self.known(file)?;
        if !pool.is_sealed {
            return Err(libc::EINVAL);
        }
        self.windows.pool_of.insert(endpoint, pool);
        Ok(())
    }

    /// A file that a program shares with its peers, as it was known before.
    fn known(&mut self, file: OwnedFd) -> Result<Arc<Pool>, i32> {
        let stat = fstat(&file).map_err(|_| libc::EINVAL)?;
        let flags = fcntl_getfl(&file).map_err(|_| libc::EINVAL)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(libc::EINVAL);
        }
        // Files of a disk have no seals.
        let is_sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let what = (stat.st_dev, stat.st_ino, flags & OFlags::RWMODE);
        self.windows.pools.retain(|_, pool| pool.strong_count() > 0);
        let mut known = self.windows.pools.values().filter_map(Weak::upgrade);
        let known = known.find(|pool| pool.what == what && pool.is_sealed == is_sealed);
        let id = self.number();
        let pool = known.unwrap_or_else(|| {
            Arc::new(Pool {
                id,
                file,
                what,
                is_sealed,
            })
        });
        self.windows.pools.insert(pool.id, Arc::downgrade(&pool));
        Ok(pool)
    }

    pub(super) fn forget_pool(&mut self, endpoint: EndpointId) {
        self.windows.pool_of.remove(&endpoint);
    }

    /// Makes a part of the endpoint's pool a window for its peer.
    pub(super) fn register_pages(
        &mut self,
        endpoint: EndpointId,
        address: u64,
        len: u64,
    ) -> Result<(Vec<Extent>, BackingId), i32> {
        self.node.check_connected(endpoint)?;
        let pool = self.windows.pool_of.get(&endpoint).cloned();
        self.register_in(endpoint, pool.ok_or(libc::EBADF)?, address, len)
    }

    /// Makes a part of a file that the endpoint's program shares a window for its peer.
    pub(super) fn register_file(
        &mut self,
        endpoint: EndpointId,
        file: Option<OwnedFd>,
        at: u64,
        len: u64,
    ) -> Result<(Vec<Extent>, BackingId), i32> {
        self.node.check_connected(endpoint)?;
        let file = file.ok_or(libc::EBADF)?;
        let peer = self.node.peer(endpoint);
        if peer.is_some_and(|peer| peer.node != HOST) {
            // A card copies faster what cannot become shorter, and its programs can map it. A memfd that was made
            // without MFD_ALLOW_SEALING, and any other file, cannot be kept from it.
            let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
        }
        let pool = self.known(file)?;
        self.register_in(endpoint, pool, at, len)
    }

    fn register_in(
        &mut self,
        endpoint: EndpointId,
        pool: Arc<Pool>,
        address: u64,
        len: u64,
    ) -> Result<(Vec<Extent>, BackingId), i32> {
        let bytes = fstat(&pool.file).map_err(|_| libc::EINVAL)?.st_size as u64;
        let inside = address.checked_add(len).is_some_and(|end| end <= bytes);
        if len == 0 || !(address | len).is_multiple_of(PAGE) || !inside {
            return Err(libc::EINVAL);
        }
        let peer = self.node.peer(endpoint).ok_or(libc::ENOTCONN)?.node;
        let (extents, backing) = match peer {
            HOST => self.register_here(len)?,
            _ => self.map_for_card(peer, &pool.file, address, len)?,
        };
        let window = HostWindow {
            len,
            pool,
            offset: address,
        };
        if let Some(extent) = extents.first() {
            let key = (peer, extent.address);
            self.windows.by_address.insert(key, window);
        }
        Ok((extents, backing))
    }

    fn register_here(&mut self, len: u64) -> Result<(Vec<Extent>, BackingId), i32> {
        let mut address = PAGE;
        for ((_, start), window) in self.windows.by_address.range((HOST, 0)..=(HOST, u64::MAX)) {
            if start.saturating_sub(address) >= len {
                break;
            }
            address = start + window.len;
        }
        if address
            .checked_add(len)
            .is_none_or(|end| end > LOOPBACK_END)
        {
            return Err(libc::ENOMEM);
        }
        let backing = self.number();
        let attachment = None;
        let entry = Backing {
            attachment,
            address,
        };
        self.windows.backings.insert(backing, entry);
        Ok((vec![Extent { address, len }], backing))
    }

    /// Maps memory for the DMA engine of a card.
    pub(super) fn map_for_card(
        &mut self,
        node: NodeId,
        file: &OwnedFd,
        offset: u64,
        len: u64,
    ) -> Result<(Vec<Extent>, BackingId), i32> {
        let card = self.cards.get(&node).ok_or(libc::EOPNOTSUPP)?;
        let address = card.mic.map(file.as_fd(), offset, len).map_err(|error| {
            tracing::warn!(%error, "a window cannot be mapped for DMA");
            libc::ENOMEM
        })?;
        let attachment = Some(Attachment {
            node,
            number: card.number,
        });
        let backing = self.number();
        let entry = Backing {
            attachment,
            address,
        };
        self.windows.backings.insert(backing, entry);
        Ok((vec![Extent { address, len }], backing))
    }

    pub(super) fn release(&mut self, backing: BackingId) {
        let Some(backing) = self.windows.backings.remove(&backing) else {
            return;
        };
        let node = backing.attachment.map_or(HOST, |a| a.node);
        self.windows.by_address.remove(&(node, backing.address));
        if let Some(attachment) = backing.attachment
            && let Some(card) = self.cards.get(&attachment.node)
            && card.number == attachment.number
        {
            // On a dead card there is nothing to unmap.
            let _ = card.mic.unmap(backing.address);
        }
    }

    /// Where a program finds its peer's memory: as much from the start as fits an answer.
    pub(super) fn segments(
        &self,
        endpoint: EndpointId,
        extents: &[Extent],
    ) -> Result<Vec<Segment>, i32> {
        let peer = self.node.peer(endpoint).ok_or(libc::ECONNRESET)?.node;
        let mut segments: Vec<Segment> = Vec::new();
        for extent in extents {
            let next = match peer {
                HOST => self.segment_here(*extent),
                _ => self.segment_of_card(peer, *extent),
            };
            let next = next.ok_or(libc::EOPNOTSUPP)?;
            let is_full = segments.len() == SEGMENTS_MAX;
            match segments.last_mut() {
                Some(last)
                    if last.memory == next.memory && last.offset + last.len == next.offset =>
                {
                    last.len += next.len;
                }
                _ if is_full => break,
                _ => segments.push(next),
            }
        }
        Ok(segments)
    }

    fn segment_here(&self, Extent { address, len }: Extent) -> Option<Segment> {
        let (window, skip) = self.window_at(HOST, address, len)?;
        Some(Segment {
            memory: window.pool.id,
            offset: window.offset + skip,
            len,
        })
    }

    fn segment_of_card(&self, node: NodeId, Extent { address, len }: Extent) -> Option<Segment> {
        let card = self.cards.get(&node).filter(|card| card.dead.is_none())?;
        let aperture = card.aperture.as_ref()?;
        let inside = address
            .checked_add(len)
            .is_some_and(|end| end <= aperture.len);
        inside.then_some(Segment {
            memory: aperture.id,
            offset: aperture.offset + address,
            len,
        })
    }

    /// The file that has the lanes of an endpoint's connection, and where: those of a card that lives.
    pub(super) fn lanes_file(&self, endpoint: EndpointId, at: Extent) -> Option<(OwnedFd, u64)> {
        let node = self.node.peer(endpoint)?.node;
        let segment = self.segment_of_card(node, at)?;
        let (file, _) = self.memory(segment.memory)?;
        segment
            .offset
            .is_multiple_of(PAGE)
            .then_some((file, segment.offset))
    }

    fn window_at(&self, node: NodeId, address: u64, len: u64) -> Option<(&HostWindow, u64)> {
        let mut before = self.windows.by_address.range((node, 0)..=(node, address));
        let ((_, start), window) = before.next_back()?;
        let skip = address - start;
        let inside = skip.checked_add(len).is_some_and(|end| end <= window.len);
        inside.then_some((window, skip))
    }

    /// A file that a segment names, and whether it may be mapped without a care.
    pub(super) fn memory(&self, id: u64) -> Option<(OwnedFd, bool)> {
        let pool = self.windows.pools.get(&id).and_then(Weak::upgrade);
        if let Some(pool) = pool {
            return Some((pool.file.try_clone().ok()?, pool.is_sealed));
        }
        let mut apertures = self
            .cards
            .values()
            .filter_map(|card| card.aperture.as_ref());
        let aperture = apertures.find(|aperture| aperture.id == id)?;
        Some((aperture.file.try_clone().ok()?, true))
    }

    /// A signal into a window of a host program.
    pub(super) fn poke(&self, peer: NodeId, address: u64, bytes: &[u8]) {
        let Some((window, skip)) = self.window_at(peer, address, bytes.len() as u64) else {
            return;
        };
        let at = window.offset + skip;
        if !window.pool.is_sealed {
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            // There is nobody to be told that the file has become shorter.
            let _ = pwrite(&window.pool.file, bytes, at);
            return;
        }
        let page = at / PAGE * PAGE;
        let Ok(mapping) = Mapping::of_memfd(window.pool.file.as_fd(), page, PAGE) else {
            return;
        };
        let Some(to) = mapping.pointer(at - page, bytes.len() as u64) else {
            return;
        };
        // Seen after what the RMA before it wrote, and whole where it is aligned.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let value: Result<[u8; 8], _> = bytes.try_into();
        match value {
            Ok(value) if to.as_ptr().addr().is_multiple_of(8) => {
                // SAFETY: `pointer` says that eight bytes from there on are inside the mapping, which lives until the
                // end of this function, and they are aligned, as was checked. Other processes may read them at the same
                // time, hence a volatile store, which is one instruction.
                unsafe {
                    to.as_ptr()
                        .cast::<u64>()
                        .write_volatile(u64::from_le_bytes(value))
                };
            }
            _ => {
                let _ = mapping.write(at - page, bytes);
            }
        }
    }

    /// What a card's driver says of BAR0.
    pub(super) fn aperture(&mut self, mic: &snaprig_pci::mic::Mic) -> Option<Aperture> {
        let id = self.number();
        let (file, offset) = mic.memory_file()?;
        let len = mic.memory_bytes();
        Some(Aperture {
            id,
            file,
            offset,
            len,
        })
    }

    /// A message from card to card: windows of the one are elsewhere for the other. False: the sender
    /// lies, or it cannot be done.
    pub(super) fn translate(&mut self, message: &mut Message) -> bool {
        let (from, to) = (message.from.node, message.to.node);
        let extents = match &mut message.body {
            Body::Window { extents, .. } => extents.as_mut_slice(),
            Body::Connect(Way::Lanes(extent)) | Body::Accepted(Way::Lanes(extent)) => {
                std::slice::from_mut(extent)
            }
            _ => return true,
        };
        if from == HOST || to == HOST {
            return true;
        }
        let Some((base, len)) = self.reach(from, to) else {
            return false;
        };
        extents.iter_mut().all(|extent| {
            let end = extent.address.checked_add(extent.len);
            let inside = end.is_some_and(|end| end <= len);
            extent.address = extent.address.saturating_add(base);
            inside
        })
    }

    /// Where card `to` sees the memory of card `from`, and how much there is of it.
    fn reach(&mut self, from: NodeId, to: NodeId) -> Option<(u64, u64)> {
        let of = self.cards.get(&from).filter(|card| card.dead.is_none())?;
        let aperture = of.aperture.as_ref()?;
        let target = self.cards.get(&to).filter(|card| card.dead.is_none())?;
        let len = aperture.len;
        if let Some((_, base)) = target.others.get(&from).filter(|(n, _)| *n == of.number) {
            return Some((*base, len));
        }
        let mapped = target.mic.map(aperture.file.as_fd(), aperture.offset, len);
        let base = match mapped {
            Ok(base) => base,
            Err(error) => {
                tracing::warn!(%error, from, to, "a card cannot reach another's memory");
                return None;
            }
        };
        let number = of.number;
        let former = self.cards.get_mut(&to)?.others.insert(from, (number, base));
        if let Some((_, base)) = former {
            self.unmap_on(to, base);
        }
        (base >= HOST_BASE).then_some((base, len))
    }

    /// Nobody sees a card's memory any more.
    pub(super) fn unreach(&mut self, from: NodeId) {
        let nodes: Vec<_> = self.cards.keys().copied().collect();
        for to in nodes {
            let card = self.cards.get_mut(&to);
            if let Some((_, base)) = card.and_then(|card| card.others.remove(&from)) {
                self.unmap_on(to, base);
            }
        }
    }

    fn unmap_on(&self, node: NodeId, address: u64) {
        if let Some(card) = self.cards.get(&node) {
            // On a dead card there is nothing to unmap.
            let _ = card.mic.unmap(address);
        }
    }
}

/// Waits for the end of a mapping: its program closes the socket, or ends.
pub(super) fn watch_mapping(shared: &Arc<Shared>, mapping: u64, socket: Arc<OwnedFd>) {
    let shared = shared.clone();
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(
            rustix::net::recv(&socket, &mut byte[..], rustix::net::RecvFlags::empty()),
            Ok((1.., _)) | Err(rustix::io::Errno::INTR)
        ) {}
        let mut state = shared.lock();
        state.holders.remove(&mapping);
        state.step(&shared, crate::node::Input::Unmapped(mapping));
        drop(state);
        // The program waits for this.
        drop(socket);
    });
}
