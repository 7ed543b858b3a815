//! Regular files whose contents go into an image: those that a captured process has open, and those
//! without a name (deleted ones, memfds, shared memory, texts of /proc), open or mapped; on request, also those that are
//! mapped shared. Other files that are only mapped (programs, libraries), and those that are saved elsewhere, are told by
//! name.
//!
//! In the stream they are pages at addresses that no program has: file `n` is at
//! `PAGES_START + n * SIZE_MAX`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use snaprig_card_driver::errno::Errno;
use snaprig_card_memory::CardMemory;

use crate::{
    inode::{Inode, SIZE_MAX},
    meta::{Attributes, Meta},
    tree::{Node, Vfs},
};

/// Where the pages of files start.
pub const PAGES_START: u64 = 1 << 63;
/// Most such files of an image.
const FILES_MAX: usize = 1 << 17;

/// Where a restore finds a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRef {
    /// Under this path.
    Named(String),
    /// In the image.
    Stored {
        /// Which of the image's files.
        index: u32,
        /// The path that the process knows it by.
        path: String,
    },
}

impl FileRef {
    /// The path that the process knows it by.
    pub fn path(&self) -> &str {
        match self {
            Self::Named(path) | Self::Stored { path, .. } => path,
        }
    }
}

/// What an image says of such a file, but for its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredImage {
    size: u64,
    seals: i32,
    attributes: Attributes,
    /// Its name, if it has one.
    name: Option<String>,
    /// The image itself is written to it: what is in it is not.
    is_target: bool,
}

/// Files on their way into an image.
#[derive(Default)]
pub struct Storing {
    files: Vec<(Arc<Inode>, Option<String>)>,
    elsewhere: Vec<Arc<Inode>>,
    target: Option<Arc<Inode>>,
    /// Files that are mapped shared go into the image.
    mapped: bool,
}

impl Storing {
    /// For an image that is written to `target`, if that is a file of the card; `mapped`: with files that are mapped shared.
    pub fn new(target: Option<Arc<Inode>>, mapped: bool) -> Self {
        Self {
            target,
            mapped,
            ..Self::default()
        }
    }

    /// The contents of `inode` are saved elsewhere.
    pub fn skip(&mut self, inode: &Arc<Inode>) {
        if !self.skips(inode) {
            self.elsewhere.push(inode.clone());
        }
    }

    /// Whether the contents of `inode` are saved elsewhere.
    pub fn skips(&self, inode: &Arc<Inode>) -> bool {
        self.elsewhere.iter().any(|file| Arc::ptr_eq(file, inode))
    }

    /// Where a restore finds `inode`, which a process has open as `path`.
    pub fn refer_open(&mut self, vfs: &Vfs, inode: &Arc<Inode>, path: &str) -> FileRef {
        let name = vfs.path_to(inode, path);
        match name {
            Some(name) if self.skips(inode) => FileRef::Named(name),
            name => self.store(inode, name, path),
        }
    }

    /// Where a restore finds `inode`, which a process has mapped as `path`, shared or not. To be asked when all open
    /// files are known.
    pub fn refer_mapped(
        &mut self,
        vfs: &Vfs,
        inode: &Arc<Inode>,
        path: &str,
        shared: bool,
    ) -> FileRef {
        if self.index_of(inode).is_some() {
            return self.store(inode, None, path);
        }
        match vfs.path_to(inode, path) {
            Some(name) if !(self.mapped && shared) => FileRef::Named(name),
            name => self.store(inode, name, path),
        }
    }

    fn store(&mut self, inode: &Arc<Inode>, name: Option<String>, path: &str) -> FileRef {
        let index = self.index_of(inode).unwrap_or_else(|| {
            self.files.push((inode.clone(), name));
            self.files.len() - 1
        });
        FileRef::Stored {
            index: index as u32,
            path: path.into(),
        }
    }

    fn index_of(&self, inode: &Arc<Inode>) -> Option<usize> {
        self.files
            .iter()
            .position(|(file, _)| Arc::ptr_eq(file, inode))
    }

