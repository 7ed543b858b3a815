//! Saves files that have, or had, a name: what they must still be, and of those that the program may write to what is in
//! them.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsStr,
    fs::{self, File},
    io::{Seek, SeekFrom},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::PermissionsExt},
    },
    path::{Path, PathBuf},
};

use snaprig_tracee::descriptors::me;

use super::named::Named;
use crate::{
    collected::Collected,
    copy::{PageWriter, write_gone},
    descriptor::FoundDescriptor,
    error::{Error, Result},
    huge,
    memory::shared::{Shared, id_of},
    opened::Item,
    resource::FoundFile,
    spaces::{Key, Spaces},
    state::{Backing, Contents, FileId, Kind, LockedBy, OpenFile, Process, Tree},
};

/// Files with names that a program writes to are saved up to so many bytes; of larger ones only what they are is
/// remembered.
const CONTENTS_MAX: u64 = 256 << 20;
/// Files that a program only reads are known again by all of their bytes, if they have no more than this.
const HASHED_MAX: u64 = 128 << 10;
/// A time of modification that no file has.
const UNKNOWN: i64 = i64::MIN;

/// Contents of files that are saved.
#[derive(Debug, Default)]
pub struct Saving {
    /// Where the bytes of each are, in the order that the image numbers them until their spaces are known.
    sources: Vec<(Key, Source)>,
    /// Of which files they are: device and inode.
    saved: HashMap<(u64, u64), Contents>,
    /// Open files that go along as they are, by number: nothing of what is in them is saved.
    along: Vec<(u32, OwnedFd)>,
}

/// Where the bytes of a file are read.
#[derive(Debug)]
pub enum Source {
    /// By a name.
    Path(PathBuf),
    /// Through the program's own open file, and where that is at: to open a file breaks a lease on it.
    Own(File, u64),
}

impl Source {
    /// Which space of a chain of images the bytes are.
    pub fn key(&self) -> Result<Key> {
        let metadata = match self {
            Self::Path(path) => fs::metadata(path),
            Self::Own(file, _) => file.metadata(),
        };
        let metadata = metadata.map_err(|source| Error::io("contents of a file", source))?;
        let (device, inode) = id_of(&metadata);
        Ok(Key::Contents(device, inode))
    }

    /// Has the bytes read; they are where they were when it returns.
    pub fn read(&self, read: impl FnOnce(&File) -> Result<()>) -> Result<()> {
        match self {
            Self::Path(path) => {
                let file = File::open(path);
                let named = |source| Error::io(path.display().to_string(), source);
                read(&file.map_err(named)?)
            }
            Self::Own(file, offset) => {
                let done = read(file);
                let back = { file }.seek(SeekFrom::Start(*offset));
                back.map_err(|source| Error::io("lseek", source))?;
                done
            }
        }
    }
}

