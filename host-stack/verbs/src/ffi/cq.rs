//! Completion channels and completion queues.

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_uint},
    mem::zeroed,
    os::fd::{BorrowedFd, IntoRawFd},
    ptr,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
};

use snaprig_hca::{
    Completion,
    control::{Reply, Request},
};
use snaprig_verbs_abi::*;

use super::{COND, Context, MUTEX, Table, acknowledge, device, minus_one, null, wait_until};
use crate::client::FabricError;

#[repr(C)]
struct Channel {
    channel: ibv_comp_channel,
    number: u32,
    users: AtomicU32,
}

/// A completion queue; a plain one is the beginning of an extended one.
#[repr(C)]
pub(crate) struct Cq {
    ex: ibv_cq_ex,
    pub place: u32,
    /// Completion and asynchronous events that were handed out.
    completions_given: AtomicU32,
    pub events_given: AtomicU32,
    /// One thread takes entries at a time.
    polling: Mutex<()>,
    /// Between start and end of an extended poll.
    current: UnsafeCell<(Option<Completion>, Option<MutexGuard<'static, ()>>)>,
}

impl Cq {
    /// # Safety
    /// `cq` came from `ibv_create_cq` or `ibv_create_cq_ex`, and is not destroyed while the result
    /// is used.
    pub unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: the caller says that `cq` is a queue of this library; those are boxes of a `Cq`,
        // which is `repr(C)` and begins with the C structure, so that the pointer is that of the
        // whole. The box lives until `ibv_destroy_cq`.
        unsafe { &*cq.cast::<Self>() }
    }
}

/// Takes the entries of a queue pair out that was reset or destroyed, as vendors' libraries do.
///
/// # Safety
/// `cq` is null, or came from `ibv_create_cq` or `ibv_create_cq_ex` and is not destroyed meanwhile.
pub(super) unsafe fn clean(cq: *mut ibv_cq, qp_number: u32) {
    if cq.is_null() {
        return;
    }
    // SAFETY: the pointer is not null, so that the caller says that it is a queue of this library
    // that is alive; a context is open for as long as it has queues.
    let (ours, context) = unsafe { (Cq::of(cq), Context::of((*cq).context)) };
    if let Some(entry) = context.fabric.memory.cq(ours.place) {
        let _polling = ours.polling.lock();
        context.fabric.hca().clean(entry, qp_number);
    }
}

pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: ibv_create_comp_channel(3) has the program pass a context that `ibv_open_device`
    // returned and that it has not closed.
    let ours = unsafe { Context::of(context) };
    match ours.fabric.open_channel() {
        Ok((number, fd)) => Box::into_raw(Box::new(Channel {
            channel: ibv_comp_channel {
                context,
                fd: fd.into_raw_fd(),
                refcnt: 0,
            },
            number,
            users: AtomicU32::new(0),
        }))
        .cast(),
        Err(error) => null(error.errno()),
    }
}

pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: ibv_destroy_comp_channel(3) has the program pass what `ibv_create_comp_channel`
    // returned, a box of a `Channel` that begins with the C structure, and give it up: its
    // descriptor is closed and its box freed once, and only if no queue uses it. Its context is
    // still open.
    unsafe {
        let ours = &*channel.cast::<Channel>();
        if ours.users.load(Ordering::Acquire) > 0 {
            return libc::EBUSY;
        }
        let context = Context::of((*channel).context);
        // A daemon that is gone closed it long ago.
        let _ = context.fabric.close_channel(ours.number);
        libc::close((*channel).fd);
        drop(Box::from_raw(channel.cast::<Channel>()));
    }
    0
}

pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    user: *mut std::ffi::c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: ibv_create_cq(3) has the program pass an open context, and null or a channel of
    // `ibv_create_comp_channel`, which is what `create` asks for.
    unsafe { create(context, entries as u32, user, channel, vector as u32, false).cast() }
}

