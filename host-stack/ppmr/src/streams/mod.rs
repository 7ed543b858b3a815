//! The stream of one process, at each of its ends.

pub mod read;
pub mod written;
