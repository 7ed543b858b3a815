//! Holds what has come of a stream until all of the next part of the image is there. For drivers that are told how much
//! they were given, and that may be interrupted between two reads.

/// Bytes that have come and have not been used.
#[derive(Default)]
pub struct Inbox {
    buffer: Vec<u8>,
    /// What is there, and not used: `buffer[from..to]`.
    from: usize,
    to: usize,
}

impl Inbox {
    /// Bytes that are there.
    pub fn len(&self) -> usize {
        self.to - self.from
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Room for the next `bytes` bytes of the stream. Then [`Inbox::filled`].
    pub fn room(&mut self, bytes: usize) -> &mut [u8] {
        // What is used is more than what is not: moving the one over the other costs less than reading it did.
        if self.len() <= self.from {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.len());
        }
        let end = self.to + bytes;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        &mut self.buffer[self.to..end]
    }

    /// So many bytes have been put into the room.
    pub fn filled(&mut self, bytes: usize) {
        assert!(
            self.to + bytes <= self.buffer.len(),
            "no more than there was room for"
        );
        self.to += bytes;
    }

    /// The next `bytes` bytes, which count as used; none: they are not all there yet.
    pub fn take(&mut self, bytes: usize) -> Option<&[u8]> {
        if self.len() < bytes {
            return None;
        }
        self.from += bytes;
        Some(&self.buffer[self.from - bytes..self.from])
    }
}
