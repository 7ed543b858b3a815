//! Connected sockets: streams and messages of unix(7), and streams of tcp(7) as far as 127.0.0.1
//! reaches.

use std::{
    any::Any,
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use super::pipe::{Queue, mask};
use crate::kernel::{
    errno::Errno,
    file::{Cx, Description, File, PollMask},
    wait::{Channel, Stop, SysResult},
};

/// Connections that wait to be accepted, at most.
const BACKLOG_MAX: usize = 128;

/// What listens under a name, for as long as its socket is open.
pub struct Listener {
    inner: Mutex<Backlog>,
    channel: Channel,
    kind: i32,
    /// Its address, as getsockname(2) tells it.
    name: OnceLock<Vec<u8>>,
}

struct Backlog {
    waiting: VecDeque<Arc<Stream>>,
    limit: usize,
    open: bool,
    /// Connections that came in so far.
    arrivals: u64,
}

/// A connected socket: what it reads and what its peer reads.
pub struct Stream {
    /// What it reads.
    pub incoming: Arc<Queue>,
    /// What its peer reads.
    pub outgoing: Arc<Queue>,
    /// Its own address and its peer's; empty: it has none.
    pub names: [Vec<u8>; 2],
}

/// What a socket has become.
#[derive(Clone)]
pub enum State {
    /// Nothing yet.
    New,
    /// It has a name, and may listen.
    Bound(Arc<Listener>),
    /// It has a peer, or had one.
    Connected(Arc<Stream>),
    /// Restored from a snapshot: the peer is gone.
    Reset,
}

/// A socket, in any of its states.
pub struct Socket {
    /// `AF_UNIX` or `AF_INET`.
    pub domain: i32,
    /// `SOCK_STREAM` or `SOCK_SEQPACKET`.
    pub kind: i32,
    state: Mutex<State>,
    /// How long a call waits to receive, and to send (SO_RCVTIMEO, SO_SNDTIMEO).
    timeouts: Mutex<[Option<Duration>; 2]>,
    /// Woken when the state changes.
    channel: Channel,
}

/// Two connected sockets (socketpair(2)).
pub fn pair(kind: i32) -> (Arc<Socket>, Arc<Socket>) {
    let (one, other) = streams(kind, Vec::new(), Vec::new());
    let connected = |stream| Socket::in_state(libc::AF_UNIX, kind, State::Connected(stream));
    (connected(one), connected(other))
}

/// Two ends and their addresses.
fn streams(kind: i32, one: Vec<u8>, other: Vec<u8>) -> (Arc<Stream>, Arc<Stream>) {
    let (there, back) = match kind {
        libc::SOCK_SEQPACKET => (Queue::of_messages(), Queue::of_messages()),
        _ => (Queue::new(), Queue::new()),
    };
    let stream = |incoming: &Arc<Queue>, outgoing: &Arc<Queue>, names| {
        Arc::new(Stream {
            incoming: incoming.clone(),
            outgoing: outgoing.clone(),
            names,
        })
    };
    (
        stream(&there, &back, [one.clone(), other.clone()]),
        stream(&back, &there, [other, one]),
    )
}

impl Socket {
    /// A socket that is not connected.
    pub fn new(domain: i32, kind: i32) -> Arc<Self> {
        Self::in_state(domain, kind, State::New)
    }

    /// A socket that is not new: in a restored process, in any state.
    pub fn in_state(domain: i32, kind: i32, state: State) -> Arc<Self> {
        Arc::new(Self {
            domain,
            kind,
            state: Mutex::new(state),
            timeouts: Mutex::default(),
            channel: Channel::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its connection, or those that wait to be accepted.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        match &*self.lock() {
            State::Bound(listener) => listener.backlog().0,
            State::Connected(stream) => vec![stream.clone()],
            State::New | State::Reset => Vec::new(),
        }
    }

    /// What it has become.
    pub fn state(&self) -> State {
        self.lock().clone()
    }

    /// How long a call waits to receive (0) or to send (1).
    pub fn timeout(&self, direction: usize) -> Option<Duration> {
        self.timeouts.lock().unwrap_or_else(PoisonError::into_inner)[direction]
    }

    /// Sets how long a call waits; `None`: for ever.
    pub fn set_timeout(&self, direction: usize, timeout: Option<Duration>) {
        let mut timeouts = self.timeouts.lock().unwrap_or_else(PoisonError::into_inner);
        timeouts[direction] = timeout;
    }

    /// Its own address, or its peer's; empty if it has none.
    pub fn name(&self, peer: bool) -> Result<Vec<u8>, Errno> {
        match &*self.lock() {
            State::Connected(stream) => Ok(stream.names[usize::from(peer)].clone()),
            _ if peer => Err(Errno::ENOTCONN),
            State::Bound(listener) => Ok(listener.name()),
            State::New | State::Reset => Ok(Vec::new()),
        }
    }

    /// bind(2): `name` puts the listener under its name, and returns its address.
    pub fn bind(
        &self,
        name: impl FnOnce(&Arc<Listener>) -> Result<Vec<u8>, Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.lock();
        let State::New = *state else {
            return Err(Errno::EINVAL);
        };
        let listener = Listener::new(self.kind, self.channel);
        let name = name(&listener)?;
        listener.name.get_or_init(|| name);
        *state = State::Bound(listener);
        Ok(())
    }

    /// listen(2).
    pub fn listen(&self, backlog: usize) -> Result<(), Errno> {
        match &*self.lock() {
            State::Bound(listener) => {
                listener.lock().limit = backlog.clamp(1, BACKLOG_MAX);
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// accept(2).
    pub fn accept(&self, nonblock: bool) -> SysResult<Arc<Self>> {
        let State::Bound(listener) = &*self.lock() else {
            return Err(Errno::EINVAL.into());
        };
        let mut backlog = listener.lock();
        if backlog.limit == 0 {
            return Err(Errno::EINVAL.into());
        }
        match backlog.waiting.pop_front() {
            Some(stream) => Ok(Self::in_state(
                self.domain,
                self.kind,
                State::Connected(stream),
            )),
            None if nonblock => Err(Errno::EAGAIN.into()),
            None => Err(Stop::wait(self.channel)),
        }
    }

    /// connect(2), from address `own`: done at once if there is room in the backlog.
    pub fn connect(&self, to: &Listener, own: Vec<u8>, cx: &mut Cx) -> SysResult<()> {
        let mut state = self.lock();
        match &*state {
            State::New => {}
            State::Connected(_) => return Err(Errno::EISCONN.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        if self.kind != to.kind {
            return Err(Errno::EPROTOTYPE.into());
        }
        let mut backlog = to.lock();
        if !backlog.open || backlog.limit == 0 {
            return Err(Errno::ECONNREFUSED.into());
        }
        if backlog.waiting.len() >= backlog.limit {
            return Err(match cx.nonblock {
                true => Errno::EAGAIN.into(),
                false => Stop::wait(to.channel),
            });
        }
        let (one, other) = streams(self.kind, own, to.name());
        backlog.waiting.push_back(other);
        backlog.arrivals += 1;
        *state = State::Connected(one);
        (cx.wake)(to.channel);
        Ok(())
    }

    /// shutdown(2).
    pub fn shutdown(&self, how: i32, wake: &mut dyn FnMut(Channel)) -> Result<(), Errno> {
        let stream = self.stream()?;
        if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            return Err(Errno::EINVAL);
        }
        if how != libc::SHUT_WR {
            stream.incoming.close_reader(wake);
            stream.incoming.close_writer(wake);
        }
        if how != libc::SHUT_RD {
            stream.outgoing.close_writer(wake);
        }
        Ok(())
    }

    /// Reads and leaves the bytes where they are (MSG_PEEK).
    pub fn peek(&self, cx: &Cx, max: usize) -> SysResult<Vec<u8>> {
        self.stream()?.incoming.peek(cx, max)
    }

    /// Whether it listens (SO_ACCEPTCONN).
    pub fn listens(&self) -> bool {
        matches!(&*self.lock(), State::Bound(listener) if listener.lock().limit > 0)
    }

    /// The connection, or ENOTCONN; ECONNRESET in a restored process.
    pub fn stream(&self) -> Result<Arc<Stream>, Errno> {
        match &*self.lock() {
            State::Connected(stream) => Ok(stream.clone()),
            State::Reset => Err(Errno::ECONNRESET),
            _ => Err(Errno::ENOTCONN),
        }
    }
}

impl Listener {
    fn new(kind: i32, channel: Channel) -> Arc<Self> {
        let inner = Backlog {
            waiting: VecDeque::new(),
            limit: 0,
            open: true,
            arrivals: 0,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            channel,
            kind,
            name: OnceLock::new(),
        })
    }

    /// Connections that wait to be accepted, and how many may.
    pub fn backlog(&self) -> (Vec<Arc<Stream>>, usize) {
        let backlog = self.lock();
        (backlog.waiting.iter().cloned().collect(), backlog.limit)
    }

    /// Puts a backlog back, in a restored process.
    pub fn set_backlog(&self, waiting: Vec<Arc<Stream>>, limit: usize) {
        let mut backlog = self.lock();
        backlog.limit = limit.min(BACKLOG_MAX);
        backlog.arrivals += waiting.len() as u64;
        backlog.waiting = waiting.into();
    }

    /// Whether its socket is open.
    pub fn is_open(&self) -> bool {
        self.lock().open
    }

    /// Its address (`struct sockaddr`).
    pub fn name(&self) -> Vec<u8> {
        self.name.get().cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for Socket {
    fn read(&self, cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        self.stream()?.incoming.read(cx, max)
    }

    fn takes(&self) -> usize {
        self.stream().map_or(0, |stream| stream.incoming.len())
    }

    fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        self.stream()?.outgoing.write(cx, data)
    }

    fn ioctl(&self, cx: &mut Cx, request: u32, argument: u64) -> SysResult<i64> {
        match (u64::from(request), self.stream()) {
            (libc::FIONREAD, Ok(stream)) => stream.incoming.tell_len(cx, argument),
            (libc::FIONREAD, Err(_)) => Err(Errno::EINVAL.into()),
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn poll(&self) -> PollMask {
        match &*self.lock() {
            State::New => libc::POLLOUT | libc::POLLHUP,
            State::Reset => libc::POLLIN | libc::POLLHUP | libc::POLLERR,
            State::Bound(listener) => mask(!listener.lock().waiting.is_empty(), libc::POLLIN),
            State::Connected(stream) => {
                let (readable, over) = stream.incoming.readable();
                let (writable, broken) = stream.outgoing.writable();
                mask(readable, libc::POLLIN)
                    | mask(over, libc::POLLRDHUP)
                    | mask(writable, libc::POLLOUT)
                    | mask(over && broken, libc::POLLHUP)
            }
        }
    }

    fn edges(&self, events: PollMask) -> u64 {
        match &*self.lock() {
            State::Bound(listener) => listener.lock().arrivals,
            State::Connected(stream) => {
                let room = match events & libc::POLLOUT {
                    0 => 0,
                    _ => stream.outgoing.departures(),
                };
                stream.incoming.arrivals() + room
            }
            State::New | State::Reset => 0,
        }
    }

    fn channels(&self) -> Vec<Channel> {
        match &*self.lock() {
            State::Connected(stream) => vec![stream.incoming.channel, stream.outgoing.channel],
            _ => vec![self.channel],
        }
    }

    fn release(&self, wake: &mut dyn FnMut(Channel)) {
        match &*self.lock() {
            State::Connected(stream) => stream.close(wake),
            State::Bound(listener) => {
                let mut backlog = listener.lock();
                backlog.open = false;
                for stream in backlog.waiting.drain(..) {
                    stream.close(wake);
                }
                wake(listener.channel);
            }
            State::New | State::Reset => {}
        }
    }

    fn describe(&self) -> Description {
        Description::Socket
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Stream {
    fn close(&self, wake: &mut dyn FnMut(Channel)) {
        self.incoming.close_reader(wake);
        self.outgoing.close_writer(wake);
    }
}
