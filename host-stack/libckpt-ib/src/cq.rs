//! Completion channels and completion queues.

use std::{
    collections::VecDeque,
    ffi::{c_int, c_uint, c_void},
    mem::zeroed,
    ptr,
};

use snaprig_ckpt_ib::{Completion, completions::Completions, process};
use snaprig_verbs_abi::*;

use crate::{
    event::{Gate, ring},
    objects::{Channel, Context, Cq, CqMade, Pd, Shadow, is_ours, table, wait_until},
    real::{Real, null, real},
    state::{State, completion, lock, set},
};

/// What extended queues can tell here; times too, if the queue below does.
const EXTENDED_FLAGS: u64 = IBV_WC_STANDARD_FLAGS | TIMES;
const TIMES: u64 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Makes a queue below; `user` is what events bring.
///
/// # Safety
/// Context and channel are those of the libibverbs below, and alive.
pub unsafe fn create_below(
    real: &Real,
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    user: *mut c_void,
    made: &CqMade,
) -> *mut ibv_cq {
    // SAFETY: the caller says that both are alive; the attributes are of numbers and pointers.
    unsafe {
        let vector = match (*context).num_comp_vectors {
            0 => 0,
            vectors => made.vector % vectors as u32,
        };
        let entries = made.entries;
        match made.extended {
            None => (real.ibv_create_cq)(context, entries as c_int, user, channel, vector as c_int),
            Some((wc_flags, flags)) => {
                let Some(create) = (*table(context)).create_cq_ex else {
                    return null(libc::EOPNOTSUPP);
                };
                let mut attr: ibv_cq_init_attr_ex = zeroed();
                attr.cqe = entries;
                attr.cq_context = user;
                attr.channel = channel;
                attr.comp_vector = vector;
                attr.wc_flags = wc_flags;
                attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
                attr.flags = flags;
                if let Some(parent) = made.parent {
                    attr.comp_mask |= IBV_CQ_INIT_ATTR_MASK_PD;
                    attr.parent_domain = (*parent).real;
                }
                create(context, &mut attr).cast()
            }
        }
    }
}

unsafe fn create(
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    user: *mut c_void,
    made: CqMade,
) -> *mut Cq {
    let Some(real) = real() else {
        return null(libc::ENOSYS);
    };
    let state = &mut *lock();
    // SAFETY: the callers pass what the program did: a context and a channel of ours that are alive, or no channel. The box is
    // this function's until it returns. An extended queue is of numbers, pointers and optional functions.
    unsafe {
        let cq = Box::into_raw(Box::new(Cq {
            ex: zeroed(),
            real: ptr::null_mut(),
            place: 0,
            made,
            armed: None,
            has_event: false,
            completions_given: 0,
            events_given: 0,
            current: Completion::default(),
        }));
        let below = match channel.is_null() {
            true => ptr::null_mut(),
            false => Channel::of(channel).real,
        };
        let below = create_below(real, Context::of(context).real, below, cq.cast(), &made);
        if below.is_null() {
            drop(Box::from_raw(cq));
            return ptr::null_mut();
        }
        let ours = &mut *cq;
        ours.real = below;
        ours.ex.context = context;
        ours.ex.channel = channel;
        ours.ex.cq_context = user;
        ours.ex.handle = (*below).handle;
        ours.ex.cqe = (*below).cqe;
        ours.ex.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        ours.ex.cond = libc::PTHREAD_COND_INITIALIZER;
        if !channel.is_null() {
            (*channel).refcnt += 1;
        }
        ours.place = process::put(&mut state.process.cqs, Completions::default());
        set(&mut state.things.cqs, ours.place, cq);
        cq
    }
}

