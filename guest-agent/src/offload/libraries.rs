//! Libraries that the host has the process load, and the names in them: dlopen(3). A static program
//! loads none, and looks its own names up itself.
//!
//! What must stay true: an address is called only if it was found by name, and what it belongs to is
//! still loaded.

use std::collections::BTreeSet;

use super::walk;

/// Why something could not be done, for the host: a Linux error number, and what went wrong.
pub type Failure = (i32, String);

/// Libraries that were loaded, and functions that were found.
#[derive(Default)]
pub struct Libraries {
    /// Handles of dlopen(3), in order.
    loaded: Vec<usize>,
    found: BTreeSet<usize>,
}

impl Libraries {
    /// The address of a name in the program or in a library.
    pub fn find(&mut self, name: &str) -> Option<usize> {
        let address = match IS_STATIC {
            true => walk::find(name)?,
            false => dynamic::find(&self.loaded, name)?,
        };
        self.found.insert(address);
        Some(address)
    }

    /// Whether a name was found there.
    pub fn is_function(&self, address: usize) -> bool {
        self.found.contains(&address)
    }

    /// Loads a library; its number, which is the same if it is loaded already.
    pub fn load(&mut self, path: &str, flags: i32) -> Result<u64, Failure> {
        if IS_STATIC {
            let why = format!("{path}: a static program loads no libraries; link it dynamically");
            return Err((libc::ENOEXEC, why));
        }
        let handle = dynamic::open(path, flags)?;
        if self.loaded.contains(&handle) {
            // It is counted once.
            dynamic::close(handle)?;
        } else {
            self.loaded.push(handle);
        }
        Ok(handle as u64)
    }

    /// Lets go of a library.
    pub fn unload(&mut self, library: u64) -> Result<(), Failure> {
        let position = self
            .loaded
            .iter()
            .position(|handle| *handle as u64 == library);
        let position = position.ok_or_else(|| {
            let why = format!("{library:#x} is no library that is loaded");
            (libc::EINVAL, why)
        })?;
        dynamic::close(self.loaded.remove(position))?;
        self.found.retain(|address| dynamic::is_there(*address));
        Ok(())
    }
}

/// The program is linked with the archive, not with the shared library.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

#[cfg(not(target_feature = "crt-static"))]
mod dynamic {
    use std::{
        ffi::{CStr, CString},
        mem::MaybeUninit,
        ptr,
    };

    use super::Failure;

    pub fn find(loaded: &[usize], name: &str) -> Option<usize> {
        let name = CString::new(name).ok()?;
        // SAFETY: a handle for the program itself, whose count does not matter.
        let program = unsafe { libc::dlopen(ptr::null(), libc::RTLD_LAZY) };
        let handles = loaded.iter().map(|handle| *handle as *mut libc::c_void);
        [program].into_iter().chain(handles).find_map(|handle| {
            // SAFETY: the handle is one of dlopen(3) that is not closed; the name ends with a zero.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!address.is_null()).then_some(address as usize)
        })
    }

    pub fn open(path: &str, flags: i32) -> Result<usize, Failure> {
        let path = CString::new(path).map_err(|error| (libc::EINVAL, error.to_string()))?;
        // SAFETY: the path ends with a zero. What the library does when it is loaded is the affair of
        // whoever asked for it.
        let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
        if handle.is_null() {
            return Err(failure());
        }
        Ok(handle as usize)
    }

    pub fn close(handle: usize) -> Result<(), Failure> {
        // SAFETY: the handle is one of dlopen(3), and closed once for each time that it was opened.
        match unsafe { libc::dlclose(handle as *mut libc::c_void) } {
            0 => Ok(()),
            _ => Err(failure()),
        }
    }

    pub fn is_there(address: usize) -> bool {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: the call only writes to `info`; the address may be any.
        unsafe { libc::dladdr(address as *const libc::c_void, info.as_mut_ptr()) != 0 }
    }

    /// What the loader says went wrong, and the error number that stands for it.
    fn failure() -> Failure {
        // SAFETY: the loader's own string, until its next call in this thread.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return (libc::ELIBBAD, "the loader does not say why".into());
        }
        // SAFETY: it is not null, and ends with a zero.
        let why = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        (super::errno_of(&why), why.into_owned())
    }
}

#[cfg(target_feature = "crt-static")]
mod dynamic {
    use super::Failure;

    const NONE: &str = "a static program has no loader";

    pub fn find(_: &[usize], _: &str) -> Option<usize> {
        None
    }

    pub fn open(_: &str, _: i32) -> Result<usize, Failure> {
        Err((libc::ENOEXEC, NONE.into()))
    }

    pub fn close(_: usize) -> Result<(), Failure> {
        Err((libc::ENOEXEC, NONE.into()))
    }

    pub fn is_there(_: usize) -> bool {
        false
    }
}

/// dlopen(3) tells by words alone what is wrong.
pub fn errno_of(why: &str) -> i32 {
    if why.contains("undefined symbol") {
        libc::ENOSYS
    } else if why.contains("cannot open shared object file") {
        libc::ELIBACC
    } else {
        libc::ELIBBAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_program_and_of_its_libraries_are_found_and_nothing_else_is_called() {
        let mut libraries = Libraries::default();
        assert!(!libraries.is_function(libc::getpid as *const () as usize));
        let address = libraries.find("getpid").unwrap();
        assert!(libraries.is_function(address));
        assert_eq!(libraries.find("no_such_function"), None);
        assert_eq!(libraries.find("with\0zero"), None);
    }

    #[test]
    fn a_library_has_one_number_and_goes_once() {
        let mut libraries = Libraries::default();
        let first = libraries.load("libc.so.6", libc::RTLD_NOW).unwrap();
        assert_eq!(libraries.load("libc.so.6", libc::RTLD_NOW), Ok(first));
        assert_eq!(libraries.unload(first), Ok(()));
        assert_eq!(libraries.unload(first).unwrap_err().0, libc::EINVAL);
    }

    #[test]
    fn what_is_wrong_with_a_library_has_a_number() {
        let mut libraries = Libraries::default();
        let load = |libraries: &mut Libraries, path| libraries.load(path, libc::RTLD_NOW);
        let (errno, why) = load(&mut libraries, "/no/such.so").unwrap_err();
        assert!(
            errno == libc::ELIBACC && why.contains("/no/such.so"),
            "{why}"
        );
        let (errno, _) = load(&mut libraries, "/etc/passwd").unwrap_err();
        assert_eq!(errno, libc::ELIBBAD);
        assert_eq!(errno_of("a.so: undefined symbol: f"), libc::ENOSYS);
    }
}