impl Saving {
    /// A file that is met. `goes_along`: as it is, with whatever others write to it meanwhile.
    pub fn file(
        &mut self,
        met: FoundFile<'_>,
        named: &mut Named,
        goes_along: bool,
    ) -> Result<Kind> {
        let seen = met.seen;
        let (metadata, name) = (&seen.metadata, seen.name.as_os_str().as_bytes());
        let gone = seen.lost_name();
        // What the kernel makes up as it is read is neither saved nor compared.
        let is_regular = metadata.is_file()
            && !seen.is_name()
            && ![b"/proc/".as_slice(), b"/sys/"]
                .iter()
                .any(|root| name.starts_with(root));
        let writes = seen.info.flags & libc::O_ACCMODE != libc::O_RDONLY;
        // What has no name is nowhere else.
        let is_to_be_set_back = writes && metadata.len() <= CONTENTS_MAX && !goes_along;
        let is_saved = is_regular && (gone.is_some() || is_to_be_set_back);
        if gone.is_some() && !is_saved {
            return Err(seen.refused("a file of the kernel's that has been removed"));
        }
        let is_leased = met.locks.iter().any(|lock| lock.by == LockedBy::Lease);
        if is_leased && seen.info.flags & (libc::O_ACCMODE | libc::O_DIRECT) != libc::O_RDWR {
            return Err(seen.refused("a lease on what only others can read"));
        }
        let (file, tail) = match is_regular && gone.is_none() {
            true if is_leased => (Some(named.file(seen.pid, &seen.name, false)?), 0),
            true => {
                let is_hashed = !writes && metadata.len() <= HASHED_MAX;
                let file = named
                    .file(seen.pid, &seen.name, is_hashed)
                    .or_else(|_| named.file(seen.pid, &seen.name, false))?;
                (Some(file), named.tail(&seen.name))
            }
            false => (None, 0),
        };
        let source = match is_leased {
            true => Source::Own(met.copy.into(), seen.info.offset),
            false => {
                if is_regular && goes_along {
                    self.along.push((met.number, met.copy));
                }
                Source::Path(seen.path())
            }
        };
        let contents = is_saved.then(|| self.save(seen, source)).transpose()?;
        Ok(Kind::Path {
            path: gone.unwrap_or(name).to_vec(),
            offset: seen.info.offset,
            file,
            tail,
            contents,
            unlinked: gone.is_some(),
            mode: metadata.permissions().mode() & 0o7777,
        })
    }

    /// The contents of a file, which are saved once. The space is that behind all others, for now.
    fn save(&mut self, seen: &FoundDescriptor, source: Source) -> Result<Contents> {
        let id = id_of(&seen.metadata);
        if let Some(contents) = self.saved.get(&id) {
            return Ok(*contents);
        }
        self.add(id, source, seen.metadata.len())
    }

    fn add(&mut self, id: (u64, u64), source: Source, size: u64) -> Result<Contents> {
        let contents = Contents {
            space: self.sources.len() as u32,
            size,
        };
        self.sources.push((source.key()?, source));
        self.saved.insert(id, contents);
        Ok(contents)
    }

    /// Files that processes have mapped to write to: their contents go back with the memory, if anybody has a descriptor
    /// of them or not.
    pub fn all_mapped(&mut self, tree: &mut Tree, collected: &mut Collected) -> Result<()> {
        for file in mapped(&tree.processes) {
            self.mapped(file, &mut tree.files, collected)?;
        }
        Ok(())
    }

    /// Its time of modification says nothing: memory is written without one.
    fn mapped(
        &mut self,
        file: &FileId,
        open: &mut Vec<OpenFile>,
        collected: &mut Collected,
    ) -> Result<()> {
        let path = Path::new(OsStr::from_bytes(&file.path));
        let metadata = fs::metadata(path);
        let metadata = metadata.map_err(|source| Error::io(path.display().to_string(), source))?;
        if !metadata.is_file() || metadata.len() > CONTENTS_MAX {
            return Ok(());
        }
        if let Some(saved) = self.saved.get(&id_of(&metadata)) {
            for open in open {
                if let Kind::Path {
                    contents: Some(contents),
                    file: Some(file),
                    ..
                } = &mut open.kind
                    && contents.space == saved.space
                {
                    file.modified_nanos = UNKNOWN;
                }
            }
            return Ok(());
        }
        let source = Source::Path(path.to_owned());
        let contents = self.add(id_of(&metadata), source, metadata.len())?;
        collected.first.push((me(), -1));
        open.push(OpenFile {
            flags: libc::O_RDWR,
            kind: Kind::Path {
                path: file.path.clone(),
                offset: 0,
                file: Some(FileId {
                    modified_nanos: UNKNOWN,
                    ..file.clone()
                }),
                tail: 0,
                contents: Some(contents),
                unlinked: false,
                mode: metadata.permissions().mode() & 0o7777,
            },
            owner: None,
            locks: Vec::new(),
        });
        Ok(())
    }

