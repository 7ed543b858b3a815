//! Files, directories, and devices without a state, by their names.
//!
//! | | |
//! |---|---|
//! | a file that the program only reads | known again, or refused by name |
//! | a file that it may write to | saved, up to a size |
//! | a file that has lost its name | saved |
//! | any of these, of a tree that goes on at another supervisor of this machine | goes along as it is, whoever writes to it |
//! | a POSIX message queue, a device with a state, a name that is another file's by now | refused |

pub mod named;
mod restore;
mod save;
pub mod state;

use std::{
    fs::{self, Metadata},
    os::{
        fd::BorrowedFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
};

pub use self::restore::enter;
use self::{
    restore::{Names, Staging},
    save::Saving,
};
use crate::{
    board::Board,
    copy::PageWriter,
    descriptor::FoundDescriptor,
    error::Result,
    event::Reporter,
    growing::Growing,
    memory::shared::Shared,
    opened::{Item, Opened},
    resource::{FoundFile, Purpose, Resource, Saved, Stopped, TreeContext},
    spaces::Spaces,
    state::{Backing, Kind, OpenFile, Tree},
    target::{Target, Targets},
};

/// Major number of devices without a state.
const MEMORY: u32 = 1;
/// Of statfs(2): where mq_open(3) has its queues (MQUEUE_MAGIC).
const MESSAGE_QUEUES: i64 = 0x1980_0202;

/// Files with names.
#[derive(Debug, Default)]
pub struct Files {
    reporter: Reporter,
    saving: Saving,
    staging: Staging,
}

impl Files {
    /// None yet.
    pub fn new(reporter: &Reporter) -> Self {
        Self {
            reporter: reporter.clone(),
            ..Self::default()
        }
    }
}

impl Resource for Files {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        let kind = seen.metadata.file_type();
        if !seen.has_path() || !seen.is_name() && (kind.is_fifo() || kind.is_socket()) {
            return Ok(false);
        }
        match seen.is_name() {
            false if kind.is_char_device() => check_device(seen)?,
            false if kind.is_block_device() => return Err(seen.refused("a device")),
            _ => check_name(seen)?,
        }
        Ok(true)
    }

    fn save(&mut self, met: FoundFile<'_>, around: &mut TreeContext<'_>) -> Result<Saved> {
        let goes_along = around.purpose == Purpose::MovingAlong;
        Ok(self.saving.file(met, around.named, goes_along)?.into())
    }

    fn join(&mut self, tree: &mut Tree, stopped: &mut Stopped<'_>) -> Result<()> {
        let Stopped {
            collected, shared, ..
        } = stopped;
        let goes_along = stopped.purpose == Purpose::MovingAlong;
        match goes_along {
            true => self.saving.all_mapped_along(tree, collected)?,
            false => self.saving.all_mapped(tree, collected)?,
        }
        self.saving.share(&mut tree.files, collected, shared);
        if goes_along {
            self.saving.settle_along(&mut tree.files);
        }
        Ok(())
    }

    fn carried(&self, _: &[OpenFile]) -> Vec<(Item, BorrowedFd<'_>)> {
        self.saving.along().collect()
    }

    fn number(&self, tree: &mut Tree, _: &Shared, spaces: &mut Spaces) -> Result<()> {
        self.saving.number(&mut tree.files, spaces);
        Ok(())
    }

    fn write(
        &self,
        _: &Tree,
        _: &Shared,
        spaces: &mut Spaces,
        writer: &mut dyn PageWriter,
    ) -> Result<()> {
        self.saving.write(spaces, writer)
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        restore::take_over(tree, opened)?;
        let mut names = Names::new();
        opened.each(tree, |opened, file| match file.kind {
            Kind::Path { .. } => {
                restore::open(opened, (&mut self.staging, &mut names), file).map(Some)
            }
            _ => Ok(None),
        })?;
        for body in tree.processes.iter().filter_map(|it| it.body.as_ref()) {
            for area in &body.areas {
                if let Backing::File { file, write, .. } = &area.backing {
                    restore::map(opened, file, *write)?;
                }
            }
            restore::map(opened, &body.exe, false)?;
        }
        Ok(())
    }

    fn targets(&self, _: &Tree, _: &Opened, targets: &mut Targets) -> Result<()> {
        let spaces = self.staging.contents.iter();
        targets.extend(spaces.filter_map(|(space, fd)| Some((*space, Target::New((*fd)?)))));
        Ok(())
    }

    fn filled(&self, _: &Tree, _: &[&Growing<'_>]) -> Result<()> {
        restore::commit(&self.staging, &self.reporter)
    }

    fn withdraw(&self) {
        restore::withdraw(&self.staging);
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        let Kind::Path {
            path,
            offset,
            contents,
            unlinked,
            ..
        } = &file.kind
        else {
            return None;
        };
        let saved = contents.map_or(String::new(), |contents| {
            format!(", {} bytes saved", contents.size)
        });
        let gone = if *unlinked { ", without a name" } else { "" };
        let path = String::from_utf8_lossy(path);
        Some(format!("{path} at {offset}{saved}{gone}"))
    }
}

/// null, zero, full, random, urandom: opened again they are what they were.
fn check_device(seen: &FoundDescriptor) -> Result<()> {
    let number = seen.metadata.rdev();
    match (libc::major(number), libc::minor(number)) {
        (MEMORY, 3 | 5 | 7 | 8 | 9) => Ok(()),
        _ => Err(seen.refused("a device, whose state is known to its driver alone")),
    }
}

/// A file whose name must lead to it, or nowhere.
fn check_name(seen: &FoundDescriptor) -> Result<()> {
    let system = rustix::fs::statfs(seen.path());
    if system.is_ok_and(|system| system.f_type == MESSAGE_QUEUES) {
        return Err(seen.refused("a POSIX message queue"));
    }
    let is_it =
        |other: &Metadata| (other.dev(), other.ino()) == (seen.metadata.dev(), seen.metadata.ino());
    match seen.lost_name() {
        Some(_) if !seen.is_name() && seen.metadata.is_file() => Ok(()),
        Some(_) => Err(seen.refused("it has been removed")),
        None => match fs::symlink_metadata(&seen.name).is_ok_and(|other| is_it(&other)) {
            true => Ok(()),
            false => Err(seen.refused("its name is another file's now, or gone")),
        },
    }
}
