//! The checks. Each returns what it found, or why the thing cannot be used.

mod offload;
mod verbs;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::Command,
};

use snaprig_card_platform::{self as platform, Kind};

use super::Row;
pub(super) use offload::NEEDED as NEEDED_BY_OFFLOAD;
pub(super) use verbs::NEEDED as NEEDED_BY_VERBS;

type Check = Result<String, String>;

/// Either of them runs a card.
pub(super) const PLATFORMS: [&str; 2] = ["kvm", "ptrace"];

/// Room for two small cards and what is beside them.
const MEMORY_KIB_MIN: u64 = 2 << 20;
const SHM_BYTES_MIN: u64 = 64 << 20;
/// A card takes some descriptors for each guest thread, and one for each open file.
const FILES_MIN: u64 = 1024;

fn row(
    what: &'static str,
    check: Check,
    fallback: Option<&'static str>,
    remedy: &'static str,
) -> Row {
    let ok = check.is_ok();
    Row {
        what,
        ok,
        state: check.unwrap_or_else(|why| why),
        fallback,
        remedy,
    }
}

/// Every check, in the order of the table.
pub(super) fn all() -> Vec<Row> {
    let mut rows = vec![
        row(
            "kvm",
            platform(Kind::Kvm),
            Some("ptrace"),
            "enable virtualisation; join group kvm",
        ),
        row(
            "ptrace",
            platform(Kind::Ptrace),
            Some("kvm"),
            "in a container: --cap-add SYS_PTRACE",
        ),
        row("memfd", memfd(), None, "Linux 3.17"),
        row(
            "io_uring",
            uring(),
            Some("copy threads"),
            "sysctl kernel.io_uring_disabled=0",
        ),
        row(
            "userfaultfd",
            userfaultfd(),
            Some("full snapshots only"),
            "Linux 6.7",
        ),
        row(
            "PAGEMAP_SCAN",
            pagemap_scan(),
            Some("full snapshots only"),
            "Linux 6.7",
        ),
        row(
            "vfio",
            vfio(),
            Some("cards over vfio-user"),
            "see the reason; needs an IOMMU",
        ),
        row(
            "seccomp",
            snaprig_rig::sandbox::probe(),
            Some("cards without a sandbox"),
            "unset SNAPRIG_SECCOMP; Linux with CONFIG_SECCOMP_FILTER",
        ),
        row(
            "FUSE",
            open("/dev/fuse"),
            Some("nothing uses it yet"),
            "modprobe fuse",
        ),
        row(
            "memory",
            memory(),
            Some("fewer, smaller cards"),
            "2 GiB available",
        ),
        row(
            "/dev/shm",
            shm(),
            Some("nothing uses it yet"),
            "mount tmpfs; --shm-size",
        ),
        row(
            "open files",
            open_files(),
            Some("fewer card threads"),
            "ulimit -n 65536",
        ),
        row(
            "gcc",
            gcc(),
            Some("programs built elsewhere"),
            "apt-get install gcc libc6-dev",
        ),
        row(
            "qemu",
            qemu(),
            Some("no ci/vm"),
            "apt-get install qemu-system-x86",
        ),
    ];
    rows.extend(offload::all());
    rows.extend(verbs::all());
    rows
}

fn failed(what: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}")
}

/// A descriptor or a count from a system call, or errno.
fn checked(what: &str, result: i64) -> Result<i64, String> {
    if result < 0 {
        Err(failed(what)(io::Error::last_os_error()))
    } else {
        Ok(result)
    }
}

fn open(path: &str) -> Check {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(failed(path))?;
    Ok(format!("{path} opens"))
}

/// Runs a program on the platform, and times its system calls.
fn platform(kind: Kind) -> Check {
    let time = platform::probe(kind).map_err(|error| error.to_string())?;
    Ok(format!("runs programs, {} us a call", time.as_micros()))
}

