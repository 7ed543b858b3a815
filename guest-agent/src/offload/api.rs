//! The sink's C API of buffers, events, pipelines and the process, by the names of the public MPSS
//! headers (`include/sink`, `include/common`). Outside of an offload process it does nothing, and
//! says so with COI_ERROR.

use std::{
    ffi::{CStr, c_char, c_void},
    io,
};

use snaprig_offload_wire::{
    coi::Notice,
    coi_result::code,
    snapify::{Purpose, Reply},
};

use super::{Runtime, announce, lock};
use crate::frames;

/// Which of the host's numbers in an event is a user event.
const USER_EVENT: u64 = 1;

/// COIEVENT: the host's number, and what it is one of.
#[repr(C)]
pub struct Event([u64; 2]);

/// Run functions wait until this has been called.
#[unsafe(no_mangle)]
pub extern "C" fn COIPipelineStartExecutingRunFunctions() -> u32 {
    let Some(runtime) = Runtime::get() else {
        return code::ERROR;
    };
    runtime.lock().started = true;
    runtime.changed.notify_all();
    code::SUCCESS
}

/// Returns when the host ends the process, and no run function runs any more.
#[unsafe(no_mangle)]
pub extern "C" fn COIProcessWaitForShutdown() -> u32 {
    let Some(runtime) = Runtime::get() else {
        return code::ERROR;
    };
    let mut state = runtime.lock();
    while !state.ending || state.running > 0 {
        state = runtime.wait(state);
    }
    code::SUCCESS
}

/// Returns when the host has written what the process wrote until now.
#[unsafe(no_mangle)]
pub extern "C" fn COIProcessProxyFlush() -> u32 {
    let Some(runtime) = Runtime::get() else {
        return code::ERROR;
    };
    // SAFETY: with a null pointer fflush(3) takes all of the process's streams, each of which it locks.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    loop {
        let before = runtime.lock().restored;
        match flush() {
            Ok(()) => return code::SUCCESS,
            // Its daemon was that of another card.
            Err(_) if runtime.lock().restored > before => {}
            Err(_) => return code::ERROR,
        }
    }
}

fn flush() -> io::Result<()> {
    let mut daemon = announce(&Purpose::Flush)?;
    match frames::read(&mut daemon)? {
        Reply::Flushed => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Takes a reference to a buffer: the host leaves it alone until that is given back.
///
/// # Safety
/// None is needed: the pointer is only compared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferAddRef(buffer: *mut c_void) -> u32 {
    let Some(runtime) = Runtime::get() else {
        return code::ERROR;
    };
    if buffer.is_null() {
        return code::INVALID_POINTER;
    }
    let mut buffers = lock(&runtime.buffers);
    let Some(id) = buffers.at(buffer as usize) else {
        return code::INVALID_HANDLE;
    };
    buffers.references.add(id);
    code::SUCCESS
}

/// Gives a reference to a buffer back.
///
/// # Safety
/// None is needed: the pointer is only compared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferReleaseRef(buffer: *mut c_void) -> u32 {
    let Some(runtime) = Runtime::get() else {
        return code::ERROR;
    };
    if buffer.is_null() {
        return code::INVALID_POINTER;
    }
    let mut buffers = lock(&runtime.buffers);
    let id = buffers.at(buffer as usize);
    let Some((id, count)) = id.and_then(|id| Some((id, buffers.references.release(id)?))) else {
        return code::INVALID_HANDLE;
    };
    // With the buffers locked, so that the host is told in order.
    if count > 0 {
        let told = buffers.references.told();
        runtime.notices.put(Notice::Released { id, count, told });
    }
    code::SUCCESS
}

/// Signals a user event of the host's.
#[unsafe(no_mangle)]
pub extern "C" fn COIEventSignalUserEvent(event: Event) -> u32 {
    let Some(runtime) = Runtime::get() else {
        return code::ERROR;
    };
    let Event([number, USER_EVENT]) = event else {
        return code::INVALID_HANDLE;
    };
    runtime.notices.put(Notice::UserEvent(number));
    code::SUCCESS
}

/// Loads a library of the host's, as the host's own program would have it loaded.
///
/// # Safety
/// Strings that are given end with a zero; `library` is null or valid to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessLoadSinkLibraryFromFile(
    file: *const c_char,
    name: *const c_char,
    search_path: *const c_char,
    flags: u32,
    library: *mut *mut c_void,
) -> u32 {
    let Some(runtime) = Runtime::get() else {
        return code::ERROR;
    };
    // SAFETY: the caller says that each is null or a string that ends with a zero.
    let [file, name, search_path] = [file, name, search_path].map(|string| unsafe { text(string) });
    let Some(file) = file.filter(|_| !library.is_null()) else {
        return code::INVALID_POINTER;
    };
    let mut state = runtime.lock();
    state.next_request += 1;
    let request = state.next_request;
    state.requests.insert(request, None);
    let flags = flags as i32;
    runtime.notices.put(Notice::LoadLibrary {
        request,
        file,
        name,
        search_path,
        flags,
    });
    let (result, number) = loop {
        if let Some(Some(answer)) = state.requests.get(&request).copied() {
            break answer;
        }
        state = runtime.wait(state);
    };
    state.requests.remove(&request);
    if [code::SUCCESS, code::ALREADY_EXISTS].contains(&result) {
        // SAFETY: it is not null, as was checked, so the caller says that it can be written to.
        unsafe { library.write(std::ptr::without_provenance_mut(number as usize)) };
    }
    result
}

/// # Safety
/// The string is null or ends with a zero.
unsafe fn text(string: *const c_char) -> Option<String> {
    // SAFETY: it is not null, as was checked, so the caller says that it ends with a zero.
    let string = (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) })?;
    Some(string.to_string_lossy().into_owned())
}
