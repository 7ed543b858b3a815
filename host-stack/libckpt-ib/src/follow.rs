//! A process that stays while others move: what leads to those is made again, beside what there is (`ckpt-ib/src/moves.rs`).
//!
//! ```text
//!   rebuild    makes queue pairs again whose peers move                  what they are called now, to the board
//!   exchange   connects them, posts their receives; makes address handles again
//!              '----- decided -----'  or not: what was made goes
//!   refill     the new ones take the places of the old ones, which go; posts again what nobody carried out
//! ```
//! What must stay true: until it is decided, what the program has is as it was, and leads to where it led.

use std::{collections::BTreeSet, mem, ptr};

use snaprig_ckpt_ib::{
    Below, Name, Names,
    cookie::{Cookie, Queue},
    moves::made_again,
    serve::settle,
};
use snaprig_verbs_abi::*;

use crate::{
    cm::Listener,
    objects::{Ah, Context, Mw, Pd, Qp, Shadow},
    plugin::serve_all,
    qp,
    real::real,
    rebuild::{Made, failed, post_receives, post_sends, publish, raise},
    state::{State, Things, get},
    windows::{self, Bound},
    xrc,
};

/// What was made, and what everything is called then. While it is exchanged with what there is, that is here.
pub struct Beside {
    qps: Vec<NewQp>,
    mws: Vec<NewMw>,
    /// Handles of other processes' queue pairs.
    opened: Vec<(*mut Qp, *mut ibv_qp)>,
    ahs: Vec<(*mut Ah, *mut ibv_ah)>,
    names: Names,
    restarts: u64,
}

struct NewQp {
    ours: *mut Qp,
    real: *mut ibv_qp,
    inline: u32,
    sends: Option<u32>,
}

/// A window of type 2, which is bound by one of those queue pairs.
struct NewMw {
    ours: *mut Mw,
    bound: Bound,
    real: *mut ibv_mw,
    key: u32,
    key_below: u32,
}

// SAFETY: its pointers are to boxes that are changed only by who has the lock.
unsafe impl Send for Beside {}

impl Things {
    /// What there is that moves are not known for yet.
    pub fn cannot_move(&self) -> Option<&'static str> {
        match () {
            () if self.manager.is_connecting() => {
                Some("a connection of rdma_cm that is being made")
            }
            () => None,
        }
    }
}

impl Beside {
    /// Makes queue pairs again; what others must know.
    ///
    /// # Safety
    /// Whoever calls has the lock.
    pub unsafe fn make(state: &mut State, moved: &BTreeSet<Name>) -> Result<(Self, Made), String> {
        let mut beside = Self {
            qps: Vec::new(),
            mws: Vec::new(),
            opened: Vec::new(),
            ahs: Vec::new(),
            names: Names::default(),
            restarts: state.things.restarts + 1,
        };
        // SAFETY: the caller has the lock.
        unsafe {
            match beside.make_all(state, moved) {
                Ok(made) => Ok((beside, made)),
                Err(why) => {
                    beside.undo(state);
                    Err(why)
                }
            }
        }
    }

    unsafe fn make_all(
        &mut self,
        state: &mut State,
        moved: &BTreeSet<Name>,
    ) -> Result<Made, String> {
        let Some(real) = real() else {
            return Err("there is no libibverbs".into());
        };
        // SAFETY: what is in the tables is alive, and so is what stands for it below.
        unsafe {
            for place in made_again(&state.process, moved) {
                let Some(ours) = get(&state.things.qps, place) else {
                    continue;
                };
                let (init, granted) = ((*ours).init, (*ours).granted);
                let context = Context::of((*ours).ex.qp_base.context);
                let made = qp::create_below(real, context, ours, &init);
                let below = mem::replace(&mut (*ours).granted, granted);
                if made.is_null() {
                    return Err(failed(
                        "a queue pair cannot be made beside the one that there is",
                    ));
                }
                context.by_number.insert((*made).qp_num, place);
                self.qps.push(NewQp {
                    ours,
                    real: made,
                    inline: below.max_inline_data,
                    sends: qp::sends_max(&below, &granted),
                });
            }
            self.make_windows(state)?;
            self.exchange_made();
            let names = publish(real, &state.things);
            self.exchange_made();
            let names = names?;
            let State { process, things } = state;
            let listener = things.follow(process, moved)?;
            Ok(Made { names, listener })
        }
    }

