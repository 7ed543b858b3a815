//! System V objects: shared memory, semaphores, message queues (sysvipc(7)).
//!
//! | | |
//! |---|---|
//! | objects of the tree, their values, messages, what is undone when processes end (SEM_UNDO) | saved |
//! | objects that others use as well | refused |
//! | times of objects, who has attached a segment last, or sent and received | lost |

pub mod objects;
mod restore;
mod save;
mod show;
pub mod state;
mod undo;

use snaprig_tracee::freeze::Frozen;

use self::objects::Attached;
pub use self::save::{Bytes, Source};
use crate::{
    copy::{PageWriter, write_gone},
    error::{Error, Result},
    event::Reporter,
    growing::Growing,
    huge::{self, save::Untold},
    memory::shared::Shared,
    opened::Opened,
    resource::{Resource, Running, Stopped},
    spaces::{Key, Spaces},
    state::{Segment, Tree},
    target::{Target, Targets},
};

/// System V objects of a tree.
#[derive(Debug, Default)]
pub struct SystemV {
    reporter: Reporter,
    /// Segments as the tree has them.
    sources: Vec<Source>,
    /// Where page tables do not tell of all huge pages that are there.
    untold: Untold,
}

impl SystemV {
    fn segments<'a>(&'a self, tree: &'a Tree) -> impl Iterator<Item = (&'a Segment, &'a Source)> {
        let segments = tree.sysv.iter().flat_map(|sysv| &sysv.segments);
        segments.zip(&self.sources)
    }
}

impl SystemV {
    /// None yet.
    pub fn new(reporter: &Reporter) -> Self {
        Self {
            reporter: reporter.clone(),
            ..Self::default()
        }
    }
}

impl Resource for SystemV {
    fn look(&self, tree: &Running<'_>) -> Result<()> {
        save::look(tree.pids, tree.has_own_ipc)
    }

    fn join(&mut self, tree: &mut Tree, stopped: &mut Stopped<'_>) -> Result<()> {
        let attachments = &stopped.shared.attachments;
        let described = save::describe(stopped.frozen, attachments, stopped.has_own_ipc)?;
        (tree.sysv, self.sources) = described;
        Ok(())
    }

    fn number(&self, tree: &mut Tree, _: &Shared, spaces: &mut Spaces) -> Result<()> {
        for segment in tree.sysv.iter_mut().flat_map(|sysv| &mut sysv.segments) {
            segment.space = spaces.meet(Key::Segment(segment.object.id)).number();
        }
        Ok(())
    }

    fn scan(&mut self, tree: &Tree, _: &Shared, frozen: &mut Frozen) -> Result<()> {
        let segments = self.segments(tree);
        let segments = segments.map(|(segment, source)| (source, segment.mapped_bytes()));
        self.untold = huge::save::find_segments(frozen, segments, tree)?;
        Ok(())
    }

    fn write(
        &self,
        tree: &Tree,
        _: &Shared,
        spaces: &mut Spaces,
        writer: &mut dyn PageWriter,
    ) -> Result<()> {
        for (segment, source) in self.segments(tree) {
            let space = spaces.meet(Key::Segment(segment.object.id));
            let number = space.number();
            let wrote = match segment.huge_bytes {
                0 => save::write(number, segment, source, writer)?,
                _ => {
                    let source = (source, segment.mapped_bytes());
                    huge::save::write_segment(number, source, &self.untold, writer)?
                }
            };
            write_gone(number, &space.is_now(wrote), writer)?;
        }
        Ok(())
    }

    fn abandon(&self) {
        self.sources.iter().for_each(Source::abandon);
    }

    fn prepare(&mut self, tree: &Tree) -> Result<()> {
        match &tree.sysv {
            Some(sysv) => {
                restore::make(sysv, &self.reporter).map_err(|error| huge::explained(tree, error))
            }
            None => Ok(()),
        }
    }

    fn targets(&self, tree: &Tree, _: &Opened, targets: &mut Targets) -> Result<()> {
        for segment in tree.sysv.iter().flat_map(|sysv| &sysv.segments) {
            let id = segment.object.id;
            let attached = Attached::attach(id, segment.mapped_bytes(), true);
            let attached = attached
                .map_err(|source| Error::io(format!("System V shared memory {id}"), source))?;
            let target = match segment.huge_bytes {
                0 => Target::Segment(attached),
                bytes => Target::HugeSegment(attached, bytes),
            };
            targets.insert(segment.space, target);
        }
        Ok(())
    }

    fn filled(&self, tree: &Tree, growing: &[&Growing<'_>]) -> Result<()> {
        let Some(sysv) = &tree.sysv else {
            return Ok(());
        };
        for work in [Growing::owe, Growing::touch] {
            growing.iter().try_for_each(|growing| work(growing, sysv))?;
        }
        restore::finish(sysv)
    }

    fn describe_spaces(&self, tree: &Tree) -> Vec<String> {
        tree.sysv.iter().flat_map(show::lines).collect()
    }
}
