//! Posting: each request is in the log before it is below (principle 2).

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use snaprig_ckpt_ib::{
    Name,
    cookie::{Cookie, Queue},
    names::Receiver,
    queue_pair::{QueuePair, Service, Stage},
    receives::Fate,
    sends::{Kind, Posted, Sends},
};
use snaprig_verbs_abi::*;

use crate::{
    address::port_of,
    below::inline_list,
    copies::{copy, is_needed},
    event::ring,
    objects::{Ah, Context, Qp, Shadow, Srq},
    room,
    state::{Chain, Receive, Request, State, Things, elements, lock},
    windows::post_type_1,
};

/// Those of a group have no one who counts what comes.
const MULTICAST: u32 = 0xff_ffff;

/// What a request does at the peer.
#[inline]
fn kind_of(opcode: ibv_wr_opcode) -> Kind {
    match opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV | IBV_WR_RDMA_WRITE_WITH_IMM => {
            Kind::Message
        }
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => Kind::Local,
        _ => Kind::Silent,
    }
}

/// The same, of a queue pair's request.
#[inline]
fn kind_of_request(qp: &Qp, wr: &ibv_send_wr) -> Kind {
    match kind_of(wr.opcode) {
        Kind::Message if qp.ex.qp_base.qp_type == IBV_QPT_XRC_SEND => Kind::Behind(srq_of(wr)),
        kind => kind,
    }
}

/// The shared receive queue that a request of XRC leads to.
fn srq_of(wr: &ibv_send_wr) -> u32 {
    // SAFETY: the union has one member, of 4 plain bytes.
    unsafe { wr.qp_type.xrc.remote_srqn }
}

/// Where a request of a queue pair leads.
///
/// # Safety
/// Its address handle is the program's, and alive.
#[inline]
unsafe fn receiver(
    (service, peer): (Service, Option<Name>),
    kind: Kind,
    wr: &ibv_send_wr,
) -> Option<Receiver> {
    match service {
        Service::Reliable | Service::Unreliable => kind.receiver(peer?),
        Service::Datagram if kind != Kind::Message => None,
        // SAFETY: a request of a datagram queue pair has this member, and the caller says that the handle is alive.
        Service::Datagram => unsafe {
            let ud = &wr.wr.ud;
            let name = Name {
                port: port_of(&Ah::of(ud.ah).attr),
                number: ud.remote_qpn,
            };
            (ud.remote_qpn != MULTICAST).then(|| name.into())
        },
    }
}

impl Things {
    /// Makes a request of the program's what it is below: names are what they are now. Its lists are not changed.
    ///
    /// # Safety
    /// What it names is the program's, and alive.
    #[inline]
    pub unsafe fn make_real(
        &self,
        qp: &Qp,
        peer: Option<Name>,
        cookie: Cookie,
        wr: &mut ibv_send_wr,
    ) {
        wr.wr_id = cookie.bits();
        wr.next = ptr::null_mut();
        // SAFETY: which member of the union is in use follows from the kind of queue pair and the opcode: ibv_post_send(3). The caller
        // says that what it names is alive.
        unsafe {
            if kind_of(wr.opcode) == Kind::Local {
                self.make_local_real(qp, wr);
            } else if qp.ex.qp_base.qp_type == IBV_QPT_UD {
                let ud = &mut wr.wr.ud;
                let ah = Ah::of(ud.ah);
                ud.ah = ah.real;
                if self.restarts > 0 && ud.remote_qpn != MULTICAST {
                    let name = Name {
                        port: port_of(&ah.attr),
                        number: ud.remote_qpn,
                    };
                    ud.remote_qpn = self.names.queue_pair(name).number;
                }
            } else if let (true, Some(peer)) = (self.restarts > 0, peer) {
                self.rename(qp, peer, wr);
            }
        }
    }

    /// The same, of a restarted process's connection.
    ///
    /// # Safety
    /// As for [`Self::make_real`].
    unsafe fn rename(&self, qp: &Qp, peer: Name, wr: &mut ibv_send_wr) {
        let mut to = Receiver::from(peer);
        // SAFETY: as in `make_real`.
        unsafe {
            if qp.ex.qp_base.qp_type == IBV_QPT_XRC_SEND {
                to.shared = Some(srq_of(wr));
                if let Some(name) = to.shared_name() {
                    wr.qp_type.xrc.remote_srqn = self.names.shared(name);
                }
            }
            let key = match wr.opcode {
                IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                    &mut wr.wr.rdma.rkey
                }
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => &mut wr.wr.atomic.rkey,
                IBV_WR_SEND_WITH_INV => &mut wr.imm.invalidate_rkey,
                _ => return,
            };
            *key = self.names.remote_key(to, *key);
        }
    }
}

