//! Memory of programs, page by page, windows of it, and what RMA has to do with them: exactly what
//! was asked for, in memory that is not given back.

use std::collections::BTreeMap;

use snaprig_scif::node::BackingId;
use snaprig_wire::{
    dma::Descriptor,
    scif::{Extent, NodeId, PAGE},
};

/// A cache line.
const LINE: u64 = 64;

/// Memory for a window, or for RMA without one.
#[derive(Debug)]
struct Backing {
    /// Where it is.
    node: NodeId,
    /// Its pages, as DMA sees them.
    extents: Vec<Extent>,
    bytes: Vec<u8>,
    /// Nobody may use it any more.
    released: bool,
    /// Its node is gone, and it with it.
    lost: bool,
    /// A node has it, and has to give it back.
    registered: bool,
}

/// A window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its memory.
    pub backing: BackingId,
    /// When its program heard that it is registered: u64::MAX, if it has not yet.
    pub since_ns: u64,
    /// What may be done with it.
    pub prot: u8,
    /// It is being unregistered.
    pub going: bool,
}

/// A part of a backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    backing: BackingId,
    at: u64,
    len: u64,
}

/// All memory.
#[derive(Default)]
pub struct Memory {
    backings: BTreeMap<BackingId, Backing>,
    /// By address: whose extent begins there, and where in it.
    extents: BTreeMap<u64, (BackingId, u64, u64)>,
    next_page: u64,
}

impl Memory {
    /// New memory, whose bytes tell where they come from.
    pub fn allocate(&mut self, node: NodeId, pages: u64, whole: bool) -> BackingId {
        let id = self.backings.len() as BackingId + 1;
        let lens = match whole {
            true => vec![pages * PAGE],
            false => vec![PAGE; pages as usize],
        };
        let (mut extents, mut at) = (Vec::new(), 0);
        for len in lens {
            // Nothing lies beside it.
            self.next_page += 2 + len / PAGE;
            let address = (self.next_page - len / PAGE) * PAGE;
            self.extents.insert(address, (id, at, len));
            extents.push(Extent { address, len });
            at += len;
        }
        let byte = |at: u64| (at ^ (at >> 8) ^ (id * 37)) as u8;
        let backing = Backing {
            node,
            extents,
            bytes: (0..at).map(byte).collect(),
            released: false,
            lost: false,
            registered: false,
        };
        self.backings.insert(id, backing);
        id
    }

    fn get(&self, id: BackingId) -> Option<&Backing> {
        self.backings.get(&id)
    }

    /// Its pages, as DMA sees them.
    pub fn extents(&self, id: BackingId) -> Vec<Extent> {
        let backing = self.backings.get(&id);
        backing.map_or(Vec::new(), |backing| backing.extents.clone())
    }

    /// Bytes of a backing.
    pub fn len(&self, id: BackingId) -> u64 {
        let backing = self.backings.get(&id);
        backing.map_or(0, |backing| backing.bytes.len() as u64)
    }

    /// A node is given a backing.
    pub fn register(&mut self, id: BackingId) {
        let backing = self.backings.get_mut(&id);
        backing.into_iter().for_each(|one| one.registered = true);
    }

    /// A backing is given back; whether it was in use.
    pub fn release(&mut self, id: BackingId) -> bool {
        let backing = self.backings.get_mut(&id);
        backing.is_some_and(|backing| !std::mem::replace(&mut backing.released, true))
    }

    /// A node is gone.
    pub fn lose(&mut self, node: NodeId) {
        let of_node = |backing: &&mut Backing| backing.node == node;
        let lost = self.backings.values_mut().filter(of_node);
        lost.for_each(|backing| backing.lost = true);
    }

    /// Backings that nobody gave back.
    pub fn left(&self) -> impl Iterator<Item = BackingId> {
        let backings = self.backings.iter();
        let in_use = |one: &Backing| one.registered && !one.released && !one.lost;
        let left = backings.filter(move |(_, backing)| in_use(backing));
        left.map(|(id, _)| *id)
    }

    /// A part of a backing.
    pub fn part(&self, backing: BackingId, at: u64, len: u64) -> Option<Part> {
        let fits = at.checked_add(len)? <= self.len(backing);
        fits.then_some(Part { backing, at, len })
    }

