//! Both machines, `order` and `missing`, between programs that touch, drop, move and copy their memory, and one way each for
//! pages and for questions, on which anything may be late.
//!
//! What must be true of every run: a program finds in its memory what it would have found if all of it had come at once; who waits for a
//! page gets it, one block later than its question at most; and in the end nothing is missing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use snaprig_tracee::ranges::Ranges;

use super::{
    PAGE,
    missing::{Fault, Missing},
    order::{BLOCK_BYTES, Order},
};

/// Pages of a space: several blocks.
const PAGES: u64 = 200;
const PROCESSES_MAX: usize = 6;
/// Two spaces, whose pages are told apart.
const SPACES: usize = 2;

/// What a page holds: zeroes, or what the source has there.
type Page = Option<(u32, u64)>;

/// What happens next, where it can.
#[derive(Clone, Debug)]
enum Step {
    /// A block leaves the source.
    Sent,
    /// The next block is put in place.
    Comes,
    /// The next question is heard at the source.
    Heard,
    /// The tree runs, and the source hears of it.
    Runs,
    Touched(usize, u64),
    Forked(usize),
    Dropped(usize, u64, u64),
    Moved(usize, u64, u64, u64),
    Ended(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (of, page, pages) = (0..PROCESSES_MAX, 0..PAGES, 1..60_u64);
    let moved = (of.clone(), page.clone(), page.clone(), pages.clone());
    let apart = |(_, from, to, pages): &(usize, u64, u64, u64)| from.abs_diff(*to) >= *pages;
    prop_oneof![
        4 => Just(Step::Sent),
        4 => Just(Step::Comes),
        4 => Just(Step::Heard),
        1 => Just(Step::Runs),
        6 => (of.clone(), page.clone()).prop_map(|(of, page)| Step::Touched(of, page)),
        1 => of.clone().prop_map(Step::Forked),
        1 => (of.clone(), page, pages).prop_map(|(of, at, pages)| Step::Dropped(of, at, pages)),
        1 => moved
            .prop_filter("mremap(2) takes no areas that overlap", apart)
            .prop_map(|(of, from, to, pages)| Step::Moved(of, from, to, pages)),
        1 => of.prop_map(Step::Ended),
    ]
}

/// A process where the tree goes on.
#[derive(Clone, Default)]
struct Process {
    /// What it has.
    has: BTreeMap<u64, Page>,
    /// What it would have if all had come at once; what is not here are zeroes.
    should_have: BTreeMap<u64, Page>,
    /// It waits there.
    waits: Option<u64>,
    has_ended: bool,
}

/// A block that has left the source.
struct Sent {
    space: u32,
    pages: std::ops::Range<u64>,
}

struct World {
    order: Order,
    missing: Missing,
    processes: Vec<Process>,
    blocks: VecDeque<Sent>,
    questions: VecDeque<(u32, u64)>,
    /// Blocks by which all questions that have been heard are answered.
    owed: usize,
    runs: bool,
}

fn addresses(page: u64, pages: u64) -> std::ops::Range<u64> {
    page * PAGE..(page + pages) * PAGE
}

impl World {
    fn new(there: [&BTreeSet<u64>; SPACES]) -> Self {
        let (mut missing, mut processes, mut spaces) = (Missing::default(), Vec::new(), Vec::new());
        for (space, pages) in (0..).zip(there) {
            let ranges: Ranges = pages.iter().map(|page| addresses(*page, 1)).collect();
            missing.add(space, &ranges);
            let should_have = pages.iter().map(|page| (*page, Some((space, *page))));
            processes.push(Process {
                should_have: should_have.collect(),
                ..Process::default()
            });
            spaces.push((space, ranges));
        }
        Self {
            order: Order::of(spaces),
            missing,
            processes,
            blocks: VecDeque::new(),
            questions: VecDeque::new(),
            owed: 0,
            runs: false,
        }
    }

    /// A program runs, unless it waits.
    fn free(&mut self, of: usize) -> Option<&mut Process> {
        let runs = self.runs;
        let process = self.processes.get_mut(of);
        process.filter(|process| runs && process.waits.is_none() && !process.has_ended)
    }

