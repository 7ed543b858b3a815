//! Copies whose last byte is seen last. Programs poll memory for the last byte of an RDMA write: every HCA writes a message in
//! order, and none promises it (InfiniBand Architecture 1, o9-20).
//!
//! What must stay true: no store of the end crosses a boundary of 8 bytes. A store that crosses a line of the cache is two, whose
//! order nobody has promised (Intel SDM 3A, 9.1.1 and 9.2.4), and neither is that of the stores of one string instruction, which
//! the C library and the kernel copy with. The C library's memmove(3) stores the last of two or three bytes first.

use std::{
    ptr,
    sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering},
};

const WORD: usize = 8;

/// How many of the last bytes of a range are in the word that it ends in.
pub fn tail_bytes(end: usize, bytes: usize) -> usize {
    match end % WORD {
        0 => WORD,
        over => over,
    }
    .min(bytes)
}

/// Copies so that the last bytes are seen last.
///
/// # Safety
/// `from` has `bytes` readable bytes and `to` as many writable ones, which stay mapped during the
/// call; the ranges may overlap. Others may read and write both meanwhile, as with a device.
pub unsafe fn copy_in_order(from: *const u8, to: *mut u8, bytes: usize) {
    let tail = tail_bytes(to.addr() + bytes, bytes);
    let head = bytes - tail;
    // It is read before the head is written, which may be where it is.
    let mut word = [0; WORD];
    // SAFETY: the caller says that so many bytes are at both; head and tail are all of them, and a tail is at most a word.
    unsafe {
        ptr::copy_nonoverlapping(from.add(head), word.as_mut_ptr(), tail);
        if head > 0 {
            ptr::copy(from, to, head);
        }
        store_in_order(&word[..tail], to.add(head));
    }
}

/// Stores bytes that are all in one word, the first ones first, after all that was stored before.
///
/// # Safety
/// As many bytes are writable there, and all of them in one word.
unsafe fn store_in_order(bytes: &[u8], to: *mut u8) {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        // SAFETY: `at` is below the length, and so within what the caller says is writable.
        let to = unsafe { to.add(at) };
        let fits = |size: usize| rest.len() >= size && to.addr().is_multiple_of(size);
        // SAFETY: each is as long as what is left at least, and aligned; memory of others is used by atomics alone.
        at += unsafe {
            if fits(8) {
                let value = u64::from_ne_bytes(rest[..8].try_into().expect("eight"));
                AtomicU64::from_ptr(to.cast()).store(value, Ordering::Release);
                8
            } else if fits(4) {
                let value = u32::from_ne_bytes(rest[..4].try_into().expect("four"));
                AtomicU32::from_ptr(to.cast()).store(value, Ordering::Release);
                4
            } else if fits(2) {
                let value = u16::from_ne_bytes(rest[..2].try_into().expect("two"));
                AtomicU16::from_ptr(to.cast()).store(value, Ordering::Release);
                2
            } else {
                AtomicU8::from_ptr(to).store(rest[0], Ordering::Release);
                1
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU32},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[repr(align(64))]
    struct Lines([AtomicU8; 512]);

    impl Lines {
        fn new() -> Self {
            Self([const { AtomicU8::new(0) }; 512])
        }
    }

    #[test]
    fn all_bytes_come_at_every_offset_and_length() {
        let from: Vec<u8> = (0..200).map(|byte| byte as u8 | 1).collect();
        for at in 0..70 {
            for bytes in 0..130 {
                let lines = Lines::new();
                let to = lines.0[at..].as_ptr().cast_mut().cast::<u8>();
                // SAFETY: `from` has 200 bytes, and the lines 512 from their start on, of atomics.
                unsafe { copy_in_order(from.as_ptr(), to, bytes) };
                let there: Vec<u8> = lines
                    .0
                    .iter()
                    .map(|byte| byte.load(Ordering::Relaxed))
                    .collect();
                assert_eq!(there[at..at + bytes], from[..bytes]);
                assert!(
                    there[..at]
                        .iter()
                        .chain(&there[at + bytes..])
                        .all(|byte| *byte == 0)
                );
            }
        }
    }

    #[test]
    fn ranges_may_overlap() {
        for (from, to) in [(0, 3), (3, 0), (0, 8), (8, 0), (5, 6)] {
            for bytes in 0..40 {
                let mut memory: Vec<u8> = (1..=64).collect();
                let mut expected = memory.clone();
                expected.copy_within(from..from + bytes, to);
                let start = memory.as_mut_ptr();
                // SAFETY: both are within the vector's 64 bytes, which nobody else uses.
                unsafe { copy_in_order(start.add(from), start.add(to), bytes) };
                assert_eq!(memory, expected, "{bytes} bytes from {from} to {to}");
            }
        }
    }

    /// Whoever sees the last byte of a message sees all of it, wherever it ends.
    #[test]
    fn the_last_byte_is_seen_last() {
        let lines = Lines::new();
        let (taken, ends) = (AtomicU32::new(0), AtomicBool::new(false));
        let deadline = Instant::now() + Duration::from_secs(1);
        // Ends before, in and behind the middle of lines.
        let place = |number: u32| {
            let end = 192 + number as usize % 24 - 12;
            let bytes = 1 + number as usize % 90;
            end - bytes..end
        };
        let mark = |number: u32| (number % 251) as u8 + 1;
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    let range = place(number);
                    let message = vec![mark(number); range.len()];
                    let to = lines.0[range.start..].as_ptr().cast_mut().cast::<u8>();
                    // SAFETY: the range is within the lines, which are used by atomics alone.
                    unsafe { copy_in_order(message.as_ptr(), to, message.len()) };
                    while taken.load(Ordering::Acquire) == number {
                        if ends.load(Ordering::Relaxed) {
                            return;
                        }
                        std::hint::spin_loop();
                    }
                }
            });
            let mut number = 0;
            while number % 1024 != 0 || Instant::now() < deadline {
                let range = place(number);
                while lines.0[range.end - 1].load(Ordering::Acquire) != mark(number) {
                    std::hint::spin_loop();
                }
                let torn = range
                    .rev()
                    .find(|at| lines.0[*at].load(Ordering::Relaxed) != mark(number));
                if torn.is_some() {
                    ends.store(true, Ordering::Relaxed);
                }
                assert_eq!(torn, None, "message {number}");
                number += 1;
                taken.store(number, Ordering::Release);
            }
            ends.store(true, Ordering::Relaxed);
        });
    }
}
