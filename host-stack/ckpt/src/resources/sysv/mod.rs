//! TODO

pub mod objects;
pub mod restore;
pub mod save;
pub mod state;
pub mod undo;
