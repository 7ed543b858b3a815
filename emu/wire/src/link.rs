//! What a ring's records carry besides their message: a number and a checksum, so that a record
//! that is lost, doubled, out of turn or damaged is noticed, not believed.
//!
//! ```text
//! record:  number u32, checksum u32 (xxh3 of number and message), message
//! ```
//!
//! Nothing is ever sent again: a ring is memory, and memory that forgets is broken. The end that
//! notices gives the link up, and whoever talked over it is told that the peer is gone. A record
//! without a message says nothing but that its sender lives; that it is taken says the same of its
//! receiver.

use alloc::vec::Vec;
use core::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes before the message.
pub const HEADER_BYTES: usize = 8;

/// Numbers the records of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sealer {
    next: u32,
}

/// Checks the records of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Opener {
    next: u32,
}

/// A link that cannot be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// It is too short, or its checksum is wrong.
    Damaged {
        /// Which record it should have been.
        number: u32,
    },
    /// It is whole, and not the one that is due.
    OutOfTurn {
        /// The one that is due.
        due: u32,
        /// The one that came.
        came: u32,
    },
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { number } => write!(f, "record {number} is damaged"),
            Self::OutOfTurn { due, came } => write!(f, "record {came} came instead of {due}"),
        }
    }
}

impl core::error::Error for LinkError {}

impl Sealer {
    /// The next record, with this message.
    pub fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        let number = self.next;
        self.next = number.wrapping_add(1);
        let mut record = Vec::with_capacity(HEADER_BYTES + message.len());
        record.extend_from_slice(&number.to_le_bytes());
        record.extend_from_slice(&checksum(number, message).to_le_bytes());
        record.extend_from_slice(message);
        record
    }
}

impl Opener {
    /// The message of a record that came.
    pub fn open<'a>(&mut self, record: &'a [u8]) -> Result<&'a [u8], LinkError> {
        let damaged = LinkError::Damaged { number: self.next };
        let (came, rest) = record.split_first_chunk().ok_or(damaged)?;
        let (sum, message) = rest.split_first_chunk().ok_or(damaged)?;
        let came = u32::from_le_bytes(*came);
        if checksum(came, message) != u32::from_le_bytes(*sum) {
            return Err(damaged);
        }
        if came != self.next {
            let due = self.next;
            return Err(LinkError::OutOfTurn { due, came });
        }
        self.next = came.wrapping_add(1);
        Ok(message)
    }
}

fn checksum(number: u32, message: &[u8]) -> u32 {
    xxh3_64_with_seed(message, number.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whole_records_in_turn_are_opened(messages: Vec<Vec<u8>>) {
            let (mut sealer, mut opener) = (Sealer::default(), Opener::default());
            for message in messages {
                let record = sealer.seal(&message);
                prop_assert_eq!(opener.open(&record), Ok(&message[..]));
            }
        }

        #[test]
        fn a_flipped_bit_is_noticed(message: Vec<u8>, bit: prop::sample::Index) {
            let mut record = Sealer::default().seal(&message);
            let bit = bit.index(record.len() * 8);
            record[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Opener::default().open(&record).is_err());
        }

        #[test]
        fn any_bytes_are_refused_without_harm(record: Vec<u8>) {
            let _ = Opener::default().open(&record);
        }
    }

    #[test]
    fn lost_doubled_and_early_records_are_out_of_turn() {
        let mut sealer = Sealer::default();
        let [first, second] = [sealer.seal(b"first"), sealer.seal(b"second")];
        let mut opener = Opener::default();
        let early = LinkError::OutOfTurn { due: 0, came: 1 };
        assert_eq!(opener.open(&second), Err(early));
        assert_eq!(opener.open(&first), Ok(&b"first"[..]));
        let doubled = LinkError::OutOfTurn { due: 1, came: 0 };
        assert_eq!(opener.open(&first), Err(doubled));
        assert_eq!(
            opener.open(&first[..3]),
            Err(LinkError::Damaged { number: 1 })
        );
    }
}
