//! fork(2) of a process with registered pages. They are shared with peers, and must not be shared with a child: the child
//! gets copies of its own, and its parent waits until it has them, so that they are of one moment.
//!
//! ```text
//! before:  a pipe              (no descriptors left: copies, made ahead)
//! child:   shared pages become private ones --> its end of the pipe is closed
//! parent:  waits for that, or for the child's death
//! ```
//! What must stay true: several threads may fork at the same time, each with an object of its own; the child allocates
//! nothing before it has its pages, for the heap may be among them and is still its parent's.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    ptr,
};

use rustix::{
    mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap},
    pipe::{PipeFlags, pipe_with},
};

use crate::{
    pages::Range,
    pool::{self, pointer},
};

/// A fork that is under way in this thread.
#[derive(Debug)]
pub struct Fork {
    shared: Vec<Range>,
    hand_over: HandOver,
}

#[derive(Debug)]
enum HandOver {
    /// The child says that it has its pages by closing its end: what the parent reads from, and the child's end.
    Pipe(OwnedFd, OwnedFd),
    /// Where the pages of each range are copied to, for the child to move; none: that range could not be copied.
    Copies(Vec<Option<usize>>),
}

impl Fork {
    /// Before fork(2), in the thread that forks: these ranges are shared. None: there is nothing to do.
    pub fn begin(shared: Vec<Range>) -> Option<Self> {
        if shared.is_empty() {
            return None;
        }
        let hand_over = match pipe_with(PipeFlags::CLOEXEC) {
            Ok((out, into)) => HandOver::Pipe(out, into),
            // What is written between this moment and the fork is not in them.
            Err(_) => {
                HandOver::Copies(shared.iter().map(|range| copy_ahead(*range).ok()).collect())
            }
        };
        Some(Self { shared, hand_over })
    }

    /// In the parent.
    pub fn in_parent(self) {
        match self.hand_over {
            HandOver::Pipe(out, into) => {
                drop(into);
                let mut byte = [0];
                while let Err(rustix::io::Errno::INTR) = rustix::io::read(out.as_fd(), &mut byte) {}
            }
            HandOver::Copies(copies) => {
                for (range, copy) in self.shared.iter().zip(copies) {
                    if let Some(copy) = copy {
                        let length = (range.end - range.start) as usize;
                        // SAFETY: `copy_ahead` has mapped so many bytes there, which nobody else knows of.
                        let _ = unsafe { munmap(pointer(copy as u64), length) };
                    }
                }
            }
        }
    }

    /// In the child, whose only thread this is. A page that stays shared is the lesser evil: the child may not even use
    /// it.
    pub fn in_child(self) {
        match &self.hand_over {
            HandOver::Pipe(..) => {
                for range in &self.shared {
                    let _ = pool::make_private_alone(*range);
                }
            }
            HandOver::Copies(copies) => {
                for (range, copy) in self.shared.iter().zip(copies) {
                    if let Some(copy) = copy {
                        let length = (range.end - range.start) as usize;
                        let (from, to) = (pointer(*copy as u64), pointer(range.start));
                        // SAFETY: `copy_ahead` has mapped so many bytes at `from`; they take the place of the program's
                        // pages, whose bytes they are.
                        let _ =
                            unsafe { mremap_fixed(from, length, length, MremapFlags::MAYMOVE, to) };
                    }
                }
            }
        }
    }
}

fn copy_ahead(range: Range) -> io::Result<usize> {
    let length = (range.end - range.start) as usize;
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at, so no memory of ours changes.
    let copy = unsafe { mmap_anonymous(ptr::null_mut(), length, both, MapFlags::PRIVATE) }?;
    // SAFETY: the range is registered, so it is mapped and can be read; the copy is as long.
    unsafe {
        ptr::copy_nonoverlapping(pointer(range.start).cast::<u8>(), copy.cast::<u8>(), length)
    };
    Ok(copy.addr())
}
