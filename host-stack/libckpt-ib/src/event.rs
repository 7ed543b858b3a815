//! Events, and descriptors for them that stay while what is below them comes and goes.
//!
//! ```text
//!   the program's descriptor: an epoll instance of ours <--- the descriptor of the libibverbs below
//!                                                       <--- an eventfd: events were put by
//! ```
//!
//! So interest lists and blocked threads of the program keep what they have. The descriptor below never waits; who has to wait
//! waits on ours.

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::zeroed,
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd},
};

use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    io::Errno,
};
use snaprig_ckpt_ib::Process;
use snaprig_verbs_abi::*;

use crate::{
    cq::arm_below,
    objects::{Channel, Context, Cq, Qp, Shadow, Srq, acknowledge, is_ours},
    real::{real, set_errno},
    state::{Receive, Request, State, Things, lock},
};

/// The program's descriptor, and what is behind it.
pub struct Gate {
    /// The epoll instance. Its number is the program's to see, and it may be made not to wait.
    pub fd: RawFd,
    put_by: OwnedFd,
    /// Of the libibverbs below.
    below: RawFd,
}

impl Gate {
    /// With a descriptor of the libibverbs below.
    pub fn new(below: RawFd) -> Result<Self, Errno> {
        let put_by = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = epoll::EventData::new_u64(0);
        epoll::add(&instance, &put_by, event, epoll::EventFlags::IN)?;
        let mut gate = Self {
            fd: instance.into_raw_fd(),
            put_by,
            below,
        };
        gate.add(below)?;
        Ok(gate)
    }

    /// Another descriptor is below.
    pub fn add(&mut self, below: RawFd) -> Result<(), Errno> {
        crate::objects::does_not_wait(below);
        self.below = below;
        // SAFETY: the caller has it open; it is borrowed for this call alone.
        let below = unsafe { BorrowedFd::borrow_raw(below) };
        let event = epoll::EventData::new_u64(1);
        epoll::add(self.instance(), below, event, epoll::EventFlags::IN)
    }

    /// In a restarted process, what stands where the descriptor below was can be read: who waits on ours would be told of an event
    /// that there is not. It is no more to be found once its number is another file's.
    pub fn forget_below(&self) {
        // SAFETY: it is borrowed for this call alone, and none of ours: it stands in for one of the libibverbs that is gone.
        let below = unsafe { BorrowedFd::borrow_raw(self.below) };
        // Fails if the program has closed its own descriptor, which nobody can wait on then.
        let _ = epoll::delete(self.instance(), below);
    }

    fn instance(&self) -> BorrowedFd<'_> {
        // SAFETY: it is closed in `drop` alone. A program that closes it hurts itself.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Events were put by.
    pub fn ring(&self) {
        // Fails only when 2^64 - 2 wait already.
        let _ = rustix::io::write(&self.put_by, &1u64.to_ne_bytes());
    }

    /// None is put by any more.
    pub fn quiet(&self) {
        // Fails when it was quiet.
        let _ = rustix::io::read(&self.put_by, &mut [0; 8]);
    }

    /// Waits for an event, unless the program has said that its descriptor does not wait.
    pub fn wait(fd: RawFd) -> Result<(), Errno> {
        // SAFETY: whether it is open is found out; it is borrowed for this call alone.
        let flags = rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(fd) });
        match flags {
            Ok(flags) if flags.contains(rustix::fs::OFlags::NONBLOCK) => return Err(Errno::AGAIN),
            Ok(_) => {}
            // It was closed since: who waits below does not notice that either.
            Err(_) => loop {
                // SAFETY: pause(2) takes no argument.
                unsafe { libc::pause() };
            },
        }
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the entry is valid for the call. It is the C library's own function, for a thread may be cancelled in it; nothing
        // that has to be dropped is held here or in the callers.
        let polled = unsafe { libc::poll(&raw mut poll, 1, -1) };
        match polled {
            polled if polled < 0 => Err(Errno::from_raw_os_error(crate::real::errno())),
            _ => Ok(()),
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: it was opened in `new`, and is closed once.
        unsafe { libc::close(self.fd.as_raw_fd()) };
    }
}

/// Waits for what `take` finds, with the lock.
fn next<T>(fd: RawFd, mut take: impl FnMut() -> Option<T>) -> Result<T, Errno> {
    loop {
        let guard = lock();
        if let Some(found) = take() {
            return Ok(found);
        }
        drop(guard);
        Gate::wait(fd)?;
    }
}

