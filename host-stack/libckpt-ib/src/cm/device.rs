//! The connection manager's device below: its commands, one by one (rdma/rdma_user_cm.h).

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    os::fd::RawFd,
    ptr,
};

use snaprig_verbs_cm::abi::{
    EventAnswer, Header, IdAnswer, InitQpAttr, OfId, QpAttr, Query, QueryAddrAnswer,
};
use snaprig_versioned::next;
use zerocopy::{Immutable, IntoBytes};

/// `enum ibv_qp_state`.
const RTR: u32 = 2;
const RTS: u32 = 3;
/// Where the device is.
pub const DEVICE: &CStr = c"/dev/infiniband/rdma_cm";

/// Commands (`enum rdma_ucm`).
pub mod command {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const RESOLVE_ADDR: u32 = 21;
}

/// Events (`enum rdma_cm_event_type`).
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const ROUTE_ERROR: u32 = 3;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const UNREACHABLE: u32 = 7;
    pub const ESTABLISHED: u32 = 9;
}

fn failed() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// The next library's open(2), of a path that is a string.
unsafe fn open_path(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: libc's function of this name has this type, and gets what the caller has.
    unsafe {
        next!(
            c"open",
            fn(*const c_char, c_int, libc::mode_t) -> c_int,
            path,
            flags,
            0
        )
    }
}

/// Opens it.
pub fn open(flags: c_int) -> Result<RawFd, c_int> {
    // SAFETY: the path is a string.
    match unsafe { open_path(DEVICE.as_ptr(), flags) } {
        fd if fd < 0 => Err(failed()),
        fd => Ok(fd),
    }
}

/// The next library's write(2).
///
/// # Safety
/// As for that.
pub unsafe fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    // SAFETY: libc's function of this name has this type, and gets what the caller has.
    unsafe {
        next!(
            c"write",
            fn(c_int, *const c_void, usize) -> isize,
            fd,
            bytes,
            count
        )
    }
}

/// The next library's close(2).
pub fn close(fd: c_int) -> c_int {
    // SAFETY: libc's function of this name has this type; any number may be asked for.
    unsafe { next!(c"close", fn(c_int) -> c_int, fd) }
}

/// Writes a command.
///
/// # Safety
/// Addresses in it are those of memory with room for the answer.
pub unsafe fn perform(real: RawFd, bytes: &[u8]) -> Result<(), c_int> {
    // SAFETY: the caller says so.
    match unsafe { write(real, bytes.as_ptr().cast(), bytes.len()) } {
        written if written < 0 => Err(failed()),
        _ => Ok(()),
    }
}

/// Does something that has no answer.
pub fn ask<T: IntoBytes + Immutable>(real: RawFd, command: u32, request: &T) -> Result<(), c_int> {
    let header = Header {
        command,
        request_bytes: size_of::<T>() as u16,
        answer_bytes: 0,
    };
    let bytes = [header.as_bytes(), request.as_bytes()].concat();
    // SAFETY: without room for an answer nothing is written.
    unsafe { perform(real, &bytes) }
}

/// Does something that has an answer; `request` is given where that goes.
pub fn ask_for<T: IntoBytes + Immutable, A: Default>(
    real: RawFd,
    command: u32,
    request: impl FnOnce(u64) -> T,
) -> Result<A, c_int> {
    let mut answer = A::default();
    let at = ptr::from_mut(&mut answer);
    let header = Header {
        command,
        request_bytes: size_of::<T>() as u16,
        answer_bytes: size_of::<A>() as u16,
    };
    let request = request(at.expose_provenance() as u64);
    let bytes = [header.as_bytes(), request.as_bytes()].concat();
    // SAFETY: the answer has the room that the header says. It is read through the pointer that its address is of.
    unsafe {
        perform(real, &bytes)?;
        Ok(at.read())
    }
}

/// Makes an id.
pub fn create_id(real: RawFd, uid: u64, port_space: u16, qp_type: u8) -> Result<u32, c_int> {
    let answer: IdAnswer = ask_for(real, command::CREATE_ID, |response| {
        snaprig_verbs_cm::abi::CreateId {
            uid,
            response,
            port_space,
            qp_type,
            reserved: [0; 5],
        }
    })?;
    Ok(answer.id)
}

/// Takes an event; EAGAIN: there is none.
pub fn take_event(real: RawFd) -> Result<EventAnswer, c_int> {
    ask_for(real, command::GET_EVENT, |response| {
        snaprig_verbs_cm::abi::GetEvent { response }
    })
}

/// Moves an id to a device.
pub fn migrate(to: RawFd, id: u32, from: RawFd) -> Result<(), c_int> {
    let moved: Result<u32, c_int> = ask_for(to, command::MIGRATE_ID, |response| OfId {
        response,
        id,
        reserved: from as u32,
    });
    moved.map(drop)
}

/// Between which addresses an id is.
pub fn addresses(real: RawFd, id: u32) -> Result<QueryAddrAnswer, c_int> {
    ask_for(real, command::QUERY, |response| Query {
        response,
        id,
        option: 0,
    })
}

/// With what numbers packets begin of a connection that an id is asked for: those that it receives, and those that it sends.
pub fn psns(real: RawFd, id: u32) -> Option<(u32, u32)> {
    let attr = |qp_state| {
        let asked: Result<QpAttr, c_int> =
            ask_for(real, command::INIT_QP_ATTR, |response| InitQpAttr {
                response,
                id,
                qp_state,
            });
        asked.ok()
    };
    Some((attr(RTR)?.rq_psn, attr(RTS)?.sq_psn))
}
