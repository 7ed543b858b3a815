//! What a plugin and its supervisor say to each other, a message a packet of a Unix seqpacket socket. Each plugin has a
//! connection of its own, and a thread that serves it.
//!
//! ```text
//! plugin (its thread)                                supervisor (socket DIR/plugins)
//!   | --- Hello ------------------------------------------> |  registered; after fork; when Restarted
//!   |                                                       |
//!   | <-- Do Quiesce -------------------------------------- |  everybody, then Drain, then Save: see `phase`
//!   | --- Ask Publish, Lookup, Collect, Barrier, Variable -> |  any number of these, one at a time
//!   | <-- Answer ------------------------------------------ |
//!   | --- Owns... (in Save), Done ------------------------> |  with what is published last
//!   |           the tree stands still, and is saved         |
//!   | <-- Do Resume --------------------------------------- |
//!   | --- Done -------------------------------------------> |  if it said in Save that it finishes later: it has, or refuses
//!   |                                                       |
//!   |  in a restarted process the same descriptor leads to the new supervisor
//!   | <-- Restarted --------------------------------------- |
//!   | --- Hello ------------------------------------------> |
//!   | <-- Do Rebuild, Exchange, Refill, Go ---------------- |  the program's own threads stand still until Go
//!   | --- Done -------------------------------------------> |
//! ```
//!
//! In a process that stays while others move, Rebuild, Exchange, Refill and Go follow Save without a restart, if it follows
//! moves; or Resume, which undoes what Rebuild and Exchange have done.
//!
//! What must stay true: a plugin that was told to do something says Done once, however late; between that and the next
//! Do it has nothing on its way.

use serde::{Deserialize, Serialize};

use crate::phase::{Part, Phase, Phases, Span};

/// What names the supervisor's socket in the environment of its programs.
pub const SOCKET: &str = "SNAPRIG_CKPT_PLUGINS";
/// What threads that run plugins are called: a restart has them run before the others of their process.
pub const THREAD: &str = "snaprig-ckpt";
/// Of the messages; a process of another one is not listened to.
pub const VERSION: u32 = 5;
/// Longest message, in bytes.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Descriptors or regions in one message.
pub const OWNS_MAX: usize = 1024;
/// Longest name of a plugin, in bytes.
pub const NAME_MAX: usize = 64;
/// Longest reason, in bytes.
pub const REASON_MAX: usize = 1000;
/// Longest key on the board, and name of a barrier, in bytes.
pub const KEY_MAX: usize = 128;
/// Longest value on the board, in bytes.
pub const VALUE_MAX: usize = 32 << 10;
/// Bytes of keys and values in one message; each entry counts [`ENTRY_BYTES`] more.
pub const BATCH_BYTES: usize = 48 << 10;
/// What an entry takes beside its key and value, at most.
pub const ENTRY_BYTES: usize = 16;

/// A key on the board, and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Entries in messages: the same bytes as without this, but read and written at once and not one by one.
pub mod entries {
    use serde::{Deserialize, Deserializer, Serializer};
    use serde_bytes::{ByteBuf, Bytes};

    use super::Entry;

    /// For serde's `with`.
    pub fn serialize<S: Serializer>(entries: &[Entry], serializer: S) -> Result<S::Ok, S::Error> {
        let entries = entries.iter();
        serializer.collect_seq(entries.map(|(key, value)| (Bytes::new(key), Bytes::new(value))))
    }

    /// For serde's `with`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Entry>, D::Error> {
        let entries = Vec::<(ByteBuf, ByteBuf)>::deserialize(deserializer)?;
        let entries = entries.into_iter();
        Ok(entries
            .map(|(key, value)| (key.into_vec(), value.into_vec()))
            .collect())
    }
}

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
    /// What it is called.
    pub name: String,
    /// Lower ones quiesce, drain and save earlier, and do all else later.
    pub order: i32,
    /// How long it may take for each phase, in milliseconds.
    pub patience_ms: u64,
    /// In which phases it has something to do.
    pub phases: Phases,
    /// Whether it takes part when others move.
    pub follows_moves: bool,
    /// The last phase before a checkpoint that it has passed, if it waits for what follows.
    pub passed: Option<Phase>,
}

/// From a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSupervisor {
    /// First.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// This end of the connection.
        descriptor: Descriptor,
        /// What it is.
        plugin: Registered,
    },
    /// What belongs to a plugin that saves; there may be several of these.
    Owns {
        /// At most [`OWNS_MAX`].
        descriptors: Vec<Descriptor>,
        /// First addresses, and those behind the last ones; as many.
        regions: Vec<(u64, u64)>,
    },
    /// A question; the plugin waits for its answer.
    Ask(Question),
    /// The plugin has done what it was told, or refuses.
    Done {
        /// Number of what it was told.
        serial: u64,
        /// Why it refuses.
        refusal: Option<String>,
        /// In Save, if it may ([`Span`]): what it saves is whole only when it has resumed.
        finishes_later: bool,
        /// If it does not: what it publishes as the last thing in this phase, as [`Question::Publish`] does.
        #[serde(with = "entries")]
        published: Vec<Entry>,
    },
}

/// What a plugin asks while it is in a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Puts entries on the board of the plugins of this name. They go with the round.
    Publish(#[serde(with = "entries")] Vec<Entry>),
    /// Waits until all of these keys are on the board.
    Lookup(Vec<Vec<u8>>),
    /// Entries that are on the board now, in the order of their keys.
    Collect {
        /// What their keys begin with.
        prefix: Vec<u8>,
        /// Only those behind this key.
        after: Vec<u8>,
    },
    /// Waits until so many plugins of this name wait at the barrier.
    Barrier {
        /// What it is called.
        name: Vec<u8>,
        /// How many.
        count: u32,
    },
    /// What is this variable in the supervisor's environment?
    Variable(Vec<u8>),
}

/// What comes of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// Values, in the order of the keys.
    Values(Vec<Vec<u8>>),
    /// Entries.
    Entries {
        /// As many as fit into a message.
        #[serde(with = "entries")]
        entries: Vec<Entry>,
        /// There are no more behind these.
        is_all: bool,
    },
    /// What a variable is; none: not set, or longer than a message.
    Variable(Option<Vec<u8>>),
}

/// From a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToPlugin {
    /// It is its turn in a phase.
    Do {
        /// Number of this.
        serial: u64,
        /// Which phase.
        phase: Phase,
        /// The checkpoint's directory: where files of the plugin's go in Save, and are in a restart.
        directory: Vec<u8>,
        /// How many plugins of this name go through the phases of this round, in all processes of all members.
        participants: u32,
        /// What the round is for this process.
        part: Part,
        /// When it may be at work on what it saves.
        span: Span,
    },
    /// The process has been restarted.
    Restarted {
        /// Where its children find this supervisor.
        socket: Vec<u8>,
    },
    /// To a question; or why there is none.
    Answer(Result<Answer, String>),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_bytes_of_their_vectors() {
        let all: Vec<Entry> = vec![(b"key".to_vec(), vec![1; 300]), (Vec::new(), Vec::new())];
        let answer = Answer::Entries {
            entries: all.clone(),
            is_all: true,
        };
        let bytes = encode(&answer);
        // Behind the number of the variant, and before the mark.
        assert_eq!(bytes[1..bytes.len() - 1], encode(&all));
        assert_eq!(decode(&bytes), Some(answer));
    }
}
