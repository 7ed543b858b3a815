//! Calls that move bytes: read(2), write(2) and their relatives.
//!
//! A write that waits for room has put in what fitted. How much is kept in [`FsCall::progress`]: the
//! next attempt goes on from there, and a call that ends in any other way (a signal, an error, a
//! capture) returns that count (write(2), signal(7)).

use std::sync::Arc;

use snaprig_card_driver::{
    errno::Errno,
    file::{Description, File},
    wait::SysResult,
};

use crate::{
    call::{FsCall, IO_MAX},
    calls::vectors::Vectors,
    files::{
        event::Event,
        pipe::PipeEnd,
        regular::{Directory, RegularFile},
        socket::Socket,
    },
    table::Open,
};

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let at = Some(a[3] as i64);
    Some(match number as i64 {
        libc::SYS_read => call.transfer(a, Direction::In, None, 0, false),
        libc::SYS_write => call.transfer(a, Direction::Out, None, 0, false),
        libc::SYS_pread64 => call.transfer(a, Direction::In, at, 0, false),
        libc::SYS_pwrite64 => call.transfer(a, Direction::Out, at, 0, false),
        libc::SYS_readv => call.transfer(a, Direction::In, None, 0, true),
        libc::SYS_writev => call.transfer(a, Direction::Out, None, 0, true),
        libc::SYS_preadv => call.transfer(a, Direction::In, at, 0, true),
        libc::SYS_pwritev => call.transfer(a, Direction::Out, at, 0, true),
        // With -1 these two are readv and writev.
        libc::SYS_preadv2 => {
            let at = at.filter(|at| *at != -1);
            call.transfer(a, Direction::In, at, a[5] as i32, true)
        }
        libc::SYS_pwritev2 => {
            let at = at.filter(|at| *at != -1);
            call.transfer(a, Direction::Out, at, a[5] as i32, true)
        }
        _ => return None,
    })
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// Into the program's memory.
    In,
    /// Out of it.
    Out,
}

