//! COI buffers on the sink: each is a file of the local store, mapped shared where the host wants it,
//! and a window on the DMA channel (paper section 2).

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::PathBuf,
    ptr,
};

use snaprig_wire::coi::{BufferUse, Window};

use super::references::References;
use crate::scif::Endpoint;

const PAGE: usize = 4096;

/// All buffers of the process.
#[derive(Default)]
pub struct Buffers {
    all: BTreeMap<u64, Buffer>,
    /// Which buffer begins at an address.
    by_address: BTreeMap<usize, u64>,
    /// References to them.
    pub references: References,
}

/// Its file is only mapped: a process has more buffers than it may have descriptors. One of memory
/// that the program has is in no file.
struct Buffer {
    path: Option<PathBuf>,
    address: usize,
    len: usize,
    offset: i64,
}

/// Where this process's local store is.
pub fn directory() -> PathBuf {
    PathBuf::from(format!("/tmp/coi_procs/{}/local_store", std::process::id()))
}

impl Buffers {
    /// Makes a buffer of `len` bytes, zero at first. Of one that fails nothing is left.
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
        let buffer = Buffer {
            path: Some(path),
            address,
            len: len as usize,
            offset,
        };
        Ok(self.add(id, buffer))
    }

    /// Makes a buffer of memory that the program has.
    pub fn adopt(&mut self, id: u64, address: u64, len: u64, dma: &Endpoint) -> io::Result<Window> {
        let (address, len) = (address as usize, len as usize);
        let fits = address
            .checked_add(len)
            .and_then(|end| end.checked_add(PAGE));
        if fits.is_none() || len == 0 || self.all.contains_key(&id) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut buffer = Buffer {
            path: None,
            address,
            len,
            offset: 0,
        };
        buffer.register(dma)?;
        Ok(self.add(id, buffer))
    }

    fn add(&mut self, id: u64, buffer: Buffer) -> Window {
        let window = buffer.window(id);
        self.by_address.insert(buffer.address, id);
        self.all.insert(id, buffer);
        window
    }

    /// Takes a buffer away.
    pub fn destroy(&mut self, id: u64, dma: &Endpoint) -> io::Result<()> {
        let buffer = self.all.remove(&id).ok_or(io::ErrorKind::NotFound)?;
        self.by_address.remove(&buffer.address);
        self.references.forget(id);
        let (start, len) = buffer.pages();
        let before = buffer.address - start;
        dma.unregister(buffer.offset - before as i64, len as u64)?;
        let Some(path) = buffer.path else {
            return Ok(());
        };
        unmap(buffer.address, buffer.len);
        fs::remove_file(path)
    }

    /// Registers every buffer on the connection that a restore made.
    pub fn register_again(&mut self, dma: &Endpoint) -> io::Result<()> {
        for buffer in self.all.values_mut() {
            buffer.register(dma)?;
        }
        Ok(())
    }

    /// The windows of all buffers.
    pub fn windows(&self) -> Vec<Window> {
        let windows = self.all.iter();
        windows.map(|(id, buffer)| buffer.window(*id)).collect()
    }

    /// Address and length of the part of a buffer that a run function is given.
    pub fn part(&self, part: &BufferUse) -> Result<(usize, u64), String> {
        let BufferUse {
            id, offset, len, ..
        } = *part;
        let buffer = self.all.get(&id);
        let buffer = buffer.ok_or_else(|| format!("buffer {id} does not exist"))?;
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > buffer.len as u64) {
            let has = buffer.len;
            return Err(format!(
                "{len} bytes at {offset} are not in buffer {id}, which has {has}"
            ));
        }
        Ok((buffer.address + offset as usize, len))
    }

    /// The buffer that has a byte at this address.
    pub fn at(&self, address: usize) -> Option<u64> {
        let (start, id) = self.by_address.range(..=address).next_back()?;
        let buffer = self.all.get(id)?;
        (address - start < buffer.len).then_some(*id)
    }

    /// The files of the local store: name and path.
    pub fn files(&self) -> Vec<(String, PathBuf, u64)> {
        let files = self.all.iter().filter_map(|(id, buffer)| {
            let path = buffer.path.clone()?;
            Some((id.to_string(), path, buffer.len as u64))
        });
        files.collect()
    }
}

impl Buffer {
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