/// A memfd of one page.
fn new_memfd() -> Result<File, String> {
    // SAFETY: the name is a C string; the result is a new descriptor that nobody else owns.
    let file = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = checked(
            "memfd_create",
            libc::memfd_create(c"doctor".as_ptr(), flags).into(),
        )?;
        File::from_raw_fd(fd as i32)
    };
    file.set_len(4096).map_err(failed("ftruncate"))?;
    Ok(file)
}

/// Seals a memfd and sees that the seal holds.
fn memfd() -> Check {
    let file = new_memfd()?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: F_ADD_SEALS takes an int (fcntl(2)).
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    checked("F_ADD_SEALS", sealed.into())?;
    match file.set_len(0) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok("sealed one".into()),
        _ => Err("a sealed memfd could still shrink".into()),
    }
}

/// Submits a read of a memfd and takes its completion.
fn uring() -> Check {
    let file = new_memfd()?;
    let mut ring = io_uring::IoUring::new(2).map_err(failed("io_uring_setup"))?;
    let mut buffer = [0; 64];
    let fd = io_uring::types::Fd(file.as_raw_fd());
    let read = io_uring::opcode::Read::new(fd, buffer.as_mut_ptr(), buffer.len() as u32).build();
    // SAFETY: buffer and file outlive the request, whose completion is awaited here.
    unsafe { ring.submission().push(&read) }.map_err(|error| error.to_string())?;
    ring.submit_and_wait(1).map_err(failed("io_uring_enter"))?;
    match ring.completion().next().map(|entry| entry.result()) {
        Some(64) => Ok("read from a memfd".into()),
        other => Err(format!("a read ended as {other:?}")),
    }
}

/// Asks for the features of asynchronous write protection (ioctl_userfaultfd(2)).
fn userfaultfd() -> Check {
    const USER_MODE_ONLY: i64 = 1;
    const API: u64 = 0xaa;
    const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
    const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
    const WP_UNPOPULATED: u64 = 1 << 13;
    const WP_ASYNC: u64 = 1 << 15;
    // struct uffdio_api: api, features, ioctls.
    let mut api = [API, WP_HUGETLBFS_SHMEM | WP_UNPOPULATED | WP_ASYNC, 0];
    let flags = i64::from(libc::O_CLOEXEC) | USER_MODE_ONLY;
    // SAFETY: the call takes flags alone and returns a new descriptor that nobody else owns; the
    // ioctl reads and writes 24 bytes, the size of `api`.
    unsafe {
        let fd = checked("userfaultfd", libc::syscall(libc::SYS_userfaultfd, flags))?;
        let fd = OwnedFd::from_raw_fd(fd as i32);
        let done = libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr());
        checked("WP_ASYNC", done.into())?;
    }
    Ok("WP_ASYNC".into())
}

/// Scans one page of our own.
fn pagemap_scan() -> Check {
    const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
    const PAGE_IS_PRESENT: u64 = 1 << 3;
    const ARGUMENT_BYTES: u64 = 96;
    let pagemap = File::open("/proc/self/pagemap").map_err(failed("/proc/self/pagemap"))?;
    let page = (&raw const pagemap) as u64 & !4095;
    let mut region = [0u64; 3];
    // struct pm_scan_arg: size, flags, start, end, walk_end, vec, vec_len, max_pages, category
    // inverted, mask, any-of mask, return mask.
    let mut argument = [0u64; (ARGUMENT_BYTES / 8) as usize];
    argument[0] = ARGUMENT_BYTES;
    argument[2] = page;
    argument[3] = page + 4096;
    argument[5] = region.as_mut_ptr() as u64;
    argument[6] = 1;
    argument[9] = PAGE_IS_PRESENT;
    argument[11] = PAGE_IS_PRESENT;
    // SAFETY: the argument has the size that it claims, and room for one region is at `vec`; both
    // outlive the call.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, argument.as_mut_ptr()) };
    match checked("PAGEMAP_SCAN", found.into())? {
        1 if region[0] == page => Ok("scanned a page".into()),
        found => Err(format!("{found} regions where one page is present")),
    }
}

