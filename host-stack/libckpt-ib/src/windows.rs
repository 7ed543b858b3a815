//! Memory windows. A window's key has 24 bits that stay, and 8 that change with each binding (ibv_inc_rkey(3)): whatever the
//! window below is called, its key changes as the program's does.
//!
//! ```text
//!   the program's    0x1203 -- bound again --> 0x1204
//!   below, now       0x3470 -- bound again --> 0x3471
//! ```
//!
//! What a window is bound to is noted when that is posted. A restarted process binds it again before its peers post anything.
//! What it will be called then is known before, and peers are told with all else that was made: of type 2 the key is in the
//! request; of type 1 it is the next one, which whoever makes an HCA agrees on.
//!
//! A window of type 2 is of one queue pair. Where that is made again beside the old one, for its peer moves (`follow.rs`), so is
//! the window.

use std::{
    ffi::c_int,
    mem::zeroed,
    time::{Duration, Instant},
};

use snaprig_ckpt_ib::{
    Below,
    cookie::{Cookie, Queue},
    names::window_key,
    sends::{Kind, Posted},
    serve::settle,
};
use snaprig_verbs_abi::*;

use crate::{
    objects::{Context, Cq, Mr, Mw, Pd, Qp, Shadow},
    post::{hold, is_holding, post_one},
    real::{errno, null},
    state::{List, Request, State, Things, lock},
};

/// How often a window is made again until its key is nobody's.
const KEYS_TRIED_MAX: usize = 1 << 12;
/// How long a window that is bound again may take.
const BIND_MAX: Duration = Duration::from_secs(10);
/// Of requests that bind windows again: no program has posted so many.
const NUMBER: u64 = 1 << 40;

/// What a window is bound to.
#[derive(Clone, Copy)]
pub struct Bound {
    /// By which queue pair; null if that is gone.
    pub qp: *mut Qp,
    /// By which request of it.
    pub number: u64,
    /// What the program calls it since then.
    pub key: u32,
    pub info: ibv_mw_bind_info,
}

impl Mw {
    /// What a key of the program's is now.
    pub fn real_key(&self, key: u32) -> u32 {
        window_key(key, self.key, self.key_below)
    }

    /// What the program calls a key.
    fn called(&self, key: u32) -> u32 {
        window_key(key, self.key_below, self.key)
    }

    /// What it will be called when it is bound again as it was.
    pub fn foresee(&mut self, bound: &Bound) {
        self.key_below = self.foreseen(bound, self.key_below);
        self.key = bound.key;
    }

    /// What a window below, that has this key, will be called when it is bound as this one was.
    pub fn foreseen(&self, bound: &Bound, key_below: u32) -> u32 {
        match self.mw.r#type {
            IBV_MW_TYPE_1 => next_key(key_below),
            _ => window_key(bound.key, self.key, key_below),
        }
    }
}

/// The key of the next binding: ibv_inc_rkey(3).
fn next_key(key: u32) -> u32 {
    window_key(key.wrapping_add(1), key, key)
}

/// Makes a window below.
///
/// # Safety
/// The domain is one of the libibverbs below, and alive.
pub unsafe fn alloc_below(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller says that it is alive.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(alloc) => alloc(pd, kind),
            None => null(libc::EOPNOTSUPP),
        }
    }
}

