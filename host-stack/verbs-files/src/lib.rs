//! Files that a kernel with InfiniBand has, for programs on a machine without: what is at paths below /sys and /dev, and
//! the device of the connection manager.
//!
//! ```text
//!   open(/dev/infiniband/rdma_cm) --> an eventfd: readable while events are queued
//!   write(it, command)            --> snaprig_verbs_cm::Manager --> sockets in the fabric's directory
//!   open, stat (/sys/class/...)   --> a table, whose texts are made of device memory
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`device`] | the connection manager's device: the manager, its sockets and its thread |
//! | `sockets` | connections between the managers of two processes |
//! | [`paths`] | what is at a path |
//!
//! The library that gives these files to programs (`snaprig_verbs`) has the C names: open(2), write(2) and so on. This
//! crate says what they find.
//!
//! What must stay true: a path or a descriptor that is not one of these costs a comparison, takes no lock, and is left to
//! the C library.

pub mod device;
pub mod paths;
mod sockets;

use std::{ops::Range, sync::Arc};

use rustix::io::Errno;
use snaprig_hca::{Memory, control::find_port, control::guid, model::ModelName};
use snaprig_verbs_cm::{Port, wire::Endpoint};

/// What this process sees of its fabric.
pub trait Fabric {
    /// The models of all HCAs.
    fn models(&self) -> &[ModelName];

    /// The HCAs that programs here see: those of their node, or all.
    fn visible(&self) -> Range<u32>;

    /// Device memory.
    fn memory(&self) -> &Memory;
}

/// Joins the fabric of this process, if it has not. While somebody holds what is returned the process stays in it.
pub type Join = fn() -> Result<Arc<dyn Fabric>, Errno>;

/// The name of an HCA.
pub fn device_name(hca: u32) -> String {
    format!("{DEVICE_NAME}{hca}")
}

/// What the names of all HCAs begin with.
const DEVICE_NAME: &str = "snaprig_";

/// The port that the connection manager uses, of an HCA.
fn port_of(fabric: &dyn Fabric, hca: u32) -> Result<Port, Errno> {
    const NUMBER: u8 = 1;
    let (_, port) = find_port(fabric.memory(), hca, NUMBER).ok_or(Errno::NODEV)?;
    Ok(Port {
        hca,
        node_guid: guid(hca),
        endpoint: Endpoint {
            lid: port.lid.get() as u16,
            gid: port.gid(0).unwrap_or_default(),
        },
    })
}
