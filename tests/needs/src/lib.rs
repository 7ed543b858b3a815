//! What tests need of the machine that they run on, found out by the build script of their crate, so that a test whose
//! machine has not got it is an ignored one, named and counted as such, and not one that passes without having run.
//!
//! ```text
//! // build.rs
//! fn main() {
//!     snaprig_test_needs::tell();
//! }
//!
//! // a test
//! #[test]
//! #[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
//! fn runs_on_kvm() {}
//! ```
//!
//! What must stay true: a test that is not ignored asks for nothing again and skips nothing. If what it needs has gone
//! since it was built it fails, and says why; if it has come, `cargo test -- --include-ignored` runs it, and another value
//! of the variable `SNAPRIG_TEST_NEEDS` has cargo ask again.

use std::{
    fs::OpenOptions,
    io,
    os::fd::{FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Another value of this variable has cargo ask again.
const AGAIN: &str = "SNAPRIG_TEST_NEEDS";
/// The host's virtual machine monitor.
const KVM: &str = "/dev/kvm";
/// The first Linux whose PAGEMAP_SCAN and asynchronous write protection tell who has written where.
const TRACKS_WRITES: (u32, u32) = (6, 7);
/// The first Linux with guard pages (MADV_GUARD_INSTALL).
const GUARD_PAGES: (u32, u32) = (6, 13);
/// UFFD_USER_MODE_ONLY of userfaultfd(2): no privilege is needed.
const USER_MODE_ONLY: libc::c_int = 1;

/// Declares a `cfg` for everything that there is to ask for, and sets those that this machine has.
pub fn tell() {
    if Path::new(KVM).exists() {
        println!("cargo::rerun-if-changed={KVM}");
    }
    say("has_kvm", opens(KVM));
    say("has_write_tracking", tracks_writes());
}

/// Declares the `cfg` `has_guard_pages`, and sets it if the kernel has them.
pub fn tell_guard_pages() {
    say("has_guard_pages", is_linux(GUARD_PAGES));
}

/// Declares the `cfg` `is_root`, and sets it if root builds, and so runs, the tests.
pub fn tell_root() {
    // SAFETY: geteuid(2) takes no argument and cannot fail.
    say("is_root", unsafe { libc::geteuid() } == 0);
}

/// Declares the `cfg` `system_calls_wait`, and sets it if userfaultfd(2) may have system calls wait that fault.
pub fn tell_system_calls_wait() {
    say("system_calls_wait", userfault(0).is_ok());
}

/// Declares a `cfg`, and sets it if a file system of this kind can be mounted in a mount namespace that unshare(1) makes
/// with these options.
pub fn tell_mounts(name: &str, kind: &str, options: &[&str]) {
    let mut unshare = Command::new("unshare");
    unshare.args(options).args(["--mount", "--", "mount", "-t"]);
    // What is there is covered in that namespace alone, which ends with mount(8).
    unshare.args([kind, "none", "/tmp"]);
    unshare.stdout(Stdio::null()).stderr(Stdio::null());
    say(name, unshare.status().is_ok_and(|status| status.success()));
}

/// Declares a `cfg`, and sets it if ip(8) makes interfaces in a network namespace that unshare(1) makes.
pub fn tell_networks(name: &str) {
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--net", "--", "ip", "link", "add"]);
    // They end with the namespace, which ends with ip(8).
    unshare.args(["one", "type", "veth", "peer", "name", "other"]);
    unshare.stdout(Stdio::null()).stderr(Stdio::null());
    say(name, unshare.status().is_ok_and(|status| status.success()));
}

/// Declares the `cfg` `has_program`, and sets it to each of these programs that is installed:
/// `#[cfg_attr(not(has_program = "tshark"), ignore = "tshark is not installed")]`.
pub fn tell_programs(programs: &[&str]) {
    println!("cargo::rerun-if-env-changed=PATH");
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&paths).collect();
    let find = |program: &str| {
        let mut places = directories.iter().map(|one| one.join(program));
        places.find(|place| place.is_file())
    };
    say_each("has_program", programs, find);
}

/// Declares the `cfg` `has_file`, and sets it to the path of each of these files that is there.
pub fn tell_files(files: &[&str]) {
    let find = |file: &str| Some(PathBuf::from(file)).filter(|file| file.is_file());
    say_each("has_file", files, find);
}

/// Declares a `cfg` that has a value for everything that is found.
fn say_each(name: &str, all: &[&str], find: impl Fn(&str) -> Option<PathBuf>) {
    println!("cargo::rerun-if-env-changed={AGAIN}");
    let values: Vec<String> = all.iter().map(|one| format!("{one:?}")).collect();
    println!(
        "cargo::rustc-check-cfg=cfg({name}, values({}))",
        values.join(", ")
    );
    for one in all {
        // One that is not there cannot be watched: cargo would ask every time.
        if let Some(place) = find(one) {
            println!("cargo::rerun-if-changed={}", place.display());
            println!("cargo::rustc-cfg={name}={one:?}");
        }
    }
}

/// Declares a `cfg`, and sets it if that is so.
pub fn say(name: &str, is_so: bool) {
    println!("cargo::rerun-if-env-changed={AGAIN}");
    println!("cargo::rustc-check-cfg=cfg({name})");
    if is_so {
        println!("cargo::rustc-cfg={name}");
    }
}

/// Whether a device can be used: that it has a name says nothing of who may open it.
fn opens(device: &str) -> bool {
    let mut how = OpenOptions::new();
    how.read(true).write(true).open(device).is_ok()
}

/// Whether the kernel is new enough to tell which pages of a process have been written to, and lets this one ask.
fn tracks_writes() -> bool {
    is_linux(TRACKS_WRITES) && userfault(USER_MODE_ONLY).is_ok()
}

/// Whether the kernel is this one, or a later one.
fn is_linux(first: (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= first)
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

/// A userfaultfd(2), which containers often refuse.
fn userfault(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags and no pointer, so it touches no memory of this process; its result is checked.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_userfaultfd,
            libc::c_long::from(libc::O_CLOEXEC | flags),
        )
    };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: userfaultfd(2) has just returned the descriptor, so it is open and nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_kernels() {
        assert_eq!(version("6.18.44-fc-v657\n"), Some((6, 18)));
        assert_eq!(version("6.1.0-28-amd64"), Some((6, 1)));
        assert_eq!(version("strange"), None);
        assert!((6, 18) >= TRACKS_WRITES && (6, 1) < TRACKS_WRITES);
    }
}
