//! Which way chunks may go.

/// Which way chunks may go. Both sides say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// By RDMA if both sides have a device and reach each other, over TCP if not.
    #[default]
    Auto,
    /// Over a TCP connection of their own, or a Unix socket, whichever messages go over.
    Tcp,
    /// By RDMA, or not at all.
    Rdma,
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
