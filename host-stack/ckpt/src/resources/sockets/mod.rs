//! TODO

pub mod diag;
pub mod flow;
pub mod multicast;
pub mod names;
pub mod netlink;
pub mod options;
pub mod outside;
pub mod queue;
pub mod refill;
pub mod remote;
pub mod restore;
pub mod save;
pub mod socket;
pub mod state;
