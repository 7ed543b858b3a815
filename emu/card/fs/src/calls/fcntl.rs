//! fcntl(2).

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use crate::{
    call::FsCall,
    files::{pipe::PipeEnd, regular::RegularFile},
    table::Open,
};

/// All seals that there are.
const SEALS: i32 = libc::F_SEAL_SEAL
    | libc::F_SEAL_SHRINK
    | libc::F_SEAL_GROW
    | libc::F_SEAL_WRITE
    | libc::F_SEAL_FUTURE_WRITE
    | libc::F_SEAL_EXEC;

impl FsCall<'_> {
    /// fcntl(2).
    pub fn fcntl(&mut self, fd: i32, command: i32, argument: u64) -> SysResult {
        let open = self.files.get_any(fd)?;
        let of_descriptor = [
            libc::F_DUPFD,
            libc::F_DUPFD_CLOEXEC,
            libc::F_GETFD,
            libc::F_SETFD,
            libc::F_GETFL,
        ];
        if open.is_path_only() && !of_descriptor.contains(&command) {
            return Err(Errno::EBADF.into());
        }
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                let from = argument as u32;
                if from as usize >= self.limit_nofile {
                    return Err(Errno::EINVAL.into());
                }
                self.dup(fd, from as i32, command == libc::F_DUPFD_CLOEXEC)
            }
            libc::F_GETFD => Ok(self.files.closes_on_exec(fd)?.into()),
            libc::F_SETFD => {
                let close = argument & libc::FD_CLOEXEC as u64 != 0;
                self.files.set_close_on_exec(fd, close)?;
                Ok(0)
            }
            libc::F_GETFL => Ok(open.flags() as u64),
            libc::F_SETFL => set_flags(&open, argument as i32),
            libc::F_GETLK
            | libc::F_SETLK
            | libc::F_SETLKW
            | libc::F_OFD_GETLK
            | libc::F_OFD_SETLK
            | libc::F_OFD_SETLKW => self.record_lock(&open, command, argument),
            // Nobody is told of anything by a signal.
            libc::F_GETOWN | F_GETSIG => Ok(0),
            libc::F_GETLEASE => Ok(libc::F_UNLCK as u64),
            libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => {
                let end = open.file.as_any().downcast_ref::<PipeEnd>();
                let end = end.ok_or(Errno::EBADF)?;
                if command == libc::F_SETPIPE_SZ {
                    end.set_capacity(argument as u32, self.cx.wake)?;
                }
                Ok(end.capacity() as u64)
            }
            libc::F_ADD_SEALS => add_seals(&open, argument),
            libc::F_GET_SEALS => {
                let file = open.file.as_any().downcast_ref::<RegularFile>();
                Ok(file.ok_or(Errno::EINVAL)?.inode().seals() as u64)
            }
            _ => Err(Errno::EINVAL.into()),
        }
    }
}

const F_GETSIG: i32 = 11;

fn set_flags(open: &Open, flags: i32) -> SysResult {
    let file = open.file.as_any();
    let regular = file.downcast_ref::<RegularFile>();
    let direct = file.is::<PipeEnd>() || regular.is_some_and(|file| !file.is_memory_file());
    if flags & libc::O_DIRECT != 0 && !direct {
        return Err(Errno::EINVAL.into());
    }
    open.set_flags(flags);
    Ok(0)
}

/// F_ADD_SEALS. (A mapping that could be written through does not keep F_SEAL_WRITE away.)
fn add_seals(open: &Open, seals: u64) -> SysResult {
    let seals = u32::try_from(seals).map_err(|_| Errno::EINVAL)? as i32;
    open.check_writable().map_err(|_| Errno::EPERM)?;
    if seals & !SEALS != 0 {
        return Err(Errno::EINVAL.into());
    }
    let file = open.file.as_any().downcast_ref::<RegularFile>();
    let inode = file.ok_or(Errno::EINVAL)?.inode();
    let fixed =
        libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE;
    let is_program = inode.mode() & 0o111 != 0;
    inode.seal(match seals & libc::F_SEAL_EXEC {
        0 => seals,
        _ if is_program => seals | fixed,
        _ => seals,
    })?;
    Ok(0)
}
