//! Memory whose pages are still to come: who touches them waits, whoever has them puts them there, and hears what the process
//! does to that memory meanwhile (userfaultfd(2), non-cooperative mode).
//!
//! What must stay true: a page is put where none is, or nowhere; and nowhere as long as something that has happened to the
//! memory has not been read.

use std::{
    io,
    ops::Range,
    os::fd::{FromRawFd, OwnedFd},
};

use linux_raw_sys::{
    general::{
        UFFD_EVENT_FORK, UFFD_EVENT_PAGEFAULT, UFFD_EVENT_REMAP, UFFD_EVENT_REMOVE,
        UFFD_EVENT_UNMAP, uffdio_copy, uffdio_zeropage,
    },
    ioctl,
};

use crate::{Userfault, range};

/// Bytes of a message (struct uffd_msg): one that says what it is, and from the ninth on three words.
const MESSAGE_BYTES: usize = 32;
const WORDS_AT: usize = 8;

/// What has happened in the process.
#[derive(Debug)]
pub enum Happened {
    /// Somebody waits for the page of this address.
    Fault(u64),
    /// The process has a child, with memory like its own as it is now.
    Forked(Userfault),
    /// Memory is somewhere else (mremap(2)).
    Moved {
        /// Its first address before.
        from: u64,
        /// And now.
        to: u64,
        /// How much.
        bytes: u64,
    },
    /// Its pages are no more: nothing is there, or zeroes are.
    Dropped(Range<u64>),
}

impl Userfault {
    /// What has happened that has not been told of; none: nothing.
    pub fn next(&self) -> io::Result<Option<Happened>> {
        loop {
            let mut message = [0; MESSAGE_BYTES];
            match rustix::io::read(&self.0, &mut message) {
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                Ok(MESSAGE_BYTES) => {}
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error.into()),
            }
            let mut words = [0; 3];
            for (word, bytes) in words.iter_mut().zip(message[WORDS_AT..].chunks_exact(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
            }
            let [first, second, third] = words;
            return Ok(Some(match u32::from(message[0]) {
                // Flags first.
                UFFD_EVENT_PAGEFAULT => Happened::Fault(second),
                UFFD_EVENT_FORK => {
                    // SAFETY: the kernel has made the descriptor for who reads the message, once.
                    let child = unsafe { OwnedFd::from_raw_fd(first as u32 as i32) };
                    Happened::Forked(child.into())
                }
                UFFD_EVENT_REMAP => Happened::Moved {
                    from: first,
                    to: second,
                    bytes: third,
                },
                UFFD_EVENT_REMOVE | UFFD_EVENT_UNMAP => Happened::Dropped(first..second),
                _ => continue,
            }));
        }
    }

    /// Puts pages where there are none, and has who waits for them go on; how many bytes, beginning with the first.
    ///
    /// # Errors
    ///
    /// Of the first page. `EEXIST`: there is one. `EAGAIN`: something has happened that is yet to be read, or is about to
    /// be told of. `ENOENT`: not all of it is of one area that is waited for, as when something has happened to it.
    /// `ESRCH`: the process is no more.
    pub fn put(&self, at: u64, pages: &[u8]) -> io::Result<u64> {
        let mut copy = uffdio_copy {
            dst: at,
            src: pages.as_ptr() as u64,
            len: pages.len() as u64,
            mode: 0,
            copy: 0,
        };
        let done = self.ioctl_with(ioctl::UFFDIO_COPY, &mut copy);
        so_far(done, copy.copy)
    }

    /// The same with zeroes.
    pub fn put_zeroes(&self, pages: &Range<u64>) -> io::Result<u64> {
        let mut zeroes = uffdio_zeropage {
            range: range(pages),
            mode: 0,
            zeropage: 0,
        };
        let done = self.ioctl_with(ioctl::UFFDIO_ZEROPAGE, &mut zeroes);
        so_far(done, zeroes.zeropage)
    }

    /// Who waits for pages looks whether they are there.
    pub fn wake(&self, pages: &Range<u64>) -> io::Result<()> {
        self.ioctl(ioctl::UFFDIO_WAKE, range(pages))
    }
}

/// What was done before an error counts, and the error comes again.
fn so_far(done: io::Result<()>, bytes: i64) -> io::Result<u64> {
    match (done, u64::try_from(bytes)) {
        (Ok(()), Ok(bytes)) => Ok(bytes),
        (Err(_), Ok(bytes)) if bytes > 0 => Ok(bytes),
        (Ok(()), Err(_)) => Err(io::Error::from_raw_os_error(-bytes as i32)),
        (Err(error), _) => Err(error),
    }
}
