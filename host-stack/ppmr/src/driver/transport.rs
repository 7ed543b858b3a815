//! Which way chunks may go.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which way chunks may go. Both sides say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// By RDMA if both sides have a device and reach each other, over TCP if not.
    #[default]
    Auto,
    /// Over a TCP connection of their own, or a Unix socket, whichever messages go over.
    Tcp,
    /// By RDMA, or not at all.
    Rdma,
}

impl fmt::Display for Transport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Auto => "RDMA or TCP",
            Self::Tcp => "TCP",
            Self::Rdma => "RDMA",
        })
    }
}

/// The port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// The device's name, as `ibv_devices` prints it. By default, the first one with a port that is active.
    pub device: Option<String>,
    /// Its number, from 1. By default, the first one that is active.
    pub number: Option<u8>,
    /// Which GID of the port to use. By default, on Ethernet the first one of RoCE v2, and on InfiniBand none.
    pub gid_index: Option<u8>,
}
