//! Files: the RAM file system, what can be opened, and the calls of files.
//!
//! | file | what it is |
//! |---|---|
//! | `tree`, `names` | names: directories, links, devices, sockets |
//! | `install` | what the host puts onto a card |
//! | `inode`, `regular` | contents of regular files, in card memory |
//! | `pipe`, `socket`, `datagram`, `passed`, `event`, `timer`, `epoll` | what has no contents but a stream or a state |
//! | [`console`], `dev`, `proc`, `fd_names` | the host's ends; /dev; /proc |
//! | `table` | descriptors |
//! | `meta`, `locks` | attributes; advisory locks |
//! | `walk` | where a path leads |
//! | `calls`, `fcntl`, `open`, `paths`, `attributes`, `transfer`, `copy` | system calls |
//! | `socket_calls`, `socket_options`, `address`, `poll` | more of them |
//! | `vectors`, `stat` | buffers of a call; what stat(2) tells |
//! | [`image`], [`stored`], [`rebuild`] | what an image says of descriptors and files; both on a card again |
//!
//! What must stay true: contents take frames of card memory, and names are bounded, so that a card
//! that is full answers ENOSPC; a description's `release` runs once, when its last descriptor goes.

mod address;
mod attributes;
mod calls;
pub mod console;
mod copy;
mod datagram;
mod dev;
mod epoll;
mod event;
mod fcntl;
mod fd_names;
pub mod image;
mod inode;
mod install;
mod locks;
mod meta;
mod names;
mod open;
mod passed;
mod paths;
pub mod pidfd;
pub mod pipe;
mod poll;
mod proc;
pub mod rebuild;
mod regular;
pub mod signalfd;
pub mod socket;
mod socket_calls;
mod socket_options;
mod stat;
pub mod stored;
mod table;
#[cfg(test)]
mod test_kit;
mod timer;
mod transfer;
mod tree;
mod vectors;
mod walk;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{
    device::UserMemory,
    errno::Errno,
    file::Cx,
    wait::{Stop, SysResult, Wait},
};

use self::meta::Meta;
pub use self::{
    dev::is_zero_device,
    inode::{Inode, shared_anonymous},
    install::Entry,
    pipe::is_nameless_pipe,
    poll::asks_for_readiness,
    proc::ProcInfo,
    regular::RegularFile,
    stat::{Stat, stat_of},
    table::{FileTable, Open},
    tree::Vfs,
};

/// Most bytes that are read or written at once.
pub const IO_MAX: usize = 1 << 20;
/// Most bytes of a path.
pub const PATH_MAX: usize = 4096;

/// A process's view of the file system.
#[derive(Clone)]
pub struct FsContext {
    /// Working directory.
    pub cwd: Arc<Meta>,
    /// Permission bits that new files do not get.
    pub umask: u32,
}

/// What a snapshot says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsImage {
    /// Path of the working directory; `None`: it was removed.
    cwd: Option<String>,
    umask: u32,
}

impl FsContext {
    /// At the root.
    pub fn new(vfs: &Vfs) -> Self {
        Self {
            cwd: vfs.root().clone(),
            umask: 0o022,
        }
    }

    /// What a snapshot says of it.
    pub fn image(&self, vfs: &Vfs) -> FsImage {
        let exists = self.cwd.lock().nlink > 0;
        FsImage {
            cwd: exists.then(|| vfs.path_of(self.cwd.number, "")),
            umask: self.umask,
        }
    }

    /// The same again. A directory that is not on this card is one that was removed.
    pub fn restored(vfs: &mut Vfs, image: &FsImage) -> Self {
        let path = image.cwd.as_deref().unwrap_or_default();
        let node = vfs.lookup(vfs.root(), path, true);
        let node = node.and_then(|node| vfs.directory(node).map(|_| node));
        let cwd = match node.and_then(|node| vfs.meta(node).cloned()) {
            Ok(cwd) => cwd,
            Err(_) => vfs.removed_directory(),
        };
        Self {
            cwd,
            umask: image.umask & 0o777,
        }
    }
}

