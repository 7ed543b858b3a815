//! eventfd(2).

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use snaprig_card_driver::{
    errno::Errno,
    file::{Cx, Description, File, PollMask, mask},
    wait::{Channel, Stop, SysResult},
};

/// A counter that can be waited for.
pub struct Event {
    counter: Mutex<Counter>,
    flags: i32,
    channel: Channel,
}

struct Counter {
    count: u64,
    /// Writes so far, and reads.
    writes: u64,
    reads: u64,
}

impl Event {
    /// A counter that starts at `count`, with `EFD_*` flags.
    pub fn new(count: u64, flags: i32) -> Arc<Self> {
        Arc::new(Self {
            counter: Mutex::new(Counter {
                count,
                writes: 0,
                reads: 0,
            }),
            flags,
            channel: Channel::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Counter> {
        self.counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for Event {
    fn read(&self, cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        if max < 8 {
            return Err(Errno::EINVAL.into());
        }
        let mut counter = self.lock();
        if counter.count == 0 {
            return Err(if cx.nonblock {
                Errno::EAGAIN.into()
            } else {
                Stop::wait(self.channel)
            });
        }
        let taken = if self.flags & libc::EFD_SEMAPHORE != 0 {
            1
        } else {
            counter.count
        };
        counter.count -= taken;
        counter.reads += 1;
        (cx.wake)(self.channel);
        Ok(taken.to_le_bytes().to_vec())
    }

    fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        let value = data.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let value = value
            .filter(|value| *value != u64::MAX)
            .ok_or(Errno::EINVAL)?;
        let mut counter = self.lock();
        match counter
            .count
            .checked_add(value)
            .filter(|sum| *sum < u64::MAX)
        {
            Some(sum) => counter.count = sum,
            None if cx.nonblock => return Err(Errno::EAGAIN.into()),
            None => return Err(Stop::wait(self.channel)),
        }
        counter.writes += 1;
        (cx.wake)(self.channel);
        Ok(8)
    }

    fn poll(&self) -> PollMask {
        let count = self.lock().count;
        mask(count > 0, libc::POLLIN) | mask(count < u64::MAX - 1, libc::POLLOUT)
    }

    fn edges(&self, events: PollMask) -> u64 {
        let counter = self.lock();
        match events & libc::POLLOUT {
            0 => counter.writes,
            _ => counter.writes + counter.reads,
        }
    }

    fn channels(&self) -> Vec<Channel> {
        vec![self.channel]
    }

    fn describe(&self) -> Description {
        let count = self.lock().count;
        Description::Event {
            count,
            flags: self.flags,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
