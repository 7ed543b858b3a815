//! The C functions of scif.h: on a card or on the host, whichever this process is on.

use std::{
    ffi::{c_int, c_long, c_uint, c_void},
    os::fd::RawFd,
    sync::OnceLock,
};

use snaprig_wire::scif::PortId;

use crate::{card, host};

/// `struct scif_portID`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ScifPortId {
    node: u16,
    port: u16,
}

const RMA_FLAGS: c_int = 0xf;
const ORDERED: c_int = 1 << 3;
const PROT: c_int = 3;
const MAP_FIXED: c_int = 0x10;
const FENCE_INIT_SELF: c_int = 1;
const FENCE_INIT_PEER: c_int = 2;
const SIGNAL_LOCAL: c_int = 1 << 4;
const SIGNAL_REMOTE: c_int = 1 << 5;
const PAGE: u64 = 4096;

/// A result, or an errno.
pub(crate) type Result<T = ()> = std::result::Result<T, c_int>;

/// What a call returns, and errno.
fn answer<T: From<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|errno| {
        // SAFETY: __errno_location(3) returns the place of this thread's own errno, which is always
        // there and which no other thread uses.
        unsafe { *libc::__errno_location() = errno };
        T::from(-1)
    })
}

fn done(result: Result) -> c_int {
    answer(result.map(|()| 0))
}

fn on_card() -> bool {
    static CARD: OnceLock<bool> = OnceLock::new();
    *CARD.get_or_init(card::is_here)
}

/// A flag that may be set, and no other.
fn only(flag: c_int, flags: c_int) -> Result<bool> {
    match flags & !flag {
        0 => Ok(flags != 0),
        _ => Err(libc::EINVAL),
    }
}

/// Bytes of a message.
fn length(len: c_int) -> Result<usize> {
    usize::try_from(len).map_err(|_| libc::EINVAL)
}

pub extern "C" fn scif_open() -> RawFd {
    answer(match on_card() {
        true => card::open(),
        false => host::open(),
    })
}

pub extern "C" fn scif_close(epd: RawFd) -> c_int {
    done(match on_card() {
        true => card::close(epd),
        false => host::close(epd),
    })
}

pub extern "C" fn scif_bind(epd: RawFd, port: u16) -> c_int {
    let bound = match on_card() {
        true => card::bind(epd, port),
        false => host::bind(epd, port),
    };
    answer(bound.map(c_int::from))
}

pub extern "C" fn scif_listen(epd: RawFd, backlog: c_int) -> c_int {
    done(match on_card() {
        true => card::listen(epd, backlog),
        false => host::listen(epd, backlog),
    })
}

/// # Safety
/// `dst` is null or points to a port id.
pub unsafe extern "C" fn scif_connect(epd: RawFd, dst: *const ScifPortId) -> c_int {
    // SAFETY: the caller says that `dst` is null, for which `as_ref` gives none, or points to a
    // port id, which is copied within this call.
    let Some(dst) = (unsafe { dst.as_ref() }) else {
        return done(Err(libc::EINVAL));
    };
    let peer = PortId {
        node: dst.node,
        port: dst.port,
    };
    let port = match on_card() {
        true => card::connect(epd, peer),
        false => host::connect(epd, peer),
    };
    answer(port.map(c_int::from))
}

/// # Safety
/// The pointers are null or can be written through.
pub unsafe extern "C" fn scif_accept(
    epd: RawFd,
    peer: *mut ScifPortId,
    newepd: *mut RawFd,
    flags: c_int,
) -> c_int {
    let accept = || {
        if peer.is_null() || newepd.is_null() {
            return Err(libc::EINVAL);
        }
        let (accepted, from) = match on_card() {
            true => card::accept(epd, flags),
            false => host::accept(epd, only(1, flags)?),
        }?;
        let id = ScifPortId {
            node: from.node,
            port: from.port,
        };
        // SAFETY: neither pointer is null here, and the caller says that each can be written
        // through then; nothing is read.
        unsafe {
            peer.write(id);
            newepd.write(accepted);
        }
        Ok(())
    };
    done(accept())
}

pub extern "C" fn scif_send(epd: RawFd, msg: *const c_void, len: c_int, flags: c_int) -> c_int {
    let send = || match on_card() {
        true => card::send(epd, msg, length(len)?, flags),
        false => host::send(epd, msg.addr(), length(len)?, only(1, flags)?),
    };
    answer(send().map(|count| count as c_int))
}

pub extern "C" fn scif_recv(epd: RawFd, msg: *mut c_void, len: c_int, flags: c_int) -> c_int {
    let recv = || match on_card() {
        true => card::recv(epd, msg, length(len)?, flags),
        false => host::recv(epd, msg.addr(), length(len)?, only(1, flags)?),
    };
    answer(recv().map(|count| count as c_int))
}