exported! {
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
        let Some(real) = real() else {
            return null(libc::ENOSYS);
        };
        if !is_ours(context) {
            return (real.ibv_create_comp_channel)(context);
        }
        let state = &mut *lock();
        let below = (real.ibv_create_comp_channel)(Context::of(context).real);
        if below.is_null() {
            return below;
        }
        let gate = match Gate::new((*below).fd) {
            Ok(gate) => gate,
            Err(error) => {
                (real.ibv_destroy_comp_channel)(below);
                return null(error.raw_os_error());
            }
        };
        let channel = Box::into_raw(Box::new(Channel {
            channel: ibv_comp_channel {
                context,
                fd: gate.fd,
                refcnt: 0,
            },
            real: below,
            gate,
            pending: VecDeque::new(),
        }));
        state.things.channels.insert(channel);
        (*channel).pointer()
    }

    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*channel).context) {
            return (real.ibv_destroy_comp_channel)(channel);
        }
        let state = &mut *lock();
        if (*channel).refcnt > 0 {
            return libc::EBUSY;
        }
        let ours: *mut Channel = Channel::of(channel);
        let done = (real.ibv_destroy_comp_channel)((*ours).real);
        if done == 0 {
            state.things.channels.remove(&ours);
            drop(Box::from_raw(ours));
        }
        done
    }

    fn ibv_create_cq(
        context: *mut ibv_context,
        entries: c_int,
        user: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq {
        if !is_ours(context) {
            return real().map_or(ptr::null_mut(), |real| {
                (real.ibv_create_cq)(context, entries, user, channel, vector)
            });
        }
        if vector < 0 || vector >= (*context).num_comp_vectors.max(1) {
            return null(libc::EINVAL);
        }
        let made = CqMade {
            entries: entries as u32,
            vector: vector as u32,
            extended: None,
            parent: None,
        };
        create(context, channel, user, made).cast()
    }

    fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*cq).context) {
            return (real.ibv_resize_cq)(cq, entries);
        }
        let _state = lock();
        let ours = Cq::of(cq);
        let done = (real.ibv_resize_cq)(ours.real, entries);
        if done == 0 {
            ours.made.entries = entries as u32;
            ours.ex.cqe = (*ours.real).cqe;
        }
        done
    }

    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*cq).context) {
            return (real.ibv_destroy_cq)(cq);
        }
        let ours: *mut Cq = Cq::of(cq);
        {
            let state = &mut *lock();
            let done = (real.ibv_destroy_cq)((*ours).real);
            if done != 0 {
                return done;
            }
            (*ours).real = ptr::null_mut();
            state.process.cqs[(*ours).place as usize] = None;
            set(&mut state.things.cqs, (*ours).place, ptr::null_mut());
            if let Some(channel) = (*cq).channel.as_mut() {
                channel.refcnt -= 1;
                let channel = Channel::of(channel);
                channel.pending.retain(|other| *other != ours);
                if channel.pending.is_empty() {
                    channel.gate.quiet();
                }
            }
            for context in &state.things.contexts {
                let is_about = |event: &ibv_async_event| {
                    event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq
                };
                (**context).pending.retain(|event| !is_about(event));
            }
        }
        // Events that were handed out are acknowledged first: ibv_get_cq_event(3).
        wait_until(&raw mut (*cq).mutex, &raw mut (*cq).cond, || {
            (&raw const (*cq).comp_events_completed).read_volatile()
                == (&raw const (*ours).completions_given).read_volatile()
                && (&raw const (*cq).async_events_completed).read_volatile()
                    == (&raw const (*ours).events_given).read_volatile()
        });
        drop(Box::from_raw(ours));
        0
    }
}

/// As a program sees it.
#[inline]
fn work_completion(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status,
        opcode: completion.opcode,
        vendor_err: completion.vendor_error,
        byte_len: completion.length,
        imm: ibv_wc_imm {
            imm_data: completion.immediate,
        },
        qp_num: completion.qp,
        src_qp: completion.source_qp,
        wc_flags: completion.flags,
        pkey_index: completion.pkey_index,
        slid: completion.source_lid,
        sl: completion.service_level,
        dlid_path_bits: completion.path_bits,
    }
}

/// Takes entries of a queue below; how many, or less than none if it fails.
///
/// # Safety
/// The queue is one of the libibverbs below, and alive; there is room for so many.
#[inline]
pub unsafe fn poll_below(cq: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: the caller says so.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll) => poll(cq, room, out),
            None => -1,
        }
    }
}

