//! Buffers for page data, as a caller of a writer sees them.
//!
//! The memory is lent by the sink. It has room in front of the data for the list of its batch, so that both go out as one
//! contiguous write, whose ends are on block boundaries, as O_DIRECT wants it.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use super::{CHUNK_MAX, wire::LIST_MAX};

/// Bytes that a writer asks its sink for: room for a list, and for the data.
pub const BUFFER_BYTES: usize = LIST_MAX + CHUNK_MAX;

/// [`CHUNK_MAX`] bytes, page-aligned, for page data: to fill, and to give to
/// [`Writer::submit`](super::Writer::submit). What was in it before is anything.
pub struct Buffer {
    pub(super) block: snaprig_image::Buffer,
    /// Counts those that are out.
    pub(super) _out: Arc<()>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block.bytes()[LIST_MAX..]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        data_mut(&mut self.block)
    }
}

/// The part of a block that is for data.
pub fn data_mut(block: &mut snaprig_image::Buffer) -> &mut [u8] {
    &mut block.bytes_mut()[LIST_MAX..]
}
