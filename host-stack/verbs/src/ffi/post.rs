//! Posting, the plain way: lists of work requests.

use std::{ffi::c_int, mem::offset_of, slice};

use snaprig_hca::{
    Opcode, SendFlags,
    post::{Data, PostError},
    queue::{Destination, SGES_MAX, Send, Sge},
};
use snaprig_verbs_abi::*;

use super::{Context, address::Ah, extended, qp::Qp, srq::Srq};

/// The errno value of a request that was not posted.
pub(super) fn errno(error: PostError) -> c_int {
    match error {
        PostError::Full => libc::ENOMEM,
        PostError::Unknown
        | PostError::WrongState
        | PostError::Unsupported
        | PostError::TooManySges
        | PostError::InlineTooLong => libc::EINVAL,
    }
}

const _: () = assert!(
    size_of::<Sge>() == size_of::<ibv_sge>()
        && offset_of!(Sge, address) == offset_of!(ibv_sge, addr)
        && offset_of!(Sge, length) == offset_of!(ibv_sge, length)
        && offset_of!(Sge, key) == offset_of!(ibv_sge, lkey)
);

/// A program's scatter/gather list. None: it is too long.
///
/// # Safety
/// `list` has `count` initialised entries, which stay, unchanged, while the result is used; it may
/// be anything if `count` is 0.
pub(super) unsafe fn entries<'a>(list: *const ibv_sge, count: usize) -> Option<&'a [Sge]> {
    match count {
        0 => Some(&[]),
        // SAFETY: the caller says that so many entries are there and stay unchanged; `count` is at
        // most `SGES_MAX`, and the layout of `ibv_sge` is that of `Sge`, as was asserted above.
        1..=SGES_MAX => Some(unsafe { slice::from_raw_parts(list.cast(), count) }),
        _ => None,
    }
}

/// Bytes of a program's own memory.
///
/// # Safety
/// `address` has `length` readable bytes, which stay, unchanged, while the result is used; it may
/// be anything if `length` is 0.
pub(super) unsafe fn bytes<'a>(address: *const u8, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller says that so many bytes are there and stay unchanged, and a range that a
    // program can read is no longer than `isize::MAX`.
    unsafe { slice::from_raw_parts(address, length) }
}

/// A request, but for its data.
///
/// # Safety
/// `qp` is a queue pair of this library that is alive. The unions of `wr` have what its opcode and
/// the transport of `qp` say, as ibv_post_send(3) asks: a handle of `ibv_create_ah` for datagrams,
/// a window of this library for a binding.
unsafe fn request(qp: *mut ibv_qp, wr: &ibv_send_wr) -> Option<Send> {
    let opcode = Opcode::from_number(wr.opcode)?;
    // SAFETY: the caller says that the unions have what opcode and transport say. All members read
    // are integers, or pointers to objects of this library that are alive and that are only read.
    unsafe {
        let flags = SendFlags::from_bits_truncate(wr.send_flags);
        let mut send = Send::new(wr.wr_id, opcode, flags);
        send.immediate = wr.imm.imm_data;
        match opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => {
                send.remote_address = wr.wr.atomic.remote_addr;
                send.remote_key = wr.wr.atomic.rkey;
                send.compare_add = wr.wr.atomic.compare_add;
                send.swap = wr.wr.atomic.swap;
            }
            Opcode::Write | Opcode::WriteImm | Opcode::Read => {
                send.remote_address = wr.wr.rdma.remote_addr;
                send.remote_key = wr.wr.rdma.rkey;
            }
            Opcode::BindWindow => {
                let bind = &wr.op.bind_mw;
                extended::bind_request(&mut send, bind.rkey, &bind.bind_info);
            }
            _ if (*qp).qp_type == IBV_QPT_UD => {
                let ah = wr.wr.ud.ah.cast::<Ah>();
                send.to = Destination {
                    qp: wr.wr.ud.remote_qpn,
                    qkey: wr.wr.ud.remote_qkey,
                    ..(*ah).to
                };
            }
            _ => {}
        }
        if (*qp).qp_type == IBV_QPT_XRC_SEND {
            send.srq = wr.qp_type.xrc.remote_srqn;
        }
        Some(send)
    }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: ibv_post_send(3) has the program pass a queue pair that it has not destroyed, whose
    // context is thus open; a list of requests, each with its own list of entries, that ends with a
    // null pointer and stays during the call; and a place for one pointer.
    unsafe {
        let (ours, context) = (Qp::of(qp), Context::of((*qp).context));
        let hca = context.fabric.hca();
        let sending = match hca.sending(ours.place) {
            Ok(sending) => sending,
            Err(error) => {
                *bad = wr;
                return errno(error);
            }
        };
        let mut result = 0;
        while !wr.is_null() {
            result = match request(qp, &*wr) {
                Some(send) => add(&sending, &send, &*wr),
                None => libc::EINVAL,
            };
            if result != 0 {
                *bad = wr;
                break;
            }
            wr = (*wr).next;
        }
        // What came before the bad one is posted.
        sending.commit();
        result
    }
}

