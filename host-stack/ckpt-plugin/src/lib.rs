//! Plugins of checkpoints: code within a program that takes down what cannot be saved from outside (a connection to a
//! device, memory mapped from one) before a checkpoint, and builds it up again after it. C programs do the same with
//! `libsnaprig_ckpt_plugin.so.0`.
//!
//! ```no_run
//! use std::sync::Arc;
//! use snaprig_ckpt_plugin::{Event, Options, Plugin};
//!
//! struct Driver;
//!
//! impl Plugin for Driver {
//!     fn save(&self, event: &mut Event) -> Result<(), String> {
//!         event.own_descriptor(7);
//!         Ok(())
//!     }
//!     fn rebuild(&self, event: &mut Event) -> Result<(), String> {
//!         // Open the device again, dup2(2) it to 7, and tell the others what it is called now.
//!         event.publish(b"device-of-3", b"hca0/41")
//!     }
//!     fn exchange(&self, event: &mut Event) -> Result<(), String> {
//!         let name = event.lookup(b"device-of-4")?;
//!         # drop(name);
//!         Ok(())
//!     }
//! }
//!
//! let registered = snaprig_ckpt_plugin::register(Options::new("driver"), Arc::new(Driver))?;
//! # Ok::<(), snaprig_ckpt_plugin::Error>(())
//! ```
//!
//! # Phases
//!
//! | phase | when | the program's threads |
//! |---|---|---|
//! | quiesce | a checkpoint begins: keep the program from using what the plugin stands for | run |
//! | drain | everybody has quiesced: what is on its way arrives, or is taken out | run |
//! | save | everybody has drained: take down, put into files, and say what the plugin owns | run |
//! | resume | the checkpoint is taken, or was given up; who finishes later does so first; the program is what it was | run |
//! | rebuild | in a restarted process: build up again, and publish how others reach it | stand still |
//! | exchange | everybody has rebuilt: connect with the others | stand still |
//! | refill | everybody has exchanged: put back what was taken out | stand still |
//! | go | everybody has refilled: the restarted program runs | run |
//!
//! "Everybody" is every plugin of every process of every member of the job. Within a phase, plugins with the same
//! order value ([`Options::order`]) work at the same time, so they may wait for each other; lower values go first in
//! quiesce, drain and save, and last in all other phases. Any phase but resume and go may refuse. Then a checkpoint is
//! given up, and everybody who has passed a phase resumes; a restart is given up, and all of its processes end before any
//! of their own code has run.
//!
//! Each plugin has a thread of this library's, in which its phases run. Before a checkpoint the threads of the program
//! run, too: a plugin keeps them away from what it has taken down by locks of its own, from quiesce to resume or go. In
//! a restarted process, until go, they stand still wherever they were: a plugin must not wait for a lock that
//! one of them may hold, such as that of a stdio stream. Until resume or go fork(2) waits, and so does unregistering.
//!
//! # The board
//!
//! Plugins of one name publish entries for each other ([`Event::publish`], or for the next phase, which saves a way there and back,
//! [`Event::publish_last`]), look them up ([`Event::lookup`], which waits,
//! and [`Event::collect`], which does not), and meet ([`Event::barrier`]), across all processes of a job. What is
//! published goes with the round. Who waits for what never comes is told so, within its own patience.
//!
//! In a round that is given up, because somebody refuses or a process ends that others may wait for, every question is
//! answered with an error at once. A plugin that waits for anything else in a phase asks now and then, and returns when it is.
//!
//! # What a plugin owns
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
mod event;
pub mod message;
pub mod phase;
mod process;
pub mod turns;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use self::message::NAME_MAX;
pub use self::{
    event::Event,
    phase::{Part, Phase, Phases, Span},
    process::without_signals,
};

/// How long a plugin may take if it does not say.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The longest that it may take.
pub const PATIENCE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What a plugin does in each phase: see the [table](self#phases). What is not implemented does nothing.
pub trait Plugin: Send + Sync {
    /// In which phases it has something to do; in others it is not asked, which saves a way there and back.
    fn phases(&self) -> Phases {
        Phases::ALL
    }

    /// Whether it passes [`Plugin::rebuild`], [`Plugin::exchange`] and [`Plugin::refill`] also where it stays while others
    /// move ([`Event::part`]). One that does not resumes when that is decided, and must need nothing of those that move.
    fn follows_moves(&self) -> bool {
        false
    }

    /// A checkpoint begins. An error refuses it, for this reason; then everything must be as before.
    fn quiesce(&self, event: &mut Event) -> Result<(), String> {
        let _ = event;
        Ok(())
    }

    /// It has quiesced, or drained, and others have not yet: what it does meanwhile for them, and how long until it is asked
    /// again; `None`: not before all have.
    fn meanwhile(&self, phase: Phase) -> Option<Duration> {
        let _ = phase;
        None
    }

    /// Everybody has quiesced. After an error, [`Plugin::resume`] is called if it has passed an earlier phase; what this
    /// one has done must be undone.
    fn drain(&self, event: &mut Event) -> Result<(), String> {
        let _ = event;
        Ok(())
    }

    /// Everybody has drained: what cannot be saved is taken down. An error is as in [`Plugin::drain`].
    fn save(&self, event: &mut Event) -> Result<(), String> {
        let _ = event;
        Ok(())
    }

    /// The program runs on, and what was begun in [`Plugin::save`] is to come to its end now: before [`Plugin::resume`], if
    /// [`Event::finish_later`] was true. After an error there is no checkpoint.
    fn finish(&self, event: &mut Event) -> Result<(), String> {
        let _ = event;
        Ok(())
    }

    /// The program runs on: what was taken down is built up again.
    fn resume(&self, event: &mut Event) {
        let _ = event;
    }

    /// The process has been restarted: what was taken down is built up again. An error gives the restart up, as it does
    /// in the phases that follow.
    fn rebuild(&self, event: &mut Event) -> Result<(), String> {
        let _ = event;
        Ok(())
    }

    /// Everybody has rebuilt.
    fn exchange(&self, event: &mut Event) -> Result<(), String> {
        let _ = event;
        Ok(())
    }

    /// Everybody has exchanged: what was taken out in [`Plugin::drain`] is put back.
    fn refill(&self, event: &mut Event) -> Result<(), String> {
        let _ = event;
        Ok(())
    }

    /// Everybody has refilled: nothing can go wrong any more, and the program runs from now on.
    fn go(&self, event: &mut Event) {
        let _ = event;
    }
}

/// How a plugin is called.
#[derive(Clone, Debug)]
pub struct Options {
    /// For people, and for files: letters, digits, `-`, `_` and `.`, at most 64.
    pub name: String,
    /// Lower ones quiesce, drain and save earlier, and do all else later; equal ones work at the same time.
    pub order: i32,
    /// How long it may take for a phase. If it takes longer, there is no checkpoint, or no restart.
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
    /// Whoever has launched or restarted the program takes its checkpoints.
    #[error(
        "the program has a supervisor already, which takes its checkpoints (`snaprig ckpt dump`)"
    )]
    Supervised,
    /// The supervisor.
    #[error("no supervisor listens at {}", .0.display())]
    Absent(PathBuf),
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

/// Somebody who has not launched the program is about to take a checkpoint of it, and listens there: plugins connect to
/// him, and are his until he has gone. How many they are.
pub fn adopted_by(supervisor: &Path) -> Result<u32, Error> {
    process::adopted_by(supervisor)
}

/// Whether somebody takes checkpoints of this process, or may.
pub fn is_supervised() -> bool {
    process::socket().is_some()
}
