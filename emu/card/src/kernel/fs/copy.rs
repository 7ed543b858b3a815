//! sendfile(2) and copy_file_range(2): bytes of a file go elsewhere without passing through the
//! program.

use super::{FsCall, IO_MAX, RegularFile, transfer::goes_on};
use crate::kernel::{errno::Errno, file::File, wait::SysResult};

/// Most bytes that one call moves.
const TOTAL_MAX: u64 = 0x7fff_f000;

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let int = |i: usize| a[i] as i32;
    Some(match number as i64 {
        libc::SYS_sendfile => sendfile(call, int(0), int(1), a[2], a[3]),
        libc::SYS_copy_file_range if a[5] != 0 => Err(Errno::EINVAL.into()),
        libc::SYS_copy_file_range => copy_file_range(call, [int(0), int(2)], [a[1], a[3]], a[4]),
        _ => return None,
    })
}

/// Where a call is in a regular file: at the file's own position, or at one in the caller's memory,
/// at this address.
struct Place<'a> {
    file: &'a RegularFile,
    pointer: u64,
}

impl<'a> Place<'a> {
    fn new(file: &'a dyn File, pointer: u64) -> Result<Self, Errno> {
        let regular = file.as_any().downcast_ref::<RegularFile>();
        let file = regular.ok_or(Errno::EINVAL)?;
        Ok(Self { file, pointer })
    }

    fn get(&self, call: &mut FsCall) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        if self.pointer == 0 {
            return self.file.seek(0, libc::SEEK_CUR);
        }
        call.cx.memory.read(self.pointer, &mut bytes)?;
        let at = u64::from_le_bytes(bytes);
        i64::try_from(at).map_err(|_| Errno::EINVAL)?;
        Ok(at)
    }

    fn set(&self, call: &mut FsCall, at: u64) -> Result<(), Errno> {
        if self.pointer == 0 {
            let at = i64::try_from(at).map_err(|_| Errno::EFBIG)?;
            self.file.seek(at, libc::SEEK_SET)?;
            return Ok(());
        }
        call.cx.memory.write(self.pointer, &at.to_le_bytes())
    }
}

/// The place is moved with every part, so that an attempt goes on where the last one ended.
fn sendfile(call: &mut FsCall, to: i32, from: i32, pointer: u64, count: u64) -> SysResult {
    let source = call.files.get(from)?;
    source.check_readable()?;
    let target = call.open_for(to)?;
    target.check_writable()?;
    let place = Place::new(&*source.file, pointer)?;
    if call.cx.append {
        return Err(Errno::EINVAL.into());
    }
    let count = count.min(TOTAL_MAX) as usize;
    loop {
        let at = place.get(call)?;
        let left = count.saturating_sub(*call.progress);
        let data = place.file.inode().read_at(at, left.min(IO_MAX));
        if data.is_empty() {
            return Ok(*call.progress as u64);
        }
        let taken = call.write_to(&*target.file, &data)?;
        *call.progress += taken;
        place.set(call, at + taken as u64)?;
        if taken < data.len() && !goes_on(&*target.file) {
            return Ok(*call.progress as u64);
        }
    }
}

fn copy_file_range(call: &mut FsCall, fds: [i32; 2], pointers: [u64; 2], count: u64) -> SysResult {
    let (source, target) = (call.files.get(fds[0])?, call.files.get(fds[1])?);
    source.check_readable()?;
    target.check_writable()?;
    if target.flags() & libc::O_APPEND != 0 {
        return Err(Errno::EBADF.into());
    }
    let from = Place::new(&*source.file, pointers[0])?;
    let to = Place::new(&*target.file, pointers[1])?;
    let (mut read_at, mut write_at) = (from.get(call)?, to.get(call)?);
    let left = from.file.inode().size().saturating_sub(read_at);
    let count = count.min(TOTAL_MAX).min(left);
    let same = std::ptr::eq(from.file.inode().as_ref(), to.file.inode().as_ref());
    if same && read_at.abs_diff(write_at) < count {
        return Err(Errno::EINVAL.into());
    }
    let end = read_at + count;
    while read_at < end {
        let part = (end - read_at).min(IO_MAX as u64) as usize;
        let data = from.file.inode().read_at(read_at, part);
        let taken = to.file.inode().write_at(write_at, &data)?;
        read_at += taken as u64;
        write_at += taken as u64;
        *call.progress += taken;
        from.set(call, read_at)?;
        to.set(call, write_at)?;
    }
    Ok(*call.progress as u64)
}

#[cfg(test)]
mod tests {
    use crate::kernel::{
        errno::Errno,
        fs::test_kit::{Kit, error, is_wait},
    };

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