unsafe fn create(
    context: *mut ibv_context,
    entries: u32,
    user: *mut std::ffi::c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    stamps: bool,
) -> *mut Cq {
    // SAFETY: the callers pass a context that is open, and null or a channel of this library, a box
    // of a `Channel` that begins with the C structure. That channel's `refcnt` is changed by the
    // program's own calls alone. `ibv_cq_ex` is of integers, pointers and optional functions, so
    // that zeroes are a value of it.
    unsafe {
        let ours = Context::of(context);
        if vector >= device::model(ours).vectors {
            return null(libc::EINVAL);
        }
        let number = (!channel.is_null()).then(|| (*channel.cast::<Channel>()).number);
        let request = Request::CreateCq {
            hca: ours.hca,
            entries,
            channel: number,
            stamps,
        };
        let (place, usable) = match ours.fabric.request(ours.number, request) {
            Ok(Reply::Queue(place, usable)) => (place, usable),
            Ok(_) => return null(libc::EIO),
            Err(error) => return null(error.errno()),
        };
        if !channel.is_null() {
            (*channel.cast::<Channel>())
                .users
                .fetch_add(1, Ordering::AcqRel);
            (*channel).refcnt += 1;
        }
        let mut ex: ibv_cq_ex = zeroed();
        ex.context = context;
        ex.channel = channel;
        ex.cq_context = user;
        ex.handle = place;
        ex.cqe = usable as c_int;
        ex.mutex = MUTEX;
        ex.cond = COND;
        let cq = Box::into_raw(Box::new(Cq {
            ex,
            place,
            completions_given: AtomicU32::new(0),
            events_given: AtomicU32::new(0),
            polling: Mutex::new(()),
            current: UnsafeCell::default(),
        }));
        ours.register(Table::Cq, place, cq.expose_provenance());
        cq
    }
}

pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    // SAFETY: ibv_resize_cq(3) has the program pass a queue of `ibv_create_cq` that it has not
    // destroyed, so that its box is alive, and its context open.
    unsafe {
        let (ours, context) = (Cq::of(cq), Context::of((*cq).context));
        if entries <= 0 {
            return libc::EINVAL;
        }
        let _polling = ours.polling.lock();
        let request = Request::ResizeCq {
            cq: ours.place,
            entries: entries as u32,
        };
        match context.fabric.request(context.number, request) {
            Ok(Reply::Queue(_, usable)) => {
                (*cq).cqe = usable as c_int;
                0
            }
            Ok(_) => libc::EIO,
            Err(error) => error.errno(),
        }
    }
}

pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: ibv_destroy_cq(3) has the program pass a queue of `ibv_create_cq` and give it up. The
    // channel cannot be destroyed before the queue (EBUSY), so that its descriptor is open; the
    // mutex and the condition are in the box; and the box is freed once, after all events are
    // acknowledged.
    unsafe {
        let (ours, context) = (Cq::of(cq), Context::of((*cq).context));
        let request = Request::DestroyCq { cq: ours.place };
        if let Err(error @ FabricError::Refused(_)) =
            context.fabric.request(context.number, request)
        {
            return error.errno();
        }
        context.forget(Table::Cq, ours.place);
        if !(*cq).channel.is_null() {
            let channel = (*cq).channel;
            let out = BorrowedFd::borrow_raw((*channel).fd);
            let number = (*channel.cast::<Channel>()).number;
            context
                .fabric
                .drop_completion_events(number, out, ours.place);
        }
        // Events that were handed out are acknowledged first: ibv_get_cq_event(3).
        wait_until(&raw mut (*cq).mutex, &raw mut (*cq).cond, || {
            (&raw const (*cq).comp_events_completed).read_volatile()
                == ours.completions_given.load(Ordering::Acquire)
                && (&raw const (*cq).async_events_completed).read_volatile()
                    == ours.events_given.load(Ordering::Acquire)
        });
        if !(*cq).channel.is_null() {
            (*(*cq).channel.cast::<Channel>())
                .users
                .fetch_sub(1, Ordering::AcqRel);
            (*(*cq).channel).refcnt -= 1;
        }
        drop(Box::from_raw(cq.cast::<Cq>()));
    }
    0
}

pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    user: *mut *mut std::ffi::c_void,
) -> c_int {
    // SAFETY: ibv_get_cq_event(3) has the program pass a channel of `ibv_create_comp_channel`,
    // which it does not destroy meanwhile, and places for two pointers. read(2) writes to `word`,
    // for its length. What `hand_out` finds is the exposed pointer of a queue's box. It is alive
    // while the event is counted, as the table is locked; and after that, as `ibv_destroy_cq` waits
    // for the event to be acknowledged.
    unsafe {
        let context = Context::of((*channel).context);
        loop {
            let mut word = [0; 8];
            // A plain read, so that a descriptor that does not wait, or a signal, is answered so.
            let got = libc::read((*channel).fd, word.as_mut_ptr().cast(), word.len());
            if got != word.len() as isize {
                return if got < 0 { -1 } else { minus_one(libc::EIO) };
            }
            let place = u64::from_ne_bytes(word) as u32;
            // One that was destroyed meanwhile has no more to say.
            let count = |at| {
                let found = ptr::with_exposed_provenance_mut::<Cq>(at);
                (*found).completions_given.fetch_add(1, Ordering::AcqRel);
            };
            if let Some(found) = context.hand_out(Table::Cq, place, count) {
                let found = ptr::with_exposed_provenance_mut::<Cq>(found);
                *cq = found.cast();
                *user = (*found).ex.cq_context;
                return 0;
            }
        }
    }
}

pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    if events > 0 {
        // SAFETY: ibv_ack_cq_events(3) has the program pass a queue whose events it took.
        // `ibv_destroy_cq` waits for them to be acknowledged before it frees the box with the
        // mutex, the condition and the count, all initialised by `create`.
        unsafe {
            acknowledge(
                &raw mut (*cq).mutex,
                &raw mut (*cq).cond,
                &raw mut (*cq).comp_events_completed,
                events,
            );
        }
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: ibv_req_notify_cq(3) has the program pass a queue of `ibv_create_cq` that it has not
    // destroyed, so that its box is alive, and its context open.
    unsafe {
        let (ours, context) = (Cq::of(cq), Context::of((*cq).context));
        context
            .fabric
            .hca()
            .request_notification(ours.place, solicited_only != 0);
    }
    0
}

/// As a program sees it.
fn work_completion(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as ibv_wc_status,
        opcode: completion.opcode,
        vendor_err: completion.vendor_error,
        byte_len: completion.length,
        imm: ibv_wc_imm {
            imm_data: completion.immediate,
        },
        qp_num: completion.qp_number,
        src_qp: completion.source_qp,
        wc_flags: completion.flags,
        pkey_index: completion.pkey_index,
        slid: completion.source_lid,
        sl: completion.service_level,
        dlid_path_bits: completion.path_bits,
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: ibv_poll_cq(3) has the program pass a queue that it has not destroyed, and an array
    // of `room` completions, which `count` stays below; they are written, and never read.
    unsafe {
        let (ours, context) = (Cq::of(cq), Context::of((*cq).context));
        let Some(entry) = context.fabric.memory.cq(ours.place) else {
            return -1;
        };
        let hca = context.fabric.hca();
        if !hca.has_completion(entry) {
            return 0;
        }
        let _polling = ours.polling.lock();
        let mut count = 0;
        while count < room {
            let Some(completion) = hca.poll(entry) else {
                break;
            };
            out.add(count as usize).write(work_completion(&completion));
            count += 1;
        }
        count
    }
}

pub(super) unsafe extern "C" fn modify_cq(
    _cq: *mut ibv_cq,
    attr: *mut ibv_modify_cq_attr,
) -> c_int {
    // SAFETY: ibv_modify_cq(3) has the program pass attributes that it can read. Moderation is
    // advice: no entry is held back here.
    if unsafe { (*attr).attr_mask } & !IBV_CQ_ATTR_MODERATE != 0 {
        libc::EINVAL
    } else {
        0
    }
}

/// What extended queues can tell of a completion.
const EXTENDED_FLAGS: u64 = IBV_WC_STANDARD_FLAGS | STAMPS;
/// Those that need the time of each.
const STAMPS: u64 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: ibv_create_cq_ex(3) has the program pass an open context and attributes that it can
    // read, with null or a channel of this library, and, where the mask says so, a parent domain.
    // The queue that `create` returns is a box of this call's alone until it returns.
    unsafe {
        let attr = &*attr;
        let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
        if attr.comp_mask & !known != 0 {
            return null(libc::EINVAL);
        }
        let has_flags = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        let flags = if has_flags { attr.flags } else { 0 };
        // An overrun is an error always.
        let other_flags = flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
        if attr.wc_flags & !EXTENDED_FLAGS != 0 || other_flags {
            return null(libc::EOPNOTSUPP);
        }
        let cq = create(
            context,
            attr.cqe,
            attr.cq_context,
            attr.channel,
            attr.comp_vector,
            attr.wc_flags & STAMPS != 0,
        );
        if cq.is_null() {
            return ptr::null_mut();
        }
        let ex = &mut (*cq).ex;
        ex.start_poll = Some(start_poll);
        ex.next_poll = Some(next_poll);
        ex.end_poll = Some(end_poll);
        ex.read_opcode = Some(read_opcode);
        ex.read_vendor_err = Some(read_vendor_err);
        ex.read_byte_len = Some(read_byte_len);
        ex.read_imm_data = Some(read_imm_data);
        ex.read_qp_num = Some(read_qp_num);
        ex.read_src_qp = Some(read_src_qp);
        ex.read_wc_flags = Some(read_wc_flags);
        ex.read_slid = Some(read_slid);
        ex.read_sl = Some(read_sl);
        ex.read_dlid_path_bits = Some(read_dlid_path_bits);
        ex.read_completion_ts = Some(read_completion_ts);
        ex.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
        cq.cast()
    }
}