/// Whether what is posted now is held.
pub fn is_holding(pair: &QueuePair<Request, Receive>) -> bool {
    pair.stage == Stage::Holds || pair.sends.is_holding()
}

/// Posts a chain: how many were taken, and why no more.
///
/// # Safety
/// The queue pair is the program's, and alive; so are the requests and what they name.
pub unsafe fn post_chain(
    state: &mut State,
    qp: &mut Qp,
    first: *mut ibv_send_wr,
) -> (usize, c_int) {
    let Some(pair) = state.process.qp(qp.place) else {
        return (0, libc::EINVAL);
    };
    // SAFETY: the caller says that everything is alive.
    unsafe {
        match is_holding(pair) || pair.sends.is_short() {
            true => post_or_hold(state, qp, first),
            false => post_some(state, qp, first, usize::MAX),
        }
    }
}

/// The same, where some are held.
///
/// # Safety
/// As for [`post_chain`].
#[cold]
unsafe fn post_or_hold(
    state: &mut State,
    qp: &mut Qp,
    mut next: *mut ibv_send_wr,
) -> (usize, c_int) {
    let mut taken = 0;
    // SAFETY: ibv_post_send(3): each request is followed by another one or none.
    while let Some(wr) = unsafe { next.as_mut() } {
        next = wr.next;
        // SAFETY: the caller says that everything is alive.
        let failed = unsafe { post_or_hold_one(state, qp, wr) };
        if failed != 0 {
            return (taken, failed);
        }
        taken += 1;
    }
    (taken, 0)
}

/// # Safety
/// As for [`post_chain`].
unsafe fn post_or_hold_one(state: &mut State, qp: &mut Qp, wr: &mut ibv_send_wr) -> c_int {
    let Some(pair) = state.process.qp(qp.place) else {
        return libc::EINVAL;
    };
    if !is_holding(pair) {
        // SAFETY: the caller says that everything is alive.
        return unsafe { post_some(state, qp, wr, 1).1 };
    }
    let mut posted = Posted::default();
    let kind = kind_of_request(qp, wr);
    // SAFETY: the caller says so.
    unsafe { set(&mut posted, qp, wr, kind) };
    hold(state, qp, posted)
}

/// A request is posted that is not to go below yet.
pub fn hold(state: &mut State, qp: &Qp, posted: Posted<Request>) -> c_int {
    let Some(pair) = state.process.qp(qp.place) else {
        return libc::EINVAL;
    };
    if pair.sends.len() >= qp.granted.max_send_wr as usize {
        return libc::ENOMEM;
    }
    pair.sends.hold(posted);
    if room::waits(pair) {
        room::see_to(state);
    }
    0
}

/// Posts the first ones of a chain below, `most` at most: how many were taken, and why no more.
///
/// # Safety
/// As for [`post_chain`].
#[inline]
unsafe fn post_some(
    state: &mut State,
    qp: &mut Qp,
    first: *mut ibv_send_wr,
    most: usize,
) -> (usize, c_int) {
    let State { process, things } = state;
    let Some(pair) = process.qp(qp.place) else {
        return (0, libc::EINVAL);
    };
    let ends = (pair.service, pair.peer);
    let mut has_local = false;
    let first_number = pair.sends.next_number();
    let mut chain = things.chain.take().unwrap_or_default();
    chain.clear();
    let mut next = first;
    // SAFETY: ibv_post_send(3): each request is followed by another one or none. Their lists are read here, and by the
    // libibverbs below in this call.
    unsafe {
        while let Some(wr) = next.as_ref()
            && chain.requests.len() < most
        {
            next = wr.next;
            let kind = kind_of_request(qp, wr);
            has_local |= kind == Kind::Local;
            if let Some(to) = receiver(ends, kind, wr) {
                pair.count_sent(to);
            }
            let done = pair.sends.done();
            let asks = pair.sends.asks(pair.sends.next_number());
            let (number, posted) = pair.sends.post_into();
            set(posted, qp, wr, kind);
            let cookie = Cookie {
                queue: Queue::Sends(qp.place),
                own: false,
                number,
            };
            let real = chain.push(wr);
            things.make_real(qp, ends.1, cookie, real);
            if asks {
                real.send_flags |= IBV_SEND_SIGNALED;
            }
            if things.restarts > 0 {
                let list = match posted.request.inline() {
                    // Without memory for a copy, the HCA below refuses it.
                    Some(data) if is_needed(qp, data.len()) => {
                        copy(qp, (number, done), data, real).unwrap_or_default()
                    }
                    _ => {
                        let context = Context::of(qp.ex.qp_base.context);
                        things.real_list(context, elements(wr.sg_list, wr.num_sge))
                    }
                };
                chain.lists.push(list);
            }
        }
        let done = post_below(pair, qp, first, &mut chain);
        things.chain = Some(chain);
        if has_local {
            let mut wr = first;
            for number in (first_number..).take(done.0) {
                if kind_of((*wr).opcode) == Kind::Local {
                    things.local_posted(qp, &*wr, number);
                }
                wr = (*wr).next;
            }
        }
        done
    }
}

