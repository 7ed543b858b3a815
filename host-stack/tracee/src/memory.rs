//! Memory of another process, which the caller traces.

use std::{fs::File, io, os::unix::fs::FileExt};

use crate::error::{Error, Result};
use libc::pid_t;

/// Reads memory; pages that the process itself may not read, too.
pub fn read(pid: pid_t, address: u64, to: &mut [u8]) -> Result<()> {
    let file = open(pid, false)?;
    let read = file.read_exact_at(to, address);
    read.map_err(|source| failed(pid, "read", address, source))
}

/// Writes memory, also where the process itself may not.
pub fn write(pid: pid_t, address: u64, from: &[u8]) -> Result<()> {
    let file = open(pid, true)?;
    let written = file.write_all_at(from, address);
    written.map_err(|source| failed(pid, "write", address, source))
}

/// `/proc/PID/mem` (proc_pid_mem(5)).
pub fn open(pid: pid_t, write: bool) -> Result<File> {
    let path = format!("/proc/{pid}/mem");
    let opened = File::options().read(true).write(write).open(&path);
    opened.map_err(|source| Error::io(path, source))
}

fn failed(pid: pid_t, what: &str, address: u64, source: io::Error) -> Error {
    Error::io(
        format!("process {pid}: cannot {what} its memory at {address:#x}"),
        source,
    )
}

/// Moves parts of another process's memory here, one behind the other, with process_vm_readv(2); they fill `to`. It pins
/// the pages: of those that the process shares with relatives since fork(2) the kernel makes it copies of its own.
pub fn gather(pid: pid_t, parts: &[libc::iovec], to: &mut [u8]) -> Result<()> {
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let count = parts.len() as libc::c_ulong;
    // SAFETY: process_vm_readv(2) writes to this process at the one local part alone, which is
    // `to`, borrowed exclusively, for its length; it reads `parts`, as many as there are, during
    // the call. The addresses in them are the other process's, and the kernel checks them there.
    let copied =
        unsafe { libc::process_vm_readv(pid, &raw const local, 1, parts.as_ptr(), count, 0) };
    match usize::try_from(copied) {
        Ok(copied) => whole(pid, copied, to.len()),
        Err(_) => Err(unread(pid, io::Error::last_os_error())),
    }
}

/// The same, a little slower, and what is shared stays so.
pub fn gather_shared(pid: pid_t, parts: &[libc::iovec], to: &mut [u8]) -> Result<()> {
    let copied = gather_some(pid, parts, to)?;
    whole(pid, copied, to.len())
}

/// The same, up to the first page that is not there; how many bytes that is.
pub fn gather_some(pid: pid_t, parts: &[libc::iovec], to: &mut [u8]) -> Result<usize> {
    let Ok(file) = open(pid, false) else {
        // It has ended.
        return Ok(0);
    };
    let mut copied = 0;
    for part in parts {
        let mut at = 0;
        while at < part.iov_len {
            let to = &mut to[copied..copied + part.iov_len - at];
            let count = match file.read_at(to, part.iov_base as u64 + at as u64) {
                Ok(count) => count,
                Err(error) if error.raw_os_error() == Some(libc::EIO) => 0,
                Err(source) => return Err(unread(pid, source)),
            };
            if count == 0 {
                return Ok(copied);
            }
            (at, copied) = (at + count, copied + count);
        }
    }
    Ok(copied)
}

fn whole(pid: pid_t, copied: usize, wanted: usize) -> Result<()> {
    match copied == wanted {
        true => Ok(()),
        false => Err(unread(pid, io::ErrorKind::UnexpectedEof)),
    }
}

fn unread(pid: pid_t, source: impl Into<io::Error>) -> Error {
    Error::io(format!("process {pid}: cannot read its memory"), source)
}

/// Writes memory of another process where it may itself (process_vm_writev(2)).
pub fn scatter(pid: pid_t, address: u64, from: &[u8]) -> Result<()> {
    let local = libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: from.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: from.len(),
    };
    // SAFETY: process_vm_writev(2) reads this process at the one local part alone, which is `from`,
    // borrowed, for its length; both descriptions are on this stack during the call. The remote
    // address is the other process's, and the kernel checks it there.
    let moved =
        unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    match usize::try_from(moved) {
        Ok(moved) if moved == from.len() => Ok(()),
        Ok(_) => Err(failed(
            pid,
            "fill",
            address,
            io::ErrorKind::UnexpectedEof.into(),
        )),
        Err(_) => Err(failed(pid, "fill", address, io::Error::last_os_error())),
    }
}
