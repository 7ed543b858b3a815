//! Snapify-IO on the host, and the snapshot directories that it writes and reads (paper section 6).
//!
//! | module | what it is |
//! |---|---|
//! | [`sums`] | checksums of a file, chunk by chunk, beside it |
//! | [`stream`] | a file of a snapshot as a sink and a source of images |
//! | [`packed`] | a file of a snapshot, compressed |
//! | [`plain`] | a program's own file, as it is |
//! | [`store`] | a snapshot directory: built aside, committed by a rename, verified before use |
//! | [`grant`] | which directories cards may use |
//! | [`faults`] | where something can go wrong |
//! | [`daemon`] | serves cards' requests for files over SCIF with RMA |
//! | [`programs`] | has the host's programs request files of cards |

pub mod daemon;
pub mod faults;
pub mod grant;
pub mod packed;
pub mod plain;
pub mod programs;
pub mod store;
pub mod stream;
pub mod sums;

pub use daemon::Daemon;
pub use grant::{Grant, Writing};
pub use programs::Programs;
