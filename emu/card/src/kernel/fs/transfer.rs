//! Calls that move bytes: read(2), write(2) and their relatives.
//!
//! A write that waits for room has put in what fitted. How much is kept in [`FsCall::progress`]: the
//! next attempt goes on from there, and a call that ends in any other way (a signal, an error, a
//! capture) returns that count (write(2), signal(7)).

use super::{FsCall, IO_MAX, Open, RegularFile, pipe::PipeEnd, socket::Socket, vectors::Vectors};
use crate::kernel::{
    errno::Errno,
    file::{Description, File},
    wait::SysResult,
};

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let fd = a[0] as i32;
    let one = || Vectors::one(a[1], a[2] as usize);
    Some(match number as i64 {
        libc::SYS_read => call.read(fd, &one()),
        libc::SYS_write => call.write(fd, &one()),
        libc::SYS_pread64 => call.pread(fd, &one(), a[3] as i64),
        libc::SYS_pwrite64 => call.pwrite(fd, &one(), a[3] as i64),
        libc::SYS_readv => call.load(a).and_then(|to| call.read(fd, &to)),
        libc::SYS_writev => call.load(a).and_then(|from| call.write(fd, &from)),
        libc::SYS_preadv => call.load(a).and_then(|to| call.pread(fd, &to, a[3] as i64)),
        libc::SYS_pwritev => call
            .load(a)
            .and_then(|from| call.pwrite(fd, &from, a[3] as i64)),
        // Of the flags of these two none is supported.
        libc::SYS_preadv2 | libc::SYS_pwritev2 if a[5] as u32 != 0 => Err(Errno::EOPNOTSUPP.into()),
        libc::SYS_preadv2 => call.load(a).and_then(|to| match a[3] as i64 {
            -1 => call.read(fd, &to),
            at => call.pread(fd, &to, at),
        }),
        libc::SYS_pwritev2 => call.load(a).and_then(|from| match a[3] as i64 {
            -1 => call.write(fd, &from),
            at => call.pwrite(fd, &from, at),
        }),
        _ => return None,
    })
}

/// When a part that has been read is followed by another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// Never.
    No,
    /// If it was as much as there was room for.
    IfFull,
    /// Until there is no more room (recv(2), MSG_WAITALL).
    UntilFull,
}

