//! Queue pairs.

use std::{
    ffi::c_int,
    mem::{offset_of, zeroed},
    ptr,
};

use snaprig_ckpt_ib::{
    Name, process,
    queue_pair::{QueuePair, Service, Stage},
};
use snaprig_verbs_abi::*;

use crate::{
    address::port_of,
    copies::Copies,
    extended::{self, Building},
    objects::{Context, Cq, Pd, Qp, Shadow, Srq, Xrcd, is_ours, wait_until},
    post,
    real::{Real, errno, null, real},
    state::{State, Things, lock, set},
    xrc,
};

/// How often a queue pair is made again until its number is nobody's.
const NUMBERS_TRIED_MAX: usize = 1 << 12;
/// One more than the program asks for: for what tells a drain that silent requests are done.
const MARKS: u32 = 1;

/// How many of the program's requests the queue `below` takes, if those are fewer than the program may post.
pub fn sends_max(below: &ibv_qp_cap, granted: &ibv_qp_cap) -> Option<u32> {
    let is_short = below.max_send_wr < granted.max_send_wr;
    is_short.then(|| below.max_send_wr.saturating_sub(MARKS))
}

/// Makes a queue pair below, for the program's; with how it was made there.
///
/// # Safety
/// Everything that `init` names is the program's, and alive; what stands for it below is alive, too.
pub unsafe fn create_below(
    real: &Real,
    context: &Context,
    user: *mut Qp,
    init: &ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller says that everything is alive; null pointers are not followed.
    unsafe {
        let pd = init.pd.as_mut().map(|pd| Pd::of(pd).real);
        let mut below = *init;
        below.qp_context = user.cast();
        below.pd = pd.unwrap_or(ptr::null_mut());
        if let Some(xrcd) = init.xrcd.as_mut() {
            below.xrcd = Xrcd::of(xrcd).real;
        }
        let cq = |cq: *mut ibv_cq| match cq.is_null() {
            true => cq,
            false => Cq::of(cq).real,
        };
        (below.send_cq, below.recv_cq) = (cq(init.send_cq), cq(init.recv_cq));
        if !init.srq.is_null() {
            below.srq = Srq::of(init.srq).real;
        }
        let create_ex = (*context.real_verbs()).create_qp_ex;
        // What has no room for a mark has to do without; then it is a drain that refuses, if it needs one. Where the HCA is
        // another one now, it may have less of everything.
        let device = {
            let mut attr: ibv_device_attr = zeroed();
            (real.ibv_query_device)(context.real, &mut attr);
            attr
        };
        let clamp = |cap: &ibv_qp_cap, marks: u32| ibv_qp_cap {
            max_send_wr: (cap.max_send_wr + marks).min(device.max_qp_wr as u32),
            max_recv_wr: cap.max_recv_wr.min(device.max_qp_wr as u32),
            max_send_sge: cap.max_send_sge.min(device.max_sge as u32),
            max_recv_sge: cap.max_recv_sge.min(device.max_sge as u32),
            ..*cap
        };
        let is_again = user.as_ref().is_some_and(|qp| !qp.init.pd.is_null());
        let mut caps = vec![
            ibv_qp_cap {
                max_send_wr: init.cap.max_send_wr.saturating_add(MARKS),
                ..init.cap
            },
            init.cap,
        ];
        if is_again {
            let marked = clamp(&init.cap, MARKS);
            let halves = (0..=10).map(|halving| ibv_qp_cap {
                max_inline_data: marked.max_inline_data >> halving,
                ..marked
            });
            caps.extend(halves);
        }
        for cap in caps {
            below.cap = cap;
            let made = match (create_ex, pd) {
                (Some(create), _) if init.comp_mask != IBV_QP_INIT_ATTR_PD => {
                    create(context.real, &mut below)
                }
                (_, None) => null(libc::EOPNOTSUPP),
                (_, Some(pd)) => {
                    let mut plain = ibv_qp_init_attr {
                        qp_context: below.qp_context,
                        send_cq: below.send_cq,
                        recv_cq: below.recv_cq,
                        srq: below.srq,
                        cap,
                        qp_type: below.qp_type,
                        sq_sig_all: below.sq_sig_all,
                    };
                    let made = (real.ibv_create_qp)(pd, &mut plain);
                    below.cap = plain.cap;
                    made
                }
            };
            if let Some(made) = made.as_mut() {
                if let Some(user) = user.as_mut() {
                    user.granted = below.cap;
                }
                return made;
            }
            if !matches!(errno(), libc::EINVAL | libc::ENOMEM) {
                break;
            }
        }
        ptr::null_mut()
    }
}

