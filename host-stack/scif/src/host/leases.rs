//! Copies by a program itself, without a call for each: it is told once where its peer's windows are, and may
//! use that until it is recalled.
//!
//! ```text
//! program                                   node
//!   Leases ------------------------------->
//!     <-------------------- memory of generation and count
//!   Lease {remote} ----------------------->
//!     <-------------------- where that window is, for this generation
//!   count + 1; is it the generation?
//!   the copy; count - 1                     the peer takes a window back, either side ends, or a fence is
//!                                           asked for while somebody copies: generation + 1; the count is 0?
//!   the last one out of an old generation:
//!   Leased ------------------------------->  the count is 0: all of these copies have ended
//! ```
//!
//! For the node's machine those copies are one job. Until it has ended nothing is leased.
//!
//! What must stay true: a copy that finds its generation has counted itself before the node looks; the node
//! waits for a program's count in nothing but that job, as long as the program's connection lasts.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering},
};

use snaprig_wire::scif::PAGE;

use super::State;
use crate::node::{EndpointId, Input, JobId, Recall};
use snaprig_scif_lanes::shared::SharedMemory;

#[repr(C)]
struct Page {
    generation: AtomicU32,
    copying: AtomicU32,
}

/// What a program and the node count in.
pub struct Leases(SharedMemory);

/// A recall that waits for programs.
pub(super) struct PendingRecall {
    job: JobId,
    clients: Vec<u64>,
}

/// The leases of a client, with the node's own knowledge of the generation.
pub(super) struct Leased {
    page: Leases,
    pub(super) generation: u32,
}

impl Leases {
    /// Of a new client, and the file to map it from.
    fn create() -> io::Result<(Self, OwnedFd)> {
        let (memory, file) = SharedMemory::create("scif-leases", PAGE as usize)?;
        Ok((Self(memory), file))
    }

    /// Of a file that the node made.
    pub fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        SharedMemory::map(file, 0, PAGE as usize).map(Self)
    }

    /// Where it is mapped, and how much.
    pub fn range(&self) -> (usize, usize) {
        self.0.range()
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is at least a page, begins at one, and lives as long as `self`; `Page` has atomics alone,
        // so any bytes are a value and others may change them at any time.
        unsafe { self.0.base().cast::<Page>().as_ref() }
    }

    /// Counts a copy. Then ask for the generation.
    pub fn enter(&self) {
        self.page().copying.fetch_add(1, Ordering::SeqCst);
    }

    /// What is leased now.
    pub fn generation(&self) -> u32 {
        self.page().generation.load(Ordering::SeqCst)
    }

    /// The copy, of this generation, has ended. True: the node waits to hear of it.
    pub fn leave(&self, generation: u32) -> bool {
        let others = self.page().copying.fetch_sub(1, Ordering::SeqCst);
        others == 1 && self.generation() != generation
    }
}

impl State {
    /// Memory to count in, for a client.
    pub(super) fn leases(&mut self, number: u64) -> Result<OwnedFd, i32> {
        let client = self.clients.get_mut(&number).ok_or(libc::EBADF)?;
        let (page, file) = Leases::create().map_err(|_| libc::ENOMEM)?;
        let generation = 1;
        page.page().generation.store(generation, Ordering::SeqCst);
        client.leased = Some(Leased { page, generation });
        Ok(file)
    }

    /// Takes back what is leased of an endpoint's connection, or if nobody has to know more: sees that
    /// nobody copies.
    pub(super) fn recall(&mut self, recall: &Recall) {
        let of_endpoint = |endpoint: EndpointId| endpoint == recall.endpoint;
        let leased = self.clients.iter_mut();
        let mut leased: Vec<_> = leased
            .filter(|(_, client)| of_endpoint(client.endpoint()))
            .filter_map(|(number, client)| Some((*number, client.leased.as_mut()?)))
            .collect();
        let copies = |leased: &Leased| leased.page.page().copying.load(Ordering::SeqCst) != 0;
        let mut clients = Vec::new();
        if recall.revoke || leased.iter().any(|(_, leased)| copies(leased)) {
            for (number, leased) in &mut leased {
                leased.generation = leased.generation.wrapping_add(1);
                let page = leased.page.page();
                page.generation.store(leased.generation, Ordering::SeqCst);
                if copies(leased) {
                    clients.push(*number);
                }
            }
        }
        match clients.is_empty() {
            true => self.node.handle(Input::CopyDone(recall.job, Ok(()))),
            false => self.recalled.push(PendingRecall {
                job: recall.job,
                clients,
            }),
        }
    }

    /// A client's copies of old generations have ended, if it says the truth or is gone: the jobs that have
    /// ended with them.
    pub(super) fn returned(&mut self, number: u64) -> Vec<JobId> {
        let leased = self.clients.get(&number).and_then(|c| c.leased.as_ref());
        if leased.is_some_and(|leased| leased.page.page().copying.load(Ordering::SeqCst) != 0) {
            return Vec::new();
        }
        for recalled in &mut self.recalled {
            recalled.clients.retain(|client| *client != number);
        }
        let ended = |recalled: &mut PendingRecall| recalled.clients.is_empty();
        let ended = self.recalled.extract_if(.., ended);
        ended.map(|recalled| recalled.job).collect()
    }
}
