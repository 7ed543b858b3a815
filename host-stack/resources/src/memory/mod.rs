//! Memory that several processes can map: memfds, anonymous shared memory, and files that have lost their names while
//! somebody maps them.
//!
//! | | |
//! |---|---|
//! | size, seals, name, huge pages, what is in it | saved |
//! | secret memory (memfd_secret(2)) | refused |
//!
//! Where the tree moves on its machine, memory goes along as it is, whatever has it: nothing of it is copied.

mod along;
mod restore;
mod save;
pub mod shared;
pub mod state;
mod unlinked;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

use snaprig_tracee::freeze::Frozen;

use self::{
    shared::{Shared, id_of},
    unlinked::Unlinked,
};
use crate::{
    board::Board,
    copy::{PageWriter, write_gone},
    descriptor::FoundDescriptor,
    error::{Error, Result},
    huge::{self, pages, save::Untold},
    opened::{Item, Opened, damaged, open_again, seek},
    resource::{FoundFile, Purpose, Resource, Saved, Stopped, TreeContext},
    spaces::{Key, Spaces},
    state::{Kind, OpenFile, SharedMemory, Tree},
    target::{Target, Targets},
};

/// Memory that several can map.
#[derive(Debug, Default)]
pub struct Memory {
    /// Where page tables do not tell of all huge pages that are there.
    untold: Untold,
    /// It goes along with the tree where it can.
    moves: bool,
    /// What goes along as it is, and no image has, by its space.
    along: BTreeMap<u32, OwnedFd>,
    /// Spaces of what has come along.
    came: BTreeSet<u32>,
}