unsafe fn take(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the callers pass a queue of `ibv_create_cq_ex` that is alive and that this thread
    // polls: it holds `polling`, so that no other thread writes to the C structure's answers or to
    // `current` meanwhile.
    unsafe {
        let (ours, context) = (&*cq.cast::<Cq>(), Context::of((*cq).context));
        let Some(entry) = context.fabric.memory.cq(ours.place) else {
            return libc::EINVAL;
        };
        match context.fabric.hca().poll(entry) {
            Some(completion) => {
                (*cq).wr_id = completion.wr_id;
                (*cq).status = completion.status as ibv_wc_status;
                (*ours.current.get()).0 = Some(completion);
                0
            }
            None => libc::ENOENT,
        }
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: ibv_start_poll(3) has the program pass a queue of `ibv_create_cq_ex` that it has not
    // destroyed, and null or attributes that it can read. `current` is touched with `polling` held.
    // The guard borrows from the box, which lives until `ibv_destroy_cq`, and that may not be
    // called before `ibv_end_poll`.
    unsafe {
        if !attr.is_null() && (*attr).comp_mask != 0 {
            return libc::EINVAL;
        }
        let ours = &*cq.cast::<Cq>();
        let held = ours
            .polling
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let taken = take(cq);
        if taken == 0 {
            // Kept until the end of the poll, in the queue itself, which outlives it.
            (*ours.current.get()).1 = Some(held);
        }
        taken
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: ibv_next_poll(3) may be called only between a successful start and the end of a poll,
    // by the thread that started it: the queue is alive, and that thread has `polling`.
    unsafe { take(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: ibv_end_poll(3) may be called only after a successful start, by the thread that
    // started the poll: it has `polling`, so that nobody else touches `current`. The reference into
    // the cell ends before the guard is dropped.
    unsafe {
        let ours = &*cq.cast::<Cq>();
        let held = (*ours.current.get()).1.take();
        drop(held);
    }
}

macro_rules! read {
    ($($name:ident -> $type:ty = |$completion:ident| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the manual page of ibv_create_cq_ex(3) allows this only between a successful
            // start and the end of a poll, by the thread that started it: the queue is alive, that
            // thread has `polling`, and nobody writes to `current` while it is copied out.
            let current = unsafe { (*(*cq.cast::<Cq>()).current.get()).0 };
            current.map_or_else(Default::default, |$completion| $value)
        })*
    };
}

read! {
    read_opcode -> ibv_wc_opcode = |c| c.opcode;
    read_vendor_err -> u32 = |c| c.vendor_error;
    read_byte_len -> u32 = |c| c.length;
    read_imm_data -> u32 = |c| c.immediate;
    read_qp_num -> u32 = |c| c.qp_number;
    read_src_qp -> u32 = |c| c.source_qp;
    read_wc_flags -> c_uint = |c| c.flags;
    read_slid -> u32 = |c| c.source_lid.into();
    read_sl -> u8 = |c| c.service_level;
    read_dlid_path_bits -> u8 = |c| c.path_bits;
    read_completion_ts -> u64 = |c| c.time_ns;
    read_completion_wallclock_ns -> u64 = |c| wall_clock_ns(c.time_ns);
}

/// The wall clock's time at a moment of the monotonic clock.
fn wall_clock_ns(then_ns: u64) -> u64 {
    let age = crate::client::now_ns().saturating_sub(then_ns);
    let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64).saturating_sub(age)
}
