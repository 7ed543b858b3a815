//! What a branch has to itself: namespaces, and directories that are copied when they are written to (overlayfs, over a tmpfs
//! of the branch's own).
//!
//! What must stay true: all of it is in namespaces of this process and its children, so the kernel takes it away with them.

use std::{
    ffi::CString,
    fs,
    io::{self, Error},
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::fs::FileTypeExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::CWD,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
        move_mount, open_tree,
    },
    thread::{UnshareFlags, unshare_unsafe},
};

/// Directories that are the kernel's, or everything.
const KEPT: [&str; 5] = ["/", "/proc", "/sys", "/dev", "/run"];

/// Says of which step it is.
fn named(what: impl Into<String>) -> impl FnOnce(Error) -> Error {
    let what = what.into();
    move |error| Error::new(error.kind(), format!("{what}: {error}"))
}

/// Makes namespaces; the next child is the first process of them. The calling process has one thread.
pub fn leave() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if !user.is_root() {
        unshare(UnshareFlags::NEWUSER, "a user namespace")?;
        fs::write("/proc/self/setgroups", "deny")?;
        let (user, group) = (user.as_raw(), group.as_raw());
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    let flags =
        UnshareFlags::NEWPID | UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWIPC;
    let addresses = addresses();
    unshare(flags, "namespaces")?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .map_err(Error::from)
    .map_err(named("mount /"))?;
    own_network(&addresses).map_err(named("the network of a branch"))
}

fn unshare(flags: UnshareFlags, what: &str) -> io::Result<()> {
    // SAFETY: `unshare_unsafe` is unsafe as a thread may lose the files or the memory that others count on; the flags have
    // neither, and the caller says that this process has one thread.
    let made = unsafe { unshare_unsafe(flags) };
    let hint = format!("{what} cannot be made; `snaprig doctor --for ckpt` says what allows it");
    made.map_err(Error::from).map_err(named(hint))
}

/// Has a /proc of its own, and copies of directories: of `checkpoint` without who is there now, and of `writes`. `scratch` is an
/// empty directory, which is the branch's own from then on.
pub fn furnish(scratch: &Path, checkpoint: &Path, writes: &[PathBuf]) -> io::Result<()> {
    mount("proc", "/proc", "proc", MountFlags::empty(), None)
        .map_err(Error::from)
        .map_err(named("mount /proc (in a container parts of it are hidden)"))?;
    mount("branch", scratch, "tmpfs", MountFlags::empty(), None)
        .map_err(Error::from)
        .map_err(named(format!("a tmpfs at {}", scratch.display())))?;
    let kept = KEPT.map(Path::new);
    let mut copied: Vec<&Path> = Vec::new();
    // Those above come first: what is below them is in them.
    for directory in writes.iter().map(PathBuf::as_path).chain([checkpoint]) {
        let is_kept = kept.contains(&directory)
            || ["/proc", "/sys"]
                .iter()
                .any(|kept| directory.starts_with(kept));
        if !is_kept && directory.is_dir() && !copied.iter().any(|at| directory.starts_with(at)) {
            copy(scratch, copied.len(), directory)
                .map_err(named(format!("a copy of {}", directory.display())))?;
            copied.push(directory);
        }
    }
    forget_who_is_there(checkpoint)
}

/// Puts a copy in a directory's place. What is mounted below it stays there.
fn copy(scratch: &Path, number: usize, directory: &Path) -> io::Result<()> {
    let [upper, work] = ["upper", "work"].map(|name| scratch.join(format!("{name}{number}")));
    fs::create_dir(&upper)?;
    fs::create_dir(&work)?;
    let mode = fs::metadata(directory)?.permissions();
    fs::set_permissions(&upper, mode)?;
    let below = mounted_below(directory)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let take = |at: &PathBuf| open_tree(CWD, at, flags | OpenTreeFlags::AT_RECURSIVE);
    let taken: Vec<OwnedFd> = below.iter().map(take).collect::<Result<_, _>>()?;
    let [lower, upper, work] = [directory, &upper, &work].map(escaped);
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work},userxattr");
    let options = CString::new(options)?;
    mount(
        "branch",
        directory,
        "overlay",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )?;
    for (at, tree) in below.iter().zip(taken) {
        move_mount(&tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    Ok(())
}

/// As an option of a mount: some characters end one.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        if ['\\', ',', ':'].contains(&c) {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

/// Where something is mounted below a directory, but not below another one of these (proc_pid_mountinfo(5)).
fn mounted_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let all = fs::read_to_string("/proc/self/mountinfo")?;
    let points = all.lines().filter_map(|line| line.split(' ').nth(4));
    let points = points.map(|point| PathBuf::from(unescaped(point)));
    let mut below: Vec<_> = points
        .filter(|point| point != directory && point.starts_with(directory))
        .collect();
    below.sort();
    below.dedup_by(|point, before| point.starts_with(before));
    Ok(below)
}

/// Spaces and the like are in octal digits there.
fn unescaped(point: &str) -> String {
    let codes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    codes
        .iter()
        .fold(point.to_owned(), |text, (code, c)| text.replace(code, c))
}

/// Takes away, in a copy of a checkpoint's directory, where others may be found who are using it now.
fn forget_who_is_there(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        if kind.is_socket() || entry.file_name() == "coordinator.json" {
            fs::remove_file(path)?;
        } else if kind.is_dir() {
            forget_who_is_there(&path)?;
        }
    }
    Ok(())
}

/// This machine's IPv4 addresses: the program may have bound some.
fn addresses() -> Vec<Ipv4Addr> {
    // Where it cannot be read there are none.
    let table = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut found = Vec::new();
    let mut last = None;
    for line in table.lines() {
        match line.trim().strip_prefix("|-- ") {
            Some(address) => last = address.parse::<Ipv4Addr>().ok(),
            None if line.contains("/32 host LOCAL") => {
                found.extend(last.filter(|it| !it.is_loopback()))
            }
            None => {}
        }
    }
    found.sort();
    found.dedup();
    found
}

/// A loopback interface that is up, and has the machine's addresses.
fn own_network(addresses: &[Ipv4Addr]) -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    set_interface(&socket, "lo", None)?;
    for (number, address) in addresses.iter().enumerate() {
        set_interface(&socket, &format!("lo:{number}"), Some(*address))?;
    }
    Ok(())
}

/// Gives an interface an address, or brings it up (netdevice(7)).
fn set_interface(socket: &OwnedFd, name: &str, address: Option<Ipv4Addr>) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the structure has numbers alone, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let what = match address {
        None => {
            request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
            libc::SIOCSIFFLAGS
        }
        Some(address) => {
            let mut data = [0; 14];
            data[2..6].copy_from_slice(&address.octets().map(|byte| byte as libc::c_char));
            request.ifr_ifru.ifru_addr = libc::sockaddr {
                sa_family: libc::AF_INET as u16,
                sa_data: data,
            };
            libc::SIOCSIFADDR
        }
    };
    // SAFETY: both requests read a struct ifreq, which is a variable of this function, and the name in it is shorter than its
    // place, so it ends with a zero.
    match unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw const request) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_mounts_keep_their_characters() {
        assert_eq!(escaped(Path::new("/a,b:c\\d")), "/a\\,b\\:c\\\\d");
        assert_eq!(unescaped("/a\\040b\\134"), "/a b\\");
    }
}
