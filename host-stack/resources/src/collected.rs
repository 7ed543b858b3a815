//! The open files of a tree that stands still: each once, however many descriptors it has, and of which kind it is.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    os::fd::{AsRawFd, OwnedFd},
};

use libc::pid_t;
use snaprig_tracee::{
    descriptors::{compare, copy_of, descriptors, me},
    tree::is_ours,
};

use crate::{
    descriptor::FoundDescriptor,
    error::{Error, Result},
    locks::save as locks,
    memory::shared::id_of,
    plugins::owned::Owned,
    resource::{FoundFile, Resources, TreeContext},
    state::{Descriptor, Kind, Lock, OpenFile},
};

/// Open files, as they are met.
#[derive(Debug, Default)]
pub struct Collected {
    /// What each is.
    pub open: Vec<OpenFile>,
    /// Who has each first: process and descriptor.
    pub first: Vec<(pid_t, i32)>,
    /// Those that may be the same, in the kernel's order: there may be thousands of one name.
    alike: HashMap<(u64, u64, u64), Vec<u32>>,
    /// By process and descriptor, the number of the file: who can see what an epoll's numbers mean.
    pub tables: BTreeMap<(pid_t, i32), u32>,
    /// Copies of files that no process has: on their way from process to process.
    kept: Vec<OwnedFd>,
}

impl Collected {
    /// Adds the descriptors of a process, as one of its threads has them: the first may have ended. What belongs to
    /// plugins is not looked at.
    pub fn add(
        &mut self,
        (process, pid): (pid_t, pid_t),
        owned: &Owned,
        resources: &mut Resources,
        around: &mut TreeContext<'_>,
    ) -> Result<Vec<Descriptor>> {
        let mut found = Vec::new();
        for fd in descriptors(pid)? {
            let seen = FoundDescriptor::look(pid, fd)?;
            let locks = locks::locks(process, &seen)?;
            let file = self.meet(&seen, locks, owned, resources, around)?;
            self.tables.insert((pid, fd), file);
            found.push(Descriptor {
                fd,
                file,
                close_on_exec: seen.info.flags & libc::O_CLOEXEC != 0,
            });
        }
        Ok(found)
    }

    fn meet(
        &mut self,
        seen: &FoundDescriptor,
        locks: Vec<Lock>,
        owned: &Owned,
        resources: &mut Resources,
        around: &mut TreeContext<'_>,
    ) -> Result<u32> {
        let known = self.known(seen);
        if let Ok(file) = known {
            self.check_plugins(file, seen)?;
            // Each process has its own.
            let own = &mut self.open[file as usize].locks;
            for lock in locks {
                if !own.contains(&lock) {
                    own.push(lock);
                }
            }
            return Ok(file);
        }
        let (pid, fd) = (seen.pid, seen.fd);
        let number = self.open.len() as u32;
        let alike = self.alike.entry(alike(seen)).or_default();
        alike.insert(known.err().unwrap_or(0), number);
        self.first.push((pid, fd));
        let of_plugin = owned.kind(pid, fd, &seen.metadata);
        let is_plugins = of_plugin.is_some();
        // Its place: epolls may watch themselves in a circle.
        self.open.push(OpenFile {
            flags: seen.info.flags & !libc::O_CLOEXEC,
            kind: of_plugin.unwrap_or(Kind::Stdio(-1)),
            owner: None,
            locks,
        });
        if is_plugins {
            return Ok(number);
        }
        let copy = copy_of(pid, fd)?;
        if !seen.is_name() {
            self.open[number as usize].owner = locks::owner_of(seen, &copy, is_ours)?;
        }
        self.save(number, seen, copy, owned, resources, around)?;
        Ok(number)
    }

    /// Has the kind that a file is of say what it is.
    fn save(
        &mut self,
        number: u32,
        seen: &FoundDescriptor,
        copy: OwnedFd,
        owned: &Owned,
        resources: &mut Resources,
        around: &mut TreeContext<'_>,
    ) -> Result<()> {
        let kind = kind_of(resources, seen)?;
        let met = FoundFile {
            number,
            seen,
            copy,
            locks: &self.open[number as usize].locks,
        };
        let saved = resources[kind].save(met, around)?;
        self.open[number as usize].kind = saved.kind;
        if !saved.passed.is_empty() {
            let numbers = self.passed(saved.passed, owned, resources, around)?;
            let file = &mut self.open[number as usize];
            resources[kind].number_passed(&mut file.kind, &numbers);
        }
        Ok(())
    }

    /// Between fork(2) and the first that it says for itself, or exec, a child has its parent's plugins, and none.
    fn check_plugins(&self, file: u32, seen: &FoundDescriptor) -> Result<()> {
        let (parent, _) = self.first[file as usize];
        let is_channel = matches!(self.open[file as usize].kind, Kind::Supervisor);
        match is_channel && seen.pid != parent {
            true => Err(not_registered(seen.pid, parent).for_now()),
            false => Ok(()),
        }
    }

    /// The number of an open file that has been met before, or its place among those that are like it.
    fn known(&self, seen: &FoundDescriptor) -> std::result::Result<u32, usize> {
        let Some(alike) = self.alike.get(&alike(seen)) else {
            return Err(0);
        };
        let order = |file: &u32| {
            let order = compare(self.first[*file as usize], (seen.pid, seen.fd));
            // Who is gone has no file: what is found out of others fails the checkpoint.
            order.unwrap_or(Ordering::Greater)
        };
        alike.binary_search_by(order).map(|place| alike[place])
    }

    /// Files that are on their way from process to process: they are this process's as well until all is saved.
    fn passed(
        &mut self,
        copies: Vec<OwnedFd>,
        owned: &Owned,
        resources: &mut Resources,
        around: &mut TreeContext<'_>,
    ) -> Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for copy in copies {
            let fd = copy.as_raw_fd();
            self.kept.push(copy);
            let seen = FoundDescriptor::look(me(), fd)?;
            // A process's own locks are not on their way.
            let locks = locks::locks(me(), &seen)?;
            let number = self.meet(&seen, locks, owned, resources, around)?;
            let kind = &self.open[number as usize].kind;
            if resources.iter().any(|one| one.is_late(kind)) {
                return Err(seen.refused("it is in a message on its way"));
            }
            numbers.push(number);
        }
        Ok(numbers)
    }
}

/// Which kind a descriptor is of, by its place in the list.
pub fn kind_of(resources: &Resources, seen: &FoundDescriptor) -> Result<usize> {
    for (index, resource) in resources.iter().enumerate() {
        if resource.recognises(seen)? {
            return Ok(index);
        }
    }
    Err(seen.refused("an object of the kernel that cannot be saved"))
}

fn alike(seen: &FoundDescriptor) -> (u64, u64, u64) {
    let (device, inode) = id_of(&seen.metadata);
    (device, inode, seen.info.offset)
}

/// A child that has the connection of its parent's plugins.
fn not_registered(pid: pid_t, parent: pid_t) -> Error {
    let what = format!(
        "it has the plugins of process {parent}, and was not made by fork(3), which registers them"
    );
    Error::refused(pid, what)
}
