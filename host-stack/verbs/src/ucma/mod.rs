//! The connection manager's device, as a kernel has it: commands of librdmacm, and events.
//!
//! ```text
//!   librdmacm --write(fd, command)--> dispatch --> id --> link --socket--> link of another process
//!       ^                                           |                       |
//!       +--- GET_EVENT <-- queue of the channel <---+<----- thread <--------+
//! ```
//!
//! One lock guards all of it; nobody waits with it. A channel's eventfd is readable exactly while
//! its queue has events.

mod command;
mod id;
mod link;
mod wire;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ffi::{c_int, c_void},
    hash::{BuildHasher, RandomState},
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, epoll, eventfd};
use snaprig_hca::control::find_port;

use self::{
    id::{Id, Input, Kind, News, Output, State},
    wire::{Endpoint, Message, Params, REJ_CONSUMER, REJ_INVALID_SERVICE, SIDR_UNSUPPORTED},
};
use crate::{
    ffi::{self, KernAh, set_errno},
    interpose,
};

/// How long a connection's end is remembered.
const TIMEWAIT: Duration = Duration::from_secs(1);
/// How long a request waits for somebody to listen. With hardware the subnet manager is asked for a path before, and
/// programs rely on the time that this takes: qperf 0.4.11 tells its client a port before it listens there.
const LISTEN_PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks whether somebody does.
const LISTEN_LOOK: Duration = Duration::from_millis(2);
/// Handles are below: librdmacm's table has no more places.
const IDS_MAX: u32 = 1 << 16;
/// Requests that a listener's program has not seen; more are refused.
const BACKLOG_MAX: usize = 1024;
/// The thread's own descriptor, among the numbers of connections.
const WAKE: u64 = 0;
/// The one port of each HCA that is used.
const PORT: u8 = 1;

/// What waits to be read.
#[derive(Debug)]
struct Event {
    uid: u64,
    /// What it is about, for the program.
    handle: u32,
    /// Whose event it is: the listener's, if it is a request; the id's that joined a group.
    owner: u32,
    kind: Kind,
    news: News,
    /// UD: how to reach the other side.
    ah: Option<KernAh>,
}

/// A multicast group that an id is in.
#[derive(Debug)]
struct Group {
    owner: u32,
    reported: u32,
}

/// Whose socket it is.
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
    when: Instant,
    handle: u32,
    what: Due,
}

#[derive(Debug)]
enum Due {
    /// Its connection's end is forgotten.
    TimewaitExit,
    /// It asks for a connection once more, which it does until then.
    Ask { request: Message, until: Instant },
}

/// All ids of a process.
struct Ucma {
    pid: u32,
    channels: HashMap<c_int, VecDeque<Event>>,
    ids: BTreeMap<u32, Id>,
    groups: BTreeMap<u32, Group>,
    next_handle: u32,
    links: HashMap<u64, (Arc<OwnedFd>, User)>,
    next_link: u64,
    timers: Vec<Timer>,
    epoll: Arc<OwnedFd>,
    wake: OwnedFd,
    next_port: u16,
}

