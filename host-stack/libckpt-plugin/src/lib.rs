//! `libsnaprig_ckpt_plugin.so.0`: plugins of checkpoints for C programs, which are `snaprig_ckpt_plugin`'s. The contract
//! is the header, `include/snaprig_ckpt_plugin.h`.

#![allow(missing_docs)]
#![allow(clippy::missing_safety_doc)]

use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void},
    mem::offset_of,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use snaprig_ckpt_plugin::{
    Error, Event, Options, PATIENCE, Phase, Phases, Plugin, is_supervised, register, unregister,
};
use snaprig_versioned::export;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// What a function is called for: `snaprig_ckpt_event`.
pub struct CEvent<'a, 'b> {
    event: &'a mut Event<'b>,
    /// Bytes that were given out: they stay where they are until the function returns.
    given: Vec<Box<[u8]>>,
    reason: Option<String>,
}

type Function = unsafe extern "C" fn(*mut CEvent, *mut c_void) -> c_int;
type Notice = unsafe extern "C" fn(*mut CEvent, *mut c_void);

/// `struct snaprig_ckpt_plugin`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CPlugin {
    size: usize,
    name: *const c_char,
    order: c_int,
    patience: c_uint,
    data: *mut c_void,
    save: Option<Function>,
    resume: Option<Notice>,
    rebuild: Option<Function>,
    quiesce: Option<Function>,
    drain: Option<Function>,
    exchange: Option<Function>,
    refill: Option<Function>,
    go: Option<Notice>,
}

/// What the structure was before it had phases, of which programs may still be compiled.
const FIRST_SIZE: usize = offset_of!(CPlugin, quiesce);
const _: () = assert!(offset_of!(CPlugin, data) == 24 && FIRST_SIZE == 56);

// SAFETY: the library calls the functions in one thread, and the header tells programs that this is another one than
// those of their own: what `data` points to is theirs to guard.
unsafe impl Send for CPlugin {}
// SAFETY: nothing in it changes after it is registered, and the library calls its functions in one thread; what `data`
// points to is the program's to guard.
unsafe impl Sync for CPlugin {}

impl CEvent<'_, '_> {
    /// Bytes for the program, with a zero behind them.
    fn give(&mut self, mut bytes: Vec<u8>) -> *const c_char {
        bytes.push(0);
        let bytes = bytes.into_boxed_slice();
        let pointer = bytes.as_ptr().cast();
        self.given.push(bytes);
        pointer
    }

    /// What a function of the library returns: 0, or -1 and the reason as that of a refusal.
    fn said(&mut self, result: Result<(), String>) -> c_int {
        match result {
            Ok(()) => 0,
            Err(reason) => {
                self.reason = Some(reason);
                -1
            }
        }
    }
}

impl CPlugin {
    /// Calls a function of the program, if it has one.
    fn call(&self, function: Option<Function>, event: &mut Event) -> Result<(), String> {
        let Some(function) = function else {
            return Ok(());
        };
        let mut event = CEvent {
            event,
            given: Vec::new(),
            reason: None,
        };
        // SAFETY: the program registered it as a function of this type, to be called with its data; the event outlives
        // the call.
        match unsafe { function(&raw mut event, self.data) } {
            0 => Ok(()),
            code => Err(event
                .reason
                .unwrap_or_else(|| format!("it returned {code}"))),
        }
    }

    fn notify(&self, function: Option<Notice>, event: &mut Event) {
        let Some(function) = function else {
            return;
        };
        let mut event = CEvent {
            event,
            given: Vec::new(),
            reason: None,
        };
        // SAFETY: the program registered it as a function of this type, to be called with its data; the event outlives
        // the call.
        unsafe { function(&raw mut event, self.data) };
    }
}

impl Plugin for CPlugin {
    fn phases(&self) -> Phases {
        let has = [
            (Phase::Quiesce, self.quiesce.is_some()),
            (Phase::Drain, self.drain.is_some()),
            (Phase::Save, self.save.is_some()),
            (Phase::Rebuild, true),
            (Phase::Exchange, self.exchange.is_some()),
            (Phase::Refill, self.refill.is_some()),
        ];
        let has = has.into_iter().filter(|(_, has)| *has);
        has.fold(Phases::NONE, |phases, (phase, _)| phases.with(phase))
    }

    fn quiesce(&self, event: &mut Event) -> Result<(), String> {
        self.call(self.quiesce, event)
    }

