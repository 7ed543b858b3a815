//! A rig: cards, each a process of its own, and the host's SCIF node that reaches them.
//!
//! ```text
//!   Rig (this process)                           one process a card
//!   +--------------------------+   vfio-user   +------------------------------------+
//!   | host SCIF node   scif.sock|<------------->| PCI function | SCIF driver | kernel |
//!   | Snapify-IO daemon         |               |   coi_daemon, snapify_iod, ...       |
//!   | control           rig.sock|               |                                    |
//!   +--------------------------+               +------------------------------------+
//!          ^ scif.sock
//!   host processes (offload applications), found by $SNAPRIG_RIG
//! ```
//!
//! What must stay true: dropping a [`Rig`] ends every card and removes its directory; a card ends
//! by itself when the rig's process is gone, however that ended.

mod card;
pub mod card_process;
pub mod control;
pub mod files;
pub mod guest;
pub mod libraries;
pub mod network;
mod rig;
pub mod sandbox;
pub mod sdk;
mod state;
mod sysfs;

pub use card::Card;
pub use rig::{Rig, RigBuilder, RigError};
pub use snaprig_scif::host::cards::CardState;
