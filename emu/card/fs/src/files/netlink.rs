//! Sockets of netlink(7): what is sent to the kernel is answered at once.

use std::{
    any::Any,
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use snaprig_card_driver::{
    errno::Errno,
    file::{Cx, Description, File, PollMask, mask},
    wait::{Channel, Stop, SysResult},
};

/// Most answers that wait to be read.
const ANSWERS_MAX: usize = 256;

/// A socket that asks rtnetlink(7).
#[derive(Default)]
pub struct Netlink {
    inner: Mutex<Inner>,
    channel: Channel,
}

#[derive(Default)]
struct Inner {
    answers: VecDeque<Vec<u8>>,
    port: u32,
    arrivals: u64,
}

impl Netlink {
    /// One that has asked nothing.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its port; 0 if it has none yet.
    pub fn port(&self) -> u32 {
        self.lock().port
    }

    /// It has this port now, unless it has one.
    pub fn bind(&self, port: u32) {
        let mut inner = self.lock();
        if inner.port == 0 {
            inner.port = port;
        }
    }

    /// It is answered.
    pub fn answered(&self, answers: Vec<Vec<u8>>, cx: &mut Cx) -> Result<(), Errno> {
        let mut inner = self.lock();
        if inner.answers.len() + answers.len() > ANSWERS_MAX {
            return Err(Errno::ENOBUFS);
        }
        inner.arrivals += answers.len() as u64;
        inner.answers.extend(answers);
        drop(inner);
        (cx.wake)(self.channel);
        Ok(())
    }

    /// The first answer, which stays there if it is only peeked at.
    pub fn receive(&self, cx: &Cx, peeks: bool) -> SysResult<Vec<u8>> {
        let mut inner = self.lock();
        let first = match peeks {
            true => inner.answers.front().cloned(),
            false => inner.answers.pop_front(),
        };
        first.ok_or_else(|| match cx.nonblock {
            true => Errno::EAGAIN.into(),
            false => Stop::wait(self.channel),
        })
    }
}

impl File for Netlink {
    fn read(&self, cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        let mut bytes = self.receive(cx, false)?;
        bytes.truncate(max);
        Ok(bytes)
    }

    fn takes(&self) -> usize {
        self.lock().answers.front().map_or(0, Vec::len)
    }

    fn poll(&self) -> PollMask {
        libc::POLLOUT | mask(!self.lock().answers.is_empty(), libc::POLLIN)
    }

    fn edges(&self, _events: PollMask) -> u64 {
        self.lock().arrivals
    }

    fn channels(&self) -> Vec<Channel> {
        vec![self.channel]
    }

    fn describe(&self) -> Description {
        Description::Socket
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