impl FsCall<'_> {
    fn load(&mut self, a: [u64; 6]) -> SysResult<Vectors> {
        self.files.get(a[0] as i32)?;
        Ok(Vectors::load(self.cx.memory, a[1], a[2])?)
    }

    fn read(&mut self, fd: i32, to: &Vectors) -> SysResult {
        let open = self.open_for(fd)?;
        open.check_readable()?;
        let more = match open.file.as_any().is::<RegularFile>() {
            true => More::IfFull,
            false => More::No,
        };
        self.get(to, more, |call, done, max| {
            call.take(&*open.file, to, done, max)
        })
    }

    /// Reads from a file no more than there is good memory for: a stream does not lose what cannot be
    /// handed over (read(2), EFAULT).
    pub fn take(
        &mut self,
        file: &dyn File,
        to: &Vectors,
        done: usize,
        max: usize,
    ) -> SysResult<Vec<u8>> {
        let taken = file.takes().min(max);
        let max = match to.writable(self.cx.memory, done, taken) {
            0 if taken > 0 => return Err(Errno::EFAULT.into()),
            good if good < taken => good,
            _ => max,
        };
        file.read(&mut self.cx, max)
    }

    fn write(&mut self, fd: i32, from: &Vectors) -> SysResult {
        let open = self.open_for(fd)?;
        open.check_writable()?;
        self.put(from, goes_on(&*open.file), |call, _, data| {
            call.write_to(&*open.file, data)
        })
    }

    /// Writes to a file. A stream without a reader costs a SIGPIPE; on a socket that is so only if
    /// the call has sent nothing.
    pub fn write_to(&mut self, file: &dyn File, data: &[u8]) -> SysResult<usize> {
        let result = file.write(&mut self.cx, data);
        let sent = *self.progress > 0 && file.as_any().is::<Socket>();
        if result == Err(Errno::EPIPE.into()) && !sent {
            *self.sigpipe = true;
        }
        result
    }

    /// pread(2): for files that have a position, and for devices, which ignore it.
    fn pread(&mut self, fd: i32, to: &Vectors, offset: i64) -> SysResult {
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let open = self.open_for(fd)?;
        if let Some(file) = open.file.as_any().downcast_ref::<RegularFile>() {
            open.check_readable()?;
            return self.get(to, More::IfFull, |_, done, max| {
                Ok(file
                    .inode()
                    .read_at(offset.saturating_add(done as u64), max))
            });
        }
        check_seekable(&open)?;
        self.read(fd, to)
    }

    /// pwrite(2). With O_APPEND Linux appends, whatever the offset.
    fn pwrite(&mut self, fd: i32, from: &Vectors, offset: i64) -> SysResult {
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let open = self.open_for(fd)?;
        if let Some(file) = open.file.as_any().downcast_ref::<RegularFile>() {
            open.check_writable()?;
            return self.put(from, true, |call, done, data| {
                let at = match call.cx.append {
                    true => file.inode().size(),
                    false => offset.saturating_add(done as u64),
                };
                Ok(file.inode().write_at(at, data)?)
            });
        }
        check_seekable(&open)?;
        self.write(fd, from)
    }

    /// Fills `to` from `part(bytes done, most bytes)`; nothing is the end.
    pub fn get(
        &mut self,
        to: &Vectors,
        more: More,
        mut part: impl FnMut(&mut Self, usize, usize) -> SysResult<Vec<u8>>,
    ) -> SysResult {
        loop {
            let done = *self.progress;
            let max = (to.total() - done.min(to.total())).min(IO_MAX);
            let bytes = part(self, done, max)?;
            to.write(self.cx.memory, done, &bytes)?;
            *self.progress += bytes.len();
            let goes_on = match more {
                More::No => false,
                More::IfFull => bytes.len() == max,
                More::UntilFull => !bytes.is_empty(),
            };
            if !goes_on || *self.progress == to.total() {
                return Ok(*self.progress as u64);
            }
        }
    }

    /// Hands `from` to `part(bytes done, data)`, which says how much it took. If `more`, it is asked
    /// until it has taken everything; otherwise until it has taken less than it was given.
    pub fn put(
        &mut self,
        from: &Vectors,
        more: bool,
        mut part: impl FnMut(&mut Self, usize, &[u8]) -> SysResult<usize>,
    ) -> SysResult {
        loop {
            let done = *self.progress;
            let len = (from.total() - done.min(from.total())).min(IO_MAX);
            let data = from.read(self.cx.memory, done, len)?;
            let taken = part(self, done, &data)?;
            *self.progress += taken;
            if *self.progress == from.total() || taken < len && !more {
                return Ok(*self.progress as u64);
            }
        }
    }
}

/// Whether a write that took a part waits with the rest. (An eventfd takes 8 bytes of any write.)
pub fn goes_on(file: &dyn File) -> bool {
    file.as_any().is::<PipeEnd>() || file.as_any().is::<Socket>()
}

