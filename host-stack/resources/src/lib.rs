//! State that processes have beside their registers and their own memory, by kind: what an image says of it, how it is seen
//! and saved, and how it is made again.
//!
//! | folder | state |
//! |---|---|
//! | `standard` | files that whoever launched the tree has passed on |
//! | `plugins` | what belongs to plugins |
//! | `files` | files, directories, devices without a state, by their names |
//! | `memory` | memory that several processes can map |
//! | `sysv` | System V shared memory, semaphores, message queues |
//! | `pipes` | pipes and FIFOs |
//! | `terminals` | pseudoterminals, and the terminal that the tree is on |
//! | `sockets` | sockets, and connections between trees |
//! | `counters`, `epolls`, `watches` | eventfd, timerfd, signalfd; epoll; inotify |
//! | `processes` | pidfds, and files of /proc/PID |
//! | `locks` | locks, leases, and who gets signals of files |
//! | `huge` | huge pages, which several of these are of |
//! | `outside` | ends of pipes and sockets that processes outside have |
//!
//! A kind of state is a folder here: what the image says of it (`state`), what it looks at and saves (`save`), what it
//! makes again (`restore`), and in `mod` its [`resource::Resource`], which says what it does at each step. A new kind is a
//! folder and a line in [`list`]; what the image says of it is added at the end of [`state::Kind`], so that older images can
//! be read.
//!
//! What the kinds share: a descriptor as /proc tells of it (`descriptor`), the clocks of a tree (`clocks`), the open files of a tree that stands still
//! (`collected`) and of one that is restarted (`opened`), a process that is being restarted (`growing`), where pages of an
//! image go (`target`), how they are written (`copy`, `spaces`), and what trees of a job tell each other (`board`).

pub mod board;
mod calls;
pub mod clocks;
pub mod collected;
pub mod copy;
mod counters;
pub mod descriptor;
mod detached;
mod epolls;
pub mod error;
pub mod event;
pub mod faults;
pub mod files;
pub mod groups;
pub mod growing;
pub mod huge;
pub mod layout;
pub mod list;
mod locks;
pub mod memory;
pub mod opened;
mod outside;
mod pipes;
pub mod plugins;
pub mod processes;
pub mod resource;
pub mod sockets;
pub mod spaces;
mod standard;
pub mod state;
mod sysv;
pub mod target;
mod terminals;
mod watches;

pub use self::{
    error::{Error, Result},
    event::{Event, Observer, Reporter},
    list::all,
};
