//! TODO

pub mod named;
pub mod restore;
pub mod state;
