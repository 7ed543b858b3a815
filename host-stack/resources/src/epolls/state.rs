//! What an image says of epoll instances.

use serde::{Deserialize, Serialize};

/// One file that an epoll instance watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Descriptor that it was added as.
    pub fd: i32,
    /// Number in [`crate::state::Tree::files`].
    pub file: u32,
    /// EPOLL bits.
    pub events: u32,
    /// The program's.
    pub data: u64,
}
