//! TODO

pub mod pages;
pub mod restore;
pub mod save;
