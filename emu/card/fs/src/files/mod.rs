//! What can be open.
//!
//! | file | what it is |
//! |---|---|
//! | [`regular`] | regular files, directories, and what only says where something is |
//! | [`pipe`], [`queue`] | pipes, and the byte queue that streams of sockets are made of too |
//! | [`socket`], `datagram`, `address`, `socket_options` | sockets: streams and letters, where they are, what they are set to |
//! | `netlink` | sockets that ask about interfaces |
//! | `event`, `timer`, `epoll`, [`pidfd`], [`signalfd`] | what has no contents but a state |
//! | [`console`], [`memory_device`] | the host's ends; /dev/null and its like |

pub(crate) mod address;
pub mod console;
pub(crate) mod datagram;
pub(crate) mod epoll;
pub(crate) mod event;
pub mod memory_device;
pub(crate) mod netlink;
pub mod pidfd;
pub mod pipe;
pub mod queue;
pub mod regular;
pub mod signalfd;
pub mod socket;
pub(crate) mod socket_options;
pub(crate) mod timer;
