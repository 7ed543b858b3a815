//! The byte queue that pipes and streams of sockets are made of.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{
    errno::Errno,
    file::{Cx, Identity},
    wait::{Channel, Stop, SysResult},
};

use crate::{
    passed::{Passed, release},
    relay::Doorbell,
    table::Open,
};

/// Bytes that a queue holds (pipe(7)).
pub const CAPACITY: usize = 64 << 10;
/// What it can be made to hold (/proc/sys/fs/pipe-max-size), and the least.
const CAPACITY_MAX: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// Writes up to this many bytes are atomic (pipe(7), PIPE_BUF).
const ATOMIC_BYTES: usize = 4096;

/// Most messages in a queue of messages.
const MESSAGES_MAX: usize = 1024;

/// What an image says of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueImage {
    bytes: Vec<u8>,
    /// How many bytes it holds.
    capacity: u64,
    /// Lengths of its messages, if it keeps them apart.
    messages: Option<Vec<u64>>,
    /// Whether a reader and a writer has it open.
    pub ends: (bool, bool),
    /// Descriptors on their way: with which bytes, counted from the next one on, and which of the
    /// image's descriptions.
    pub passed: Vec<(Range<u64>, Vec<u32>)>,
    /// Who has written what is in it, each from so many bytes on.
    senders: Vec<(u64, Identity)>,
    /// Whether its writer has gone without having read everything.
    reset: bool,
}

#[cfg(test)]
impl QueueImage {
    /// Some that a restore must not take: senders and messages of what is not there.
    pub fn hostile(&self) -> Vec<Self> {
        let nobody = Identity::NOBODY;
        let behind = self.bytes.len() as u64 + 1;
        let with_senders = |senders| Self {
            senders,
            ..self.clone()
        };
        vec![
            with_senders(vec![(behind, nobody)]),
            with_senders(vec![(0, nobody); 2]),
            Self {
                messages: Some(vec![u64::MAX, 8]),
                ..self.clone()
            },
        ]
    }
}

/// One direction of a stream.
pub struct Queue {
    inner: Mutex<Inner>,
    /// Woken whenever anything changes.
    pub channel: Channel,
    /// Who carries what is in it to a socket of the host, or from there.
    carrier: OnceLock<Doorbell>,
}

/// What there was to be carried away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Something.
    Some,
    /// Nothing yet.
    Nothing,
    /// Nothing any more: the writer has gone.
    End,
}

struct Inner {
    bytes: VecDeque<u8>,
    /// How many bytes it holds.
    capacity: usize,
    /// Whether it is a stream of sockets: who finds no room in it is woken when half of it is free, as on Linux (sock_writeable
    /// of its networking), not again for each read.
    is_stream: bool,
    /// Lengths of the messages in it, if it keeps them apart (unix(7), SOCK_SEQPACKET).
    messages: Option<VecDeque<usize>>,
    /// Ends that are open.
    readers: usize,
    writers: usize,
    /// How often an end was opened so far.
    readers_ever: u64,
    writers_ever: u64,
    /// Bytes that were taken out so far.
    taken: u64,
    /// Descriptors on their way, each group with the positions of its bytes (unix(7), SCM_RIGHTS).
    passed: VecDeque<(Range<u64>, Passed)>,
    /// Who has written what is in it, each from a position on.
    senders: VecDeque<(u64, Identity)>,
    /// Its writer has gone without having read everything: whoever reads to the end is told (unix(7),
    /// tcp(7), ECONNRESET).
    reset: bool,
    /// No read crosses from one sender's bytes to another's (unix(7), SO_PASSCRED).
    senders_apart: bool,
    /// Whoever carries bytes into it waits for room.
    is_starved: bool,
    /// How often something came in, or the writer went.
    arrivals: u64,
    /// How often it became writable, or the reader went.
    departures: u64,
}

impl Queue {
    /// An empty queue with both ends open: a pipe.
    pub fn new() -> Arc<Self> {
        Self::with_ends(1, None)
    }

    /// The same, of a socket.
    pub fn of_stream() -> Arc<Self> {
        let queue = Self::new();
        queue.lock().is_stream = true;
        queue
    }

    /// The same, for messages that are read one by one.
    pub fn of_messages() -> Arc<Self> {
        Self::with_ends(1, Some(VecDeque::new()))
    }