/// Has the next completion raise an event.
///
/// # Safety
/// The queue is one of the libibverbs below, and alive.
pub unsafe fn arm_below(cq: *mut ibv_cq, of_solicited: bool) -> c_int {
    // SAFETY: the caller says so.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(notify) => notify(cq, of_solicited.into()),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Takes the next entry of an extended queue below, with its time.
///
/// # Safety
/// The queue is an extended one of the libibverbs below, and alive.
pub unsafe fn poll_extended_below(cq: *mut ibv_cq_ex) -> Option<(ibv_wc, u64)> {
    // SAFETY: the caller says so; ibv_start_poll(3): what is asked for between start and end is what the queue was made to say.
    unsafe {
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        if (*cq).start_poll?(cq, &mut attr) != 0 {
            return None;
        }
        let mut wc: ibv_wc = zeroed();
        wc.wr_id = (*cq).wr_id;
        wc.status = (*cq).status;
        macro_rules! read {
            ($read:ident) => {
                (*cq).$read.map_or_else(Default::default, |read| read(cq))
            };
        }
        wc.vendor_err = read!(read_vendor_err);
        wc.qp_num = read!(read_qp_num);
        let mut time_ns = 0;
        if wc.status == IBV_WC_SUCCESS {
            wc.opcode = read!(read_opcode);
            wc.byte_len = read!(read_byte_len);
            wc.wc_flags = read!(read_wc_flags);
            wc.imm.imm_data = read!(read_imm_data);
            wc.src_qp = read!(read_src_qp);
            let slid: u32 = read!(read_slid);
            wc.slid = slid as u16;
            wc.sl = read!(read_sl);
            wc.dlid_path_bits = read!(read_dlid_path_bits);
            time_ns = read!(read_completion_ts);
        }
        if let Some(end) = (*cq).end_poll {
            end(cq);
        }
        Some((wc, time_ns))
    }
}

/// Takes entries of a queue below into `polled`, plain or extended: how many. The time of an extended one's is beside it.
///
/// # Safety
/// What is in the table is alive.
pub unsafe fn poll_any(cq: &Cq, polled: &mut ibv_wc) -> Option<u64> {
    // SAFETY: the caller says so.
    unsafe {
        match cq.made.extended {
            None => (poll_below(cq.real, 1, polled) == 1).then_some(0),
            Some(_) => {
                let (wc, time_ns) = poll_extended_below(cq.real.cast())?;
                *polled = wc;
                Some(time_ns)
            }
        }
    }
}

in_tables! {
    fn poll_cq(cq: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
        let state = &mut *lock();
        let ours = Cq::of(cq);
        let mut count = 0;
        if let Some(queue) = state.process.cq(ours.place) {
            while count < room && let Some(completion) = queue.take() {
                out.add(count as usize).write(work_completion(&completion));
                count += 1;
            }
        }
        // What is nobody's leaves room for more.
        while count < room {
            let start = count;
            let came = poll_below(ours.real, room - count, out.add(start as usize));
            if came <= 0 && count == 0 {
                return came;
            }
            if came <= 0 {
                break;
            }
            for at in start..start + came {
                let wc = out.add(at as usize);
                if state.take(ours.place, &mut *wc) {
                    if at > count {
                        out.add(count as usize).write(wc.read());
                    }
                    count += 1;
                }
            }
            if count > start {
                break;
            }
        }
        ours.has_given(count);
        count
    }

    fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
        let state = &mut *lock();
        let ours = Cq::of(cq);
        ours.armed = Some(solicited_only != 0);
        // An event says that some were put by, as HCAs do of those that wait.
        ring(state);
        arm_below(ours.real, solicited_only != 0)
    }

    fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
        let _state = lock();
        let ours = Cq::of(cq);
        let table = Context::of(ours.ex.context).real_verbs();
        match (*table).modify_cq {
            Some(modify) => modify(ours.real, attr),
            None => libc::EOPNOTSUPP,
        }
    }

    fn create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
        let attr = &*attr;
        let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
        if attr.comp_mask & !known != 0 {
            return null(libc::EOPNOTSUPP);
        }
        let has_flags = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        if attr.wc_flags & !EXTENDED_FLAGS != 0 {
            return null(libc::EOPNOTSUPP);
        }
        let made = CqMade {
            entries: attr.cqe,
            vector: attr.comp_vector,
            extended: Some((attr.wc_flags | IBV_WC_EX_WITH_QP_NUM, if has_flags { attr.flags } else { 0 })),
            parent: match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD {
                0 => None,
                _ => Some(Pd::of(attr.parent_domain)),
            },
        };
        let cq = create(context, attr.channel, attr.cq_context, made);
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

    fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
        if !attr.is_null() && (*attr).comp_mask != 0 {
            return libc::EINVAL;
        }
        next_poll(cq)
    }

    fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
        let state = &mut *lock();
        let ours = Cq::of(cq.cast());
        match take_extended(state, ours) {
            Some(completion) => {
                ours.has_given(1);
                (ours.ex.wr_id, ours.ex.status) = (completion.wr_id, completion.status);
                ours.current = completion;
                0
            }
            None => libc::ENOENT,
        }
    }

    fn end_poll(_cq: *mut ibv_cq_ex) {
        // Each entry is taken by itself.
    }
}

/// # Safety
/// The queue is alive.
unsafe fn take_extended(state: &mut State, cq: &Cq) -> Option<Completion> {
    if let Some(completion) = state.process.cq(cq.place).and_then(|queue| queue.take()) {
        return Some(completion);
    }
    loop {
        // SAFETY: the caller says that it is alive; a completion is of numbers.
        let (mut wc, time_ns) = unsafe {
            let mut wc: ibv_wc = zeroed();
            let time_ns = poll_any(cq, &mut wc)?;
            (wc, time_ns)
        };
        if state.take(cq.place, &mut wc) {
            return Some(completion(&wc, time_ns));
        }
    }
}

macro_rules! read {
    ($($name:ident -> $type:ty = |$completion:ident| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the manual page of ibv_create_cq_ex(3) allows this only between a successful start and the end of a
            // poll, by the thread that started it, so that nobody writes to `current` meanwhile.
            let $completion = unsafe { &Cq::of(cq.cast()).current };
            $value
        })*
    };
}

read! {
    read_opcode -> ibv_wc_opcode = |c| c.opcode;
    read_vendor_err -> u32 = |c| c.vendor_error;
    read_byte_len -> u32 = |c| c.length;
    read_imm_data -> u32 = |c| c.immediate;
    read_qp_num -> u32 = |c| c.qp;
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
    let ns = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let age = ns(rustix::time::ClockId::Monotonic).saturating_sub(then_ns);
    ns(rustix::time::ClockId::Realtime).saturating_sub(age)
}