impl Resource for Memory {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        let name = seen.name.as_os_str().as_bytes();
        if name == b"/secretmem (deleted)" {
            return Err(seen.refused("secret memory can be read by nobody else"));
        }
        Ok(memfd_name(seen).is_some() || is_nameless_huge(seen))
    }

    fn save(&mut self, met: FoundFile<'_>, around: &mut TreeContext<'_>) -> Result<Saved> {
        let name = memfd_name(met.seen).map(<[u8]>::to_vec);
        Ok(memory(met.seen, name, &met.copy, around.shared).into())
    }

    fn number(&self, tree: &mut Tree, shared: &Shared, spaces: &mut Spaces) -> Result<()> {
        let of = |object: &shared::SharedObject, spaces: &mut Spaces| SharedMemory {
            space: spaces.meet(Key::Shared(object.id.0, object.id.1)).number(),
            name: object.name.clone(),
            size: object.size,
            seals: object.seals,
            huge_bytes: object.huge_bytes,
        };
        tree.shared = shared.met.iter().map(|object| of(object, spaces)).collect();
        Ok(())
    }

    fn join(&mut self, _: &mut Tree, stopped: &mut Stopped<'_>) -> Result<()> {
        self.moves = stopped.purpose == Purpose::MovingAlong;
        Ok(())
    }

    fn scan(&mut self, tree: &Tree, shared: &Shared, frozen: &mut Frozen) -> Result<()> {
        self.untold = huge::save::find_objects(frozen, &shared.met, tree)?;
        if self.moves {
            self.along = along::find(tree, &shared.met);
        }
        Ok(())
    }

    fn carried(&self, _: &[OpenFile]) -> Vec<(Item, BorrowedFd<'_>)> {
        let along = self.along.iter();
        along
            .map(|(space, fd)| (Item::Memory(*space), fd.as_fd()))
            .collect()
    }

    fn write(
        &self,
        _: &Tree,
        shared: &Shared,
        spaces: &mut Spaces,
        writer: &mut dyn PageWriter,
    ) -> Result<()> {
        for object in &shared.met {
            let space = spaces.meet(Key::Shared(object.id.0, object.id.1));
            if self.along.contains_key(&space.number()) {
                continue;
            }
            let wrote = match (object.huge_bytes, object.open) {
                (1.., None) => {
                    huge::save::write_object(space.number(), object, &self.untold, writer)?
                }
                _ => save::write(space.number(), object, writer)?,
            };
            write_gone(space.number(), &space.is_now(wrote), writer)?;
        }
        Ok(())
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        let by_name = unlinked::by_name(tree);
        let mut unlinked = (!by_name.is_empty()).then(Unlinked::mount).transpose()?;
        for (number, shared) in (0..).zip(&tree.shared) {
            let carried = opened.carried(Item::Memory(shared.space));
            let (memory, view) = match (carried, unlinked.as_mut(), by_name.get(&number)) {
                (Some(carried), ..) => {
                    self.came.insert(shared.space);
                    restore::with_view(shared, carried)?
                }
                (_, Some(unlinked), Some(flags)) => unlinked.make(number, shared.size, *flags)?,
                _ => restore::memfd(shared)?,
            };
            let memory = (opened.keep(memory)?, opened.keep(view)?);
            opened.shared.push(memory);
        }
        opened.each(tree, |opened, file| {
            let Kind::Memory { shared, offset } = file.kind else {
                return Ok(None);
            };
            let memory = opened.shared.get(shared as usize).copied();
            let (memory, _) = memory.ok_or_else(|| damaged("shared memory without a number"))?;
            // An open file of its own, with an offset of its own.
            let file = match unlinked.as_mut().filter(|_| by_name.contains_key(&shared)) {
                Some(unlinked) => unlinked.open(shared, file.flags)?,
                None => open_again(memory, file.flags)?,
            };
            seek(&file, offset)?;
            Ok(Some(file))
        })
    }

    fn targets(&self, tree: &Tree, opened: &Opened, targets: &mut Targets) -> Result<()> {
        for (shared, (memory, _)) in tree.shared.iter().zip(&opened.shared) {
            if self.came.contains(&shared.space) {
                continue;
            }
            let target = match shared.huge_bytes {
                0 => Target::New(*memory),
                // There is nothing to map.
                _ if shared.size == 0 => Target::New(*memory),
                // write(2) is not for them.
                bytes => {
                    let mapped = pages::Mapped::map(memory, shared.size, true);
                    let mapped = mapped.map_err(|source| Error::io("shared huge pages", source))?;
                    Target::Huge(mapped, bytes)
                }
            };
            targets.insert(shared.space, target);
        }
        Ok(())
    }

    fn finish(&self, tree: &Tree, opened: &Opened) -> Result<()> {
        restore::finish(tree, opened, &self.came)
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        match &file.kind {
            Kind::Memory { shared, offset } => Some(format!("shared memory {shared} at {offset}")),
            _ => None,
        }
    }

    fn describe_spaces(&self, tree: &Tree) -> Vec<String> {
        let line = |shared: &SharedMemory| {
            let name = shared.name.as_deref();
            let name = name.map_or("anonymous".into(), String::from_utf8_lossy);
            let (space, size) = (shared.space, shared.size);
            format!("{space:>5} shared memory, {size} bytes: {name}")
        };
        tree.shared.iter().map(line).collect()
    }
}

/// The name of a memfd.
fn memfd_name(seen: &FoundDescriptor) -> Option<&[u8]> {
    let name = seen.name.as_os_str().as_bytes();
    let memory = name.strip_prefix(b"/memfd:")?;
    Some(memory.strip_suffix(b" (deleted)").unwrap_or(memory))
}

/// A file of huge pages that has lost its name: a hugetlbfs may not be there where it is restarted.
fn is_nameless_huge(seen: &FoundDescriptor) -> bool {
    !seen.is_name()
        && seen.metadata.is_file()
        && seen.lost_name().is_some()
        && pages::of_path(&seen.path()) != 0
}

fn memory(
    seen: &FoundDescriptor,
    name: Option<Vec<u8>>,
    copy: &OwnedFd,
    shared: &mut Shared,
) -> Kind {
    let object = shared.meet(id_of(&seen.metadata), name, pages::of_file(copy));
    let object_of = &mut shared.met[object];
    object_of.size = seen.metadata.len();
    object_of.open = Some((seen.pid, seen.fd));
    // SAFETY: F_GET_SEALS takes no argument, so fcntl(2) reads and writes no memory of this process.
    object_of.seals = unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_GET_SEALS) }.max(0);
    Kind::Memory {
        shared: object as u32,
        offset: seen.info.offset,
    }
}
