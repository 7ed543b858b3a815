//! epoll(7) instances, and what they watch.
//!
//! A file that is watched by a number at which nobody has it any more is refused.

mod restore;
mod save;
pub mod state;

use libc::pid_t;

use self::save::Target;
use crate::{
    board::Board,
    descriptor::FoundDescriptor,
    error::Result,
    opened::Opened,
    resource::{FoundFile, Resource, Saved, Stopped, TreeContext},
    state::{Body, Kind, OpenFile, Process, Tree},
};

/// epoll instances.
#[derive(Debug, Default)]
pub struct Epolls {
    /// File, who has it, and its lines of fdinfo, which are understood when all files are known.
    met: Vec<(u32, pid_t, Vec<Target>)>,
}

impl Resource for Epolls {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        Ok(seen.anonymous() == Some(b"[eventpoll]"))
    }

    fn save(&mut self, met: FoundFile<'_>, _: &mut TreeContext<'_>) -> Result<Saved> {
        let targets = save::watched(&met.seen.info);
        self.met.push((met.number, met.seen.pid, targets));
        Ok(Kind::Epoll {
            watched: Vec::new(),
        }
        .into())
    }

    fn join(&mut self, tree: &mut Tree, stopped: &mut Stopped<'_>) -> Result<()> {
        for (number, pid, targets) in std::mem::take(&mut self.met) {
            let watch = |target| save::watch(stopped.collected, number, pid, target);
            let watched = targets.into_iter().map(watch).collect::<Result<_>>()?;
            tree.files[number as usize].kind = Kind::Epoll { watched };
        }
        Ok(())
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        opened.each(tree, |_, file| match file.kind {
            Kind::Epoll { .. } => restore::new().map(Some),
            _ => Ok(None),
        })
    }

    fn add(&self, tree: &Tree, opened: &Opened, process: &Process, body: &Body) -> Result<()> {
        restore::watch(tree, opened, process, body)
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        match &file.kind {
            Kind::Epoll { watched } => Some(format!("epoll of {} files", watched.len())),
            _ => None,
        }
    }
}
