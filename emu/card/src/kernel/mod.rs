//! The card kernel.
pub mod device;
pub mod errno;
pub mod file;
pub mod wait;
