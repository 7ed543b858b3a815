//! Makes memory of this process shareable, in place: for verbs memory regions and SCIF windows alike.
//!
//! | module | what it is |
//! |---|---|
//! | [`pool`] | a memfd into which pages are moved, and out of it |
//! | [`pages`] | which pages are registered, and how often |
//! | [`maps`] | what is mapped where, and of which file |
//! | [`fork`] | a child gets copies of shared pages |
//! | `freeze` | makes writers wait for a moment |
//! | [`threads`] | threads that are no writers |

pub mod fork;
mod freeze;
pub mod maps;
pub mod pages;
pub mod pool;
pub mod threads;
