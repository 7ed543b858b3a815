//! What programs are given, as files: libraries under the names that programs ask for, and headers.
//!
//! ```text
//!   ROOT/lib/lib{scif,coi_host,coi_device,snapify,micmgmt,snaprig_ckpt_plugin}.so.0, and .so beside each
//!   ROOT/include/{common,sink,source}/*.h, intel-coi -> ., scif.h, snapify{,io}.h, miclib.h, snaprig_ckpt_plugin.h
//!   ROOT/verbs/libibverbs.so.1          by itself: who has it on the path of libraries has HCAs of ours
//! ```
//!
//! Where the root is depends on how the `snaprig` program came to be where it is ([`root::of`]):
//!
//! | the program | the libraries | the root |
//! |---|---|---|
//! | is in cargo's directory, or is a test that has snaprig among its dependencies | beside it, as cargo leaves them | `snaprig-sdk` beside it, links to them |
//! | was installed, alone | are in it | made by it in the user's cache, whole, by rename ([`Tree::lay_out`]) |
//! | was installed by a package | are in it, and below `../lib/snaprig` | that, if it is of this very program |
//!
//! What must stay true: a file has its name only when it is whole, and a root in the cache has its name only when all of
//! it is; any number of us may be making them at once.

mod cache;
mod library;
pub mod program;
pub mod root;
mod tree;

pub use library::Library;
pub use tree::{Contents, File, Tree};