    fn drain(&self, event: &mut Event) -> Result<(), String> {
        self.call(self.drain, event)
    }

    fn save(&self, event: &mut Event) -> Result<(), String> {
        self.call(self.save, event)
    }

    fn resume(&self, event: &mut Event) {
        self.notify(self.resume, event);
    }

    fn rebuild(&self, event: &mut Event) -> Result<(), String> {
        if self.rebuild.is_none() {
            self.notify(self.resume, event);
        }
        self.call(self.rebuild, event)
    }

    fn exchange(&self, event: &mut Event) -> Result<(), String> {
        self.call(self.exchange, event)
    }

    fn refill(&self, event: &mut Event) -> Result<(), String> {
        self.call(self.refill, event)
    }

    fn go(&self, event: &mut Event) {
        self.notify(self.go, event);
    }
}

pub unsafe extern "C" fn snaprig_ckpt_register(plugin: *const CPlugin) -> c_int {
    if plugin.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the header has the program pass a structure whose first member is its size in bytes, all of which may be
    // read; no more than that is, and what an older one has not is zero: null pointers, which `Option` has as none.
    let plugin = unsafe {
        let size = (*plugin).size;
        if size < FIRST_SIZE {
            return -libc::EINVAL;
        }
        let mut copy: CPlugin = std::mem::zeroed();
        let bytes = size.min(size_of::<CPlugin>());
        std::ptr::copy_nonoverlapping(plugin.cast::<u8>(), (&raw mut copy).cast(), bytes);
        copy
    };
    if plugin.name.is_null() || plugin.save.is_none() && plugin.quiesce.is_none() {
        return -libc::EINVAL;
    }
    let options = Options {
        // SAFETY: it is not null, and the header has programs pass a string.
        name: unsafe { text(plugin.name) },
        order: plugin.order,
        patience: match plugin.patience {
            0 => PATIENCE,
            seconds => Duration::from_secs(seconds.into()),
        },
    };
    match register(options, Arc::new(plugin)) {
        Ok(handle) => handle.into_number() as c_int,
        Err(Error::Thread) => -libc::EAGAIN,
        Err(_) => -libc::EINVAL,
    }
}

pub extern "C" fn snaprig_ckpt_unregister(number: c_int) -> c_int {
    match u32::try_from(number).is_ok_and(unregister) {
        true => 0,
        false => -libc::ENOENT,
    }
}

pub extern "C" fn snaprig_ckpt_is_supervised() -> c_int {
    is_supervised().into()
}

/// # Safety
/// It is null, or the event that the function that calls was given, and not used elsewhere meanwhile.
unsafe fn given<'a>(event: *mut CEvent) -> Option<&'a mut CEvent<'a, 'a>> {
    // SAFETY: that is what this function asks of its caller. The lifetimes are cut to that of the call: the event lives
    // until the program's function returns.
    unsafe { event.cast::<CEvent<'a, 'a>>().as_mut() }
}

/// # Safety
/// There are so many bytes to read there.
unsafe fn bytes<'a>(start: *const c_void, count: usize) -> &'a [u8] {
    match start.is_null() || count == 0 {
        true => &[],
        // SAFETY: that is what this function asks of its caller, and it is not null.
        false => unsafe { std::slice::from_raw_parts(start.cast(), count) },
    }
}

pub unsafe extern "C" fn snaprig_ckpt_own_descriptor(event: *mut CEvent, fd: c_int) {
    // SAFETY: the header has programs pass the event that they were given.
    if let Some(it) = unsafe { given(event) } {
        it.event.own_descriptor(fd);
    }
}

pub unsafe extern "C" fn snaprig_ckpt_own_region(
    event: *mut CEvent,
    start: *mut c_void,
    bytes: usize,
) {
    // SAFETY: the header has programs pass the event that they were given.
    if let Some(it) = unsafe { given(event) } {
        it.event.own_region(start as usize, bytes);
    }
}

pub unsafe extern "C" fn snaprig_ckpt_directory(event: *mut CEvent) -> *const c_char {
    // SAFETY: the header has programs pass the event that they were given.
    let Some(it) = (unsafe { given(event) }) else {
        return std::ptr::null();
    };
    match it.event.directory().map(PathBuf::into_os_string) {
        Ok(path) => it.give(path.into_vec()),
        Err(error) => {
            // SAFETY: __errno_location(3) returns the address of an int of this thread, which lives as long as the
            // thread.
            unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or(libc::EINVAL) };
            std::ptr::null()
        }
    }
}

