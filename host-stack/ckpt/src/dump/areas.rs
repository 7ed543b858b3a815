//! The areas of an address space: what is mapped where, and what of it the image must have.

use std::{
    collections::BTreeMap,
    ops::Range,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
};

use libc::pid_t;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};

use super::named::Named;
use crate::{
    error::{Error, Result},
    plugins::Owned,
    state::{Area, Backing},
};

/// Flags of smaps(5) that a mapping is made with or given later, and that nothing else tells.
const FLAGS: [&[u8; 2]; 9] = [
    b"gd", b"nr", b"dc", b"dd", b"wf", b"lo", b"hg", b"nh", b"mg",
];

/// What smaps says of each area, read while the process still runs: the kernel walks all page tables for it.
#[derive(Debug, Default)]
pub struct Flags(BTreeMap<u64, (u64, Vec<[u8; 2]>)>);

impl Flags {
    /// Of a process.
    pub fn read(pid: pid_t) -> Result<Self> {
        let smaps = Process::new(pid)?.smaps()?;
        let flags = smaps.iter().map(|map| {
            let (start, end) = map.address;
            (start, (end, flags_of(map)))
        });
        Ok(Self(flags.collect()))
    }

    /// Of the area that was at `start`.
    fn at(&self, start: u64) -> Vec<[u8; 2]> {
        let before = self.0.range(..=start).next_back();
        let area = before.filter(|(_, (end, _))| start < *end);
        area.map(|(_, (_, flags))| flags.clone())
            .unwrap_or_default()
    }
}

fn flags_of(map: &MemoryMap) -> Vec<[u8; 2]> {
    use procfs::process::VmFlags;
    let flags = map.extension.vm_flags;
    let known = [
        VmFlags::GD,
        VmFlags::NR,
        VmFlags::DC,
        VmFlags::DD,
        VmFlags::WF,
        VmFlags::LO,
        VmFlags::HG,
        VmFlags::NH,
        VmFlags::MG,
    ];
    let set = known
        .into_iter()
        .zip(FLAGS)
        .filter(|(flag, _)| flags.contains(*flag));
    set.map(|(_, name)| *name).collect()
}

/// Memory that several can map, as it is met.
#[derive(Debug, Default)]
pub struct Shared {
    /// Device and inode of each.
    pub met: Vec<SharedObject>,
}

/// Memory that several can map.
#[derive(Debug)]
pub struct SharedObject {
    /// Device and inode.
    pub id: (u64, u64),
    /// A memfd's name; none: anonymous, or without a name.
    pub name: Option<Vec<u8>>,
    /// Bytes that are known to be there: as far as somebody maps it.
    pub size: u64,
    /// F_GET_SEALS.
    pub seals: i32,
    /// Who maps which part of it where: process, address, range of the object.
    pub mapped: Vec<(pid_t, u64, Range<u64>)>,
    /// A descriptor of it: process and number.
    pub open: Option<(pid_t, i32)>,
}

impl Shared {
    /// The number of an object.
    pub fn meet(&mut self, id: (u64, u64), name: Option<Vec<u8>>) -> usize {
        if let Some(at) = self.met.iter().position(|object| object.id == id) {
            return at;
        }
        self.met.push(SharedObject {
            id,
            name,
            size: 0,
            seals: 0,
            mapped: Vec::new(),
            open: None,
        });
        self.met.len() - 1
    }
}

/// The areas of a process. `nameless`: where those begin that are private and of a file without a name: also pages
/// that are still the file's are nowhere else.
pub fn areas(
    pid: pid_t,
    (flags, owned): (&Flags, &Owned),
    shared: &mut Shared,
    named: &mut Named,
    nameless: &mut Vec<(pid_t, u64)>,
) -> Result<Vec<Area>> {
    let maps = Process::new(pid)?.maps()?;
    let mut areas = Vec::new();
    let parts = maps.iter().flat_map(|map| owned.parts(pid, map));
    for (is_owned, map) in parts {
        let (map, (start, end)) = (&map, map.address);
        if is_owned {
            areas.push(plugins_area(start, end));
            continue;
        }
        let is_shared = map.perms.contains(MMPermissions::SHARED);
        let Some(backing) = backing(pid, map, is_shared, shared, named)? else {
            continue;
        };
        if backing == Backing::Anonymous && map.inode != 0 {
            nameless.push((pid, start));
        }
        areas.push(Area {
            start,
            end,
            protection: protection(map.perms),
            is_shared,
            backing,
            flags: flags.at(start),
        });
    }
    Ok(areas)
}

