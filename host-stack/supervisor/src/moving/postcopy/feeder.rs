//! The source's side: pages that have been left for later, in their `order`.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread::{self, JoinHandle},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snaprig_ckpt::dump::Deferred;
use snaprig_ckpt_image::image::Sink;
use snaprig_peers::packets;
use snaprig_resources::error::{Error, Result};
use snaprig_tracee::faults::reached;

use super::{
    super::{
        faults,
        spoken::{hear, say},
    },
    Asks, Follows, lost,
    order::Order,
};
use crate::checkpoint::Saved;

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
        let follows = || deferred.iter().map(|one| (one.space, one.pages.clone()));
        let (order, follows) = (Order::of(follows()), follows().collect());
        let feeding = Feeding {
            saved,
            deferred,
            order,
            questions,
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
        let told = say(&self.theirs, &Asks::Rest, &[]);
        drop(self.theirs);
        told.map_err(failed)?;
        let panicked = |_| lost("whoever sends it");
        self.thread.join().unwrap_or_else(|why| Err(panicked(why)))
    }
}

/// In its thread.
struct Feeding {
    saved: Saved<Box<dyn Sink>>,
    deferred: Vec<Deferred>,
    order: Order,
    questions: OwnedFd,
}

impl Feeding {
    fn run(mut self) -> Result<()> {
        // The heir can begin with what has been written.
        self.saved.settle()?;
        while !self.order.is_over() {
            self.listens()?;
            if let Some((index, block)) = self.order.next() {
                self.saved.write_deferred(&self.deferred[index], block)?;
                reached(&faults::FOLLOWING);
            }
        }
        self.saved.finish()?;
        // What is asked for has been sent.
        while !matches!(asked(&self.questions)?, Asks::Whole) {}
        Ok(())
    }

    /// What the heir asks for; as long as nothing may go, that is waited for.
    fn listens(&mut self) -> Result<()> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            let at_most = (!self.order.is_idle()).then_some(&now);
            let mut ready = [PollFd::new(&self.questions, PollFlags::IN)];
            match poll(&mut ready, at_most) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(failed(error)),
                Ok(0) => return Ok(()),
                Ok(_) => {}
            }
            match asked(&self.questions)? {
                Asks::Page { space, address } => self.order.wants(space, address),
                Asks::Rest => self.order.runs(),
                Asks::Whole => return Err(failed(io::ErrorKind::InvalidData)),
            }
        }
    }
}

fn asked(questions: &OwnedFd) -> Result<Asks> {
    let (asks, _) = hear(questions)
        .map_err(failed)?
        .ok_or_else(|| lost("where the tree runs"))?;
    Ok(asks)
}
