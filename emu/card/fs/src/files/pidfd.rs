//! Descriptors of processes (pidfd_open(2)): they become readable when the process ends.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use snaprig_card_driver::{
    file::{Description, File, PollMask},
    wait::Channel,
};

/// Whether a process has ended: what is left of it for those who hold its descriptor.
#[derive(Default)]
pub struct Ending {
    has_ended: AtomicBool,
    channel: Channel,
}

impl Ending {
    /// The process has ended; the channel is to be woken.
    pub fn announce(&self) -> Channel {
        self.has_ended.store(true, Ordering::Relaxed);
        self.channel
    }
}

/// A descriptor of a process.
pub struct PidFd {
    pid: i32,
    ending: Arc<Ending>,
}

impl PidFd {
    /// Of a process.
    pub fn new(pid: i32, ending: &Arc<Ending>) -> Arc<Self> {
        Arc::new(Self {
            pid,
            ending: ending.clone(),
        })
    }

    /// The id of its process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it is of the process that announces its end here: another may have its id by now.
    pub fn is_of(&self, ending: &Arc<Ending>) -> bool {
        Arc::ptr_eq(&self.ending, ending)
    }

    /// Of a process that has ended, in a restored process.
    pub fn ended() -> Arc<Self> {
        let ending = Arc::new(Ending::default());
        ending.announce();
        Arc::new(Self { pid: 0, ending })
    }
}

impl File for PidFd {
    fn poll(&self) -> PollMask {
        match self.ending.has_ended.load(Ordering::Relaxed) {
            true => libc::POLLIN,
            false => 0,
        }
    }

    fn channels(&self) -> Vec<Channel> {
        vec![self.ending.channel]
    }

    fn describe(&self) -> Description {
        Description::Process
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
