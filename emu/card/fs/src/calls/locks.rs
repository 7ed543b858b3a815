//! Calls on advisory locks: flock(2), and the ones of fcntl(2).

use snaprig_card_driver::{
    errno::Errno,
    file::Cx,
    wait::{Stop, SysResult},
};

use crate::{
    call::FsCall,
    calls::stat::stat_of,
    files::regular::RegularFile,
    locks::{END, Owner, Range},
    table::Open,
};

/// F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW.
const OFD: std::ops::RangeInclusive<i32> = libc::F_OFD_GETLK..=libc::F_OFD_SETLKW;

/// Of mandatory locks nothing is left (flock(2)).
const LOCK_MAND: i32 = 32;

/// `struct flock` (x86-64).
struct Flock {
    kind: i32,
    whence: i32,
    start: i64,
    len: i64,
    pid: i32,
}

impl Flock {
    const BYTES: usize = 32;

    fn read(cx: &mut Cx, at: u64) -> Result<Self, Errno> {
        let mut bytes = [0; Self::BYTES];
        cx.memory.read(at, &mut bytes)?;
        let short = |at: usize| i16::from_le_bytes([bytes[at], bytes[at + 1]]).into();
        let word = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Ok(Self {
            kind: short(0),
            whence: short(2),
            start: word(8),
            len: word(16),
            pid: word(24) as i32,
        })
    }

    fn write(&self, cx: &mut Cx, at: u64) -> Result<(), Errno> {
        cx.memory.write(at, &(self.kind as i16).to_le_bytes())?;
        cx.memory
            .write(at + 2, &(self.whence as i16).to_le_bytes())?;
        cx.memory.write(at + 8, &self.start.to_le_bytes())?;
        cx.memory.write(at + 16, &self.len.to_le_bytes())?;
        cx.memory.write(at + 24, &self.pid.to_le_bytes())
    }

    /// The bytes that it means (fs/locks.c, flock64_to_posix_lock).
    fn range(&self, open: &Open, size: u64) -> Result<(u64, u64), Errno> {
        let file = open.file.as_any().downcast_ref::<RegularFile>();
        let base = match self.whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => file.map_or(0, RegularFile::position) as i64,
            libc::SEEK_END => size as i64,
            _ => return Err(Errno::EINVAL),
        };
        let start = base.checked_add(self.start).ok_or(Errno::EOVERFLOW)?;
        let start = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
        let far = start.saturating_add_signed(self.len);
        match self.len {
            0 => Ok((start, END)),
            len if len > 0 && far > END => Err(Errno::EOVERFLOW),
            len if len > 0 => Ok((start, far)),
            len if start < len.unsigned_abs() => Err(Errno::EINVAL),
            _ => Ok((far, start)),
        }
    }
}