static UCMA: Mutex<Option<Ucma>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Ucma>> {
    UCMA.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Opens the device; an errno value if that does not work.
pub(crate) fn open(flags: c_int) -> Result<c_int, c_int> {
    catch_unwind(|| {
        ffi::fabric().map_err(|error| error.errno())?;
        let errno = |error: rustix::io::Errno| error.raw_os_error();
        let mut kept = EventfdFlags::empty();
        kept.set(EventfdFlags::CLOEXEC, flags & libc::O_CLOEXEC != 0);
        kept.set(EventfdFlags::NONBLOCK, flags & libc::O_NONBLOCK != 0);
        let mut ucma = lock();
        if ucma
            .as_ref()
            .is_none_or(|ucma| ucma.pid != std::process::id())
        {
            // What a child of fork(2) has of its parent's is not its own to close or remove.
            std::mem::forget(ucma.take());
            *ucma = Some(Ucma::start().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?);
        }
        let fd = eventfd(0, kept).map_err(errno)?;
        if !interpose::files::add(fd.as_raw_fd()) {
            return Err(libc::EMFILE);
        }
        let fd = fd.into_raw_fd();
        if let Some(ucma) = ucma.as_mut() {
            ucma.channels.insert(fd, VecDeque::new());
        }
        Ok(fd)
    })
    .unwrap_or(Err(libc::EIO))
}

/// The program closed the device: its ids are gone.
pub(crate) fn closed(fd: c_int) {
    let _ = catch_unwind(|| {
        if let Some(ucma) = lock()
            .as_mut()
            .filter(|ucma| ucma.pid == std::process::id())
        {
            let of = |id: &Id| id.channel == fd;
            let handles: Vec<u32> = ucma
                .ids
                .iter()
                .filter(|(_, id)| of(id))
                .map(|(handle, _)| *handle)
                .collect();
            for handle in handles {
                ucma.destroy(handle);
            }
            ucma.channels.remove(&fd);
        }
    });
}

/// What a command came to.
enum Done {
    Yes,
    /// It needs an event, and there is none.
    Wait,
}

/// A command.
///
/// # Safety
/// `bytes` is null or has `count` readable bytes. If they are a command, the addresses in it, of
/// the answer and of an option, are the caller's own, with as many bytes there as the command says,
/// for as long as this runs.
pub(crate) unsafe fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    if bytes.is_null() || count < command::HEADER {
        set_errno(libc::EINVAL);
        return -1;
    }
    loop {
        // Nothing that would have to be dropped is held while this waits: it may be cancelled.
        match attempt(fd, bytes, count) {
            Ok(Done::Yes) => return count as isize,
            Ok(Done::Wait) => {
                if let Err(errno) = wait(fd) {
                    set_errno(errno);
                    return -1;
                }
            }
            Err(errno) => {
                set_errno(errno);
                return -1;
            }
        }
    }
}

fn attempt(fd: c_int, bytes: *const c_void, count: usize) -> Result<Done, c_int> {
    let perform = || {
        // SAFETY: `write`, the one caller, passes what its own caller gave: `count` readable bytes
        // at an address that is not null, which stay while the command runs.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), count) };
        let mut ucma = lock();
        match ucma.as_mut() {
            Some(ucma) if ucma.pid == std::process::id() => ucma.command(fd, bytes),
            _ => Err(libc::EBADF),
        }
    };
    catch_unwind(AssertUnwindSafe(perform)).unwrap_or(Err(libc::EIO))
}

/// Waits for an event, if the descriptor is one that waits.
fn wait(fd: c_int) -> Result<(), c_int> {
    // SAFETY: fcntl(2) with F_GETFL takes a number, and touches no memory; poll(2) reads and writes
    // the one `pollfd` on this stack, whose count is 1; errno's place is this thread's own.
    unsafe {
        if libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 {
            return Err(libc::EAGAIN);
        }
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        if interpose::poll(&mut poll, 1, -1) < 0 {
            return Err(*libc::__errno_location());
        }
    }
    Ok(())
}

