//! What fdinfo says of an epoll instance (proc_pid_fdinfo(5)).

use libc::pid_t;
use snaprig_tracee::descriptors::is_watched;

use crate::{
    collected::Collected,
    counters::hex,
    descriptor::Info,
    error::{Error, Result},
    state::Watch,
};

/// What an epoll instance watches: descriptor, events, data.
pub type Target = (i32, u32, u64);

/// `tfd: 5 events: 19 data: 5 pos:0 ino:61af sdev:7`, one line a descriptor.
pub fn watched(info: &Info) -> Vec<Target> {
    let lines = info.all("tfd").filter_map(|line| {
        let mut words = line.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let events = words
            .nth(1)
            .and_then(|word| u32::from_str_radix(word, 16).ok())?;
        let data = words.nth(1).and_then(hex)?;
        Some((fd, events, data))
    });
    lines.collect()
}

/// What an epoll instance watches may be closed, or another file's number by now.
pub fn watch(
    collected: &Collected,
    epoll: u32,
    pid: pid_t,
    (fd, events, data): Target,
) -> Result<Watch> {
    let (_, own) = collected.first[epoll as usize];
    let file = collected.tables.get(&(pid, fd)).copied();
    let file = file.filter(|_| is_watched((pid, fd), own, fd));
    let file = file.ok_or_else(|| {
        let what = format!("an epoll instance watches descriptor {fd}, which is closed");
        Error::refused(pid, what)
    })?;
    Ok(Watch {
        fd,
        file,
        events,
        data,
    })
}