    /// An empty queue that nobody has open: a FIFO.
    pub fn closed() -> Arc<Self> {
        Self::with_ends(0, None)
    }

    fn with_ends(count: usize, messages: Option<VecDeque<usize>>) -> Arc<Self> {
        let inner = Inner {
            bytes: VecDeque::new(),
            capacity: CAPACITY,
            is_stream: false,
            messages,
            readers: count,
            writers: count,
            readers_ever: count as u64,
            writers_ever: count as u64,
            taken: 0,
            passed: VecDeque::new(),
            senders: VecDeque::new(),
            reset: false,
            senders_apart: false,
            is_starved: false,
            arrivals: 0,
            departures: 0,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            channel: Channel::new(),
            carrier: OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `max` bytes; empty at the end of the stream.
    pub fn read(&self, cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        let mut inner = self.lock();
        if inner.is_empty() && inner.writers > 0 && max > 0 {
            return Err(wait(cx, self.channel));
        }
        if inner.is_empty() && inner.writers == 0 && std::mem::take(&mut inner.reset) {
            return Err(Errno::ECONNRESET.into());
        }
        let lost = inner.collect();
        // Not beyond what comes with the next descriptors: each group belongs to one read.
        let next = inner.passed.front();
        let border = next.map_or(usize::MAX, |(with, _)| (with.end - inner.taken) as usize);
        let border = border.min(inner.end_of_sender());
        let message = inner.messages.as_mut().and_then(VecDeque::pop_front);
        // What a reader has no room for of a message is lost.
        let count = message.unwrap_or_else(|| max.min(inner.bytes.len()).min(border));
        let bytes = first(&inner.bytes, count.min(max));
        let frees_a_writer = inner.take(count);
        let is_awaited = std::mem::take(&mut inner.is_starved);
        drop(inner);
        release(lost, cx.wake);
        if frees_a_writer {
            (cx.wake)(self.channel);
        }
        if is_awaited {
            self.ring();
        }
        Ok(bytes)
    }

    /// Its other end is a socket of the host: whoever carries for that is told of what changes here.
    pub fn is_carried(&self, carrier: Doorbell) {
        self.carrier.get_or_init(|| carrier);
    }

    fn ring(&self) {
        if let Some(carrier) = self.carrier.get() {
            carrier.ring();
        }
    }

    /// How many bytes may be carried into it; 0: its carrier is told when there is room.
    pub fn room(&self) -> usize {
        let mut inner = self.lock();
        let room = match inner.readers {
            // It is lost.
            0 => inner.capacity,
            _ => inner.capacity - inner.bytes.len(),
        };
        inner.is_starved = room == 0;
        room
    }

    /// Puts in what its carrier brings, for which there is [`Queue::room`].
    pub fn bring(&self, bytes: &[u8]) {
        let mut inner = self.lock();
        if inner.readers > 0 {
            inner.bytes.extend(bytes);
            inner.arrivals += 1;
        }
    }

    /// Has `write` take away as much as it wants of what is in it.
    pub fn take_away<E>(&self, write: impl FnOnce(&[u8]) -> Result<usize, E>) -> Result<Taken, E> {
        let mut inner = self.lock();
        let (bytes, _) = inner.bytes.as_slices();
        if bytes.is_empty() {
            return Ok(match inner.writers {
                0 => Taken::End,
                _ => Taken::Nothing,
            });
        }
        let count = write(bytes)?;
        inner.take(count);
        inner.end_of_sender();
        Ok(Taken::Some)
    }

    /// The descriptors that came with the bytes of the last read.
    pub fn collect(&self) -> Vec<Passed> {
        self.lock().collect()
    }

    /// Whether a read takes the bytes of one sender only.
    pub fn keep_senders_apart(&self, apart: bool) {
        self.lock().senders_apart = apart;
    }

    /// Its writer goes without having read everything that it was sent.
    pub fn reset(&self) {
        self.lock().reset = true;
    }

    /// Whether it was.
    pub fn is_reset(&self) -> bool {
        self.lock().reset
    }

    /// Who has written the bytes of the last read.
    pub fn sender(&self) -> Option<Identity> {
        self.lock().senders.front().map(|(_, sender)| *sender)
    }

    /// Descriptors that go with the last `count` bytes: who reads the first of these gets them.
    pub fn pass(&self, passed: Passed, count: usize) {
        let mut inner = self.lock();
        let end = inner.taken + inner.bytes.len() as u64;
        let at = end.saturating_sub(count as u64);
        inner.passed.push_back((at..end, passed));
    }

    /// Copies up to `max` bytes and leaves them there (recv(2), MSG_PEEK).
    pub fn peek(&self, cx: &Cx, max: usize) -> SysResult<Vec<u8>> {
        let inner = self.lock();
        if inner.is_empty() && inner.writers > 0 && max > 0 {
            return Err(wait(cx, self.channel));
        }
        let message = inner
            .messages
            .as_ref()
            .and_then(|messages| messages.front());
        let max = message.map_or(max, |len| max.min(*len));
        Ok(first(&inner.bytes, max))
    }

    /// Puts in as much of `data` as there is room for, waiting if there is none; a write that is
    /// atomic waits for room for all of it.
    pub fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        let mut inner = self.lock();
        // Nobody reads, or a socket was shut down to write.
        if inner.readers == 0 || inner.writers == 0 {
            return Err(Errno::EPIPE.into());
        }
        if inner.messages.is_some() {
            return self.write_message(inner, cx, data);
        }
        let room = inner.capacity - inner.bytes.len();
        let part = match data.len() {
            len if len <= room => len,
            len if len <= ATOMIC_BYTES => 0,
            _ => room,
        };
        if part == 0 && !data.is_empty() {
            return Err(wait(cx, self.channel));
        }
        inner.note_sender(cx.identity);
        inner.bytes.extend(&data[..part]);
        inner.arrivals += u64::from(part > 0);
        drop(inner);
        (cx.wake)(self.channel);
        self.ring();
        Ok(part)
    }

    fn write_message(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        cx: &mut Cx,
        data: &[u8],
    ) -> SysResult<usize> {
        if data.len() > inner.capacity {
            return Err(Errno::EMSGSIZE.into());
        }
        let room = inner.capacity - inner.bytes.len();
        match &mut inner.messages {
            Some(messages) if messages.len() < MESSAGES_MAX && data.len() <= room => {
                messages.push_back(data.len());
            }
            _ => return Err(wait(cx, self.channel)),
        }
        inner.note_sender(cx.identity);
        inner.bytes.extend(data);
        inner.arrivals += 1;
        (cx.wake)(self.channel);
        Ok(data.len())
    }

    /// Whether a read would not wait, and whether the writer is gone.
    pub fn readable(&self) -> (bool, bool) {
        let inner = self.lock();
        (
            !inner.bytes.is_empty() || inner.writers == 0,
            inner.writers == 0,
        )
    }

    /// Whether a write would not wait, and whether the reader is gone.
    pub fn writable(&self) -> (bool, bool) {
        let inner = self.lock();
        (
            inner.is_writable() || inner.readers == 0,
            inner.readers == 0,
        )
    }

    /// How often it became readable (`File::edges`).
    pub fn arrivals(&self) -> u64 {
        self.lock().arrivals
    }

    /// How often it became writable (`File::edges`).
    pub fn departures(&self) -> u64 {
        self.lock().departures
    }

    /// How many bytes are in it.
    pub fn bytes(&self) -> usize {
        self.lock().bytes.len()
    }

    /// FIONREAD (ioctl_pipe(2)): writes how many bytes are in it.
    pub fn tell_len(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let len = self.bytes() as u32;
        cx.memory.write(argument, &len.to_le_bytes())?;
        Ok(0)
    }

    /// What an image says of it; `open` says which of the image's descriptions one on its way is.
    pub fn image(&self, mut open: impl FnMut(&Arc<Open>) -> Option<u32>) -> QueueImage {
        let mut inner = self.lock();
        inner.end_of_sender();
        let mut passed = Vec::new();
        for (with, group) in &inner.passed {
            let files = group.files().iter().filter_map(&mut open).collect();
            let from_here = |at: u64| at.saturating_sub(inner.taken);
            passed.push((from_here(with.start)..from_here(with.end), files));
        }
        QueueImage {
            bytes: first(&inner.bytes, usize::MAX),
            capacity: inner.capacity as u64,
            messages: inner
                .messages
                .as_ref()
                .map(|messages| messages.iter().map(|len| *len as u64).collect()),
            ends: (inner.readers > 0, inner.writers > 0),
            passed,
            senders: inner
                .senders
                .iter()
                .map(|(at, sender)| (at.saturating_sub(inner.taken), *sender))
                .collect(),
            reset: inner.reset,
        }
    }

    /// Descriptors that are on their way in it.
    pub fn in_flight(&self) -> Vec<Arc<Open>> {
        let inner = self.lock();
        let groups = inner.passed.iter().map(|(_, group)| group.files());
        groups.flatten().cloned().collect()
    }

    /// A queue of an image, without the descriptors on their way in it, and with no end open.
    pub fn from_image(image: &QueueImage) -> Result<Arc<Self>, Errno> {
        let sum = |lens: &Vec<u64>| {
            let sum = lens.iter().try_fold(0u64, |sum, len| sum.checked_add(*len));
            sum == Some(image.bytes.len() as u64) && lens.len() <= MESSAGES_MAX
        };
        let len = image.bytes.len() as u64;
        let passed = || image.passed.iter().map(|(with, _)| with);
        let passed_are_sound = passed().all(|with| with.start < with.end && with.end <= len)
            && passed().is_sorted_by(|one, next| one.end <= next.start);
        let senders_are_sound = image.senders.is_sorted_by(|one, next| one.0 < next.0)
            && image.senders.last().is_none_or(|(at, _)| *at <= len);
        let capacity = usize::try_from(image.capacity).unwrap_or(usize::MAX);
        if !(PAGE_BYTES..=CAPACITY_MAX).contains(&capacity)
            || image.bytes.len() > capacity
            || !image.messages.as_ref().is_none_or(sum)
            || !passed_are_sound
            || !senders_are_sound
        {
            return Err(Errno::EBADMSG);
        }
        let lens = |lens: &Vec<u64>| lens.iter().map(|len| *len as usize).collect();
        let queue = Self::with_ends(0, image.messages.as_ref().map(lens));
        let mut inner = queue.lock();
        inner.capacity = capacity;
        inner.bytes.extend(&image.bytes);
        inner.senders.extend(&image.senders);
        inner.reset = image.reset;
        drop(inner);
        Ok(queue)
    }

    /// Puts descriptors on their way, with these bytes counted from the next one on.
    pub fn put_in_flight(&self, with: &Range<u64>, passed: Passed) {
        let mut inner = self.lock();
        let at = |bytes: u64| inner.taken.saturating_add(bytes);
        let with = at(with.start)..at(with.end);
        inner.passed.push_back((with, passed));
    }

    /// A socket's ends that are open in an image are open.
    pub fn open_ends(&self, (reader, writer): (bool, bool)) {
        let mut inner = self.lock();
        inner.is_stream = inner.messages.is_none();
        (inner.readers, inner.writers) = (usize::from(reader), usize::from(writer));
    }

    /// Whether a reader, and whether a writer, has it open.
    pub fn ends(&self) -> (bool, bool) {
        let inner = self.lock();
        (inner.readers > 0, inner.writers > 0)
    }

    /// How many bytes it holds.
    pub fn capacity(&self) -> usize {
        self.lock().capacity
    }

    /// Makes it hold at least so many bytes (fcntl(2), F_SETPIPE_SZ).
    pub fn set_capacity(&self, bytes: u32) -> Result<(), Errno> {
        if bytes > 1 << 31 {
            return Err(Errno::EINVAL);
        }
        let capacity = (bytes as usize).max(PAGE_BYTES).next_power_of_two();
        if capacity > CAPACITY_MAX {
            return Err(Errno::EPERM);
        }
        let mut inner = self.lock();
        if inner.bytes.len() > capacity {
            return Err(Errno::EBUSY);
        }
        inner.capacity = capacity;
        inner.departures += 1;
        Ok(())
    }

    /// Makes it hold so many bytes, as far as it can be made to, or what is in it.
    pub fn hold(&self, bytes: usize) {
        let mut inner = self.lock();
        inner.capacity = bytes.clamp(PAGE_BYTES, CAPACITY_MAX).max(inner.bytes.len());
        inner.departures += 1;
    }

    /// Who has opened an end so far: readers, writers.
    pub fn ever(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.readers_ever, inner.writers_ever)
    }

