//! All that a program has, behind one lock.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    ffi::c_int,
    sync::{
        Condvar, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use smallvec::SmallVec;
use snaprig_ckpt_ib::{
    Completion, Name, Names, Process,
    cookie::{Cookie, Queue},
    process::{Came, Whose},
    serve::{serve, take_lent},
};
use snaprig_verbs_abi::*;

use crate::{
    cm::Manager,
    objects::{Ah, Channel, Context, Cq, Device, Mr, Mw, Pd, Qp, Scratch, Srq, Td, Xrcd},
};

/// Where data is, as a request says it.
pub type List = SmallVec<[ibv_sge; 3]>;

/// What it takes to post a send again.
#[derive(Clone)]
pub struct Request {
    /// As the program has posted it; its pointers to lists mean nothing.
    pub wr: ibv_send_wr,
    /// Where its data is, unless that is inline.
    pub list: List,
    /// Inline data, which was taken when it was posted.
    data: Vec<u8>,
}

impl Default for Request {
    fn default() -> Self {
        // SAFETY: a request is of numbers and pointers.
        Self::new(unsafe { std::mem::zeroed() }, List::new())
    }
}

impl Request {
    /// One without inline data.
    pub fn new(wr: ibv_send_wr, list: List) -> Self {
        Self {
            wr,
            list,
            data: Vec::new(),
        }
    }

    /// Makes it another one, as the program posts it; the bytes of its message.
    ///
    /// # Safety
    /// The program has posted it now: its lists and its inline data can be read.
    #[inline]
    pub unsafe fn set(&mut self, wr: &ibv_send_wr) -> u64 {
        self.wr = *wr;
        self.list.clear();
        // SAFETY: ibv_post_send(3): the list has so many elements.
        let list = unsafe { elements(wr.sg_list, wr.num_sge) };
        if wr.send_flags & IBV_SEND_INLINE == 0 {
            // Most have one element, which a loop over what may be many takes longer for.
            let mut length = 0;
            for sge in list {
                self.list.push(*sge);
                length += u64::from(sge.length);
            }
            return length;
        }
        self.data.clear();
        for sge in list {
            let from = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: inline data is read when it is posted: ibv_post_send(3).
            self.data
                .extend_from_slice(unsafe { bytes(from, sge.length as usize) });
        }
        self.data.len() as u64
    }

    /// Its inline data, if it has that.
    #[inline]
    pub fn inline(&self) -> Option<&[u8]> {
        (self.wr.send_flags & IBV_SEND_INLINE != 0).then_some(&self.data)
    }
}

/// The elements of a list, and none of an empty one.
///
/// # Safety
/// There are so many.
#[inline]
pub unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    match count > 0 && !list.is_null() {
        // SAFETY: the caller says so.
        true => unsafe { std::slice::from_raw_parts(list, count as usize) },
        false => &[],
    }
}

/// # Safety
/// There are so many.
#[inline]
unsafe fn bytes<'a>(from: *const u8, count: usize) -> &'a [u8] {
    match count {
        0 => &[],
        // SAFETY: the caller says so.
        _ => unsafe { std::slice::from_raw_parts(from, count) },
    }
}

// SAFETY: the pointers of a request mean nothing but for an address handle's, which is only used with the lock.
unsafe impl Send for Request {}

/// What it takes to post a receive again.
pub type Receive = List;

/// All that a program has.
#[derive(Default)]
pub struct State {
    /// What the machines know of it.
    pub process: Process<Request, Receive>,
    pub things: Things,
}

/// A chain of requests, as it is below: its memory is used again.
#[derive(Default)]
pub struct Chain {
    pub requests: Vec<ibv_send_wr>,
    /// In a restarted process, the list of each.
    pub lists: Vec<List>,
}

impl Chain {
    #[inline]
    pub fn clear(&mut self) {
        self.requests.clear();
        self.lists.clear();
    }

    /// Another one, like the program's.
    #[inline]
    pub fn push(&mut self, wr: &ibv_send_wr) -> &mut ibv_send_wr {
        self.requests.push(*wr);
        let last = self.requests.len() - 1;
        &mut self.requests[last]
    }
}

