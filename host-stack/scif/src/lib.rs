//! SCIF, the Symmetric Communications Interface: connections, streams and RMA between the host
//! (node 0) and cards (1 and up).
//!
//! | module | what it is |
//! |---|---|
//! | [`node`] | the sans-IO machine of one node, the same on the host and on a card |
//! | [`link`] | one end of the link between two nodes: what is damaged or out of turn ends it |
//! | [`card`] | its driver on a card: the character device `/dev/mic/scif` |
//! | [`host`] | its driver on the host: a Unix socket for programs, a `Mic` for each card |
//! | [`client`] | endpoints for host programs |
//! | [`copying`] | copies of host programs between their memory and their peers' windows |
//! | [`checkpoint`] | what a checkpoint of a host program has to know of its rig |
//! | [`faults`] | where something can go wrong |
//!
//! Messages that go by memory, past the nodes: `snaprig-scif-lanes`.
//!
//! What must stay true: the machine sees no clock, no memory and no thread; a message from a peer
//! never panics it and never makes it hold more than credit and limits allow.

pub mod card;
pub mod checkpoint;
pub mod client;
pub mod copying;
pub mod faults;
pub mod host;
pub mod link;
pub mod node;
