//! The source's side: pages that have been left for later, those that somebody waits for first.
//!
//! Others follow in order from there on: a program that touches a page mostly touches the next.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread::{self, JoinHandle},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snaprig_ckpt::dump::Deferred;
use snaprig_ckpt_image::image::Sink;
use snaprig_peers::packets;
use snaprig_resources::error::{Error, Result};
use snaprig_tracee::faults::reached;

use super::{super::faults, Asks, Follows, lost};
use crate::checkpoint::Saved;

/// What is written at a time: nobody who waits for another page waits for more than that and what is on its way.
const BLOCK_BYTES: u64 = 256 << 10;
/// The longest message of the heir's.
const ASKS_MAX: usize = 32;

/// An image that is being written to its end, while its tree is restored, and runs, elsewhere. Dropped, nothing more is to follow.
pub struct Feeder {
    thread: JoinHandle<Result<()>>,
    follows: Follows,
    /// The end at which the heir asks, until that has it.
    theirs: OwnedFd,
}

fn failed(source: impl Into<io::Error>) -> Error {
    Error::io("memory that follows a tree", source.into())
}

impl Feeder {
    /// Begins with what follows.
    pub fn start(saved: Saved<Box<dyn Sink>>, deferred: Vec<Deferred>) -> Result<Self> {
        let (questions, theirs) = packets::pair().map_err(failed)?;
        let follows = deferred.iter().map(|one| (one.space, one.pages.clone()));
        let follows = follows.collect();
        let feeding = Feeding {
            saved,
            deferred,
            wanted: VecDeque::new(),
            next: None,
            questions,
            runs: false,
        };
        let thread = thread::Builder::new().name("post-copy".into());
        let thread = thread.spawn(move || feeding.run()).map_err(failed)?;
        Ok(Self {
            thread,
            follows,
            theirs,
        })
    }

    /// What follows.
    pub fn follows(&self) -> &Follows {
        &self.follows
    }

    /// Where the heir asks.
    pub fn theirs(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }

    /// The tree runs there: waits until the heir has all of it.
    pub fn wait(self) -> Result<()> {
        // By the heir's end, which the heir has, too: nobody waits for two things.
        let rest =
            postcard::to_stdvec(&Asks::Rest).map_err(|error| failed(io::Error::other(error)));
        let told = rest.and_then(|rest| packets::send(&self.theirs, &rest, &[]).map_err(failed));
        drop(self.theirs);
        told?;
        let panicked = |_| lost("whoever sends it");
        self.thread.join().unwrap_or_else(|why| Err(panicked(why)))
    }
}

/// In its thread.
struct Feeding {
    saved: Saved<Box<dyn Sink>>,
    deferred: Vec<Deferred>,
    /// Pages that somebody waits for, longest first.
    wanted: VecDeque<(u32, u64)>,
    /// What is behind the last one that was written.
    next: Option<(u32, u64)>,
    questions: OwnedFd,
    /// Not only what somebody waits for goes.
    runs: bool,
}

impl Feeding {
    fn run(mut self) -> Result<()> {
        // The heir can begin with what has been written.
        self.saved.settle()?;
        loop {
            self.hears()?;
            let (index, block) = match self.block() {
                Some(next) => next,
                None if self.runs => break,
                None => continue,
            };
            let deferred = &mut self.deferred[index];
            self.saved.write_deferred(deferred, block.clone())?;
            self.next = Some((deferred.space, block.end));
            reached(&faults::FOLLOWING);
        }
        self.saved.finish()?;
        // What is asked for has been sent.
        while !matches!(hear(&self.questions)?, Asks::Whole) {}
        Ok(())
    }

    /// What the heir asks for; as long as the tree does not run, and nobody waits for anything, that is waited for.
    fn hears(&mut self) -> Result<()> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            let at_most = (self.runs || !self.wanted.is_empty()).then_some(&now);
            let mut ready = [PollFd::new(&self.questions, PollFlags::IN)];
            match poll(&mut ready, at_most) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(failed(error)),
                Ok(0) => return Ok(()),
                Ok(_) => {}
            }
            match hear(&self.questions)? {
                Asks::Page { space, address } => self.wanted.push_back((space, address)),
                Asks::Rest => self.runs = true,
                Asks::Whole => return Err(failed(io::ErrorKind::InvalidData)),
            }
        }
    }

    /// What is written next; none: all that may be is written.
    fn block(&mut self) -> Option<(usize, Range<u64>)> {
        while let Some((space, address)) = self.wanted.pop_front() {
            // Otherwise it is on its way.
            if let Some(block) = self
                .from(space, address)
                .filter(|(_, block)| block.start == address)
            {
                return Some(block);
            }
        }
        if !self.runs {
            return None;
        }
        let behind = self
            .next
            .and_then(|(space, address)| self.from(space, address));
        behind.or_else(|| {
            let mut deferred = self.deferred.iter().enumerate();
            deferred.find_map(|(index, one)| Some((index, block(one.pages.iter().next()?))))
        })
    }

    /// What of a space is still to be written, from this address on.
    fn from(&self, space: u32, address: u64) -> Option<(usize, Range<u64>)> {
        let index = self.deferred.iter().position(|one| one.space == space)?;
        let mut parts = self.deferred[index].pages.iter();
        let part = parts.find(|part| part.end > address)?;
        Some((index, block(part.start.max(address)..part.end)))
    }
}

/// The front of a part.
fn block(part: Range<u64>) -> Range<u64> {
    part.start..part.end.min(part.start.saturating_add(BLOCK_BYTES))
}

fn hear(questions: &OwnedFd) -> Result<Asks> {
    let mut bytes = [0; ASKS_MAX];
    let received = packets::receive(questions, &mut bytes).map_err(failed)?;
    let (len, _) = received.ok_or_else(|| lost("where the tree runs"))?;
    postcard::from_bytes(&bytes[..len]).map_err(|error| failed(io::Error::other(error)))
}
