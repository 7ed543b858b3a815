//! The checks. Each returns what it found, or why the thing cannot be used.

mod ckpt;
mod offload;
mod verbs;

use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd, FromRawFd},
    process::Command,
};

use snaprig_card_platform::{self as platform, Kind};
use snaprig_userfault::{
    Userfault,
    features::{NOTE_WRITES, PROTECT_SHARED, PROTECT_UNPOPULATED},
    scan::{Scan, categories::PRESENT},
};

use super::Row;

/// Libraries for programs are where cargo or a package leaves them, or are put there.
const LIBRARIES: &str =
    "see the reason; XDG_CACHE_HOME=DIR, one that is yours and not mounted noexec";

/// What was found, or why the thing cannot be used.
type Found = Result<String, String>;

/// Something to be tried.
pub(super) struct Check {
    pub(super) what: &'static str,
    attempt: fn() -> Found,
    fallback: Option<&'static str>,
    remedy: &'static str,
}

impl Check {
    /// `fallback`: what snaprig does without it; none, it cannot do without.
    const fn new(
        what: &'static str,
        attempt: fn() -> Found,
        fallback: Option<&'static str>,
        remedy: &'static str,
    ) -> Self {
        Self {
            what,
            attempt,
            fallback,
            remedy,
        }
    }

    /// Tries it.
    pub(super) fn tried(self) -> Row {
        let found = (self.attempt)();
        Row {
            what: self.what,
            ok: found.is_ok(),
            state: found.unwrap_or_else(|why| why),
            fallback: self.fallback,
            remedy: self.remedy,
        }
    }
}

/// Room for two small cards and what is beside them.
const MEMORY_KIB_MIN: u64 = 2 << 20;
/// A card takes some descriptors for each guest thread, and one for each open file.
const FILES_MIN: u64 = 1024;

/// Every check, in the order of the table.
pub(super) fn all() -> Vec<Check> {
    let mut checks = vec![
        Check::new(
            "kvm",
            || platform(Kind::Kvm),
            Some("ptrace"),
            "enable virtualisation; join group kvm; a container: --device /dev/kvm",
        ),
        Check::new(
            "ptrace",
            || platform(Kind::Ptrace),
            Some("kvm"),
            "kernel.yama.ptrace_scope of 0 or 1; a container: --cap-add SYS_PTRACE",
        ),
        Check::new("memfd", memfd, None, "Linux 3.17"),
        Check::new(
            "io_uring",
            uring,
            Some("copy threads"),
            "sysctl kernel.io_uring_disabled=0; a container: --security-opt seccomp=FILE that allows it",
        ),
        Check::new(
            "userfaultfd",
            userfaultfd,
            Some("full snapshots only; memory of a program with several threads stays where it is"),
            "Linux 6.7; a container: --security-opt seccomp=FILE that allows it",
        ),
        Check::new(
            "post-copy",
            post_copy,
            Some("--post-copy: use --pre-copy"),
            "root with CAP_SYS_PTRACE; a container: --cap-add SYS_PTRACE",
        ),
        Check::new(
            "PAGEMAP_SCAN",
            pagemap_scan,
            Some("full snapshots only"),
            "Linux 6.7",
        ),
        Check::new(
            "vfio",
            vfio,
            Some("cards over vfio-user"),
            "see the reason; needs an IOMMU",
        ),
        Check::new(
            "seccomp",
            snaprig_rig::sandbox::probe,
            Some("cards without a sandbox"),
            "unset SNAPRIG_SECCOMP; Linux with CONFIG_SECCOMP_FILTER",
        ),
        Check::new(
            "memory",
            memory,
            Some("fewer, smaller cards"),
            "2 GiB available",
        ),
        Check::new(
            "open files",
            open_files,
            Some("fewer card threads"),
            "ulimit -n 65536",
        ),
        Check::new(
            "gcc",
            gcc,
            Some("programs built elsewhere"),
            "apt-get install gcc libc6-dev",
        ),
        Check::new(
            "qemu",
            qemu,
            Some("no ci/vm"),
            "apt-get install qemu-system-x86",
        ),
    ];
    checks.extend(offload::all());
    checks.extend(verbs::all());
    checks.extend(ckpt::all());
    checks
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

/// Runs a program on the platform, and times its system calls.
fn platform(kind: Kind) -> Found {
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
fn memfd() -> Found {
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
fn uring() -> Found {
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
fn userfaultfd() -> Found {
    let one = Userfault::own(PROTECT_SHARED | PROTECT_UNPOPULATED | NOTE_WRITES);
    one.map_err(failed("userfaultfd with WP_ASYNC"))?;
    Ok("WP_ASYNC".into())
}

/// Asks for what memory that follows a process takes.
fn post_copy() -> Found {
    Userfault::following().map_err(failed("userfaultfd with all faults and events"))?;
    Ok("userfaultfd with all faults and events".into())
}

/// Scans one page of our own.
fn pagemap_scan() -> Found {
    let pagemap = File::open("/proc/self/pagemap").map_err(failed("/proc/self/pagemap"))?;
    let page = (&raw const pagemap) as u64 & !4095;
    let scan = Scan {
        all: PRESENT,
        ..Scan::default()
    };
    let mut region = [[0; 3]];
    let found = scan.ask(pagemap, page..page + 4096, &mut region);
    match found.map_err(failed("PAGEMAP_SCAN"))? {
        (1, _) if region[0][0] == page => Ok("scanned a page".into()),
        (found, _) => Err(format!("{found} regions where one page is present")),
    }
}

/// The devices that are bound to vfio-pci.
fn vfio() -> Found {
    let bound = snaprig_pci::vfio::probe().map_err(|error| error.to_string())?;
    let devices: Vec<_> = bound.iter().map(ToString::to_string).collect();
    Ok(match devices.is_empty() {
        true => "no device is bound to vfio-pci".into(),
        false => format!("bound to vfio-pci: {}", devices.join(", ")),
    })
}

fn memory() -> Found {
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

fn open_files() -> Found {
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
fn first_line(program: &str, argument: &str) -> Found {
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
fn gcc() -> Found {
    let version = first_line("gcc", "-dumpfullversion")?;
    // Without the file, gcc prints the bare name.
    if first_line("gcc", "-print-file-name=libc.a")?.starts_with('/') {
        Ok(format!("{version}, static libc"))
    } else {
        Err(format!("{version}, but no libc.a"))
    }
}

fn qemu() -> Found {
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
    }
}
