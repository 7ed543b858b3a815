//! State that processes have beside their registers and their own memory, by kind.
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
//! folder and a line in [`list`]; what the image says of it is added at the end of [`crate::state::Kind`], or of
//! [`crate::state::Tree`], so that older images can be read.
//!
//! What the kinds share: a descriptor as /proc tells of it (`descriptor`), the open files of a tree that stands still
//! (`collected`) and of one that is restarted (`opened`), and where pages of an image go (`target`).

pub mod collected;
mod counters;
pub mod descriptor;
pub mod epolls;
pub mod files;
pub mod huge;
pub mod list;
pub mod locks;
pub mod memory;
pub mod opened;
mod outside;
pub mod pipes;
pub mod plugins;
mod processes;
pub mod resource;
pub mod sockets;
mod standard;
pub mod sysv;
pub mod target;
pub mod terminals;
pub mod watches;

pub use self::list::all;
