//! `libsnaprig_ckpt_plugin.so.0`: plugins of checkpoints for C programs, which are `snaprig_ckpt_plugin`'s. The contract
//! is the header, `include/snaprig_ckpt_plugin.h`.

#![allow(missing_docs)]
#![allow(clippy::missing_safety_doc)]

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void},
    mem::offset_of,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use snaprig_ckpt_plugin::{
    Checkpoint, Error, Options, PATIENCE, Plugin, Restart, is_supervised, register, unregister,
};
use snaprig_versioned::export;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// What a function is called for.
pub struct Event<'a> {
    what: What<'a>,
    /// Strings that were given out.
    texts: Vec<CString>,
    reason: Option<String>,
}

enum What<'a> {
    Checkpoint(&'a mut Checkpoint),
    Resume,
    Restart(&'a Restart),
}

/// `struct snaprig_ckpt_plugin`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CPlugin {
    size: usize,
    name: *const c_char,
    order: c_int,
    patience: c_uint,
    data: *mut c_void,
    pre_checkpoint: Option<unsafe extern "C" fn(*mut Event, *mut c_void) -> c_int>,
    resume: Option<unsafe extern "C" fn(*mut Event, *mut c_void)>,
    restart: Option<unsafe extern "C" fn(*mut Event, *mut c_void) -> c_int>,
}

const _: () = assert!(offset_of!(CPlugin, data) == 24 && size_of::<CPlugin>() == 56);

// SAFETY: its functions are called by one thread at a time, and its data is the program's affair.
unsafe impl Send for CPlugin {}
// SAFETY: as above.
unsafe impl Sync for CPlugin {}

impl<'a> Event<'a> {
    fn new(what: What<'a>) -> Self {
        Self {
            what,
            texts: Vec::new(),
            reason: None,
        }
    }

    fn give(&mut self, text: Vec<u8>) -> *const c_char {
        let Ok(text) = CString::new(text) else {
            return std::ptr::null();
        };
        let pointer = text.as_ptr();
        self.texts.push(text);
        pointer
    }

    fn result(self, code: c_int) -> Result<(), String> {
        let reason = || self.reason.unwrap_or_else(|| format!("it returned {code}"));
        match code {
            0 => Ok(()),
            _ => Err(reason()),
        }
    }
}

impl Plugin for CPlugin {
    fn pre_checkpoint(&self, checkpoint: &mut Checkpoint) -> Result<(), String> {
        let mut event = Event::new(What::Checkpoint(checkpoint));
        let Some(function) = self.pre_checkpoint else {
            return Ok(());
        };
        // SAFETY: the program's function, with what it is to be given.
        let code = unsafe { function(&raw mut event, self.data) };
        event.result(code)
    }

    fn resume(&self) {
        if let Some(function) = self.resume {
            let mut event = Event::new(What::Resume);
            // SAFETY: as above.
            unsafe { function(&raw mut event, self.data) };
        }
    }

    fn restart(&self, restart: &Restart) -> Result<(), String> {
        let Some(function) = self.restart else {
            self.resume();
            return Ok(());
        };
        let mut event = Event::new(What::Restart(restart));
        // SAFETY: as above.
        let code = unsafe { function(&raw mut event, self.data) };
        event.result(code)
    }
}

pub unsafe extern "C" fn snaprig_ckpt_register(plugin: *const CPlugin) -> c_int {
    // SAFETY: the caller says that it is one, of the size that it says; the size is first.
    let plugin = unsafe {
        if plugin.is_null() || (*plugin).size < size_of::<CPlugin>() {
            return -libc::EINVAL;
        }
        *plugin
    };
    if plugin.name.is_null() || plugin.pre_checkpoint.is_none() {
        return -libc::EINVAL;
    }
    let options = Options {
        // SAFETY: the caller says that it is a string.
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

pub unsafe extern "C" fn snaprig_ckpt_own_descriptor(event: *mut Event, fd: c_int) {
    // SAFETY: the caller says that it is the event that it was given.
    if let Some(What::Checkpoint(checkpoint)) = unsafe { event.as_mut() }.map(|it| &mut it.what) {
        checkpoint.own_descriptor(fd);
    }
}

pub unsafe extern "C" fn snaprig_ckpt_own_region(
    event: *mut Event,
    start: *mut c_void,
    bytes: usize,
) {
    // SAFETY: as above.
    if let Some(What::Checkpoint(checkpoint)) = unsafe { event.as_mut() }.map(|it| &mut it.what) {
        checkpoint.own_region(start as usize, bytes);
    }
}

pub unsafe extern "C" fn snaprig_ckpt_directory(event: *mut Event) -> *const c_char {
    // SAFETY: as above.
    let Some(event) = (unsafe { event.as_mut() }) else {
        return std::ptr::null();
    };
    let directory = match &event.what {
        What::Checkpoint(checkpoint) => checkpoint.directory(),
        What::Restart(restart) => Ok(restart.directory()),
        What::Resume => Err(std::io::Error::from_raw_os_error(libc::EINVAL)),
    };
    match directory.map(PathBuf::into_os_string) {
        Ok(path) => event.give(path.into_vec()),
        Err(error) => {
            // SAFETY: the thread's own.
            unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or(libc::EIO) };
            std::ptr::null()
        }
    }
}

pub unsafe extern "C" fn snaprig_ckpt_variable(
    event: *mut Event,
    name: *const c_char,
) -> *const c_char {
    // SAFETY: as above.
    let Some(event) = (unsafe { event.as_mut() }) else {
        return std::ptr::null();
    };
    let value = match &event.what {
        // SAFETY: the caller says that it is a string.
        What::Restart(restart) if !name.is_null() => restart.variable(OsStr::from_bytes(
            unsafe { CStr::from_ptr(name) }.to_bytes(),
        )),
        _ => None,
    };
    value.map_or(std::ptr::null(), |value| event.give(value.into_vec()))
}

pub unsafe extern "C" fn snaprig_ckpt_refuse(event: *mut Event, reason: *const c_char) -> c_int {
    // SAFETY: as above.
    if let Some(event) = unsafe { event.as_mut() }
        && !reason.is_null()
    {
        // SAFETY: the caller says that it is a string.
        event.reason = Some(unsafe { text(reason) });
    }
    -1
}

/// # Safety
/// It is a string.
unsafe fn text(pointer: *const c_char) -> String {
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .into_owned()
}
