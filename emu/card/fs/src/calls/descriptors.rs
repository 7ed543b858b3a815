//! Calls on descriptors.

use std::sync::{Arc, atomic::Ordering};

use snaprig_card_driver::{
    errno::Errno,
    file::Description,
    wait::{Stop, SysResult},
};

use crate::{
    call::{FsCall, IO_MAX, only, read_c_string},
    calls::{attributes::is_anonymous, links, open::O_LARGEFILE},
    files::{
        event::Event,
        pipe,
        regular::{Directory, RegularFile},
        socket::Socket,
    },
    inode::Inode,
    meta::Meta,
    table::Open,
    tree::FIRST_COOKIE,
};

/// ioctl(2): not to be closed on exec.
const FIONCLEX: u64 = 0x5450;
/// What fallocate(2) knows, though not all of it is there for every file.
const FALLOCATE_KNOWN: i32 = libc::FALLOC_FL_KEEP_SIZE
    | libc::FALLOC_FL_PUNCH_HOLE
    | libc::FALLOC_FL_COLLAPSE_RANGE
    | libc::FALLOC_FL_ZERO_RANGE
    | libc::FALLOC_FL_INSERT_RANGE
    | libc::FALLOC_FL_UNSHARE_RANGE;

/// Bytes of a memfd's name, with the zero: `memfd:` goes before it (memfd_create(2)).
const MEMFD_NAME_MAX: usize = 250;

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let int = |i: usize| a[i] as i32;
    Some(match number as i64 {
        libc::SYS_close => call.close(int(0)),
        libc::SYS_close_range => call.close_range(a[0], a[1], int(2)),
        libc::SYS_dup => call.dup(int(0), 0, false),
        libc::SYS_dup2 if a[0] == a[1] => {
            call.files.get_any(int(0)).map(|_| a[0]).map_err(Stop::from)
        }
        libc::SYS_dup2 => call.dup_at(int(0), int(1), false),
        libc::SYS_dup3 => {
            only(int(2), libc::O_CLOEXEC).and_then(|flags| call.dup_at(int(0), int(1), flags != 0))
        }
        libc::SYS_fcntl => call.fcntl(int(0), int(1), a[2]),
        libc::SYS_flock => call.flock(int(0), int(1)),
        libc::SYS_lseek => call.lseek(int(0), a[1] as i64, int(2)),
        libc::SYS_getdents64 => call.getdents64(int(0), a[1], a[2] as usize),
        libc::SYS_ftruncate => call.ftruncate(int(0), a[1]),
        libc::SYS_fallocate => call.fallocate(int(0), int(1), a[2], a[3]),
        libc::SYS_fsync | libc::SYS_fdatasync => call.fsync(int(0)),
        libc::SYS_fadvise64 => call.fadvise(int(0), a[2] as i64, int(3)),
        libc::SYS_readahead => call.readahead(int(0), a[2] as i64),
        libc::SYS_sync_file_range => call.sync_file_range(int(0), a[1] as i64, a[2] as i64, int(3)),
        libc::SYS_syncfs => call.files.get(int(0)).map(|_| 0).map_err(Stop::from),
        libc::SYS_sync => Ok(0),
        libc::SYS_umask => {
            let before = call.fs.umask;
            call.fs.umask = a[0] as u32 & 0o777;
            Ok(before.into())
        }
        libc::SYS_pipe => call.pipe(a[0], 0),
        libc::SYS_pipe2 => call.pipe(a[0], int(1)),
        libc::SYS_eventfd => call.eventfd(a[0], 0),
        libc::SYS_eventfd2 => call.eventfd(a[0], int(1)),
        libc::SYS_memfd_create => call.memfd_create(a[0], a[1] as u32),
        libc::SYS_ioctl => call.ioctl(int(0), a[1] as u32, a[2]),
        _ => return None,
    })
}

