//! Kinds of state.

pub mod collected;
pub mod counters;
pub mod descriptor;
pub mod epolls;
pub mod files;
pub mod huge;
pub mod locks;
pub mod memory;
pub mod opened;
pub mod pipes;
pub mod plugins;
pub mod sockets;
pub mod sysv;
pub mod terminals;
pub mod watches;