    fn is_target(&self, inode: &Arc<Inode>) -> bool {
        self.target
            .as_ref()
            .is_some_and(|target| Arc::ptr_eq(target, inode))
    }

    /// What the image says of them.
    pub fn images(&self) -> Vec<StoredImage> {
        let image = |(file, name): &(Arc<Inode>, Option<String>)| {
            let is_target = self.is_target(file);
            StoredImage {
                size: if is_target { 0 } else { file.size() },
                seals: file.seals(),
                attributes: file.meta().lock().clone(),
                name: name.clone(),
                is_target,
            }
        };
        self.files.iter().map(image).collect()
    }

    /// Shows every page that they have, in order: address in the stream, and frame.
    pub fn pages(&self, mut seen: impl FnMut(u64, u64)) {
        for (index, (file, _)) in self.files.iter().enumerate() {
            let start = PAGES_START + index as u64 * SIZE_MAX;
            if !self.is_target(file) {
                file.each_frame(|offset, frame| seen(start + offset, frame));
            }
        }
    }
}

/// A file of the image, and the one of the card that is used in its place.
pub type Replaced = (Arc<Inode>, Arc<Inode>);

/// The files of an image on a card.
pub struct Stored {
    files: Vec<Arc<Inode>>,
    images: Vec<StoredImage>,
}

impl Stored {
    /// The files, with nothing in them yet, and without a name.
    pub fn new(memory: &Arc<CardMemory>, images: Vec<StoredImage>) -> Result<Self, Errno> {
        if images.len() > FILES_MAX {
            return Err(Errno::EBADMSG);
        }
        let file = |image: &StoredImage| {
            let meta = Meta::restored(image.attributes.clone());
            meta.lock().nlink = 0;
            // Sealed when its pages are in it.
            let inode = Inode::of(memory, meta, 0);
            inode.truncate(image.size)?;
            Ok(inode)
        };
        let files = images.iter().map(file).collect::<Result<_, Errno>>()?;
        Ok(Self { files, images })
    }

    /// The files of the next image of a chain: what is in them stays, but for what lies behind their ends.
    pub fn follow(
        &mut self,
        memory: &Arc<CardMemory>,
        images: Vec<StoredImage>,
    ) -> Result<(), Errno> {
        let old = std::mem::take(&mut self.files);
        let mut next = Self::new(memory, images)?;
        for ((new, image), old) in next.files.iter_mut().zip(&next.images).zip(old) {
            old.truncate(image.size)?;
            *new = old;
        }
        *self = next;
        Ok(())
    }

