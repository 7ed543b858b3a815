//! Makes memory that several processes can map.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
};

use crate::{
    calls::check,
    error::{Error, Result},
    huge::pages,
    opened::{Opened, damaged, duplicate, open_again, owned},
    state::{SharedMemory, Tree},
};

/// Memory to be filled, and a descriptor of it to be mapped: what is sealed against writing cannot have been mapped by
/// one that writes.
pub fn memfd(shared: &SharedMemory) -> Result<(OwnedFd, OwnedFd)> {
    let name = shared.name.clone().unwrap_or_else(|| b"snaprig".to_vec());
    let name = CString::new(name).map_err(|_| damaged("a name with a zero"))?;
    let sealing = match shared.seals & libc::F_SEAL_EXEC {
        0 => libc::MFD_ALLOW_SEALING,
        _ => libc::MFD_NOEXEC_SEAL,
    };
    let flags = libc::MFD_CLOEXEC | sealing;
    let memory = match shared.huge_bytes {
        0 => {
            // SAFETY: memfd_create(2) reads the name, which ends with a zero.
            let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
            owned(fd, "memfd_create")?
        }
        bytes => pages::memfd(&name, bytes, flags as i32)
            .map_err(|source| Error::io("memfd_create of huge pages", source))?,
    };
    let file = File::from(memory);
    file.set_len(shared.size)
        .map_err(|source| Error::io("memfd", source))?;
    with_view(shared, file.into())
}

/// Memory, and a descriptor of it to be mapped.
pub fn with_view(shared: &SharedMemory, memory: OwnedFd) -> Result<(OwnedFd, OwnedFd)> {
    let view = match shared.seals & libc::F_SEAL_WRITE {
        0 => duplicate(memory.as_raw_fd())?,
        _ => open_again(memory.as_raw_fd(), libc::O_RDONLY)?,
    };
    Ok((memory, view))
}

/// When all processes have it: its size, for it was filled by whole pages, and what it is sealed against. What has come along
/// is as it was.
pub fn finish(tree: &Tree, opened: &Opened, came: &BTreeSet<u32>) -> Result<()> {
    let made = tree.shared.iter().zip(&opened.shared);
    for (shared, (memory, _)) in made.filter(|(shared, _)| !came.contains(&shared.space)) {
        // SAFETY: ftruncate(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
        // process.
        check(unsafe { libc::ftruncate(*memory, shared.size as i64) })
            .map_err(|source| Error::io("the size of a memfd", source))?;
        // SAFETY: F_GET_SEALS takes no argument, so fcntl(2) reads and writes no memory of this process.
        let seals = unsafe { libc::fcntl(*memory, libc::F_GET_SEALS) }.max(0);
        // A file of a tmpfs is sealed against seals.
        if shared.seals & !seals == 0 {
            continue;
        }
        // SAFETY: F_ADD_SEALS takes a number, so fcntl(2) reads and writes no memory of this process.
        check(unsafe { libc::fcntl(*memory, libc::F_ADD_SEALS, shared.seals) })
            .map_err(|source| Error::io("seals of a memfd", source))?;
    }
    Ok(())
}