fn service(kind: ibv_qp_type) -> Option<Service> {
    match kind {
        IBV_QPT_RC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Some(Service::Reliable),
        IBV_QPT_UC => Some(Service::Unreliable),
        IBV_QPT_UD => Some(Service::Datagram),
        _ => None,
    }
}

impl State {
    /// Makes a queue pair, with a number that is nobody's.
    ///
    /// # Safety
    /// Everything that the attributes name is the program's, and alive.
    unsafe fn create_qp(
        &mut self,
        context: *mut ibv_context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        let (Some(real), Some(service)) = (real(), service(attr.qp_type)) else {
            return null(libc::EOPNOTSUPP);
        };
        // SAFETY: the caller says that everything is alive. The box is this function's until it returns; it is of numbers,
        // pointers, optional functions, a mutex and a condition.
        unsafe {
            let is_extended = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
            let qp = new(is_extended);
            let context: *mut Context = Context::of(context);
            let port = (*context).port();
            let mut in_vain = Vec::new();
            let below = loop {
                let below = create_below(real, &*context, qp, attr);
                let is_given =
                    !below.is_null() && self.things.names.is_given(port, (*below).qp_num);
                if !is_given || in_vain.len() == NUMBERS_TRIED_MAX {
                    break below;
                }
                in_vain.push(below);
            };
            for other in in_vain {
                (real.ibv_destroy_qp)(other);
            }
            if below.is_null() {
                let why = errno();
                drop(Box::from_raw(qp));
                return null(why);
            }
            let ours = &mut *qp;
            ours.real = below;
            ours.inline_below = ours.granted.max_inline_data;
            ours.granted.max_send_wr = match ours.granted.max_send_wr {
                granted if granted > attr.cap.max_send_wr => granted - MARKS,
                granted => granted,
            };
            attr.cap = ours.granted;
            ours.init = *attr;
            extended::fill(&mut ours.ex);
            let base = &mut ours.ex.qp_base;
            base.context = (*context).pointer();
            base.qp_context = attr.qp_context;
            base.pd = attr.pd;
            base.send_cq = attr.send_cq;
            base.recv_cq = attr.recv_cq;
            base.srq = attr.srq;
            base.handle = (*below).handle;
            base.qp_num = (*below).qp_num;
            base.qp_type = attr.qp_type;
            let number = base.qp_num;
            let shared = (!attr.srq.is_null()).then(|| Srq::of(attr.srq).place);
            let name = Name { port, number };
            let pair = QueuePair::new(name, service, shared);
            ours.place = process::put(&mut self.process.qps, pair);
            set(&mut self.things.qps, ours.place, qp);
            (*context).by_number.insert(number, ours.place);
            ours.pointer()
        }
    }

    /// A queue pair is reset or gone: what it had is not to be found any more.
    ///
    /// # Safety
    /// The queue pair is alive, and its context open.
    unsafe fn forget(&mut self, qp: &Qp) {
        let base = &qp.ex.qp_base;
        if base.qp_type == IBV_QPT_XRC_RECV {
            // What came by it is its shared receive queues'.
            // SAFETY: the caller says that its context is open.
            let name = unsafe { qp.name() };
            return self.process.forget_taken_by(name);
        }
        for queue in self.process.cqs.iter_mut().flatten() {
            queue.forget(base.qp_num);
        }
    }

