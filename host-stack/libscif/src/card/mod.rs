//! SCIF on a card: [`ioctl`]s, and [`lanes`] where a connection has them.

mod lanes;

use std::{
    ffi::{c_int, c_void},
    fs::OpenOptions,
    os::fd::{IntoRawFd, RawFd},
    path::Path,
};

use snaprig_wire::scif::{
    PortId,
    ioctl::{
        self as scif, Accept, BLOCK, Connect, Copy, FenceMark, FenceSignal, Message, NodeIds,
        Register, Unregister,
    },
};

use crate::ffi::Result;

fn errno() -> c_int {
    // SAFETY: __errno_location(3) returns the place of this thread's own errno, which is always
    // there and which no other thread uses.
    unsafe { *libc::__errno_location() }
}

fn checked(result: c_int) -> Result<c_int> {
    match result {
        ..0 => Err(errno()),
        result => Ok(result),
    }
}

fn ioctl<T>(epd: RawFd, request: u32, argument: &mut T) -> Result {
    // SAFETY: the callers pair each request with the `T` whose size its number has, and the driver
    // reads and writes no more than that, at a place that is borrowed for the call. Addresses in it
    // are the program's; the driver copies from and to them as the kernel does, and answers bad
    // ones with EFAULT.
    checked(unsafe { libc::ioctl(epd, request.into(), std::ptr::from_mut(argument)) }).map(drop)
}

/// One whose argument is a number itself.
fn ioctl_number(epd: RawFd, request: u32, argument: c_int) -> Result {
    // SAFETY: the argument is a number, so that the driver is given no address; the descriptor is
    // checked by the kernel.
    checked(unsafe { libc::ioctl(epd, request.into(), argument) }).map(drop)
}

/// Whether this process is on a card.
pub(crate) fn is_here() -> bool {
    Path::new(scif::DEVICE).exists()
}

pub(crate) fn open() -> Result<RawFd> {
    let epd = open_device()?;
    snaprig_scif_lanes::card::be_willing(epd);
    Ok(epd)
}

fn open_device() -> Result<RawFd> {
    let opened = OpenOptions::new().read(true).write(true).open(scif::DEVICE);
    let epd = opened.map(IntoRawFd::into_raw_fd);
    let epd = epd.map_err(|error| error.raw_os_error().unwrap_or(libc::ENODEV))?;
    // What had this number was closed by close(2).
    lanes::remove(epd);
    Ok(epd)
}

pub(crate) fn close(epd: RawFd) -> Result {
    lanes::remove(epd);
    // SAFETY: close(2) is given a number, and touches no memory. The descriptor is the program's,
    // which it gives up by scif_close(3), so that nobody here uses it any more.
    checked(unsafe { libc::close(epd) }).map(drop)
}

pub(crate) fn bind(epd: RawFd, port: u16) -> Result<u16> {
    let mut argument = u64::from(port);
    ioctl(epd, scif::BIND, &mut argument)?;
    Ok(argument as u16)
}

pub(crate) fn listen(epd: RawFd, backlog: c_int) -> Result {
    ioctl_number(epd, scif::LISTEN, backlog)
}

pub(crate) fn connect(epd: RawFd, peer: PortId) -> Result<u16> {
    let mut argument = Connect {
        peer_node: peer.node,
        peer_port: peer.port,
        ..Connect::default()
    };
    lanes::remove(epd);
    let connected = ioctl(epd, scif::CONNECT, &mut argument);
    if matches!(connected, Ok(()) | Err(libc::EINPROGRESS)) {
        lanes::add(epd, 0);
    }
    connected?;
    Ok(argument.own_port)
}

pub(crate) fn accept(epd: RawFd, flags: c_int) -> Result<(RawFd, PortId)> {
    let mut argument = Accept {
        flags,
        ..Accept::default()
    };
    ioctl(epd, scif::ACCEPT, &mut argument)?;
    let accepted = open_device()?;
    if let Err(errno) = ioctl(accepted, scif::ACCEPT_CLAIM, &mut argument.endpoint) {
        let _ = close(accepted);
        return Err(errno);
    }
    lanes::add(accepted, 1);
    let peer = PortId {
        node: argument.peer_node,
        port: argument.peer_port,
    };
    Ok((accepted, peer))
}

/// All of a message, in as many calls as it takes, if that is asked.
fn message(
    epd: RawFd,
    request: u32,
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
        match ioctl(epd, request, &mut argument) {
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
    match lanes::find(epd).filter(|_| len > 0 && flags & !BLOCK == 0) {
        Some(end) => end.send(msg.addr(), len, flags & BLOCK != 0),
        None => message(epd, scif::SEND, msg, len, flags),
    }
}

pub(crate) fn recv(epd: RawFd, msg: *mut c_void, len: usize, flags: c_int) -> Result<usize> {
    match lanes::find(epd).filter(|_| len > 0 && flags & !BLOCK == 0) {
        Some(end) => end.recv(msg.addr(), len, if flags & BLOCK != 0 { len } else { 0 }),
        None => message(epd, scif::RECV, msg, len, flags),
    }
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
    ioctl(epd, scif::REGISTER, &mut argument)?;
    Ok(argument.out_offset)
}

pub(crate) fn unregister(epd: RawFd, offset: i64, len: u64) -> Result {
    ioctl(epd, scif::UNREGISTER, &mut Unregister { offset, len })
}

/// # Safety
/// As for mmap(2): if `flags` has MAP_FIXED, nobody uses what is mapped at `addr`, `len` bytes of
/// it, for it is replaced.
pub(crate) unsafe fn map(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    epd: RawFd,
    offset: i64,
) -> Result<*mut c_void> {
    // SAFETY: the caller says that nobody uses what a fixed mapping replaces; without MAP_FIXED the
    // kernel chooses a place where nothing is. All other arguments are numbers that it checks.
    match unsafe { libc::mmap(addr, len, prot, flags | libc::MAP_SHARED, epd, offset) } {
        libc::MAP_FAILED => Err(match errno() {
            // Where no file ends.
            libc::EOVERFLOW => libc::ENXIO,
            errno => errno,
        }),
        mapped => Ok(mapped),
    }
}

/// The four copies: of windows, of other memory; reads and writes.
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
    let request = match (windows, write) {
        (true, false) => scif::READ_FROM,
        (true, true) => scif::WRITE_TO,
        (false, false) => scif::VREAD_FROM,
        (false, true) => scif::VWRITE_TO,
    };
    let mut argument = Copy {
        local,
        len,
        remote,
        address,
        flags,
    };
    ioctl(epd, request, &mut argument)
}

pub(crate) fn fence_mark(epd: RawFd, flags: c_int, mark: *mut c_int) -> Result {
    let mark = mark.addr() as u64;
    ioctl(epd, scif::FENCE_MARK, &mut FenceMark { flags, mark })
}

pub(crate) fn fence_wait(epd: RawFd, mark: c_int) -> Result {
    ioctl_number(epd, scif::FENCE_WAIT, mark)
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
    ioctl(epd, scif::FENCE_SIGNAL, &mut argument)
}

pub(crate) fn node_ids(nodes: *mut u16, len: c_int, own: *mut u16) -> Result<c_int> {
    let epd = open_device()?;
    let mut argument = NodeIds {
        nodes: nodes.addr() as u64,
        own: own.addr() as u64,
        len: len.max(0),
    };
    let result = ioctl(epd, scif::NODE_IDS, &mut argument);
    let _ = close(epd);
    result.map(|()| argument.len)
}