    /// A range of windows, as parts of their memory.
    pub fn range(
        &self,
        windows: &BTreeMap<i64, Window>,
        offset: i64,
        len: u64,
    ) -> Option<Vec<Part>> {
        let (mut at, mut left, mut parts) = (offset, len, Vec::new());
        while left > 0 {
            let (start, window) = windows.range(..=at).next_back()?;
            let skip = (at - start) as u64;
            let len = left.min(self.len(window.backing).checked_sub(skip)?);
            if len == 0 {
                return None;
            }
            parts.push(self.part(window.backing, skip, len)?);
            (at, left) = (at + len as i64, left - len);
        }
        Some(parts)
    }

    /// Whether the node of one of these is gone.
    pub fn is_lost(&self, parts: &[Part]) -> bool {
        let lost = |part: &Part| self.get(part.backing).is_none_or(|backing| backing.lost);
        parts.iter().any(lost)
    }

    /// What is at this address, if that is in one of these parts: where in its backing, and where in all of them.
    fn find(&self, parts: &[Part], address: u64, len: u64) -> Option<(BackingId, usize, u64)> {
        let (start, (id, at, extent)) = self.extents.range(..=address).next_back()?;
        let (skip, at) = (address - start, at + (address - start));
        let inside =
            |part: &Part| part.backing == *id && part.at <= at && at + len <= part.at + part.len;
        let nth = parts.iter().position(inside)?;
        let before: u64 = parts[..nth].iter().map(|part| part.len).sum();
        let is_here = skip + len <= *extent;
        is_here.then_some((*id, at as usize, before + at - parts[nth].at))
    }

    /// How copies are not the ones that were asked for: each byte of these parts once, to its place in those. The
    /// last cache line by itself, if that is to come last.
    pub fn check(
        &self,
        copies: &[Descriptor],
        from: &[Part],
        to: &[Part],
        ordered: bool,
    ) -> Result<(), String> {
        let mut due = 0;
        for copy in copies {
            let len = u64::from(copy.len);
            let places = [(from, copy.src), (to, copy.dst)];
            let places = places.map(|(parts, address)| self.find(parts, address, len));
            let [Some((.., src)), Some((.., dst))] = places else {
                return Err(format!("{copy:?} is outside of {from:?} and {to:?}"));
            };
            if (src, dst) != (due, due) {
                return Err(format!("{copy:?} is not byte {due} of {from:?} and {to:?}"));
            }
            due += len;
        }
        let all: u64 = from.iter().map(|part| part.len).sum();
        if due != all {
            return Err(format!("{due} of {all} bytes of {from:?} are copied"));
        }
        let is_line = |copy: &Descriptor| {
            let last = copy.src + u64::from(copy.len.max(1)) - 1;
            copy.src / LINE == last / LINE
        };
        match ordered && !copies.last().is_none_or(is_line) {
            true => Err(format!(
                "{copies:?}: the last cache line does not come last"
            )),
            false => Ok(()),
        }
    }

    /// Copies, with one bit wrong or none; how that must not be.
    pub fn copy(
        &mut self,
        copy: &Descriptor,
        from: &[Part],
        to: &[Part],
        flip: Option<u64>,
    ) -> Result<(), String> {
        for part in from.iter().chain(to) {
            if self
                .get(part.backing)
                .is_none_or(|backing| backing.released)
            {
                return Err(format!("RMA with {part:?}, which was given back"));
            }
        }
        let len = u64::from(copy.len);
        let places = (self.find(from, copy.src, len), self.find(to, copy.dst, len));
        let (Some((src, src_at, _)), Some((dst, dst_at, _))) = places else {
            return Err(format!("{copy:?} is outside of {from:?} and {to:?}"));
        };
        let bytes = self.get(src).map_or(&[][..], |backing| &backing.bytes);
        let mut bytes = bytes[src_at..][..len as usize].to_vec();
        if let Some(bit) = flip {
            crate::links::flip(&mut bytes, bit);
        }
        if let Some(backing) = self.backings.get_mut(&dst) {
            backing.bytes[dst_at..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Writes a value; how it does not belong there.
    pub fn poke(&mut self, parts: &[Part], address: u64, bytes: &[u8]) -> Result<(), String> {
        let found = self.find(parts, address, bytes.len() as u64);
        let Some((id, at, _)) = found else {
            return Err(format!("a signal at {address:#x} is outside of {parts:?}"));
        };
        match self.backings.get_mut(&id) {
            Some(backing) if !backing.released => {
                backing.bytes[at..][..bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            _ => Err(format!("a signal into {parts:?}, which was given back")),
        }
    }
}
