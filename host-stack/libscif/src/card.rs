//! SCIF on a card: ioctls (Linux uapi `scif_ioctl.h`).

use std::{
    ffi::{CStr, c_int, c_void},
    os::fd::RawFd,
};

use snaprig_wire::scif::PortId;

use crate::ffi::Result;

const DEVICE: &CStr = c"/dev/mic/scif";
const BLOCK: c_int = 1;

#[repr(C)]
struct Connect {
    own: [u16; 2],
    peer: [u16; 2],
}

#[repr(C)]
struct Accept {
    flags: c_int,
    peer: [u16; 2],
    endpoint: u64,
}

#[repr(C)]
struct Message {
    address: u64,
    len: c_int,
    flags: c_int,
    out_len: c_int,
}

#[repr(C)]
struct Register {
    address: u64,
    len: u64,
    offset: i64,
    prot: c_int,
    flags: c_int,
    out_offset: i64,
}

#[repr(C)]
struct Unregister {
    offset: i64,
    len: u64,
}

#[repr(C)]
struct Copy {
    local: i64,
    len: u64,
    remote: i64,
    address: u64,
    flags: c_int,
}

#[repr(C)]
struct FenceMark {
    flags: c_int,
    mark: u64,
}

#[repr(C)]
struct FenceSignal {
    local: i64,
    local_value: u64,
    remote: i64,
    remote_value: u64,
    flags: c_int,
}

#[repr(C)]
struct NodeIds {
    nodes: u64,
    own: u64,
    len: c_int,
}

/// `_IOWR('s', number, T)`.
const fn iowr<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | (b's' as u64) << 8 | number
}

fn errno() -> c_int {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() }
}

fn checked(result: c_int) -> Result<c_int> {
    match result {
        ..0 => Err(errno()),
        result => Ok(result),
    }
}

fn ioctl<T>(epd: RawFd, number: u64, argument: &mut T) -> Result {
    // SAFETY: the request has the size of `T`, which the driver reads and writes; addresses in it are
    // the program's, and bad ones are EFAULT.
    checked(unsafe { libc::ioctl(epd, iowr::<T>(number), std::ptr::from_mut(argument)) }).map(drop)
}

/// The argument itself: `_IOW('s', number, __s32)` or `_IOWR`.
fn ioctl_number(epd: RawFd, request: u64, argument: c_int) -> Result {
    // SAFETY: no pointer is passed.
    checked(unsafe { libc::ioctl(epd, request, argument) }).map(drop)
}

/// Whether this process is on a card.
pub(crate) fn is_here() -> bool {
    // SAFETY: a C string.
    unsafe { libc::access(DEVICE.as_ptr(), libc::F_OK) == 0 }
}

pub(crate) fn open() -> Result<RawFd> {
    // SAFETY: a C string.
    checked(unsafe { libc::open(DEVICE.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) })
}

pub(crate) fn close(epd: RawFd) -> Result {
    // SAFETY: the program's descriptor, which it gives up.
    checked(unsafe { libc::close(epd) }).map(drop)
}

pub(crate) fn bind(epd: RawFd, port: u16) -> Result<u16> {
    let mut argument = u64::from(port);
    ioctl(epd, 1, &mut argument)?;
    Ok(argument as u16)
}

pub(crate) fn listen(epd: RawFd, backlog: c_int) -> Result {
    ioctl_number(epd, 0x4004_7302, backlog)
}

pub(crate) fn connect(epd: RawFd, peer: PortId) -> Result<u16> {
    let mut argument = Connect {
        own: [0; 2],
        peer: [peer.node, peer.port],
    };
    ioctl(epd, 3, &mut argument)?;
    Ok(argument.own[1])
}

pub(crate) fn accept(epd: RawFd, flags: c_int) -> Result<(RawFd, PortId)> {
    let mut argument = Accept {
        flags,
        peer: [0; 2],
        endpoint: 0,
    };
    ioctl(epd, 4, &mut argument)?;
    let accepted = open()?;
    if let Err(errno) = ioctl(accepted, 5, &mut argument.endpoint) {
        let _ = close(accepted);
        return Err(errno);
    }
    let [node, port] = argument.peer;
    Ok((accepted, PortId { node, port }))
}

