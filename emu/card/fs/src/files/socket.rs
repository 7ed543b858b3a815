//! Sockets in all their states: streams and messages of unix(7), streams of tcp(7), over the loopback device or, where the
//! card has a network, by way of a [`Relay`]; datagrams have a file of their own.

use std::{
    any::Any,
    collections::VecDeque,
    net::SocketAddrV4,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use snaprig_card_driver::{
    errno::Errno,
    file::{Cx, Description, File, Identity, PollMask, mask},
    wait::{Channel, Stop, SysResult},
};

use crate::{
    files::{
        address::{self, Address, Place},
        datagram::{Letter, Mailbox},
        queue::Queue,
        socket_options::Options,
    },
    relay::{Attempt, Doorbell, Relay},
};

/// Connections that wait to be accepted, at most.
const BACKLOG_MAX: usize = 128;

/// What listens under a name, for as long as its socket is open.
pub struct Listener {
    inner: Mutex<Backlog>,
    channel: Channel,
    /// `AF_UNIX`, `AF_INET` or `AF_INET6`.
    pub domain: i32,
    kind: i32,
    /// Its address, as getsockname(2) tells it.
    name: OnceLock<Vec<u8>>,
    /// Who has made it listen.
    owner: Mutex<Identity>,
    /// Where letters go, if it is a socket of datagrams.
    pub mailbox: Option<Arc<Mailbox>>,
    outside: Mutex<Outside>,
}

/// Whether it listens on the card's network, too.
enum Outside {
    No,
    /// It has been asked for.
    Soon,
    /// Who accepts for it is told of what changes here.
    Yes(Doorbell),
    /// It cannot.
    Failed(Errno),
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
    pub names: [Name; 2],
    /// Who has made the peer (unix(7), SO_PEERCRED).
    pub peer: Identity,
}

/// An address that both ends of a connection may know.
pub type Name = Arc<Mutex<Vec<u8>>>;

/// A socket's own address and its peer's, as it is told them.
pub type Names = [Vec<u8>; 2];

/// What a socket has become.
#[derive(Clone)]
pub enum State {
    /// Nothing yet.
    New,
    /// It has a name, and may listen.
    Bound(Arc<Listener>),
    /// It will have a peer outside of the card.
    Connecting(Arc<Attempt>),
    /// It has a peer, or had one.
    Connected(Arc<Stream>),
    /// It sends datagrams, connected or not.
    Letters(Arc<Mailbox>),
    /// Restored from a snapshot: the peer is gone.
    Reset,
}

/// A socket, in any of its states.
pub struct Socket {
    /// `AF_UNIX`, `AF_INET` or `AF_INET6`.
    pub domain: i32,
    /// `SOCK_STREAM`, `SOCK_SEQPACKET` or `SOCK_DGRAM`.
    pub kind: i32,
    state: Mutex<State>,
    options: Mutex<Options>,
    /// What it is bound to, once it is connected or sends letters: its name is its own for as long.
    bound: Mutex<Option<Arc<Listener>>>,
    /// Woken when the state changes.
    channel: Channel,
    /// What became of a connect(2) that nobody waited for: the next one is told, or SO_ERROR.
    error: Mutex<Option<Errno>>,
    /// It is connected, and the connect(2) that began that has not said so yet.
    has_just_connected: AtomicBool,
}

/// Two connected sockets (socketpair(2)), made by one process.
pub fn pair(kind: i32, maker: Identity) -> (Arc<Socket>, Arc<Socket>) {
    let (one, other) = match kind {
        libc::SOCK_DGRAM => {
            let (one, other) = Mailbox::pair();
            (State::Letters(one), State::Letters(other))
        }
        _ => {
            let (one, other) = streams(kind, <[_; 2]>::default(), [maker; 2]);
            (State::Connected(one), State::Connected(other))
        }
    };
    let socket = |state| Socket::in_state(libc::AF_UNIX, kind, state);
    (socket(one), socket(other))
}

/// An end whose peer is not on this card; the names that it is told.
pub fn outside(names: Names, maker: Identity) -> Arc<Stream> {
    let there = [names[1].clone(), names[0].clone()];
    let (one, _) = streams(libc::SOCK_STREAM, [names, there], [maker; 2]);
    one
}

/// Two ends: the names that each is told, and who has made each.
fn streams(kind: i32, names: [Names; 2], makers: [Identity; 2]) -> (Arc<Stream>, Arc<Stream>) {
    let (there, back) = match kind {
        libc::SOCK_SEQPACKET => (Queue::of_messages(), Queue::of_messages()),
        _ => (Queue::of_stream(), Queue::of_stream()),
    };
    let [[own, far], [others_own, others_far]] = names;
    // A name that one of unix(7) gets later is told to both.
    let cells = |here: Vec<u8>, there: Vec<u8>| {
        let is_same = here == there;
        let here = Arc::new(Mutex::new(here));
        match is_same {
            true => (here.clone(), here),
            false => (here, Arc::new(Mutex::new(there))),
        }
    };
    let ((own, others_far), (far, others_own)) = (cells(own, others_far), cells(far, others_own));
    let stream = |incoming: &Arc<Queue>, outgoing: &Arc<Queue>, names, peer| {
        Arc::new(Stream {
            incoming: incoming.clone(),
            outgoing: outgoing.clone(),
            names,
            peer,
        })
    };
    (
        stream(&there, &back, [own, far], makers[1]),
        stream(&back, &there, [others_own, others_far], makers[0]),
    )
}

impl Socket {
    /// A socket that is not connected.
    pub fn new(domain: i32, kind: i32) -> Arc<Self> {
        let state = match kind {
            libc::SOCK_DGRAM => State::Letters(Mailbox::new(domain)),
            _ => State::New,
        };
        Self::in_state(domain, kind, state)
    }

    /// A socket that is not new: in a restored process, in any state.
    pub fn in_state(domain: i32, kind: i32, state: State) -> Arc<Self> {
        Arc::new(Self {
            domain,
            kind,
            state: Mutex::new(state),
            options: Mutex::default(),
            bound: Mutex::default(),
            channel: Channel::new(),
            error: Mutex::default(),
            has_just_connected: AtomicBool::new(false),
        })
    }

    /// Whether it is of ip(7) or ipv6(7).
    pub fn is_internet(&self) -> bool {
        self.domain != libc::AF_UNIX
    }

    /// Its protocol (SO_PROTOCOL).
    pub fn protocol(&self) -> i32 {
        match self.kind {
            _ if !self.is_internet() => 0,
            libc::SOCK_DGRAM => libc::IPPROTO_UDP,
            _ => libc::IPPROTO_TCP,
        }
    }

    /// Its options.
    pub fn options(&self) -> MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An option was set that its connection must know of.
    pub fn options_changed(&self) {
        let options = self.options();
        let tells = options.is_on(libc::SOL_SOCKET, libc::SO_PASSCRED);
        let buffer = options.values.get(&(libc::SOL_SOCKET, libc::SO_SNDBUF));
        let buffer = buffer.and_then(|bytes| usize::try_from(*bytes).ok());
        drop(options);
        if let State::Connected(stream) = &*self.lock() {
            stream.incoming.keep_senders_apart(tells);
            if let Some(bytes) = buffer {
                stream.outgoing.hold(bytes);
            }
        }
    }

    /// Who has made the peer; nobody, if there is none.
    pub fn peer_identity(&self) -> Option<Identity> {
        match &*self.lock() {
            State::Connected(stream) if !self.is_internet() => Some(stream.peer),
            State::Bound(listener) if listener.lock().limit > 0 => Some(listener.owner()),
            _ => None,
        }
    }

    /// What went wrong with a letter, told once (SO_ERROR).
    pub fn take_error(&self) -> Option<Errno> {
        match &*self.lock() {
            State::Letters(mailbox) => mailbox.take_error(),
            State::Reset => Some(Errno::ECONNRESET),
            _ => self.error().take(),
        }
    }

    /// The mailbox, if it is a socket of datagrams.
    pub fn mailbox(&self) -> Option<Arc<Mailbox>> {
        match &*self.lock() {
            State::Letters(mailbox) => Some(mailbox.clone()),
            _ => None,
        }
    }

    /// Whether it has no name yet, and may get one.
    pub fn is_unnamed(&self) -> bool {
        match &*self.lock() {
            State::New => true,
            State::Letters(_) => self.kept().is_none(),
            _ => false,
        }
    }

    /// Its connection, or those that wait to be accepted.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        match &*self.lock() {
            State::Bound(listener) => listener.backlog().0,
            State::Connected(stream) => vec![stream.clone()],
            State::New | State::Connecting(_) | State::Letters(_) | State::Reset => Vec::new(),
        }
    }

    /// What it has become.
    pub fn state(&self) -> State {
        self.lock().clone()
    }

    /// What it keeps its name with, once it is connected or sends letters.
    pub fn kept_name(&self) -> Option<Arc<Listener>> {
        self.kept().clone()
    }

    /// Keeps a name, in a restored process.
    pub fn keep_name(&self, name: Vec<u8>) -> Arc<Listener> {
        let listener = Listener::new(self, self.mailbox());
        listener.name.get_or_init(|| name);
        *self.kept() = Some(listener.clone());
        listener
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<Listener>>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self) -> MutexGuard<'_, Option<Errno>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Connecting(attempt) = &*state
            && let Some(outcome) = attempt.take()
        {
            let bound = attempt.bound.clone();
            *state = match outcome {
                Ok(stream) => {
                    *self.kept() = bound;
                    self.has_just_connected.store(true, Ordering::Relaxed);
                    State::Connected(stream)
                }
                Err(errno) => {
                    *self.error() = Some(errno);
                    bound.map_or(State::New, State::Bound)
                }
            };
        }
        state
    }

    /// Its own address, or its peer's; empty if it has none.
    pub fn name(&self, peer: bool) -> Result<Vec<u8>, Errno> {
        match &*self.lock() {
            State::Connected(stream) => Ok(stream.name(peer)),
            State::Letters(mailbox) => mailbox.name(peer).ok_or(Errno::ENOTCONN),
            _ if peer => Err(Errno::ENOTCONN),
            State::Bound(listener) => Ok(listener.name()),
            State::Connecting(attempt) => {
                let bound = attempt.bound.as_ref();
                Ok(bound.map_or_else(Vec::new, |bound| bound.name()))
            }
            State::New | State::Reset => Ok(Vec::new()),
        }
    }

    /// bind(2): `name` puts the listener under its name, and returns its address.
    pub fn bind(
        &self,
        name: impl FnOnce(&Arc<Listener>) -> Result<Vec<u8>, Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.lock();
        let mailbox = match &*state {
            State::New => None,
            State::Letters(mailbox) if self.kept().is_none() => Some(mailbox.clone()),
            // One of unix(7) may get a name when it is connected already.
            State::Connected(stream) if !self.is_internet() && stream.name(false).is_empty() => {
                None
            }
            _ => return Err(Errno::EINVAL),
        };
        let listener = Listener::new(self, mailbox.clone());
        let name = name(&listener)?;
        listener.name.get_or_init(|| name.clone());
        match (&*state, mailbox) {
            (State::Connected(stream), _) => {
                *stream.lock_name(false) = name;
                *self.kept() = Some(listener);
            }
            (_, None) => *state = State::Bound(listener),
            (_, Some(mailbox)) => {
                mailbox.set_name(name);
                *self.kept() = Some(listener);
            }
        }
        Ok(())
    }

    /// listen(2).
    pub fn listen(&self, backlog: usize, owner: Identity) -> Result<(), Errno> {
        match &*self.lock() {
            _ if self.kind == libc::SOCK_DGRAM => Err(Errno::EOPNOTSUPP),
            State::Bound(listener) => {
                listener.lock().limit = backlog.clamp(1, BACKLOG_MAX);
                listener.set_owner(owner);
                listener.ring();
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Has it listen on the card's network, too, if it is bound to what is to be reached there; waits until it does.
    pub fn listen_outside(&self, relay: &Relay) -> SysResult<()> {
        // The network is one of IPv4.
        let only_six = self.options().is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
        match &*self.lock() {
            State::Bound(listener) if !only_six => listener.listen_outside(relay),
            _ => Ok(()),
        }
    }

    /// connect(2) to somebody outside of the card.
    pub fn connect_outside(
        &self,
        relay: &Arc<Relay>,
        to: SocketAddrV4,
        nonblock: bool,
    ) -> SysResult<()> {
        let mut state = self.lock();
        if let Some(errno) = self.error().take() {
            return Err(errno.into());
        }
        let bound = match &*state {
            State::New => None,
            State::Bound(listener) if listener.lock().limit == 0 => Some(listener.clone()),
            State::Connecting(_) if nonblock => return Err(Errno::EALREADY.into()),
            State::Connecting(_) => return Err(Stop::wait(self.channel)),
            State::Connected(_) if self.has_just_connected.swap(false, Ordering::Relaxed) => {
                return Ok(());
            }
            State::Connected(_) => return Err(Errno::EISCONN.into()),
            _ => return Err(Errno::EINVAL.into()),
        };
        let place = bound.as_ref().and_then(|bound| bound.place());
        // Nobody outside could answer.
        if place.is_some_and(|place| relay.port_of(place).is_none()) {
            return Err(Errno::EINVAL.into());
        }
        let from = place.map_or(0, |place| place.port);
        let attempt = Attempt::new(self.domain, from, to, bound, self.channel);
        relay.connect(attempt.clone())?;
        *state = State::Connecting(attempt);
        Err(match nonblock {
            true => Errno::EINPROGRESS.into(),
            false => Stop::wait(self.channel),
        })
    }

    /// For a call that needs a connection: waits for one that is on its way.
    fn await_connection(&self, cx: &Cx) -> SysResult<()> {
        match &*self.lock() {
            State::Connecting(_) if cx.nonblock => Err(Errno::EAGAIN.into()),
            State::Connecting(_) => Err(Stop::wait(self.channel)),
            _ => Ok(()),
        }
    }

    /// accept(2).
    pub fn accept(&self, nonblock: bool) -> SysResult<Arc<Self>> {
        if self.kind == libc::SOCK_DGRAM {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let State::Bound(listener) = &*self.lock() else {
            return Err(Errno::EINVAL.into());
        };
        let mut backlog = listener.lock();
        if backlog.limit == 0 {
            return Err(Errno::EINVAL.into());
        }
        match backlog.waiting.pop_front() {
            Some(stream) => {
                drop(backlog);
                listener.ring();
                let state = State::Connected(stream);
                Ok(Self::in_state(self.domain, self.kind, state))
            }
            None if nonblock => Err(Errno::EAGAIN.into()),
            None => Err(Stop::wait(self.channel)),
        }
    }

    /// connect(2): done at once if there is room in the backlog. `names` are what each end is told.
    pub fn connect(&self, to: &Listener, names: [Names; 2], cx: &mut Cx) -> SysResult<()> {
        let mut state = self.lock();
        let mut bound = None;
        match &*state {
            State::New => {}
            State::Bound(listener) if listener.lock().limit == 0 => bound = Some(listener.clone()),
            State::Connected(_) => return Err(Errno::EISCONN.into()),
            State::Connecting(_) => return Err(Errno::EALREADY.into()),
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
        let (one, other) = streams(self.kind, names, [cx.identity, to.owner()]);
        backlog.waiting.push_back(other);
        backlog.arrivals += 1;
        *state = State::Connected(one);
        drop(backlog);
        drop(state);
        *self.kept() = bound;
        self.options_changed();
        (cx.wake)(to.channel);
        Ok(())
    }

    /// shutdown(2).
    pub fn shutdown(&self, how: i32, wake: &mut dyn FnMut(Channel)) -> Result<(), Errno> {
        if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            return Err(Errno::EINVAL);
        }
        if let Some(mailbox) = self.mailbox() {
            return mailbox.shutdown(how, wake);
        }
        let stream = match self.stream() {
            // One of unix(7) has nobody to tell.
            Err(Errno::ENOTCONN) if !self.is_internet() => return Ok(()),
            stream => stream?,
        };
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
        self.await_connection(cx)?;
        self.stream_to_read()?.incoming.peek(cx, max)
    }

    /// The connection, for a call that reads: a stream of unix(7) has an error of its own.
    fn stream_to_read(&self) -> Result<Arc<Stream>, Errno> {
        self.stream().map_err(|errno| match errno {
            Errno::ENOTCONN if !self.is_internet() && self.kind == libc::SOCK_STREAM => {
                Errno::EINVAL
            }
            errno => errno,
        })
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
    fn new(socket: &Socket, mailbox: Option<Arc<Mailbox>>) -> Arc<Self> {
        let inner = Backlog {
            waiting: VecDeque::new(),
            limit: 0,
            open: true,
            arrivals: 0,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            channel: socket.channel,
            domain: socket.domain,
            kind: socket.kind,
            name: OnceLock::new(),
            owner: Mutex::default(),
            mailbox,
            outside: Mutex::new(Outside::No),
        })
    }

    /// Has it listen on the card's network, too, if it has a name that is to be reached there; waits until it does.
    pub fn listen_outside(self: &Arc<Self>, relay: &Relay) -> SysResult<()> {
        let place = self.place().filter(|_| self.kind == libc::SOCK_STREAM);
        let Some(port) = place.and_then(|place| relay.port_of(place)) else {
            return Ok(());
        };
        let mut outside = self.outside();
        match *outside {
            Outside::Yes(_) => return Ok(()),
            Outside::Soon => {}
            Outside::Failed(errno) => {
                *outside = Outside::No;
                return Err(errno.into());
            }
            Outside::No => {
                relay.listen(self, port)?;
                *outside = Outside::Soon;
            }
        }
        Err(Stop::wait(self.channel))
    }

    /// What became of that.
    pub fn is_outside(&self, outcome: Result<Doorbell, Errno>) {
        *self.outside() = match outcome {
            Ok(doorbell) => Outside::Yes(doorbell),
            Err(errno) => Outside::Failed(errno),
        };
    }

    fn outside(&self) -> MutexGuard<'_, Outside> {
        self.outside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        if let Outside::Yes(doorbell) = &*self.outside() {
            doorbell.ring();
        }
    }

    /// Whether one more may wait to be accepted.
    pub fn has_room(&self) -> bool {
        let backlog = self.lock();
        backlog.open && backlog.waiting.len() < backlog.limit
    }

    /// Somebody from outside waits to be accepted.
    pub fn admit(&self, stream: Arc<Stream>) {
        let mut backlog = self.lock();
        if backlog.open {
            backlog.waiting.push_back(stream);
            backlog.arrivals += 1;
        } else {
            drop(backlog);
            // Nobody reads it, so nobody waits for that.
            stream.close(&mut |_| {});
        }
    }

    /// Woken when somebody waits to be accepted.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The address and port that it is bound to.
    pub fn place(&self) -> Option<Place> {
        match address::parse(self.domain, &self.name()) {
            Ok(Address::Port(place)) => Some(place),
            _ => None,
        }
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

    /// Who has made it listen.
    pub fn owner(&self) -> Identity {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says who has made it listen.
    pub fn set_owner(&self, owner: Identity) {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = owner;
    }

    /// Its address, as getsockname(2) tells it.
    pub fn name(&self) -> Vec<u8> {
        self.name.get().cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for Socket {
    fn read(&self, cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        if let Some(mailbox) = self.mailbox() {
            let taken = mailbox.receive(cx, true, |letter| {
                letter.bytes[..max.min(letter.bytes.len())].to_vec()
            })?;
            return Ok(taken.unwrap_or_default());
        }
        self.await_connection(cx)?;
        self.stream_to_read()?.incoming.read(cx, max)
    }

    fn takes(&self) -> usize {
        if let Some(mailbox) = self.mailbox() {
            return mailbox.len();
        }
        self.stream().map_or(0, |stream| stream.incoming.bytes())
    }

    fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        if let Some(mailbox) = self.mailbox() {
            let to = mailbox.peer().map_err(|errno| match errno {
                // Of a destination that it has never had.
                Errno::ENOTCONN if self.is_internet() => Errno::EDESTADDRREQ,
                errno => errno,
            })?;
            let letter = Letter {
                bytes: data.to_vec(),
                from: self.name(false)?,
                sender: cx.identity,
                passed: None,
            };
            mailbox.send(to, letter, cx)?;
            return Ok(data.len());
        }
        self.await_connection(cx)?;
        match self.stream() {
            // One of tcp(7) that is not connected is as one that is no more.
            Err(Errno::ENOTCONN) if self.is_internet() => Err(Errno::EPIPE.into()),
            stream => stream?.outgoing.write(cx, data),
        }
    }

    fn ioctl(&self, cx: &mut Cx, request: u32, argument: u64) -> SysResult<i64> {
        if let (libc::FIONREAD, Some(mailbox)) = (u64::from(request), self.mailbox()) {
            let len = mailbox.len() as u32;
            cx.memory.write(argument, &len.to_le_bytes())?;
            return Ok(0);
        }
        match (u64::from(request), self.stream()) {
            (libc::FIONREAD, Ok(stream)) => stream.incoming.tell_len(cx, argument),
            (libc::FIONREAD, Err(_)) => Err(Errno::EINVAL.into()),
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn poll(&self) -> PollMask {
        match &*self.lock() {
            State::Connecting(_) => 0,
            State::New | State::Bound(_) if self.error().is_some() => {
                libc::POLLIN | libc::POLLOUT | libc::POLLHUP | libc::POLLERR
            }
            State::New => libc::POLLOUT | libc::POLLHUP,
            State::Reset => libc::POLLIN | libc::POLLHUP | libc::POLLERR,
            State::Letters(mailbox) => mailbox.poll(),
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
            State::Letters(mailbox) => mailbox.edges(),
            // A connect(2) that failed is news.
            State::New => self.error().is_some().into(),
            State::Connecting(_) | State::Reset => 0,
        }
    }

    fn channels(&self) -> Vec<Channel> {
        match &*self.lock() {
            State::Connected(stream) => vec![stream.incoming.channel, stream.outgoing.channel],
            State::Letters(mailbox) => mailbox.channels(),
            _ => vec![self.channel],
        }
    }

    fn release(&self, wake: &mut dyn FnMut(Channel)) {
        if let Some(listener) = &*self.kept() {
            listener.lock().open = false;
        }
        match &*self.lock() {
            State::Connected(stream) => stream.close(wake),
            State::Letters(mailbox) => mailbox.close(wake),
            State::Bound(listener) => {
                let mut backlog = listener.lock();
                backlog.open = false;
                for stream in backlog.waiting.drain(..) {
                    stream.close(wake);
                }
                wake(listener.channel);
                drop(backlog);
                listener.ring();
            }
            State::Connecting(attempt) => attempt.give_up(),
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
    fn lock_name(&self, peer: bool) -> MutexGuard<'_, Vec<u8>> {
        let name = self.names[usize::from(peer)].lock();
        name.unwrap_or_else(PoisonError::into_inner)
    }

    /// Its own address, or its peer's.
    pub fn name(&self, peer: bool) -> Vec<u8> {
        self.lock_name(peer).clone()
    }

    fn close(&self, wake: &mut dyn FnMut(Channel)) {
        if self.incoming.bytes() > 0 {
            self.outgoing.reset();
        }
        self.incoming.close_reader(wake);
        self.outgoing.close_writer(wake);
    }
}
