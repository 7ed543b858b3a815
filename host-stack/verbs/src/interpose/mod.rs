//! Functions of libc that this library stands before: files that exist with a kernel's InfiniBand.
//!
//! ```text
//! open(/dev/infiniband/rdma_cm) --> an eventfd of ours: readable while events are queued
//! fstat(ours)                   --> a character device
//! write(ours, command)          --> ucma
//! close(ours)                   --> ucma, and libc's
//! open, fopen(/sys/class/...)   --> a file of ours in memory
//! stat, access(any of these)    --> that it is there
//! ```
//!
//! The C names are given to these functions when the library is linked (build.rs): programs in Rust
//! that have this crate keep libc's. All else goes to the next library that has the name: libc, or another that stands before it.

pub(crate) mod files;
pub(crate) mod sysfs;

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem::transmute,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    ffi::{minus_one, set_errno},
    ucma,
};

/// The device of the connection manager.
const RDMA_CM: &CStr = c"/dev/infiniband/rdma_cm";
/// All paths that may be ours begin with one of these.
const BEGINNINGS: [&[u8]; 3] = [
    b"/sys/class/infiniband",
    b"/sys/class/misc/rdma_cm",
    b"/dev/infiniband",
];

/// A function of the next library.
struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            at: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn get(&self) -> *mut c_void {
        let mut at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            // SAFETY: the names end with a null byte and are static. dlsym(3) and dlopen(3) only
            // look them up; the C library is loaded, and never unloaded. libc comes before us in a
            // program that has us only by dlopen(3), which is why it is asked by name then.
            at = unsafe {
                match libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) {
                    at if !at.is_null() => at,
                    _ => {
                        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
                        let library = libc::dlopen(c"libc.so.6".as_ptr(), flags);
                        libc::dlsym(library, self.name.as_ptr())
                    }
                }
            };
            if at.is_null() {
                // A C library without one of these names cannot be gone on with.
                std::process::abort();
            }
            self.at.store(at, Ordering::Relaxed);
        }
        at
    }
}

/// Calls the next library's function of this name and type.
macro_rules! next {
    ($name:literal, fn($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        static NEXT: Next = Next::new($name);
        // SAFETY: `NEXT` has the address of the C library's function of that name, and never null;
        // its type is the one that its manual page gives, and the arguments are those that the
        // program passed to it. "C-unwind", for a thread may be cancelled in it.
        unsafe {
            transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(
                NEXT.get(),
            )($($argument),*)
        }
    }};
}

/// A path that may be ours.
///
/// # Safety
/// `path` is null or a string that ends with a null byte, which stays while the result is used.
unsafe fn candidate<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: `path` is not null when this is called, and the caller says that it ends with a null
    // byte. It is looked at byte by byte up to the first that differs, and the null byte does, so
    // that nothing is read beyond its end.
    let begins = |with: &[u8]| unsafe {
        with.iter()
            .enumerate()
            .all(|(at, byte)| *path.add(at) as u8 == *byte)
    };
    if path.is_null() || !BEGINNINGS.iter().any(|beginning| begins(beginning)) {
        return None;
    }
    // SAFETY: `path` is not null, and the caller says that it ends with a null byte and stays while
    // the result is used.
    Some(unsafe { CStr::from_ptr(path) })
}

/// A descriptor in place of a file, if it is a file of ours.
///
/// # Safety
/// `path` is null or a string that ends with a null byte, which stays during the call.
unsafe fn ours(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller says that `path` is null or a string, and the result is not used after
    // this returns.
    let path = unsafe { candidate(path) }?;
    if path == RDMA_CM {
        return Some(ucma::open(flags).unwrap_or_else(|errno| {
            set_errno(errno);
            -1
        }));
    }
    let sysfs::Kind::File(content) = sysfs::kind(path.to_str().ok()?)? else {
        return None;
    };
    // SAFETY: memfd_create(2) reads a static name that ends with a null byte; pwrite(2) reads
    // `content`, for its length, and writes to the descriptor that was just made.
    unsafe {
        let fd = libc::memfd_create(c"sysfs".as_ptr(), libc::MFD_CLOEXEC);
        if fd >= 0 {
            libc::pwrite(fd, content.as_ptr().cast(), content.len(), 0);
        }
        Some(fd)
    }
}

