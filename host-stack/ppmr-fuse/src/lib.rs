//! Pipelines of images as file systems (Ouyang et al., "High Performance Pipelined Process Migration with RDMA", section
//! IV): whatever writes an image front to back into the mount of a source has it come out of the mount of the target while it
//! is still being written. A front of `snaprig_ppmr::driver`, for checkpointers that know of files alone.
//!
//! ```text
//! checkpointer           mount of the source                       mount of the target          who restarts
//!    | -- create, write --> | a thread a file -- a stream --> | a thread a file <-- open, read -- |
//!    | -- rename ---------> | the name goes along             | waits for the name, and for bytes |
//!    | -- close ----------> | the end                         | verified -- end of file --------> |
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`source`] | the mount that is written to |
//! | [`target`] | the mount that is read from |
//! | [`layout`] | what the stream of a file is |
//! | `mounted` | what both mounts have in common |
//!
//! What must stay true:
//!
//! - Who reads a file gets all bytes that were written, in order, and its end only when they are verified; otherwise `EIO`,
//!   never a short file.
//! - Who is slow is slow alone: no request waits in the thread that takes requests, and every file has a thread of its own.
//! - Memory is bounded by the number of files, not by their sizes.
//! - Files go front to back: what does not is refused, not approximated.
//!
//! The process that has mounted may be killed: its mount stays then, and answers `ENOTCONN` until somebody unmounts it
//! (`fusermount3 -u DIR`, or `umount DIR`).

pub mod layout;
mod mounted;
pub mod source;
pub mod target;

use std::{
    ffi::OsString,
    sync::{Mutex, MutexGuard, PoisonError},
};

pub use self::{
    source::{SourceMount, mount_source},
    target::{Options, TargetMount, mount_target},
};

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its name, the last one.
    pub name: OsString,
    /// How much of it there was, in bytes.
    pub bytes: u64,
    /// Why it is not whole.
    pub failure: Option<String>,
}

impl Outcome {
    fn log(&self) {
        if let Some(failure) = &self.failure {
            tracing::error!("{}: {failure}", self.name.display());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
