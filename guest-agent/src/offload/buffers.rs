//! COI buffers on the sink, and the memory that they are in: files of the local store, mapped shared
//! where the host wants them, each a window on the DMA channel (paper section 2). Small buffers share
//! one. The host alone says where a buffer is; the process hears of it when it is given the buffer.
//!
//! What must stay true: every buffer that is known is in memory that there is, and no two overlap.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::PathBuf,
    ptr,
};

use snaprig_offload_wire::coi::{BufferUse, Window};

use super::references::References;
use crate::scif::Endpoint;

const PAGE: usize = 4096;

/// All buffers of the process.
#[derive(Default)]
pub struct Buffers {
    memory: BTreeMap<u64, Memory>,
    /// Which memory begins at an address.
    by_address: BTreeMap<usize, u64>,
    /// Buffers that the process was given, by the address where they begin.
    known: BTreeMap<usize, Buffer>,
    /// References to them.
    pub references: References,
}

/// Its file is only mapped: a process has more of them than it may have descriptors. Memory that the
/// program has is in no file.
struct Memory {
    path: Option<PathBuf>,
    address: usize,
    len: usize,
    offset: i64,
}

#[derive(Clone, Copy)]
struct Buffer {
    id: u64,
    len: usize,
}

/// Where this process's local store is.
pub fn directory() -> PathBuf {
    PathBuf::from(format!("/tmp/coi_procs/{}/local_store", std::process::id()))
}

impl Buffers {
    /// Makes memory of `len` bytes, zero at first. Of one that fails nothing is left.
    pub fn create(
        &mut self,
        id: u64,
        len: u64,
        address: Option<u64>,
        dma: &Endpoint,
    ) -> io::Result<Window> {
        let directory = directory();
        fs::create_dir_all(&directory)?;
        let path = directory.join(id.to_string());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        let made = map_and_register(&file, len, address, dma);
        let (address, offset) = made.inspect_err(|_| {
            // Its name is the only thing that is left.
            let _ = fs::remove_file(&path);
        })?;
        let memory = Memory {
            path: Some(path),
            address,
            len: len as usize,
            offset,
        };
        Ok(self.add(id, memory))
    }

    /// Has memory of the program's be memory of a buffer.
    pub fn adopt(&mut self, id: u64, address: u64, len: u64, dma: &Endpoint) -> io::Result<Window> {
        let (address, len) = (address as usize, len as usize);
        let fits = address
            .checked_add(len)
            .and_then(|end| end.checked_add(PAGE));
        if fits.is_none() || len == 0 || self.memory.contains_key(&id) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut memory = Memory {
            path: None,
            address,
            len,
            offset: 0,
        };
        memory.register(dma)?;
        Ok(self.add(id, memory))
    }

    fn add(&mut self, id: u64, memory: Memory) -> Window {
        let window = memory.window(id);
        self.by_address.insert(memory.address, id);
        self.memory.insert(id, memory);
        window
    }

    /// Takes memory away, and the buffers in it.
    pub fn destroy(&mut self, id: u64, dma: &Endpoint) -> io::Result<()> {
        let memory = self.memory.remove(&id).ok_or(io::ErrorKind::NotFound)?;
        self.by_address.remove(&memory.address);
        self.forget(memory.address, memory.len);
        let (start, len) = memory.pages();
        let before = memory.address - start;
        dma.unregister(memory.offset - before as i64, len as u64)?;
        let Some(path) = memory.path else {
            return Ok(());
        };
        unmap(memory.address, memory.len);
        fs::remove_file(path)
    }

    /// Registers all memory on the connection that a restore made.
    pub fn register_again(&mut self, dma: &Endpoint) -> io::Result<()> {
        for memory in self.memory.values_mut() {
            memory.register(dma)?;
        }
        Ok(())
    }

    /// The windows of all memory.
    pub fn windows(&self) -> Vec<Window> {
        let windows = self.memory.iter();
        windows.map(|(id, memory)| memory.window(*id)).collect()
    }

    /// Address and length of the part of a buffer that a run function is given. The buffer is known
    /// from now on.
    pub fn part(&mut self, part: &BufferUse) -> Result<(usize, u64), String> {
        let id = part.id;
        let (address, bytes) = (part.address as usize, part.bytes as usize);
        if !self.has(address, bytes) {
            return Err(format!(
                "buffer {id}, {bytes} bytes at {address:#x}, is in no memory of buffers"
            ));
        }
        let (offset, len) = (part.offset, part.len);
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > part.bytes) {
            return Err(format!(
                "{len} bytes at {offset} are not in buffer {id}, which has {bytes}"
            ));
        }
        let known = self.known.get(&address);
        if known.is_none_or(|known| (known.id, known.len) != (id, bytes)) {
            self.forget(address, bytes);
            self.known.insert(address, Buffer { id, len: bytes });
        }
        Ok((address + offset as usize, len))
    }

    /// Whether all of a range is memory of buffers.
    fn has(&self, address: usize, len: usize) -> bool {
        let below = self.by_address.range(..=address).next_back();
        let memory = below.and_then(|(_, id)| self.memory.get(id));
        memory.is_some_and(|memory| {
            let inside = address - memory.address;
            len > 0 && inside < memory.len && len <= memory.len - inside
        })
    }

    /// Buffers in a range are no more.
    fn forget(&mut self, start: usize, len: usize) {
        let below = self.known.range(..start).next_back();
        let reaches = below.filter(|(at, buffer)| *at + buffer.len > start);
        let first = reaches.map_or(start, |(at, _)| *at);
        let gone = self.known.range(first..start + len);
        let gone: Vec<_> = gone.map(|(at, buffer)| (*at, buffer.id)).collect();
        for (at, id) in gone {
            self.known.remove(&at);
            self.references.forget(id);
        }
    }

    /// The buffer that has a byte at this address.
    pub fn at(&self, address: usize) -> Option<u64> {
        let (start, buffer) = self.known.range(..=address).next_back()?;
        (address - start < buffer.len).then_some(buffer.id)
    }

    /// Address and length of bytes of memory, as far as there are any.
    pub fn bytes(&self, id: u64, (start, end): (u64, u64)) -> Option<(u64, u64)> {
        let memory = self.memory.get(&id)?;
        let end = end.min(memory.len as u64);
        (start < end).then(|| (memory.address as u64 + start, end - start))
    }

    /// The files of the local store: name and path.
    pub fn files(&self) -> Vec<(String, PathBuf, u64)> {
        let files = self.memory.iter().filter_map(|(id, memory)| {
            let path = memory.path.clone()?;
            Some((id.to_string(), path, memory.len as u64))
        });
        files.collect()
    }
}

