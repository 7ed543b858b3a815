//! Strings that programs pass, as the trace shows them: read with care, since a call may be refused for what it was
//! passed.

use std::{
    ffi::c_char,
    fmt::{self, Write as _},
};

/// Most bytes of a string that are shown, and most strings of an array.
const SHOWN_BYTES: usize = 200;
const SHOWN_STRINGS: usize = 16;

/// A string: null, or it ends with a null byte.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(pub *const c_char);

/// An array of strings, or null; the argument before it says how many there are.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Texts(pub *const Text);

/// An array of strings that ends with a null pointer, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Environment(pub *const Text);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; SHOWN_BYTES];
        let count = peek(self.0.addr(), &mut bytes);
        let end = bytes[..count].iter().position(|byte| *byte == 0);
        if self.0.is_null() {
            f.write_str("NULL")
        } else if count == 0 {
            write!(f, "{:p}", self.0)
        } else {
            let shown = String::from_utf8_lossy(&bytes[..end.unwrap_or(count)]);
            write!(f, "{shown:?}{}", if end.is_none() { "..." } else { "" })
        }
    }
}

impl fmt::Debug for Texts {
    /// The precision is how many there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = f.precision().unwrap_or(0);
        show(f, self.0, Some(count))
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.0, None)
    }
}

/// Shows an array of so many strings, or of those before a null pointer.
fn show(f: &mut fmt::Formatter<'_>, array: *const Text, count: Option<usize>) -> fmt::Result {
    if array.is_null() {
        return f.write_str("NULL");
    }
    f.write_char('[')?;
    for index in 0..count.unwrap_or(usize::MAX) {
        let mut bytes = [0; size_of::<usize>()];
        let place = array.wrapping_add(index).addr();
        let is_there = peek(place, &mut bytes) == bytes.len();
        let text = Text(std::ptr::without_provenance(usize::from_ne_bytes(bytes)));
        if count.is_none() && text.0.is_null() {
            break;
        }
        f.write_str(if index > 0 { ", " } else { "" })?;
        if !is_there || index == SHOWN_STRINGS {
            f.write_str("...")?;
            break;
        }
        write!(f, "{text:?}")?;
    }
    f.write_char(']')
}

/// Copies what is there at an address of this process, up to what is not there; how many bytes that was.
fn peek(address: usize, to: &mut [u8]) -> usize {
    // The kernel copies whole pages or none where a range is of several, so each is asked for by itself.
    const PAGE: usize = 4096;
    let mut done = 0;
    while done < to.len() {
        let from = address.wrapping_add(done);
        let count = (to.len() - done).min(PAGE - from % PAGE);
        let local = libc::iovec {
            iov_base: to[done..].as_mut_ptr().cast(),
            iov_len: count,
        };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(from),
            iov_len: count,
        };
        // SAFETY: the kernel writes at most `count` bytes to `to`, which has as many from `done` on; what it reads need
        // not be there.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        if usize::try_from(copied) != Ok(count) {
            break;
        }
        done += count;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_shown_and_what_is_none_is_its_address() {
        let [one, two] = [c"one", c"tw\"o"].map(|text| Text(text.as_ptr()));
        let array = [one, two, Text(std::ptr::null())];
        assert_eq!(format!("{one:?}"), "\"one\"");
        assert_eq!(format!("{:?}", array[2]), "NULL");
        let nowhere = Text(std::ptr::without_provenance(16));
        assert_eq!(format!("{nowhere:?}"), "0x10");
        let (all, ended) = (Texts(array.as_ptr()), Environment(array.as_ptr()));
        assert_eq!(format!("{:.1$?}", all, 2), "[\"one\", \"tw\\\"o\"]");
        assert_eq!(format!("{ended:?}"), "[\"one\", \"tw\\\"o\"]");
        let nothing = Texts(std::ptr::null());
        assert_eq!(format!("{:.1$?}", nothing, 2), "NULL");
        let nowhere = Texts(std::ptr::without_provenance(16));
        assert_eq!(format!("{:.1$?}", nowhere, 2), "[...]");
    }

    #[test]
    fn what_is_long_is_cut() {
        let long = [b'x'; 4 * SHOWN_BYTES];
        let shown = format!("{:?}", Text(long.as_ptr().cast()));
        assert_eq!(shown.len(), SHOWN_BYTES + "\"\"...".len());
        let many = [Text(c"".as_ptr()); 2 * SHOWN_STRINGS];
        let shown = format!("{:.1$?}", Texts(many.as_ptr()), many.len());
        assert!(shown.ends_with("\"\", ...]"), "{shown}");
    }
}
