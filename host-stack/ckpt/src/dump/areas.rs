//! The areas of an address space: what is mapped where, and what of it the image must have.

use std::{collections::BTreeMap, ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use libc::pid_t;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use snaprig_resources::{
    error::{Error, Result},
    files::named::Named,
    huge::pages,
    memory::shared::{Attachment, Mapping, Shared, dev},
    plugins::owned::Owned,
    state::{Area, Backing},
};
use snaprig_tracee::code::kernels;

use super::placement::Policies;

/// Flags of smaps(5) that a mapping is made with or given later, and that nothing else tells.
const FLAGS: [&str; 15] = [
    "gd", "nr", "dc", "dd", "wf", "lo", "lf", "hg", "nh", "mg", "sr", "rr", "sl", "dp", "ht",
];

/// MAP_NORESERVE.
const NO_RESERVE: [u8; 2] = *b"nr";

/// What huge pages are of that have no name.
const ANONYMOUS_HUGE: &[u8] = b"/anon_hugepage";

/// What can be made writable.
const MAY_WRITE: &str = "mw";

/// Those of what cannot be saved.
const REFUSED: [(&str, &str); 3] = [
    ("um", "memory with a userfaultfd(2)"),
    ("ui", "memory with a userfaultfd(2)"),
    ("ss", "a shadow stack"),
];

/// What is mapped, by its name, whose state cannot be seen: of the first also what is under way.
const REFUSED_OBJECTS: [(&str, &str); 3] = [
    (" /[aio]", "asynchronous reads and writes (io_setup(2))"),
    (" socket:[", "a mapped socket"),
    (" anon_inode:", "a mapped object of the kernel"),
];

/// What smaps says of each area, read while the process still runs: the kernel walks all page tables for it.
#[derive(Debug, Default)]
pub struct Flags {
    by_start: BTreeMap<u64, (u64, Vec<[u8; 2]>)>,
    /// Where they are to be.
    pub policies: Policies,
    /// What cannot be saved, if there is anything.
    pub refused: Option<String>,
    /// There are pages that it shares with relatives since fork(2).
    pub shares: bool,
}

impl Flags {
    /// Of a process.
    pub fn read(pid: pid_t) -> Result<Self> {
        let path = format!("/proc/{pid}/smaps");
        let text = fs::read_to_string(&path).map_err(|source| Error::io(path, source))?;
        let mut flags = Self {
            policies: Policies::read(pid)?,
            ..Self::default()
        };
        let (mut area, mut is_execute_only, mut is_shared) = (None, false, false);
        let (mut is_segment, mut is_private) = (false, false);
        for line in text.lines() {
            let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match key {
                "VmFlags:" => flags.add(area, value, is_segment),
                "Shared_Clean:" | "Shared_Dirty:" if is_private && value.trim() != "0 kB" => {
                    flags.shares = true;
                }
                "Shared_Hugetlb:" if !is_shared && value.trim() != "0 kB" => flags.shares = true,
                // Memory that can only be executed has one of the kernel's.
                "ProtectionKey:" if value.trim() != "0" && !is_execute_only => {
                    flags.refuse(area, "a protection key (pkeys(7))");
                }
                key if key.ends_with(':') => {}
                range => {
                    let ends = range.split_once('-');
                    let hex = |text| u64::from_str_radix(text, 16).ok();
                    area = ends.and_then(|(start, end)| Some((hex(start)?, hex(end)?)));
                    is_execute_only = value.starts_with("--x");
                    is_shared = value.get(3..4) == Some("s");
                    is_segment = value.contains(" /SYSV");
                    // Of a file, pages that nobody has changed are shared by all.
                    is_private = !is_shared && !value.contains('/') && !value.contains("[v");
                    for (mapped, what) in REFUSED_OBJECTS {
                        if value.contains(mapped) {
                            flags.refuse(area, what);
                        }
                    }
                }
            }
        }
        Ok(flags)
    }

    fn add(&mut self, area: Option<(u64, u64)>, words: &str, is_segment: bool) {
        let Some((start, end)) = area else { return };
        let mut flags = Vec::new();
        for word in words.split_whitespace() {
            // Whether it is attached with SHM_RDONLY, a segment's protection need not tell.
            let is_kept = FLAGS.contains(&word) || is_segment && word == MAY_WRITE;
            if let (true, &[first, second]) = (is_kept, word.as_bytes()) {
                flags.push([first, second]);
            }
            if let Some((_, what)) = REFUSED.iter().find(|(flag, _)| *flag == word) {
                self.refuse(area, what);
            }
        }
        self.by_start.insert(start, (end, flags));
    }

    fn refuse(&mut self, area: Option<(u64, u64)>, what: &str) {
        let start = area.map_or(0, |(start, _)| start);
        self.refused = Some(format!("{what} at {start:#x}"));
    }

    /// Of the area that was at `start`.
    fn at(&self, start: u64) -> Vec<[u8; 2]> {
        let before = self.by_start.range(..=start).next_back();
        let area = before.filter(|(_, (end, _))| start < *end);
        area.map(|(_, (_, flags))| flags.clone())
            .unwrap_or_default()
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
        let mut flags = flags.at(start);
        let huge_bytes = match &backing {
            Backing::Anonymous if map.inode == 0 => 0,
            Backing::Kernel(_) | Backing::Plugin => 0,
            Backing::File { file, .. } if flags.contains(b"ht") => {
                pages::of_path(Path::new(OsStr::from_bytes(&file.path)))
            }
            Backing::File { .. } => 0,
            _ => shared.huge_bytes(dev(map.dev)),
        };
        if backing == Backing::Anonymous && map.inode != 0 && huge_bytes == 0 {
            nameless.push((pid, start));
        }
        let is_reserved = huge_bytes != 0 && !is_shared && !flags.contains(&NO_RESERVE);
        if is_reserved && shared.is_reserved_for_another(pid, map) {
            flags.push(NO_RESERVE);
        }
        areas.push(Area {
            start,
            end,
            protection: protection(map.perms),
            is_shared,
            backing,
            flags,
            huge_bytes,
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
        huge_bytes: 0,
    }
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
        MMapPath::Vsys(_) => {
            let (id, (start, end)) = (map.inode as i32, map.address);
            let huge_bytes = shared.huge_bytes(dev(map.dev));
            shared.attachments.push(Attachment {
                id,
                pid,
                start,
                offset: map.offset,
                bytes: end - start,
                huge_bytes,
            });
            return Ok(Some(Backing::Segment(id, map.offset)));
        }
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
    let other = gone.filter(|_| is_shared);
    let other = other.and_then(|gone| shared.other_name((dev(map.dev), map.inode), gone));
    let path = other.as_deref().unwrap_or(path);
    if let (Some(gone), None) = (gone, &other) {
        let id = (dev(map.dev), map.inode);
        let huge_bytes = shared.huge_bytes(id.0);
        if !is_shared && (huge_bytes == 0 || gone == ANONYMOUS_HUGE) {
            // All of its pages are saved.
            return Ok(Some(Backing::Anonymous));
        }
        let name = gone.strip_prefix(b"/memfd:").map(<[u8]>::to_vec);
        let number = shared.meet(id, name, huge_bytes);
        let object = &mut shared.met[number];
        let part = map.offset..map.offset + (end - start);
        object.size = object.size.max(part.end);
        let at = match is_shared {
            true => object.mapped.partition_point(|other| other.is_shared),
            // Some of its pages may be the process's own.
            false => object.mapped.len(),
        };
        object.mapped.insert(
            at,
            Mapping {
                pid,
                start,
                part,
                is_shared,
            },
        );
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
