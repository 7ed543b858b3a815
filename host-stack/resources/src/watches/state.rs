//! What an image says of inotify instances.

use serde::{Deserialize, Serialize};

/// One file that an inotify instance watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Absolute name.
    pub path: Vec<u8>,
    /// IN_ bits.
    pub mask: u32,
    /// The watch descriptor.
    pub wd: i32,
}
