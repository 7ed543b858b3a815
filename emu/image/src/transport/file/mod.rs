//! Images in files.

mod direct;
mod sink;
mod source;

pub use self::{direct::Direct, sink::FileSink, source::FileSource};

/// Bytes of a block, which is what a file is read and written in past the page cache.
const BLOCK: u64 = 4096;
