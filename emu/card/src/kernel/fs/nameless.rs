//! Regular files without a name that a captured process has open or mapped: deleted ones, memfds,
//! texts of /proc. Their contents go into the image.
//!
//! In the stream they are pages at addresses that no program has: file `n` is at
//! `PAGES_START + n * SIZE_MAX`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Inode, Vfs,
    inode::{SIZE_MAX, Span},
    meta::{Attributes, Meta},
};
use crate::{kernel::errno::Errno, memory::CardMemory};

/// Where the pages of files start.
pub const PAGES_START: u64 = 1 << 63;
/// Most such files of one process: more than it can have.
const FILES_MAX: usize = 1 << 17;

/// Where a restore finds a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRef {
    /// Under this path.
    Named(String),
    /// In the image.
    Nameless {
        /// Which of the image's files.
        index: u32,
        /// The path that it once had.
        path: String,
    },
}

impl FileRef {
    /// The path that the process knows it by.
    pub fn path(&self) -> &str {
        match self {
            Self::Named(path) | Self::Nameless { path, .. } => path,
        }
    }
}

/// What an image says of such a file, but for its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamelessImage {
    size: u64,
    seals: i32,
    attributes: Attributes,
}

/// The nameless files of a process.
#[derive(Default)]
pub struct Nameless {
    files: Vec<Arc<Inode>>,
    /// Of files of an image: they are sealed when their pages are in them.
    seals: Vec<i32>,
}

impl Nameless {
    /// Where a restore finds `inode`, which the process knows by `path`.
    pub fn refer(&mut self, vfs: &Vfs, inode: &Arc<Inode>, path: &str) -> FileRef {
        if let Some(path) = vfs.path_to(inode, path) {
            return FileRef::Named(path);
        }
        let known = self.files.iter().position(|file| Arc::ptr_eq(file, inode));
        let index = known.unwrap_or_else(|| {
            self.files.push(inode.clone());
            self.files.len() - 1
        });
        FileRef::Nameless {
            index: index as u32,
            path: path.into(),
        }
    }

    /// What the image says of them.
    pub fn images(&self) -> Vec<NamelessImage> {
        let image = |file: &Arc<Inode>| NamelessImage {
            size: file.size(),
            seals: file.seals(),
            attributes: file.meta().lock().clone(),
        };
        self.files.iter().map(image).collect()
    }

    /// What is in them, in runs of at most `max` pages: address in the stream, file, and where.
    pub fn spans(&self, max: usize) -> impl Iterator<Item = (u64, Arc<Inode>, Span)> {
        self.files
            .iter()
            .enumerate()
            .flat_map(move |(index, file)| {
                let start = PAGES_START + index as u64 * SIZE_MAX;
                let spans = file.spans(max).into_iter();
                spans.map(move |span| (start + span.offset, file.clone(), span))
            })
    }

    /// The files of an image, with nothing in them yet.
    pub fn rebuild(memory: &Arc<CardMemory>, images: &[NamelessImage]) -> Result<Self, Errno> {
        if images.len() > FILES_MAX {
            return Err(Errno::EBADMSG);
        }
        let file = |image: &NamelessImage| {
            let meta = Meta::restored(image.attributes.clone());
            meta.lock().nlink = 0;
            let inode = Inode::of(memory, meta, 0);
            inode.truncate(image.size)?;
            Ok(inode)
        };
        let files = images.iter().map(file).collect::<Result<_, Errno>>()?;
        let seals = images.iter().map(|image| image.seals).collect();
        Ok(Self { files, seals })
    }

    /// All pages are in.
    pub fn finish(&self) -> Result<(), Errno> {
        let mut sealed = self.files.iter().zip(&self.seals);
        sealed.try_for_each(|(file, seals)| file.seal(*seals))
    }

    /// Puts pages of the stream where they belong.
    pub fn fill(&self, address: u64, pages: &[u8]) -> Result<(), Errno> {
        let address = address.checked_sub(PAGES_START).ok_or(Errno::EBADMSG)?;
        let (index, mut at) = ((address / SIZE_MAX) as usize, address % SIZE_MAX);
        let file = self.files.get(index).ok_or(Errno::EBADMSG)?;
        // The last page may be longer than the file.
        let left = file.size().saturating_sub(at).min(pages.len() as u64);
        let mut rest = &pages[..left as usize];
        while !rest.is_empty() {
            let done = file.write_at(at, rest)?;
            (at, rest) = (at + done as u64, &rest[done..]);
        }
        Ok(())
    }

    /// The file that a [`FileRef::Nameless`] means.
    pub fn get(&self, index: u32) -> Result<Arc<Inode>, Errno> {
        let file = self.files.get(index as usize);
        file.cloned().ok_or(Errno::EBADMSG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::fs::test_kit::Kit;

    #[test]
    fn a_nameless_file_comes_back_with_its_holes() {
        let kit = Kit::new();
        let memory = kit.vfs.memory();
        let (mut nameless, inode) = (Nameless::default(), Inode::nameless(memory, 0o640));
        inode.write_at(5000, b"here").unwrap();
        inode.write_at(1 << 30, b"and far away").unwrap();
        let refer = nameless.refer(&kit.vfs, &inode, "/tmp/gone");
        assert_eq!(nameless.refer(&kit.vfs, &inode, "/tmp/gone"), refer);
        let again = Nameless::rebuild(memory, &nameless.images()).unwrap();
        let free = memory.free_bytes();
        for (address, file, span) in nameless.spans(1) {
            let mut pages = file.read_at(span.offset, span.len);
            pages.resize(span.len, 0);
            again.fill(address, &pages).unwrap();
        }
        assert_eq!(free - memory.free_bytes(), 2 * 4096, "holes stay holes");
        let copy = again.get(0).unwrap();
        assert_eq!((copy.size(), copy.mode()), (inode.size(), 0o640));
        assert_eq!(copy.read_at(5000, 4), b"here");
        assert_eq!(copy.read_at(1 << 30, 100), b"and far away");
        assert_eq!(copy.stat().nlink, 0);
    }

    #[test]
    fn a_hostile_image_is_refused() {
        let kit = Kit::new();
        let memory = kit.vfs.memory();
        let image = |size| NamelessImage {
            size,
            seals: 0,
            attributes: Attributes::default(),
        };
        assert!(Nameless::rebuild(memory, &[image(u64::MAX)]).is_err());
        let files = Nameless::rebuild(memory, &[image(10)]).unwrap();
        assert_eq!(files.get(1).err(), Some(Errno::EBADMSG));
        assert_eq!(
            files.fill(PAGES_START + SIZE_MAX, &[0; 4096]),
            Err(Errno::EBADMSG)
        );
        assert_eq!(files.fill(0, &[0; 4096]), Err(Errno::EBADMSG));
        // What lies behind the end is dropped.
        files.fill(PAGES_START, &[7; 4096]).unwrap();
        files.fill(PAGES_START + 4096, &[7; 4096]).unwrap();
        assert_eq!(files.get(0).unwrap().read_at(0, 8192), [7; 10]);
    }
}
