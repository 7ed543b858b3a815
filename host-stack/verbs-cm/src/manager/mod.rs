//! All ids of a process, the events that wait on its channels, and what is due when.
//!
//! ```text
//!   open, close ----+                     +--> Send, Close     (links)
//!   command --------+--> ids, groups -----+--> Readable, Empty (channels)
//!   accepted, ------+    queues, timers   +--> next_timeout_ns
//!   received,       |
//!   hung_up, expire-+
//! ```
//!
//! What must stay true: a channel is said to be readable when its first event comes and empty when its last one goes.
//! The outputs of one call are carried out before the next call. When time reaches [`Manager::next_timeout_ns`],
//! [`Manager::expire`] is called.

mod answers;
mod attributes;
mod commands;
mod connections;
mod multicast;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Duration,
};

use rustix::io::Errno;
use snaprig_sim::Random;
use zerocopy::{Immutable, IntoBytes};

use crate::{
    abi::AhAttr,
    host::{Host, LinkId},
    id::{EventBody, EventKind, Id, Input, State, Step},
    wire::{Message, REJ_CONSUMER, SIDR_REJECTED},
};

/// How long a connection's end is remembered.
const TIMEWAIT: Duration = Duration::from_secs(1);
/// How long a request waits for somebody to listen. With hardware the subnet manager is asked for a path before, and
/// programs rely on the time that this takes: qperf 0.4.11 tells its client a port before it listens there.
const LISTEN_PATIENCE: Duration = Duration::from_millis(500);
/// The time between two looks whether somebody does.
const LISTEN_LOOK: Duration = Duration::from_millis(2);
/// Handles are below: librdmacm's table has no more places.
const IDS_MAX: u32 = 1 << 16;
/// Requests that a listener's program has not seen; more are refused.
const BACKLOG_MAX: usize = 1024;
/// The partition of all ids.
const PKEY: u16 = 0xffff;

/// A channel of events, by the number of the program's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub i32);

/// What the driver has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message over a link. Whether the other side is gone is heard of by the link itself.
    Send(LinkId, Message),
    /// Close a link, or stop to listen at it.
    Close(LinkId),
    /// Events wait on a channel: its descriptor is to be readable.
    Readable(Channel),
    /// No events wait any more.
    Empty(Channel),
}

/// What a command came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done, and has no answer.
    Done,
    /// It is done, and this is the answer.
    Answer(Vec<u8>),
    /// It needs an event, and there is none: the program asks again when the channel is readable.
    Wait,
}

impl Reply {
    fn answer(answer: &(impl IntoBytes + Immutable)) -> Self {
        Self::Answer(answer.as_bytes().to_vec())
    }
}

/// What waits to be read.
#[derive(Debug)]
struct Event {
    uid: u64,
    /// What it is about, for the program.
    handle: u32,
    /// Whose event it is: the listener's, if it is a request; the id's that joined a group.
    owner: u32,
    kind: EventKind,
    body: EventBody,
    /// UD: how to reach the other side.
    ah: Option<AhAttr>,
}

/// A multicast group that an id is in.
#[derive(Debug)]
struct Group {
    owner: u32,
    reported: u32,
}

/// Who uses a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Listener(u32),
    /// Somebody connected to this listener, and has not said why.
    New(u32),
    Id(u32),
}

/// What is to be done for an id, and when.
#[derive(Debug)]
struct Timer {
    due_ns: u64,
    handle: u32,
    what: Due,
}

#[derive(Debug)]
enum Due {
    /// The end of its connection is forgotten.
    TimewaitExit,
    /// It asks for a connection once more, which it does until then.
    Ask { request: Message, until_ns: u64 },
}

/// The connection manager of a process.
#[derive(Debug)]
pub struct Manager {
    random: Random,
    channels: BTreeMap<Channel, VecDeque<Event>>,
    ids: BTreeMap<u32, Id>,
    groups: BTreeMap<u32, Group>,
    next_handle: u32,
    links: BTreeMap<LinkId, User>,
    timers: Vec<Timer>,
    next_port: u16,
    outputs: Vec<Output>,
}

