//! Huge pages of this machine (Documentation/admin-guide/mm/hugetlbpage.rst): sizes, whose files are of them, how many
//! there are; and files of them, mapped by this process.
//!
//! Whatever is of huge pages is a file of a hugetlbfs, also what has no name: the kernel has a file system of its own for
//! each size, which gives anonymous memory, memfds and System V segments away by their device.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

use procfs::process::Process;
use snaprig_tracee::memory;

use crate::error::{Error, Result};

/// Where the kernel has a directory for each size.
const SIZES: &str = "/sys/kernel/mm/hugepages";
/// HUGETLBFS_MAGIC of statfs(2).
const HUGETLBFS: i64 = 0x9584_58f6;
/// MAP_HUGE_SHIFT, MFD_HUGE_SHIFT and SHM_HUGE_SHIFT: where flags have the logarithm of the size.
const SIZE_SHIFT: u32 = 26;

/// Sizes by the devices of the kernel's own file systems, which stay what they are.
static DEVICES: OnceLock<BTreeMap<u64, u64>> = OnceLock::new();

/// Bytes of a huge page, for flags of mmap(2), memfd_create(2) and shmget(2).
pub fn size_flags(bytes: u64) -> i32 {
    (bytes.trailing_zeros() as i32) << SIZE_SHIFT
}

/// Bytes of the pages of what is on a device; 0: ordinary ones.
pub fn of_device(device: u64) -> u64 {
    let own = DEVICES.get_or_init(own_devices).get(&device).copied();
    own.unwrap_or_else(|| mounted(device))
}

/// Bytes of the pages of a file, or of what is in a directory; 0: ordinary ones, or it is not there.
pub fn of_path(path: &Path) -> u64 {
    rustix::fs::statfs(path).map_or(0, |system| of_system(&system))
}

/// The same of an open file.
pub fn of_file(file: impl AsFd) -> u64 {
    rustix::fs::fstatfs(file).map_or(0, |system| of_system(&system))
}

fn of_system(system: &rustix::fs::StatFs) -> u64 {
    match system.f_type == HUGETLBFS {
        true => system.f_bsize as u64,
        false => 0,
    }
}

fn own_devices() -> BTreeMap<u64, u64> {
    let sizes = sizes().into_iter();
    let device = |bytes| {
        let metadata =
            File::from(memfd(c"snaprig", bytes, libc::MFD_CLOEXEC as i32).ok()?).metadata();
        Some((std::os::unix::fs::MetadataExt::dev(&metadata.ok()?), bytes))
    };
    sizes.filter_map(device).collect()
}

/// Of a hugetlbfs that somebody has mounted, if it is that device.
fn mounted(device: u64) -> u64 {
    let mounts = Process::myself().and_then(|me| me.mountinfo());
    let Ok(mounts) = mounts else { return 0 };
    let name = format!("{}:{}", libc::major(device), libc::minor(device));
    let mut mounts = mounts
        .into_iter()
        .filter(|mount| mount.fs_type == "hugetlbfs");
    let mount = mounts.find(|mount| mount.majmin == name);
    mount.map_or(0, |mount| of_path(&mount.mount_point))
}

/// The sizes that this machine has, in bytes.
fn sizes() -> Vec<u64> {
    let entries = fs::read_dir(SIZES).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kib = name
            .to_str()?
            .strip_prefix("hugepages-")?
            .strip_suffix("kB")?;
        kib.parse::<u64>().ok()?.checked_mul(1 << 10)
    };
    entries.filter_map(bytes).collect()
}

/// A new memfd of huge pages, with flags of memfd_create(2).
pub fn memfd(name: &std::ffi::CStr, bytes: u64, flags: i32) -> io::Result<OwnedFd> {
    let flags = flags as u32 | libc::MFD_HUGETLB | size_flags(bytes) as u32;
    // SAFETY: memfd_create(2) reads the name, which ends with a zero.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    match fd {
        fd if fd < 0 => Err(io::Error::last_os_error()),
        // SAFETY: memfd_create(2) has just returned it, so nobody else owns it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// How many pages of a size somebody can still have; none: the machine has none of that size.
pub fn available(bytes: u64) -> Option<u64> {
    let number = |name: &str| {
        let text = fs::read_to_string(pool(bytes).join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let free = number("free_hugepages")?.saturating_sub(number("resv_hugepages")?);
    let more = number("nr_overcommit_hugepages")?.saturating_sub(number("surplus_hugepages")?);
    Some(free.saturating_add(more))
}

/// What to do where there are too few.
pub fn advice(bytes: u64) -> String {
    let all = pool(bytes).join("nr_hugepages");
    let own = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let usual = format!("{} kB", bytes >> 10);
    let mut lines = own.lines();
    let is_usual = lines.any(|line| line.starts_with("Hugepagesize:") && line.ends_with(&usual));
    match is_usual {
        true => "reserve more (sysctl vm.nr_hugepages)".into(),
        false => format!("reserve more ({})", all.display()),
    }
}

fn pool(bytes: u64) -> PathBuf {
    Path::new(SIZES).join(format!("hugepages-{}kB", bytes >> 10))
}

/// A file of huge pages, mapped shared by this process, which reserves none of them for it.
pub struct Mapped {
    at: u64,
    bytes: u64,
}

impl Mapped {
    /// Maps all of a file; `writes`: to write to it.
    pub fn map(file: &impl AsRawFd, bytes: u64, writes: bool) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let protection = libc::PROT_READ | if writes { libc::PROT_WRITE } else { 0 };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at, so no memory of ours changes.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        match at {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            at => Ok(Self {
                at: at.expose_provenance() as u64,
                bytes,
            }),
        }
    }

    /// Where it is.
    pub fn start(&self) -> u64 {
        self.at
    }

    /// Writes to it. Where there is no page to be had that is an error, and not a signal.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let address = self.address(offset, bytes.len() as u64);
        let address =
            address.ok_or_else(|| Error::io("shared huge pages", io::ErrorKind::UnexpectedEof))?;
        Ok(memory::scatter(
            std::process::id() as libc::pid_t,
            address,
            bytes,
        )?)
    }

    /// Where so many bytes of it are; none: it is not so long.
    fn address(&self, offset: u64, bytes: u64) -> Option<u64> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then_some(self.at + offset)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `at` and `bytes` are those of the mapping that `map` made, and no slice of it outlives this value.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.bytes as usize) };
    }
}
