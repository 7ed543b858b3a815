//! The bytes of a stream that were read last: readers go back a little, to read a head again.

/// At least so many bytes are kept.
pub const KEPT: usize = 128 << 10;
/// Most that is read at once.
pub const READ_MAX: usize = crate::mounted::REQUEST_MAX as usize;

/// A window onto a stream.
#[derive(Debug)]
pub struct Window {
    bytes: Box<[u8]>,
    /// Where in the stream the first byte is, and how many there are.
    start: u64,
    len: usize,
}

impl Window {
    pub fn new() -> Self {
        Self {
            bytes: vec![0; KEPT + READ_MAX].into(),
            start: 0,
            len: 0,
        }
    }

    /// The first byte that is still here.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// How much of the stream has been here.
    pub fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    /// Room for more bytes of the stream, at most `want`, where nothing from `from` on is lost.
    pub fn room(&mut self, from: u64, want: usize) -> &mut [u8] {
        let asked = self.end().saturating_sub(from) as usize;
        let kept = self.len.min(asked.max(KEPT));
        if self.bytes.len() - self.len < want && kept < self.len {
            let gone = self.len - kept;
            self.bytes.copy_within(gone..self.len, 0);
            self.start += gone as u64;
            self.len = kept;
        }
        let room = &mut self.bytes[self.len..];
        let want = want.min(room.len());
        &mut room[..want]
    }

    /// So many bytes of the room are filled.
    pub fn filled(&mut self, count: usize) {
        self.len += count;
        debug_assert!(self.len <= self.bytes.len());
    }

    /// Bytes of the stream from there on, at most so many; none: they have gone by.
    pub fn get(&self, from: u64, count: usize) -> Option<&[u8]> {
        let from = usize::try_from(from.checked_sub(self.start)?).ok()?;
        let here = &self.bytes[..self.len];
        let here = here.get(from..).unwrap_or_default();
        Some(&here[..count.min(here.len())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(window: &mut Window, from: u64, want: usize) {
        let first = window.end();
        let room = window.room(from, want);
        for (byte, at) in room.iter_mut().zip(first..) {
            *byte = (at % 251) as u8;
        }
        let count = room.len();
        window.filled(count);
    }

    #[test]
    fn what_is_kept_is_there_and_what_is_asked_for_stays() {
        let mut window = Window::new();
        let mut at = 0;
        for size in [1, 4096, READ_MAX, 77, READ_MAX, KEPT, READ_MAX, READ_MAX] {
            while window.end() < at + size as u64 {
                let want = at + size as u64 - window.end();
                fill(&mut window, at, want as usize);
            }
            let read = window.get(at, size).unwrap();
            assert_eq!(read.len(), size);
            let is_right = |(byte, at): (&u8, u64)| *byte == (at % 251) as u8;
            assert!(read.iter().zip(at..).all(is_right));
            at += size as u64;
            let back = window.end() - KEPT.min(at as usize) as u64;
            assert!(window.get(back, 1).is_some_and(|read| read.len() == 1));
            assert_eq!(window.get(at, 1), Some(&[][..]));
        }
        assert_eq!(window.get(0, 1), None);
    }
}
