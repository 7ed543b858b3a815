//! Which chunk runs next. No I/O, no thread: the engine feeds it jobs and results, and moves the
//! chunks that it hands out.
//!
//! ```text
//! job:  copy 0 (all its chunks) -> copy 1 -> ... -> finished
//!          a chunk fails: no new chunk; when the others of the copy are back, finished with error
//! ```

use std::sync::Arc;

use crate::{engine::CopyError, region::Region};

/// Copies up to this length are a mapped store on the thread that asks for them, if it would only wait otherwise: so
/// long a store is shorter than the wake-ups of the engine, its worker, and whoever waits, at 40 to 90 us each.
pub(crate) const NOW_BYTES: u64 = 1 << 20;
/// Copies up to this length are a mapped store on the engine's thread. Longer ones are cut into chunks of it, which
/// movers and that thread share.
///
/// Measured with `mover::tests::crossover` (two cores of an AMD EPYC in a VM, Linux 6.18, memory that was touched
/// before; median us of a store, and of io_uring with both cores busy, and idle, when a sleeping core has to be woken):
///
/// ```text
/// bytes    4 KiB  16 KiB  64 KiB  256 KiB  1 MiB  8 MiB
/// store      0.4     1.2     3.6       15     40    320
/// busy       5.0     6.4      13       40    140   1100
/// idle        45      50      53       85    200   1200
/// ```
///
/// Copies that are queued at once, in GB/s to those of pread(2) (`snaprig bench scif`, "engine alone"): when 256 KiB,
/// 1 MiB and 4 MiB went to io_uring whole, 0.2, 0.3 and 0.9; in this way, 1.9, 1.8 and 1.3; 64 MiB 1.8 either way.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;
/// Chunks of one queue in flight, on a host with many cores.
pub(crate) const IN_FLIGHT_MAX: usize = 8;
/// What is copied here of one queue before it is the others' turn.
const TURN_BYTES: u64 = 1 << 20;

/// One copy, checked: both ranges are inside their regions, as those were at first.
pub(crate) struct Checked {
    pub(crate) src: Arc<Region>,
    pub(crate) src_at: u64,
    pub(crate) dst: Arc<Region>,
    pub(crate) dst_at: u64,
    pub(crate) len: u64,
}

impl Checked {
    /// Only such copies are for movers, and for threads that may make no system calls.
    pub(crate) fn is_mapped(&self) -> bool {
        self.src.pointer(self.src_at).is_some() && self.dst.pointer(self.dst_at).is_some()
    }

    /// Copies now, on this thread; or an errno, `ENXIO` past the end of a file.
    pub(crate) fn store(&self) -> Result<(), i32> {
        let (src, dst) = (self.src.pointer(self.src_at), self.dst.pointer(self.dst_at));
        match (src, dst) {
            (Some(src), Some(dst)) => {
                // SAFETY: both ranges were checked to be inside regions that `self` keeps mapped; `copy`
                // allows overlap; nobody holds references to region memory.
                unsafe { std::ptr::copy(src, dst, self.len as usize) };
                Ok(())
            }
            // SAFETY: `dst` is where a range begins that was checked to be inside a region that `self` keeps mapped, so
            // it is good for `len` bytes; nobody holds references to region memory.
            (None, Some(dst)) => unsafe { self.src.transfer(self.src_at, dst, self.len, false) },
            // SAFETY: `src` is where a range begins that was checked to be inside a region that `self` keeps mapped, so
            // it is good for `len` bytes; nobody holds references to region memory.
            (Some(src), None) => unsafe { self.dst.transfer(self.dst_at, src, self.len, true) },
            (None, None) => self.bounce(),
        }
    }

    /// From file to file.
    fn bounce(&self) -> Result<(), i32> {
        let mut buffer = vec![0; self.len.min(CHUNK_BYTES) as usize];
        let mut done = 0;
        while done < self.len {
            let len = (self.len - done).min(CHUNK_BYTES);
            // SAFETY: `len` is at most the buffer's.
            unsafe {
                let buffer = buffer.as_mut_ptr();
                self.src.transfer(self.src_at + done, buffer, len, false)?;
                self.dst.transfer(self.dst_at + done, buffer, len, true)?;
            }
            done += len;
        }
        Ok(())
    }
}

/// Part of a copy that a mover moves.
pub(crate) struct Chunk(pub(crate) Checked);

impl Chunk {
    /// Where it goes.
    pub(crate) fn to(&self) -> *mut u8 {
        let to = self.0.dst.pointer(self.0.dst_at);
        to.expect("movers have mapped memory only")
    }

    /// What is left after `bytes` of it were moved.
    fn rest(mut self, bytes: u64) -> Self {
        self.0.src_at += bytes;
        self.0.dst_at += bytes;
        self.0.len -= bytes;
        self
    }
}

/// The job that a queue works on.
pub(crate) struct Active {
    copies: Vec<Checked>,
    /// The copy being worked on.
    current: usize,
    /// Bytes of it handed out.
    issued: u64,
    in_flight: usize,
    /// Parts of chunks that came back short.
    again: Vec<Chunk>,
    error: Option<CopyError>,
    /// The copy after the last of `copies` was out of range.
    refused: Option<CopyError>,
}

/// What the engine does next for a queue.
pub(crate) enum Step {
    /// Move this chunk, then report to [`Active::moved`].
    Move(Chunk),
    /// Nothing until a chunk comes back.
    Wait,
    /// So much was copied here that it is other queues' turn; then the next step.
    Yield,
    /// The job is over.
    Finished(Result<(), CopyError>),
}