/// The next event of a channel, of those that were put by, and then of the one below.
///
/// # Safety
/// Whoever calls has the lock.
unsafe fn next_of_channel(channel: &mut Channel) -> Option<*mut Cq> {
    if let Some(cq) = channel.pending.pop_front() {
        if channel.pending.is_empty() {
            channel.gate.quiet();
        }
        return Some(cq);
    }
    // SAFETY: the lock is held, and a queue that an event is about is alive.
    unsafe {
        let cq = take_from(channel)?;
        ((*cq).armed, (*cq).has_event) = (None, true);
        Some(cq)
    }
}

/// The next event of the channel below.
///
/// # Safety
/// Whoever calls has the lock.
unsafe fn take_from(channel: &mut Channel) -> Option<*mut Cq> {
    let real = real()?;
    let (mut below, mut ours) = (std::ptr::null_mut(), std::ptr::null_mut::<c_void>());
    // SAFETY: the channel below is there as long as ours, and its descriptor does not wait. The context of a queue below is
    // ours, which is not freed before it. It is acknowledged at once: ours has a count of its own.
    unsafe {
        if channel.real.is_null()
            || (real.ibv_get_cq_event)(channel.real, &mut below, &mut ours) != 0
        {
            return None;
        }
        (real.ibv_ack_cq_events)(below, 1);
        Some(ours.cast())
    }
}

/// What the program is still to hear, of what had completed when a checkpoint kept it from looking (all of that is put by).
/// Whoever armed a queue afterwards has no event for it: not here either.
///
/// # Safety
/// Whoever calls has the lock.
pub unsafe fn put_by(process: &mut Process<Request, Receive>, things: &Things) {
    // SAFETY: the lock is held, and what is in the tables is alive.
    unsafe {
        for channel in &things.channels {
            let channel = &mut **channel;
            while let Some(cq) = take_from(channel) {
                tell(channel, cq, process);
            }
        }
        for cq in things.cqs.iter().filter(|cq| !cq.is_null()) {
            let ours = &**cq;
            let Some(queue) = process.cq(ours.place) else {
                continue;
            };
            if ours.armed.is_some() {
                queue.tell();
            } else if ours.has_event {
                queue.tell_first();
            }
        }
    }
}

/// What the program is to hear of what has come since. An event without anything is of what a drain sent: its queue waits on.
///
/// # Safety
/// Whoever calls has the lock.
pub unsafe fn put_by_late(process: &mut Process<Request, Receive>, things: &Things) {
    // SAFETY: the lock is held, and what is in the tables is alive.
    unsafe {
        let mut waiting_on = Vec::new();
        for channel in &things.channels {
            let channel = &mut **channel;
            while let Some(cq) = take_from(channel) {
                let has_news = process
                    .cq((*cq).place)
                    .is_some_and(|queue| queue.has_news());
                match (*cq).armed.filter(|_| !has_news) {
                    Some(of_solicited) => waiting_on.push((cq, of_solicited)),
                    None => tell(channel, cq, process),
                }
            }
        }
        for (cq, of_solicited) in waiting_on {
            arm_below((*cq).real, of_solicited);
        }
    }
}

/// The program is to have an event for what is put by of a queue.
///
/// # Safety
/// Whoever calls has the lock.
unsafe fn tell(channel: &mut Channel, cq: *mut Cq, process: &mut Process<Request, Receive>) {
    // SAFETY: a queue that an event is about is alive.
    let ours = unsafe { &mut *cq };
    if let Some(queue) = process.cq(ours.place) {
        queue.tell();
    }
    (ours.armed, ours.has_event) = (None, true);
    if !channel.pending.contains(&cq) {
        channel.pending.push_back(cq);
        channel.gate.ring();
    }
}

/// The next asynchronous event of the context below.
///
/// # Safety
/// Whoever calls has the lock.
pub unsafe fn take_async(context: &mut Context) -> Option<ibv_async_event> {
    let real = real()?;
    // SAFETY: an event is of numbers and pointers. The context below is open, and its descriptor does not wait. What it is about
    // has ours for its context, which is not freed before it; it is acknowledged at once: ours has a count of its own.
    unsafe {
        let mut event: ibv_async_event = zeroed();
        if context.real.is_null() || (real.ibv_get_async_event)(context.real, &mut event) != 0 {
            return None;
        }
        let mut below = event;
        match element(event.event_type) {
            Element::Cq => event.element.cq = (*event.element.cq).cq_context.cast(),
            Element::Qp => event.element.qp = (*event.element.qp).qp_context.cast(),
            Element::Srq => event.element.srq = (*event.element.srq).srq_context.cast(),
            Element::Port => {}
        }
        (real.ibv_ack_async_event)(&mut below);
        Some(event)
    }
}

