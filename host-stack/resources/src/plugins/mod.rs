//! What belongs to plugins: it is not saved, and something else is in its place until they have put it there again.

pub mod owned;
mod restore;

use std::{
    collections::BTreeMap,
    os::fd::{OwnedFd, RawFd},
};

use libc::pid_t;

pub use self::restore::threads;

use crate::{
    board::Board,
    error::Result,
    opened::Opened,
    resource::Resource,
    state::{Kind, OpenFile, Tree},
};

/// Files that belong to plugins, and connections of plugins to the supervisor.
#[derive(Debug, Default)]
pub struct Plugins {
    /// The supervisor's ends of its connections, by file.
    channels: BTreeMap<u32, RawFd>,
}

impl Resource for Plugins {
    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        opened.each(tree, |_, file| match &file.kind {
            Kind::Plugin(_) => restore::hung_up().map(Some),
            _ => Ok(None),
        })?;
        for (number, file) in tree.files.iter().enumerate() {
            if matches!(file.kind, Kind::Supervisor) {
                let (theirs, ours) = restore::channel()?;
                self.channels.insert(number as u32, opened.keep(ours)?);
                opened.files[number] = opened.keep(theirs)?;
            }
        }
        Ok(())
    }

    fn connections(&self, tree: &Tree, last: RawFd) -> Result<Vec<(pid_t, OwnedFd)>> {
        restore::outlive(tree, &self.channels, last)
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        match &file.kind {
            Kind::Plugin(name) => Some(format!("plugin {name}'s")),
            Kind::Supervisor => Some("the connection of plugins to the supervisor".into()),
            _ => None,
        }
    }
}
