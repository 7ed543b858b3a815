//! The network of the node where a supervisor is. It leaves it for the one that a tree has come with, so that the tree's sockets are
//! its own; whatever goes to another node still goes from here, over this node's link.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::process::CommandExt,
    },
    process::Command,
    sync::OnceLock,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const OWN: &str = "/proc/thread-self/ns/net";

/// The node's, if this process has left it.
static OF_NODE: OnceLock<File> = OnceLock::new();

/// Leaves the node's network for another one, if it is another one.
pub fn leave_for(other: BorrowedFd<'_>) -> io::Result<()> {
    let Ok(own) = File::open(OWN) else {
        // Of a process that its /proc does not have, nobody can tell.
        return enter(other);
    };
    let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| stat.st_ino);
    if inode(own.as_fd())? == inode(other)? {
        return Ok(());
    }
    enter(other)?;
    // Whoever leaves twice is still on the node that he left first.
    let _ = OF_NODE.set(own);
    Ok(())
}

/// Does something in the node's network. Threads that it starts stay there.
pub fn within<T>(act: impl FnOnce() -> T) -> io::Result<T> {
    let Some(node) = OF_NODE.get() else {
        return Ok(act());
    };
    let own = File::open(OWN)?;
    enter(node.as_fd())?;
    let done = act();
    enter(own.as_fd())?;
    Ok(done)
}

/// Has a command run in the node's network.
pub fn of_node(command: &mut Command) -> &mut Command {
    if let Some(node) = OF_NODE.get() {
        // SAFETY: between fork(2) and exec(2) the closure makes one system call, setns(2), with a descriptor of a static, which is
        // open for good; it neither allocates nor takes a lock.
        unsafe {
            command.pre_exec(|| enter(node.as_fd()));
        }
    }
    command
}

fn enter(network: BorrowedFd<'_>) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(network, kind)?)
}