impl FsCall<'_> {
    fn regular<T>(
        &mut self,
        fd: i32,
        f: impl FnOnce(&Arc<Inode>) -> Result<T, Errno>,
    ) -> SysResult<T> {
        let open = self.files.get(fd)?;
        let file = open
            .file
            .as_any()
            .downcast_ref::<RegularFile>()
            .ok_or(Errno::EINVAL)?;
        Ok(f(file.inode())?)
    }

    fn close(&mut self, fd: i32) -> SysResult {
        self.files.close(fd, self.cx.wake)?;
        Ok(0)
    }

    fn close_range(&mut self, first: u64, last: u64, flags: i32) -> SysResult {
        only(
            flags,
            (libc::CLOSE_RANGE_CLOEXEC | libc::CLOSE_RANGE_UNSHARE) as i32,
        )?;
        // Descriptors are unsigned ints here (close_range(2)).
        let (first, last) = (first as u32, last as u32);
        if first > last {
            return Err(Errno::EINVAL.into());
        }
        let range = first..=last;
        let fds: Vec<_> = self
            .files
            .iter()
            .map(|(fd, ..)| fd)
            .filter(|fd| range.contains(&(*fd as u32)))
            .collect();
        for fd in fds {
            if flags & libc::CLOSE_RANGE_CLOEXEC as i32 != 0 {
                self.files.set_close_on_exec(fd, true)?;
            } else {
                self.files.close(fd, self.cx.wake)?;
            }
        }
        Ok(0)
    }

    /// dup(2), to the lowest free number from `from` on.
    pub fn dup(&mut self, fd: i32, from: i32, close: bool) -> SysResult {
        let open = self.files.get_any(fd)?;
        Ok(self.files.insert(open, close, from, self.limit_nofile)? as u64)
    }

    fn dup_at(&mut self, fd: i32, to: i32, close: bool) -> SysResult {
        if fd == to {
            return Err(Errno::EINVAL.into());
        }
        let open = self.files.get_any(fd)?;
        if to < 0 || to as usize >= self.limit_nofile {
            return Err(Errno::EBADF.into());
        }
        self.files.insert_at(to, open, close, self.cx.wake);
        Ok(to as u64)
    }

    /// posix_fadvise(2). Files are in memory: there is nothing to bring in or out.
    fn fadvise(&mut self, fd: i32, len: i64, advice: i32) -> SysResult {
        let open = self.files.get(fd)?;
        if matches!(open.file.describe(), Description::Pipe { .. }) {
            return Err(Errno::ESPIPE.into());
        }
        match len >= 0 && (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice) {
            true => Ok(0),
            false => Err(Errno::EINVAL.into()),
        }
    }

    fn readahead(&mut self, fd: i32, len: i64) -> SysResult {
        self.files.get(fd)?.check_readable()?;
        self.regular(fd, |_| match len {
            0.. => Ok(0),
            _ => Err(Errno::EINVAL),
        })
    }

    fn sync_file_range(&mut self, fd: i32, offset: i64, len: i64, flags: i32) -> SysResult {
        let open = self.files.get(fd)?;
        let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        only(flags, all as i32)?;
        let end = offset.checked_add(len);
        if offset < 0 || end.is_none_or(|end| end < offset) {
            return Err(Errno::EINVAL.into());
        }
        match open.file.describe() {
            Description::Path { .. } => Ok(0),
            _ => Err(Errno::ESPIPE.into()),
        }
    }

    fn lseek(&mut self, fd: i32, offset: i64, whence: i32) -> SysResult {
        let open = self.files.get(fd)?;
        if !(libc::SEEK_SET..=libc::SEEK_HOLE).contains(&whence) {
            return Err(Errno::EINVAL.into());
        }
        if let Some(directory) = open.file.as_any().downcast_ref::<Directory>() {
            let base = match whence {
                libc::SEEK_SET => 0,
                libc::SEEK_CUR => directory.position.load(Ordering::Relaxed),
                _ => return Err(Errno::EINVAL.into()),
            };
            let to = base.checked_add_signed(offset);
            let to = to
                .filter(|to| *to <= i64::MAX as u64)
                .ok_or(Errno::EINVAL)?;
            directory.position.store(to, Ordering::Relaxed);
            return Ok(to);
        }
        if let Some(file) = open.file.as_any().downcast_ref::<RegularFile>() {
            return Ok(file.seek(offset, whence)?);
        }
        match open.file.describe() {
            // They have no position, and do not mind.
            Description::Device { .. } => Ok(0),
            description if is_anonymous(&description) => Ok(0),
            _ => Err(Errno::ESPIPE.into()),
        }
    }

    /// fsync(2): files are in memory, so there is nothing to do.
    fn fsync(&mut self, fd: i32) -> SysResult {
        match self.files.get(fd)?.file.describe() {
            Description::Path { .. } => Ok(0),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn getdents64(&mut self, fd: i32, to: u64, max: usize) -> SysResult {
        let open = self.files.get(fd)?;
        let directory = open
            .file
            .as_any()
            .downcast_ref::<Directory>()
            .ok_or(Errno::ENOTDIR)?;
        if directory.meta().lock().nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        self.refresh_fd_names(directory.path())?;
        let position = &directory.position;
        let (node, names) = (directory.node(), self.vfs.directory(directory.node())?);
        let up = self.vfs.parent(node)?;
        let from = position.load(Ordering::Relaxed);
        let dots = [(1, ".", node), (2, "..", up)];
        let entries = dots
            .into_iter()
            .filter(|(cookie, ..)| *cookie > from)
            .chain(names.after(from.max(FIRST_COOKIE - 1)));
        let (mut bytes, mut last) = (Vec::new(), from);
        for (cookie, name, node) in entries {
            let mode = self.vfs.stat(node).map_or(0, |stat| stat.mode);
            let len = (19 + name.len() + 1).next_multiple_of(8);
            if bytes.len() + len > max.min(IO_MAX) {
                if bytes.is_empty() {
                    return Err(Errno::EINVAL.into());
                }
                break;
            }
            last = cookie;
            let start = bytes.len();
            bytes.extend_from_slice(&node.to_le_bytes());
            bytes.extend_from_slice(&cookie.to_le_bytes());
            bytes.extend_from_slice(&(len as u16).to_le_bytes());
            // DT_* is the type of st_mode, shifted (readdir(3)).
            bytes.push((mode >> 12) as u8);
            bytes.extend_from_slice(name.as_bytes());
            bytes.resize(start + len, 0);
        }
        self.cx.memory.write(to, &bytes)?;
        position.store(last, Ordering::Relaxed);
        Ok(bytes.len() as u64)
    }

    fn ftruncate(&mut self, fd: i32, size: u64) -> SysResult {
        if size > i64::MAX as u64 {
            return Err(Errno::EINVAL.into());
        }
        // Of the calls that write this is the one that says EINVAL (truncate(2)).
        let open = self.files.get(fd)?;
        open.check_writable().map_err(|_| Errno::EINVAL)?;
        self.regular(fd, |inode| inode.truncate(size).map(|()| 0))
    }

    /// fallocate(2). Space is not taken before it is written to.
    fn fallocate(&mut self, fd: i32, mode: i32, offset: u64, len: u64) -> SysResult {
        let open = self.files.get(fd)?;
        if offset > i64::MAX as u64 || len > i64::MAX as u64 || len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let punches = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        if mode & !FALLOCATE_KNOWN != 0 || punches && !keeps_size {
            return Err(Errno::EOPNOTSUPP.into());
        }
        open.check_writable()?;
        match open.file.describe() {
            Description::Path { .. } => {}
            Description::Pipe { .. } => return Err(Errno::ESPIPE.into()),
            _ => return Err(Errno::ENODEV.into()),
        }
        let end = offset + len;
        if end > i64::MAX as u64 {
            return Err(Errno::EFBIG.into());
        }
        self.regular(fd, |inode| {
            match mode & !libc::FALLOC_FL_KEEP_SIZE {
                libc::FALLOC_FL_PUNCH_HOLE => inode.punch(offset, len)?,
                0 if !keeps_size && end > inode.size() => inode.truncate(end)?,
                0 => {}
                _ => return Err(Errno::EOPNOTSUPP),
            }
            Ok(0)
        })
    }

    fn pipe(&mut self, to: u64, flags: i32) -> SysResult {
        only(flags, libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_DIRECT)?;
        let (read, write) = pipe::pipe();
        let nonblock = flags & libc::O_NONBLOCK;
        // It has an inode, though no name (pipe(7)).
        let meta = Meta::new(0o600);
        self.insert_pair(
            to,
            Open::named(read, libc::O_RDONLY | nonblock, Some(meta.clone())),
            Open::named(write, libc::O_WRONLY | nonblock, Some(meta)),
            flags & libc::O_CLOEXEC != 0,
        )
    }

    fn eventfd(&mut self, count: u64, flags: i32) -> SysResult {
        only(
            flags,
            libc::EFD_NONBLOCK | libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE,
        )?;
        let file = Event::new(count as u32 as u64, flags);
        let open = Open::new(file, libc::O_RDWR | flags & libc::EFD_NONBLOCK);
        self.insert(open, flags & libc::EFD_CLOEXEC != 0)
    }

    fn memfd_create(&mut self, name: u64, flags: u32) -> SysResult {
        let own = flags & !(libc::MFD_HUGE_MASK << libc::MFD_HUGE_SHIFT);
        let known = libc::MFD_CLOEXEC
            | libc::MFD_ALLOW_SEALING
            | libc::MFD_HUGETLB
            | libc::MFD_NOEXEC_SEAL
            | libc::MFD_EXEC;
        let both = libc::MFD_NOEXEC_SEAL | libc::MFD_EXEC;
        // The size of huge pages means something only where there are any.
        let is_huge = flags & libc::MFD_HUGETLB != 0;
        if own & !known != 0 || flags != own && !is_huge || flags & both == both {
            return Err(Errno::EINVAL.into());
        }
        let name = read_c_string(self.cx.memory, name, MEMFD_NAME_MAX);
        let name = name.map_err(|errno| match errno {
            Errno::ENAMETOOLONG => Errno::EINVAL,
            errno => errno,
        })?;
        let stays_data = flags & libc::MFD_NOEXEC_SEAL != 0;
        let (mode, seals) = match stays_data {
            true => (0o666, libc::F_SEAL_EXEC),
            false if flags & libc::MFD_ALLOW_SEALING != 0 => (0o777, 0),
            false => (0o777, libc::F_SEAL_SEAL),
        };
        let meta = Meta::new(mode);
        meta.link(-1);
        let inode = Inode::of(self.vfs.memory(), meta, seals);
        let path = format!("/memfd:{} (deleted)", String::from_utf8_lossy(&name));
        let file = RegularFile::new(inode, path, libc::O_RDWR);
        self.insert(
            Open::new(file, libc::O_RDWR | O_LARGEFILE),
            flags & libc::MFD_CLOEXEC != 0,
        )
    }

    fn ioctl(&mut self, fd: i32, request: u32, argument: u64) -> SysResult {
        let open = self.open_for(fd)?;
        match u64::from(request) {
            libc::FIONBIO => {
                let mut on = [0; 4];
                self.cx.memory.read(argument, &mut on)?;
                let others = open.flags() & !libc::O_NONBLOCK;
                open.set_flags(match on {
                    [0, 0, 0, 0] => others,
                    _ => others | libc::O_NONBLOCK,
                });
                Ok(0)
            }
            libc::FIOCLEX | FIONCLEX => {
                self.files
                    .set_close_on_exec(fd, u64::from(request) == libc::FIOCLEX)?;
                Ok(0)
            }
            _ => {
                if open.file.as_any().is::<Socket>()
                    && let Some(result) = links::ioctl(self, request, argument)
                {
                    return result;
                }
                Ok(open.file.ioctl(&mut self.cx, request, argument)? as u64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use snaprig_card_driver::errno::Errno;

    use crate::test_kit::{Kit, error};

    /// What one call says of a directory: names and cookies.
    fn entries(kit: &mut Kit, fd: u64) -> Vec<(String, u64)> {
        let read = kit
            .call(libc::SYS_getdents64, &[fd, 0x10000, 2048])
            .unwrap();
        let mut bytes = kit.bytes(0x10000, read as usize);
        let mut entries = Vec::new();
        while !bytes.is_empty() {
            let len = u16::from_le_bytes([bytes[16], bytes[17]]);
            let (entry, rest) = bytes.split_at(len.into());
            let name = std::str::from_utf8(&entry[19..])
                .unwrap()
                .trim_end_matches('\0');
            let cookie = u64::from_le_bytes(entry[8..16].try_into().unwrap());
            entries.push((name.to_owned(), cookie));
            bytes = rest;
        }
        entries
    }

    #[test]
    fn a_directory_can_be_emptied_while_it_is_read() {
        let mut kit = Kit::new();
        for i in 0..300 {
            kit.file(&format!("/tmp/d/{i}"), b"");
        }
        let fd = kit.open("/tmp/d", libc::O_DIRECTORY).unwrap();
        let mut seen = 0;
        loop {
            let now = entries(&mut kit, fd);
            if now.is_empty() {
                break;
            }
            for (name, _) in now.iter().filter(|(name, _)| !name.starts_with('.')) {
                seen += 1;
                let path = kit.path(&format!("/tmp/d/{name}"));
                kit.call(libc::SYS_unlink, &[path]).unwrap();
            }
        }
        let path = kit.path("/tmp/d");
        assert_eq!((seen, kit.call(libc::SYS_rmdir, &[path])), (300, Ok(0)));
    }

    #[test]
    fn a_directory_is_read_on_from_a_cookie() {
        let mut kit = Kit::new();
        for name in ["one", "two", "three"] {
            kit.file(&format!("/tmp/d/{name}"), b"");
        }
        let fd = kit.open("/tmp/d", libc::O_DIRECTORY).unwrap();
        let all = entries(&mut kit, fd);
        assert_eq!((all.len(), &*all[0].0, &*all[1].0), (5, ".", ".."));
        assert!(entries(&mut kit, fd).is_empty());
        for index in [4, 2, 0] {
            kit.call(libc::SYS_lseek, &[fd, all[index].1, 0]).unwrap();
            assert_eq!(entries(&mut kit, fd), all[index + 1..]);
        }
    }

    #[test]
    fn status_flags_can_be_changed() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"12345");
        let fd = kit.open("/tmp/a", libc::O_WRONLY).unwrap();
        let append = libc::O_APPEND as u64;
        kit.call(libc::SYS_fcntl, &[fd, libc::F_SETFL as u64, append])
            .unwrap();
        kit.put(0x500, &1_i32.to_le_bytes());
        kit.call(libc::SYS_ioctl, &[fd, libc::FIONBIO, 0x500])
            .unwrap();
        assert_eq!(kit.call(libc::SYS_write, &[fd, 0, 1]), Ok(1));
        assert_eq!(kit.call(libc::SYS_pwrite64, &[fd, 0, 1, 0]), Ok(1));
        assert_eq!(kit.vfs.read_all("/tmp/a").unwrap(), b"12345\0\0");
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NONBLOCK | super::O_LARGEFILE;
        assert_eq!(
            kit.call(libc::SYS_fcntl, &[fd, libc::F_GETFL as u64]),
            Ok(flags as u64)
        );
        let beyond = [fd, libc::F_DUPFD as u64, 1024];
        assert_eq!(kit.call(libc::SYS_fcntl, &beyond), error(Errno::EINVAL));
    }

    #[test]
    fn truncation_needs_a_file_that_is_open_for_writing() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"12345");
        let fd = kit.open("/tmp/a", libc::O_RDONLY).unwrap();
        assert_eq!(
            kit.call(libc::SYS_ftruncate, &[fd, 0]),
            error(Errno::EINVAL)
        );
        assert_eq!(
            kit.call(libc::SYS_fallocate, &[fd, 0, 0, 9]),
            error(Errno::EBADF)
        );
        let path = kit.path("/tmp");
        assert_eq!(
            kit.call(libc::SYS_truncate, &[path, 0]),
            error(Errno::EISDIR)
        );
        assert_eq!(kit.vfs.read_all("/tmp/a").unwrap(), b"12345");
    }

    #[test]
    fn calls_that_do_nothing_check_what_they_are_given() {
        let mut kit = Kit::new();
        let path = kit.path("/none");
        let at = libc::AT_FDCWD as u64;
        let none = error(Errno::ENOENT);
        assert_eq!(kit.call(libc::SYS_chown, &[path, 0, 0]), none);
        assert_eq!(kit.call(libc::SYS_utimensat, &[at, path, 0, 0]), none);
        assert_eq!(kit.call(libc::SYS_fsync, &[99]), error(Errno::EBADF));
        let (read, _) = kit.pipe(0);
        assert_eq!(kit.call(libc::SYS_fsync, &[read]), error(Errno::EINVAL));
    }
}