/// # Safety
/// `wr` has `num_sge` entries at `sg_list`, which stay during the call; and if it is inline, each
/// is of memory that the program can read.
unsafe fn add<H: snaprig_hca::Host>(
    sending: &snaprig_hca::post::Sending<'_, '_, H>,
    send: &Send,
    wr: &ibv_send_wr,
) -> c_int {
    let count = usize::try_from(wr.num_sge).unwrap_or(usize::MAX);
    // SAFETY: the caller says that so many entries are there and stay; one that says more than
    // `SGES_MAX` is refused before any is read.
    let Some(list) = (unsafe { entries(wr.sg_list, count) }) else {
        return libc::EINVAL;
    };
    // SAFETY: `piece` is called for inline data only, of which the caller says that the program can
    // read it; it is copied before `add` returns.
    let piece = |sge: &Sge| unsafe {
        bytes(
            std::ptr::with_exposed_provenance(sge.address as usize),
            sge.length as usize,
        )
    };
    let inline = send.flags.contains(SendFlags::INLINE) && !send.opcode.fetches();
    let added = match list {
        _ if send.opcode.is_local() => sending.send(send, Data::EMPTY),
        [sge] if inline => sending.send(send, Data::Inline(&[piece(sge)])),
        list if inline => {
            let mut pieces: [&[u8]; SGES_MAX] = [&[]; SGES_MAX];
            for (to, sge) in pieces.iter_mut().zip(list) {
                *to = piece(sge);
            }
            sending.send(send, Data::Inline(&pieces[..list.len()]))
        }
        list => sending.send(send, Data::List(list)),
    };
    added.map_or_else(errno, |()| 0)
}

/// Posts each receive of a list.
///
/// # Safety
/// `wr` is null or a list of requests, each with `num_sge` entries at `sg_list`, that ends with a
/// null pointer and stays during the call; `bad` is a place for one pointer.
unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(u64, &[Sge]) -> Result<(), PostError>,
) -> c_int {
    // SAFETY: the caller says that the requests and their entries are there and stay during the
    // call, up to a null pointer, at which the loop ends; `bad` is written, and not read.
    unsafe {
        while !wr.is_null() {
            let count = usize::try_from((*wr).num_sge).unwrap_or(usize::MAX);
            let posted = match entries((*wr).sg_list, count) {
                Some(list) => post((*wr).wr_id, list).map_or_else(errno, |()| 0),
                None => libc::EINVAL,
            };
            if posted != 0 {
                *bad = wr;
                return posted;
            }
            wr = (*wr).next;
        }
    }
    0
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: ibv_post_recv(3) has the program pass a queue pair that it has not destroyed, whose
    // context is thus open, and what `post_receives` asks for: a list that ends with a null
    // pointer, and a place for the bad one.
    unsafe {
        let (ours, context) = (Qp::of(qp), Context::of((*qp).context));
        if !(*qp).srq.is_null() {
            *bad = wr;
            return libc::EINVAL;
        }
        let hca = context.fabric.hca();
        post_receives(wr, bad, |id, list| hca.post_receive(ours.place, id, list))
    }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: ibv_post_srq_recv(3) has the program pass a queue that it has not destroyed, whose
    // context is thus open, and what `post_receives` asks for: a list that ends with a null
    // pointer, and a place for the bad one.
    unsafe {
        let (ours, context) = (Srq::of(srq), Context::of((*srq).context));
        let hca = context.fabric.hca();
        post_receives(wr, bad, |id, list| {
            hca.post_shared_receive(ours.place, id, list)
        })
    }
}