pub extern "C" fn scif_register(
    epd: RawFd,
    addr: *mut c_void,
    len: usize,
    offset: i64,
    prot: c_int,
    flags: c_int,
) -> i64 {
    let register = || {
        let fixed = only(MAP_FIXED, flags)?;
        let (addr, len) = (addr.addr() as u64, len as u64);
        let pages = if fixed {
            addr | len | offset as u64
        } else {
            addr | len
        };
        if prot & !PROT != 0 || prot == 0 || len == 0 || offset < 0 || !pages.is_multiple_of(PAGE) {
            return Err(libc::EINVAL);
        }
        match on_card() {
            true => card::register(epd, addr, len, offset, prot, flags),
            false => host::register(epd, addr, len, fixed.then_some(offset), prot as u8),
        }
    };
    answer(register())
}

pub extern "C" fn scif_unregister(epd: RawFd, offset: i64, len: usize) -> c_int {
    done(match on_card() {
        true => card::unregister(epd, offset, len as u64),
        false => host::unregister(epd, offset, len as u64),
    })
}

/// # Safety
/// As for mmap(2): with SCIF_MAP_FIXED, what was there goes.
pub unsafe extern "C" fn scif_mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    epd: RawFd,
    offset: i64,
) -> *mut c_void {
    let map = || {
        let fixed = only(MAP_FIXED, flags)?;
        let pages = if fixed { addr.addr() | len } else { len };
        if prot & !PROT != 0
            || prot == 0
            || len == 0
            || !(pages as u64 | offset as u64).is_multiple_of(PAGE)
        {
            return Err(libc::EINVAL);
        }
        match on_card() {
            // SAFETY: the caller promises what mmap(2) asks for, which is passed on: nobody uses
            // what a fixed mapping replaces.
            true => unsafe { card::map(addr, len, prot, flags, epd, offset) },
            // SAFETY: the caller promises what mmap(2) asks for, which is passed on: nobody uses
            // what a fixed mapping replaces.
            false => unsafe { host::map(addr, len, prot as u8, fixed, epd, offset) },
        }
    };
    map().unwrap_or_else(|errno| {
        done(Err(errno));
        libc::MAP_FAILED
    })
}

/// # Safety
/// As for munmap(2): nobody may use what is mapped there any more.
pub unsafe extern "C" fn scif_munmap(addr: *mut c_void, len: usize) -> c_int {
    let unmap = || {
        if !((addr.addr() | len) as u64).is_multiple_of(PAGE) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller promises what munmap(2) asks for: nobody uses the `len` bytes at
        // `addr` any more.
        if unsafe { libc::munmap(addr, len) } != 0 {
            // SAFETY: __errno_location(3) returns the place of this thread's own errno, which is
            // always there and which no other thread uses.
            return Err(unsafe { *libc::__errno_location() });
        }
        if !on_card() {
            host::unmapped(addr.addr(), len);
        }
        Ok(())
    };
    done(unmap())
}

fn window_copy(
    epd: RawFd,
    loffset: i64,
    len: usize,
    roffset: i64,
    flags: c_int,
    write: bool,
) -> c_int {
    let local = host::Local::Window(loffset);
    done(match on_card() {
        true => card::copy(epd, loffset, 0, len as u64, roffset, flags, write, true),
        false => host_copy(epd, local, len, roffset, flags, write),
    })
}

fn memory_copy(
    epd: RawFd,
    addr: usize,
    len: usize,
    roffset: i64,
    flags: c_int,
    write: bool,
) -> c_int {
    let local = host::Local::Memory(addr);
    done(match on_card() {
        true => card::copy(
            epd,
            0,
            addr as u64,
            len as u64,
            roffset,
            flags,
            write,
            false,
        ),
        false => host_copy(epd, local, len, roffset, flags, write),
    })
}

fn host_copy(
    epd: RawFd,
    local: host::Local,
    len: usize,
    roffset: i64,
    flags: c_int,
    write: bool,
) -> Result {
    if flags & !RMA_FLAGS != 0 {
        return host::connected(epd).and(Err(libc::EINVAL));
    }
    host::copy(epd, local, len as u64, roffset, write, flags & ORDERED != 0)
}

pub extern "C" fn scif_readfrom(
    epd: RawFd,
    loffset: i64,
    len: usize,
    roffset: i64,
    flags: c_int,
) -> c_int {
    window_copy(epd, loffset, len, roffset, flags, false)
}

pub extern "C" fn scif_writeto(
    epd: RawFd,
    loffset: i64,
    len: usize,
    roffset: i64,
    flags: c_int,
) -> c_int {
    window_copy(epd, loffset, len, roffset, flags, true)
}

