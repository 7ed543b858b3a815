//! Card memory: what it is made of, who has which part, and what addresses of programs mean.
//!
//! | file | what it is |
//! |---|---|
//! | [`layout`] | sizes of pages, the end of programs' addresses |
//! | [`memory`] | one memfd, handed out in 4 KiB frames |
//! | [`outside`], [`shown`] | memory of peers above it: what programs have mapped of their peers' |
//! | [`dirty`] | which frames have been written to |
//! | `huge` | huge pages of the host behind those of the card |
//! | [`paging`] | page tables in card memory |
//!
//! What must stay true: nothing grows beyond the configured size, and no access leaves card memory and what the host has
//! shown of its peers'. Page tables are in x86-64 format, and are the truth for every platform.

pub mod dirty;
mod huge;
pub mod layout;
pub mod memory;
pub mod outside;
pub mod paging;
pub mod shown;

pub use self::{
    layout::{HUGE_PAGE, PAGE, USER_END},
    memory::CardMemory,
};
