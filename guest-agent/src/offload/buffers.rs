//! COI buffers on the sink: each is a file of the local store, mapped shared, and a window on the
//! DMA channel (paper section 2).

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::PathBuf,
};

use snaprig_wire::coi::Window;

use crate::scif::Endpoint;

/// All buffers of the process.
#[derive(Default)]
pub struct Buffers(BTreeMap<u64, Buffer>);

struct Buffer {
    path: PathBuf,
    address: usize,
    len: usize,
    offset: i64,
    /// Keeps the file's description in the process, and so in its snapshot.
    _file: File,
}

/// Where this process's local store is.
pub fn directory() -> PathBuf {
    PathBuf::from(format!("/tmp/coi_procs/{}/local_store", std::process::id()))
}

impl Buffers {
    /// Makes a buffer of `len` bytes, zero at first.
    pub fn create(&mut self, id: u64, len: u64, dma: &Endpoint) -> io::Result<Window> {
        let directory = directory();
        fs::create_dir_all(&directory)?;
        let path = directory.join(id.to_string());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        file.set_len(len)?;
        let address = map(&file, len as usize)?;
        let offset = dma.register(address, len as usize, None)?;
        let buffer = Buffer {
            path,
            address,
            len: len as usize,
            offset,
            _file: file,
        };
        self.0.insert(id, buffer);
        Ok(Window { id, offset, len })
    }

    /// Takes a buffer away.
    pub fn destroy(&mut self, id: u64, dma: &Endpoint) -> io::Result<()> {
        let buffer = self.0.remove(&id).ok_or(io::ErrorKind::NotFound)?;
        dma.unregister(buffer.offset, buffer.len as u64)?;
        // SAFETY: the mapping was made by `create`; the host has said that no run function uses it.
        unsafe { libc::munmap(buffer.address as *mut libc::c_void, buffer.len) };
        fs::remove_file(buffer.path)
    }

    /// Registers every buffer on the connection that a restore made.
    pub fn register_again(&mut self, dma: &Endpoint) -> io::Result<()> {
        for buffer in self.0.values_mut() {
            buffer.offset = dma.register(buffer.address, buffer.len, None)?;
        }
        Ok(())
    }

    /// The windows of all buffers.
    pub fn windows(&self) -> Vec<Window> {
        self.0
            .iter()
            .map(|(id, b)| Window {
                id: *id,
                offset: b.offset,
                len: b.len as u64,
            })
            .collect()
    }

    /// Address and length of a buffer.
    pub fn get(&self, id: u64) -> Option<(usize, usize)> {
        self.0.get(&id).map(|buffer| (buffer.address, buffer.len))
    }

    /// The files of the local store: name and path.
    pub fn files(&self) -> Vec<(String, PathBuf, u64)> {
        self.0
            .iter()
            .map(|(id, buffer)| (id.to_string(), buffer.path.clone(), buffer.len as u64))
            .collect()
    }
}

fn map(file: &File, len: usize) -> io::Result<usize> {
    // SAFETY: a new mapping of a file of ours; the result is checked.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(address as usize)
}