pub extern "C" fn scif_vreadfrom(
    epd: RawFd,
    addr: *mut c_void,
    len: usize,
    roffset: i64,
    flags: c_int,
) -> c_int {
    memory_copy(epd, addr.expose_provenance(), len, roffset, flags, false)
}

pub extern "C" fn scif_vwriteto(
    epd: RawFd,
    addr: *mut c_void,
    len: usize,
    roffset: i64,
    flags: c_int,
) -> c_int {
    memory_copy(epd, addr.expose_provenance(), len, roffset, flags, true)
}

/// Whether a fence is for what the peer started.
fn fence_side(flags: c_int) -> Result<bool> {
    match flags {
        FENCE_INIT_SELF => Ok(false),
        FENCE_INIT_PEER => Ok(true),
        _ => Err(libc::EINVAL),
    }
}

/// # Safety
/// `mark` is null or can be written through.
pub unsafe extern "C" fn scif_fence_mark(epd: RawFd, flags: c_int, mark: *mut c_int) -> c_int {
    let fence = || {
        if on_card() {
            return card::fence_mark(epd, flags, mark);
        }
        host::connected(epd)?;
        let peer = fence_side(flags)?;
        if mark.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: `mark` is not null here, and the caller says that it can be written through then;
        // nothing is read.
        unsafe { mark.write(host::fence_mark(epd, peer)?) };
        Ok(())
    };
    done(fence())
}

pub extern "C" fn scif_fence_wait(epd: RawFd, mark: c_int) -> c_int {
    done(match on_card() {
        true => card::fence_wait(epd, mark),
        false => host::fence_wait(epd, mark),
    })
}

pub extern "C" fn scif_fence_signal(
    epd: RawFd,
    loff: i64,
    lval: u64,
    roff: i64,
    rval: u64,
    flags: c_int,
) -> c_int {
    let fence = || {
        if on_card() {
            return card::fence_signal(epd, (loff, lval), (roff, rval), flags);
        }
        host::connected(epd)?;
        let signals = flags & (SIGNAL_LOCAL | SIGNAL_REMOTE);
        let peer = fence_side(flags & !signals)?;
        if signals == 0 {
            return Err(libc::EINVAL);
        }
        let local = (flags & SIGNAL_LOCAL != 0).then_some((loff, lval));
        let remote = (flags & SIGNAL_REMOTE != 0).then_some((roff, rval));
        host::fence_signal(epd, local, remote, peer)
    };
    done(fence())
}

/// # Safety
/// `nodes` has room for `len` numbers, `self_` for one.
#[expect(non_snake_case, reason = "the name of scif.h")]
pub unsafe extern "C" fn scif_get_nodeIDs(nodes: *mut u16, len: c_int, self_: *mut u16) -> c_int {
    let get = || {
        if on_card() {
            return card::node_ids(nodes, len, self_);
        }
        let (all, own) = host::node_ids()?;
        let room = usize::try_from(len).unwrap_or(0).min(all.len());
        if self_.is_null() || nodes.is_null() && room > 0 {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller says that `nodes` has room for `len` numbers, and `room` is no more
        // than that, nor than there are in `all`; `self_` has room for one. Neither is null here,
        // and `all` is this function's own, so that they do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(all.as_ptr(), nodes, room);
            self_.write(own);
        }
        Ok(all.len() as c_int)
    };
    answer(get())
}

pub extern "C" fn scif_get_fd(epd: RawFd) -> c_int {
    // SAFETY: fcntl(2) with F_GETFD takes a number alone, touches no memory, and fails with EBADF
    // for what is no descriptor.
    let known = unsafe { libc::fcntl(epd, libc::F_GETFD) } >= 0;
    answer(match known && (on_card() || host::is_endpoint(epd)) {
        true => Ok(epd),
        false => Err(libc::EINVAL),
    })
}

/// # Safety
/// `epds` is null or points to `nepds` entries.
pub unsafe extern "C" fn scif_poll(
    epds: *mut libc::pollfd,
    nepds: c_uint,
    timeout_ms: c_long,
) -> c_int {
    let timeout = c_int::try_from(timeout_ms.max(-1)).unwrap_or(c_int::MAX);
    if on_card() || epds.is_null() || nepds == 0 {
        // SAFETY: the caller says that `nepds` entries are there, and `struct scif_pollepd` has the
        // members of `struct pollfd`; poll(2) writes to their `revents`, during this call alone.
        return unsafe { libc::poll(epds, nepds.into(), timeout) };
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.current.is_some_and(|most| u64::from(nepds) > most) {
        return answer(Err(libc::EINVAL));
    }
    // SAFETY: the pointer is not null here, and the caller says that it points to `nepds`
    // initialised entries, which nobody else uses during this call.
    let epds = unsafe { std::slice::from_raw_parts_mut(epds, nepds as usize) };
    answer(host::poll(epds, timeout))
}
