//! Memory of a caller's that an operation reads or writes later.

/// Where it is. A copy of this is no copy of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: it is an address; whoever made it has promised that any thread may use the memory until the
// operation is complete.
unsafe impl Send for Foreign {}
// SAFETY: a shared `Foreign` is only copied; all that touches the memory takes it by value, and what is promised for
// `new` holds for any thread.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Memory that an operation may use.
    ///
    /// # Safety
    /// From `pointer` on there are `bytes` bytes, which may be read (and, where the operation's result
    /// goes, written) from any thread until the operation that this is given to is complete; for the
    /// memory of a buffer, until that is destroyed. Nobody else writes to them meanwhile.
    pub unsafe fn new(pointer: *mut u8, bytes: usize) -> Self {
        Self { pointer, bytes }
    }

    /// None.
    pub fn none() -> Self {
        Self {
            pointer: std::ptr::NonNull::dangling().as_ptr(),
            bytes: 0,
        }
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.bytes as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where it begins.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// A part of it, or as much of that as there is: the rest of a buffer's last page is nobody's.
    pub(crate) fn part(self, at: u64, bytes: u64) -> Self {
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(self.bytes);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            pointer: self.pointer.wrapping_add(at),
            bytes: bytes.min(self.bytes - at),
        }
    }

    /// Gives its bytes to a reader.
    pub(crate) fn read(self, reader: impl FnOnce(&[u8])) {
        // SAFETY: `new` was promised that so many bytes can be read from any thread until the operation is complete,
        // which reads them before that; a `Foreign` of none has an aligned dangling pointer and no bytes.
        reader(unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) });
    }

    /// Has a writer fill it.
    pub(crate) fn write(self, writer: impl FnOnce(&mut [u8])) {
        // SAFETY: `new` was promised that so many bytes can be written from any thread, and that nobody else does,
        // until the operation is complete, which writes them before that; a `Foreign` of none has an aligned dangling
        // pointer and no bytes.
        writer(unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) });
    }

    /// Copies as many bytes as both have.
    pub(crate) fn copy_to(self, to: Self) {
        // SAFETY: `new` was promised that so many bytes can be read at the one and written at the other until the
        // operation is complete; `ptr::copy` allows them to overlap.
        unsafe { std::ptr::copy(self.pointer, to.pointer, self.bytes.min(to.bytes)) };
    }
}