impl Memory {
    /// The pages that it is in.
    fn pages(&self) -> (usize, usize) {
        let start = self.address & !(PAGE - 1);
        let end = (self.address + self.len).next_multiple_of(PAGE);
        (start, end - start)
    }

    fn register(&mut self, dma: &Endpoint) -> io::Result<()> {
        let (start, len) = self.pages();
        let offset = dma.register(start, len, None)?;
        self.offset = offset + (self.address - start) as i64;
        Ok(())
    }

    fn window(&self, id: u64) -> Window {
        Window {
            id,
            offset: self.offset,
            len: self.len as u64,
            address: self.address as u64,
        }
    }
}

/// Where the file is then, and its window.
fn map_and_register(
    file: &File,
    len: u64,
    address: Option<u64>,
    dma: &Endpoint,
) -> io::Result<(usize, i64)> {
    if len > memory_bytes() {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    file.set_len(len)?;
    let len = len as usize;
    let address = map(file, len, address)?;
    match dma.register(address, len, None) {
        Ok(offset) => Ok((address, offset)),
        Err(error) => {
            unmap(address, len);
            Err(error)
        }
    }
}

/// Memory that the card has.
fn memory_bytes() -> u64 {
    // SAFETY: all zeros are a valid `sysinfo`, which the call writes to.
    unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        match libc::sysinfo(&raw mut info) {
            0 => info.totalram.saturating_mul(info.mem_unit.into()),
            _ => u64::MAX,
        }
    }
}

/// Maps the file at `address`, if nothing else is there, or anywhere.
fn map(file: &File, len: usize, address: Option<u64>) -> io::Result<usize> {
    let mut flags = libc::MAP_SHARED;
    if address.is_some() {
        flags |= libc::MAP_FIXED_NOREPLACE;
    }
    // SAFETY: a new mapping of a file of ours, which replaces none; the result is checked.
    let mapped = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(address.unwrap_or(0) as usize),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(mapped as usize)
}

fn unmap(address: usize, len: usize) {
    // SAFETY: the mapping is one that `map` made; the host has said that no run function uses it.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address), len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: usize = 0x10_0000;

    fn buffers() -> Buffers {
        let mut buffers = Buffers::default();
        let memory = Memory {
            path: None,
            address: START,
            len: 4 * PAGE,
            offset: 0,
        };
        buffers.add(1, memory);
        buffers
    }

    fn given(id: u64, page: usize, bytes: usize) -> BufferUse {
        BufferUse {
            id,
            address: (START + page * PAGE) as u64,
            bytes: bytes as u64,
            offset: 0,
            len: bytes as u64,
            add_ref: false,
        }
    }

    #[test]
    fn a_buffer_is_known_until_another_one_is_in_its_place() {
        let mut buffers = buffers();
        assert_eq!(buffers.at(START), None);
        let part = |one: &mut Buffers, id, page, bytes| one.part(&given(id, page, bytes));
        assert_eq!(part(&mut buffers, 2, 0, 2 * PAGE), Ok((START, 8192)));
        assert_eq!(part(&mut buffers, 3, 2, 10), Ok((START + 2 * PAGE, 10)));
        buffers.references.given(2);
        assert_eq!(buffers.at(START + PAGE), Some(2));
        assert_eq!(buffers.at(START + 2 * PAGE + 10), None);
        // In the middle of the first.
        assert!(part(&mut buffers, 4, 1, 5).is_ok());
        assert_eq!(
            (buffers.at(START), buffers.at(START + PAGE)),
            (None, Some(4))
        );
        assert_eq!(buffers.references.release(2), None);
        assert_eq!(buffers.at(START + 2 * PAGE), Some(3));
    }

    #[test]
    fn what_is_in_no_memory_is_refused() {
        let mut buffers = buffers();
        for (address, bytes) in [
            (START - 1, 1),
            (START, 4 * PAGE + 1),
            (START + 4 * PAGE, 1),
            (START, 0),
            (0, usize::MAX),
            (usize::MAX, usize::MAX),
        ] {
            let mut one = given(5, 0, bytes);
            one.address = address as u64;
            assert!(buffers.part(&one).is_err(), "{address:#x} {bytes}");
        }
        let mut one = given(5, 0, PAGE);
        one.offset = u64::MAX;
        assert!(buffers.part(&one).is_err());
        assert!(buffers.known.is_empty());
    }
}
