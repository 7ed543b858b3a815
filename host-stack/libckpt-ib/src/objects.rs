//! What the program has pointers to (principle 1): each begins with the structure of libibverbs, and goes on with what it stands
//! for, and how it was made.

use std::{
    collections::{HashMap, VecDeque},
    ffi::{c_char, c_int},
    os::fd::{OwnedFd, RawFd},
    ptr,
};

use libc::{pthread_cond_t, pthread_mutex_t};
use snaprig_ckpt_ib::{
    Completion, Name,
    names::{Domain, Gid},
};
use snaprig_verbs_abi::*;

use crate::{copies::Copies, event::Gate, extended::Building, windows::Bound};

/// What of a device a program knows, and what it is to be whatever is below.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// By number, from 1.
    pub ports: Vec<KnownPort>,
}

/// Of a port.
#[derive(Clone, Debug, Default)]
pub struct KnownPort {
    pub lid: u16,
    pub sm_lid: u16,
    pub gids: Vec<(u32, Gid)>,
}

#[repr(C)]
pub struct Device {
    pub device: ibv_device,
    /// Null: there is none any more.
    pub real: *mut ibv_device,
    /// What that one is called.
    pub below: [c_char; IBV_SYSFS_NAME_MAX],
    /// As the library says it: big endian.
    pub guid: u64,
    pub index: i32,
    /// Since the last checkpoint that had a context of it.
    pub known: Option<Known>,
}

#[repr(C)]
pub struct Context {
    pub verbs: verbs_context,
    pub real: *mut ibv_context,
    pub device: *mut Device,
    /// As they were when it was opened.
    pub attr: ibv_device_attr,
    /// How many ports the device below has.
    pub real_ports: u8,
    pub gate: Gate,
    /// Asynchronous events that were put by.
    pub pending: VecDeque<ibv_async_event>,
    /// What local keys are now; those that are not in it are what they are called.
    pub local_keys: HashMap<u32, u32>,
    /// By number of a queue pair now: its place.
    pub by_number: HashMap<u32, u32>,
}

#[repr(C)]
pub struct Channel {
    pub channel: ibv_comp_channel,
    pub real: *mut ibv_comp_channel,
    pub gate: Gate,
    /// Queues with events that were put by.
    pub pending: VecDeque<*mut Cq>,
}

/// How a completion queue was made.
#[derive(Clone, Copy)]
pub struct CqMade {
    pub entries: u32,
    pub vector: u32,
    /// In the extended way: flags of completions, and others.
    pub extended: Option<(u64, u32)>,
    pub parent: Option<*mut Pd>,
}

#[repr(C)]
pub struct Cq {
    pub ex: ibv_cq_ex,
    pub real: *mut ibv_cq,
    pub place: u32,
    pub made: CqMade,
    /// The program waits for an event: of solicited completions alone.
    pub armed: Option<bool>,
    /// It has had one since it last took a completion.
    pub has_event: bool,
    pub completions_given: u32,
    pub events_given: u32,
    /// Of an extended poll.
    pub current: Completion,
}

impl Cq {
    /// The program has taken so many completions.
    #[inline]
    pub fn has_given(&mut self, count: c_int) {
        self.has_event &= count <= 0;
    }
}

#[repr(C)]
pub struct Pd {
    pub pd: ibv_pd,
    pub real: *mut ibv_pd,
    pub domain: Domain,
    /// Where marks that fetch something leave it.
    pub scratch: Option<Scratch>,
    /// Of a parent domain: how the program made it.
    pub parent: Option<ibv_parent_domain_init_attr>,
}

#[repr(C)]
pub struct Td {
    pub td: ibv_td,
    pub real: *mut ibv_td,
}

#[repr(C)]
pub struct Mw {
    pub mw: ibv_mw,
    pub real: *mut ibv_mw,
    /// What the program called it once, and what that is below: keys of both change alike.
    pub key: u32,
    pub key_below: u32,
    pub bound: Option<Bound>,
}

/// Memory of ours that is registered.
pub struct Scratch {
    pub bytes: Box<[u64]>,
    pub real: *mut ibv_mr,
}

#[repr(C)]
pub struct Mr {
    pub mr: ibv_mr,
    pub real: *mut ibv_mr,
    /// After a restart, what is registered in place of memory that the program has unmapped.
    pub stand_in: Option<Box<[u64]>>,
    pub iova: u64,
    pub access: u32,
    /// It is of nothing.
    pub is_null: bool,
}

#[repr(C)]
pub struct Srq {
    pub srq: ibv_srq,
    pub real: *mut ibv_srq,
    pub place: u32,
    pub attr: ibv_srq_attr,
    pub events_given: u32,
    /// If it is of XRC.
    pub xrc: Option<XrcSrq>,
}

/// A shared receive queue's part in XRC.
#[derive(Clone, Copy)]
pub struct XrcSrq {
    /// What the program calls it.
    pub number: u32,
    pub xrcd: *mut Xrcd,
    pub cq: *mut Cq,
}

#[repr(C)]
pub struct Xrcd {
    pub xrcd: ibv_xrcd,
    pub real: *mut ibv_xrcd,
    /// The file that says who shares it; none of one's own.
    pub file: Option<OwnedFd>,
}

