//! Robust locks of a tree of which there are two, for a moment.
//!
//! The kernel gives up what a thread holds when that ends (get_robust_list(2)). In memory that both trees have, it would give up
//! what the other one's thread holds. So threads that are to end, or may have to, hold nothing as far as the kernel can tell.

use libc::pid_t;
use snaprig_resources::{error::Result, state::Process};
use snaprig_tracee::memory;

/// Words of a list's head (linux/futex.h): the first lock, where in locks the kernel looks, and the lock that is just being taken
/// or given back.
type Head = [u64; 3];

/// What a thread holds, out of sight of the kernel.
#[derive(Debug)]
pub struct Hidden {
    pid: pid_t,
    address: u64,
    head: Head,
}

/// Hides what threads of a process hold, none of which runs. Memory that cannot be read says nothing to the kernel either.
pub fn hide(process: &Process, pid: pid_t) -> Result<Vec<Hidden>> {
    let threads = process.body.iter().flat_map(|body| &body.threads);
    let lists = threads.map(|thread| thread.robust_list.0);
    let mut hidden = Vec::new();
    for address in lists.filter(|address| *address != 0) {
        let mut bytes = [0; size_of::<Head>()];
        if memory::read(pid, address, &mut bytes).is_err() {
            continue;
        }
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        let head = std::array::from_fn(word);
        let nothing = [address, head[1], 0];
        if head != nothing {
            put(pid, address, &nothing)?;
            hidden.push(Hidden { pid, address, head });
        }
    }
    Ok(hidden)
}

impl Hidden {
    /// The kernel sees it again.
    pub fn show(self) -> Result<()> {
        put(self.pid, self.address, &self.head)
    }
}

fn put(pid: pid_t, address: u64, head: &Head) -> Result<()> {
    let bytes = head.map(u64::to_ne_bytes).concat();
    Ok(memory::scatter(pid, address, &bytes)?)
}