/// Programs that wait for completions hear of those that were put by.
///
/// # Safety
/// Whoever calls has the lock.
pub unsafe fn ring(state: &mut State) {
    let State { process, things } = state;
    for cq in things.cqs.iter().filter(|cq| !cq.is_null()) {
        // SAFETY: what is in the table is alive, and so is its channel.
        unsafe {
            let ours = &**cq;
            let has_news = process.cq(ours.place).is_some_and(|queue| queue.has_news());
            if has_news && ours.armed.is_some() && !ours.ex.channel.is_null() {
                tell(Channel::of(ours.ex.channel), *cq, process);
            }
        }
    }
}

/// What an event is about.
pub enum Element {
    Cq,
    Qp,
    Srq,
    Port,
}

/// ibv_get_async_event(3).
pub fn element(kind: ibv_event_type) -> Element {
    match kind {
        IBV_EVENT_CQ_ERR => Element::Cq,
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => Element::Srq,
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => Element::Qp,
        _ => Element::Port,
    }
}

exported! {
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        user: *mut *mut c_void,
    ) -> c_int {
        if !is_ours((*channel).context) {
            return real().map_or(-1, |real| (real.ibv_get_cq_event)(channel, cq, user));
        }
        let found = next((*channel).fd, || {
            let found = next_of_channel(Channel::of(channel))?;
            (*found).completions_given = (*found).completions_given.wrapping_add(1);
            Some(found)
        });
        match found {
            Ok(found) => {
                *cq = found.cast();
                *user = (*found).ex.cq_context;
                0
            }
            Err(errno) => {
                set_errno(errno.raw_os_error());
                -1
            }
        }
    }

    fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
        if !is_ours((*cq).context) {
            return real().map_or((), |real| (real.ibv_ack_cq_events)(cq, events));
        }
        if events > 0 {
            acknowledge(
                &raw mut (*cq).mutex,
                &raw mut (*cq).cond,
                &raw mut (*cq).comp_events_completed,
                events,
            );
        }
    }

    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
        if !is_ours(context) {
            return real().map_or(-1, |real| (real.ibv_get_async_event)(context, event));
        }
        let found = next((*context).async_fd, || {
            let ours = Context::of(context);
            let found = match ours.pending.pop_front() {
                Some(event) => {
                    if ours.pending.is_empty() {
                        ours.gate.quiet();
                    }
                    event
                }
                None => take_async(ours)?,
            };
            let given = match element(found.event_type) {
                Element::Cq => &mut Cq::of(found.element.cq).events_given,
                Element::Qp => &mut Qp::of(found.element.qp).events_given,
                Element::Srq => &mut Srq::of(found.element.srq).events_given,
                Element::Port => return Some(found),
            };
            *given = given.wrapping_add(1);
            Some(found)
        });
        match found {
            Ok(found) => {
                *event = found;
                0
            }
            Err(errno) => {
                set_errno(errno.raw_os_error());
                -1
            }
        }
    }

    fn ibv_ack_async_event(event: *mut ibv_async_event) {
        let about = (*event).element;
        let (context, mutex, cond, count) = match element((*event).event_type) {
            Element::Cq => {
                let cq = about.cq;
                ((*cq).context, &raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).async_events_completed)
            }
            Element::Srq => {
                let srq = about.srq;
                ((*srq).context, &raw mut (*srq).mutex, &raw mut (*srq).cond, &raw mut (*srq).events_completed)
            }
            Element::Qp => {
                let qp = about.qp;
                ((*qp).context, &raw mut (*qp).mutex, &raw mut (*qp).cond, &raw mut (*qp).events_completed)
            }
            // Nobody counts those.
            Element::Port => return,
        };
        if !is_ours(context) {
            return real().map_or((), |real| (real.ibv_ack_async_event)(event));
        }
        acknowledge(mutex, cond, count, 1);
    }
}