/// All of a message, in as many calls as it takes, if that is asked.
fn message(
    epd: RawFd,
    number: u64,
    address: *const c_void,
    len: usize,
    flags: c_int,
) -> Result<usize> {
    let mut moved = 0;
    loop {
        let mut argument = Message {
            address: address.addr() as u64 + moved as u64,
            len: (len - moved) as c_int,
            flags,
            out_len: 0,
        };
        match ioctl(epd, number, &mut argument) {
            Ok(()) => moved += usize::try_from(argument.out_len).unwrap_or(0),
            Err(errno) if moved == 0 => return Err(errno),
            Err(_) => return Ok(moved),
        }
        if moved >= len || flags & BLOCK == 0 {
            return Ok(moved);
        }
    }
}

pub(crate) fn send(epd: RawFd, msg: *const c_void, len: usize, flags: c_int) -> Result<usize> {
    message(epd, 6, msg, len, flags)
}

pub(crate) fn recv(epd: RawFd, msg: *mut c_void, len: usize, flags: c_int) -> Result<usize> {
    message(epd, 7, msg, len, flags)
}

pub(crate) fn register(
    epd: RawFd,
    address: u64,
    len: u64,
    offset: i64,
    prot: c_int,
    flags: c_int,
) -> Result<i64> {
    let mut argument = Register {
        address,
        len,
        offset,
        prot,
        flags,
        out_offset: 0,
    };
    ioctl(epd, 8, &mut argument)?;
    Ok(argument.out_offset)
}

pub(crate) fn unregister(epd: RawFd, offset: i64, len: u64) -> Result {
    ioctl(epd, 9, &mut Unregister { offset, len })
}

/// # Safety
/// As for mmap(2).
pub(crate) unsafe fn map(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    epd: RawFd,
    offset: i64,
) -> Result<*mut c_void> {
    // SAFETY: the caller's promise.
    match unsafe { libc::mmap(addr, len, prot, flags | libc::MAP_SHARED, epd, offset) } {
        libc::MAP_FAILED => Err(errno()),
        mapped => Ok(mapped),
    }
}

/// The four copies: of windows (10 reads, 11 writes), of other memory (12 and 13).
#[expect(clippy::too_many_arguments, reason = "the ioctl has as many")]
pub(crate) fn copy(
    epd: RawFd,
    local: i64,
    address: u64,
    len: u64,
    remote: i64,
    flags: c_int,
    write: bool,
    windows: bool,
) -> Result {
    let number = if windows { 10 } else { 12 } + u64::from(write);
    let mut argument = Copy {
        local,
        len,
        remote,
        address,
        flags,
    };
    ioctl(epd, number, &mut argument)
}

pub(crate) fn fence_mark(epd: RawFd, flags: c_int, mark: *mut c_int) -> Result {
    let mark = mark.addr() as u64;
    ioctl(epd, 15, &mut FenceMark { flags, mark })
}

pub(crate) fn fence_wait(epd: RawFd, mark: c_int) -> Result {
    ioctl_number(epd, iowr::<c_int>(16), mark)
}

pub(crate) fn fence_signal(
    epd: RawFd,
    local: (i64, u64),
    remote: (i64, u64),
    flags: c_int,
) -> Result {
    let mut argument = FenceSignal {
        local: local.0,
        local_value: local.1,
        remote: remote.0,
        remote_value: remote.1,
        flags,
    };
    ioctl(epd, 17, &mut argument)
}

pub(crate) fn node_ids(nodes: *mut u16, len: c_int, own: *mut u16) -> Result<c_int> {
    let epd = open()?;
    let mut argument = NodeIds {
        nodes: nodes.addr() as u64,
        own: own.addr() as u64,
        len: len.max(0),
    };
    let result = ioctl(epd, 14, &mut argument);
    let _ = close(epd);
    result.map(|()| argument.len)
}