#[repr(C)]
pub struct Qp {
    pub ex: ibv_qp_ex,
    pub real: *mut ibv_qp,
    pub place: u32,
    pub init: ibv_qp_init_attr_ex,
    /// What the program was granted.
    pub granted: ibv_qp_cap,
    /// Bytes of inline data that the one below takes.
    pub inline_below: u32,
    /// How many requests it takes, if those are fewer than the program may post.
    pub sends_below: Option<u32>,
    pub copies: Copies,
    /// What it has modified, and which of it (`enum ibv_qp_attr_mask`).
    pub attr: ibv_qp_attr,
    pub mask: i32,
    pub is_extended: bool,
    pub events_given: u32,
    pub building: Building,
    /// Groups that it is in.
    pub groups: Vec<(Gid, u16)>,
    /// Bytes of the longest request that it has posted.
    pub longest: u64,
    /// It is another handle of a queue pair of this domain, of which the program modifies nothing here (ibv_open_qp(3)).
    pub opened: Option<*mut Xrcd>,
}

impl Qp {
    /// What the job calls it.
    ///
    /// # Safety
    /// Its context is open.
    pub unsafe fn name(&self) -> Name {
        let base = &self.ex.qp_base;
        Name {
            // SAFETY: the caller says that it is open.
            port: unsafe { Context::of(base.context).port() },
            number: base.qp_num,
        }
    }
}

#[repr(C)]
pub struct Ah {
    pub ah: ibv_ah,
    pub real: *mut ibv_ah,
    pub attr: ibv_ah_attr,
}

/// Objects whose first member the program's pointer is to.
pub trait Shadow: Sized {
    /// The structure of libibverbs.
    type Of;

    /// What a pointer of the program's is to.
    ///
    /// # Safety
    /// It came from here, what it is to is not destroyed while the result is in use, and whoever calls has the lock, or is
    /// the only one that uses what he changes.
    unsafe fn of<'a>(pointer: *mut Self::Of) -> &'a mut Self {
        // SAFETY: the structure is the first thing in ours, which is a box that the caller says is alive.
        unsafe { &mut *pointer.cast::<Self>() }
    }

    /// For the program.
    fn pointer(&mut self) -> *mut Self::Of {
        ptr::from_mut(self).cast()
    }
}

macro_rules! shadows {
    ($($ours:ident of $theirs:ident),*) => {
        $(impl Shadow for $ours {
            type Of = $theirs;
        })*
    };
}

shadows! { Device of ibv_device, Channel of ibv_comp_channel, Cq of ibv_cq, Pd of ibv_pd, Mr of ibv_mr, Srq of ibv_srq,
Qp of ibv_qp, Ah of ibv_ah, Xrcd of ibv_xrcd,
Td of ibv_td, Mw of ibv_mw }

/// The extended functions of a context, which stand around it.
pub fn table(context: *mut ibv_context) -> *mut verbs_context {
    let offset = std::mem::offset_of!(verbs_context, context);
    context.wrapping_byte_sub(offset).cast()
}

impl Context {
    /// What a pointer of the program's is to.
    ///
    /// # Safety
    /// As for [`Shadow::of`].
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a mut Self {
        let whole = context.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context));
        // SAFETY: the caller says that the context is ours: the member of a `verbs_context` with which a box begins.
        unsafe { &mut *whole.cast::<Self>() }
    }

    /// For the program.
    pub fn pointer(&mut self) -> *mut ibv_context {
        &raw mut self.verbs.context
    }

    /// The extended functions of the libibverbs below.
    pub fn real_verbs(&self) -> *mut verbs_context {
        table(self.real)
    }

    /// What names its ports in the job.
    pub fn port(&self) -> u64 {
        // SAFETY: devices are never freed.
        u64::from_be(unsafe { (*self.device).guid })
    }

    /// What the HCA below can have under way of RDMA reads and atomics.
    pub fn real_rd_atomic(&self) -> u8 {
        self.device_below()
            .map_or(self.attr.max_qp_rd_atom, |attr| attr.max_qp_rd_atom) as u8
    }

    /// What the device below is.
    pub fn device_below(&self) -> Option<ibv_device_attr> {
        let real = crate::real::real().filter(|_| !self.real.is_null())?;
        let mut attr = self.attr;
        // SAFETY: the context below is open.
        let asked = unsafe { (real.ibv_query_device)(self.real, &mut attr) };
        (asked == 0).then_some(attr)
    }

    /// Which port below stands for one of the program's.
    pub fn real_port(&self, port: u8) -> u8 {
        // Until the process is restarted elsewhere they are the same.
        let count = self.real_ports;
        if port <= count { port } else { port.min(1) }
    }
}

/// A context of ours.
///
/// # Safety
/// It is one of a libibverbs, and open.
pub unsafe fn is_ours(context: *mut ibv_context) -> bool {
    let post = crate::post::post_send as *const ();
    // SAFETY: the caller says that it is a context, which has this table.
    let found = unsafe { (*context).ops.post_send };
    found.is_some_and(|found| ptr::eq(found as *const (), post))
}

/// Waits, with a C mutex and condition, until `is` is so.
///
/// # Safety
/// Both are initialised, and stay where they are, alive, until this returns; `is` does not lock the mutex.
pub unsafe fn wait_until(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    is: impl Fn() -> bool,
) {
    // SAFETY: the caller says that both are initialised and stay; the mutex is locked by this thread when it waits, as
    // pthread_cond_wait(3) asks, and it is unlocked here once.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while !is() {
            libc::pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}

/// Counts acknowledged events, and wakes who waits for that.
///
/// # Safety
/// As for [`wait_until`]; everybody who changes `count` has the mutex locked.
pub unsafe fn acknowledge(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    count: *mut u32,
    events: u32,
) {
    // SAFETY: the caller says that all three stay, and that the mutex guards the count; it is unlocked here once.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        *count = (*count).wrapping_add(events);
        libc::pthread_cond_signal(cond);
        libc::pthread_mutex_unlock(mutex);
    }
}

/// A descriptor of a libibverbs does not wait: whoever waits does so on one of ours.
pub fn does_not_wait(fd: RawFd) {
    // SAFETY: F_GETFL and F_SETFL take numbers, and touch no memory.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
}
