//! The pages of an image: which there are, and which have changed since the last one.
//!
//! In the stream, address space `n` starts at `n * SPACE_BYTES`; files come behind all of them
//! (`fs::stored`). Lists are of extents, so that they are short where memory is contiguous.
//!
//! What must stay true: an increment has every page that may differ from the image before it, and names those that are
//! gone. A frame counts as clean only if it was at that address before, no write to it went unseen, and nobody else uses
//! it or tells what it writes; or if it has the checksum of what was said of it. Run functions go on during a pause, so
//! files of the local store that were saved before the image are compared with what was saved, and what was written to
//! them since is in the image.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    ops::Range,
    sync::Arc,
};

use snaprig_card_fs::image::stored::Storing;
use snaprig_card_image::writer::Pages;
use snaprig_card_memory::{CardMemory, PAGE, outside};
use snaprig_image::ImageId;
use xxhash_rust::xxh3::xxh3_64;

use crate::mm::{AddressSpace, Area, Backing};

/// From one address space to the next in the stream: more than a program can address.
pub const SPACE_BYTES: u64 = 1 << 47;

/// Pages next to each other in frames next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Address in the stream.
    pub address: u64,
    /// The first frame.
    pub frame: u64,
    /// How many.
    pub pages: u64,
    /// Whether zeros need not be said.
    pub sparse: bool,
}

impl Extent {
    fn end(&self) -> u64 {
        self.address + self.pages * PAGE
    }

    /// Card memory that it is in.
    pub fn frames(&self) -> Range<u64> {
        self.frame..self.frame + self.pages * PAGE
    }

    /// Its pages.
    pub fn each(self) -> impl Iterator<Item = Self> {
        (0..self.pages).map(move |index| Self {
            address: self.address + index * PAGE,
            frame: self.frame + index * PAGE,
            pages: 1,
            ..self
        })
    }
}

/// Adds an extent behind all others.
fn push(extents: &mut Vec<Extent>, extent: Extent) {
    if let Some(last) = extents.last_mut()
        && last.end() == extent.address
        && last.frame + last.pages * PAGE == extent.frame
        && last.sparse == extent.sparse
    {
        last.pages += extent.pages;
    } else {
        extents.push(extent);
    }
}

/// The pages of address spaces and files, in order. Pages of files that are mapped shared are not the
/// space's, but for those that `is_to_be_saved` picks: number and area of the space, address, frame.
pub fn list(
    spaces: &[&AddressSpace],
    files: &Storing,
    is_to_be_saved: impl Fn(usize, &Area, u64, u64) -> bool,
) -> Vec<Extent> {
    let mut extents = Vec::new();
    for (index, mm) in spaces.iter().enumerate() {
        let base = index as u64 * SPACE_BYTES;
        for (start, area) in mm.areas() {
            let sparse = matches!(area.backing, Backing::Anonymous);
            mm.extents(start, area.end, |va, frame, pages| {
                // Somebody else's, whoever entered it here.
                if frame >= outside::START {
                    return;
                }
                let extent = Extent {
                    address: base + va,
                    frame,
                    pages,
                    sparse,
                };
                if !area.shared {
                    return push(&mut extents, extent);
                }
                for page in extent.each() {
                    if is_to_be_saved(index, area, page.address - base, page.frame) {
                        push(&mut extents, page);
                    }
                }
            });
        }
    }
    files.pages(|address, frame| {
        let extent = Extent {
            address,
            frame,
            pages: 1,
            sparse: true,
        };
        push(&mut extents, extent);
    });
    extents
}

/// An image of a process that the next one builds on.
pub struct Chain {
    /// The image's id, which is known when all of it has been written.
    pub id: ImageId,
    /// What memory was then.
    pub base: Base,
}

/// What memory was when an image was taken of it.
pub struct Base {
    /// The epoch of write tracking that began with the image.
    pub epoch: u32,
    /// The image's pages.
    pub extents: Vec<Extent>,
    /// Those that others may write to.
    pub said: Said,
}

/// By address, the checksum of what was said of a page.
pub type Said = BTreeMap<u64, u64>;

/// The checksum of what is in a frame.
pub fn checksum(memory: &CardMemory, frame: u64) -> u64 {
    let mut page = [0; PAGE as usize];
    memory.read(frame, &mut page);
    xxh3_64(&page)
}

impl Base {
    /// Runs of its pages that are not among those of `now`: address, and how many.
    pub fn gone(&self, now: &[Extent]) -> Vec<(u64, u64)> {
        let mut gone: Vec<(u64, u64)> = Vec::new();
        let mut left = now.iter().peekable();
        for extent in &self.extents {
            let mut at = extent.address;
            while at < extent.end() {
                while left.next_if(|other| other.end() <= at).is_some() {}
                let until = left
                    .peek()
                    .map_or(extent.end(), |other| other.address.clamp(at, extent.end()));
                if until > at {
                    match gone.last_mut() {
                        Some((start, pages)) if *start + *pages * PAGE == at => {
                            *pages += (until - at) / PAGE;
                        }
                        _ => gone.push((at, (until - at) / PAGE)),
                    }
                }
                at = left
                    .peek()
                    .map_or(extent.end(), |other| other.end().min(extent.end()));
            }
        }
        gone
    }

