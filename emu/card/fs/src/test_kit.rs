//! For tests of file calls: a file system, one process's descriptors and memory, and no threads.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use snaprig_card_driver::{
    device::{Pinned, UserMemory, WakeTarget, Waker},
    errno::Errno,
    file::{Cx, File},
    wait::{Channel, Stop, SysResult},
};
use snaprig_card_memory::CardMemory;

use crate::{
    call::FsCall, calls::syscall, context::FsContext, file_waits::FileWaits, files::console,
    proc::ProcInfo, processors::Topology, sockets::Sockets, table::FileTable, tree::Vfs,
};

/// Where calls find a path, and another.
const PATH: u64 = 0x1000;
const OTHER_PATH: u64 = 0x3000;
/// Where calls put two descriptors.
const PAIR: u64 = 0x800;

/// Memory of the process, from address 0 on.
pub struct Memory(pub Vec<u8>);

impl Memory {
    fn range(&self, at: u64, len: usize) -> Result<std::ops::Range<usize>, Errno> {
        let end = at.checked_add(len as u64).ok_or(Errno::EFAULT)?;
        if end > self.0.len() as u64 {
            return Err(Errno::EFAULT);
        }
        Ok(at as usize..end as usize)
    }
}

impl UserMemory for Memory {
    fn maps(&self) -> String {
        String::new()
    }

    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), Errno> {
        let range = self.range(at, to.len())?;
        to.copy_from_slice(&self.0[range]);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Errno> {
        let range = self.range(at, from.len())?;
        self.0[range].copy_from_slice(from);
        Ok(())
    }

    fn writable(&mut self, at: u64, len: usize) -> usize {
        let left = (self.0.len() as u64).saturating_sub(at);
        len.min(usize::try_from(left).unwrap_or(len))
    }

    fn pin(&mut self, _: u64, _: u64, _: bool) -> Result<Pinned, Errno> {
        Err(Errno::ENOSYS)
    }
}

struct Proc;

impl ProcInfo for Proc {
    fn exe(&self) -> String {
        "/bin/program".into()
    }
    fn cmdline(&self) -> Vec<u8> {
        Vec::new()
    }
    fn status(&self) -> String {
        String::new()
    }
    fn stat(&self) -> String {
        String::new()
    }
    fn topology(&self) -> Topology {
        Topology::of_cores(2)
    }
}

/// Wakes nobody.
pub struct Nobody;

impl WakeTarget for Nobody {
    fn wake(&self, _: Channel) {}
}

/// One process's view.
pub struct Kit {
    pub vfs: Vfs,
    pub sockets: Sockets,
    pub waits: FileWaits,
    pub memory: Memory,
    pub files: FileTable,
    pub fs: FsContext,
    pub limit_nofile: usize,
    pub now: Duration,
    pub deadline: Option<Duration>,
    pub progress: usize,
    pub sigpipe: bool,
    /// How often calls have woken anybody.
    pub wakes: usize,
}

impl Kit {
    pub fn new() -> Self {
        let memory = Arc::new(CardMemory::new(32 << 20).unwrap());
        let vfs = Vfs::new(memory).unwrap();
        Self {
            fs: FsContext::new(&vfs),
            vfs,
            sockets: Sockets::default(),
            waits: FileWaits::default(),
            memory: Memory(vec![0; 8 << 20]),
            files: FileTable::new(Self::stdio()),
            limit_nofile: 1024,
            now: Duration::from_secs(1),
            deadline: None,
            progress: 0,
            sigpipe: false,
            wakes: 0,
        }
    }

    pub fn stdio() -> [Arc<dyn File>; 3] {
        std::array::from_fn(|_| console::Output::new(|_: &[u8]| {}) as Arc<dyn File>)
    }

    /// One attempt of a call; one that waits is the same call the next time.
    pub fn call(&mut self, number: i64, arguments: &[u64]) -> SysResult {
        let mut args = [0; 6];
        args[..arguments.len()].copy_from_slice(arguments);
        let waker = Waker::new(Weak::<Nobody>::new());
        let mut wake = |_| self.wakes += 1;
        let mut call = FsCall {
            cx: Cx {
                tid: 1,
                pid: 1,
                identity: Default::default(),
                memory: &mut self.memory,
                wake: &mut wake,
                waker: &waker,
                nonblock: false,
                append: false,
                now: self.now,
            },
            files: &mut self.files,
            fs: &mut self.fs,
            vfs: &mut self.vfs,
            sockets: &mut self.sockets,
            waits: &mut self.waits,
            limit_nofile: self.limit_nofile,
            proc: &Proc,
            deadline: &mut self.deadline,
            progress: &mut self.progress,
            sigpipe: &mut self.sigpipe,
        };
        let result = syscall(&mut call, number as u64, args).unwrap_or(error(Errno::ENOSYS));
        if !is_wait(&result) {
            (self.deadline, self.progress) = (None, 0);
        }
        result
    }

    /// What another thread does while a call waits.
    pub fn meanwhile<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let kept = (self.deadline.take(), std::mem::take(&mut self.progress));
        let result = f(self);
        (self.deadline, self.progress) = kept;
        result
    }

    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes).unwrap();
    }

    pub fn put_words(&mut self, at: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.put(at + index as u64 * 8, &word.to_le_bytes());
        }
    }

    pub fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.memory.0[at..at + len]
    }

    pub fn path(&mut self, path: &str) -> u64 {
        self.put(PATH, format!("{path}\0").as_bytes());
        PATH
    }

    pub fn other_path(&mut self, path: &str) -> u64 {
        self.put(OTHER_PATH, format!("{path}\0").as_bytes());
        OTHER_PATH
    }

    pub fn two_paths(&mut self, number: i64, one: &str, other: &str) -> SysResult {
        let (one, other) = (self.path(one), self.other_path(other));
        self.call(number, &[one, other])
    }

    pub fn exists(&self, path: &str) -> bool {
        self.vfs.lookup(self.vfs.root(), path, false).is_ok()
    }

    pub fn open(&mut self, path: &str, flags: i32) -> SysResult {
        let path = self.path(path);
        self.call(libc::SYS_open, &[path, flags as u64, 0o644])
    }

    pub fn file(&mut self, path: &str, bytes: &[u8]) {
        self.vfs.write_file(path, bytes, 0o644).unwrap();
    }

    pub fn pipe(&mut self, flags: i32) -> (u64, u64) {
        self.call(libc::SYS_pipe2, &[PAIR, flags as u64]).unwrap();
        self.pair()
    }

    pub fn sockets(&mut self) -> (u64, u64) {
        self.call(libc::SYS_socketpair, &[1, 1, 0, PAIR]).unwrap();
        self.pair()
    }

    fn pair(&self) -> (u64, u64) {
        let fd = |at| u32::from_le_bytes(self.bytes(at, 4).try_into().unwrap()).into();
        (fd(PAIR as usize), fd(PAIR as usize + 4))
    }
}

/// What a call that failed returned.
pub fn error<T>(errno: Errno) -> SysResult<T> {
    Err(errno.into())
}

pub fn is_wait<T>(result: &SysResult<T>) -> bool {
    matches!(result, Err(Stop::Wait(_)))
}