/// Gives a window below back.
///
/// # Safety
/// It is alive, and nobody uses it any more.
pub unsafe fn dealloc_below(window: *mut ibv_mw) -> c_int {
    // SAFETY: the caller says so.
    unsafe {
        match (*(*window).context).ops.dealloc_mw {
            Some(dealloc) => dealloc(window),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// What it takes to bind a window below.
///
/// # Safety
/// Its region, if it has one, is the program's, and alive.
unsafe fn info_below(info: &ibv_mw_bind_info) -> ibv_mw_bind_info {
    let mut below = *info;
    if !info.mr.is_null() {
        // SAFETY: the caller says so.
        below.mr = unsafe { Mr::of(info.mr).real };
    }
    below
}

impl Things {
    /// The window of a context that has this key, as the program calls it.
    fn window(&self, context: *mut ibv_context, key: u32) -> Option<*mut Mw> {
        let mut all = self.mws.iter().copied();
        // SAFETY: what is in the set is alive.
        all.find(|mw| unsafe { (**mw).mw.context == context && (**mw).key >> 8 == key >> 8 })
    }

    /// Makes a request that stays in the HCA what it is below.
    ///
    /// # Safety
    /// What it names is the program's, and alive.
    #[cold]
    pub unsafe fn make_local_real(&self, qp: &Qp, wr: &mut ibv_send_wr) {
        // SAFETY: the member of the union is that of the opcode: ibv_post_send(3).
        unsafe {
            if wr.opcode == IBV_WR_BIND_MW {
                let bind = &mut wr.op.bind_mw;
                let window = Mw::of(bind.mw);
                bind.mw = window.real;
                bind.rkey = window.real_key(bind.rkey);
                bind.bind_info = info_below(&bind.bind_info);
                return;
            }
            let key = wr.imm.invalidate_rkey;
            if let Some(window) = self.window(qp.ex.qp_base.context, key) {
                wr.imm.invalidate_rkey = (*window).real_key(key);
            }
        }
    }

    /// A request that stays in the HCA was posted: what it does to windows is so from here on.
    ///
    /// # Safety
    /// What it names is the program's, and alive.
    pub unsafe fn local_posted(&self, qp: *mut Qp, wr: &ibv_send_wr, number: u64) {
        // SAFETY: the member of the union is that of the opcode: ibv_post_send(3).
        unsafe {
            if wr.opcode == IBV_WR_BIND_MW {
                let bind = &wr.op.bind_mw;
                let bound = Bound {
                    qp,
                    number,
                    key: bind.rkey,
                    info: bind.bind_info,
                };
                Mw::of(bind.mw).bound = (bind.bind_info.length > 0).then_some(bound);
            } else if let Some(window) =
                self.window((*qp).ex.qp_base.context, wr.imm.invalidate_rkey)
            {
                (*window).bound = None;
            }
        }
    }

    /// A peer has invalidated a key; what the program calls it.
    pub fn invalidated(&self, context: *mut ibv_context, key: u32) -> u32 {
        let mut all = self.mws.iter().copied();
        // SAFETY: what is in the set is alive, and the lock is held.
        unsafe {
            let found =
                all.find(|mw| (**mw).mw.context == context && (**mw).key_below >> 8 == key >> 8);
            found.map_or(key, |mw| {
                (*mw).bound = None;
                (*mw).called(key)
            })
        }
    }

    /// A queue pair is gone, and so is what windows of type 2 are bound to by it.
    ///
    /// # Safety
    /// The lock is held.
    pub unsafe fn unbind_from(&self, qp: *mut Qp) {
        for mw in &self.mws {
            // SAFETY: what is in the set is alive, and the lock is held.
            let mw = unsafe { &mut **mw };
            match &mut mw.bound {
                Some(bound) if bound.qp == qp && mw.mw.r#type == IBV_MW_TYPE_1 => {
                    bound.qp = std::ptr::null_mut();
                }
                Some(bound) if bound.qp == qp => mw.bound = None,
                _ => {}
            }
        }
    }
}

impl State {
    /// Windows that are bound, and by which queue pair each could be bound again.
    ///
    /// # Safety
    /// Whoever calls has the lock.
    pub unsafe fn bound(&mut self) -> Result<Vec<(*mut Mw, Bound, *mut Qp)>, String> {
        let mut all = Vec::new();
        for mw in self.things.mws.clone() {
            // SAFETY: what is in the set is alive, and the lock is held.
            unsafe {
                let ours = &mut *mw;
                if ours.bound.is_some_and(|bound| self.is_undone(&bound)) {
                    ours.bound = None;
                }
                let Some(bound) = ours.bound else { continue };
                // The region's memory is not there any more: nobody can reach anything by it.
                if Mr::of(bound.info.mr).stand_in.is_some() {
                    continue;
                }
                let is_own = ours.mw.r#type == IBV_MW_TYPE_2;
                match self.binder(ours, &bound, is_own) {
                    Some(qp) => all.push((mw, bound, qp)),
                    // It has failed, and with it whoever could use the window.
                    None if is_own => {}
                    None => {
                        return Err(format!(
                            "memory window {:#x} is bound, and no queue pair of its domain could bind it again",
                            bound.key
                        ));
                    }
                }
            }
        }
        Ok(all)
    }

    /// Whether a queue pair has failed before it bound a window.
    unsafe fn is_undone(&mut self, bound: &Bound) -> bool {
        // SAFETY: a queue pair that is gone is none of a window's any more.
        let place = unsafe { bound.qp.as_ref() }.map(|qp| qp.place);
        let pair = place.and_then(|place| self.process.qp(place));
        pair.and_then(|pair| pair.failed_at)
            .is_some_and(|at| bound.number >= at)
    }

    /// A queue pair that can bind a window: the one that has, or, of type 1, any other of its domain.
    unsafe fn binder(&mut self, mw: &Mw, bound: &Bound, is_own: bool) -> Option<*mut Qp> {
        // SAFETY: what is in the table is alive, and so is its domain.
        unsafe {
            let domain = Pd::of(mw.mw.pd).domain;
            let all = self.things.qps.iter().copied();
            let mut all: Vec<_> = all.filter(|qp| !qp.is_null()).collect();
            all.sort_by_key(|qp| *qp != bound.qp);
            all.into_iter().find(|qp| {
                let base = &(**qp).ex.qp_base;
                let is_its = match is_own {
                    true => *qp == bound.qp,
                    false => base
                        .pd
                        .as_mut()
                        .is_some_and(|pd| Pd::of(pd).domain == domain),
                };
                let binds = matches!(base.qp_type, IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND);
                let pair = self.process.qp((**qp).place);
                is_its && binds && pair.is_some_and(|pair| pair.sends_messages())
            })
        }
    }

    /// What windows that are to be bound again will be called then.
    ///
    /// # Safety
    /// Whoever calls has the lock; windows are made again.
    pub unsafe fn foresee_keys(&mut self) -> Result<(), String> {
        // SAFETY: the caller says so, and what is in the set is alive.
        unsafe {
            for (mw, bound, _) in self.bound()? {
                (*mw).foresee(&bound);
            }
        }
        Ok(())
    }

    /// Binds windows again as they were.
    ///
    /// # Safety
    /// Whoever calls has the lock, and no thread of the program runs; everything is made again, and queue pairs send.
    pub unsafe fn bind_again(&mut self) -> Result<(), String> {
        // SAFETY: the caller says so.
        unsafe {
            for (mw, bound, qp) in self.bound()? {
                self.bind_one_again(&*mw, &bound, &*qp)?;
            }
        }
        Ok(())
    }

    /// Binds one again by a queue pair, as was foreseen.
    ///
    /// # Safety
    /// As for [`Self::bind_again`].
    pub unsafe fn bind_one_again(&mut self, mw: &Mw, bound: &Bound, qp: &Qp) -> Result<(), String> {
        let cookie = Cookie {
            queue: Queue::Sends(qp.place),
            own: true,
            number: NUMBER,
        };
        // SAFETY: the caller says that everything is made again; a request is of numbers and pointers.
        unsafe {
            let info = info_below(&bound.info);
            let done = match mw.mw.r#type {
                IBV_MW_TYPE_1 => bind_below(qp, mw, cookie, IBV_SEND_SIGNALED, info),
                _ => {
                    let mut wr: ibv_send_wr = zeroed();
                    wr.wr_id = cookie.bits();
                    wr.opcode = IBV_WR_BIND_MW;
                    wr.send_flags = IBV_SEND_SIGNALED;
                    wr.op.bind_mw = ibv_send_wr_bind_mw {
                        mw: mw.real,
                        rkey: mw.key_below,
                        bind_info: info,
                    };
                    post_one(qp.real, &mut wr)
                }
            };
            if done != 0 {
                return Err(failed(bound.key, &std::io::Error::from_raw_os_error(done)));
            }
            self.wait_for(cookie, Cq::of(qp.ex.qp_base.send_cq).place)?;
            if mw.mw.r#type == IBV_MW_TYPE_1 && (*mw.real).rkey != mw.key_below {
                return Err(failed(bound.key, &"the HCA's next key is not the next one"));
            }
        }
        Ok(())
    }

    /// Waits for the completion of a request of ours. Those of others are put by.
    fn wait_for(&mut self, cookie: Cookie, cq: u32) -> Result<(), String> {
        let until = Instant::now() + BIND_MAX;
        let Self { process, things } = self;
        while Instant::now() < until {
            let Some((came, completion)) = things.poll(cq) else {
                std::thread::yield_now();
                continue;
            };
            if came.cookie == cookie {
                return match came.status {
                    IBV_WC_SUCCESS => Ok(()),
                    status => Err(failed(0, &format!("status {status}"))),
                };
            }
            settle(process, things, cq, (came, completion));
        }
        Err(failed(0, &"the HCA does not answer"))
    }
}

