//! The code of a process, as far as it matters to who has it make system calls: where there is a `syscall` instruction,
//! and where code ends with room behind it.

use libc::pid_t;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};

use crate::{
    error::{Error, Result},
    memory,
};

/// Bytes of an area in which a `syscall` instruction is looked for.
const SEARCHED_MAX: u64 = 4 << 20;

/// Where code comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The kernel: the vDSO.
    Kernel,
    /// A file.
    File,
    /// Neither.
    Other,
}

/// An area of executable memory.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// PROT_READ.
    pub is_readable: bool,
    /// MAP_SHARED.
    pub is_shared: bool,
    /// Where it comes from.
    pub origin: Origin,
}

/// The code of a process.
pub fn code_of(pid: pid_t) -> Result<Vec<Code>> {
    let maps = Process::new(pid)?.maps()?;
    let code = maps
        .iter()
        .filter(|map| map.perms.contains(MMPermissions::EXECUTE));
    let areas = code.map(|map| Code {
        start: map.address.0,
        end: map.address.1,
        is_readable: map.perms.contains(MMPermissions::READ),
        is_shared: map.perms.contains(MMPermissions::SHARED),
        origin: match (&map.pathname, kernels(map)) {
            (_, Some(_)) => Origin::Kernel,
            (MMapPath::Path(_), None) => Origin::File,
            _ => Origin::Other,
        },
    });
    Ok(areas.collect())
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

/// A `syscall` instruction that the process has: the vDSO has one, and so has any C library.
pub fn syscall_instruction(pid: pid_t, areas: &[Code]) -> Result<u64> {
    let is_kernels = |area: &&Code| area.origin == Origin::Kernel;
    let kernels = areas.iter().filter(is_kernels);
    let others = areas.iter().filter(|area| !is_kernels(area));
    for area in kernels.chain(others) {
        let mut bytes = vec![0; (area.end - area.start).min(SEARCHED_MAX) as usize];
        if memory::read(pid, area.start, &mut bytes).is_err() {
            continue;
        }
        if let Some(at) = find_syscall(&bytes) {
            return Ok(area.start + at);
        }
    }
    Err(Error::refused(pid, "code without a single system call"))
}

/// Where in some code there is a `syscall` instruction.
pub fn find_syscall(code: &[u8]) -> Option<u64> {
    let at = code.windows(2).position(|two| two == [0x0f, 0x05])?;
    Some(at as u64)
}