    fn does(&mut self, step: &Step) {
        match *step {
            Step::Sent => {
                self.owed = self.owed.saturating_sub(1);
                if let Some((index, block)) = self.order.next() {
                    assert!(block.end - block.start <= BLOCK_BYTES);
                    self.blocks.push_back(Sent {
                        space: index as u32,
                        pages: block.start / PAGE..block.end / PAGE,
                    });
                }
            }
            Step::Comes => {
                if let Some(block) = self.blocks.pop_front() {
                    self.comes(&block);
                }
            }
            Step::Heard => {
                if let Some((space, address)) = self.questions.pop_front() {
                    self.order.wants(space, address);
                    self.owed += 1;
                }
            }
            Step::Runs => {
                self.runs = true;
                self.order.runs();
            }
            Step::Touched(of, page) => self.touches(of, page),
            Step::Forked(of) => {
                if self.processes.len() < PROCESSES_MAX
                    && let Some(process) = self.free(of)
                {
                    let copy = process.clone();
                    self.processes.push(copy);
                    let child = self.missing.forked(of);
                    assert_eq!(child + 1, self.processes.len());
                }
            }
            Step::Dropped(of, at, pages) => {
                if let Some(process) = self.free(of) {
                    for memory in [&mut process.has, &mut process.should_have] {
                        memory.retain(|page, _| !(at..at + pages).contains(page));
                    }
                    self.missing.is_there(of, &addresses(at, pages));
                }
            }
            Step::Moved(of, from, to, pages) => {
                if let Some(process) = self.free(of) {
                    for memory in [&mut process.has, &mut process.should_have] {
                        let moved: Vec<_> = memory
                            .range(from..from + pages)
                            .map(|(page, holds)| (page - from + to, *holds))
                            .collect();
                        memory.retain(|page, _| {
                            !(from..from + pages).contains(page) && !(to..to + pages).contains(page)
                        });
                        memory.extend(moved);
                    }
                    let (from, to) = (from * PAGE, to * PAGE);
                    self.missing.moved(of, from, to, pages * PAGE);
                }
            }
            Step::Ended(of) => {
                if let Some(process) = self.free(of) {
                    process.has_ended = true;
                    self.missing.ended(of);
                }
            }
        }
    }

    fn touches(&mut self, of: usize, page: u64) {
        let Some(process) = self.free(of) else { return };
        if !process.has.contains_key(&page) {
            process.waits = Some(page);
            match self.missing.fault(of, page * PAGE) {
                Fault::Ask { space, address } => self.questions.push_back((space, address)),
                Fault::Asked => {}
                Fault::Zero => self.puts(of, page, None),
            }
        }
        self.looks(of, page);
    }

    /// It sees what it has there, if it has anything.
    fn looks(&self, of: usize, page: u64) {
        let process = &self.processes[of];
        if let Some(seen) = process.has.get(&page) {
            let should_see = process.should_have.get(&page).copied().flatten();
            assert_eq!(*seen, should_see, "of process {of} at {page}");
        }
    }

    fn puts(&mut self, of: usize, page: u64, holds: Page) {
        let process = &mut self.processes[of];
        let before = process.has.insert(page, holds);
        assert_eq!(before, None, "it is put once");
        process.waits = process.waits.filter(|waits| *waits != page);
        self.looks(of, page);
    }

    fn comes(&mut self, block: &Sent) {
        let source = block.pages.start * PAGE..block.pages.end * PAGE;
        while let Some(place) = self.missing.place(block.space, &source) {
            let first = place.source.start / PAGE;
            let pages = (place.source.end - place.source.start) / PAGE;
            for page in 0..pages {
                let holds = Some((block.space, first + page));
                self.puts(place.of, place.at / PAGE + page, holds);
            }
            let there = place.at..place.at + pages * PAGE;
            self.missing.is_there(place.of, &there);
        }
        self.missing.came(block.space, &source);
    }

    /// Whoever waits gets what it waits for by what is asked for alone; then comes all the rest.
    fn ends(mut self) {
        self.does(&Step::Runs);
        while !self.questions.is_empty() {
            self.does(&Step::Heard);
        }
        while self.owed > 0 {
            self.does(&Step::Sent);
        }
        while !self.blocks.is_empty() {
            self.does(&Step::Comes);
        }
        let nobody_waits = |world: &Self| world.processes.iter().all(|one| one.waits.is_none());
        assert!(nobody_waits(&self));
        while !self.order.is_over() {
            self.does(&Step::Sent);
            self.does(&Step::Comes);
        }
        assert!(self.missing.is_none());
        for of in 0..self.processes.len() {
            for page in 0..2 * PAGES {
                self.touches(of, page);
            }
        }
        assert!(nobody_waits(&self), "nothing is missing");
    }
}

fn pages() -> impl Strategy<Value = BTreeSet<u64>> {
    prop::collection::btree_set(0..PAGES, 0..PAGES as usize)
}

proptest! {
    #[test]
    fn programs_find_what_they_had_whatever_is_late(
        first in pages(),
        second in pages(),
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let mut world = World::new([&first, &second]);
        for step in &steps {
            world.does(step);
        }
        world.ends();
    }
}
