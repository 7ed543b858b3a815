//! The systems that plans are about.

pub mod coord;
pub mod offload;
pub mod scif;
pub mod verbs;
