//! What programs of the offload stack need.

use std::{
    env,
    ffi::{CStr, CString},
    os::unix::ffi::OsStrExt,
};

use snaprig_rig::sdk::Sdk;

use super::{Check, Found, LIBRARIES};

pub(super) fn all() -> Vec<Check> {
    vec![
        Check::new(
            "libscif",
            || library("libscif.so.0", c"scif_open"),
            Some("no SCIF programs"),
            LIBRARIES,
        ),
        Check::new(
            "libcoi_host",
            || library("libcoi_host.so.0", c"COIEngineGetCount"),
            Some("no COI programs"),
            LIBRARIES,
        ),
        Check::new(
            "libcoi_device",
            || library("libcoi_device.so.0", c"COIBufferAddRef"),
            Some("no dynamic sinks"),
            LIBRARIES,
        ),
    ]
}

/// Loads a library that `snaprig run` gives to programs, and finds a function in it.
fn library(name: &str, function: &CStr) -> Found {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let sdk = Sdk::of(&program).map_err(|error| error.to_string())?;
    let path = sdk.lib().join(name);
    let text = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the library is ours; it does nothing when it is loaded into a program that is neither a rig's nor a
    // card's. It stays loaded, as its threads might.
    let found = unsafe {
        let library = libc::dlopen(text.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        if library.is_null() {
            return Err(format!("{}: it does not load", path.display()));
        }
        !libc::dlsym(library, function.as_ptr()).is_null()
    };
    match found {
        true => Ok(path.display().to_string()),
        false => Err(format!(
            "{}: no {}",
            path.display(),
            function.to_string_lossy()
        )),
    }
}
