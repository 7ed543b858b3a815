//! A tree moves to another supervisor, on this machine or another: live, as an image that is sent while it runs. What both
//! sides say, and who may run it when, is decided by the machines of [`snaprig_coord::migration`], which are driven here.
//!
//! | module | what it is for |
//! |---|---|
//! | `departure` | a tree leaves: it is copied, stands still, and goes on here or ends |
//! | `asking` | drives the machine of the source: connection, messages, time |
//! | `question` | what has become of a tree that was on its way when its supervisor died |
//! | `receive` | a tree comes: from an image to processes |
//! | `endpoint` | drives the machine of the target: connections, messages, time |
//! | `sources` | those from whom trees have come, and who may still ask |
//! | `syncing` | an image on its way to the disk, while its tree is restored |
//! | `record` | what is written down in a directory of checkpoints |
//! | `files` | what plugins put into a checkpoint's directory, on its way |
//! | `target` | where a tree goes |
//! | `faults` | where a side can be killed on purpose |
//!
//! A message is its length (four bytes) and postcard; the image, and the files of plugins behind it, follow Begin on the
//! same connection. A peer on a Unix socket is of the same user, or root's; one on TCP knows the token. Neither messages
//! nor pages are encrypted: elsewhere than on a trusted network, a Unix socket can be forwarded by ssh(1).
//!
//! What must stay true: never two of a tree, and never none, whoever dies at whatever step.

mod asking;
mod departure;
mod endpoint;
pub mod faults;
mod files;
mod question;
mod receive;
mod record;
mod sources;
mod syncing;
mod target;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::{
    question::settle, receive::receive, record::settled_departure, sources::Sources, target::Target,
};
use crate::checkpoint::Copied;

/// Longest message, in bytes: a command line.
const MESSAGE_MAX: usize = 4 << 20;

/// A migration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Migrated {
    /// Bytes that were sent.
    pub bytes: u64,
    /// How memory was copied.
    pub copied: Copied,
    /// How long the tree ran nowhere.
    pub blackout: Duration,
    /// How long all of it took.
    pub took: Duration,
}
