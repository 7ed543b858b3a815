//! TODO

pub mod state;