/// The devices that are bound to vfio-pci.
fn vfio() -> Check {
    let bound = snaprig_pci::vfio::probe().map_err(|error| error.to_string())?;
    let devices: Vec<_> = bound.iter().map(ToString::to_string).collect();
    Ok(match devices.is_empty() {
        true => "no device is bound to vfio-pci".into(),
        false => format!("bound to vfio-pci: {}", devices.join(", ")),
    })
}

fn memory() -> Check {
    let text = fs::read_to_string("/proc/meminfo").map_err(failed("/proc/meminfo"))?;
    let kib = available_kib(&text).ok_or("/proc/meminfo: no MemAvailable")?;
    let found = format!("{:.1} GiB available", kib as f64 / f64::from(1 << 20));
    if kib >= MEMORY_KIB_MIN {
        Ok(found)
    } else {
        Err(found)
    }
}

fn available_kib(meminfo: &str) -> Option<u64> {
    let rest = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix(" kB")?.parse().ok()
}

fn shm() -> Check {
    // SAFETY: a statvfs of zeroes is valid; the path is a C string.
    let stat = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        checked(
            "/dev/shm",
            libc::statvfs(c"/dev/shm".as_ptr(), &raw mut stat).into(),
        )?;
        stat
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let found = format!("{} MiB free", free >> 20);
    if free >= SHM_BYTES_MIN {
        Ok(found)
    } else {
        Err(found)
    }
}

fn open_files() -> Check {
    let limit = limit(libc::RLIMIT_NOFILE)?;
    let found = format!("limit {limit}");
    if limit >= FILES_MIN {
        Ok(found)
    } else {
        Err(found)
    }
}

/// A limit of this process (getrlimit(2)).
fn limit(resource: libc::__rlimit_resource_t) -> Result<u64, String> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes one rlimit, which is here.
    let done = unsafe { libc::getrlimit(resource, &raw mut limit) };
    checked("getrlimit", done.into())?;
    Ok(limit.rlim_cur)
}

/// The first line that a program prints.
fn first_line(program: &str, argument: &str) -> Check {
    let output = Command::new(program)
        .arg(argument)
        .output()
        .map_err(failed(program))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.lines().next() {
        Some(line) if output.status.success() => Ok(line.trim().into()),
        _ => Err(format!("{program} {argument}: {}", output.status)),
    }
}

/// gcc, and the libc.a that static programs are linked with.
fn gcc() -> Check {
    let version = first_line("gcc", "-dumpfullversion")?;
    // Without the file, gcc prints the bare name.
    if first_line("gcc", "-print-file-name=libc.a")?.starts_with('/') {
        Ok(format!("{version}, static libc"))
    } else {
        Err(format!("{version}, but no libc.a"))
    }
}

fn qemu() -> Check {
    let line = first_line("qemu-system-x86_64", "--version")?;
    let version = line
        .split_whitespace()
        .skip_while(|word| *word != "version")
        .nth(1);
    Ok(version.map_or(line.clone(), |version| format!("version {version}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_or_refused() {
        let text = "MemTotal:  9 kB\nMemAvailable:    2097152 kB\n";
        assert_eq!(available_kib(text), Some(2 << 20));
        assert_eq!(available_kib("MemAvailable: many kB\n"), None);
        assert_eq!(available_kib(""), None);
    }

    #[test]
    fn a_missing_program_or_file_says_so() {
        let missing = first_line("/nonexistent/program", "-v").unwrap_err();
        assert!(
            missing.starts_with("/nonexistent/program: No such file"),
            "{missing}"
        );
        assert!(
            first_line("false", "-v")
                .unwrap_err()
                .contains("exit status: 1")
        );
        assert!(
            open("/nonexistent")
                .unwrap_err()
                .starts_with("/nonexistent: No such file")
        );
    }
}
