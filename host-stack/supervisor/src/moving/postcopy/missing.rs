//! The pages that a tree runs without: where its address spaces are to have them now, and where they were at the source.
//!
//! ```text
//! source's addresses --> where the space had it when it came --> where mremap(2) has it now, in it and in each child's copy
//! ```
//! What must stay true: a page is asked for by the address that the source knows, and comes to each address at which
//! somebody lacks it, once. What a process has dropped, unmapped, or got otherwise is not lacked: nothing that comes late
//! is put there.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use snaprig_tracee::ranges::Ranges;

/// Pages that are missing from address spaces.
#[derive(Debug, Default)]
pub struct Missing {
    spaces: Vec<Space>,
    /// Pages that have been asked for, as the source has them.
    asked: BTreeSet<(u32, u64)>,
}

/// What is to be done for somebody who waits at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// To ask for this page.
    Ask { space: u32, address: u64 },
    /// Nothing: it has been asked for.
    Asked,
    /// Nothing is to come there: it is a page of zeroes, if there is none.
    Zero,
}

/// What an address space lacks.
#[derive(Clone, Debug, Default)]
struct Space {
    /// Its number in the image, or its ancestor's.
    origin: u32,
    /// By their first addresses: those behind, and the source's first address.
    parts: BTreeMap<u64, (u64, u64)>,
}

/// A part of what has come, and who lacks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which of the address spaces.
    pub of: usize,
    /// Where in that.
    pub at: u64,
    /// The source's addresses.
    pub source: Range<u64>,
}

impl Missing {
    /// An address space, and what of it is to come; which one it is.
    pub fn add(&mut self, origin: u32, pages: &Ranges) -> usize {
        let parts = pages
            .iter()
            .map(|part| (part.start, (part.end, part.start)));
        self.spaces.push(Space {
            origin,
            parts: parts.collect(),
        });
        self.spaces.len() - 1
    }

    /// One has been copied by fork(2); which one the copy is.
    pub fn forked(&mut self, of: usize) -> usize {
        let copy = self.spaces.get(of).cloned().unwrap_or_default();
        self.spaces.push(copy);
        self.spaces.len() - 1
    }

    /// Nothing of these addresses is missing any more.
    pub fn is_there(&mut self, of: usize, addresses: &Range<u64>) {
        if let Some(space) = self.spaces.get_mut(of) {
            space.cut(addresses);
        }
    }

    /// The address space is no more.
    pub fn ended(&mut self, of: usize) {
        self.is_there(of, &(0..u64::MAX));
    }

    /// Memory is at other addresses.
    pub fn moved(&mut self, of: usize, from: u64, to: u64, bytes: u64) {
        if let Some(space) = self.spaces.get_mut(of) {
            let moved = space.cut(&(from..from.saturating_add(bytes)));
            space.cut(&(to..to.saturating_add(bytes)));
            for (start, (end, source)) in moved {
                let start_now = start.wrapping_sub(from).wrapping_add(to);
                let end_now = end.wrapping_sub(from).wrapping_add(to);
                space.parts.insert(start_now, (end_now, source));
            }
        }
    }

    /// Somebody waits at a page.
    pub fn fault(&mut self, of: usize, page: u64) -> Fault {
        match self.wanted(of, page) {
            None => Fault::Zero,
            Some(wanted) if !self.asked.insert(wanted) => Fault::Asked,
            Some((space, address)) => Fault::Ask { space, address },
        }
    }

    /// What the source has at these addresses has come, and is wherever it was missing. It may be asked for again: a child
    /// may have it missing.
    pub fn came(&mut self, origin: u32, source: &Range<u64>) {
        let asked = self
            .asked
            .range((origin, source.start)..(origin, source.end));
        for page in asked.copied().collect::<Vec<_>>() {
            self.asked.remove(&page);
        }
    }

    /// Whose page it is that is missing there, and where the source has it; none: nothing is missing there.
    fn wanted(&self, of: usize, address: u64) -> Option<(u32, u64)> {
        let space = self.spaces.get(of)?;
        let (start, (end, source)) = space.parts.range(..=address).next_back()?;
        (address < *end).then(|| (space.origin, source + (address - start)))
    }

    /// Somebody who lacks some of what the source has at these addresses.
    pub fn place(&self, origin: u32, source: &Range<u64>) -> Option<Place> {
        let mut spaces = self.spaces.iter().enumerate();
        spaces.find_map(|(of, space)| {
            let parts = (space.origin == origin).then_some(&space.parts)?;
            parts.iter().find_map(|(start, (end, first))| {
                let from = source.start.max(*first);
                let to = source.end.min(first + (end - start));
                let at = start + from.saturating_sub(*first);
                (from < to).then_some(Place {
                    of,
                    at,
                    source: from..to,
                })
            })
        })
    }

    /// Whether nobody lacks anything.
    pub fn is_none(&self) -> bool {
        self.spaces.iter().all(|space| space.parts.is_empty())
    }
}