    /// Those pages of `now` that are not what they were: others are in the same frame at the same
    /// address, and the frame is clean. All of them are to be said, zeros too: what was something
    /// before must be said to be zero.
    pub fn changed(&self, now: &[Extent], is_clean: impl Fn(&Extent) -> bool) -> Vec<Extent> {
        let mut changed = Vec::new();
        let mut saved = self.extents.iter().peekable();
        for page in now.iter().flat_map(|extent| extent.each()) {
            while saved.next_if(|other| other.end() <= page.address).is_some() {}
            let is_saved = saved.peek().is_some_and(|other| {
                other.address <= page.address
                    && other.frame + (page.address - other.address) == page.frame
            });
            if !is_saved || !is_clean(&page) {
                push(
                    &mut changed,
                    Extent {
                        sparse: false,
                        ..page
                    },
                );
            }
        }
        changed
    }
}

/// Pages that are still to be written. Their frames stay theirs until then, whatever becomes of the
/// processes.
pub struct PageQueue {
    memory: Arc<CardMemory>,
    extents: VecDeque<Extent>,
    /// Addresses of those that others may write to.
    open: BTreeSet<u64>,
    /// What was said of them.
    pub said: Said,
}

impl PageQueue {
    /// All of these; to those at the `open` addresses others may write, and nobody says so.
    pub fn new(memory: &Arc<CardMemory>, extents: Vec<Extent>, open: BTreeSet<u64>) -> Self {
        for extent in &extents {
            memory.get_run(extent.frame, extent.pages);
        }
        Self {
            memory: memory.clone(),
            extents: extents.into(),
            open,
            said: Said::new(),
        }
    }

    fn pop(&mut self) {
        if let Some(first) = self.extents.front_mut() {
            self.memory.put(first.frame);
            first.address += PAGE;
            first.frame += PAGE;
            first.pages -= 1;
            if first.pages == 0 {
                self.extents.pop_front();
            }
        }
    }
}

impl Pages for PageQueue {
    type Error = io::Error;

    /// Zeros that need not be said are passed over.
    fn next(&mut self) -> io::Result<Option<u64>> {
        while let Some(first) = self.extents.front() {
            if !first.sparse || !self.memory.is_zero(first.frame) {
                return Ok(Some(first.address));
            }
            self.pop();
        }
        Ok(None)
    }

    fn take(&mut self, address: u64, room: &mut [u8]) -> io::Result<bool> {
        let is_next = self
            .extents
            .front()
            .is_some_and(|first| first.address == address);
        if !is_next || self.next()? != Some(address) {
            return Ok(false);
        }
        self.memory.read(self.extents[0].frame, room);
        if self.open.remove(&address) {
            self.said.insert(address, xxh3_64(room));
        }
        self.pop();
        Ok(true)
    }
}

impl Drop for PageQueue {
    fn drop(&mut self) {
        for extent in &self.extents {
            self.memory.put_run(extent.frame, extent.pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    type Pages = BTreeMap<u64, u64>;

    fn extents(pages: &Pages) -> Vec<Extent> {
        let mut extents = Vec::new();
        for (page, frame) in pages {
            let extent = Extent {
                address: page * PAGE,
                frame: frame * PAGE,
                pages: 1,
                sparse: false,
            };
            push(&mut extents, extent);
        }
        extents
    }

    fn pages_of(extents: &[Extent]) -> Pages {
        let pages = extents.iter().flat_map(|extent| extent.each());
        pages
            .map(|page| (page.address / PAGE, page.frame / PAGE))
            .collect()
    }

    fn some_pages() -> impl Strategy<Value = Pages> {
        // Mostly at the frame of the same number, so that there are long extents.
        let frame = |page: u64| prop_oneof![4 => Just(page), 1 => 0..50u64];
        let page = (0..50u64).prop_flat_map(move |page| (Just(page), frame(page)));
        prop::collection::vec(page, 0..60).prop_map(|pages| pages.into_iter().collect())
    }

    proptest! {
        #[test]
        fn what_is_gone_and_what_has_changed(
            before in some_pages(), now in some_pages(), dirty: BTreeSet<u8>,
        ) {
            prop_assert_eq!(&pages_of(&extents(&now)), &now);
            let base = Base { epoch: 1, extents: extents(&before), said: Said::new() };
            let gone: BTreeSet<u64> = base
                .gone(&extents(&now))
                .into_iter()
                .flat_map(|(address, pages)| (0..pages).map(move |i| address / PAGE + i))
                .collect();
            let missing = before.keys().filter(|page| !now.contains_key(page)).copied();
            prop_assert_eq!(gone, missing.collect());
            let is_dirty = |frame: u64| dirty.contains(&((frame / PAGE) as u8));
            let is_clean = |page: &Extent| !is_dirty(page.frame);
            let differs = |(page, frame): &(&u64, &u64)| {
                before.get(*page) != Some(*frame) || is_dirty(**frame * PAGE)
            };
            let expected: Pages = now.iter().filter(differs).map(|(p, f)| (*p, *f)).collect();
            prop_assert_eq!(pages_of(&base.changed(&extents(&now), is_clean)), expected);
        }
    }
}
