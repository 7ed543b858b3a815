//! A network, a host name and System V objects for each node: Linux namespaces, joined by a bridge.
//!
//! What must stay true: whatever is made is in namespaces of this process and its children, so the kernel takes it away
//! with them.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::node::{HEAD, NETWORK_BITS, Node};

/// The bridge of all nodes.
const BRIDGE: &str = "snaprig0";
/// The interface of a node.
const INTERFACE: &str = "eth0";

/// The processes that hold nodes' namespaces.
#[derive(Debug)]
pub struct Namespaces {
    holders: Vec<libc::pid_t>,
}

impl Namespaces {
    /// Makes them, and says in `directory` who holds each; none where this process may not, or has no ip(8).
    pub fn make(nodes: &[Node], directory: &Path) -> io::Result<Option<Self>> {
        for node in nodes {
            fs::write(directory.join(node.name()), "")?;
        }
        if !has_ip() {
            return Ok(None);
        }
        let flags = UnshareFlags::NEWNET | UnshareFlags::NEWNS;
        // SAFETY: `unshare_unsafe` is unsafe as a thread may lose the files or the memory that
        // others count on; the flags have neither, and the caller says that this process has one
        // thread.
        match unsafe { unshare_unsafe(flags) } {
            Err(rustix::io::Errno::PERM) => return Ok(None),
            other => other?,
        }
        own_hosts(nodes, directory)?;
        let all = format!("{HEAD}/{NETWORK_BITS}");
        ip(&["link", "set", "lo", "up"])?;
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["addr", "add", &all, "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        let mut made = Self {
            holders: Vec::new(),
        };
        for node in nodes {
            let holder = hold(&node.name())?;
            made.holders.push(holder);
            connect(*node, holder)?;
            fs::write(directory.join(node.name()), holder.to_string())?;
        }
        Ok(Some(made))
    }

    /// Both ends of each node's interface.
    pub fn ends(&self) -> impl Iterator<Item = End> {
        let numbered = (1..).zip(&self.holders);
        numbered.flat_map(|(number, holder)| {
            let inside = End {
                interface: INTERFACE.to_owned(),
                holder: Some(*holder),
            };
            let outside = End {
                interface: outside(number),
                holder: None,
            };
            [inside, outside]
        })
    }

    /// Does something in the network of a node, from 1. The calling process has one thread.
    pub fn within<T>(&self, node: u32, act: impl FnOnce() -> T) -> io::Result<T> {
        let at = node.checked_sub(1).map(|index| index as usize);
        let holder = at.and_then(|at| self.holders.get(at));
        let holder = holder.ok_or(io::ErrorKind::NotFound)?;
        let own = File::open("/proc/self/ns/net")?;
        enter_network(&File::open(format!("/proc/{holder}/ns/net"))?)?;
        let done = act();
        enter_network(&own)?;
        Ok(done)
    }
}

/// An end of a node's interface.
pub struct End {
    /// What it is called.
    pub interface: String,
    /// Whose network it is in; none: the head's, where the bridge is.
    pub holder: Option<libc::pid_t>,
}

/// The end of a node's interface at the bridge.
fn outside(number: u32) -> String {
    format!("snaprig{number}")
}

/// Has a command run in the network of this holder.
pub fn into_network(command: &mut Command, holder: libc::pid_t) -> io::Result<()> {
    let network = File::open(format!("/proc/{holder}/ns/net"))?;
    // SAFETY: between fork(2) and exec(2) the closure makes one system call, setns(2), with a
    // descriptor that it owns and that is open; it neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || enter_network(&network));
    }
    Ok(())
}

fn enter_network(network: &File) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(
        std::os::fd::AsFd::as_fd(network),
        kind,
    )?)
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for holder in &self.holders {
            // Children that nobody else waits for.
            if let Some(holder) = Pid::from_raw(*holder) {
                let _ = kill_process(holder, Signal::KILL);
                let _ = waitpid(Some(holder), WaitOptions::empty());
            }
        }
    }
}

