//! What belongs to plugins, as those who describe a tree look at it.

use std::{collections::BTreeMap, ops::Range, os::unix::fs::MetadataExt};

use libc::pid_t;
use procfs::process::MemoryMap;
use snaprig_ckpt_plugin::message::Descriptor;

use crate::state::Kind;

/// What belongs to plugins of a tree.
#[derive(Debug, Default)]
pub struct Owned {
    descriptors: BTreeMap<(pid_t, i32), (Descriptor, Holder)>,
    regions: BTreeMap<pid_t, Vec<Range<u64>>>,
}

/// What belongs to a plugin, and not into an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedByPlugin {
    /// Its name.
    pub name: String,
    /// Its process's end of the connection to the supervisor.
    pub channel: Option<Descriptor>,
    /// Descriptors.
    pub descriptors: Vec<Descriptor>,
    /// Memory.
    pub regions: Vec<Range<u64>>,
}

/// Whose a descriptor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The library's: it leads to the supervisor.
    Channel,
    /// The plugin's of this name.
    Plugin(String),
}

impl Owned {
    /// From what plugins of processes have said.
    pub fn of(plugins: impl Iterator<Item = (pid_t, OwnedByPlugin)>) -> Self {
        let mut all = Self::default();
        for (pid, owned) in plugins {
            let channel = owned.channel.into_iter();
            let channel = channel.map(|descriptor| (descriptor, Holder::Channel));
            let name = owned.name;
            let descriptors = owned.descriptors.into_iter();
            let descriptors =
                descriptors.map(|descriptor| (descriptor, Holder::Plugin(name.clone())));
            for (descriptor, holder) in descriptors.chain(channel) {
                all.descriptors
                    .insert((pid, descriptor.fd), (descriptor, holder));
            }
            let regions = all.regions.entry(pid).or_default();
            regions.extend(owned.regions);
            regions.sort_by_key(|region| region.start);
        }
        all
    }

    /// What a descriptor is instead of what it is, if it is a plugin's, and still the file that it was.
    pub fn kind(&self, pid: pid_t, fd: i32, metadata: &std::fs::Metadata) -> Option<Kind> {
        let (descriptor, holder) = self.descriptors.get(&(pid, fd))?;
        let is_it = (descriptor.device, descriptor.inode) == (metadata.dev(), metadata.ino());
        is_it.then(|| match holder {
            Holder::Channel => Kind::Supervisor,
            Holder::Plugin(name) => Kind::Plugin(name.clone()),
        })
    }

    /// Whether a file is a plugin's of any process: a child that has it, too, may not have said so yet.
    pub fn is_known(&self, metadata: &std::fs::Metadata) -> bool {
        let is_it = |descriptor: &Descriptor| {
            (descriptor.device, descriptor.inode) == (metadata.dev(), metadata.ino())
        };
        self.descriptors
            .values()
            .any(|(descriptor, _)| is_it(descriptor))
    }

    /// The parts of a mapping, in order, and whether each is a plugin's.
    pub fn parts(&self, pid: pid_t, map: &MemoryMap) -> Vec<(bool, MemoryMap)> {
        let (start, end) = map.address;
        let regions = self.regions.get(&pid).into_iter().flatten();
        let mut parts = Vec::new();
        let mut at = start;
        let mut add = |is_owned, to: u64| {
            if at < to {
                let part = MemoryMap {
                    address: (at, to),
                    offset: map.offset + (at - start),
                    ..map.clone()
                };
                parts.push((is_owned, part));
                at = to;
            }
        };
        for region in regions {
            add(false, region.start.min(end));
            add(true, region.end.min(end));
        }
        add(false, end);
        parts
    }
}
