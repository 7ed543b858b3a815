//! Pipes, with a name (fifo(7)) or without.

use std::{any::Any, sync::Arc};

use snaprig_card_driver::{
    errno::Errno,
    file::{Cx, Description, File, PollMask, mask},
    wait::{Channel, SysResult},
};

use super::queue::Queue;

/// One end of a pipe, or with O_RDWR of a FIFO both.
pub struct PipeEnd {
    queue: Arc<Queue>,
    reads: bool,
    writes: bool,
    /// It has no name: it is no FIFO.
    nameless: bool,
    /// How many readers and writers had come and gone when it was opened, if none was there.
    met: (u64, u64),
}

/// Whether a file is an end of a pipe that has no name.
pub fn is_nameless_pipe(file: &dyn File) -> bool {
    let end = file.as_any().downcast_ref::<PipeEnd>();
    end.is_some_and(|end| end.nameless)
}

/// A pipe: reading end, writing end.
pub fn pipe() -> (Arc<PipeEnd>, Arc<PipeEnd>) {
    let queue = Queue::new();
    (
        PipeEnd::over(queue.clone(), true, false),
        PipeEnd::over(queue, false, true),
    )
}

impl PipeEnd {
    /// An end that its queue has counted (of a new pipe).
    fn over(queue: Arc<Queue>, reads: bool, writes: bool) -> Arc<Self> {
        Arc::new(Self {
            queue,
            reads,
            writes,
            nameless: true,
            met: (0, 0),
        })
    }

    /// A FIFO is opened.
    pub fn open(
        queue: &Arc<Queue>,
        reads: bool,
        writes: bool,
        wake: &mut dyn FnMut(Channel),
    ) -> Arc<Self> {
        let (readers, writers) = queue.ever();
        // Who is there now is one whose leaving is noticed.
        let met = |ever, lacking| if lacking { ever } else { 0 };
        let met = (
            met(readers, queue.lacks(false)),
            met(writers, queue.lacks(true)),
        );
        Self::another(queue, (reads, writes), false, met, wake)
    }

    /// An end of a pipe that is restored, whose other ends have been there.
    pub fn restored(
        queue: &Arc<Queue>,
        reads: bool,
        writes: bool,
        wake: &mut dyn FnMut(Channel),
    ) -> Arc<Self> {
        Self::another(queue, (reads, writes), true, (0, 0), wake)
    }

    fn another(
        queue: &Arc<Queue>,
        (reads, writes): (bool, bool),
        nameless: bool,
        met: (u64, u64),
        wake: &mut dyn FnMut(Channel),
    ) -> Arc<Self> {
        queue.open_end(reads, writes, wake);
        Arc::new(Self {
            queue: queue.clone(),
            reads,
            writes,
            nameless,
            met,
        })
    }

    /// Its queue, and whether it reads and writes.
    pub fn ends(&self) -> (&Arc<Queue>, bool, bool) {
        (&self.queue, self.reads, self.writes)
    }

    /// How many bytes there is room for.
    pub fn room(&self) -> usize {
        self.queue.capacity().saturating_sub(self.queue.bytes())
    }

    /// How many bytes the pipe holds.
    pub fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Makes the pipe hold at least so many bytes.
    pub fn set_capacity(&self, bytes: u32, wake: &mut dyn FnMut(Channel)) -> Result<(), Errno> {
        self.queue.set_capacity(bytes)?;
        wake(self.queue.channel);
        Ok(())
    }

    /// Whether it is an end of this queue.
    pub fn is_of(&self, queue: &Arc<Queue>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }

    /// Whether open(2) waits no more: the other end is open, or has been since.
    pub fn has_partner(&self) -> bool {
        let ever = self.queue.ever();
        self.reads && (ever.1 > self.met.1 || !self.queue.lacks(true))
            || self.writes && (ever.0 > self.met.0 || !self.queue.lacks(false))
    }
}

impl File for PipeEnd {
    fn read(&self, cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        if !self.reads {
            return Err(Errno::EBADF.into());
        }
        self.queue.read(cx, max)
    }

    fn takes(&self) -> usize {
        self.queue.bytes()
    }

    fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        if !self.writes {
            return Err(Errno::EBADF.into());
        }
        self.queue.write(cx, data)
    }

    fn ioctl(&self, cx: &mut Cx, request: u32, argument: u64) -> SysResult<i64> {
        match u64::from(request) {
            libc::FIONREAD => self.queue.tell_len(cx, argument),
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn poll(&self) -> PollMask {
        let mut ready = 0;
        if self.writes {
            let (writable, broken) = self.queue.writable();
            ready |= mask(writable, libc::POLLOUT) | mask(broken, libc::POLLERR);
        }
        if self.reads {
            // A FIFO that no writer has opened yet is not at its end.
            let over = self.queue.lacks(true) && self.queue.ever().1 > self.met.1;
            ready |= mask(self.queue.bytes() > 0, libc::POLLIN) | mask(over, libc::POLLHUP);
        }
        ready
    }

    fn edges(&self, _events: PollMask) -> u64 {
        let count = |on: bool, count: u64| if on { count } else { 0 };
        count(self.writes, self.queue.departures()) + count(self.reads, self.queue.arrivals())
    }

    fn channels(&self) -> Vec<Channel> {
        vec![self.queue.channel]
    }

    fn release(&self, wake: &mut dyn FnMut(Channel)) {
        if self.writes {
            self.queue.close_writer(wake);
        }
        if self.reads {
            self.queue.close_reader(wake);
        }
    }

    fn describe(&self) -> Description {
        Description::Pipe {
            id: Arc::as_ptr(&self.queue) as u64,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use snaprig_card_driver::errno::Errno;

    use crate::test_kit::{Kit, error, is_wait};

    const FIFO: &str = "/tmp/fifo";

    fn with_fifo() -> Kit {
        let mut kit = Kit::new();
        let path = kit.path(FIFO);
        let mode = (libc::S_IFIFO | 0o600).into();
        assert_eq!(kit.call(libc::SYS_mknod, &[path, mode]), Ok(0));
        assert_eq!(
            kit.call(libc::SYS_mknod, &[path, mode]),
            error(Errno::EEXIST)
        );
        kit
    }

    #[test]
    fn an_end_of_a_fifo_waits_for_the_other() {
        let mut kit = with_fifo();
        assert_eq!(
            kit.open(FIFO, libc::O_WRONLY | libc::O_NONBLOCK),
            error(Errno::ENXIO)
        );
        let read = kit.open(FIFO, libc::O_RDONLY | libc::O_NONBLOCK).unwrap();
        let write = kit.open(FIFO, libc::O_WRONLY).unwrap();
        assert_eq!(kit.call(libc::SYS_write, &[write, 0x2000, 5]), Ok(5));
        kit.call(libc::SYS_close, &[write]).unwrap();
        assert_eq!(kit.call(libc::SYS_read, &[read, 0x3000, 9]), Ok(5));
        assert_eq!(kit.call(libc::SYS_read, &[read, 0x3000, 9]), Ok(0));
        // Both ends at once wait for nobody.
        kit.open(FIFO, libc::O_RDWR).unwrap();
    }

    #[test]
    fn an_open_that_is_given_up_leaves_no_end() {
        let mut kit = with_fifo();
        assert!(is_wait(&kit.open(FIFO, libc::O_RDONLY)));
        kit.waits.abandon(1, &mut |_| {});
        assert_eq!(
            kit.open(FIFO, libc::O_WRONLY | libc::O_NONBLOCK),
            error(Errno::ENXIO)
        );
    }

    #[test]
    fn a_fifo_is_at_its_end_when_its_last_writer_has_gone() {
        let mut kit = with_fifo();
        let read = kit.open(FIFO, libc::O_RDONLY | libc::O_NONBLOCK).unwrap();
        let hangs_up = |kit: &Kit| {
            let open = kit.files.get(read as i32).unwrap();
            open.file.poll() & libc::POLLHUP != 0
        };
        assert!(!hangs_up(&kit), "nobody has been there");
        let write = kit.open(FIFO, libc::O_WRONLY).unwrap();
        assert!(!hangs_up(&kit));
        kit.call(libc::SYS_close, &[write]).unwrap();
        assert!(hangs_up(&kit));
    }
}