    unsafe fn make_windows(&mut self, state: &mut State) -> Result<(), String> {
        // SAFETY: what is in the tables is alive, and so is what stands for it below.
        unsafe {
            for (mw, bound, qp) in state.bound()? {
                let ours = &mut *mw;
                let is_of_new = self.qps.iter().any(|new| new.ours == qp);
                if ours.mw.r#type == IBV_MW_TYPE_1 || !is_of_new {
                    continue;
                }
                let real = windows::alloc_below(Pd::of(ours.mw.pd).real, ours.mw.r#type);
                if real.is_null() {
                    return Err(failed(
                        "a memory window cannot be made beside the one that there is",
                    ));
                }
                let key_below = ours.foreseen(&bound, (*real).rkey);
                self.mws.push(NewMw {
                    ours,
                    bound,
                    real,
                    key: bound.key,
                    key_below,
                });
            }
        }
        Ok(())
    }

    /// Connects them.
    ///
    /// # Safety
    /// As for [`Self::make`].
    pub unsafe fn connect(&mut self, state: &mut State, all: Vec<Made>) -> Result<(), String> {
        // What came late by the old ones is the program's. From the decision on, what comes does so by the new ones: those
        // that move need not wait for this process.
        for cq in 0..state.process.cqs.len() as u32 {
            let State { process, things } = &mut *state;
            if get(&things.cqs, cq).is_none() {
                continue;
            }
            while let Some(came) = things.poll(cq) {
                settle(process, things, cq, came);
            }
        }
        let (names, listeners): (Vec<_>, Vec<_>) =
            all.into_iter().map(|one| (one.names, one.listener)).unzip();
        self.names = Names::new(names, None);
        // SAFETY: what is in the tables is alive; what was made is exchanged with it, and back.
        unsafe {
            self.exchange(state);
            let connected = self.connect_exchanged(state, &listeners);
            self.exchange(state);
            connected
        }
    }

    unsafe fn connect_exchanged(
        &mut self,
        state: &mut State,
        listeners: &[Listener],
    ) -> Result<(), String> {
        let Some(real) = real() else {
            return Err("there is no libibverbs".into());
        };
        // SAFETY: the caller has exchanged what was made.
        unsafe {
            for new in &self.qps {
                raise(real, state, &*new.ours, &[IBV_QPS_INIT])?;
                post_receives(state, Queue::Receives((*new.ours).place))?;
                raise(real, state, &*new.ours, &[IBV_QPS_RTR, IBV_QPS_RTS])?;
            }
            for new in &self.mws {
                state.bind_one_again(&*new.ours, &new.bound, &*new.bound.qp)?;
            }
            for qp in &state.things.opened {
                let ours = &mut **qp;
                if self.names.queue_pair(ours.name()) == state.things.names.queue_pair(ours.name())
                {
                    continue;
                }
                let opened = xrc::open_qp_below(&state.things, ours);
                if opened.is_null() {
                    return Err(failed(
                        "a queue pair of another process cannot be opened where it is made again",
                    ));
                }
                // Exchanged as it is made: what is here afterwards is what there was.
                self.opened
                    .push((*qp, mem::replace(&mut ours.real, opened)));
            }
            for ah in &state.things.ahs {
                let ours = &mut **ah;
                let context = Context::of(ours.ah.context);
                let mut attr = state.things.real_address(context, &ours.attr);
                let made = (real.ibv_create_ah)(Pd::of(ours.ah.pd).real, &mut attr);
                if made.is_null() {
                    return Err(failed("an address handle cannot be made"));
                }
                self.ahs.push((*ah, mem::replace(&mut ours.real, made)));
            }
        }
        let State { process, things } = state;
        things.connect_beside(process, listeners)
    }

