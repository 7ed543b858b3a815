//! What the machines are told, and what they say is to be done.

pub mod source;
pub mod target;
