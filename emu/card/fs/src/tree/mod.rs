//! Names: a tree of directories, and where paths lead in it.
//!
//! | file | what it is |
//! |---|---|
//! | `vfs`, `names` | nodes and directories |
//! | `walk` | where a path leads |
//! | `standard` | what every card has |
//! | `network` | what a card with a network has |
//! | `install` | what the host puts onto a card |

mod install;
mod names;
mod network;
mod standard;
mod vfs;
mod walk;

pub use self::{
    install::Entry,
    names::FIRST_COOKIE,
    vfs::{Found, Node, Vfs},
    walk::{Last, PATH_MAX, Place, count},
};