    /// Whether nobody reads from it.
    pub fn has_no_reader(&self) -> bool {
        self.lacks(false)
    }

    /// Whether nobody has an end of this kind open.
    pub fn lacks(&self, writers: bool) -> bool {
        let inner = self.lock();
        0 == if writers {
            inner.writers
        } else {
            inner.readers
        }
    }

    /// Another end is opened, or one that does both.
    pub fn open_end(&self, reads: bool, writes: bool, wake: &mut dyn FnMut(Channel)) {
        let mut inner = self.lock();
        inner.readers += usize::from(reads);
        inner.writers += usize::from(writes);
        inner.readers_ever += u64::from(reads);
        inner.writers_ever += u64::from(writes);
        drop(inner);
        wake(self.channel);
    }

    /// A reading end closes. (A socket's may have been shut down before.)
    pub fn close_reader(&self, wake: &mut dyn FnMut(Channel)) {
        let mut inner = self.lock();
        inner.readers = inner.readers.saturating_sub(1);
        inner.forget_unreachable();
        inner.departures += 1;
        let lost = match inner.readers {
            0 => std::mem::take(&mut inner.passed),
            _ => VecDeque::new(),
        };
        drop(inner);
        release(lost.into_iter().map(|(_, passed)| passed), wake);
        wake(self.channel);
        self.ring();
    }

