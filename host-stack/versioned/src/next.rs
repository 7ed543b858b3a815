//! Functions of the C library, or of another library that stands before it, that this library stands before.

use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// A function of the next library that has the name.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    /// The function of this name.
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            at: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Its address, which is never null.
    pub fn get(&self) -> *mut c_void {
        let mut at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            at = self.look_up();
            self.at.store(at, Ordering::Relaxed);
        }
        at
    }

    fn look_up(&self) -> *mut c_void {
        // SAFETY: dlsym(3) and dlopen(3) read strings that end with a zero, which a `CStr` does. RTLD_NOLOAD has dlopen
        // run no code of a library, and returns null or a handle that dlsym takes; it takes null as RTLD_DEFAULT.
        let at = unsafe {
            match libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) {
                at if !at.is_null() => at,
                // The C library comes before this one in a program that has this one only by dlopen(3).
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
        at
    }
}

/// Calls the next library's function of a name and a type. Use it in an `unsafe` block: the type must be the one that
/// the C library gives the function, and the arguments what the function asks for.
///
/// The function may unwind ("C-unwind"), for a thread may be cancelled in it.
#[macro_export]
macro_rules! next {
    ($name:literal, fn($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        ::std::mem::transmute::<
            *mut ::std::ffi::c_void,
            unsafe extern "C-unwind" fn($($type),*) -> $result,
        >(NEXT.get())($($argument),*)
    }};
}
