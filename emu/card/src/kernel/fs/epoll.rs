//! epoll(7): a set of descriptors to watch. Edge-triggered entries are reported when their
//! readiness differs from what was last reported.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::table::Open;
use crate::kernel::{
    errno::Errno,
    file::{Description, File, PollMask},
    wait::Channel,
};

/// Most descriptors that one instance watches.
const WATCHED_MAX: usize = 4096;

struct Watched {
    open: Weak<Open>,
    events: u32,
    data: u64,
    reported: u32,
    disabled: bool,
}

/// An epoll instance.
pub struct Epoll {
    watched: Mutex<BTreeMap<i32, Watched>>,
    channel: Channel,
}

impl Epoll {
    /// One that watches nothing.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            watched: Mutex::default(),
            channel: Channel::new(),
        })
    }

    /// epoll_ctl(2).
    pub fn control(
        &self,
        op: i32,
        fd: i32,
        open: &Arc<Open>,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|_, entry| entry.open.strong_count() > 0);
        let entry = Watched {
            open: Arc::downgrade(open),
            events: events | (libc::EPOLLERR | libc::EPOLLHUP) as u32,
            data,
            reported: 0,
            disabled: false,
        };
        match op {
            libc::EPOLL_CTL_ADD if watched.contains_key(&fd) => Err(Errno::EEXIST),
            libc::EPOLL_CTL_ADD if watched.len() >= WATCHED_MAX => Err(Errno::ENOSPC),
            libc::EPOLL_CTL_ADD => {
                watched.insert(fd, entry);
                Ok(())
            }
            libc::EPOLL_CTL_MOD => {
                *watched.get_mut(&fd).ok_or(Errno::ENOENT)? = entry;
                Ok(())
            }
            libc::EPOLL_CTL_DEL => watched.remove(&fd).map(|_| ()).ok_or(Errno::ENOENT),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Up to `max` ready entries: events and data. Marks them as reported.
    pub fn take_ready(&self, max: usize) -> Vec<(u32, u64)> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ready = Vec::new();
        for entry in watched.values_mut() {
            let now = entry.now();
            let edge = entry.events & libc::EPOLLET as u32 != 0;
            let report = if edge { now & !entry.reported } else { now };
            entry.reported = now;
            if report == 0 || entry.disabled || ready.len() == max {
                continue;
            }
            entry.disabled = entry.events & libc::EPOLLONESHOT as u32 != 0;
            ready.push((now, entry.data));
        }
        ready
    }

    fn any_ready(&self) -> bool {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched
            .values()
            .any(|entry| !entry.disabled && entry.now() != 0)
    }
}

impl Watched {
    fn now(&self) -> u32 {
        let ready = self.open.upgrade().map_or(0, |open| open.file.poll());
        ready as u16 as u32 & self.events
    }
}

impl File for Epoll {
    fn poll(&self) -> PollMask {
        super::pipe::mask(self.any_ready(), libc::POLLIN)
    }

    fn channels(&self) -> Vec<Channel> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let files = watched.values().filter_map(|entry| entry.open.upgrade());
        files
            .flat_map(|open| open.file.channels())
            .chain([self.channel])
            .collect()
    }

    fn describe(&self) -> Description {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        Description::Epoll {
            watched: watched
                .iter()
                .map(|(fd, entry)| (*fd, entry.events, entry.data))
                .collect(),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
