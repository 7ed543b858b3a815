//! sendfile(2) and copy_file_range(2): bytes of a file go elsewhere without passing through the
//! program.

use snaprig_card_driver::{
    errno::Errno,
    file::Description,
    wait::{Stop, SysResult, Wait},
};

use crate::{
    call::{FsCall, IO_MAX},
    calls::{
        attributes::is_anonymous,
        transfer::{check_seekable, goes_on},
    },
    files::{
        pipe::PipeEnd,
        regular::{Directory, RegularFile},
        socket::Socket,
    },
    table::Open,
};

/// Most bytes that one call moves.
const TOTAL_MAX: u64 = 0x7fff_f000;

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let int = |i: usize| a[i] as i32;
    Some(match number as i64 {
        libc::SYS_sendfile => sendfile(call, int(0), int(1), a[2], a[3]),
        libc::SYS_copy_file_range => copy_file_range(
            call,
            [int(0), int(2)],
            [a[1], a[3]],
            a[4],
            u64::from(a[5] as u32),
        ),
        _ => return None,
    })
}

/// Where a call is in a file: at the file's own position, or at one in the caller's memory.
#[derive(Clone, Copy)]
struct Place {
    /// Where the caller keeps it; 0: it is the file's own.
    pointer: u64,
}

impl Place {
    /// The position, if the caller keeps it.
    fn given(self, call: &mut FsCall) -> Result<Option<i64>, Errno> {
        if self.pointer == 0 {
            return Ok(None);
        }
        let mut bytes = [0; 8];
        call.cx.memory.read(self.pointer, &mut bytes)?;
        Ok(Some(i64::from_le_bytes(bytes)))
    }

    fn set(self, call: &mut FsCall, file: &RegularFile, at: u64) -> Result<(), Errno> {
        if self.pointer == 0 {
            let at = i64::try_from(at).map_err(|_| Errno::EFBIG)?;
            file.seek(at, libc::SEEK_SET)?;
            return Ok(());
        }
        call.cx.memory.write(self.pointer, &at.to_le_bytes())
    }
}

/// The place is moved with every part, so that an attempt goes on where the last one ended. The order
/// of checks is that of Linux's do_sendfile and do_splice_direct.
fn sendfile(call: &mut FsCall, to: i32, from: i32, pointer: u64, count: u64) -> SysResult {
    let place = Place { pointer };
    let given = place.given(call)?;
    let source = call.files.get(from)?;
    source.check_readable()?;
    if given.is_some() {
        check_seekable(&source)?;
    }
    let count = i64::try_from(count).map_err(|_| Errno::EINVAL)? as u64;
    let at = given
        .map(u64::try_from)
        .transpose()
        .map_err(|_| Errno::EINVAL)?;
    let target = call.open_for(to)?;
    target.check_writable()?;
    let to_pipe = target.file.as_any().is::<PipeEnd>();
    if to_pipe {
        // There has to be room before the other file is looked at.
        call.check_pipe(&target)?;
    } else if call.cx.append {
        return Err(Errno::EINVAL.into());
    }
    let file = source.file.as_any().downcast_ref::<RegularFile>();
    let file = match file {
        Some(file) => file,
        None if to_pipe && source.file.as_any().is::<Socket>() => {
            return call.splice_stream(&source, &target, count);
        }
        None if count == 0 && (to_pipe || !is_stream(&source)) => return Ok(0),
        None => return Err(Errno::EINVAL.into()),
    };
    let mut at = at.unwrap_or_else(|| file.position());
    let count = count.min(TOTAL_MAX) as usize;
    loop {
        let left = count.saturating_sub(*call.progress);
        let data = file.inode().read_at(at, left.min(IO_MAX));
        if data.is_empty() {
            return Ok(*call.progress as u64);
        }
        if is_anonymous(&target.file.describe()) {
            return Err(Errno::EINVAL.into());
        }
        let taken = call.write_to(&*target.file, &data)?;
        *call.progress += taken;
        at += taken as u64;
        place.set(call, file, at)?;
        if taken < data.len() && !goes_on(&*target.file) {
            return Ok(*call.progress as u64);
        }
    }
}

/// Whether it has no position, not even one that means nothing.
fn is_stream(open: &Open) -> bool {
    matches!(
        open.file.describe(),
        Description::Pipe { .. } | Description::Socket | Description::Console
    )
}

impl FsCall<'_> {
    /// What a stream has, and a pipe has room for.
    fn splice_stream(&mut self, from: &Open, to: &Open, count: u64) -> SysResult {
        let pipe = to.file.as_any().downcast_ref::<PipeEnd>();
        let room = pipe.map_or(0, PipeEnd::room);
        let data = from.file.read(&mut self.cx, room.min(count as usize))?;
        Ok(self.write_to(&*to.file, &data)? as u64)
    }

    /// Waits for room in a pipe.
    fn check_pipe(&mut self, open: &Open) -> SysResult<()> {
        let ready = open.file.poll();
        if ready & libc::POLLERR != 0 {
            *self.sigpipe = true;
            return Err(Errno::EPIPE.into());
        }
        match ready & libc::POLLOUT != 0 {
            true => Ok(()),
            false if self.cx.nonblock => Err(Errno::EAGAIN.into()),
            false => Err(Stop::Wait(Wait {
                channels: open.file.channels(),
                deadline: None,
            })),
        }
    }
}

