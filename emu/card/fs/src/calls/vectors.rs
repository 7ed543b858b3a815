//! Where the bytes of a call are in the caller's memory: one buffer, or an array of `struct iovec`
//! (readv(2)).

use snaprig_card_driver::{device::UserMemory, errno::Errno};
use snaprig_card_memory::USER_END;

/// Where the addresses of programs end on x86-64 (a card has fewer).
const ADDRESS_END: u64 = 0x7fff_ffff_f000;
/// Most of them.
pub const IOV_MAX: u64 = 1024;
/// Most bytes that one call moves (read(2)).
const TOTAL_MAX: usize = 0x7fff_f000;

/// EFAULT of what goes beyond the addresses of a program (Linux's access_ok).
fn check(at: u64, len: u64) -> Result<(), Errno> {
    match at.checked_add(len) {
        Some(end) if end <= ADDRESS_END => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// Buffers of the caller, one after the other.
pub struct Vectors {
    /// Address and length of each.
    parts: Vec<(u64, usize)>,
    total: usize,
}

impl Vectors {
    /// A single buffer.
    pub fn one(at: u64, len: usize) -> Self {
        let len = len.min(TOTAL_MAX);
        Self {
            parts: vec![(at, len)],
            total: len,
        }
    }

    /// The same; EFAULT if it goes beyond the addresses of a program.
    pub fn checked(at: u64, len: u64) -> Result<Self, Errno> {
        check(at, len)?;
        Ok(Self::one(at, len as usize))
    }

    /// `count` of `struct iovec` at `at`.
    pub fn load(memory: &mut dyn UserMemory, at: u64, count: u64) -> Result<Self, Errno> {
        if count > IOV_MAX {
            return Err(Errno::EINVAL);
        }
        let mut bytes = vec![0; count as usize * 16];
        memory.read(at, &mut bytes)?;
        let (mut parts, mut total) = (Vec::new(), 0);
        for entry in bytes.chunks_exact(16) {
            let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8"));
            let (base, len) = (word(0), word(8));
            if len > i64::MAX as u64 {
                return Err(Errno::EINVAL);
            }
            let len = (len as usize).min(TOTAL_MAX - total);
            check(base, len as u64)?;
            total += len;
            parts.push((base, len));
        }
        Ok(Self { parts, total })
    }

    /// Bytes in all of them.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Bytes in the first.
    pub fn first(&self) -> usize {
        self.parts.first().map_or(0, |(_, len)| *len)
    }

    /// `len` bytes from `offset` on, or as many as there are before the first bad address; EFAULT if
    /// that is the first.
    pub fn read_good(
        &self,
        memory: &mut dyn UserMemory,
        offset: usize,
        len: usize,
    ) -> Result<Vec<u8>, Errno> {
        if let Ok(bytes) = self.read(memory, offset, len) {
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        'all: for (at, part) in self.range(offset, len) {
            let mut done = 0;
            while done < part {
                let here = at + done as u64;
                let mut page = vec![0; (4096 - here % 4096).min((part - done) as u64) as usize];
                if memory.read(here, &mut page).is_err() {
                    break 'all;
                }
                done += page.len();
                bytes.extend_from_slice(&page);
            }
        }
        match bytes.is_empty() {
            true => Err(Errno::EFAULT),
            false => Ok(bytes),
        }
    }

    /// Whether all of it may be in user space, there or not.
    pub fn is_in_user_space(&self) -> bool {
        let fits = |(at, len): &(u64, usize)| {
            at.checked_add(*len as u64)
                .is_some_and(|end| end <= USER_END)
        };
        self.parts.iter().all(fits)
    }

    /// `len` bytes from `offset` on.
    pub fn read(
        &self,
        memory: &mut dyn UserMemory,
        offset: usize,
        len: usize,
    ) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        for (at, part) in self.range(offset, len) {
            memory.read(at, &mut bytes[done..done + part])?;
            done += part;
        }
        Ok(bytes)
    }

    /// Puts `bytes` there, from `offset` on.
    pub fn write(
        &self,
        memory: &mut dyn UserMemory,
        offset: usize,
        mut bytes: &[u8],
    ) -> Result<(), Errno> {
        for (at, part) in self.range(offset, bytes.len()) {
            let (now, later) = bytes.split_at(part);
            memory.write(at, now)?;
            bytes = later;
        }
        Ok(())
    }

    /// How many of `len` bytes from `offset` on can be written: those before the first bad address.
    pub fn writable(&self, memory: &mut dyn UserMemory, offset: usize, len: usize) -> usize {
        let mut good = 0;
        for (at, part) in self.range(offset, len) {
            let here = memory.writable(at, part);
            good += here;
            if here < part {
                break;
            }
        }
        good
    }

    /// The buffers that hold `len` bytes from `offset` on.
    fn range(&self, mut offset: usize, mut len: usize) -> impl Iterator<Item = (u64, usize)> {
        self.parts.iter().filter_map(move |(at, part)| {
            let skip = offset.min(*part);
            offset -= skip;
            let take = len.min(part - skip);
            len -= take;
            (take > 0).then(|| (at.wrapping_add(skip as u64), take))
        })
    }
}
