//! inotify(7) instances, and what they watch.
//!
//! | | |
//! |---|---|
//! | watches, by the names of what is watched, with their numbers | saved |
//! | events that the program has not read | refused for now: they cannot be put into another instance |
//! | a file whose name cannot be found | refused |

mod restore;
mod save;
pub mod state;

use std::os::fd::AsFd;

use crate::{
    board::Board,
    descriptor::FoundDescriptor,
    error::Result,
    files::named::Named,
    opened::Opened,
    resource::{FoundFile, Resource, Saved, TreeContext},
    state::{Kind, OpenFile, Tree},
};

/// inotify instances.
#[derive(Debug)]
pub struct Watches;

impl Resource for Watches {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        Ok(seen.anonymous() == Some(b"inotify"))
    }

    fn look_closer(&self, seen: &FoundDescriptor, named: &mut Named) -> Result<()> {
        save::find_all(seen, named).map(drop)
    }

    fn save(&mut self, met: FoundFile<'_>, around: &mut TreeContext<'_>) -> Result<Saved> {
        let notices = save::describe(met.seen, met.copy.as_fd(), around.named)?;
        Ok(Kind::Inotify(notices).into())
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        opened.each(tree, |_, file| match &file.kind {
            Kind::Inotify(notices) => restore::inotify(notices).map(Some),
            _ => Ok(None),
        })
    }

    fn finish(&self, tree: &Tree, opened: &Opened) -> Result<()> {
        for (file, fd) in tree.files.iter().zip(&opened.files) {
            if let (Kind::Inotify(notices), 0..) = (&file.kind, *fd) {
                for notice in notices {
                    restore::watch(*fd, notice)?;
                }
            }
        }
        Ok(())
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        match &file.kind {
            Kind::Inotify(notices) => Some(format!("inotify of {} files", notices.len())),
            _ => None,
        }
    }
}