    /// A queue pair has been brought to another state, or has been told of its peer.
    fn modified(&mut self, qp: &mut Qp, attr: &ibv_qp_attr, mask: c_int) {
        merge(&mut qp.attr, attr, mask);
        qp.mask |= mask;
        let Some(pair) = self.process.qp(qp.place) else {
            return;
        };
        if mask & IBV_QP_DEST_QPN != 0 && pair.service != Service::Datagram {
            pair.peer = Some(Name {
                port: port_of(&qp.attr.ah_attr),
                number: qp.attr.dest_qp_num,
            });
        }
        if mask & IBV_QP_STATE == 0 {
            return;
        }
        qp.ex.qp_base.state = attr.qp_state;
        match attr.qp_state {
            IBV_QPS_RESET => {
                pair.reset();
                qp.mask = 0;
                // SAFETY: the queue pair is alive, and its context open.
                unsafe { self.forget(qp) };
            }
            IBV_QPS_INIT => pair.stage = Stage::Closed,
            IBV_QPS_RTR => pair.stage = Stage::Receives,
            IBV_QPS_RTS => pair.stage = Stage::Sends,
            IBV_QPS_SQD => pair.stage = Stage::Holds,
            IBV_QPS_ERR => pair.fail(None),
            _ => {}
        }
    }
}

/// A queue pair that is nothing yet.
pub fn new(is_extended: bool) -> *mut Qp {
    // SAFETY: an extended queue pair and its attributes are of numbers, pointers and optional functions, a mutex and a condition,
    // which all have values of zeroes.
    let mut qp: Qp = unsafe {
        Qp {
            ex: zeroed(),
            real: ptr::null_mut(),
            place: 0,
            init: zeroed(),
            granted: zeroed(),
            inline_below: 0,
            sends_below: None,
            copies: Copies::default(),
            attr: zeroed(),
            mask: 0,
            is_extended,
            events_given: 0,
            building: Building::default(),
            groups: Vec::new(),
            longest: 0,
            opened: None,
        }
    };
    qp.ex.qp_base.state = IBV_QPS_RESET;
    qp.ex.qp_base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    qp.ex.qp_base.cond = libc::PTHREAD_COND_INITIALIZER;
    Box::into_raw(Box::new(qp))
}

/// Takes over what the mask names.
fn merge(into: &mut ibv_qp_attr, from: &ibv_qp_attr, mask: c_int) {
    macro_rules! take {
        ($($flag:ident: $($field:ident),*;)*) => {
            $(if mask & $flag != 0 {
                $(into.$field = from.$field;)*
            })*
        };
    }
    take! {
        IBV_QP_STATE: qp_state;
        IBV_QP_EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_QKEY: qkey;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
        IBV_QP_ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_PATH_MIG_STATE: path_mig_state;
        IBV_QP_CAP: cap;
        IBV_QP_DEST_QPN: dest_qp_num;
        IBV_QP_RATE_LIMIT: rate_limit;
    }
}

impl Things {
    /// Attributes, as they are now.
    ///
    /// # Safety
    /// The queue pair is alive, and its context open below.
    pub unsafe fn real_attr(&self, qp: &Qp, attr: &ibv_qp_attr, mask: c_int) -> ibv_qp_attr {
        let mut real = *attr;
        if self.restarts == 0 {
            return real;
        }
        // SAFETY: the caller says that its context is open.
        let context = unsafe { Context::of(qp.ex.qp_base.context) };
        let address = |attr| self.real_address(context, attr);
        let has = |flag| mask & flag != 0;
        if has(IBV_QP_AV) {
            real.ah_attr = address(&attr.ah_attr);
        }
        if has(IBV_QP_ALT_PATH) {
            real.alt_ah_attr = address(&attr.alt_ah_attr);
            real.alt_port_num = context.real_port(attr.alt_port_num);
        }
        if has(IBV_QP_PORT) {
            real.port_num = context.real_port(attr.port_num);
        }
        let to = match has(IBV_QP_AV) {
            true => &attr.ah_attr,
            false => &qp.attr.ah_attr,
        };
        let peer = Name {
            port: port_of(to),
            number: attr.dest_qp_num,
        };
        if has(IBV_QP_DEST_QPN) {
            real.dest_qp_num = self.names.queue_pair(peer).number;
        }
        // The HCA of either end may be another one, which can do less.
        if has(IBV_QP_PATH_MTU) {
            let ends = [context.port(), self.names.canonical(peer).port];
            let least = ends
                .into_iter()
                .filter_map(|port| self.names.mtu(port))
                .min();
            real.path_mtu = attr.path_mtu.min(least.unwrap_or(attr.path_mtu));
        }
        let most = context.real_rd_atomic();
        if has(IBV_QP_MAX_QP_RD_ATOMIC) {
            real.max_rd_atomic = attr.max_rd_atomic.min(most);
        }
        if has(IBV_QP_MAX_DEST_RD_ATOMIC) {
            real.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(most);
        }
        real
    }
}

