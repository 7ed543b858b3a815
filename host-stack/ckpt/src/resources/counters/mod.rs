//! TODO

pub mod restore;
pub mod save;
