//! Descriptors on their way through a Unix socket (unix(7), SCM_RIGHTS).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::{FsCall, Open};
use crate::kernel::errno::Errno;

/// Most descriptors of one message (SCM_MAX_FD).
const MESSAGE_MAX: usize = 253;
/// Most descriptors of a card that are on their way. Sockets that were sent through each other and
/// closed are never freed; this bounds what they cost.
const IN_FLIGHT_MAX: usize = 4096;
/// Bytes of `struct cmsghdr`, and what its data is padded to.
const HEADER: usize = 16;
const ALIGN: usize = 8;
/// Most bytes of control data.
const CONTROL_MAX: u64 = 4096;

/// How many descriptors are on their way on one card.
pub type InFlight = Arc<AtomicUsize>;

/// The descriptors of one message.
pub struct Passed {
    files: Vec<Arc<Open>>,
    in_flight: InFlight,
}

impl Passed {
    /// Some that are on their way; ETOOMANYREFS if there are too many of them already.
    pub fn new(files: Vec<Arc<Open>>, in_flight: &InFlight) -> Result<Self, Errno> {
        if files.len() > MESSAGE_MAX {
            return Err(Errno::EINVAL);
        }
        if in_flight.load(Ordering::Relaxed) + files.len() > IN_FLIGHT_MAX {
            return Err(Errno::ETOOMANYREFS);
        }
        in_flight.fetch_add(files.len(), Ordering::Relaxed);
        Ok(Self {
            files,
            in_flight: in_flight.clone(),
        })
    }

    /// What is on its way.
    pub fn files(&self) -> &[Arc<Open>] {
        &self.files
    }

    /// They have arrived.
    pub fn into_files(mut self) -> Vec<Arc<Open>> {
        let files = std::mem::take(&mut self.files);
        self.in_flight.fetch_sub(files.len(), Ordering::Relaxed);
        files
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        self.in_flight
            .fetch_sub(self.files.len(), Ordering::Relaxed);
    }
}

impl FsCall<'_> {
    /// The descriptors in the control data of a message that is sent (cmsg(3)).
    pub fn passed(&mut self, at: u64, bytes: u64) -> Result<Option<Passed>, Errno> {
        if bytes > CONTROL_MAX {
            return Err(Errno::EINVAL);
        }
        let mut control = vec![0; bytes as usize];
        self.cx.memory.read(at, &mut control)?;
        let (mut files, mut rest) = (Vec::new(), &control[..]);
        while rest.len() >= HEADER {
            let int = |at: usize| i32::from_le_bytes(rest[at..at + 4].try_into().expect("4 bytes"));
            let len = u64::from_le_bytes(rest[..8].try_into().expect("8 bytes"));
            let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
            if len < HEADER || len > rest.len() {
                return Err(Errno::EINVAL);
            }
            match (int(8), int(12)) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for fd in rest[HEADER..len].chunks_exact(4) {
                        let fd = i32::from_le_bytes(fd.try_into().expect("4 bytes"));
                        files.push(self.files.get(fd)?);
                    }
                }
                // Who everybody is on a card is known.
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {}
                _ => return Err(Errno::EINVAL),
            }
            rest = &rest[len.next_multiple_of(ALIGN).min(rest.len())..];
        }
        match files.is_empty() {
            true => Ok(None),
            false => Passed::new(files, self.vfs.in_flight()).map(Some),
        }
    }

    /// Gives the caller what has arrived, and says so in the control data of its message. Returns the
    /// bytes of that, and whether there was room for all.
    pub fn deliver(
        &mut self,
        passed: Vec<Passed>,
        at: u64,
        room: u64,
        close: bool,
    ) -> Result<(u64, bool), Errno> {
        let files: Vec<_> = passed.into_iter().flat_map(Passed::into_files).collect();
        if files.is_empty() {
            return Ok((0, true));
        }
        let (mut numbers, mut all) = (Vec::new(), true);
        for open in files {
            let fits = HEADER + numbers.len() + 4 <= room as usize && self.check_room(1).is_ok();
            let fd = match fits {
                true => self.files.insert(open, close, 0, self.limit_nofile)?,
                false => {
                    all = false;
                    super::table::release(open, self.cx.wake);
                    continue;
                }
            };
            numbers.extend_from_slice(&fd.to_le_bytes());
        }
        if numbers.is_empty() {
            return Ok((0, false));
        }
        let len = HEADER + numbers.len();
        let mut control = (len as u64).to_le_bytes().to_vec();
        control.extend_from_slice(&libc::SOL_SOCKET.to_le_bytes());
        control.extend_from_slice(&libc::SCM_RIGHTS.to_le_bytes());
        control.extend_from_slice(&numbers);
        self.cx.memory.write(at, &control)?;
        Ok(((len.next_multiple_of(ALIGN) as u64).min(room), all))
    }
}
