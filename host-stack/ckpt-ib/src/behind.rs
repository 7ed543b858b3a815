//! A shared receive queue of XRC: which messages came to it, by which queue pairs. Those are of any process that shares its
//! domain, and have no queue of their own; so it is the shared queue that counts.
//!
//! ```text
//!   sends for XRC --- 7 messages to 0x5 ----> receives for XRC ---> shared queue 0x5, of this process
//!                '--- 2 messages to 0x6 -------------'         '--> shared queue 0x6, of another one
//! ```

use crate::{Name, counts::Counts};

/// A shared receive queue that messages come to by queue pairs that receive for XRC.
#[derive(Clone, Debug)]
pub struct Behind {
    /// What the job calls it: its number at its port.
    pub name: Name,
    /// Messages that ever came, by the queue pair that they came by.
    pub taken: Counts<Name>,
}

impl Behind {
    /// One that was just made.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            taken: Counts::default(),
        }
    }

    /// How many messages came by a queue pair.
    pub fn taken_by(&self, by: Name) -> u64 {
        self.taken.of(by)
    }
}
