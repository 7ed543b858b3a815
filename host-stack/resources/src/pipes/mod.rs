//! Pipes and FIFOs.
//!
//! | | |
//! |---|---|
//! | what is in one, also packets (O_DIRECT), its size, the name of a FIFO | saved |
//! | readers that know that there are no writers any more | saved |
//! | an end that a process outside has | refused, unless the supervisor was launched with it ([`super::outside`]) |

mod restore;
mod save;
pub mod state;

use std::os::unix::fs::FileTypeExt;

use crate::{
    board::Board,
    descriptor::FoundDescriptor,
    error::Result,
    opened::Opened,
    resource::{FoundFile, Resource, Saved, Stopped, TreeContext},
    state::{Kind, OpenFile, Tree},
};

/// Pipes and FIFOs.
#[derive(Debug, Default)]
pub struct Pipes(save::Pipes);

impl Resource for Pipes {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        Ok(!seen.is_name() && seen.metadata.file_type().is_fifo())
    }

    fn save(&mut self, met: FoundFile<'_>, _: &mut TreeContext<'_>) -> Result<Saved> {
        Ok(Kind::Pipe(self.0.meet(met.seen, met.copy)).into())
    }

    fn join(&mut self, tree: &mut Tree, _: &mut Stopped<'_>) -> Result<()> {
        tree.pipes = self.0.describe()?;
        Ok(())
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        restore::open(tree, opened)
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        match (&file.kind, file.flags & libc::O_ACCMODE) {
            (Kind::Pipe(number), libc::O_RDONLY) => Some(format!("pipe {number}, to read")),
            (Kind::Pipe(number), _) => Some(format!("pipe {number}, to write")),
            _ => None,
        }
    }

    fn describe_all(&self, tree: &Tree) -> Vec<String> {
        let pipes = tree.pipes.iter().enumerate();
        let lines = pipes.map(|(number, pipe)| {
            let bytes: usize = pipe.contents.iter().map(|part| part.bytes.len()).sum();
            let name = pipe.fifo.as_ref().map_or(String::new(), |fifo| {
                format!(": {}", String::from_utf8_lossy(&fifo.path))
            });
            format!("pipe {number}: {bytes} bytes in it{name}")
        });
        lines.collect()
    }
}