/// What the log has of a request.
///
/// # Safety
/// The program posts it now: its lists and its inline data can be read.
#[inline]
unsafe fn set(posted: &mut Posted<Request>, qp: &mut Qp, wr: &ibv_send_wr, kind: Kind) {
    posted.wr_id = Some(wr.wr_id);
    posted.kind = kind;
    posted.signaled = qp.init.sq_sig_all != 0 || wr.send_flags & IBV_SEND_SIGNALED != 0;
    // SAFETY: the caller says that it is as the program posts it.
    posted.length = unsafe { posted.request.set(wr) };
    qp.longest = qp.longest.max(posted.length);
}

/// Posts what a chain is below: how many were taken, and why no more. The log has no others.
///
/// # Safety
/// As for [`post_chain`].
#[inline]
unsafe fn post_below(
    pair: &mut QueuePair<Request, Receive>,
    qp: &Qp,
    first: *mut ibv_send_wr,
    chain: &mut Chain,
) -> (usize, c_int) {
    let Chain { requests, lists } = chain;
    if requests.is_empty() {
        return (0, 0);
    }
    for (real, list) in requests.iter_mut().zip(lists) {
        real.sg_list = list.as_mut_ptr();
    }
    for at in 1..requests.len() {
        requests[at - 1].next = &raw mut requests[at];
    }
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair below is alive as long as ours.
    let failed = unsafe {
        match (*(*qp.real).context).ops.post_send {
            Some(post) => post(qp.real, requests.as_mut_ptr(), &mut bad),
            None => libc::EOPNOTSUPP,
        }
    };
    if failed == 0 {
        return (requests.len(), 0);
    }
    let refused = requests.iter().position(|wr| ptr::eq(wr, bad)).unwrap_or(0);
    // SAFETY: as in `post_chain`.
    unsafe {
        let mut wr = first;
        for at in 0..requests.len() {
            if at >= refused {
                pair.sends.take_back();
                let kind = kind_of_request(qp, &*wr);
                if let Some(to) = receiver((pair.service, pair.peer), kind, &*wr) {
                    pair.uncount_sent(to);
                }
            }
            wr = (*wr).next;
        }
    }
    (refused, failed)
}

/// What was held goes below, if the queue pair sends again; what there is no room for, when there is.
///
/// # Safety
/// The queue pair is the program's, and alive.
pub unsafe fn release(state: &mut State, qp: &mut Qp) {
    loop {
        let Some(pair) = state.process.qp(qp.place) else {
            return;
        };
        if pair.stage == Stage::Holds {
            return;
        }
        let Some((number, posted)) = pair.sends.release() else {
            if room::waits(pair) {
                room::see_to(state);
            }
            return;
        };
        let (request, kind) = (posted.request.clone(), posted.kind);
        let (peer, at) = (pair.peer, At::of(&pair.sends, number));
        // SAFETY: an address handle is alive until the request completes.
        if let Some(to) = unsafe { receiver((pair.service, peer), kind, &request.wr) } {
            pair.count_sent(to);
        }
        // SAFETY: the queue pair is alive, and what its requests name must be until they complete.
        unsafe {
            post_again(&state.things, qp, peer, &request, at);
            if kind == Kind::Local {
                state.things.local_posted(qp, &request.wr, number);
            }
        }
    }
}

/// Where a request is in the log of its queue.
#[derive(Clone, Copy)]
pub struct At {
    number: u64,
    /// All before this one are done.
    done: u64,
    /// It is to complete with an entry, whatever the program wants.
    asks: bool,
}

impl At {
    pub fn of(sends: &Sends<Request>, number: u64) -> Self {
        Self {
            number,
            done: sends.done(),
            asks: sends.asks(number),
        }
    }
}

/// Posts a request that is in the log. One that is not taken is as one that fails: nobody hears of it.
///
/// # Safety
/// The queue pair is the program's, and alive; so is what the request names.
pub unsafe fn post_again(
    things: &Things,
    qp: &mut Qp,
    peer: Option<Name>,
    request: &Request,
    at: At,
) -> c_int {
    let cookie = Cookie {
        queue: Queue::Sends(qp.place),
        own: false,
        number: at.number,
    };
    let mut real = request.wr;
    if at.asks {
        real.send_flags |= IBV_SEND_SIGNALED;
    }
    // SAFETY: the caller says that everything is alive. Inline data is read in this call.
    unsafe {
        if let Some(posted) = post_type_1(qp, &real, cookie) {
            return posted;
        }
        let context = Context::of(qp.ex.qp_base.context);
        things.make_real(qp, peer, cookie, &mut real);
        let mut list = match request.inline() {
            Some(data) if is_needed(qp, data.len()) => {
                match copy(qp, (at.number, at.done), data, &mut real) {
                    Ok(list) => list,
                    Err(errno) => return errno,
                }
            }
            Some(data) => inline_list(data),
            None => things.real_list(context, &request.list),
        };
        real.sg_list = list.as_mut_ptr();
        real.num_sge = list.len() as c_int;
        post_one(qp.real, &mut real)
    }
}

