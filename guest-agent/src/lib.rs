//! What runs on the card beside the kernel: the COI daemon, the Snapify-IO daemon, and the runtime
//! that an offload process is linked with (`libcoi_device.a`).
//!
//! | module | what it is |
//! |---|---|
//! | [`scif`] | SCIF for programs on the card |
//! | [`brought`] | programs and libraries that hosts bring to a card |
//! | [`environment`] | what the daemon tells an offload process, and its loader |
//! | [`frames`] | messages over SCIF and Unix sockets |
//! | [`offload`] | the offload process's runtime and its sink C API |
//! | [`daemon`] | the COI daemon |
//! | [`faults`] | where something can go wrong |
//! | [`processors`] | the card's cores and hardware threads |
//! | [`snapify_io`] | the Snapify-IO daemon |
//! | [`spawn`] | starting programs |
//! | [`urgency`] | who goes before programs that compute |

pub mod brought;
pub mod daemon;
pub mod environment;
pub mod faults;
pub mod frames;
pub mod offload;
pub mod processors;
pub mod scif;
pub mod snapify_io;
pub mod spawn;
pub mod urgency;