impl Active {
    /// A job of these copies; `refused` is its result if all of them succeed.
    pub(crate) fn new(copies: Vec<Checked>, refused: Option<CopyError>) -> Self {
        Self {
            copies,
            current: 0,
            issued: 0,
            in_flight: 0,
            again: Vec::new(),
            error: None,
            refused,
        }
    }

    /// The next step, with so many chunks of it in flight at most. What no mover is given is copied here, on the
    /// calling thread.
    pub(crate) fn step(&mut self, in_flight_max: usize) -> Step {
        let mut stored = 0;
        while stored < TURN_BYTES {
            if let Some(error) = self.error {
                return match self.in_flight {
                    0 => Step::Finished(Err(error)),
                    _ => Step::Wait,
                };
            }
            if self.in_flight < in_flight_max
                && let Some(chunk) = self.again.pop()
            {
                self.in_flight += 1;
                return Step::Move(chunk);
            }
            let Some(copy) = self.copies.get(self.current) else {
                return Step::Finished(self.refused.map_or(Ok(()), Err));
            };
            if self.issued == copy.len {
                if self.in_flight > 0 {
                    return Step::Wait;
                }
                self.current += 1;
                self.issued = 0;
                continue;
            }
            let chunk = chunk_of(copy, self.issued);
            self.issued += chunk.0.len;
            if copy.len > CHUNK_BYTES && self.in_flight < in_flight_max && chunk.0.is_mapped() {
                self.in_flight += 1;
                return Step::Move(chunk);
            }
            stored += chunk.0.len;
            if let Err(errno) = chunk.0.store() {
                self.fail(errno);
            }
        }
        Step::Yield
    }

    /// A mover is done with `chunk`: bytes moved, or a negative error number.
    pub(crate) fn moved(&mut self, chunk: Chunk, result: i32) {
        self.in_flight -= 1;
        let errno = match u64::try_from(result) {
            Ok(bytes) if bytes == chunk.0.len => return,
            Ok(bytes) if bytes > 0 && bytes < chunk.0.len => {
                return self.again.push(chunk.rest(bytes));
            }
            // The end of a file that is sealed against shrinking: not possible, so never retried.
            Ok(_) => libc::EIO,
            Err(_) if result == -libc::EINTR || result == -libc::EAGAIN => {
                return self.again.push(chunk);
            }
            Err(_) => -result,
        };
        self.fail(errno);
    }

    fn fail(&mut self, errno: i32) {
        self.error.get_or_insert(CopyError {
            index: self.current,
            errno,
        });
    }
}

fn chunk_of(copy: &Checked, issued: u64) -> Chunk {
    Chunk(Checked {
        src: copy.src.clone(),
        src_at: copy.src_at + issued,
        dst: copy.dst.clone(),
        dst_at: copy.dst_at + issued,
        len: (copy.len - issued).min(CHUNK_BYTES),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn copies(lens: &[u64]) -> Vec<Checked> {
        let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 8 << 20).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let region = Arc::new(Region::new(fd, 0, 8 << 20).unwrap());
        let copy = |&len| Checked {
            src: region.clone(),
            src_at: 0,
            dst: region.clone(),
            dst_at: 4 << 20,
            len,
        };
        lens.iter().map(copy).collect()
    }

    fn next(active: &mut Active) -> Chunk {
        match active.step(2) {
            Step::Move(chunk) => chunk,
            _ => panic!("expected a chunk"),
        }
    }

    #[test]
    fn what_movers_are_not_given_is_copied_here_and_in_turns() {
        let mut active = Active::new(copies(&[4 * CHUNK_BYTES, 8, CHUNK_BYTES, 8]), None);
        let chunks = [next(&mut active), next(&mut active)];
        // The third and the fourth of the first copy.
        for _ in 0..2 {
            assert!(matches!(active.step(2), Step::Yield));
        }
        assert!(matches!(active.step(2), Step::Wait));
        for chunk in chunks {
            active.moved(chunk, CHUNK_BYTES as i32);
        }
        assert!(matches!(active.step(2), Step::Yield));
        assert!(matches!(active.step(2), Step::Finished(Ok(()))));
    }

    #[test]
    fn a_later_copy_waits_for_the_earlier_one() {
        let mut active = Active::new(copies(&[CHUNK_BYTES + 1, 8, CHUNK_BYTES + 1]), None);
        let (first, second) = (next(&mut active), next(&mut active));
        assert_eq!((first.0.len, second.0.len), (CHUNK_BYTES, 1));
        assert!(matches!(active.step(2), Step::Wait));
        active.moved(second, 1);
        assert!(matches!(active.step(2), Step::Wait));
        active.moved(first, CHUNK_BYTES as i32);
        // The short one is copied on the way.
        for bytes in [CHUNK_BYTES, 1] {
            let chunk = next(&mut active);
            assert_eq!(chunk.0.len, bytes);
            active.moved(chunk, bytes as i32);
        }
        assert!(matches!(active.step(2), Step::Finished(Ok(()))));
    }

    #[test]
    fn short_and_interrupted_moves_go_on_and_errors_wait_for_the_rest() {
        let mut active = Active::new(copies(&[4, 2 * CHUNK_BYTES]), None);
        let (first, second) = (next(&mut active), next(&mut active));
        active.moved(first, 1000);
        let rest = next(&mut active);
        assert_eq!((rest.0.src_at, rest.0.len), (1000, CHUNK_BYTES - 1000));
        active.moved(rest, -libc::EINTR);
        let rest = next(&mut active);
        active.moved(rest, -libc::EFAULT);
        assert!(matches!(active.step(2), Step::Wait));
        active.moved(second, CHUNK_BYTES as i32);
        let error = CopyError {
            index: 1,
            errno: libc::EFAULT,
        };
        assert!(matches!(active.step(2), Step::Finished(Err(e)) if e == error));
    }
}
