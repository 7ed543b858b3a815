//! TODO

pub mod owned;
pub mod restore;