    /// Pages of the stream are no more: zeros.
    pub fn empty(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        let address = address.checked_sub(PAGES_START).ok_or(Errno::EBADMSG)?;
        let (index, at) = ((address / SIZE_MAX) as usize, address % SIZE_MAX);
        // Of a file that is no more nothing is left.
        match self.files.get(index) {
            Some(file) if at < file.size() => file.punch(at, bytes.min(file.size() - at)),
            _ => Ok(()),
        }
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
            let done = file.write_at(at, rest).map_err(|errno| match errno {
                Errno::ENOSPC => Errno::ENOMEM,
                other => other,
            })?;
            (at, rest) = (at + done as u64, &rest[done..]);
        }
        Ok(())
    }

    /// The file that a [`FileRef::Stored`] means.
    pub fn get(&self, index: u32) -> Result<Arc<Inode>, Errno> {
        let file = self.files.get(index as usize);
        file.cloned().ok_or(Errno::EBADMSG)
    }

    /// Takes files of this card, where they are the same, in place of those of the image: pairs of the
    /// file of the image and the one that is to be used. To be called once, when all pages are there.
    pub fn settle(&mut self, vfs: &Vfs) -> Result<Vec<Replaced>, Errno> {
        let mut pairs = Vec::new();
        for (file, image) in self.files.iter_mut().zip(&mut self.images) {
            let there = image.name.as_ref().and_then(|name| vfs.inode(name).ok());
            if let Some(there) = there
                && (image.is_target || there.is_same(file))
            {
                image.name = None;
                pairs.push((std::mem::replace(file, there.clone()), there));
                continue;
            }
            // What has been written to it is as old as the image says.
            let mut attributes = file.meta().lock();
            let nlink = attributes.nlink;
            *attributes = image.attributes.clone();
            attributes.nlink = nlink;
            drop(attributes);
            file.seal(image.seals)?;
        }
        Ok(pairs)
    }

    /// Gives the others the names that they had, each in place of what is there, as rename(2) would.
    pub fn name(&self, vfs: &mut Vfs) -> Result<(), Errno> {
        for (file, image) in self.files.iter().zip(&self.images) {
            if let Some(name) = &image.name {
                vfs.put(name, Node::File(file.clone()))?;
                file.meta().link(1);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use snaprig_card_memory::PAGE;

    use super::*;
    use crate::test_kit::Kit;

    /// The files of an image, with their pages.
    fn again(kit: &Kit, storing: &Storing) -> Stored {
        let memory = kit.vfs.memory();
        let stored = Stored::new(memory, storing.images()).unwrap();
        storing.pages(|address, frame| {
            let mut page = [0; PAGE as usize];
            memory.read(frame, &mut page);
            stored.fill(address, &page).unwrap();
        });
        stored
    }

    #[test]
    fn a_nameless_file_comes_back_with_its_holes() {
        let kit = Kit::new();
        let memory = kit.vfs.memory();
        let (mut storing, inode) = (Storing::default(), Inode::nameless(memory, 0o640));
        inode.write_at(5000, b"here").unwrap();
        inode.write_at(1 << 30, b"and far away").unwrap();
        let refer = storing.refer_open(&kit.vfs, &inode, "/tmp/gone");
        assert_eq!(
            storing.refer_mapped(&kit.vfs, &inode, "/tmp/gone", true),
            refer
        );
        let free = memory.free_bytes();
        let stored = again(&kit, &storing);
        assert_eq!(free - memory.free_bytes(), 2 * PAGE, "holes stay holes");
        let copy = stored.get(0).unwrap();
        assert_eq!((copy.size(), copy.mode()), (inode.size(), 0o640));
        assert_eq!(copy.read_at(5000, 4), b"here");
        assert_eq!(copy.read_at(1 << 30, 100), b"and far away");
        assert_eq!(copy.stat().nlink, 0);
    }

    #[test]
    fn a_named_file_replaces_what_differs_and_takes_what_is_the_same() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"one");
        let inode = kit.vfs.inode("/tmp/a").unwrap();
        let mut storing = Storing::default();
        let FileRef::Stored { .. } = storing.refer_open(&kit.vfs, &inode, "/tmp/a") else {
            panic!("an open file is in the image");
        };
        let mut stored = again(&kit, &storing);
        assert_eq!(stored.settle(&kit.vfs).unwrap().len(), 1);
        stored.name(&mut kit.vfs).unwrap();
        assert!(Arc::ptr_eq(&kit.vfs.inode("/tmp/a").unwrap(), &inode));
        for there in [Some(&b"other"[..]), None] {
            let found = kit.vfs.find(kit.vfs.root(), "/tmp/a", false).unwrap();
            kit.vfs
                .unlink_node(found.parent, &found.name, found.node.unwrap());
            if let Some(bytes) = there {
                kit.file("/tmp/a", bytes);
            }
            let mut stored = again(&kit, &storing);
            assert!(stored.settle(&kit.vfs).unwrap().is_empty());
            stored.name(&mut kit.vfs).unwrap();
            assert_eq!(kit.vfs.read_all("/tmp/a").unwrap(), b"one");
            assert_eq!(kit.vfs.inode("/tmp/a").unwrap().stat().nlink, 1);
        }
    }

    #[test]
    fn a_hostile_image_is_refused() {
        let kit = Kit::new();
        let memory = kit.vfs.memory();
        let image = |size| StoredImage {
            size,
            seals: 0,
            attributes: Attributes::default(),
            name: None,
            is_target: false,
        };
        assert!(Stored::new(memory, vec![image(u64::MAX)]).is_err());
        let files = Stored::new(memory, vec![image(10)]).unwrap();
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