impl FsCall<'_> {
    /// flock(2).
    pub fn flock(&mut self, fd: i32, operation: i32) -> SysResult {
        if operation & LOCK_MAND != 0 {
            return Ok(0);
        }
        let exclusive = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => Some(false),
            libc::LOCK_EX => Some(true),
            libc::LOCK_UN => None,
            _ => return Err(Errno::EINVAL.into()),
        };
        let open = self.files.get(fd)?;
        if exclusive.is_some() && open.flags() & libc::O_ACCMODE == libc::O_ACCMODE {
            return Err(Errno::EBADF.into());
        }
        let Some((locks, id)) = open.locks() else {
            return Ok(0);
        };
        match locks.lock_whole(id, exclusive, self.cx.wake) {
            true => Ok(0),
            false if operation & libc::LOCK_NB != 0 => Err(Errno::EAGAIN.into()),
            false => Err(Stop::wait(locks.channel)),
        }
    }

    /// fcntl(2): F_GETLK, F_SETLK, F_SETLKW, and those of open file descriptions.
    pub fn record_lock(&mut self, open: &Open, command: i32, at: u64) -> SysResult {
        self.waits.locks.forget(self.cx.tid);
        let mut flock = Flock::read(&mut self.cx, at)?;
        let is_ofd = OFD.contains(&command);
        let locks = open.locks();
        let table = self.files.id();
        let owner = match (is_ofd, &locks) {
            (true, Some((_, id))) => Owner::Description(*id),
            _ => Owner::Table(table, self.cx.pid),
        };
        let is_query = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
        if is_query && flock.kind == libc::F_UNLCK && !is_ofd {
            return Err(Errno::EINVAL.into());
        }
        let (start, end) = flock.range(open, stat_of(open, self.vfs).size)?;
        let exclusive = match flock.kind {
            libc::F_RDLCK => Some(false),
            libc::F_WRLCK => Some(true),
            libc::F_UNLCK => None,
            _ => return Err(Errno::EINVAL.into()),
        };
        if !is_query {
            match exclusive {
                Some(false) => open.check_readable()?,
                Some(true) => open.check_writable()?,
                None => {}
            }
        }
        if is_ofd && flock.pid != 0 {
            return Err(Errno::EINVAL.into());
        }
        let wanted = Range {
            start,
            end,
            exclusive: exclusive.unwrap_or(false),
        };
        let conflict = locks.and_then(|(locks, _)| match exclusive {
            Some(_) => locks.conflict(owner, &wanted),
            None => None,
        });
        if is_query {
            flock.kind = libc::F_UNLCK;
            if let Some((holder, range)) = conflict {
                flock.kind = match range.exclusive {
                    true => libc::F_WRLCK,
                    false => libc::F_RDLCK,
                };
                flock.whence = libc::SEEK_SET;
                flock.start = range.start as i64;
                flock.len = match range.end {
                    END => 0,
                    end => (end - range.start) as i64,
                };
                flock.pid = match holder {
                    Owner::Table(_, pid) => pid,
                    Owner::Description(_) => -1,
                };
            }
            flock.write(&mut self.cx, at)?;
            return Ok(0);
        }
        let Some((locks, _)) = locks else {
            return Ok(0);
        };
        let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
        match conflict {
            None => locks.set(owner, (start, end), exclusive, self.cx.wake)?,
            Some(_) if !waits => return Err(Errno::EAGAIN.into()),
            Some((holder, _)) => {
                if let (Owner::Table(holder, _), Owner::Table(table, _)) = (holder, owner) {
                    self.waits.locks.wait(self.cx.tid, table, holder)?;
                }
                return Err(Stop::wait(locks.channel));
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use snaprig_card_driver::{errno::Errno, wait::SysResult};

    use crate::{
        image::locks::{image, restore},
        locks::LockWaits,
        test_kit::{Kit, error, is_wait},
    };

    const AT: u64 = 0x500;

    fn lock(kit: &mut Kit, fd: u64, command: i32, kind: i32, start: u64, len: u64) -> SysResult {
        kit.put_words(AT, &[kind as u64, start, len, 0]);
        kit.call(libc::SYS_fcntl, &[fd, command as u64, AT])
    }

    fn two_descriptions() -> (Kit, u64, u64) {
        let mut kit = Kit::new();
        kit.file("/tmp/a", &[7; 100]);
        let one = kit.open("/tmp/a", libc::O_RDWR).unwrap();
        let other = kit.open("/tmp/a", libc::O_RDWR).unwrap();
        (kit, one, other)
    }

    #[test]
    fn a_hole_in_a_lock_is_free_and_what_is_left_is_told() {
        let (mut kit, one, other) = two_descriptions();
        let set = libc::F_OFD_SETLK;
        assert_eq!(lock(&mut kit, one, set, libc::F_WRLCK, 10, 30), Ok(0));
        assert_eq!(lock(&mut kit, one, set, libc::F_UNLCK, 20, 5), Ok(0));
        let taken = error(Errno::EAGAIN);
        assert_eq!(lock(&mut kit, other, set, libc::F_RDLCK, 15, 6), taken);
        assert_eq!(lock(&mut kit, other, set, libc::F_WRLCK, 20, 5), Ok(0));
        // The process's own locks are somebody else's too.
        lock(&mut kit, other, libc::F_GETLK, libc::F_RDLCK, 22, 0).unwrap();
        assert_eq!(kit.bytes(AT as usize + 8, 1), [25]);
        let waits = libc::F_OFD_SETLKW;
        assert!(is_wait(&lock(&mut kit, other, waits, libc::F_WRLCK, 0, 0)));
        kit.call(libc::SYS_close, &[one]).unwrap();
        assert_eq!(lock(&mut kit, other, waits, libc::F_WRLCK, 0, 0), Ok(0));
    }

    #[test]
    fn closing_any_descriptor_of_a_file_gives_up_the_locks_of_the_process() {
        let (mut kit, one, other) = two_descriptions();
        assert_eq!(
            lock(&mut kit, one, libc::F_SETLK, libc::F_WRLCK, 0, 0),
            Ok(0)
        );
        let other_owner = |kit: &mut Kit| lock(kit, one, libc::F_OFD_SETLK, libc::F_RDLCK, 0, 1);
        assert_eq!(other_owner(&mut kit), error(Errno::EAGAIN));
        kit.call(libc::SYS_close, &[other]).unwrap();
        assert_eq!(other_owner(&mut kit), Ok(0));
    }

    #[test]
    fn a_circle_of_waiting_processes_is_refused() {
        let mut waits = LockWaits::default();
        assert_eq!(waits.wait(1, 10, 20), Ok(()));
        assert_eq!(waits.wait(2, 20, 30), Ok(()));
        assert_eq!(waits.wait(3, 30, 10), Err(Errno::EDEADLK));
        waits.forget(2);
        assert_eq!(waits.wait(3, 30, 10), Ok(()));
    }

    #[test]
    fn locks_come_back_unless_somebody_is_in_the_way() {
        let (mut kit, one, other) = two_descriptions();
        kit.call(libc::SYS_flock, &[one, libc::LOCK_EX as u64])
            .unwrap();
        lock(&mut kit, one, libc::F_SETLK, libc::F_WRLCK, 5, 5).unwrap();
        let open = |kit: &Kit, fd: u64| kit.files.get(fd as i32).unwrap();
        let saved = image(&open(&kit, one), kit.files.id());
        let (target, table) = (open(&kit, other), kit.files.id());
        let again = || restore(&target, (table, 1), &saved, &mut |_| {});
        assert_eq!(again(), Err(Errno::EAGAIN));
        kit.call(libc::SYS_close, &[one]).unwrap();
        assert_eq!(again(), Ok(()));
        let third = kit.open("/tmp/a", libc::O_RDWR).unwrap();
        let taken = error(Errno::EAGAIN);
        let exclusive = (libc::LOCK_EX | libc::LOCK_NB) as u64;
        assert_eq!(kit.call(libc::SYS_flock, &[third, exclusive]), taken);
        let set = libc::F_OFD_SETLK;
        assert_eq!(lock(&mut kit, third, set, libc::F_RDLCK, 9, 1), taken);
        assert_eq!(lock(&mut kit, third, set, libc::F_RDLCK, 10, 1), Ok(0));
    }
}
