//! Around every call: errors, and pointers of the program's.

use std::{
    cell::RefCell,
    ffi::{CString, c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// `mic_error_code`.
pub mod code {
    use std::ffi::c_int;

    pub const SUCCESS: c_int = 0;
    pub const INVAL: c_int = 1;
    pub const NOENT: c_int = 3;
    pub const NOT_IMPLEMENTED: c_int = 5;
    pub const DRIVER_NOT_LOADED: c_int = 7;
    pub const RANGE: c_int = 11;
    pub const INTERNAL: c_int = 12;
    pub const SCIF_ERROR: c_int = 14;
}

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    code: c_int,
    why: String,
}

impl Failure {
    pub fn new(code: c_int, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { code, why }
    }
}

/// What functions come to.
pub type Done<T = ()> = Result<T, Failure>;

thread_local! {
    /// Why this thread's last call failed.
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Makes a call.
pub fn call(body: impl FnOnce() -> Done) -> c_int {
    let bug = |_| {
        let why = "a bug in libmicmgmt: it panicked";
        Err(Failure::new(code::INTERNAL, why))
    };
    let Err(failure) = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(bug) else {
        return code::SUCCESS;
    };
    // No text of ours has a zero in it.
    let why = CString::new(failure.why).unwrap_or_default();
    ERROR.with(|error| error.replace(why));
    failure.code
}

/// Stays until the thread's next call.
pub extern "C" fn mic_get_error_string() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}

pub extern "C" fn mic_clear_error_string() -> c_int {
    ERROR.with(RefCell::take);
    code::SUCCESS
}

fn null() -> Failure {
    Failure::new(code::INVAL, "a pointer is NULL")
}

/// What the program has a pointer to.
///
/// # Safety
/// It is null, or was given to the program by [`hand_out`] and has not been taken back.
pub unsafe fn of<'a, T>(pointer: *const T) -> Done<&'a T> {
    // SAFETY: the caller says that it is null or points to a value that is still there.
    unsafe { pointer.as_ref() }.ok_or_else(null)
}

/// Writes an answer.
///
/// # Safety
/// The place is null, or has room for the value.
pub unsafe fn give<T>(place: *mut T, value: T) -> Done {
    if place.is_null() {
        return Err(null());
    }
    // SAFETY: it is not null, so that the caller says that there is room; nothing is read of what was there.
    unsafe { place.write(value) };
    Ok(())
}

/// Gives the program an object, which it gives back.
///
/// # Safety
/// The place is null, or has room for a pointer.
pub unsafe fn hand_out<T>(place: *mut *mut T, value: T) -> Done {
    if place.is_null() {
        return Err(null());
    }
    // SAFETY: the caller says what this asks for.
    unsafe { give(place, Box::into_raw(Box::new(value))) }
}

/// Takes an object back.
///
/// # Safety
/// As for [`of`].
pub unsafe fn take_back<T>(pointer: *mut T) -> Done {
    if pointer.is_null() {
        return Err(null());
    }
    // SAFETY: it is not null, so that the caller says that `hand_out` has made it of a box, and that nobody has it any more.
    drop(unsafe { Box::from_raw(pointer) });
    Ok(())
}

/// Writes text, as much as there is room for, with a zero at its end. Where there is too little room the size becomes that
/// of the whole.
///
/// # Safety
/// Both are null, or the size is that of the place.
pub unsafe fn give_text(place: *mut c_char, size: *mut usize, text: &str) -> Done {
    if size.is_null() {
        return Err(null());
    }
    // SAFETY: it is not null, so that the caller says that it is a size.
    let room = unsafe { size.read() };
    if !place.is_null() && room > 0 {
        let count = text.len().min(room - 1);
        // SAFETY: there is room for `room` bytes, as the caller says: for these, and a zero.
        unsafe {
            text.as_ptr().cast::<c_char>().copy_to(place, count);
            place.add(count).write(0);
        }
    }
    // SAFETY: as above.
    unsafe { size.write(room.max(text.len() + 1)) };
    Ok(())
}

/// Functions that may fail.
macro_rules! api {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            $crate::call::call(|| $body)
        }
    )*};
}
pub(crate) use api;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_with_a_zero_and_says_how_much_room_it_needs() {
        for (room, expected, needs) in [(0, "?", 7), (1, "", 7), (4, "onl", 7), (9, "online", 9)] {
            let mut place = [b'?' as c_char; 10];
            place[9] = 0;
            let mut size = room;
            // SAFETY: there is room for that many bytes.
            unsafe { give_text(place.as_mut_ptr(), &mut size, "online") }.unwrap();
            assert_eq!(size, needs);
            if room > 0 {
                // SAFETY: the text ends with a zero, or the place does.
                let text = unsafe { std::ffi::CStr::from_ptr(place.as_ptr()) };
                assert_eq!(text.to_str(), Ok(expected));
            }
        }
    }

    #[test]
    fn a_failure_has_a_text_until_it_is_cleared() {
        let failed = call(|| Err(Failure::new(code::RANGE, "too far")));
        assert_eq!(failed, code::RANGE);
        let text = || {
            // SAFETY: it is a text of this thread's, and no call comes in between.
            let text = unsafe { std::ffi::CStr::from_ptr(mic_get_error_string()) };
            text.to_str().unwrap().to_owned()
        };
        assert_eq!(text(), "too far");
        assert_eq!(mic_clear_error_string(), code::SUCCESS);
        assert_eq!(text(), "");
        assert_eq!(call(|| panic!("on purpose")), code::INTERNAL);
    }
}
