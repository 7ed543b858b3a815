//! Files that the host puts onto a card.

use std::{
    io::{self, Read},
    time::Duration,
};

use snaprig_card_driver::errno::Errno;

use crate::{
    call::IO_MAX,
    inode::Inode,
    tree::{Found, Node, Vfs},
};

/// What a path is to be.
pub enum Entry<'a> {
    /// A directory, which may be there already.
    Directory,
    /// A regular file.
    File {
        /// Permission bits.
        mode: u32,
        /// Time of the last change, since the epoch.
        mtime: Duration,
        /// What is in it.
        contents: &'a mut dyn Read,
    },
    /// A symbolic link to this path.
    Link(String),
    /// Another name of the file with this path.
    Same(String),
}

impl Vfs {
    /// Puts an entry at an absolute path, in place of what is there, with the directories on its
    /// way. All paths are the card's: a link leads nowhere else.
    pub fn install(&mut self, path: &str, entry: Entry) -> io::Result<()> {
        self.try_install(path, entry).map_err(|error| match error {
            Failure::Host(error) => error,
            Failure::Card(errno) => io::Error::from_raw_os_error(errno.0),
        })
    }

    fn try_install(&mut self, path: &str, entry: Entry) -> Result<(), Failure> {
        match entry {
            Entry::Directory => self.make_directories(path)?,
            Entry::Link(target) => {
                let found = self.vacate(path)?;
                self.add(found.parent, &found.name, Node::Link(target))?;
            }
            Entry::Same(other) => {
                let node = self.lookup(self.root(), &other, false)?;
                let found = self.find(self.root(), path, false)?;
                if found.node != Some(node) {
                    let found = self.vacate(path)?;
                    self.link(found.parent, &found.name, node)?;
                }
            }
            Entry::File {
                mode,
                mtime,
                contents,
            } => {
                let inode = Inode::new(self.memory(), mode);
                let (mut buffer, mut at) = (vec![0; IO_MAX], 0);
                loop {
                    let count = contents.read(&mut buffer).map_err(Failure::Host)?;
                    let mut rest = &buffer[..count];
                    while !rest.is_empty() {
                        let done = inode.write_at(at, rest)?;
                        (at, rest) = (at + done as u64, &rest[done..]);
                    }
                    if count == 0 {
                        break;
                    }
                }
                set_times(&inode, mtime);
                let found = self.vacate(path)?;
                self.add(found.parent, &found.name, Node::File(inode))?;
            }
        }
        Ok(())
    }

    /// Makes room for something new at a path. A directory goes only if nothing is in it.
    fn vacate(&mut self, path: &str) -> Result<Found, Errno> {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.make_directories(parent)?;
        }
        let found = self.find(self.root(), path, false)?;
        if found.name.is_empty() {
            return Err(Errno::EISDIR);
        }
        if let Some(old) = found.node {
            if self.directory(old).is_ok_and(|names| !names.is_empty()) {
                return Err(Errno::EISDIR);
            }
            self.unlink_node(found.parent, &found.name, old);
        }
        Ok(found)
    }
}

/// What comes from the host was last touched when it was changed.
fn set_times(inode: &Inode, mtime: Duration) {
    let mut attributes = inode.meta().lock();
    attributes.mtime = mtime.into();
    attributes.atime = attributes.mtime;
}

enum Failure {
    Host(io::Error),
    Card(Errno),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Card(errno)
    }
}