    /// A writing end closes.
    pub fn close_writer(&self, wake: &mut dyn FnMut(Channel)) {
        let mut inner = self.lock();
        inner.writers = inner.writers.saturating_sub(1);
        inner.forget_unreachable();
        inner.arrivals += 1;
        drop(inner);
        wake(self.channel);
        self.ring();
    }
}

impl Inner {
    /// What is written next is of this sender.
    fn note_sender(&mut self, sender: Identity) {
        let end = self.taken + self.bytes.len() as u64;
        // One who has written nothing is forgotten: there are no more of them than bytes.
        if self.senders.back().is_some_and(|(at, _)| *at == end) {
            self.senders.pop_back();
        }
        if self.senders.back().is_none_or(|(_, last)| *last != sender) {
            self.senders.push_back((end, sender));
        }
    }

    /// How many bytes there are of the first one's sender, if that matters. Those of whom nothing is
    /// left are forgotten.
    fn end_of_sender(&mut self) -> usize {
        while self.senders.get(1).is_some_and(|(at, _)| *at <= self.taken) {
            self.senders.pop_front();
        }
        match self.senders.get(1) {
            Some((at, _)) if self.senders_apart => (at - self.taken) as usize,
            _ => usize::MAX,
        }
    }

    /// What nobody took before the last end was closed is gone (fifo(7)).
    fn forget_unreachable(&mut self) {
        if self.readers == 0 && self.writers == 0 {
            self.bytes.clear();
            self.senders.clear();
            if let Some(messages) = &mut self.messages {
                messages.clear();
            }
        }
    }

