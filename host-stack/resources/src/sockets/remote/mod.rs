//! TODO

pub mod exchange;
pub mod outside_peers;
pub mod restore_tcp;
pub mod restore_unix;
pub mod save_tcp;
pub mod save_unix;
