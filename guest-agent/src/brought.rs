//! Files that hosts bring to a card: programs and libraries, read out of a host's window.
//!
//! A file that was brought has an attribute (xattr(7)) with the hash of its bytes. What has none is
//! the card's own, and stays; what has the same hash is not read again.
//!
//! What must stay true: a file has its name only when it is whole and is what it should be, and
//! whoever has an earlier one open or mapped keeps that.

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use snaprig_offload_wire::coi::{BINARY_BYTES_MAX, Library};
use xxhash_rust::xxh3::xxh3_64;

use crate::scif::Endpoint;

/// The attribute: eight bytes, little-endian.
const ATTRIBUTE: &std::ffi::CStr = c"user.coi";

/// Makes sure that the card has a library: brings it, unless it is there. Errors name it.
pub fn library(from: &Endpoint, library: &Library) -> io::Result<()> {
    let named = |error: io::Error| match error.raw_os_error() {
        Some(errno) => Named(errno, format!("{}: {error}", library.path)).into(),
        None => io::Error::new(error.kind(), format!("{}: {error}", library.path)),
    };
    let path = Path::new(&library.path);
    if !path.is_absolute() || library.path.contains('\0') || library.bytes > BINARY_BYTES_MAX {
        return Err(named(io::ErrorKind::InvalidInput.into()));
    }
    match stays(hash_of(path).map_err(named)?, library.hash) {
        true => Ok(()),
        false => bring(from, library, path).map_err(named),
    }
}

/// An error of a call that says what it was about.
#[derive(Debug)]
pub struct Named(pub i32, pub String);

impl std::fmt::Display for Named {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str(&self.1)
    }
}

impl std::error::Error for Named {}

impl From<Named> for io::Error {
    fn from(named: Named) -> Self {
        Self::new(Self::from_raw_os_error(named.0).kind(), named)
    }
}

/// The Linux error number of an error, or 0.
pub fn errno(error: &io::Error) -> i32 {
    let named = error.get_ref().and_then(|inner| inner.downcast_ref());
    let named = named.map(|Named(errno, _)| *errno);
    named.or(error.raw_os_error()).unwrap_or(0)
}

/// Whether what is there is kept.
fn stays(there: Option<Option<u64>>, hash: u64) -> bool {
    match there {
        None => false,
        Some(None) => true,
        Some(Some(other)) => other == hash,
    }
}

/// What is there under a name, and the hash of it if it was brought.
pub fn hash_of(path: &Path) -> io::Result<Option<Option<u64>>> {
    if !path.try_exists()? {
        return Ok(None);
    }
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    let mut bytes = [0; 8];
    // SAFETY: both strings end with a zero; `bytes` has as many bytes as is said.
    let len = unsafe {
        libc::getxattr(
            path.as_ptr(),
            ATTRIBUTE.as_ptr(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
        )
    };
    Ok(Some((len == 8).then(|| u64::from_le_bytes(bytes))))
}

/// Whether there is a file of so many bytes that was not brought.
pub fn is_own(path: &Path, len: u64) -> bool {
    matches!(hash_of(path), Ok(Some(None)))
        && fs::metadata(path).is_ok_and(|there| there.size() == len)
}

/// Marks a file as brought.
pub fn mark(file: &File, hash: u64) -> io::Result<()> {
    let bytes = hash.to_le_bytes();
    // SAFETY: the name ends with a zero; `bytes` has as many bytes as is said.
    let result = unsafe {
        libc::fsetxattr(
            file.as_raw_fd(),
            ATTRIBUTE.as_ptr(),
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn bring(from: &Endpoint, library: &Library, path: &Path) -> io::Result<()> {
    named_when_whole(path, |partial| {
        let (file, hash) = window(from, partial, library.bytes, library.window)?;
        if hash != library.hash {
            return Err(io::Error::from_raw_os_error(libc::EBADMSG));
        }
        mark(&file, hash)
    })
}

/// Makes a file under another name, and gives it its own when it is made: several may make the same one at a time.
pub fn named_when_whole(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut partial = Partial::of(path);
    make(partial.aside())?;
    partial.name()
}

/// A file that has no name of its own yet; if it gets none, nothing of it remains.
pub struct Partial {
    path: PathBuf,
    aside: PathBuf,
}

impl Partial {
    /// Of a file that will be at `path`. Nobody else has the other name.
    pub fn of(path: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{pid}-{number}.partial"));
        Self {
            path: path.to_owned(),
            aside: aside.into(),
        }
    }

    /// Where to make it.
    pub fn aside(&self) -> &Path {
        &self.aside
    }

    /// Gives it its name.
    pub fn name(&mut self) -> io::Result<()> {
        fs::rename(&self.aside, &self.path)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // It may not have come so far, or has its name.
        let _ = fs::remove_file(&self.aside);
    }
}

/// Brings bytes of a host's window into a new file, by RDMA, straight into the file's pages; the file,
/// and the hash of its bytes.
pub fn window(from: &Endpoint, path: &Path, bytes: u64, window: i64) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o755);
    let file = options.open(path)?;
    file.set_len(bytes)?;
    let len = bytes as usize;
    if len == 0 {
        return Ok((file, xxh3_64(&[])));
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let fd = file.as_raw_fd();
    // SAFETY: a new shared mapping of a file of ours; the result is checked.
    let pages = unsafe { libc::mmap(ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, 0) };
    if pages == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let fetched = from.vreadfrom(pages as usize, bytes, window);
    // SAFETY: the mapping has `len` bytes, and nobody writes to them any more.
    let hash = xxh3_64(unsafe { std::slice::from_raw_parts(pages.cast(), len) });
    // SAFETY: the mapping is ours, and nothing refers to it.
    unsafe { libc::munmap(pages, len) };
    fetched.map(|()| (file, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cards_own_stays_and_so_does_what_was_brought_before() {
        assert!(!stays(None, 1));
        assert!(stays(Some(None), 1));
        assert!(stays(Some(Some(1)), 1));
        assert!(!stays(Some(Some(2)), 1));
    }

    #[test]
    fn an_error_keeps_its_number_under_its_name() {
        let error = io::Error::from(Named(libc::ENOSPC, "/lib/a.so: no space".into()));
        assert_eq!(errno(&error), libc::ENOSPC);
        assert_eq!(error.to_string(), "/lib/a.so: no space");
        assert_eq!(
            errno(&io::Error::from_raw_os_error(libc::EPERM)),
            libc::EPERM
        );
        assert_eq!(errno(&io::ErrorKind::InvalidInput.into()), 0);
    }
}