/// Posts a request below.
///
/// # Safety
/// The queue pair is one of the libibverbs below, and alive; so is what the request names.
pub unsafe fn post_one(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> c_int {
    let mut bad = ptr::null_mut();
    // SAFETY: the caller says so.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, wr, &mut bad),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Where receives are posted below.
#[derive(Clone, Copy)]
pub enum Into {
    Own(*mut ibv_qp),
    Shared(*mut ibv_srq),
}

/// Posts a receive below.
///
/// # Safety
/// The queue is one of the libibverbs below, and alive.
pub unsafe fn receive_below(into: Into, list: &mut [ibv_sge], cookie: Cookie) -> c_int {
    let mut wr = ibv_recv_wr {
        wr_id: cookie.bits(),
        next: ptr::null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: list.len() as c_int,
    };
    let mut bad = ptr::null_mut();
    // SAFETY: the caller says that it is alive.
    unsafe {
        match into {
            Into::Own(qp) => match (*(*qp).context).ops.post_recv {
                Some(post) => post(qp, &mut wr, &mut bad),
                None => libc::EOPNOTSUPP,
            },
            Into::Shared(srq) => match (*(*srq).context).ops.post_srq_recv {
                Some(post) => post(srq, &mut wr, &mut bad),
                None => libc::EOPNOTSUPP,
            },
        }
    }
}

/// Posts the program's receives, one after the other.
///
/// # Safety
/// The requests are the program's; queue and context are alive.
unsafe fn receives(
    state: &mut State,
    (queue, into, context): (Queue, Into, *mut ibv_context),
    room: u32,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut serves = false;
    // SAFETY: ibv_post_recv(3): each request is followed by another one or none, and has a list of so many elements.
    unsafe {
        let context = Context::of(context);
        while let Some(request) = wr.as_ref() {
            let list = elements(request.sg_list, request.num_sge);
            let Some(log) = state.process.receives(queue) else {
                *bad = wr;
                return libc::EINVAL;
            };
            // The queue below says so, but for those that wait for room there.
            if log.is_crowded() && log.len() >= room as usize {
                *bad = wr;
                return libc::ENOMEM;
            }
            let put = |logged: &mut Receive| {
                logged.clear();
                logged.extend_from_slice(list);
            };
            match log.post(request.wr_id, put) {
                Fate::Held => serves = true,
                Fate::Below(number) => {
                    let cookie = Cookie {
                        queue,
                        own: false,
                        number,
                    };
                    let mut list = state.things.real_list(context, list);
                    let failed = receive_below(into, &mut list, cookie);
                    if failed != 0
                        && !(failed == libc::ENOMEM && state.has_wait(queue, number, room))
                    {
                        if let Some(log) = state.process.receives(queue) {
                            log.take_back();
                        }
                        *bad = wr;
                        return failed;
                    }
                }
            }
            wr = request.next;
        }
    }
    if serves {
        state.serve(queue);
        // SAFETY: the lock is held.
        unsafe { ring(state) };
    }
    0
}

in_tables! {
    fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
        let state = &mut *lock();
        let (taken, failed) = post_chain(state, Qp::of(qp), wr);
        if failed != 0 {
            let mut at = wr;
            for _ in 0..taken {
                at = (*at).next;
            }
            *bad = at;
        }
        failed
    }

    fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
        let state = &mut *lock();
        let ours = Qp::of(qp);
        if !ours.ex.qp_base.srq.is_null() {
            *bad = wr;
            return libc::EINVAL;
        }
        let to = (Queue::Receives(ours.place), Into::Own(ours.real), ours.ex.qp_base.context);
        receives(state, to, ours.granted.max_recv_wr, wr, bad)
    }

    fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
        let state = &mut *lock();
        let ours = Srq::of(srq);
        let to = (Queue::Shared(ours.place), Into::Shared(ours.real), ours.srq.context);
        receives(state, to, ours.attr.max_wr, wr, bad)
    }
}

/// Bytes for a program's memory.
///
/// # Safety
/// There is so much of it.
pub unsafe fn store(at: u64, data: &[u8]) {
    let at = ptr::with_exposed_provenance_mut::<c_void>(at as usize);
    // SAFETY: the caller says so; the data is ours.
    unsafe { ptr::copy_nonoverlapping(data.as_ptr(), at.cast(), data.len()) };
}
