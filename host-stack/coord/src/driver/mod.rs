//! Both machines over Unix and TCP sockets: one thread each, poll(2), no descriptor that blocks.

mod clock;
mod disk;
mod locator;
mod member;
mod serve;
mod session;

pub use locator::Locator;
pub use member::{ConnectError, Control, Member};
pub use serve::{Coordinator, Keeper};