impl Ucma {
    fn start() -> std::io::Result<Self> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        let waited = epoll.clone();
        ffi::without_signals(|| {
            let builder = thread::Builder::new().name("snaprig-cm".into());
            snaprig_pages::threads::spawn(builder, move || serve(&waited))
        })?;
        Ok(Self {
            pid: std::process::id(),
            channels: HashMap::new(),
            ids: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_handle: 0,
            links: HashMap::new(),
            next_link: WAKE + 1,
            timers: Vec::new(),
            epoll,
            wake,
            next_port: random() as u16,
        })
    }

    fn new_handle(&mut self) -> Result<u32, c_int> {
        for _ in 0..IDS_MAX {
            let handle = self.next_handle;
            self.next_handle = (handle + 1) % IDS_MAX;
            if !self.ids.contains_key(&handle) && !self.groups.contains_key(&handle) {
                return Ok(handle);
            }
        }
        Err(libc::ENOMEM)
    }

    /// A port that nobody listens at, for who does not care.
    fn new_port(&mut self) -> u16 {
        self.next_port = self.next_port.wrapping_add(1);
        0x8000 | self.next_port
    }

    // Sockets.

    fn add_link(&mut self, socket: OwnedFd, user: User) -> std::io::Result<u64> {
        let number = self.next_link;
        self.next_link += 1;
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)?;
        self.links.insert(number, (Arc::new(socket), user));
        Ok(number)
    }

    fn drop_link(&mut self, number: u64) {
        if let Some((socket, _)) = self.links.remove(&number) {
            // A child of fork(2) may have the socket, too; it is not to be heard of here.
            let _ = epoll::delete(&self.epoll, &*socket);
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        }
    }

    // Events.

    fn queue(&mut self, channel: c_int, event: Event) {
        if let Some(queue) = self.channels.get_mut(&channel) {
            queue.push_back(event);
            if queue.len() == 1 {
                signal(channel);
            }
        }
    }

    /// Takes the next event; if it was the last, the descriptor is not readable any more.
    fn next_event(&mut self, channel: c_int) -> Option<Event> {
        let queue = self.channels.get_mut(&channel)?;
        let event = queue.pop_front()?;
        if queue.is_empty() {
            clear(channel);
        }
        Some(event)
    }

    /// Takes all events that are so.
    fn take_events(&mut self, channel: c_int, is: impl Fn(&Event) -> bool) -> Vec<Event> {
        let Some(queue) = self.channels.get_mut(&channel) else {
            return Vec::new();
        };
        let before = queue.len();
        let (taken, kept): (Vec<_>, Vec<_>) = queue.drain(..).partition(|event| is(event));
        queue.extend(kept);
        if before > 0 && queue.is_empty() {
            clear(channel);
        }
        taken
    }

    fn tell(&mut self, handle: u32, kind: Kind, news: News) {
        let Some(id) = self.ids.get(&handle) else {
            return;
        };
        // The program does not know it yet: its accept will fail.
        if id.uid == 0 {
            return;
        }
        let ah = id.is_ud().then(|| reach(id));
        let (uid, channel) = (id.uid, id.channel);
        self.queue(
            channel,
            Event {
                uid,
                handle,
                owner: handle,
                kind,
                news,
                ah,
            },
        );
    }

    fn fail(&mut self, handle: u32, kind: Kind, status: i32) {
        let news = News {
            status,
            ..News::default()
        };
        self.tell(handle, kind, news);
    }

    // Ids.

    fn carry_out(&mut self, handle: u32, outputs: Vec<Output>) {
        for output in outputs {
            let link = self.ids.get(&handle).and_then(|id| id.link);
            match output {
                Output::Send(message) => {
                    if let Some((socket, _)) = link.and_then(|link| self.links.get(&link)) {
                        // Whoever is gone is heard of as a hangup.
                        let _ = link::send(&**socket, &message);
                    }
                }
                Output::Close => {
                    if let Some(link) = link {
                        self.drop_link(link);
                    }
                    if let Some(id) = self.ids.get_mut(&handle) {
                        id.link = None;
                    }
                }
                Output::Event(kind, news) => self.tell(handle, kind, news),
                Output::Timewait => self.set_timer(TIMEWAIT, handle, Due::TimewaitExit),
            }
        }
    }

    fn input(&mut self, handle: u32, input: Input) -> Result<(), c_int> {
        let id = self.ids.get_mut(&handle).ok_or(libc::ENOENT)?;
        let outputs = id.handle(input)?;
        self.carry_out(handle, outputs);
        Ok(())
    }

    /// An id is gone, with all that nobody has seen of it.
    fn destroy(&mut self, handle: u32) -> Option<u32> {
        let id = self.ids.remove(&handle)?;
        if let Some(file) = &id.file {
            link::remove(file);
        }
        if let Some(link) = id.link {
            if id.state == State::Requested
                && let Some((socket, _)) = self.links.get(&link)
            {
                let reason = if id.is_ud() {
                    wire::SIDR_REJECTED
                } else {
                    REJ_CONSUMER
                };
                let data = Vec::new();
                let _ = link::send(&**socket, &Message::Rej { reason, data });
            }
            self.drop_link(link);
        }
        self.timers.retain(|timer| timer.handle != handle);
        self.groups.retain(|_, group| group.owner != handle);
        for event in self.take_events(id.channel, |event| {
            event.owner == handle || event.handle == handle
        }) {
            // Requests that the program will never see.
            if event.kind == Kind::ConnectRequest && event.handle != handle {
                self.destroy(event.handle);
            }
        }
        let new: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, (_, user))| *user == User::New(handle))
            .map(|(number, _)| *number)
            .collect();
        for link in new {
            self.drop_link(link);
        }
        Some(id.reported)
    }

    /// Something is to be read from a socket.
    fn ready(&mut self, number: u64) {
        let Some((socket, user)) = self.links.get(&number).map(|(s, user)| (s.clone(), *user))
        else {
            return;
        };
        if let User::Listener(handle) = user {
            while let Ok(new) = link::accept(&*socket) {
                let _ = self.add_link(new, User::New(handle));
            }
            return;
        }
        match (link::receive(&*socket), user) {
            (Some(None), _) | (_, User::Listener(_)) => {}
            (Some(Some(message)), User::Id(handle)) => {
                let _ = self.input(handle, Input::Received(message));
            }
            (None, User::Id(handle)) => {
                if self.input(handle, Input::Hangup).is_err() {
                    self.drop_link(number);
                }
            }
            (
                Some(Some(Message::Req {
                    from,
                    to,
                    endpoint,
                    params,
                })),
                User::New(listener),
            ) => {
                if self
                    .requested(listener, number, (from, to), endpoint, params)
                    .is_err()
                {
                    let refusal = Message::Rej {
                        reason: REJ_CONSUMER,
                        data: Vec::new(),
                    };
                    let _ = link::send(&*socket, &refusal);
                    self.drop_link(number);
                }
            }
            (_, User::New(_)) => self.drop_link(number),
        }
    }

    /// Asks for a connection; where nobody listens, again and again until then.
    fn ask(&mut self, handle: u32, request: Message, until: Instant) {
        let Some((id, remote)) =
            (self.ids.get_mut(&handle)).and_then(|id| id.remote.map(|at| (id, at)))
        else {
            return;
        };
        let (ud, names) = (id.is_ud(), link::names(id.space, link::plain(remote)));
        let sent = link::connect_to(&names)
            .and_then(|socket| link::send(&socket, &request).map(|()| socket))
            .and_then(|socket| self.add_link(socket, User::Id(handle)));
        let error = match sent {
            Ok(number) => {
                if let Some(id) = self.ids.get_mut(&handle) {
                    id.link = Some(number);
                }
                return;
            }
            Err(error) => error,
        };
        let is_refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
        if is_refused && Instant::now() < until {
            return self.set_timer(LISTEN_LOOK, handle, Due::Ask { request, until });
        }
        if let Some(id) = self.ids.get_mut(&handle) {
            id.state = State::RouteResolved;
        }
        match (is_refused, ud) {
            (true, true) => self.fail(handle, Kind::Unreachable, SIDR_UNSUPPORTED as i32),
            (true, false) => self.fail(handle, Kind::Rejected, REJ_INVALID_SERVICE as i32),
            (false, _) => self.fail(handle, Kind::Unreachable, -libc::ETIMEDOUT),
        }
    }

    /// Somebody wants a connection: a new id, of which the listener's program is told.
    fn requested(
        &mut self,
        listener: u32,
        number: u64,
        (from, to): (std::net::SocketAddr, std::net::SocketAddr),
        endpoint: Endpoint,
        params: Params,
    ) -> Result<(), c_int> {
        let handle = self.new_handle()?;
        let of = self.ids.get(&listener).ok_or(libc::ENOENT)?;
        let (channel, uid) = (of.channel, of.uid);
        let waiting = self.channels.get(&channel).map_or(0, |queue| {
            let is = |event: &&Event| event.owner == listener;
            queue.iter().filter(is).count()
        });
        if waiting >= BACKLOG_MAX {
            return Err(libc::ENOMEM);
        }
        let mut id = Id::new(0, channel, of.space, of.qp_type, random() as u32);
        id.local = Some(to);
        id.remote = Some(from);
        id.link = Some(number);
        attach(&mut id)?;
        let news = id.requested(endpoint, params);
        let ah = id.is_ud().then(|| reach(&id));
        self.ids.insert(handle, id);
        if let Some((_, user)) = self.links.get_mut(&number) {
            *user = User::Id(handle);
        }
        let kind = Kind::ConnectRequest;
        self.queue(
            channel,
            Event {
                uid,
                handle,
                owner: listener,
                kind,
                news,
                ah,
            },
        );
        Ok(())
    }

    fn set_timer(&mut self, after: Duration, handle: u32, what: Due) {
        let when = Instant::now() + after;
        self.timers.push(Timer { when, handle, what });
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Does what is due; how long until the next.
    fn expire(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) =
            self.timers.drain(..).partition(|timer| timer.when <= now);
        self.timers = later;
        for Timer { handle, what, .. } in due {
            match what {
                Due::TimewaitExit => self.tell(handle, Kind::TimewaitExit, News::default()),
                Due::Ask { request, until } => self.ask(handle, request, until),
            }
        }
        let next = self.timers.iter().map(|timer| timer.when).min()?;
        Some(next.saturating_duration_since(now))
    }
}