/// Enters the namespaces of a node, by the process that holds them.
pub fn enter(holder: u32) -> io::Result<()> {
    for (name, kind) in [
        ("net", LinkNameSpaceType::Network),
        ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
        ("ipc", LinkNameSpaceType::InterProcessCommunication),
    ] {
        let namespace = File::open(format!("/proc/{holder}/ns/{name}"))?;
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(kind))?;
    }
    Ok(())
}

/// Names of nodes are known wherever this process and its children look them up.
fn own_hosts(nodes: &[Node], directory: &Path) -> io::Result<()> {
    let own = rustix::system::uname();
    let own = own.nodename().to_string_lossy().into_owned();
    let mut hosts = format!("127.0.0.1 localhost\n{HEAD} {own}\n");
    for node in nodes {
        hosts += &format!("{} {}\n", node.address(), node.name());
    }
    let path = directory.join("hosts");
    fs::write(&path, hosts)?;
    use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags)?;
    mount_bind(&path, "/etc/hosts")?;
    Ok(())
}

/// A process that has namespaces of its own and does nothing else, until its parent ends.
fn hold(name: &str) -> io::Result<libc::pid_t> {
    let (mut ready, mut say) = io::pipe()?;
    // SAFETY: the caller says that this process has one thread, so that no lock, of the allocator
    // or any other, is held by a thread that the child has not got: the child may go on as any
    // process.
    match unsafe { libc::fork() } {
        0 => {
            let flags = UnshareFlags::NEWNET | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
            // SAFETY: `unshare_unsafe` is unsafe as a thread may lose the files or the memory that
            // others count on; the flags have neither, and this child of fork(2) has one thread.
            let made = unsafe { unshare_unsafe(flags) }
                .and_then(|()| rustix::system::sethostname(name.as_bytes()))
                .and_then(|()| set_parent_process_death_signal(Some(Signal::KILL)));
            if made.is_ok() && say.write_all(&[1]).is_ok() {
                drop((ready, say));
                loop {
                    // SAFETY: pause(2) takes nothing and touches no memory; it returns when a
                    // signal was handled, and is called again.
                    unsafe { libc::pause() };
                }
            }
            // SAFETY: _exit(2) takes a number, and ends the process without running anything else
            // of it.
            unsafe { libc::_exit(1) }
        }
        child if child > 0 => {
            drop(say);
            ready.read_exact(&mut [0])?;
            Ok(child)
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects a node with the bridge.
fn connect(node: Node, holder: libc::pid_t) -> io::Result<()> {
    let outside = outside(node.number);
    let peer = ["peer", "name", INTERFACE, "netns", &holder.to_string()].map(str::to_owned);
    let mut add = vec!["link", "add", &outside, "type", "veth"];
    add.extend(peer.iter().map(String::as_str));
    ip(&add)?;
    ip(&["link", "set", &outside, "master", BRIDGE, "up"])?;
    let address = format!("{}/{NETWORK_BITS}", node.address());
    let head = HEAD.to_string();
    for arguments in [
        &["link", "set", "lo", "up"][..],
        &["addr", "add", &address, "dev", INTERFACE],
        &["link", "set", INTERFACE, "up"],
        &["route", "add", "default", "via", &head],
    ] {
        let mut command = ip_command(arguments);
        into_network(&mut command, holder)?;
        run(command, arguments)?;
    }
    Ok(())
}

fn has_ip() -> bool {
    let version = ip_command(&["-V"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    version.is_ok_and(|status| status.success())
}

fn ip_command(arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(arguments).stdin(Stdio::null());
    command
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    run(ip_command(arguments), arguments)
}

fn run(mut command: Command, arguments: &[&str]) -> io::Result<()> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&output.stderr);
            let what = format!("ip {}: {}", arguments.join(" "), why.trim());
            Err(io::Error::other(what))
        }
    }
}
