//! What of this process belongs to the libibverbs below, and is another one's after a restart: descriptors, and memory that is
//! mapped from them.
//!
//! Of the kernel's HCAs all of it has a name. A libibverbs without a kernel says itself what it has: it offers
//! `snaprig_verbs_owned` and `snaprig_verbs_restarted`.

use std::{
    ffi::{CStr, OsString, c_char, c_int, c_void},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use procfs::process::{MMapPath, Process};
use snaprig_ckpt_plugin::Event;

use crate::real::{RESTARTED, Real, real};

/// Where the kernel's devices are.
const DEVICES: &[u8] = b"/dev/infiniband/";
/// What the kernel calls files of completion channels and of asynchronous events.
const EVENTS: &[u8] = b"anon_inode:[infinibandevent]";

type OnDescriptor = extern "C" fn(fd: c_int, data: *mut c_void);
type OnRegion = extern "C" fn(start: *mut c_void, bytes: usize, data: *mut c_void);
type Owned = extern "C" fn(OnDescriptor, OnRegion, *mut c_void);
type Variable = extern "C" fn(name: *const c_char, data: *mut c_void) -> *const c_char;
type Restarted = extern "C" fn(Variable, *mut c_void);

extern "C" fn descriptor(fd: c_int, data: *mut c_void) {
    // SAFETY: `declare` passes an event, which it has for itself meanwhile.
    let event = unsafe { &mut *data.cast::<Event<'_>>() };
    event.own_descriptor(fd);
}

extern "C" fn region(start: *mut c_void, bytes: usize, data: *mut c_void) {
    // SAFETY: as above.
    let event = unsafe { &mut *data.cast::<Event<'_>>() };
    event.own_region(start.addr(), bytes);
}

/// Says what it is.
pub fn declare(event: &mut Event<'_>) -> Result<(), String> {
    if let Some(at) = real().and_then(|real| real.offered(c"snaprig_verbs_owned")) {
        // SAFETY: the function of this name has this type. It calls the two that it is given, with what it is given for them.
        unsafe {
            let owned = std::mem::transmute::<*mut c_void, Owned>(at);
            owned(descriptor, region, std::ptr::from_mut(event).cast());
        }
        // There is no kernel's HCA beside it, whose names would have to be looked for.
        return Ok(());
    }
    let read = |error: std::io::Error| format!("/proc/self: {error}");
    for entry in fs::read_dir("/proc/self/fd").map_err(read)? {
        let entry = entry.map_err(read)?;
        let fd = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let (Some(fd), Ok(file)) = (fd, fs::read_link(entry.path())) else {
            continue;
        };
        let name = file.as_os_str().as_bytes();
        if name.starts_with(DEVICES) || name == EVENTS {
            event.own_descriptor(fd);
        }
    }
    let maps = Process::myself().and_then(|process| process.maps());
    for map in maps.map_err(|error| error.to_string())? {
        let (start, end) = (map.address.0 as usize, map.address.1 as usize);
        if let MMapPath::Path(path) = &map.pathname
            && path.as_os_str().as_bytes().starts_with(DEVICES)
        {
            event.own_region(start, end - start);
        }
    }
    Ok(())
}

/// A libibverbs is told that all of this is gone, and what the new supervisor's environment says.
pub fn restarted(real: &Real, event: &Event<'_>) {
    struct Asked<'a, 'b> {
        event: &'a Event<'b>,
        answers: Vec<std::ffi::CString>,
    }
    extern "C" fn variable(name: *const c_char, data: *mut c_void) -> *const c_char {
        // SAFETY: `restarted` passes this, which it has for itself meanwhile; the name is a string.
        let (asked, name) = unsafe { (&mut *data.cast::<Asked<'_, '_>>(), CStr::from_ptr(name)) };
        let name = name.to_str().unwrap_or_default();
        let value = asked.event.variable(name).map(OsString::into_vec);
        match value.and_then(|value| std::ffi::CString::new(value).ok()) {
            Some(value) => {
                asked.answers.push(value);
                asked
                    .answers
                    .last()
                    .map_or(std::ptr::null(), |value| value.as_ptr())
            }
            None => std::ptr::null(),
        }
    }
    if let Some(at) = real.offered(RESTARTED) {
        let mut asked = Asked {
            event,
            answers: Vec::new(),
        };
        // SAFETY: the function of this name has this type. It calls the one that it is given, with what it is given for it, and
        // uses answers only before it returns.
        unsafe {
            let restarted = std::mem::transmute::<*mut c_void, Restarted>(at);
            restarted(variable, std::ptr::from_mut(&mut asked).cast());
        }
    }
}