    /// The same, of files that go along: as what is mapped of them they are open, for whoever has other files there.
    pub fn all_mapped_along(&mut self, tree: &mut Tree, collected: &mut Collected) -> Result<()> {
        let mapped: BTreeSet<_> = mapped(&tree.processes).map(|file| &file.path).collect();
        for path in mapped {
            let name = Path::new(OsStr::from_bytes(path));
            let failed = |source| Error::io(name.display().to_string(), source);
            // To open a device does something.
            if !fs::metadata(name).map_err(failed)?.is_file() {
                continue;
            }
            let file = File::options().read(true).write(true).open(name);
            let file = file.map_err(failed)?;
            self.along.push((tree.files.len() as u32, file.into()));
            collected.first.push((me(), -1));
            tree.files.push(OpenFile {
                flags: libc::O_RDWR,
                kind: Kind::Path {
                    path: path.clone(),
                    offset: 0,
                    file: None,
                    tail: 0,
                    contents: None,
                    unlinked: false,
                    mode: 0,
                },
                owner: None,
                locks: Vec::new(),
            });
        }
        Ok(())
    }

    /// What goes along has no contents in the image; nor does what is memory ([`Self::share`]) go along as a file.
    pub fn settle_along(&mut self, open: &mut [OpenFile]) {
        self.sources.clear();
        self.along.retain(|(number, _)| {
            let kind = &mut open[*number as usize].kind;
            if let Kind::Path { contents, .. } = kind {
                *contents = None;
                return true;
            }
            false
        });
    }

    /// What goes along.
    pub fn along(&self) -> impl Iterator<Item = (Item, BorrowedFd<'_>)> {
        let along = self.along.iter();
        along.map(|(number, file)| (Item::File(*number), file.as_fd()))
    }

    /// Files without names that somebody maps are memory, which all who have them share.
    pub fn share(&self, open: &mut [OpenFile], collected: &Collected, shared: &mut Shared) {
        for (file, first) in open.iter_mut().zip(&collected.first) {
            let Kind::Path {
                contents: Some(contents),
                unlinked: true,
                offset,
                ..
            } = &file.kind
            else {
                continue;
            };
            let mut saved = self.saved.iter();
            let id = saved.find(|(_, other)| other.space == contents.space);
            let id = id.map(|(id, _)| *id);
            let object = shared.met.iter().position(|object| Some(object.id) == id);
            if let Some(number) = object {
                shared.met[number].size = contents.size;
                shared.met[number].open = Some(*first);
                file.kind = Kind::Memory {
                    shared: number as u32,
                    offset: *offset,
                };
            }
        }
    }

    /// Numbers the spaces of contents.
    pub fn number(&self, open: &mut [OpenFile], spaces: &mut Spaces) {
        for file in open {
            if let Kind::Path {
                contents: Some(contents),
                ..
            } = &mut file.kind
                && let Some((key, _)) = self.sources.get(contents.space as usize)
            {
                contents.space = spaces.meet(*key).number();
            }
        }
    }

    /// Writes all contents.
    pub fn write(&self, spaces: &mut Spaces, writer: &mut dyn PageWriter) -> Result<()> {
        for (key, source) in &self.sources {
            let space = spaces.meet(*key);
            let mut wrote = Default::default();
            source.read(|file| {
                wrote = huge::save::write_any_file(space.number(), file, writer)?;
                Ok(())
            })?;
            write_gone(space.number(), &space.is_now(wrote), writer)?;
        }
        Ok(())
    }
}

/// Files that processes have mapped to write to, as often as they have.
fn mapped(processes: &[Process]) -> impl Iterator<Item = &FileId> {
    let bodies = processes.iter().filter_map(|it| it.body.as_ref());
    bodies
        .flat_map(|body| &body.areas)
        .filter_map(|area| match &area.backing {
            Backing::File {
                file, write: true, ..
            } => Some(file),
            _ => None,
        })
}
