//! A file call on its way: who calls, what it may touch, and what most calls do with that.

use std::{sync::Arc, time::Duration};

use snaprig_card_driver::{device::UserMemory, errno::Errno, file::Cx, wait::SysResult};

use crate::{
    context::FsContext,
    file_waits::FileWaits,
    proc::ProcInfo,
    sockets::Sockets,
    table::{FileTable, Open},
    tree::Vfs,
};

/// Most bytes that are read or written at once.
pub const IO_MAX: usize = 1 << 20;

/// A file call on its way.
pub struct FsCall<'a> {
    /// The caller.
    pub cx: Cx<'a>,
    /// Its descriptors.
    pub files: &'a mut FileTable,
    /// Its working directory and umask.
    pub fs: &'a mut FsContext,
    /// The file system.
    pub vfs: &'a mut Vfs,
    /// What all sockets of the card share.
    pub sockets: &'a mut Sockets,
    /// Who waits in a call for a file that is not open yet, or for a lock.
    pub waits: &'a mut FileWaits,
    /// Descriptors that it may have.
    pub limit_nofile: usize,
    /// What /proc/self says.
    pub proc: &'a dyn ProcInfo,
    /// When the call stops waiting; kept over its attempts.
    pub deadline: &'a mut Option<Duration>,
    /// Bytes that the call has moved; kept over its attempts.
    pub progress: &'a mut usize,
    /// Set if the thread gets SIGPIPE.
    pub sigpipe: &'a mut bool,
}

impl FsCall<'_> {
    /// The description that a call works on, with its status flags in the context.
    pub fn open_for(&mut self, fd: i32) -> Result<Arc<Open>, Errno> {
        let open = self.files.get(fd)?;
        self.cx.nonblock = open.nonblock();
        self.cx.append = open.flags() & libc::O_APPEND != 0;
        Ok(open)
    }

    /// EMFILE unless there is room for `count` descriptors.
    pub fn check_room(&self, count: usize) -> Result<(), Errno> {
        self.files.check_room(count, self.limit_nofile)
    }

    /// A new descriptor. Who makes something that must be released has called
    /// [`FsCall::check_room`] before.
    pub fn insert(&mut self, open: Arc<Open>, close: bool) -> SysResult {
        Ok(self.files.insert(open, close, 0, self.limit_nofile)? as u64)
    }

    /// Two new descriptors, written to `to` as two ints.
    pub fn insert_pair(
        &mut self,
        to: u64,
        one: Arc<Open>,
        other: Arc<Open>,
        close: bool,
    ) -> SysResult {
        self.check_room(2)?;
        let (one, other) = (self.insert(one, close)?, self.insert(other, close)?);
        let bytes = [(one as i32).to_le_bytes(), (other as i32).to_le_bytes()].concat();
        if let Err(errno) = self.cx.memory.write(to, &bytes) {
            self.files.close(one as i32, self.cx.wake)?;
            self.files.close(other as i32, self.cx.wake)?;
            return Err(errno.into());
        }
        Ok(0)
    }
}

/// The flags, if there are none but `known`.
pub fn only(flags: i32, known: i32) -> SysResult<i32> {
    match flags & !known {
        0 => Ok(flags),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// Reads a zero-terminated string of fewer than `max` bytes; a longer one is ENAMETOOLONG.
pub fn read_c_string(
    memory: &mut dyn UserMemory,
    address: u64,
    max: usize,
) -> Result<Vec<u8>, Errno> {
    let mut string = Vec::new();
    loop {
        let at = address
            .checked_add(string.len() as u64)
            .ok_or(Errno::EFAULT)?;
        // Up to the end of the page, which is as far as one may look.
        let part = (4096 - at % 4096) as usize;
        let mut bytes = vec![0; part];
        memory.read(at, &mut bytes)?;
        match bytes.iter().position(|byte| *byte == 0) {
            Some(end) => string.extend_from_slice(&bytes[..end]),
            None => string.extend_from_slice(&bytes),
        }
        if string.len() >= max {
            return Err(Errno::ENAMETOOLONG);
        }
        if bytes.contains(&0) {
            return Ok(string);
        }
    }
}