exported! {
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        if !is_ours((*pd).context) {
            return real().map_or(ptr::null_mut(), |real| (real.ibv_create_qp)(pd, attr));
        }
        let mut whole: ibv_qp_init_attr_ex = zeroed();
        // The longer one begins as the shorter.
        ptr::copy_nonoverlapping(attr, ptr::from_mut(&mut whole).cast(), 1);
        whole.comp_mask = IBV_QP_INIT_ATTR_PD;
        whole.pd = pd;
        let made = lock().create_qp((*pd).context, &mut whole);
        if !made.is_null() {
            (*attr).cap = whole.cap;
        }
        made
    }

    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
        if !is_ours((*qp).context) {
            return real().map_or(ptr::null_mut(), |real| (real.ibv_qp_to_qp_ex)(qp));
        }
        match Qp::of(qp).is_extended {
            true => qp.cast(),
            false => ptr::null_mut(),
        }
    }

    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*qp).context) {
            return (real.ibv_modify_qp)(qp, attr, mask);
        }
        let state = &mut *lock();
        let ours = Qp::of(qp);
        if ours.opened.is_some() {
            // Whoever made it makes it again, and would not know.
            return libc::EOPNOTSUPP;
        }
        // Programs of old have a shorter one, without what came last.
        let mut own: ibv_qp_attr = zeroed();
        let bytes = match mask & IBV_QP_RATE_LIMIT {
            0 => offset_of!(ibv_qp_attr, rate_limit),
            _ => size_of::<ibv_qp_attr>(),
        };
        ptr::copy_nonoverlapping(attr.cast::<u8>(), ptr::from_mut(&mut own).cast(), bytes);
        if own.qp_state == IBV_QPS_RESET && mask & IBV_QP_STATE != 0 {
            xrc::put_by_all(state, ours);
        }
        let mut below = state.things.real_attr(ours, &own, mask);
        let done = (real.ibv_modify_qp)(ours.real, &mut below, mask);
        if done == 0 {
            state.modified(ours, &own, mask);
            post::release(state, ours);
        }
        done
    }

    fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: c_int,
        init: *mut ibv_qp_init_attr,
    ) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*qp).context) {
            return (real.ibv_query_qp)(qp, attr, mask, init);
        }
        let state = &mut *lock();
        let ours = Qp::of(qp);
        let mut below: ibv_qp_attr = zeroed();
        let mut below_init: ibv_qp_init_attr = zeroed();
        let done = (real.ibv_query_qp)(ours.real, &mut below, mask, &mut below_init);
        if done != 0 {
            return done;
        }
        if state.process.qp(ours.place).is_some_and(|pair| pair.stage == Stage::Holds) {
            // A checkpoint may have let it go on.
            below.qp_state = IBV_QPS_SQD;
            below.cur_qp_state = IBV_QPS_SQD;
        }
        // As the program has called things.
        let known = ours.mask;
        let has = |flag| known & flag != 0;
        if state.things.restarts > 0 {
            let to = below.qp_state;
            let mut own = below;
            merge(&mut own, &ours.attr, known & !IBV_QP_STATE & !IBV_QP_CAP);
            own.qp_state = to;
            below = own;
        } else if has(IBV_QP_DEST_QPN) {
            below.dest_qp_num = ours.attr.dest_qp_num;
        }
        below.cap = ours.granted;
        ptr::copy_nonoverlapping(
            ptr::from_ref(&below).cast::<u8>(),
            attr.cast::<u8>(),
            offset_of!(ibv_qp_attr, rate_limit),
        );
        let base = &mut ours.ex.qp_base;
        base.state = below.qp_state;
        *init = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: ours.granted,
            qp_type: base.qp_type,
            sq_sig_all: ours.init.sq_sig_all,
        };
        0
    }

    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*qp).context) {
            return (real.ibv_destroy_qp)(qp);
        }
        let ours: *mut Qp = Qp::of(qp);
        {
            let state = &mut *lock();
            xrc::put_by_all(state, &*ours);
            let number = (*(*ours).real).qp_num;
            let done = (real.ibv_destroy_qp)((*ours).real);
            if done != 0 {
                return done;
            }
            (*ours).real = ptr::null_mut();
            (*ours).copies.free();
            state.things.unbind_from(ours);
            let context = Context::of((*qp).context);
            match (*ours).opened {
                Some(_) => state.things.opened.retain(|other| *other != ours),
                None => {
                    state.process.destroyed((*ours).place);
                    set(&mut state.things.qps, (*ours).place, ptr::null_mut());
                    context.by_number.remove(&number);
                }
            }
            state.forget(&*ours);
            let is_about = |event: &ibv_async_event| {
                matches!(crate::event::element(event.event_type), crate::event::Element::Qp)
                    && event.element.qp == qp
            };
            context.pending.retain(|event| !is_about(event));
        }
        wait_until(&raw mut (*qp).mutex, &raw mut (*qp).cond, || {
            (&raw const (*qp).events_completed).read_volatile()
                == (&raw const (*ours).events_given).read_volatile()
        });
        drop(Box::from_raw(ours));
        0
    }

    fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, operation: ibv_wr_opcode, flags: u32) -> c_int {
        let Some(real) = real() else {
            return 0;
        };
        let below = match is_ours((*qp).context) {
            true => Qp::of(qp).real,
            false => qp,
        };
        (real.ibv_query_qp_data_in_order)(below, operation, flags)
    }

    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        let below = match is_ours((*qp).context) {
            true => Qp::of(qp).real,
            false => qp,
        };
        (real.ibv_query_ece)(below, ece)
    }

    fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        let below = match is_ours((*qp).context) {
            true => Qp::of(qp).real,
            false => qp,
        };
        (real.ibv_set_ece)(below, ece)
    }
}