macro_rules! open {
    ($($function:ident $name:literal;)*) => {
        $(
            /// Takes the third argument of a variadic call where it is if there is one.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $function(
                path: *const c_char,
                flags: c_int,
                mode: libc::mode_t,
            ) -> c_int {
                // SAFETY: open(2) has the program pass null or a path that ends with a null byte
                // and stays during the call.
                if let Some(fd) = unsafe { ours(path, flags) } {
                    return fd;
                }
                next!($name, fn(*const c_char, c_int, libc::mode_t) -> c_int, path, flags, mode)
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
            /// As [`snaprig_open`]: our paths are absolute.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $function(
                directory: c_int,
                path: *const c_char,
                flags: c_int,
                mode: libc::mode_t,
            ) -> c_int {
                // SAFETY: openat(2) has the program pass null or a path that ends with a null byte
                // and stays during the call.
                if let Some(fd) = unsafe { ours(path, flags) } {
                    return fd;
                }
                next!(
                    $name,
                    fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int,
                    directory, path, flags, mode
                )
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
                // SAFETY: fopen(3) has the program pass a path and a mode, each of which ends with
                // a null byte and stays during the call; fdopen(3) takes over the descriptor, which
                // is new and which nobody else has.
                unsafe {
                    if let Some(fd) = ours(path, libc::O_CLOEXEC) {
                        if fd < 0 {
                            return ptr::null_mut();
                        }
                        return libc::fdopen(fd, mode);
                    }
                }
                next!($name, fn(*const c_char, *const c_char) -> *mut libc::FILE, path, mode)
            }
        )*
    };
}

fopen! {
    snaprig_fopen c"fopen";
    snaprig_fopen64 c"fopen64";
}

/// The type and size of what is at a path of ours.
///
/// # Safety
/// `path` is null or a string that ends with a null byte and stays during the call; `into` is a
/// place for a `struct stat`.
unsafe fn stat(path: *const c_char, into: *mut libc::stat) -> Option<c_int> {
    // SAFETY: the caller says that `path` is null or a string, and the result is not used after
    // this returns.
    let path = unsafe { candidate(path) }?;
    let kind = sysfs::kind(path.to_str().ok()?)?;
    // SAFETY: the structure is of integers alone, so that zeroes are a value of it.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    found.st_nlink = 1;
    match kind {
        sysfs::Kind::Directory => found.st_mode = libc::S_IFDIR | 0o755,
        sysfs::Kind::File(content) => {
            found.st_mode = libc::S_IFREG | 0o444;
            found.st_size = content.len() as i64;
        }
        sysfs::Kind::Device(major, minor) => {
            found.st_mode = libc::S_IFCHR | 0o666;
            found.st_rdev = libc::makedev(major, minor);
        }
    }
    // SAFETY: the caller says that `into` is a place for one, which is written and not read.
    unsafe { *into = found };
    Some(0)
}

macro_rules! stat {
    ($($function:ident $name:literal;)*) => {
        $(
            /// Nothing of ours is a symbolic link.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $function(
                path: *const c_char,
                into: *mut libc::stat,
            ) -> c_int {
                // SAFETY: stat(2) has the program pass null or a path that ends with a null byte
                // and stays during the call, and a place for the answer.
                if let Some(result) = unsafe { stat(path, into) } {
                    return result;
                }
                next!($name, fn(*const c_char, *mut libc::stat) -> c_int, path, into)
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
    // SAFETY: access(2) has the program pass null or a path that ends with a null byte and stays
    // during the call.
    let kind = unsafe { candidate(path) }.and_then(|path| sysfs::kind(path.to_str().ok()?));
    let allowed = match kind {
        None => return next!(c"access", fn(*const c_char, c_int) -> c_int, path, mode),
        Some(sysfs::Kind::Directory) => libc::R_OK | libc::X_OK,
        Some(sysfs::Kind::File(_)) => libc::R_OK,
        Some(sysfs::Kind::Device(..)) => libc::R_OK | libc::W_OK,
    };
    if mode & !allowed != 0 {
        return minus_one(libc::EACCES);
    }
    0
}

macro_rules! fstat {
    ($($function:ident $name:literal;)*) => {
        $(
            /// librdmacm wants a character device.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $function(fd: c_int, into: *mut libc::stat) -> c_int {
                let result = next!($name, fn(c_int, *mut libc::stat) -> c_int, fd, into);
                if result == 0 && files::is_ours(fd) {
                    let (major, minor) = sysfs::RDMA_CM_DEVICE;
                    // SAFETY: the C library's fstat(2) has just returned 0, so that `into` is a
                    // place for a `struct stat`, and filled; two members of it are overwritten.
                    unsafe {
                        (*into).st_mode = libc::S_IFCHR | 0o666;
                        (*into).st_rdev = libc::makedev(major, minor);
                    }
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
    if files::is_ours(fd) {
        // SAFETY: write(2) has the program pass `count` readable bytes. librdmacm alone writes to
        // such a descriptor, and the addresses in its commands are of its own answers and options,
        // as the kernel would rely on, too.
        return unsafe { ucma::write(fd, bytes, count) };
    }
    next!(
        c"write",
        fn(c_int, *const c_void, usize) -> isize,
        fd,
        bytes,
        count
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn snaprig_close(fd: c_int) -> c_int {
    if files::remove(fd) {
        ucma::closed(fd);
    }
    next!(c"close", fn(c_int) -> c_int, fd)
}

/// The real poll(2), in which a thread may be cancelled.
///
/// # Safety
/// `fds` has `count` entries, which this call alone uses until it returns.
pub(crate) unsafe fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    next!(
        c"poll",
        fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int,
        fds,
        count,
        timeout
    )
}