fn check_seekable(open: &Open) -> Result<(), Errno> {
    match open.file.describe() {
        Description::Path { .. } | Description::Device { .. } => Ok(()),
        _ => Err(Errno::ESPIPE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::fs::test_kit::{Kit, error, is_wait};

    #[test]
    fn a_write_that_ends_early_returns_what_it_did() {
        let mut kit = Kit::new();
        let (read, write) = kit.pipe(0);
        let all = [write, 0x10000, 100_000];
        assert!(is_wait(&kit.call(libc::SYS_write, &all)));
        assert_eq!(kit.progress, 65536);
        kit.meanwhile(|kit| kit.call(libc::SYS_close, &[read]))
            .unwrap();
        assert_eq!(kit.call(libc::SYS_write, &all), Ok(65536));
        assert_eq!(kit.call(libc::SYS_write, &all), error(Errno::EPIPE));
    }

    #[test]
    fn progress_of_a_write_is_not_another_writes() {
        let mut kit = Kit::new();
        let (read, write) = kit.pipe(0);
        let other = kit.call(libc::SYS_dup, &[write]).unwrap();
        assert!(is_wait(
            &kit.call(libc::SYS_write, &[write, 0x10000, 100_000])
        ));
        // Another thread closes it; the next attempt finds nothing.
        kit.meanwhile(|kit| kit.call(libc::SYS_close, &[write]))
            .unwrap();
        assert_eq!(
            kit.call(libc::SYS_write, &[write, 0x10000, 100_000]),
            Ok(65536)
        );
        assert_eq!(
            kit.call(libc::SYS_read, &[read, 0x100000, 70_000]),
            Ok(65536)
        );
        kit.put(0x700, b"hello");
        assert_eq!(kit.call(libc::SYS_write, &[other, 0x700, 5]), Ok(5));
        assert_eq!(kit.call(libc::SYS_read, &[read, 0x100000, 100]), Ok(5));
        assert_eq!(kit.bytes(0x100000, 5), b"hello");
    }

    #[test]
    fn a_blocking_write_of_any_size_completes() {
        let mut kit = Kit::new();
        let (read, write) = kit.pipe(0);
        let all = [write, 0x10000, 3 << 20];
        let mut got = 0;
        while is_wait(&kit.call(libc::SYS_write, &all)) {
            let part = [read, 0x400000, 65536];
            got += kit
                .meanwhile(|kit| kit.call(libc::SYS_read, &part))
                .unwrap();
        }
        got += kit.call(libc::SYS_read, &[read, 0x400000, 65536]).unwrap();
        assert_eq!(got, 3 << 20);
    }

    #[test]
    fn a_large_read_or_write_of_a_file_is_whole() {
        let mut kit = Kit::new();
        let fd = kit.open("/tmp/a", libc::O_CREAT | libc::O_RDWR).unwrap();
        assert_eq!(kit.call(libc::SYS_write, &[fd, 0, 3 << 20]), Ok(3 << 20));
        assert_eq!(
            kit.call(libc::SYS_pread64, &[fd, 0, 4 << 20, 0]),
            Ok(3 << 20)
        );
    }

    #[test]
    fn a_read_into_bad_memory_loses_nothing() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"0123456789");
        kit.put(0x2000, b"0123456789");
        let file = kit.open("/tmp/a", libc::O_RDONLY).unwrap();
        let (pipe, into_pipe) = kit.pipe(0);
        let (into_socket, socket) = kit.sockets();
        let end = kit.memory.0.len() as u64;
        for fd in [into_pipe, into_socket] {
            kit.call(libc::SYS_write, &[fd, 0x2000, 10]).unwrap();
        }
        for fd in [file, pipe, socket] {
            let bad = error(Errno::EFAULT);
            assert_eq!(kit.call(libc::SYS_read, &[fd, end, 10]), bad);
            assert_eq!(kit.call(libc::SYS_read, &[fd, u64::MAX, 10]), bad);
            // What there is good memory for is read; a buffer need not be good beyond the bytes.
            kit.put_words(0x4000, &[0x5000, 2, end - 1, 10]);
            assert_eq!(kit.call(libc::SYS_readv, &[fd, 0x4000, 2]), Ok(3));
            assert_eq!(kit.call(libc::SYS_read, &[fd, end - 7, 1000]), Ok(7));
            assert_eq!(kit.bytes(end as usize - 7, 7), b"3456789");
        }
        kit.call(libc::SYS_write, &[into_socket, 0x2000, 10])
            .unwrap();
        let bad = error(Errno::EFAULT);
        assert_eq!(kit.call(libc::SYS_recvfrom, &[socket, end, 10]), bad);
        kit.put_words(0x4000, &[end, 5]);
        kit.put_words(0x4100, &[0, 0, 0x4000, 1, 0, 0, 0]);
        assert_eq!(kit.call(libc::SYS_recvmsg, &[socket, 0x4100, 0]), bad);
        assert_eq!(kit.call(libc::SYS_read, &[socket, 0x5000, 99]), Ok(10));
    }

    #[test]
    fn vectors_are_filled_in_order_and_no_further() {
        let mut kit = Kit::new();
        let (a, b) = kit.sockets();
        kit.put(0x2000, b"0123456789");
        // struct msghdr: two buffers of 3 and 4 bytes.
        kit.put_words(0x4000, &[0x5000, 3, 0x5100, 4]);
        kit.put_words(0x4100, &[0, 0, 0x4000, 2, 0, 0, 0]);
        kit.call(libc::SYS_write, &[a, 0x2000, 10]).unwrap();
        assert_eq!(kit.call(libc::SYS_recvmsg, &[b, 0x4100, 0]), Ok(7));
        assert_eq!(
            (kit.bytes(0x5000, 4), kit.bytes(0x5100, 5)),
            (&b"012\0"[..], &b"3456\0"[..])
        );
        assert_eq!(kit.call(libc::SYS_readv, &[b, 0x4000, 1]), Ok(3));
        assert_eq!(kit.bytes(0x5000, 4), b"789\0");
        kit.put_words(0x4000, &[0x5000, u64::MAX]);
        assert_eq!(
            kit.call(libc::SYS_readv, &[b, 0x4000, 1]),
            error(Errno::EINVAL)
        );
        assert_eq!(
            kit.call(libc::SYS_readv, &[b, 0x4000, 1025]),
            error(Errno::EINVAL)
        );
        kit.put_words(0x4110, &[0x4000, 1025]);
        assert_eq!(
            kit.call(libc::SYS_recvmsg, &[b, 0x4100, 0]),
            error(Errno::EMSGSIZE)
        );
    }

    #[test]
    fn preadv_and_pwritev_leave_the_position_alone() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"0123456789");
        let fd = kit.open("/tmp/a", libc::O_RDWR).unwrap();
        kit.put(0x5000, b"ab");
        kit.put(0x5100, b"cd");
        kit.put_words(0x4000, &[0x5000, 2, 0x5100, 2]);
        assert_eq!(kit.call(libc::SYS_pwritev, &[fd, 0x4000, 2, 4]), Ok(4));
        kit.put_words(0x4000, &[0x6000, 3, 0x6100, 100]);
        assert_eq!(kit.call(libc::SYS_preadv, &[fd, 0x4000, 2, 3]), Ok(7));
        assert_eq!(
            (kit.bytes(0x6000, 3), kit.bytes(0x6100, 4)),
            (&b"3ab"[..], &b"cd89"[..])
        );
        assert_eq!(
            kit.call(libc::SYS_preadv, &[fd, 0x4000, 2, u64::MAX]),
            error(Errno::EINVAL)
        );
        let flagged = [fd, 0x4000, 2, 3, 0, 8];
        assert_eq!(
            kit.call(libc::SYS_preadv2, &flagged),
            error(Errno::EOPNOTSUPP)
        );
        // With -1 they are readv and writev.
        assert_eq!(
            kit.call(libc::SYS_preadv2, &[fd, 0x4000, 2, u64::MAX, 0, 0]),
            Ok(10)
        );
        assert_eq!(
            kit.call(libc::SYS_pwritev2, &[fd, 0x4000, 1, u64::MAX, 0, 0]),
            Ok(3)
        );
        assert_eq!(kit.vfs.read_all("/tmp/a").unwrap().len(), 13);
        let (read, _) = kit.pipe(0);
        assert_eq!(
            kit.call(libc::SYS_preadv, &[read, 0x4000, 1, 0]),
            error(Errno::ESPIPE)
        );
    }

    #[test]
    fn calls_obey_the_access_mode() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"12345");
        let to = kit.open("/tmp/a", libc::O_WRONLY).unwrap();
        let from = kit.open("/tmp/a", libc::O_RDONLY).unwrap();
        for (number, fd) in [
            (libc::SYS_read, to),
            (libc::SYS_pread64, to),
            (libc::SYS_write, from),
            (libc::SYS_pwrite64, from),
        ] {
            assert_eq!(kit.call(number, &[fd, 0x2000, 5, 0]), error(Errno::EBADF));
        }
    }

    #[test]
    fn an_eventfd_takes_eight_bytes_of_a_write() {
        let mut kit = Kit::new();
        let fd = kit.call(libc::SYS_eventfd2, &[0, 0]).unwrap();
        kit.put_words(0x2000, &[1, 2]);
        assert_eq!(kit.call(libc::SYS_write, &[fd, 0x2000, 16]), Ok(8));
        assert_eq!(kit.call(libc::SYS_read, &[fd, 0x2000, 8]), Ok(8));
        assert_eq!(kit.bytes(0x2000, 8), &1_u64.to_le_bytes());
    }
}