fn failed(key: u32, why: &impl std::fmt::Display) -> String {
    format!("memory window {key:#x} cannot be bound again: {why}")
}

/// Binds a window of type 1 below.
///
/// # Safety
/// All three are the program's, and alive below.
unsafe fn bind_below(
    qp: &Qp,
    mw: &Mw,
    cookie: Cookie,
    send_flags: u32,
    bind_info: ibv_mw_bind_info,
) -> c_int {
    let mut bind = ibv_mw_bind {
        wr_id: cookie.bits(),
        send_flags,
        bind_info,
    };
    // SAFETY: the caller says that everything is alive.
    unsafe {
        match (*(*qp.real).context).ops.bind_mw {
            Some(bind_mw) => bind_mw(qp.real, mw.real, &mut bind),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Posts a binding of type 1 that is in the log with this number, if a request is one.
///
/// # Safety
/// The queue pair is the program's, and alive; so is what the request names.
pub unsafe fn post_type_1(qp: &Qp, wr: &ibv_send_wr, cookie: Cookie) -> Option<c_int> {
    if wr.opcode != IBV_WR_BIND_MW {
        return None;
    }
    // SAFETY: the member of the union is that of the opcode, and the caller says that everything is alive.
    unsafe {
        let bind = &wr.op.bind_mw;
        let mw = Mw::of(bind.mw);
        if mw.mw.r#type != IBV_MW_TYPE_1 {
            return None;
        }
        let info = info_below(&bind.bind_info);
        Some(bind_below(qp, mw, cookie, wr.send_flags, info))
    }
}

in_tables! {
    fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
        let state = &mut *lock();
        let port = Context::of((*pd).context).port();
        let mut in_vain = Vec::new();
        let below = loop {
            let below = alloc_below(Pd::of(pd).real, kind);
            let is_given = !below.is_null() && state.things.names.is_window_given(port, (*below).rkey);
            if !is_given || in_vain.len() == KEYS_TRIED_MAX {
                break below;
            }
            in_vain.push(below);
        };
        let why = errno();
        for other in in_vain {
            dealloc_below(other);
        }
        if below.is_null() {
            return null(why);
        }
        let key = (*below).rkey;
        let mw = ibv_mw {
            context: (*pd).context,
            pd,
            rkey: key,
            handle: (*below).handle,
            r#type: kind,
        };
        let mw = Box::into_raw(Box::new(Mw {
            mw,
            real: below,
            key,
            key_below: key,
            bound: None,
        }));
        state.things.mws.insert(mw);
        (*mw).pointer()
    }

    fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
        let state = &mut *lock();
        let ours: *mut Mw = Mw::of(mw);
        let done = dealloc_below((*ours).real);
        if done == 0 {
            state.things.mws.remove(&ours);
            drop(Box::from_raw(ours));
        }
        done
    }

    fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
        let state = &mut *lock();
        let (qp, ours): (*mut Qp, _) = (Qp::of(qp), Mw::of(mw));
        let Some(pair) = state.process.qp((*qp).place) else {
            return libc::EINVAL;
        };
        let key = next_key(ours.mw.rkey);
        let mut wr: ibv_send_wr = zeroed();
        wr.wr_id = (*bind).wr_id;
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = (*bind).send_flags;
        wr.op.bind_mw = ibv_send_wr_bind_mw { mw, rkey: key, bind_info: (*bind).bind_info };
        let posted = Posted {
            wr_id: Some(wr.wr_id),
            kind: Kind::Local,
            signaled: (*qp).init.sq_sig_all != 0 || wr.send_flags & IBV_SEND_SIGNALED != 0,
            length: 0,
            request: Request::new(wr, List::new()),
        };
        if is_holding(pair) {
            let done = hold(state, &*qp, posted);
            if done == 0 {
                ours.mw.rkey = key;
            }
            return done;
        }
        let number = pair.sends.post(posted);
        let cookie = Cookie { queue: Queue::Sends((*qp).place), own: false, number };
        let mut real = wr;
        if pair.sends.asks(number) {
            real.send_flags |= IBV_SEND_SIGNALED;
        }
        let done = post_type_1(&*qp, &real, cookie).unwrap_or(libc::EINVAL);
        if done != 0 {
            pair.sends.take_back();
            return done;
        }
        ours.mw.rkey = ours.called((*ours.real).rkey);
        wr.op.bind_mw.rkey = ours.mw.rkey;
        state.things.local_posted(qp, &wr, number);
        0
    }
}