impl Manager {
    /// A manager that draws its numbers (ports, first packets) from a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, "connection manager");
        let next_port = random.number() as u16;
        Self {
            random,
            channels: BTreeMap::new(),
            ids: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_handle: 0,
            links: BTreeMap::new(),
            timers: Vec::new(),
            next_port,
            outputs: Vec::new(),
        }
    }

    /// The program has opened a channel.
    pub fn open(&mut self, channel: Channel) {
        self.channels.insert(channel, VecDeque::new());
    }

    /// The program closes a channel: the ids of the channel are gone. Collect [`Manager::outputs`].
    pub fn close(&mut self, channel: Channel) {
        let of = |(handle, id): (&u32, &Id)| (id.channel == channel).then_some(*handle);
        let handles: Vec<u32> = self.ids.iter().filter_map(of).collect();
        for handle in handles {
            self.destroy(handle);
        }
        self.channels.remove(&channel);
    }

    /// What is to be done since this was asked last, in order.
    pub fn outputs(&mut self) -> Vec<Output> {
        mem::take(&mut self.outputs)
    }

    /// When [`Manager::expire`] is to be called, if nothing happens before.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.timers.iter().map(|timer| timer.due_ns).min()
    }

    /// Does what is due. Collect [`Manager::outputs`].
    pub fn expire(&mut self, now_ns: u64, host: &mut dyn Host) {
        let (due, later): (Vec<_>, Vec<_>) = mem::take(&mut self.timers)
            .into_iter()
            .partition(|timer| timer.due_ns <= now_ns);
        self.timers = later;
        for Timer { handle, what, .. } in due {
            match what {
                Due::TimewaitExit => {
                    self.tell(handle, EventKind::TimewaitExit, EventBody::default());
                }
                Due::Ask { request, until_ns } => {
                    self.ask(now_ns, handle, request, until_ns, host);
                }
            }
        }
    }

    fn set_timer(&mut self, now_ns: u64, after: Duration, handle: u32, what: Due) {
        let due_ns = after_ns(now_ns, after);
        self.timers.push(Timer {
            due_ns,
            handle,
            what,
        });
    }

    // Ids.

    fn id(&mut self, handle: u32) -> Result<&mut Id, Errno> {
        self.ids.get_mut(&handle).ok_or(Errno::NOENT)
    }

    fn new_handle(&mut self) -> Result<u32, Errno> {
        for _ in 0..IDS_MAX {
            let handle = self.next_handle;
            self.next_handle = (handle + 1) % IDS_MAX;
            if !self.ids.contains_key(&handle) && !self.groups.contains_key(&handle) {
                return Ok(handle);
            }
        }
        Err(Errno::NOMEM)
    }

    /// A port that nobody listens at, for who does not care.
    fn new_port(&mut self) -> u16 {
        self.next_port = self.next_port.wrapping_add(1);
        0x8000 | self.next_port
    }

    fn new_id(&mut self, uid: u64, channel: Channel, space: u16, qp_type: u8) -> Id {
        Id::new(uid, channel, space, qp_type, self.random.number() as u32)
    }

    /// Lets an id's machine have an input, and does what it says.
    fn input(&mut self, now_ns: u64, handle: u32, input: Input) -> Result<(), Errno> {
        for step in self.id(handle)?.handle(input)? {
            let link = self.ids.get(&handle).and_then(|id| id.link);
            match (step, link) {
                (Step::Send(message), Some(link)) => {
                    self.outputs.push(Output::Send(link, message));
                }
                (Step::Close, Some(link)) => {
                    self.drop_link(link);
                    if let Some(id) = self.ids.get_mut(&handle) {
                        id.link = None;
                    }
                }
                (Step::Send(_) | Step::Close, None) => {}
                (Step::Event(kind, body), _) => self.tell(handle, kind, body),
                (Step::Timewait, _) => {
                    self.set_timer(now_ns, TIMEWAIT, handle, Due::TimewaitExit);
                }
            }
        }
        Ok(())
    }

    /// An id is gone, with all that nobody has seen of it; how many of its events the program has seen.
    fn destroy(&mut self, handle: u32) -> Option<u32> {
        let id = self.ids.remove(&handle)?;
        if let Some(link) = id.link {
            if id.state == State::Requested {
                let reason = if id.is_ud() {
                    SIDR_REJECTED
                } else {
                    REJ_CONSUMER
                };
                let data = Vec::new();
                self.outputs
                    .push(Output::Send(link, Message::Rej { reason, data }));
            }
            self.drop_link(link);
        }
        self.timers.retain(|timer| timer.handle != handle);
        self.groups.retain(|_, group| group.owner != handle);
        for event in self.take_events(id.channel, |event| {
            event.owner == handle || event.handle == handle
        }) {
            // Requests that the program will never see.
            if event.kind == EventKind::ConnectRequest && event.handle != handle {
                self.destroy(event.handle);
            }
        }
        self.drop_links_of(User::New(handle));
        Some(id.reported)
    }

    // Events.

    fn queue(&mut self, channel: Channel, event: Event) {
        if let Some(queue) = self.channels.get_mut(&channel) {
            queue.push_back(event);
            if queue.len() == 1 {
                self.outputs.push(Output::Readable(channel));
            }
        }
    }

    /// Takes the next event.
    fn next_event(&mut self, channel: Channel) -> Option<Event> {
        let queue = self.channels.get_mut(&channel)?;
        let event = queue.pop_front()?;
        if queue.is_empty() {
            self.outputs.push(Output::Empty(channel));
        }
        Some(event)
    }

    /// Takes all events that are so.
    fn take_events(&mut self, channel: Channel, is: impl Fn(&Event) -> bool) -> Vec<Event> {
        let Some(queue) = self.channels.get_mut(&channel) else {
            return Vec::new();
        };
        let before = queue.len();
        let (taken, kept): (Vec<_>, Vec<_>) = queue.drain(..).partition(|event| is(event));
        queue.extend(kept);
        if before > 0 && queue.is_empty() {
            self.outputs.push(Output::Empty(channel));
        }
        taken
    }

    fn tell(&mut self, handle: u32, kind: EventKind, body: EventBody) {
        let Some(id) = self.ids.get(&handle) else {
            return;
        };
        // The program does not know it yet: its accept will fail.
        if id.uid == 0 {
            return;
        }
        let event = Event {
            uid: id.uid,
            handle,
            owner: handle,
            kind,
            body,
            ah: id.is_ud().then(|| id.path_to_peer()),
        };
        self.queue(id.channel, event);
    }

    fn fail(&mut self, handle: u32, kind: EventKind, status: i32) {
        let body = EventBody {
            status,
            ..EventBody::default()
        };
        self.tell(handle, kind, body);
    }
}

/// The time after a while.
fn after_ns(now_ns: u64, after: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
}
