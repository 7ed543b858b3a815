//! Plugins of checkpoints: code within a program that takes down what cannot be saved from outside (a connection to a
//! device, memory mapped from one) before a checkpoint, and builds it up again after it. The same for C programs is
//! `libsnaprig_ckpt_plugin.so.0`.
//!
//! ```no_run
//! use std::sync::Arc;
//! use snaprig_ckpt_plugin::{Checkpoint, Options, Plugin, Restart};
//!
//! struct Driver;
//!
//! impl Plugin for Driver {
//!     fn pre_checkpoint(&self, event: &mut Checkpoint) -> Result<(), String> {
//!         event.own_descriptor(7);
//!         Ok(())
//!     }
//!     fn resume(&self) {}
//!     fn restart(&self, event: &Restart) -> Result<(), String> {
//!         // Open the device again, and dup2(2) it to 7.
//!         Ok(())
//!     }
//! }
//!
//! let registered = snaprig_ckpt_plugin::register(Options::new("driver"), Arc::new(Driver))?;
//! # Ok::<(), snaprig_ckpt_plugin::Error>(())
//! ```
//!
//! | event | when | order |
//! |---|---|---|
//! | pre-checkpoint | before the program is stopped; may refuse | ascending |
//! | resume | the program runs on: there is a checkpoint, or there is none | descending |
//! | restart | in a restarted process, instead of resume; may fail, and with it the restart | descending |
//!
//! Plugins run one after another, those of all processes of a tree, in a thread of this library's (one a process that
//! has plugins: who takes too long keeps the others of its process waiting), while the threads of the program run, too: a plugin keeps them away from what it has taken down by
//! locks of its own, from pre-checkpoint to what follows. Until then fork(2) waits, and so does unregistering.
//!
//! A descriptor that a plugin owns is not saved. In a restarted process it is a socket whose other end is closed, as if
//! the device had gone: reading ends, writing is EPIPE; the plugin puts another file there by dup2(2), or closes it.
//! Memory that it owns is not saved either. In a restarted process it cannot be touched, and nothing else is there; the
//! plugin maps something over it (MAP_FIXED).
//!
//! A child of fork(2) has the plugins of its parent, and is asked for itself; a program that is exec'ed registers its
//! own. Without a supervisor nothing is ever asked, and there is no thread.
//!
//! What must stay true: what a plugin has taken down is built up again whatever happens, also if the supervisor dies.

mod connection;
pub mod message;
mod process;

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::RawFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use self::{
    connection::describe,
    message::{Descriptor, NAME_MAX},
};

/// How long a plugin may take if it does not say.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The longest that it may take.
pub const PATIENCE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What a plugin does.
pub trait Plugin: Send + Sync {
    /// There will be a checkpoint: takes down what cannot be saved. An error refuses the checkpoint, for this reason;
    /// then everything must be as before.
    fn pre_checkpoint(&self, event: &mut Checkpoint) -> Result<(), String>;

    /// The program runs on: what was taken down is built up again.
    fn resume(&self);

    /// The program has been restarted: what was taken down is built up again. An error ends it, for this reason.
    fn restart(&self, event: &Restart) -> Result<(), String>;
}

/// How a plugin is called.
#[derive(Clone, Debug)]
pub struct Options {
    /// For people, and for files: letters, digits, `-`, `_` and `.`, at most 64.
    pub name: String,
    /// Lower ones are asked earlier before a checkpoint, and told later after it.
    pub order: i32,
    /// How long it may take. If it takes longer, there is no checkpoint, or no restart.
    pub patience: Duration,
}

impl Options {
    /// In the middle, with the usual patience.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            order: 0,
            patience: PATIENCE,
        }
    }
}

/// Why a plugin cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Its name.
    #[error("{0:?} is no name of a plugin: 1 to 64 letters, digits, -, _ and .")]
    Name(String),
    /// Its patience.
    #[error("a plugin may take more than nothing, and a day at most")]
    Patience,
    /// The thread.
    #[error("the thread of the plugins cannot be started")]
    Thread,
}

/// A plugin that is registered; dropped, it is not any more. That waits while a checkpoint is taken.
#[derive(Debug)]
pub struct Handle(u32);

impl Handle {
    /// It stays registered to the end of the program.
    pub fn forget(self) {
        std::mem::forget(self);
    }

    /// Its number, for [`unregister`].
    pub fn into_number(self) -> u32 {
        let number = self.0;
        self.forget();
        number
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        unregister(self.0);
    }
}

/// Registers a plugin.
pub fn register(options: Options, plugin: Arc<dyn Plugin>) -> Result<Handle, Error> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let Options { name, patience, .. } = &options;
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_plain) {
        return Err(Error::Name(options.name));
    }
    if patience.is_zero() || *patience > PATIENCE_MAX {
        return Err(Error::Patience);
    }
    process::register(options, plugin).map(Handle)
}

/// What dropping a [`Handle`] does; whether there is a plugin of this number.
pub fn unregister(number: u32) -> bool {
    process::unregister(number)
}

/// Whether somebody takes checkpoints of this process, or may.
pub fn is_supervised() -> bool {
    process::socket().is_some()
}

/// A checkpoint that is about to be taken.
#[derive(Debug)]
pub struct Checkpoint {
    directory: Directory,
    descriptors: Vec<Descriptor>,
    regions: Vec<(u64, u64)>,
}

impl Checkpoint {
    /// A directory that is part of the checkpoint: there is either both or none. What is put there must be on the disk
    /// (fsync(2)) before this plugin returns; its name is another one at the restart.
    pub fn directory(&self) -> io::Result<PathBuf> {
        let path = self.directory.path();
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(path),
        }
    }

    /// A descriptor that belongs to this plugin. One that is not open is passed over.
    pub fn own_descriptor(&mut self, fd: RawFd) {
        self.descriptors.extend(describe(fd));
    }

    /// Memory that belongs to this plugin: all pages of it.
    pub fn own_region(&mut self, start: usize, bytes: usize) {
        const PAGE: u64 = 4096;
        let end = (start as u64).saturating_add(bytes as u64);
        let end = end.checked_next_multiple_of(PAGE).unwrap_or(end);
        self.regions.push((start as u64 / PAGE * PAGE, end));
    }
}

/// A restart.
#[derive(Debug)]
pub struct Restart {
    directory: Directory,
}

impl Restart {
    /// What this plugin has put into [`Checkpoint::directory`] is there, if it has.
    pub fn directory(&self) -> PathBuf {
        self.directory.path()
    }

    /// A variable of the environment that the program was restarted in; its own is that of its beginning.
    pub fn variable(&self, name: impl AsRef<OsStr>) -> Option<OsString> {
        process::variable(name.as_ref().as_bytes()).map(OsString::from_vec)
    }
}

/// A plugin's directory in a checkpoint: named after it and its process.
#[derive(Debug)]
struct Directory {
    checkpoint: PathBuf,
    name: String,
}

impl Directory {
    fn path(&self) -> PathBuf {
        let own = format!("{}-{}", self.name, std::process::id());
        self.checkpoint.join(own)
    }
}
