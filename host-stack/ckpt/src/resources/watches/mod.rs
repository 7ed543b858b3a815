//! TODO

pub mod save;
pub mod state;