/// Gives an id the HCA of its local address.
fn attach(id: &mut Id) -> Result<(), c_int> {
    let local = id.local.ok_or(libc::EINVAL)?;
    let fabric = ffi::fabric().map_err(|error| error.errno())?;
    let hca = link::hca_of(link::plain(local).ip(), &fabric);
    id.endpoint = endpoint_of(hca)?;
    id.hca = Some(hca);
    Ok(())
}

fn endpoint_of(hca: u32) -> Result<Endpoint, c_int> {
    let fabric = ffi::fabric().map_err(|error| error.errno())?;
    let (_, port) = find_port(&fabric.memory, hca, PORT).ok_or(libc::ENODEV)?;
    Ok(Endpoint {
        lid: port.lid.get() as u16,
        gid: port.gid(0).unwrap_or_default(),
    })
}

/// How to reach the other side.
fn reach(id: &Id) -> KernAh {
    KernAh {
        dgid: id.peer.gid,
        dlid: id.peer.lid,
        port_num: PORT,
        ..KernAh::default()
    }
}

/// A channel's descriptor: the program's, which closes it by [`closed`].
fn borrow(fd: &c_int) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is that of an open channel: it is in `channels` until the program
    // closes it, and `closed` takes it out before libc closes it, under the lock with which this is
    // called.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

fn signal(channel: c_int) {
    let _ = rustix::io::write(borrow(&channel), &1u64.to_ne_bytes());
}

/// Makes an eventfd unreadable. It may be one that waits: it is read only if it is readable, and
/// nobody else reads it.
fn clear(channel: c_int) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let fd = borrow(&channel);
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)) == Ok(1) {
        let _ = rustix::io::read(fd, &mut [0u8; 8]);
    }
}

/// The thread: waits for sockets and for time.
fn serve(epoll: &Arc<OwnedFd>) {
    let mut timeout = None;
    loop {
        let mut events = Vec::with_capacity(64);
        let wait = timeout.map(|wait: Duration| rustix::event::Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        });
        let space = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(epoll, space, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let step = || {
            let mut ucma = lock();
            let ucma = ucma.as_mut()?;
            for event in &events {
                match event.data.u64() {
                    WAKE => drop(rustix::io::read(&ucma.wake, &mut [0u8; 8])),
                    number => ucma.ready(number),
                }
            }
            ucma.expire()
        };
        timeout = catch_unwind(AssertUnwindSafe(step)).unwrap_or(None);
    }
}