/// What a plugin maps itself: none of the process's pages.
fn plugins_area(start: u64, end: u64) -> Area {
    Area {
        start,
        end,
        protection: libc::PROT_NONE,
        is_shared: true,
        backing: Backing::Plugin,
        flags: Vec::new(),
    }
}

/// The name of an area that is the kernel's: the vDSO or its data.
pub fn kernels(map: &MemoryMap) -> Option<Vec<u8>> {
    Some(match &map.pathname {
        MMapPath::Vdso => b"[vdso]".to_vec(),
        MMapPath::Vvar => b"[vvar]".to_vec(),
        MMapPath::Other(name) if name.starts_with("vvar") || name.starts_with("[vvar") => {
            format!("[{}]", name.trim_matches(['[', ']'])).into_bytes()
        }
        _ => return None,
    })
}

fn protection(perms: MMPermissions) -> i32 {
    let bit = |flag, bit| if perms.contains(flag) { bit } else { 0 };
    bit(MMPermissions::READ, libc::PROT_READ)
        | bit(MMPermissions::WRITE, libc::PROT_WRITE)
        | bit(MMPermissions::EXECUTE, libc::PROT_EXEC)
}

/// Where pages come from; none: an area that every process has.
fn backing(
    pid: pid_t,
    map: &MemoryMap,
    is_shared: bool,
    shared: &mut Shared,
    named: &mut Named,
) -> Result<Option<Backing>> {
    if let Some(name) = kernels(map) {
        return Ok(Some(Backing::Kernel(name)));
    }
    let path = match &map.pathname {
        MMapPath::Vsyscall => return Ok(None),
        MMapPath::Path(path) => path,
        // Its number would be another one.
        MMapPath::Vsys(_) => return Err(Error::refused(pid, "System V shared memory (shmget(2))")),
        _ if is_shared => {
            return Err(Error::refused(
                pid,
                format!("shared memory at {:#x}", map.address.0),
            ));
        }
        _ => return Ok(Some(Backing::Anonymous)),
    };
    let bytes = path.as_os_str().as_bytes();
    let gone = bytes.strip_suffix(b" (deleted)");
    let (start, end) = map.address;
    if let Some(gone) = gone {
        if !is_shared {
            // All of its pages are saved.
            return Ok(Some(Backing::Anonymous));
        }
        let name = gone.strip_prefix(b"/memfd:").map(<[u8]>::to_vec);
        let id = (dev(map.dev), map.inode);
        let number = shared.meet(id, name);
        let object = &mut shared.met[number];
        let part = map.offset..map.offset + (end - start);
        object.size = object.size.max(part.end);
        object.mapped.push((pid, start, part));
        return Ok(Some(Backing::Shared(number as u32, map.offset)));
    }
    if bytes.starts_with(b"/dev/") && !bytes.starts_with(b"/dev/shm/") {
        if bytes == b"/dev/zero" {
            return Ok(Some(Backing::Anonymous));
        }
        return Err(Error::refused(
            pid,
            format!("the device {} is mapped", path.display()),
        ));
    }
    let file = named.file(pid, path, !is_shared)?;
    Ok(Some(Backing::File {
        file,
        offset: map.offset,
        write: is_shared && map.perms.contains(MMPermissions::WRITE),
    }))
}

fn dev((major, minor): (i32, i32)) -> u64 {
    libc::makedev(major as u32, minor as u32)
}

/// Device and inode of a file.
pub fn id_of(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}