/// What there is of it here. Objects are the program's pointers.
#[derive(Default)]
pub struct Things {
    /// By their places in the tables of the process.
    pub qps: Vec<*mut Qp>,
    pub cqs: Vec<*mut Cq>,
    pub srqs: Vec<*mut Srq>,
    /// Other handles of queue pairs, which are in no table.
    pub opened: Vec<*mut Qp>,
    pub contexts: BTreeSet<*mut Context>,
    pub channels: BTreeSet<*mut Channel>,
    pub pds: BTreeSet<*mut Pd>,
    pub mrs: BTreeSet<*mut Mr>,
    pub ahs: BTreeSet<*mut Ah>,
    pub xrcds: BTreeSet<*mut Xrcd>,
    pub tds: BTreeSet<*mut Td>,
    pub mws: BTreeSet<*mut Mw>,
    /// Never freed: a device is the same pointer in every list.
    pub devices: Vec<*mut Device>,
    /// The list of devices of the libibverbs below, which is not freed before there is another.
    pub list: Option<*mut *mut ibv_device>,
    pub manager: Manager,
    pub names: Names,
    /// How often the process was restarted. Before that, names are what they are.
    pub restarts: u64,
    /// Receives that are lent, and where what comes is, by wr_id.
    pub lent: HashMap<u64, Scratch>,
    /// Other ends of connections, by place, while it is drained.
    pub peers: Vec<Option<Name>>,
    /// A thread sees to requests that wait for room.
    pub makes_room: bool,
    /// For what is posted; none while that is so.
    pub chain: Option<Box<Chain>>,
}

// SAFETY: its pointers are to boxes that are changed only by who has the lock.
unsafe impl Send for Things {}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The lock, and what it guards.
pub struct Locked(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().expect("made by `lock`")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("made by `lock`")
    }
}

/// Whoever wants the lock waits at [`GATE`]: a thread that polls would have it again before who waits for it is awake.
static CLOSED: AtomicBool = AtomicBool::new(false);
static GATE: Mutex<()> = Mutex::new(());
static OPENED: Condvar = Condvar::new();

/// The lock, and the gate before it, which opens when this is dropped.
pub struct Closed(Locked, Opening);

struct Opening;

impl Drop for Opening {
    fn drop(&mut self) {
        let gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        CLOSED.store(false, Relaxed);
        drop(gate);
        OPENED.notify_all();
    }
}

impl std::ops::Deref for Closed {
    type Target = State;
    fn deref(&self) -> &State {
        &self.0
    }
}