impl Space {
    /// Takes out what is at these addresses.
    fn cut(&mut self, addresses: &Range<u64>) -> Vec<(u64, (u64, u64))> {
        let before = self.parts.range(..addresses.end).rev();
        let overlapping = before.take_while(|(_, (end, _))| *end > addresses.start);
        let overlapping: Vec<_> = overlapping.map(|(start, part)| (*start, *part)).collect();
        let mut cut = Vec::new();
        for (start, (end, source)) in overlapping {
            self.parts.remove(&start);
            if start < addresses.start {
                self.parts.insert(start, (addresses.start, source));
            }
            if end > addresses.end {
                let behind = (end, source + (addresses.end - start));
                self.parts.insert(addresses.end, behind);
            }
            let from = start.max(addresses.start);
            let part = (end.min(addresses.end), source + (from - start));
            cut.push((from, part));
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// What is done to address spaces of few pages.
    #[derive(Clone, Debug)]
    enum Step {
        Forked(usize),
        IsThere(usize, u64, u64),
        Moved(usize, u64, u64, u64),
        Ended(usize),
        /// It comes, and is put wherever it is lacked.
        Comes(u32, u64, u64),
    }

    const PAGES: u64 = 40;

    fn step() -> impl Strategy<Value = Step> {
        let (of, page, pages) = (0..6_usize, 0..PAGES, 1..12_u64);
        prop_oneof![
            of.clone().prop_map(Step::Forked),
            (of.clone(), page.clone(), pages.clone())
                .prop_map(|(of, at, pages)| Step::IsThere(of, at, pages)),
            (of.clone(), page.clone(), page.clone(), pages.clone())
                .prop_filter(
                    "mremap(2) takes no areas that overlap",
                    |(_, from, to, pages)| { from.abs_diff(*to) >= *pages }
                )
                .prop_map(|(of, from, to, pages)| Step::Moved(of, from, to, pages)),
            of.prop_map(Step::Ended),
            (0..2_u32, page, pages).prop_map(|(origin, at, pages)| Step::Comes(origin, at, pages)),
        ]
    }

    /// The same, page by page: of each space whose, and what of the source's is lacked where.
    #[derive(Default)]
    struct Model(Vec<(u32, BTreeMap<u64, u64>)>);

    proptest! {
        #[test]
        fn each_page_comes_to_all_who_lack_it_and_to_nobody_else(
            first in prop::collection::vec(0..PAGES, 1..20),
            second in prop::collection::vec(0..PAGES, 1..20),
            steps in prop::collection::vec(step(), 0..60),
        ) {
            let (mut missing, mut model) = (Missing::default(), Model::default());
            for (origin, pages) in [(0, first), (1, second)] {
                let ranges: Ranges = pages.iter().map(|page| *page..page + 1).collect();
                missing.add(origin, &ranges);
                model.0.push((origin, pages.iter().map(|page| (*page, *page)).collect()));
            }
            for step in steps {
                match step {
                    Step::Forked(of) if of < model.0.len() && model.0.len() < 6 => {
                        missing.forked(of);
                        model.0.push(model.0[of].clone());
                    }
                    Step::IsThere(of, at, pages) => {
                        missing.is_there(of, &(at..at + pages));
                        if let Some((_, lacks)) = model.0.get_mut(of) {
                            lacks.retain(|page, _| !(at..at + pages).contains(page));
                        }
                    }
                    Step::Moved(of, from, to, pages) => {
                        missing.moved(of, from, to, pages);
                        if let Some((_, lacks)) = model.0.get_mut(of) {
                            let moved: Vec<_> = lacks.range(from..from + pages).map(|(at, page)| (*at, *page)).collect();
                            lacks.retain(|page, _| !(from..from + pages).contains(page) && !(to..to + pages).contains(page));
                            lacks.extend(moved.into_iter().map(|(at, page)| (at - from + to, page)));
                        }
                    }
                    Step::Ended(of) => {
                        missing.ended(of);
                        if let Some((_, lacks)) = model.0.get_mut(of) {
                            lacks.clear();
                        }
                    }
                    Step::Comes(origin, at, pages) => {
                        while let Some(place) = missing.place(origin, &(at..at + pages)) {
                            let Place { of, at, source } = place;
                            let (whose, lacks) = &mut model.0[of];
                            prop_assert_eq!(*whose, origin);
                            for (at, page) in (at..).zip(source.clone()) {
                                prop_assert_eq!(lacks.remove(&at), Some(page));
                            }
                            missing.is_there(of, &(at..at + (source.end - source.start)));
                        }
                        for (whose, lacks) in &model.0 {
                            let is_lacked = lacks.values().any(|page| (at..at + pages).contains(page));
                            prop_assert!(*whose != origin || !is_lacked);
                        }
                    }
                    Step::Forked(_) => {}
                }
                for (of, (origin, lacks)) in model.0.iter().enumerate() {
                    for page in 0..2 * PAGES {
                        let wanted = lacks.get(&page).map(|source| (*origin, *source));
                        prop_assert_eq!(missing.wanted(of, page), wanted);
                    }
                }
                prop_assert_eq!(missing.is_none(), model.0.iter().all(|(_, lacks)| lacks.is_empty()));
            }
        }
    }
}