/// A file call on its way.
pub struct FsCall<'a> {
    /// The caller.
    pub cx: Cx<'a>,
    /// Its descriptors.
    pub files: &'a mut FileTable,
    /// Its working directory and umask.
    pub fs: &'a mut FsContext,
    /// The file system.
    pub vfs: &'a mut Vfs,
    /// Descriptors that it may have.
    pub limit_nofile: usize,
    /// What /proc/self says.
    pub proc: &'a dyn ProcInfo,
    /// When the call stops waiting; kept over its attempts.
    pub deadline: &'a mut Option<Duration>,
    /// Bytes that the call has moved; kept over its attempts.
    pub progress: &'a mut usize,
    /// Set if the thread gets SIGPIPE.
    pub sigpipe: &'a mut bool,
}

/// Runs a file call; `None` if it is none.
pub fn syscall(call: &mut FsCall, number: u64, args: [u64; 6]) -> Option<SysResult> {
    let result = transfer::run(call, number, args)
        .or_else(|| calls::run(call, number, args))
        .or_else(|| paths::run(call, number, args))
        .or_else(|| attributes::run(call, number, args))
        .or_else(|| copy::run(call, number, args))
        .or_else(|| timer::run(call, number, args))
        .or_else(|| poll::run(call, number, args))
        .or_else(|| socket_calls::run(call, number, args))?;
    let result = match (result, socket_calls::timeout(call, number, args[0] as i32)) {
        (Err(Stop::Wait(wait)), Some(timeout)) => within(call, wait, timeout),
        (result, _) => result,
    };
    Some(match result {
        // What has been moved counts for more than what went wrong then (write(2)).
        Err(Stop::Errno(_)) if *call.progress > 0 => Ok(*call.progress as u64),
        other => other,
    })
}

/// A wait that ends after `timeout` with EAGAIN (socket(7), SO_RCVTIMEO).
fn within(call: &mut FsCall, mut wait: Wait, timeout: Duration) -> SysResult {
    let end = call.cx.now.saturating_add(timeout);
    let end = *call.deadline.get_or_insert(end);
    if end <= call.cx.now {
        return Err(Errno::EAGAIN.into());
    }
    wait.deadline = Some(wait.deadline.map_or(end, |deadline| deadline.min(end)));
    Err(Stop::Wait(wait))
}

/// Reads a zero-terminated string of fewer than `max` bytes; a longer one is ENAMETOOLONG.
pub fn read_c_string(
    memory: &mut dyn UserMemory,
    address: u64,
    max: usize,
) -> Result<Vec<u8>, Errno> {
    let mut string = Vec::new();
    loop {
        let at = address
            .checked_add(string.len() as u64)
            .ok_or(Errno::EFAULT)?;
        // Up to the end of the page, which is as far as one may look.
        let part = (4096 - at % 4096) as usize;
        let mut bytes = vec![0; part];
        memory.read(at, &mut bytes)?;
        match bytes.iter().position(|byte| *byte == 0) {
            Some(end) => string.extend_from_slice(&bytes[..end]),
            None => string.extend_from_slice(&bytes),
        }
        if string.len() >= max {
            return Err(Errno::ENAMETOOLONG);
        }
        if bytes.contains(&0) {
            return Ok(string);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::test_kit::Kit;

    fn argument() -> impl Strategy<Value = u64> {
        let path = prop_oneof![Just(0x1000_u64), Just(0x2000), Just(0x3000)];
        prop_oneof![
            0..12_u64,
            path,
            Just(libc::AT_FDCWD as u64),
            any::<u64>(),
            (0..64_u32).prop_map(|bit| 1 << bit),
            (0..64_u32).prop_map(|bit| u64::MAX >> bit),
        ]
    }

    /// Mostly calls that there are.
    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![
            0..24_i64,
            32..34_i64,
            40..60_i64,
            72..96_i64,
            213..334_i64,
            424..450_i64
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Whatever a program asks for, it gets an answer.
        #[test]
        fn hostile_calls_are_answered(
            calls in prop::collection::vec((number(), prop::array::uniform6(argument())), 1..60)
        ) {
            let mut kit = Kit::new();
            kit.limit_nofile = 64;
            kit.file("/tmp/a", b"x");
            for (at, text) in [(0x1000, "/tmp/a"), (0x2000, "/proc/self/fd/5"), (0x3000, "/tmp/b")] {
                kit.put(at, text.as_bytes());
            }
            // A buffer in an iovec, and a socket's address.
            kit.put_words(0x4000, &[0x5000, 100, 0x6000, 1 << 40]);
            kit.put(0x7000, b"\x01\x00\x00name");
            for (number, args) in calls {
                let _ = kit.call(number, &args);
            }
        }
    }
}
