//! Functions of libc that this library stands before, so that programs find the files that a kernel with InfiniBand has
//! (`snaprig_verbs_files`).
//!
//! ```text
//! open(/dev/infiniband/rdma_cm) --> the connection manager's device
//! fstat(it)                     --> a character device
//! write(it, command)            --> the connection manager
//! close(it)                     --> the connection manager, and libc's close
//! open, fopen(/sys/class/...)   --> a file in memory
//! stat, access(any of these)    --> that it is there
//! ```
//!
//! The C names are given to these functions when the library is linked (build.rs): programs in Rust that have this crate
//! keep libc's. All else goes to the next library that has the name: libc, or another that stands before it.
//!
//! Every function here has the contract of the manual page of its name: where a page asks for a path, the program passes
//! a string that ends with a zero; where it asks for a place to write to, one of that type. A null pointer for a path is
//! answered as by libc.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
};

use rustix::{
    fs::MemfdFlags,
    io::{Errno, pwrite},
};
use snaprig_verbs_files::{
    device::{self, DESCRIPTORS},
    paths::{self, Kind, RDMA_CM, RDMA_CM_DEVICE},
};
use snaprig_versioned::next;

use crate::ffi::{joined, set_errno};

/// Leaves an errno value for the caller; what a function that fails returns.
fn fail(errno: Errno) -> c_int {
    set_errno(errno.raw_os_error());
    -1
}

/// A path at which there may be something of ours.
///
/// # Safety
/// It is null, or a string that ends with a zero and that nobody changes while what is returned is in use.
unsafe fn candidate<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: a byte is asked for after the one before it has been found to be no zero, so it is in the string.
    let byte = |at: usize| unsafe { *path.add(at) as u8 };
    if path.is_null() || !paths::is_candidate(byte) {
        return None;
    }
    // SAFETY: it is not null, and then this function asks the same of its caller.
    Some(unsafe { CStr::from_ptr(path) })
}

/// What is at a path, if it is something of ours.
///
/// # Safety
/// As for [`candidate`].
unsafe fn kind(path: *const c_char) -> Option<Kind> {
    // SAFETY: this function asks the same of its caller, and keeps nothing of the path.
    let path = unsafe { candidate(path) }?;
    paths::kind(path.to_str().ok()?, joined)
}

/// A descriptor for a file of ours, or -1 and errno.
///
/// # Safety
/// As for [`candidate`].
unsafe fn open_ours(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: this function asks the same of its caller, and keeps nothing of the path.
    let path = unsafe { candidate(path) }?;
    if path == RDMA_CM {
        return Some(device::open(flags, joined).unwrap_or_else(fail));
    }
    let Kind::File(content) = paths::kind(path.to_str().ok()?, joined)? else {
        return None;
    };
    Some(file_with(content.as_bytes()).unwrap_or_else(fail))
}

fn file_with(content: &[u8]) -> Result<c_int, Errno> {
    use std::os::fd::IntoRawFd;
    let file = rustix::fs::memfd_create(c"sysfs", MemfdFlags::CLOEXEC)?;
    // Its position stays at the beginning.
    pwrite(&file, content, 0)?;
    Ok(file.into_raw_fd())
}

macro_rules! open {
    ($($function:ident $name:literal;)*) => {
        $(
            /// open(2) with and without a mode: on x86-64 a variadic third argument is where a declared one is, and
            /// libc does not look at it if the flags say that there is none.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $function(
                path: *const c_char,
                flags: c_int,
                mode: libc::mode_t,
            ) -> c_int {
                // SAFETY: open(2) asks the program for such a path.
                if let Some(fd) = unsafe { open_ours(path, flags) } {
                    return fd;
                }
                // SAFETY: libc's function of this name has this type, and gets what the program passed.
                unsafe {
                    next!($name, fn(*const c_char, c_int, libc::mode_t) -> c_int, path, flags, mode)
                }
            }
        )*
    };
}

open! {
    snaprig_open c"open";
    snaprig_open64 c"open64";
}

macro_rules! openat {
    ($($function:ident $name:literal;)*) => {
        $(
            /// As [`snaprig_open`]: our paths are absolute, so the directory does not matter to them.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $function(
                directory: c_int,
                path: *const c_char,
                flags: c_int,
                mode: libc::mode_t,
            ) -> c_int {
                // SAFETY: openat(2) asks the program for such a path.
                if let Some(fd) = unsafe { open_ours(path, flags) } {
                    return fd;
                }
                // SAFETY: libc's function of this name has this type, and gets what the program passed.
                unsafe {
                    next!(
                        $name,
                        fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int,
                        directory, path, flags, mode
                    )
                }
            }
        )*
    };
}

openat! {
    snaprig_openat c"openat";
    snaprig_openat64 c"openat64";
}