impl std::ops::DerefMut for Closed {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

/// Keeps the program out, whatever it does: waits for those of its calls alone that have begun.
pub fn close() -> Closed {
    CLOSED.store(true, Relaxed);
    let opening = Opening;
    Closed(take(), opening)
}

/// Waits for the lock.
#[inline]
pub fn lock() -> Locked {
    if CLOSED.load(Relaxed) {
        wait_at_gate();
    }
    take()
}

#[cold]
fn wait_at_gate() {
    let gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = OPENED.wait_while(gate, |()| CLOSED.load(Relaxed));
    drop(opened.unwrap_or_else(PoisonError::into_inner));
}

#[inline]
fn take() -> Locked {
    let mut guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if guard.is_none() {
        *guard = Some(State::default());
    }
    Locked(guard)
}

thread_local! {
    /// Held while this thread forks.
    static FORKING: RefCell<Option<(Locked, MutexGuard<'static, ()>)>> = const { RefCell::new(None) };
}

/// Cares for forks: what a child finds is its parent's, and no part of its own checkpoints.
pub fn watch_forks() {
    extern "C" fn before() {
        let state = lock();
        // Nobody has the gate who waits for the lock.
        let gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        FORKING.set(Some((state, gate)));
    }
    extern "C" fn parent() {
        FORKING.take();
    }
    extern "C" fn child() {
        // Whoever has closed it, or is about to, is not there.
        CLOSED.store(false, Relaxed);
        if let Some((mut state, _gate)) = FORKING.take() {
            let devices = std::mem::take(&mut state.things.devices);
            // What the parent's queues need is the parent's to free.
            std::mem::forget(std::mem::take(&mut *state));
            state.things.devices = devices;
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the three functions are this library's, which is never unloaded, and take no arguments.
        unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    });
}

/// Puts a pointer at a place.
pub fn set<T>(table: &mut Vec<*mut T>, place: u32, pointer: *mut T) {
    let place = place as usize;
    if table.len() <= place {
        table.resize(place + 1, std::ptr::null_mut());
    }
    table[place] = pointer;
}

/// The pointer at a place.
#[inline]
pub fn get<T>(table: &[*mut T], place: u32) -> Option<*mut T> {
    table
        .get(place as usize)
        .copied()
        .filter(|at| !at.is_null())
}

impl State {
    /// A completion came from the queue below. Whether it is the program's, which then finds its own names in it.
    #[inline]
    pub fn take(&mut self, cq: u32, wc: &mut ibv_wc) -> bool {
        let Some(came) = self.things.came(cq, wc) else {
            return false;
        };
        match self.process.completed(came) {
            Whose::Program(wr_id) => {
                wc.wr_id = wr_id;
                self.made_room(came.cookie.queue);
                true
            }
            Whose::Nobody => false,
            Whose::Lent => {
                self.settle_lent(cq, came.cookie, completion(wc, 0));
                false
            }
        }
    }

    /// A request of the program's has left a queue: one that waits for room there may have it.
    #[inline]
    fn made_room(&mut self, queue: Queue) {
        if self.things.restarts > 0
            && self
                .process
                .receives(queue)
                .is_some_and(|receives| receives.is_crowded())
        {
            self.serve(queue);
        }
    }

    /// What was lent came back while the program works: the queue may go on with the program's own.
    #[cold]
    fn settle_lent(&mut self, cq: u32, cookie: Cookie, completion: Completion) {
        let Self { process, things } = self;
        take_lent(process, things, cq, cookie, completion);
        self.serve(cookie.queue);
    }

    /// There is no room below for a receive of a queue that the program has made for so many: whether it waits for that. Where
    /// the program began, there was room.
    #[cold]
    pub fn has_wait(&mut self, queue: Queue, number: u64, room: u32) -> bool {
        self.things.restarts > 0
            && self
                .process
                .receives(queue)
                .is_some_and(|receives| receives.len() <= room as usize && receives.no_room(number))
    }

    /// Receives of the program that wait have what came, or go below.
    #[cold]
    pub fn serve(&mut self, queue: Queue) {
        let Self { process, things } = self;
        if let Err(why) = serve(process, things, queue) {
            eprintln!("snaprig: receives that waited for a checkpoint are lost: {why}");
        }
    }
}

impl Things {
    /// A local key, as it is now.
    pub fn local_key(&self, context: &Context, key: u32) -> u32 {
        match self.restarts {
            0 => key,
            _ => context.local_keys.get(&key).copied().unwrap_or(key),
        }
    }

    /// A list, as it is now.
    pub fn real_list(&self, context: &Context, list: &[ibv_sge]) -> List {
        let real = list.iter().map(|sge| ibv_sge {
            lkey: self.local_key(context, sge.lkey),
            ..*sge
        });
        real.collect()
    }

    /// An address, as it is now.
    ///
    /// # Safety
    /// The context is open below.
    pub fn real_address(&self, context: &Context, attr: &ibv_ah_attr) -> ibv_ah_attr {
        let mut real = *attr;
        if self.restarts > 0 {
            real.dlid = self.names.lid(attr.dlid);
            // SAFETY: both members of the union are 16 plain bytes.
            real.grh.dgid.raw = self.names.gid(unsafe { attr.grh.dgid.raw });
            real.port_num = context.real_port(attr.port_num);
        }
        real
    }

    /// A completion from below: what its log must know of it. It has virtual names from here on, but for its wr_id. None: it is of
    /// what is gone.
    #[inline]
    pub fn came(&self, cq: u32, wc: &mut ibv_wc) -> Option<Came> {
        let cookie = Cookie::of(wc.wr_id)?;
        let place = match cookie.queue {
            Queue::Sends(place) | Queue::Receives(place) => place,
            Queue::Shared(place) => {
                if let Some(came) = self.came_for_xrc(place, cookie, wc) {
                    return Some(came);
                }
                let cq = get(&self.cqs, cq)?;
                // SAFETY: what is in the table is alive, and so is its context.
                let context = unsafe { Context::of((*cq).ex.context) };
                *context.by_number.get(&wc.qp_num)?
            }
        };
        let qp = get(&self.qps, place)?;
        // SAFETY: what is in the table is alive.
        let (base, real_number) = unsafe { (&(*qp).ex.qp_base, (*(*qp).real).qp_num) };
        // Of one that had this place before.
        if real_number != wc.qp_num {
            return None;
        }
        wc.qp_num = base.qp_num;
        if wc.wc_flags & IBV_WC_WITH_INV != 0 {
            self.call_invalidated(base.context, wc);
        }
        let is_datagram = base.qp_type == IBV_QPT_UD && !matches!(cookie.queue, Queue::Sends(_));
        let from = is_datagram.then(|| self.sender(wc));
        Some(Came {
            cookie,
            status: wc.status,
            qp: Some(place),
            from: from.flatten(),
        })
    }

    /// A key that a peer has invalidated is called as the program calls it.
    #[cold]
    fn call_invalidated(&self, context: *mut ibv_context, wc: &mut ibv_wc) {
        // SAFETY: both members of the union are 4 plain bytes.
        let key = unsafe { wc.imm.invalidated_rkey };
        wc.imm.invalidated_rkey = self.invalidated(context, key);
    }

    /// A completion of a shared receive queue, if that is of XRC: the message may have come by another process's queue pair.
    fn came_for_xrc(&self, place: u32, cookie: Cookie, wc: &mut ibv_wc) -> Option<Came> {
        let srq = get(&self.srqs, place)?;
        // SAFETY: what is in the table is alive, and so is its context.
        let (xrc, port) = unsafe { ((*srq).xrc?, Context::of((*srq).srq.context).port()) };
        let by = self.names.called_at(port, wc.qp_num);
        wc.qp_num = by.number;
        // Some HCAs say so where it came to.
        // SAFETY: as above.
        if wc.src_qp == unsafe { crate::xrc::number_below((*srq).real) } {
            wc.src_qp = xrc.number;
        }
        if wc.wc_flags & IBV_WC_WITH_INV != 0 {
            // SAFETY: as above.
            self.call_invalidated(unsafe { (*srq).srq.context }, wc);
        }
        Some(Came {
            cookie,
            status: wc.status,
            qp: None,
            from: Some(by),
        })
    }

    /// Who has sent a datagram, which says so with virtual names from here on.
    fn sender(&self, wc: &mut ibv_wc) -> Option<Name> {
        let (lid, number) = (wc.slid, wc.src_qp);
        let named = |lid: u16| Name {
            port: lid.into(),
            number,
        };
        if self.restarts == 0 {
            // Where links are no InfiniBand's there are no LIDs.
            return (lid != 0).then(|| named(lid));
        }
        match self.names.called(lid, number) {
            Some((name, lid)) => {
                (wc.slid, wc.src_qp) = (lid, name.number);
                Some(name)
            }
            None => {
                wc.slid = self.names.called_lid(lid);
                (lid != 0).then(|| named(wc.slid))
            }
        }
    }
}

/// A completion to be put by, with a time.
#[inline]
pub fn completion(wc: &ibv_wc, time_ns: u64) -> Completion {
    Completion {
        wr_id: wc.wr_id,
        status: wc.status,
        opcode: wc.opcode,
        vendor_error: wc.vendor_err,
        length: wc.byte_len,
        // SAFETY: both members of the union are 4 plain bytes.
        immediate: unsafe { wc.imm.imm_data },
        qp: wc.qp_num,
        source_qp: wc.src_qp,
        flags: wc.wc_flags,
        pkey_index: wc.pkey_index,
        source_lid: wc.slid,
        service_level: wc.sl,
        path_bits: wc.dlid_path_bits,
        time_ns,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread};

    use super::*;

    #[test]
    fn a_child_finds_open_what_its_parent_is_about_to_close() {
        watch_forks();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    drop(close());
                }
            });
            for _ in 0..200 {
                // SAFETY: the child takes the lock, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: as above; if it waits, it is ended.
                    unsafe { libc::alarm(10) };
                    drop(lock());
                    drop(close());
                    // SAFETY: as above.
                    unsafe { libc::_exit(0) };
                }
                let mut status = -1;
                // SAFETY: it is a child of this process, which has not been waited for.
                unsafe { libc::waitpid(child, &mut status, 0) };
                assert_eq!(status, 0);
            }
            is_over.store(true, Relaxed);
        });
    }

    #[test]
    fn who_calls_again_and_again_waits_while_it_is_closed() {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    lock().things.restarts += 1;
                }
            });
            for _ in 0..100 {
                let closed = close();
                let calls = closed.things.restarts;
                thread::yield_now();
                assert_eq!(closed.things.restarts, calls);
                drop(closed);
                while lock().things.restarts == calls {
                    thread::yield_now();
                }
            }
            is_over.store(true, Relaxed);
        });
    }
}
