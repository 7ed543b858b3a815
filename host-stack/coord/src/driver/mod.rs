//! Both machines over Unix and TCP sockets: one thread each, poll(2), no descriptor that blocks.

mod address;
mod connection;
mod member;
mod serve;
mod session;

pub use address::{Address, AddressError, Listener, Locator};
pub use member::{ConnectError, Control, Member};
pub use serve::{Coordinator, Keeper};
