//! A checkpoint of a tree that nobody supervises: by somebody who has not launched it, and is gone afterwards.
//!
//! ```text
//! who takes it                                     the tree
//!   has its standard descriptors, adopts it           |
//!   listens for plugins                               |
//!   -- invite: somebody listens there -------------> plugins connect, as to a supervisor that has launched them
//!   checkpoint, as of any tree                        |
//!   ends, and with it the connections                runs on, or has ended
//! ```
//! It is restarted as any other; from then on it has a supervisor.
//!
//! What must stay true: what the first process has as standard descriptors is nobody's, as in a tree that was launched: who
//! restarts it gives it its own.

use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use libc::pid_t;
use rustix::io::fcntl_dupfd_cloexec;
use snaprig_ckpt_image::store::Store;
use snaprig_resources::error::{Error, Result};
use snaprig_tracee::{
    descriptors::{copy_of, me},
    freeze::is_descendant,
    tree,
};

use crate::{
    control::Dumped,
    supervisor::{Options, Parts, Supervisor},
};

/// Takes a checkpoint of a process that was started by somebody else, and of its descendants; they run on, or end. `invite`
/// tells those of its programs that have plugins where they can connect to, and returns how many plugins these are. The
/// calling process has one thread, and supervises nothing; meanwhile its standard descriptors are those of the process.
pub fn dump_adopted(
    directory: &Path,
    root: pid_t,
    kill: bool,
    options: &Options,
    invite: impl FnOnce(&Path) -> Result<u32>,
) -> Result<Dumped> {
    if is_descendant(me(), root) {
        return Err(Error::refused(
            root,
            "whoever checkpoints it is a process of its own: do so from elsewhere",
        ));
    }
    let command = command(root)?;
    let _standard = Standard::of(root)?;
    tree::adopt(root);
    let parts = Parts::new(directory, Store::open(directory)?)?;
    let invited = invite(parts.plugins.borrow().variable().1)?;
    parts.plugins.borrow_mut().expect(invited)?;
    Supervisor::new(parts, root, command, options).dump(kill, true)
}

/// What a process was started as (proc(5), cmdline).
fn command(pid: pid_t) -> Result<Vec<String>> {
    let path = format!("/proc/{pid}/cmdline");
    let words = fs::read(&path).map_err(|source| Error::io(path, source))?;
    let words = words.strip_suffix(&[0]).unwrap_or(&words);
    let words = words.split(|byte| *byte == 0);
    Ok(words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect())
}

/// This process's own standard descriptors, while it has those of another.
struct Standard([Option<OwnedFd>; 3]);

impl Standard {
    /// Has those of this process. Where that has none it keeps its own.
    fn of(pid: pid_t) -> Result<Self> {
        // From here on, they are put back.
        let own = Self([0, 1, 2].map(|number| {
            // SAFETY: a standard descriptor is closed by nobody in this process; one that it was not given cannot be copied.
            let own = unsafe { BorrowedFd::borrow_raw(number) };
            fcntl_dupfd_cloexec(own, 3).ok()
        }));
        for number in 0..3 {
            if let Ok(its) = copy_of(pid, number) {
                put(&its, number).map_err(|error| Error::io("a standard descriptor", error))?;
            }
        }
        Ok(own)
    }
}

impl Drop for Standard {
    fn drop(&mut self) {
        for (number, own) in (0..).zip(&self.0) {
            if let Some(own) = own {
                let _ = put(own, number);
            }
        }
    }
}

/// Has a standard descriptor be one of another open file.
fn put(file: &OwnedFd, number: i32) -> io::Result<()> {
    // SAFETY: dup2(2) takes two numbers. What has been at the second is closed, which nobody has as his own: it is a standard
    // descriptor.
    match unsafe { libc::dup2(file.as_raw_fd(), number) } {
        made if made < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
