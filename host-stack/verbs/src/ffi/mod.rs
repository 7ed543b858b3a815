//! The C functions of libibverbs (rdma-core 44), by theme.
//!
//! Objects are boxes that begin with the C structure, so that a pointer to one is a pointer to the
//! other; a program that passes a pointer that did not come from here, or uses one after it was
//! destroyed, is as wrong as with any libibverbs. Errors are errno values, returned or left in
//! `errno`, as each manual page says.

#![allow(clippy::missing_safety_doc)] // the manual pages are the contracts
#![allow(missing_docs)] // and the documentation

mod address;
mod checkpoint;
mod cq;
mod device;
mod event;
mod exports;
mod extended;
mod fork;
mod kern;
mod memory;
mod post;
mod private;
mod qp;
mod srq;

use std::{
    collections::HashMap,
    ffi::c_int,
    mem::offset_of,
    os::fd::BorrowedFd,
    ptr,
    sync::{Arc, Mutex, Weak},
};

use libc::{pthread_cond_t, pthread_mutex_t};
use rustix::io::Errno;
use snaprig_hca::{Memory, model::ModelName};
use snaprig_pages::pool::Pool;
use snaprig_verbs_abi::{ibv_context, verbs_context};

use crate::{
    client::{Fabric, FabricError},
    place::{Place, setup_from_env},
};

/// A context, as it is allocated.
#[repr(C)]
pub(crate) struct Context {
    pub verbs: verbs_context,
    pub fabric: Arc<Fabric>,
    pub device: *mut device::Device,
    /// Its number at the daemon.
    pub number: u32,
    pub hca: u32,
    /// Queues by table and place, for events.
    pub objects: Mutex<HashMap<(Table, u32), usize>>,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Table {
    Cq,
    Srq,
    Qp,
}

impl Context {
    /// The context of a pointer that a program passes.
    ///
    /// # Safety
    /// `context` came from `ibv_open_device`, and is not closed while the result is used.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: the caller says that `ibv_open_device` returned the pointer and that the context is
        // open, so `whole` is that of its box, which lives until `ibv_close_device`.
        unsafe { &*Self::whole(context) }
    }

    /// The box whose part `ibv_open_device` returned: the member `context` of a `verbs_context`, which
    /// is the first thing in it.
    pub fn whole(context: *mut ibv_context) -> *mut Self {
        context
            .wrapping_byte_sub(offset_of!(verbs_context, context))
            .cast()
    }

    pub fn register(&self, table: Table, place: u32, pointer: usize) {
        if let Ok(mut objects) = self.objects.lock() {
            objects.insert((table, place), pointer);
        }
    }

    /// A queue is gone: so are its events that nobody has read.
    pub fn forget(&self, table: Table, place: u32) {
        if let Ok(mut objects) = self.objects.lock() {
            objects.remove(&(table, place));
        }
        // SAFETY: `ibv_close_device` closes the descriptor when it frees the context, which is
        // borrowed here; the borrowed descriptor does not leave this function.
        let out = unsafe { BorrowedFd::borrow_raw(self.verbs.context.async_fd) };
        self.fabric.drop_events(self.number, out, |raised| {
            event::table_of(raised.event) == Some(table) && raised.element == place
        });
    }

    /// The pointer of a queue for which an event is handed out, which `count` counts.
    ///
    /// The table is locked while it counts. So [`Self::forget`], with which a queue's destruction begins, comes
    /// either before that, and then nothing is found; or after it, and then the destruction waits for the
    /// event to be acknowledged, and the pointer is good until the program has the event.
    pub fn hand_out(&self, table: Table, place: u32, count: impl FnOnce(usize)) -> Option<usize> {
        let objects = self.objects.lock().ok()?;
        let pointer = *objects.get(&(table, place))?;
        count(pointer);
        Some(pointer)
    }
}

/// The process that has joined a fabric, and that fabric.
type Current = (u32, Weak<Fabric>);

/// The fabric that this process is in, if anybody here uses it.
static FABRIC: Mutex<Current> = Mutex::new((0, Weak::new()));
/// What the process had registered in the fabric that it was in before it was restarted.
static BEFORE: Mutex<Option<(u32, Arc<Pool>)>> = Mutex::new(None);

/// The fabric of this process; joins it if nobody has. A child of fork(2) joins anew.
pub(crate) fn fabric() -> Result<Arc<Fabric>, FabricError> {
    let mut current = FABRIC
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let pid = std::process::id();
    if let (true, Some(fabric)) = (current.0 == pid, current.1.upgrade()) {
        return Ok(fabric);
    }
    let before = BEFORE.lock().ok().and_then(|mut before| before.take());
    let pool = before
        .filter(|before| before.0 == pid)
        .map(|(_, pool)| pool);
    let fabric = Fabric::join(&Place::from_env()?, &setup_from_env()?, pool)?;
    fork::watch(&fabric);
    *current = (pid, Arc::downgrade(&fabric));
    Ok(fabric)
}

/// The same, for the files that programs find.
pub(crate) fn joined() -> Result<Arc<dyn snaprig_verbs_files::Fabric>, Errno> {
    match fabric() {
        Ok(fabric) => Ok(fabric),
        Err(error) => Err(Errno::from_raw_os_error(error.errno())),
    }
}

impl snaprig_verbs_files::Fabric for Fabric {
    fn models(&self) -> &[ModelName] {
        &self.hcas
    }

    fn visible(&self) -> std::ops::Range<u32> {
        Self::visible(self)
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// Leaves an errno value for the caller.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: __errno_location(3) returns the place of this thread's own errno, which is always
    // there and which no other thread uses.
    unsafe { *libc::__errno_location() = errno };
}

/// Fails a call that returns a pointer.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// Fails a call that returns -1.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// The errno value of a result that brings nothing.
pub(crate) fn done<T>(result: Result<T, FabricError>) -> c_int {
    result.map_or_else(|error| error.errno(), |_| 0)
}

pub(crate) const MUTEX: pthread_mutex_t = libc::PTHREAD_MUTEX_INITIALIZER;
pub(crate) const COND: pthread_cond_t = libc::PTHREAD_COND_INITIALIZER;

/// Waits, with a C mutex and condition, until `is` is so.
///
/// # Safety
/// `mutex` and `cond` are initialised, and stay where they are, alive, until this returns; `is`
/// does not lock the mutex.
pub(crate) unsafe fn wait_until(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    is: impl Fn() -> bool,
) {
    // SAFETY: the caller says that both are initialised and stay; the mutex is locked by this
    // thread when it waits, as pthread_cond_wait(3) asks, and it is unlocked here once.
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
/// `mutex` and `cond` are initialised, and stay where they are, alive, until this returns;
/// everybody who changes `count` has the mutex locked.
pub(crate) unsafe fn acknowledge(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    count: *mut u32,
    events: u32,
) {
    // SAFETY: the caller says that all three stay, and that the mutex guards the count, which is
    // changed only while this thread has it locked; it is unlocked here once.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        *count = (*count).wrapping_add(events);
        libc::pthread_cond_signal(cond);
        libc::pthread_mutex_unlock(mutex);
    }
}