/// What a stream keeps together when it is read.
const STREAM_BUFFER: usize = 4096;
/// preadv2(2): at the offset, whatever O_APPEND says.
const RWF_NOAPPEND: i32 = 0x20;

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
    /// What is asked of a call before anything moves, in the order of Linux's fs/read_write.c; then
    /// it does.
    fn transfer(
        &mut self,
        a: [u64; 6],
        way: Direction,
        at: Option<i64>,
        flags: i32,
        vectors: bool,
    ) -> SysResult {
        let fd = a[0] as i32;
        let at = match at.map(u64::try_from) {
            Some(at) => Some(at.map_err(|_| Errno::EINVAL)?),
            None => None,
        };
        let open = self.open_for(fd)?;
        if at.is_some() {
            check_seekable(&open)?;
        }
        match way {
            Direction::In => open.check_readable()?,
            Direction::Out => open.check_writable()?,
        }
        check_possible(&open, way)?;
        let memory = match vectors {
            true => Vectors::load(self.cx.memory, a[1], a[2])?,
            false => Vectors::checked(a[1], a[2])?,
        };
        if vectors && memory.total() == 0 {
            return Ok(0);
        }
        let file = open.file.as_any().downcast_ref::<RegularFile>();
        let start = at.or_else(|| file.map(RegularFile::position)).unwrap_or(0);
        if start.saturating_add(memory.total() as u64) > i64::MAX as u64 {
            return Err(Errno::EINVAL.into());
        }
        self.obey(&open, way, flags)?;
        match (way, at) {
            (Direction::In, None) => self.read(fd, &memory, flags),
            (Direction::In, Some(at)) => self.pread(fd, &memory, at, flags),
            (Direction::Out, None) => self.write(fd, &memory, flags),
            (Direction::Out, Some(at)) => self.pwrite(fd, &memory, at, flags),
        }
    }

    /// EOPNOTSUPP for flags of preadv2(2) that mean nothing for this file.
    fn obey(&self, open: &Open, way: Direction, flags: i32) -> Result<(), Errno> {
        let always = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC;
        let appends = libc::RWF_APPEND | RWF_NOAPPEND;
        if flags & !(always | appends | libc::RWF_NOWAIT) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let is_directory = way == Direction::In && open.file.as_any().is::<Directory>();
        if flags & !libc::RWF_HIPRI != 0 && is_directory {
            return Err(Errno::EOPNOTSUPP);
        }
        if flags & appends == appends {
            return Err(Errno::EINVAL);
        }
        let never_waits = matches!(
            open.file.describe(),
            Description::Path { .. } | Description::Device { .. }
        );
        match flags & libc::RWF_NOWAIT != 0 && never_waits {
            true => Err(Errno::EOPNOTSUPP),
            false => Ok(()),
        }
    }

    /// The description that a call with flags of preadv2(2) works on.
    fn open_with(&mut self, fd: i32, flags: i32) -> Result<Arc<Open>, Errno> {
        let open = self.open_for(fd)?;
        self.cx.nonblock |= flags & libc::RWF_NOWAIT != 0;
        self.cx.append |= flags & libc::RWF_APPEND != 0;
        self.cx.append &= flags & RWF_NOAPPEND == 0;
        Ok(open)
    }

    fn read(&mut self, fd: i32, to: &Vectors, flags: i32) -> SysResult {
        let open = self.open_with(fd, flags)?;
        // Of a socket nothing is always there (net/socket.c, `sock_read_iter`: as System V).
        if to.total() == 0 && open.file.as_any().is::<Socket>() {
            return Ok(0);
        }
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
        let good = to.writable(self.cx.memory, done, taken);
        // A stream hands over whole buffers (of a pipe, a page).
        let good = match file.as_any().is::<RegularFile>() || good == taken {
            true => good,
            false => good / STREAM_BUFFER * STREAM_BUFFER,
        };
        let max = match good {
            0 if taken > 0 => return Err(Errno::EFAULT.into()),
            good if good < taken => good,
            _ => max,
        };
        file.read(&mut self.cx, max)
    }

    fn write(&mut self, fd: i32, from: &Vectors, flags: i32) -> SysResult {
        let open = self.open_with(fd, flags)?;
        if open.file.as_any().is::<RegularFile>() {
            return self.put_good(from, |call, _, data| call.write_to(&*open.file, data));
        }
        // A counter takes one number, which has to be a buffer of its own (eventfd(2)).
        if open.file.as_any().is::<Event>() && from.first() != 8 {
            return Err(Errno::EINVAL.into());
        }
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
    fn pread(&mut self, fd: i32, to: &Vectors, offset: u64, flags: i32) -> SysResult {
        let open = self.open_with(fd, flags)?;
        if let Some(file) = open.file.as_any().downcast_ref::<RegularFile>() {
            return self.get(to, More::IfFull, |call, done, max| {
                let at = offset.saturating_add(done as u64);
                let taken = file.inode().size().saturating_sub(at).min(max as u64) as usize;
                match to.writable(call.cx.memory, done, taken) {
                    0 if taken > 0 => Err(Errno::EFAULT.into()),
                    good => Ok(file.inode().read_at(at, good)),
                }
            });
        }
        self.read(fd, to, flags)
    }

    /// pwrite(2). With O_APPEND Linux appends, whatever the offset.
    fn pwrite(&mut self, fd: i32, from: &Vectors, offset: u64, flags: i32) -> SysResult {
        let open = self.open_with(fd, flags)?;
        if let Some(file) = open.file.as_any().downcast_ref::<RegularFile>() {
            return self.put_good(from, |call, done, data| {
                let at = match call.cx.append {
                    true => file.inode().size(),
                    false => offset.saturating_add(done as u64),
                };
                Ok(file.inode().write_at(at, data)?)
            });
        }
        self.write(fd, from, flags)
    }

    /// Hands `from` to `part(bytes done, data)` up to the first bad address, so that what lies before
    /// it is in the file (write(2)).
    fn put_good(
        &mut self,
        from: &Vectors,
        mut part: impl FnMut(&mut Self, usize, &[u8]) -> SysResult<usize>,
    ) -> SysResult {
        loop {
            let done = *self.progress;
            let len = (from.total() - done.min(from.total())).min(IO_MAX);
            let data = from.read_good(self.cx.memory, done, len)?;
            *self.progress += part(self, done, &data)?;
            if *self.progress == from.total() {
                return Ok(*self.progress as u64);
            }
        }
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

/// EINVAL of what cannot be read, or written, at all.
fn check_possible(open: &Open, way: Direction) -> Result<(), Errno> {
    match open.file.describe() {
        Description::Epoll | Description::Process => Err(Errno::EINVAL),
        Description::Timer { .. } | Description::Signals { .. } if way == Direction::Out => {
            Err(Errno::EINVAL)
        }
        _ => Ok(()),
    }
}

/// ESPIPE of what has no position.
pub fn check_seekable(open: &Open) -> Result<(), Errno> {
    match open.file.describe() {
        Description::Path { .. } | Description::Device { .. } => Ok(()),
        _ => Err(Errno::ESPIPE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kit::{Kit, error, is_wait};

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
            // Of a file what there is good memory for is read, of a stream only what is together.
            kit.put_words(0x4000, &[0x5000, 2, end - 1, 10]);
            let some = match fd == file {
                true => Ok(3),
                false => bad.clone(),
            };
            assert_eq!(kit.call(libc::SYS_readv, &[fd, 0x4000, 2]), some);
            if some == bad {
                assert_eq!(kit.call(libc::SYS_read, &[fd, 0x5000, 3]), Ok(3));
            }
            // A buffer need not be good beyond the bytes.
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
        for unknown in [8, 0x8000] {
            let flagged = [fd, 0x4000, 2, 3, 0, unknown];
            assert_eq!(
                kit.call(libc::SYS_preadv2, &flagged),
                error(Errno::EOPNOTSUPP)
            );
        }
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
    fn an_eventfd_takes_eight_bytes() {
        let mut kit = Kit::new();
        let fd = kit.call(libc::SYS_eventfd2, &[0, 0]).unwrap();
        kit.put_words(0x2000, &[1, 2]);
        let wrong = kit.call(libc::SYS_write, &[fd, 0x2000, 16]);
        assert_eq!(wrong, error(Errno::EINVAL));
        assert_eq!(kit.call(libc::SYS_write, &[fd, 0x2000, 8]), Ok(8));
        assert_eq!(kit.call(libc::SYS_read, &[fd, 0x2000, 8]), Ok(8));
        assert_eq!(kit.bytes(0x2000, 8), &1_u64.to_le_bytes());
    }
}
