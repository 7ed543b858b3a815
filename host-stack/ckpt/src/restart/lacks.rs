//! Memory of a restarted tree that follows: who touches it waits, by a userfaultfd(2), until somebody has put it there.
//!
//! What must stay true: nobody touches it before that: the kernel would put zeroes there, for good.

use std::collections::BTreeMap;

use snaprig_resources::error::{Error, Result};
use snaprig_tracee::{
    ranges::Ranges,
    remote::{Remote, call, result},
    userfault::open_with,
};
use snaprig_userfault::{FLAGS_OF_ALL, Mode, Userfault, features::FOLLOW};

use super::{rebuilding::Rebuilding, staging::is_beside};

/// What follows, and who is told what waits for it.
pub struct Lacks<'a> {
    /// By the numbers of spaces.
    of: &'a BTreeMap<u32, Ranges>,
    told: &'a mut dyn FnMut(Vec<(u32, Userfault)>) -> Result<()>,
}

impl<'a> Lacks<'a> {
    /// `told` hears of all spaces of these, before anything of them is touched.
    pub fn new(
        of: &'a BTreeMap<u32, Ranges>,
        told: &'a mut dyn FnMut(Vec<(u32, Userfault)>) -> Result<()>,
    ) -> Self {
        Self { of, told }
    }

    /// Has processes wait for what they lack.
    pub(super) fn wait(self, growing: &[Rebuilding<'_>]) -> Result<()> {
        let mut all = Vec::new();
        for growing in growing {
            let space = growing.process.space;
            if let Some(pages) = self.of.get(&space) {
                all.push((space, watched(growing, pages)?));
            }
        }
        (self.told)(all)
    }
}

/// A userfaultfd of a process for its mappings of which some pages are missing.
fn watched(growing: &Rebuilding<'_>, pages: &Ranges) -> Result<Userfault> {
    let failed = |source| {
        Error::Process {
            pid: growing.process.pid,
            what: "its memory cannot follow it (userfaultfd(2) with all features takes root, with CAP_SYS_PTRACE)".into(),
            source,
        }
    };
    let opened = open_with(growing.process.pid, FLAGS_OF_ALL, |number, argument| {
        let calls = [call(number, [argument])];
        let mut remote = Remote::new(&growing.first, growing.process.pid)?;
        let made = remote.calls(growing.stub, growing.process.pid, &calls)?;
        Ok(result(made[0]))
    })?;
    let userfault = opened
        .and_then(|fd| Userfault::with(fd, FOLLOW))
        .map_err(failed)?;
    // Whole mappings: what is not watched alike is never of one again, and mremap(2) takes no more than one.
    for mapping in growing.body.areas.chunk_by(is_beside) {
        let ([first, .., last] | [first @ last]) = mapping else {
            continue;
        };
        let mapping = first.start..last.end;
        if Ranges::from(mapping.clone()).within(pages).bytes() > 0 {
            userfault
                .register(&mapping, Mode::Missing)
                .map_err(failed)?;
        }
    }
    Ok(userfault)
}
