//! Where a path leads (path_resolution(7)), in the order in which Linux looks: its fs/namei.c.

use snaprig_card_driver::errno::Errno;

use super::vfs::{Found, Node, Vfs};
use crate::meta::Meta;

/// Most bytes of a path.
pub const PATH_MAX: usize = 4096;
const NAME_MAX: usize = 255;
/// Symbolic links followed in one path.
const LINKS_MAX: usize = 40;

/// The last part of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Last {
    /// A name, which need not be there.
    Name(String),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// There is none: the path is `/`.
    Root,
}

/// A path but for its last part, which is not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory that the last part is in.
    pub directory: u64,
    /// The last part.
    pub last: Last,
    /// Slashes follow it.
    pub slash: bool,
}

impl Vfs {
    /// The directory of a path, and its last part.
    pub fn place(&self, base: &Meta, path: &str) -> Result<Place, Errno> {
        self.place_from(base.number, path, &mut 0)
    }

    /// What is at a path; ENOENT if nothing is. A symbolic link at its end is followed if `follow`,
    /// or if a slash comes after it.
    pub fn lookup(&self, base: &Meta, path: &str, follow: bool) -> Result<u64, Errno> {
        self.lookup_from(base.number, path, follow, &mut 0)
    }

    /// What is at a path, or where it could be. A link that leads nowhere is followed to there.
    pub fn find(&self, base: &Meta, path: &str, follow: bool) -> Result<Found, Errno> {
        self.find_from(base.number, path, follow, &mut 0)
    }

    fn find_from(
        &self,
        start: u64,
        path: &str,
        follow: bool,
        links: &mut usize,
    ) -> Result<Found, Errno> {
        let place = self.place_from(start, path, links)?;
        let node = self.last_of(&place);
        let name = match (&place.last, node) {
            (Last::Name(name), Ok(node)) => {
                if let Some(Node::Link(target)) = self.node(node)
                    && (follow || place.slash)
                {
                    count(links)?;
                    return self.find_from(place.directory, target, true, links);
                }
                name.clone()
            }
            (Last::Name(name), Err(Errno::ENOENT)) => name.clone(),
            (_, Err(errno)) => return Err(errno),
            (_, Ok(node)) => {
                return Ok(Found {
                    parent: node,
                    name: String::new(),
                    node: Some(node),
                });
            }
        };
        if place.slash
            && let Ok(node) = node
        {
            self.directory(node)?;
        }
        Ok(Found {
            parent: place.directory,
            name,
            node: node.ok(),
        })
    }

    /// What the last part of a path is, links not followed.
    pub fn last_of(&self, place: &Place) -> Result<u64, Errno> {
        match &place.last {
            Last::Dot | Last::Root => Ok(place.directory),
            Last::DotDot => self.parent(place.directory),
            Last::Name(name) => self.child(place.directory, name),
        }
    }

    /// What a directory has under a name.
    pub fn child(&self, directory: u64, name: &str) -> Result<u64, Errno> {
        let names = self.directory(directory)?;
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        names.get(name).ok_or(Errno::ENOENT)
    }

    fn lookup_from(
        &self,
        start: u64,
        path: &str,
        follow: bool,
        links: &mut usize,
    ) -> Result<u64, Errno> {
        let place = self.place_from(start, path, links)?;
        let mut node = self.last_of(&place)?;
        if let Some(Node::Link(target)) = self.node(node)
            && (follow || place.slash)
        {
            count(links)?;
            node = self.lookup_from(place.directory, target, true, links)?;
        }
        if place.slash {
            self.directory(node)?;
        }
        Ok(node)
    }

    /// The path that a link at a place leads to is to be looked at from its directory.
    pub fn place_from(&self, start: u64, path: &str, links: &mut usize) -> Result<Place, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut directory = match path.starts_with('/') {
            true => self.root().number,
            false => start,
        };
        let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
        let mut last = Last::Root;
        while let Some(name) = names.next() {
            last = match name {
                "." => Last::Dot,
                ".." => Last::DotDot,
                name => Last::Name(name.to_owned()),
            };
            if names.peek().is_some() {
                directory = self.step(directory, name, links)?;
            }
        }
        let slash = path.ends_with('/') && last != Last::Root;
        Ok(Place {
            directory,
            last,
            slash,
        })
    }

    /// Into a directory of a path, through links if there are any.
    fn step(&self, directory: u64, name: &str, links: &mut usize) -> Result<u64, Errno> {
        let next = match name {
            "." => directory,
            ".." => self.parent(directory)?,
            name => self.child(directory, name)?,
        };
        let next = match self.node(next) {
            Some(Node::Link(target)) => {
                count(links)?;
                self.lookup_from(directory, target, true, links)?
            }
            _ => next,
        };
        self.directory(next)?;
        Ok(next)
    }
}

/// One link more is followed.
pub fn count(links: &mut usize) -> Result<(), Errno> {
    *links += 1;
    match *links > LINKS_MAX {
        true => Err(Errno::ELOOP),
        false => Ok(()),
    }
}