    /// Descriptors whose bytes have been read.
    fn collect(&mut self) -> Vec<Passed> {
        let read = |(with, _): &(Range<u64>, Passed)| with.start < self.taken;
        let count = self.passed.iter().take_while(|passed| read(passed)).count();
        self.passed
            .drain(..count)
            .map(|(_, passed)| passed)
            .collect()
    }

    /// Whether there is nothing to read, not even an empty message.
    fn is_empty(&self) -> bool {
        match &self.messages {
            Some(messages) => messages.is_empty(),
            None => self.bytes.is_empty(),
        }
    }

    fn is_writable(&self) -> bool {
        match self.is_stream {
            true => self.bytes.len() <= self.capacity / 2,
            false => self.capacity - self.bytes.len() >= ATOMIC_BYTES,
        }
    }

    /// Removes bytes that were read; whether somebody who waits for room is to look.
    fn take(&mut self, count: usize) -> bool {
        let was_writable = self.is_writable();
        self.bytes.drain(..count);
        self.taken += count as u64;
        let has_become = !was_writable && self.is_writable();
        self.departures += u64::from(has_become);
        // One that is small may have no room for one write although half of it is free.
        has_become || self.bytes.is_empty() || !self.is_stream
    }
}

/// The first bytes, as many as there are up to `max`: piece by piece, since a queue's iterator goes byte by byte.
fn first(bytes: &VecDeque<u8>, max: usize) -> Vec<u8> {
    let (front, back) = bytes.as_slices();
    let front = &front[..max.min(front.len())];
    let back = &back[..(max - front.len()).min(back.len())];
    [front, back].concat()
}

fn wait(cx: &Cx, channel: Channel) -> Stop {
    if cx.nonblock {
        Errno::EAGAIN.into()
    } else {
        Stop::wait(channel)
    }
}
