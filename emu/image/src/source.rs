//! Where images come from. A source lends the bytes that have come, in memory of its own, so that nothing is copied before
//! somebody needs a copy.
//!
//! ```
//! use std::io;
//! use snaprig_image::Source;
//!
//! /// What a peer has written into slots, one after the other.
//! struct Slots {
//!     slots: Vec<Vec<u8>>,
//!     at: usize,
//!     /// Bytes that lie in more than one slot.
//!     joined: Vec<u8>,
//! }
//!
//! impl Source for Slots {
//!     fn lend(&mut self, bytes: usize) -> io::Result<&[u8]> {
//!         self.joined.clear();
//!         while let Some(slot) = self.slots.first() {
//!             let now = (bytes - self.joined.len()).min(slot.len() - self.at);
//!             if self.joined.is_empty() && now == bytes {
//!                 self.at += now;
//!                 return Ok(&self.slots[0][self.at - now..self.at]);
//!             }
//!             self.joined.extend_from_slice(&slot[self.at..self.at + now]);
//!             self.at += now;
//!             if self.joined.len() == bytes {
//!                 break;
//!             }
//!             self.slots.remove(0);
//!             self.at = 0;
//!         }
//!         Ok(&self.joined)
//!     }
//! }
//!
//! let mut source = Slots { slots: vec![vec![1, 2, 3], vec![4, 5]], at: 0, joined: Vec::new() };
//! assert_eq!(source.lend(2)?, [1, 2]);
//! assert_eq!(source.lend(2)?, [3, 4]);
//! // The stream ends.
//! assert_eq!(source.lend(2)?, [5]);
//! # Ok::<(), io::Error>(())
//! ```
//!
//! [`Reading`](crate::transport::Reading) makes a source of anything that can be read. The others are in
//! [`transport`](crate::transport).

use std::io;

/// Most bytes that are lent at once to be left out.
const SKIPPED_AT_ONCE: u64 = 1 << 20;

/// Gives the bytes of an image, in order.
pub trait Source {
    /// The next bytes, as many as are asked for, or, if the stream ends before, those that are left. They are there
    /// until the next call. Nothing is taken from the stream that was not asked for.
    fn lend(&mut self, bytes: usize) -> io::Result<&[u8]>;

    /// Leaves out so many bytes. That the stream has ended may be known only with the next call of
    /// [`Source::lend`].
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let now = left.min(SKIPPED_AT_ONCE);
            if (self.lend(now as usize)?.len() as u64) < now {
                break;
            }
            left -= now;
        }
        Ok(())
    }
}