    /// It is decided: what was made is what there is.
    ///
    /// # Safety
    /// As for [`Self::make`].
    pub unsafe fn change_over(mut self, state: &mut State) -> Result<(), String> {
        // SAFETY: what is in the tables is alive.
        unsafe {
            self.exchange(state);
            for new in &self.qps {
                let place = (*new.ours).place;
                if let Some(pair) = state.process.qp(place) {
                    pair.receives.unlend_all();
                }
                let is_of_old = |wr_id: &u64| {
                    Cookie::of(*wr_id).is_some_and(|cookie| cookie.queue == Queue::Receives(place))
                };
                let lent = state.things.lent.extract_if(|wr_id, _| is_of_old(wr_id));
                lent.for_each(|(_, scratch)| drop(scratch.free()));
                (*new.ours).copies.free();
            }
            let places: Vec<_> = self.qps.iter().map(|new| new.ours).collect();
            self.free();
            state.things.change_over_ids()?;
            for ours in places {
                post_sends(state, &mut *ours)?;
            }
        }
        serve_all(state)
    }

    /// It is not to be: what was made goes.
    ///
    /// # Safety
    /// As for [`Self::make`].
    pub unsafe fn undo(mut self, state: &mut State) {
        // SAFETY: what was made is nobody's.
        unsafe { self.free() };
        state.things.leave_ids();
    }

    /// Frees what is here.
    unsafe fn free(&mut self) {
        let Some(real) = real() else { return };
        // SAFETY: the caller says that nobody uses it.
        unsafe {
            for (_, opened) in self.opened.drain(..) {
                (real.ibv_destroy_qp)(opened);
            }
            for new in self.qps.drain(..) {
                let context = Context::of((*new.ours).ex.qp_base.context);
                context.by_number.remove(&(*new.real).qp_num);
                (real.ibv_destroy_qp)(new.real);
            }
            for new in self.mws.drain(..) {
                windows::dealloc_below(new.real);
            }
            for (_, ah) in self.ahs.drain(..) {
                (real.ibv_destroy_ah)(ah);
            }
        }
    }

    /// What was made, for what there is.
    unsafe fn exchange(&mut self, state: &mut State) {
        // SAFETY: the caller has the lock, and what is in the tables is alive.
        unsafe { self.exchange_made() };
        for (ours, made) in &mut self.opened {
            // SAFETY: the same.
            unsafe { ptr::swap(&raw mut (**ours).real, made) };
        }
        for (ours, made) in &mut self.ahs {
            // SAFETY: the same.
            unsafe { ptr::swap(&raw mut (**ours).real, made) };
        }
        mem::swap(&mut self.names, &mut state.things.names);
        mem::swap(&mut self.restarts, &mut state.things.restarts);
    }

    /// What others are told of.
    unsafe fn exchange_made(&mut self) {
        for new in &mut self.qps {
            // SAFETY: the caller has the lock, and what is in the tables is alive.
            unsafe {
                ptr::swap(&raw mut (*new.ours).real, &raw mut new.real);
                ptr::swap(&raw mut (*new.ours).inline_below, &raw mut new.inline);
                ptr::swap(&raw mut (*new.ours).sends_below, &raw mut new.sends);
            }
        }
        for new in &mut self.mws {
            // SAFETY: the same.
            unsafe {
                ptr::swap(&raw mut (*new.ours).real, &raw mut new.real);
                ptr::swap(&raw mut (*new.ours).key, &raw mut new.key);
                ptr::swap(&raw mut (*new.ours).key_below, &raw mut new.key_below);
            }
        }
    }
}