/// In the order of Linux's generic_copy_file_checks.
fn copy_file_range(
    call: &mut FsCall,
    fds: [i32; 2],
    pointers: [u64; 2],
    count: u64,
    flags: u64,
) -> SysResult {
    let (source, target) = (call.files.get(fds[0])?, call.files.get(fds[1])?);
    let places = pointers.map(|pointer| Place { pointer });
    let given = [places[0].given(call)?, places[1].given(call)?];
    if flags != 0 {
        return Err(Errno::EINVAL.into());
    }
    let is_directory = |open: &Open| open.file.as_any().is::<Directory>();
    if is_directory(&source) || is_directory(&target) {
        return Err(Errno::EISDIR.into());
    }
    let regular = |open: &'_ Open| open.file.as_any().is::<RegularFile>();
    if !regular(&source) || !regular(&target) {
        return Err(Errno::EINVAL.into());
    }
    source.check_readable()?;
    target.check_writable()?;
    if target.flags() & libc::O_APPEND != 0 {
        return Err(Errno::EBADF.into());
    }
    let files = [&source, &target].map(|open| open.file.as_any().downcast_ref::<RegularFile>());
    let [Some(from), Some(to)] = files else {
        return Err(Errno::EINVAL.into());
    };
    // A memfd is on a file system of its own.
    if from.is_memory_file() != to.is_memory_file() {
        return Err(Errno::EXDEV.into());
    }
    let place = |given: Option<i64>, file: &RegularFile| match given {
        Some(at) => at as u64,
        None => file.position(),
    };
    let (mut read_at, mut write_at) = (place(given[0], from), place(given[1], to));
    if read_at.checked_add(count).is_none() || write_at.checked_add(count).is_none() {
        return Err(Errno::EOVERFLOW.into());
    }
    if read_at.max(write_at) > i64::MAX as u64 {
        return Err(Errno::EINVAL.into());
    }
    let left = from.inode().size().saturating_sub(read_at);
    let count = count.min(TOTAL_MAX).min(left);
    let same = std::ptr::eq(from.inode().as_ref(), to.inode().as_ref());
    if same && read_at.abs_diff(write_at) < count {
        return Err(Errno::EINVAL.into());
    }
    let end = read_at + count;
    while read_at < end {
        let part = (end - read_at).min(IO_MAX as u64) as usize;
        let data = from.inode().read_at(read_at, part);
        let taken = to.inode().write_at(write_at, &data)?;
        read_at += taken as u64;
        write_at += taken as u64;
        *call.progress += taken;
        places[0].set(call, from, read_at)?;
        places[1].set(call, to, write_at)?;
    }
    Ok(*call.progress as u64)
}

#[cfg(test)]
mod tests {
    use snaprig_card_driver::errno::Errno;

    use crate::test_kit::{Kit, error, is_wait};

    #[test]
    fn sendfile_waits_for_room_and_moves_the_position() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", &[7; 100_000]);
        let fd = kit.open("/tmp/a", libc::O_RDONLY).unwrap();
        let (read, write) = kit.pipe(0);
        let all = [write, fd, 0, 1 << 40];
        assert!(is_wait(&kit.call(libc::SYS_sendfile, &all)));
        let part = [read, 0x10000, 65536];
        let got = kit.meanwhile(|kit| kit.call(libc::SYS_read, &part));
        assert_eq!(got, Ok(65536));
        assert_eq!(kit.call(libc::SYS_sendfile, &all), Ok(100_000));
        assert_eq!(kit.call(libc::SYS_read, &part), Ok(34_464));
        assert_eq!(kit.call(libc::SYS_sendfile, &all), Ok(0), "the end");
        // With an offset in memory that one moves.
        kit.put_words(0x500, &[99_990]);
        assert_eq!(kit.call(libc::SYS_sendfile, &[write, fd, 0x500, 6]), Ok(6));
        assert_eq!(kit.bytes(0x500, 8), &99_996_u64.to_le_bytes());
        assert_eq!(
            kit.call(libc::SYS_sendfile, &[write, read, 0, 6]),
            error(Errno::EINVAL)
        );
    }

    #[test]
    fn copy_file_range_copies_within_and_between_files() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"0123456789");
        let a = kit.open("/tmp/a", libc::O_RDWR).unwrap();
        let b = kit.open("/tmp/b", libc::O_CREAT | libc::O_RDWR).unwrap();
        let copy = |kit: &mut Kit, a: [u64; 6]| kit.call(libc::SYS_copy_file_range, &a);
        assert_eq!(copy(&mut kit, [a, 0, b, 0, 4, 0]), Ok(4));
        assert_eq!(copy(&mut kit, [a, 0, b, 0, 100, 0]), Ok(6));
        assert_eq!(kit.vfs.read_all("/tmp/b").unwrap(), b"0123456789");
        kit.put_words(0x500, &[0, 5]);
        assert_eq!(
            copy(&mut kit, [a, 0x500, a, 0x508, 6, 0]),
            error(Errno::EINVAL)
        );
        assert_eq!(copy(&mut kit, [a, 0x500, a, 0x508, 5, 0]), Ok(5));
        assert_eq!(kit.vfs.read_all("/tmp/a").unwrap(), b"0123401234");
        assert_eq!(kit.bytes(0x500, 8), &5_u64.to_le_bytes());
        assert_eq!(copy(&mut kit, [a, 0, b, 0, 4, 1]), error(Errno::EINVAL));
    }
}
