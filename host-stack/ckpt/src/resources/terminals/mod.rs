//! TODO

pub mod device;
pub mod restore;
pub mod save;
pub mod state;
