//! A system call on its way: who calls, what it may touch, and how it reaches the caller's memory.

use std::sync::Arc;

use snaprig_card_driver::{
    device::UserMemory,
    errno::Errno,
    file::Identity,
    wait::{Channel, Stop},
};
use snaprig_card_fs::call::read_c_string;
use snaprig_card_platform::Cpu;

use crate::{
    kernel::Kernel,
    state::{Process, State, Thread, lock},
};

/// A system call on its way: who calls, and what it may touch.
pub struct Call<'a> {
    pub(super) kernel: &'a Arc<Kernel>,
    pub(super) state: &'a mut State,
    pub(super) cpu: &'a mut dyn Cpu,
    pub(super) tid: i32,
    pub(super) pid: i32,
}

impl<'a> Call<'a> {
    /// A call of thread `tid`, whose CPU is `cpu`.
    pub fn new(
        kernel: &'a Arc<Kernel>,
        state: &'a mut State,
        tid: i32,
        cpu: &'a mut dyn Cpu,
    ) -> Self {
        let pid = state.thread(tid).pid;
        Self {
            kernel,
            state,
            cpu,
            tid,
            pid,
        }
    }

    pub(super) fn thread(&mut self) -> &mut Thread {
        self.state.thread(self.tid)
    }

    pub(super) fn process(&mut self) -> &mut Process {
        self.state.process(self.pid)
    }

    /// Who the caller is to others.
    pub fn identity(&mut self) -> Identity {
        let own = &self.process().credentials;
        Identity {
            uid: own.uid.effective,
            gid: own.gid.effective,
            pid: self.pid,
        }
    }

    /// Runs `f` with a function that wakes channels.
    pub fn with_wake(&mut self, f: impl FnOnce(&mut dyn FnMut(Channel))) {
        let mut woken = Vec::new();
        f(&mut |channel| woken.push(channel));
        for channel in woken {
            self.state.wake(channel);
        }
    }

    /// A path as the process means it.
    pub fn absolute(&mut self, path: &str) -> String {
        if path.starts_with('/') {
            return path.to_owned();
        }
        let context = self.process().fs.clone();
        let cwd = self.state.vfs.path_of(lock(&context).cwd.number, "");
        format!("{}/{path}", cwd.trim_end_matches('/'))
    }

    /// Copies out of the process.
    pub fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Stop> {
        let mm = self.process().mm.clone();
        Ok(lock(&mm).read(address, to)?)
    }

    /// Copies into the process.
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Stop> {
        let mm = self.process().mm.clone();
        Ok(lock(&mm).write(address, from)?)
    }

    /// Reads 32 bits.
    pub fn read_u32(&mut self, address: u64) -> Result<u32, Stop> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads 64-bit words.
    pub fn read_words<const N: usize>(&mut self, address: u64) -> Result<[u64; N], Stop> {
        let mut words = [0; N];
        for (index, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            self.read(address.wrapping_add(index as u64 * 8), &mut bytes)?;
            *word = u64::from_le_bytes(bytes);
        }
        Ok(words)
    }

    /// Writes 64-bit words.
    pub fn write_words(&mut self, address: u64, words: &[u64]) -> Result<(), Stop> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(address, &bytes)
    }

    /// Reads a string of fewer than `max` bytes; longer ones are E2BIG.
    pub fn read_bytes(&mut self, address: u64, max: usize) -> Result<Vec<u8>, Stop> {
        let mm = self.process().mm.clone();
        let bytes = read_c_string(&mut *lock(&mm), address, max).map_err(|errno| {
            if errno == Errno::ENAMETOOLONG {
                Errno::E2BIG
            } else {
                errno
            }
        })?;
        Ok(bytes)
    }

    /// The same, of text.
    pub fn read_string(&mut self, address: u64, max: usize) -> Result<String, Stop> {
        let bytes = self.read_bytes(address, max)?;
        String::from_utf8(bytes).map_err(|_| Errno::EINVAL.into())
    }
}
