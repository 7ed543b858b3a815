//! What a process and its supervisor say to each other, a message a packet of a Unix seqpacket socket.
//!
//! ```text
//! process (a thread of this library)                      supervisor (socket DIR/plugins)
//!   | --- Hello, Registered..., Listed -----------------------> |  at its first plugin, after fork, if Restarted
//!   | --- Registered, Unregistered ---------------------------> |  at any time
//!   |                                                           |
//!   | <-- Do PreCheckpoint ------------------------------------ |  ascending; one plugin of the tree at a time
//!   | --- Owns..., Done --------------------------------------> |
//!   |            the tree stands still, and is saved            |
//!   | <-- Do Resume ------------------------------------------- |  descending
//!   | --- Done -----------------------------------------------> |
//!   |                                                           |
//!   |  in a restarted process the same descriptor leads to the new supervisor
//!   | <-- Restarted ------------------------------------------- |
//!   | --- Hello, Registered..., Listed -----------------------> |
//!   | <-- Do Restart ------------------------------------------ |  descending
//!   | --- Variable -------------------------------------------> |
//!   | <-- Value ----------------------------------------------- |
//!   | --- Done -----------------------------------------------> |
//! ```
//!
//! What must stay true: a process that has been asked says Done once, however late; between that and the next Do it
//! has nothing on its way but Registered and Unregistered.

use serde::{Deserialize, Serialize};

/// What names the supervisor's socket in the environment of its programs.
pub const SOCKET: &str = "SNAPRIG_CKPT_PLUGINS";
/// Of the messages; a process of another one is not listened to.
pub const VERSION: u32 = 1;
/// Longest message, in bytes.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Descriptors or regions in one message.
pub const OWNS_MAX: usize = 1024;
/// Longest name of a plugin, in bytes.
pub const NAME_MAX: usize = 64;
/// Longest reason, in bytes.
pub const REASON_MAX: usize = 1000;

/// A descriptor, and the file that it is of: by the time that it is looked at, the number may be another file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Its number.
    pub fd: i32,
    /// Of its file (fstat(2)).
    pub device: u64,
    /// Of its file.
    pub inode: u64,
}

/// A plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Its number in its process.
    pub id: u32,
    /// What it is called.
    pub name: String,
    /// Lower ones are asked earlier, and told later.
    pub order: i32,
    /// How long it may take, in milliseconds.
    pub patience_ms: u64,
    /// It is between pre-checkpoint and what follows.
    pub waits: bool,
}

/// From a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSupervisor {
    /// First.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// This end of the connection.
        descriptor: Descriptor,
    },
    /// It has a plugin.
    Registered(Registered),
    /// It has it no more.
    Unregistered {
        /// Its number.
        id: u32,
    },
    /// Those were all.
    Listed,
    /// What belongs to the plugin that is asked; there may be several of these.
    Owns {
        /// At most [`OWNS_MAX`].
        descriptors: Vec<Descriptor>,
        /// First addresses, and those behind the last ones; as many.
        regions: Vec<(u64, u64)>,
    },
    /// What is this variable in the supervisor's environment?
    Variable {
        /// Its name.
        name: Vec<u8>,
    },
    /// The plugin has done what it was asked for, or refuses.
    Done {
        /// Number of what it was asked for.
        serial: u64,
        /// Why it refuses.
        refusal: Option<String>,
    },
}

/// From a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToProcess {
    /// A plugin is asked, or told.
    Do {
        /// Number of this.
        serial: u64,
        /// Which plugin.
        id: u32,
        /// What happens.
        event: Event,
    },
    /// The process has been restarted.
    Restarted {
        /// Where its children find this supervisor.
        socket: Vec<u8>,
    },
    /// What a variable is; none: not set, or longer than a message.
    Value(Option<Vec<u8>>),
}

/// What happens to plugins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// There will be a checkpoint.
    PreCheckpoint {
        /// What is put there is part of it.
        directory: Vec<u8>,
    },
    /// There was one, or none; the process is what it was.
    Resume,
    /// The process has been restarted from it.
    Restart {
        /// Where what was put there is now.
        directory: Vec<u8>,
    },
}

/// A message's bytes.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("messages hold only types that postcard can write")
}

/// Reads a message; none: they are not the bytes of one.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}