macro_rules! fopen {
    ($($function:ident $name:literal;)*) => {
        $(
            /// fopen(3) does not come by [`snaprig_open`].
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $function(
                path: *const c_char,
                mode: *const c_char,
            ) -> *mut libc::FILE {
                // SAFETY: fopen(3) asks the program for such a path.
                match unsafe { open_ours(path, libc::O_CLOEXEC) } {
                    Some(-1) => ptr::null_mut(),
                    // SAFETY: the descriptor was opened just now, and nobody else has it; fopen(3) asks the program for
                    // a mode that is a string.
                    Some(fd) => unsafe { libc::fdopen(fd, mode) },
                    // SAFETY: libc's function of this name has this type, and gets what the program passed.
                    None => unsafe {
                        next!($name, fn(*const c_char, *const c_char) -> *mut libc::FILE, path, mode)
                    },
                }
            }
        )*
    };
}

fopen! {
    snaprig_fopen c"fopen";
    snaprig_fopen64 c"fopen64";
}

/// The type and size of something of ours.
fn attributes(kind: &Kind) -> libc::stat {
    // SAFETY: the structure has numbers alone, for which zero is a value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    found.st_nlink = 1;
    match kind {
        Kind::Directory => found.st_mode = libc::S_IFDIR | 0o755,
        Kind::File(content) => {
            found.st_mode = libc::S_IFREG | 0o444;
            found.st_size = content.len() as i64;
        }
        Kind::Device(major, minor) => {
            found.st_mode = libc::S_IFCHR | 0o666;
            found.st_rdev = libc::makedev(*major, *minor);
        }
    }
    found
}

macro_rules! stat {
    ($($function:ident $name:literal;)*) => {
        $(
            /// stat(2) and lstat(2) alike: nothing of ours is a symbolic link.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $function(
                path: *const c_char,
                into: *mut libc::stat,
            ) -> c_int {
                // SAFETY: stat(2) asks the program for such a path.
                if let Some(kind) = unsafe { kind(path) } {
                    // SAFETY: stat(2) asks the program for a place for the structure.
                    unsafe { into.write(attributes(&kind)) };
                    return 0;
                }
                // SAFETY: libc's function of this name has this type, and gets what the program passed.
                unsafe { next!($name, fn(*const c_char, *mut libc::stat) -> c_int, path, into) }
            }
        )*
    };
}

stat! {
    snaprig_stat c"stat";
    snaprig_stat64 c"stat64";
    snaprig_lstat c"lstat";
    snaprig_lstat64 c"lstat64";
}

/// Anybody may read all of it, and write to devices.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn snaprig_access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: access(2) asks the program for such a path.
    let allowed = match unsafe { kind(path) } {
        Some(Kind::Directory) => libc::R_OK | libc::X_OK,
        Some(Kind::File(_)) => libc::R_OK,
        Some(Kind::Device(..)) => libc::R_OK | libc::W_OK,
        None => {
            // SAFETY: libc's function of this name has this type, and gets what the program passed.
            return unsafe { next!(c"access", fn(*const c_char, c_int) -> c_int, path, mode) };
        }
    };
    if mode & !allowed != 0 {
        return fail(Errno::ACCESS);
    }
    0
}

macro_rules! fstat {
    ($($function:ident $name:literal;)*) => {
        $(
            /// librdmacm wants a character device.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $function(fd: c_int, into: *mut libc::stat) -> c_int {
                // SAFETY: libc's function of this name has this type, and gets what the program passed.
                let result = unsafe {
                    next!($name, fn(c_int, *mut libc::stat) -> c_int, fd, into)
                };
                if result == 0 && DESCRIPTORS.has(fd) {
                    let (major, minor) = RDMA_CM_DEVICE;
                    // SAFETY: the call that succeeded has filled the structure at this place.
                    let found = unsafe { &mut *into };
                    found.st_mode = libc::S_IFCHR | 0o666;
                    found.st_rdev = libc::makedev(major, minor);
                }
                result
            }
        )*
    };
}

fstat! {
    snaprig_fstat c"fstat";
    snaprig_fstat64 c"fstat64";
}

/// Commands for the connection manager.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn snaprig_write(
    fd: c_int,
    bytes: *const c_void,
    count: usize,
) -> isize {
    if DESCRIPTORS.has(fd) {
        // SAFETY: write(2) asks the program for so many bytes; whoever writes commands to this device names places for
        // their answers and values in them, as to the kernel's device.
        return match unsafe { device::write(fd, bytes, count) } {
            Ok(written) => written as isize,
            Err(errno) => fail(errno) as isize,
        };
    }
    // SAFETY: libc's function of this name has this type, and gets what the program passed.
    unsafe {
        next!(
            c"write",
            fn(c_int, *const c_void, usize) -> isize,
            fd,
            bytes,
            count
        )
    }
}

/// The connection manager's device is closed before its number can be another file's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn snaprig_close(fd: c_int) -> c_int {
    if DESCRIPTORS.remove(fd) {
        device::closed(fd);
    }
    // SAFETY: libc's function of this name has this type, and gets what the program passed.
    unsafe { next!(c"close", fn(c_int) -> c_int, fd) }
}
