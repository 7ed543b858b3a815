//! Memory of a source that whoever writes an image fills: it goes on its way as it is, without being copied to a chunk first.
//!
//! ```text
//! who writes an image           source                                   target
//!    | fills memory that is lent  |                                        |
//!    | -- write_lent -----------> | -- Full { where it is }, in pieces --> | pulls them from there
//!    |                            | <- Done ------------------------------ |
//!    | <- it is dropped --------- | of all pieces                          |
//! ```
//! What must stay true: nobody but who has it writes to what is lent; and it is given back when nobody reads it any more.

use std::{
    io,
    ops::Range,
    slice,
    sync::{Arc, Mutex},
};

use snaprig_image::Filled;

use super::memory::Memory;

/// Some of a source's memory.
pub struct Lent {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl Lent {
    /// So many bytes.
    pub fn new(memory: &Arc<Memory>, bytes: usize) -> io::Result<Self> {
        let range = memory.lend(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = memory.clone();
        Ok(Self { memory, range })
    }

    /// Where peers find it, if it is of this memory.
    pub fn address_in(&self, memory: &Arc<Memory>) -> Option<u64> {
        Arc::ptr_eq(&self.memory, memory).then_some(self.range.start as u64)
    }

    fn start(&self) -> *mut u8 {
        self.memory.region().as_ptr().wrapping_add(self.range.start)
    }
}

/// What was written to such memory, until the last piece of it is where it belongs: nobody reads it here.
#[derive(Clone, Debug)]
pub struct Kept {
    _filled: Arc<Mutex<Filled>>,
}

impl Kept {
    pub(super) fn new(filled: Filled) -> Self {
        Self {
            _filled: Arc::new(Mutex::new(filled)),
        }
    }
}

impl snaprig_image::Memory for Lent {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the range is in the mapping, which is there for as long as this, and initialised (to zero) by the kernel.
        // It is lent once, so nobody else in this process writes there but through `&mut self`; and peers may not write to
        // what is a source's (`rdma::device::access`; `tcp` writes to chunks alone).
        unsafe { slice::from_raw_parts(self.start(), self.range.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and nobody in this process reads it but through `&self`: what peers are sent is out of reach of
        // who has it by then ([`super::source::Writer::write_lent`]), and `tcp` sends nothing else.
        unsafe { slice::from_raw_parts_mut(self.start(), self.range.len()) }
    }
}
