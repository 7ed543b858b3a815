//! TODO

pub mod restore;
pub mod save;
pub mod state;
