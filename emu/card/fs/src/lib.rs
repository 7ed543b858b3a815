//! Files: the RAM file system, what can be opened, and the calls of files.
//!
//! | folder or file | what it is |
//! |---|---|
//! | [`inode`], [`meta`], [`stat`], `locks` | contents of regular files, in card memory; attributes; advisory locks |
//! | [`files`] | what can be open: regular files, pipes, sockets, timers, ... |
//! | [`table`], `passed` | descriptors; those on their way through sockets |
//! | [`tree`], `proc`, `processors` | names; texts of /proc; those about processors |
//! | [`sockets`], [`file_waits`] | what sockets share; who waits for a file |
//! | [`relay`] | connections that leave the card |
//! | `links`, `rtnetlink` | interfaces; what rtnetlink(7) says of them |
//! | [`call`], [`context`], [`calls`] | who calls; where it works; the calls |
//! | [`image`] | what an image says of descriptors and files, and both on a card again |
//!
//! What must stay true: contents take frames of card memory, and names are bounded, so that a card
//! that is full answers ENOSPC; a description's `release` runs once, when its last descriptor goes.

pub mod call;
pub mod calls;
pub mod context;
pub mod file_waits;
pub mod files;
pub mod image;
pub mod inode;
mod links;
mod locks;
pub mod meta;
mod passed;
mod proc;
mod processors;
pub mod relay;
mod rtnetlink;
pub mod sockets;
pub mod stat;
pub mod table;
#[cfg(test)]
mod test_kit;
pub mod tree;

pub use self::{
    call::FsCall,
    context::{FsContext, FsImage},
    file_waits::FileWaits,
    files::console,
    inode::Inode,
    proc::ProcInfo,
    processors::Topology,
    sockets::Sockets,
    table::{FileTable, Open},
    tree::{Entry, Vfs},
};