pub unsafe extern "C" fn snaprig_ckpt_variable(
    event: *mut CEvent,
    name: *const c_char,
) -> *const c_char {
    if name.is_null() {
        return std::ptr::null();
    }
    // SAFETY: the header has programs pass the event that they were given, and a string.
    let (it, name) = unsafe { (given(event), CStr::from_ptr(name)) };
    let value = it.and_then(|it| {
        let value = it.event.variable(OsStr::from_bytes(name.to_bytes()))?;
        Some(it.give(value.into_vec()))
    });
    value.unwrap_or(std::ptr::null())
}

pub unsafe extern "C" fn snaprig_ckpt_refuse(event: *mut CEvent, reason: *const c_char) -> c_int {
    // SAFETY: the header has programs pass the event that they were given.
    if let Some(it) = unsafe { given(event) }
        && !reason.is_null()
    {
        // SAFETY: the header has programs pass a string.
        it.reason = Some(unsafe { text(reason) });
    }
    -1
}

pub unsafe extern "C" fn snaprig_ckpt_participants(event: *mut CEvent) -> c_uint {
    // SAFETY: the header has programs pass the event that they were given.
    unsafe { given(event) }.map_or(0, |it| it.event.participants())
}

pub unsafe extern "C" fn snaprig_ckpt_publish(
    event: *mut CEvent,
    key: *const c_void,
    key_bytes: usize,
    value: *const c_void,
    value_bytes: usize,
) -> c_int {
    // SAFETY: the header has programs pass the event that they were given, and memory of these lengths.
    let (it, key, value) = unsafe {
        (
            given(event),
            bytes(key, key_bytes),
            bytes(value, value_bytes),
        )
    };
    it.map_or(-1, |it| {
        let result = it.event.publish(key, value);
        it.said(result)
    })
}

pub unsafe extern "C" fn snaprig_ckpt_lookup(
    event: *mut CEvent,
    key: *const c_void,
    key_bytes: usize,
    value_bytes: *mut usize,
) -> *const c_void {
    // SAFETY: the header has programs pass the event that they were given, and memory of this length.
    let (it, key) = unsafe { (given(event), bytes(key, key_bytes)) };
    let Some(it) = it else {
        return std::ptr::null();
    };
    match it.event.lookup(key) {
        Ok(value) => {
            // SAFETY: the header has programs pass null, or where a length is to be put.
            if let Some(to) = unsafe { value_bytes.as_mut() } {
                *to = value.len();
            }
            it.give(value).cast()
        }
        Err(reason) => {
            it.reason = Some(reason);
            std::ptr::null()
        }
    }
}

/// `snaprig_ckpt_entry`.
pub type Entry = unsafe extern "C" fn(
    key: *const c_void,
    key_bytes: usize,
    value: *const c_void,
    value_bytes: usize,
    data: *mut c_void,
) -> c_int;

pub unsafe extern "C" fn snaprig_ckpt_collect(
    event: *mut CEvent,
    prefix: *const c_void,
    prefix_bytes: usize,
    entry: Option<Entry>,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the header has programs pass the event that they were given, and memory of this length.
    let (it, prefix) = unsafe { (given(event), bytes(prefix, prefix_bytes)) };
    let (Some(it), Some(entry)) = (it, entry) else {
        return -1;
    };
    let entries = match it.event.collect(prefix) {
        Ok(entries) => entries,
        Err(reason) => return it.said(Err(reason)),
    };
    for (key, value) in &entries {
        let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the header has programs pass a function of this type; what it is given lives until it returns.
        let code = unsafe { entry(key_at, key.len(), value_at, value.len(), data) };
        if code != 0 {
            return code;
        }
    }
    0
}

pub unsafe extern "C" fn snaprig_ckpt_barrier(
    event: *mut CEvent,
    name: *const c_char,
    count: c_uint,
) -> c_int {
    if name.is_null() {
        return -1;
    }
    // SAFETY: the header has programs pass the event that they were given, and a string.
    let (it, name) = unsafe { (given(event), text(name)) };
    it.map_or(-1, |it| {
        let result = it.event.barrier(&name, count);
        it.said(result)
    })
}

/// # Safety
/// It is a string that ends with a zero and stays for the call.
unsafe fn text(pointer: *const c_char) -> String {
    // SAFETY: that is what this function asks of its caller.
    unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .into_owned()
}
