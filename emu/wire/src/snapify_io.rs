//! Snapify-IO (paper section 6): a file on the host as a stream on the card.
//!
//! ```text
//!  user process          daemon on the card                     daemon on the host
//!    Local        ---->    connects, registers its buffer
//!                          Open               ----SCIF---->      creates PATH.partial | opens
//!                 <----                       <------------      Opened | Failed
//!  write: bytes   ---->    fills the buffer
//!                          Filled             ------------>      readfrom (RMA), writes
//!                                             <------------      Drained
//!         end     ---->    Finish             ------------>      checksums, fsync, rename
//!                 <----                       <------------      Finished | Failed
//!  read:                                      <-- writeto --     verifies, fills the buffer
//!                 <----    bytes              <------------      Filled
//!                          Drained            ------------>
//! ```
//!
//! What must stay true: the file takes its name only at `Finish`, when all of it is on the disk; a
//! connection that breaks before leaves nothing. Each chunk's checksum is verified before any of
//! it leaves the host.

use alloc::string::String;
use serde::{Deserialize, Serialize};

/// Bytes of the registered buffer (the paper's 4 MiB).
pub const BUFFER_BYTES: usize = 4 << 20;
/// The Unix socket on the card where the daemon serves user processes.
pub const SOCKET: &str = "/run/snapify_iod.sock";

/// Which way the bytes go, as the user process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// What a user process asks of the daemon on its card; the bytes follow as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Local {
    /// SCIF node that has the file.
    pub node: u16,
    /// Absolute path on that node.
    pub path: String,
    /// Reading or writing.
    pub mode: Mode,
}

/// What the user process is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalReply {
    /// The file is open.
    Opened {
        /// Its length, if it is read.
        len: u64,
    },
    /// All bytes are safe under the file's name.
    Finished {
        /// How many.
        bytes: u64,
    },
    /// It failed, and nothing of it remains.
    Failed {
        /// A Linux error number.
        errno: i32,
        /// What went wrong, and where.
        why: String,
    },
}

/// Between daemons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// From the card: open a file. The card's window for it has this offset.
    Open {
        /// Absolute path.
        path: String,
        /// Reading or writing.
        mode: Mode,
        /// Offset of the card's buffer in its registered address space.
        window: i64,
    },
    /// From the host: it is open.
    Opened {
        /// Its length, if it is read.
        len: u64,
    },
    /// The buffer holds this many bytes of the stream; 0: the stream is at its end (reading).
    Filled {
        /// Bytes.
        bytes: u32,
    },
    /// The buffer may be filled again.
    Drained,
    /// From the card: that was all.
    Finish {
        /// Bytes in all.
        bytes: u64,
    },
    /// From the host: it is safe.
    Finished {
        /// Bytes in all.
        bytes: u64,
    },
    /// It failed, and nothing of it remains.
    Failed {
        /// A Linux error number.
        errno: i32,
        /// What went wrong, and where.
        why: String,
    },
}
