//! What there is of the system, by who has it. What happens to it is in the modules beside this one, each of which has a part
//! of [`World`](crate::world::World)'s functions.
//!
//! What must stay true: nothing here knows the system that it is a part of.

pub mod app;
pub mod card;
pub mod event;
pub mod host;
pub mod io;
pub mod ledger;
pub mod script;
pub mod sink;
pub mod sockets;
pub mod task;

use snaprig_wire::frame;

/// A host process's end of an offload process, from 0. Several may be one host process's.
pub type HostId = usize;

/// A frame as a message; what cannot be read is the end of the connection.
pub fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    frame::decode(bytes).ok()
}

/// A frame as the message that it is.
pub fn show<T: serde::de::DeserializeOwned + std::fmt::Debug>(bytes: &[u8]) -> Option<String> {
    decode::<T>(bytes).map(|message| format!("{message:?}"))
}