in_tables! {
    fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let attr = &mut *attr;
        if attr.comp_mask & !known != 0 {
            return null(libc::EOPNOTSUPP);
        }
        let needed = match attr.qp_type {
            IBV_QPT_XRC_RECV => IBV_QP_INIT_ATTR_XRCD,
            _ => IBV_QP_INIT_ATTR_PD,
        };
        if attr.comp_mask & needed == 0 {
            return null(libc::EINVAL);
        }
        let has_flags = attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0;
        let has_operations = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        // What the mask does not name may be anything, and a shorter structure.
        let mut whole: ibv_qp_init_attr_ex = zeroed();
        ptr::copy_nonoverlapping(
            ptr::from_ref(attr).cast::<u8>(),
            ptr::from_mut(&mut whole).cast(),
            offset_of!(ibv_qp_init_attr_ex, comp_mask),
        );
        whole.comp_mask = attr.comp_mask;
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD != 0 {
            whole.pd = attr.pd;
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 {
            whole.xrcd = attr.xrcd;
        }
        if has_flags {
            whole.create_flags = attr.create_flags;
        }
        if has_operations {
            whole.send_ops_flags = attr.send_ops_flags;
        }
        let made = lock().create_qp(context, &mut whole);
        if !made.is_null() {
            attr.cap = whole.cap;
        }
        made
    }
}
