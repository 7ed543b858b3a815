//! How the control daemons of a fabric's nodes reach each other where the nodes share nothing but TCP, without input and
//! output.
//!
//! ```text
//!   HCA machines --Packet--> frame --bytes--> TCP --bytes--> frame --Packet--> HCA machines
//!                              ^                               |
//!                            mesh: who is who, who is there, when to connect again
//!                            whom: which of them a packet is for
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`frame`] | packets and messages as bytes of a stream, and back |
//! | [`mesh`] | the connections of one daemon with all others, as a machine |
//! | [`whom`] | which nodes a packet is for, one for a group among them; which are taken |
//!
//! Every daemon knows all ports of the fabric, because all are told the same setup, and ports, LIDs and GIDs follow from that.
//!
//! What must stay true: nothing here reads a clock, draws a random number or touches a socket. Who has not shown that it knows
//! the fabric's token, and the same setup, is not listened to; whatever comes is checked here, and takes no more memory than it
//! may.

pub mod frame;
pub mod mesh;
pub mod whom;

pub use frame::{Frame, Frames, Message, Relayed};
pub use mesh::{Connection, Identity, Input, Mesh, Output};
pub use whom::{Places, Whom};
