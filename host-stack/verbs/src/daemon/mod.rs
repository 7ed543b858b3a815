//! The control daemon of one fabric: a process of its own, started by the first user.
//!
//! ```text
//!   Starting --socket is bound--> Serving --last user leaves--> Ended (its files are gone)
//! ```
//!
//! One thread, and one for lookups. It owns the control plane; it is the clock of requests that wait for their peer; it
//! carries packets on paths that are not clean, and to other nodes where each has a daemon of its own (`remote`); it cleans up after processes that died. A user is a
//! connection; it dies when the connection ends or its process does, whatever is first.

mod client;
mod clocks;
pub mod faults;
mod host;
mod lookup;
mod network;
mod plan;
pub mod process;
mod relays;
mod remote;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    fs::{FlockOperation, MemfdFlags, SealFlags, fcntl_add_seals, flock, ftruncate, memfd_create},
    net::{SocketFlags, accept_with},
    process::{Signal, pidfd_send_signal},
};
use snaprig_fabric::{FaultRequest, Node, Tcp, node::NODE_ENV, tcp::TCP_ENV};
use snaprig_hca::{
    Event, Hca, Host, Packet,
    control::{Control, Fabric as Setup},
    memory::{ATTENTION_WORDS, DEVICE_BYTES},
    requester_timeout_ns,
};
use snaprig_peers::packets;
use snaprig_sim::{Kind, Plan};

use crate::{
    client::map_device,
    place::{CAPTURE_ENV, PLAN_ENV, Place, faults_from_env},
};
use client::{Client, Served};
pub use clocks::Clocks;
use host::DaemonHost;
use lookup::Directory;
pub use plan::{LiveError, check as check_plan};
use remote::{Remote, Source};

/// The daemon's own slot in the table of processes.
pub const SLOT: u32 = 0;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// The shortest and the longest time after which a queue pair whose peer's process died fails.
const ORPHAN_NS: (u64, u64) = (100_000_000, 10_000_000_000);
/// How long a daemon nobody ever came to waits.
const FIRST_USER_MAX: Duration = Duration::from_secs(10);

/// The daemon.
#[derive(Debug)]
pub struct Daemon {
    place: Place,
    setup: Setup,
    listener: OwnedFd,
    /// Until its thread has it.
    lookup: Option<OwnedFd>,
    device: OwnedFd,
    doorbell: OwnedFd,
    control: Control,
    host: DaemonHost,
    clients: Vec<Client>,
    next_id: u32,
    next_number: u32,
    /// Contexts: events go in here.
    contexts: BTreeMap<u32, Context>,
    /// Which context a queue was made with.
    made: BTreeMap<(Table, u32), u32>,
    /// When to look after a queue pair.
    timers: BTreeSet<(u64, u32)>,
    /// It was told to end.
    is_over: bool,
    /// Queue pairs whose peer died: when they fail, and their number.
    orphans: BTreeSet<(u64, u32, u32)>,
}

#[derive(Debug)]
struct Context {
    process: u32,
    hca: u32,
    events: File,
}

/// Tables that events are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Table {
    Cq,
    Srq,
    Qp,
}

/// A socket that listens, in place of what a dead daemon left.
fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    packets::listen(path, BACKLOG, SocketFlags::NONBLOCK)
}

/// The daemons of other nodes.
fn start_remote(tcp: Tcp, place: &Place, setup: &Setup) -> io::Result<Remote> {
    let node = Node::from_env();
    let node = node.ok_or_else(|| {
        let why = format!("{TCP_ENV} needs {NODE_ENV}: which of the nodes this is");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })?;
    Remote::start(tcp, node, setup, place.directory.clone())
}

/// A plan that can be carried out on this fabric.
fn read_plan(file: &Path, setup: &Setup) -> Result<Plan, LiveError> {
    let plan = Plan::read(file)?;
    check_plan(&plan, setup.hcas.len())?;
    Ok(plan)
}

impl Daemon {
    /// Binds the fabric's socket and switches the fabric on. The caller's starter holds the lock.
    pub fn start(place: Place, setup: Setup) -> io::Result<Self> {
        let clocks = Clocks::SYSTEM;
        Self::start_with(place, setup, clocks, (clocks.now_ns)())
    }

    /// The same, with these clocks, and with a seed of all that is left to chance.
    pub fn start_with(place: Place, setup: Setup, clocks: Clocks, seed: u64) -> io::Result<Self> {
        place.create()?;
        let listener = listen_at(&place.socket())?;
        let lookup = listen_at(&place.lookup())?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let device = memfd_create("snaprig-device", flags)?;
        ftruncate(&device, DEVICE_BYTES)?;
        fcntl_add_seals(&device, SealFlags::SHRINK)?;
        let memory = map_device(&device)?;
        let mut control = Control::new(&memory, &setup);
        let pid = std::process::id();
        control.join(&memory, 1, pid);
        let host = DaemonHost::new(memory, clocks, seed);
        let faults = FaultRequest::Set {
            from: None,
            to: None,
            faults: faults_from_env()?,
        };
        host.network.borrow_mut().change(memory.header(), faults);
        if let Some(tcp) = Tcp::from_env()? {
            let remote = start_remote(tcp, &place, &setup)?;
            let elsewhere = remote.elsewhere(memory.header());
            let mut network = host.network.borrow_mut();
            network.divide(memory.header(), elsewhere);
            host.remote.replace(Some(remote));
        }
        if let Some(file) = env::var_os(CAPTURE_ENV).filter(|file| !file.is_empty()) {
            let mut network = host.network.borrow_mut();
            network.capture(memory.header(), Some(Path::new(&file)))?;
        }
        if let Some(file) = env::var_os(PLAN_ENV).filter(|file| !file.is_empty()) {
            let plan = read_plan(Path::new(&file), &setup).map_err(io::Error::other)?;
            let mut network = host.network.borrow_mut();
            network.begin(memory.header(), &plan, host.now_ns());
        }
        Ok(Self {
            place,
            setup,
            listener,
            lookup: Some(lookup),
            device,
            doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            control,
            host,
            clients: Vec::new(),
            next_id: 2,
            next_number: 0,
            contexts: BTreeMap::new(),
            made: BTreeMap::new(),
            timers: BTreeSet::new(),
            is_over: false,
            orphans: BTreeSet::new(),
        })
    }

    /// Serves until the last user is gone.
    pub fn run(mut self) -> io::Result<()> {
        if let Some(lookup) = self.lookup.take() {
            let doorbell = self.doorbell.try_clone()?;
            lookup::start(
                lookup,
                self.host.memory,
                self.host.directory.clone(),
                doorbell,
            )?;
        }
        let mut first = true;
        loop {
            if self.is_over {
                let lock = File::create(self.place.lock())?;
                flock(&lock, FlockOperation::LockExclusive)?;
                self.end();
                return Ok(());
            }
            if self.clients.is_empty() && !first && self.try_end()? {
                return Ok(());
            }
            let nobody_came = self.wait(first)?;
            if nobody_came && first {
                first = false;
            }
            first &= self.clients.is_empty();
            self.work();
        }
    }

    /// Ends, unless somebody is just connecting.
    fn try_end(&mut self) -> io::Result<bool> {
        let lock = File::create(self.place.lock())?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            // Somebody is about to connect: the next round sees it.
            std::thread::yield_now();
            return Ok(false);
        }
        self.accept();
        if !self.clients.is_empty() {
            return Ok(false);
        }
        if let Some(remote) = &mut *self.host.remote.borrow_mut() {
            remote.finish();
        }
        self.end();
        Ok(true)
    }

    /// Nobody finds the fabric any more, and who has it is told. The caller holds the lock.
    fn end(&self) {
        self.host.memory.header().alive.release(0);
        for file in [self.place.socket(), self.place.lookup(), self.place.log()] {
            let _ = fs::remove_file(file);
        }
        self.place.remove_listeners();
        // The lock file goes while it is held: who waits for it makes a new one, or finds no socket.
        let _ = fs::remove_file(self.place.lock());
        let _ = fs::remove_dir(&self.place.directory);
    }

    /// Waits until there is something to do, and reads what came. Whether time ran out.
    fn wait(&mut self, first: bool) -> io::Result<bool> {
        let header = self.host.memory.header();
        header.asleep.set(1);
        snaprig_hca::cell::announce();
        let timeout_ns = if self.has_attention() {
            Some(0)
        } else {
            self.next_ns()
        };
        let timeout_ns = match timeout_ns {
            None if first => Some(FIRST_USER_MAX.as_nanos() as u64),
            other => other,
        };
        let timeout = timeout_ns.map(|ns| rustix::event::Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let remote = self.host.remote.borrow();
        let elsewhere = remote.iter().flat_map(Remote::descriptors);
        let elsewhere: Vec<_> = elsewhere.collect();
        let ready = {
            let mut fds = vec![
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.doorbell, PollFlags::IN),
            ];
            for client in &self.clients {
                fds.push(PollFd::new(&client.socket, PollFlags::IN));
                fds.push(PollFd::new(
                    client.process_end.as_ref().unwrap_or(&client.socket),
                    PollFlags::IN,
                ));
            }
            fds.extend(
                elsewhere
                    .iter()
                    .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)),
            );
            match poll(&mut fds, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => return Ok(false),
                other => other?,
            };
            fds.iter()
                .map(|fd| !fd.revents().is_empty())
                .collect::<Vec<_>>()
        };
        let sources: Vec<Source> = elsewhere.into_iter().map(|(source, ..)| source).collect();
        drop(remote);
        header.asleep.set(0);
        if ready[1] {
            // Empty if two wake-ups were read as one: nothing is lost.
            let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        }
        // From the last to the first: those that end are taken out.
        for index in (0..self.clients.len()).rev() {
            let (message, ended) = (ready[2 + 2 * index], ready[3 + 2 * index]);
            let ended = ended && self.clients[index].process_end.is_some();
            let leaves = match message.then(|| self.serve(index)) {
                None | Some(Served::Stays) => ended,
                Some(Served::Ends) => true,
                Some(Served::IsTaken) => false,
            };
            if leaves {
                self.leave(index);
            }
        }
        if let Some(remote) = &mut *self.host.remote.borrow_mut() {
            let ready = ready[ready.len() - sources.len()..].iter();
            for (source, _) in sources.iter().zip(ready).filter(|(_, ready)| **ready) {
                remote.ready(*source, self.host.now_ns());
            }
        }
        if ready[0] {
            self.accept();
        }
        Ok(!ready.contains(&true))
    }

    fn has_attention(&self) -> bool {
        let header = self.host.memory.header();
        header
            .attention
            .iter()
            .chain(&header.srq_attention)
            .any(|word| word.get() != 0)
    }

    /// Nanoseconds until something is due.
    fn next_ns(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(due, _)| *due);
        let orphan = self.orphans.first().map(|(due, ..)| *due);
        let packet = self.host.network.borrow().next_ns();
        let remote = self.host.remote.borrow();
        let remote = remote.as_ref().and_then(Remote::next_ns);
        let due = [timer, orphan, packet, remote]
            .into_iter()
            .flatten()
            .min()?;
        Some(due.saturating_sub(self.host.now_ns()))
    }

    fn accept(&mut self) {
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC) {
            match Client::new(socket) {
                Ok(client) => self.clients.push(client),
                Err(error) => tracing::warn!(%error, "a user could not be taken"),
            }
        }
    }

    /// Does what is due.
    fn work(&mut self) {
        self.take_attention();
        let now = self.host.now_ns();
        self.carry_out(now);
        let later = self.timers.split_off(&(now + 1, 0));
        for (_, qp) in std::mem::replace(&mut self.timers, later) {
            self.look_after(qp);
        }
        while let Some(&(due, qp, number)) = self.orphans.first().filter(|(due, ..)| *due <= now) {
            self.orphans.remove(&(due, qp, number));
            self.disown(qp, number);
        }
        while let Some(packet) = self.came() {
            self.hca().deliver(&packet);
            self.settle();
        }
        loop {
            let packet = self.host.network.borrow_mut().arrived(self.host.now_ns());
            let Some(packet) = packet else { break };
            if self.is_for_here(&packet) {
                self.hca().deliver(&packet);
                self.settle();
            }
        }
        self.host.network.borrow_mut().flush();
        self.settle();
        if let Some(remote) = &mut *self.host.remote.borrow_mut() {
            remote.work(self.host.now_ns());
        }
    }

    /// The next packet that has come from another node.
    fn came(&self) -> Option<Packet<'static>> {
        let mut remote = self.host.remote.borrow_mut();
        remote.as_mut()?.take(self.host.memory.header())
    }

    /// Whether a packet is for somebody here; if it is for somebody elsewhere, it goes there.
    fn is_for_here(&self, packet: &Packet<'_>) -> bool {
        let mut remote = self.host.remote.borrow_mut();
        let remote = remote.as_mut();
        remote.is_none_or(|remote| remote.send(self.host.memory.header(), packet))
    }

    /// Does what the plan says is to happen by now.
    fn carry_out(&mut self, now_ns: u64) {
        loop {
            let due = self.host.network.borrow_mut().due_fault(now_ns);
            let Some(kind) = due else { return };
            match &kind {
                Kind::Crash(name) => self.signal(name, Signal::KILL),
                Kind::Hang(name) => self.signal(name, Signal::STOP),
                kind => {
                    let header = self.host.memory.header();
                    let events = self.host.network.borrow_mut().apply(header, kind);
                    self.host.raised.borrow_mut().extend(events);
                    self.settle();
                }
            }
        }
    }

    /// Sends a signal to the process that a plan calls so, if there is one: they are counted from 1, by the first HCA that
    /// they have open, and then by their numbers.
    fn signal(&self, name: &str, signal: Signal) {
        let hca_of = |client: &Client| {
            let contexts = self.contexts.values();
            let own = contexts.filter(|context| Some(context.process) == client.process);
            own.map(|context| context.hca).min()
        };
        let open = self.clients.iter().filter_map(|client| {
            let place = (hca_of(client)?, client.pid.as_raw_nonzero());
            Some((place, client.process_end.as_ref()?))
        });
        let open: BTreeMap<_, _> = open.collect();
        let victim = plan::process(name).and_then(|index| open.into_values().nth(index));
        // It may have ended by itself.
        if let Some(Err(error)) = victim.map(|victim| pidfd_send_signal(victim, signal)) {
            tracing::warn!(%error, "{name} could not be signalled");
        }
    }

    fn hca(&self) -> Hca<'_, DaemonHost> {
        Hca::new(&self.host.memory, &self.host, SLOT)
    }

    fn take_attention(&mut self) {
        for word in 0..ATTENTION_WORDS {
            let header = self.host.memory.header();
            if header.attention[word].get() == 0 {
                continue;
            }
            let bits = header.attention[word].swap(0);
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                self.look_after(word as u32 * 64 + bit);
            }
        }
        for word in 0..self.host.memory.header().srq_attention.len() {
            let bits = self.host.memory.header().srq_attention[word].swap(0);
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                self.control
                    .receives_shared(&self.hca(), word as u32 * 64 + bit);
            }
        }
        self.settle();
    }

    /// Runs a queue pair's requester, and notes when it wants to be run again.
    fn look_after(&mut self, qp: u32) {
        let hca = self.hca();
        let Some(entry) = hca.memory.qp(qp) else {
            return;
        };
        if entry.flushes.get() != 0 {
            hca.flush(qp);
        }
        hca.run(qp);
        let due = entry.requester.deadline_ns.get();
        if due != 0 && entry.number.get() != 0 {
            self.timers.insert((due, qp));
        }
    }

    /// Hands out what the machines left: events, notifications, queue pairs to look after.
    fn settle(&mut self) {
        loop {
            let mut raised = self.host.raised.take();
            raised.append(&mut self.directory().raised);
            let notified = self.host.notified.take();
            let attention = self.host.attention.take();
            if raised.is_empty() && notified.is_empty() && attention.is_empty() {
                return;
            }
            for (event, element) in raised {
                self.hand_out(event, element);
            }
            for cq in notified {
                self.notify(cq);
            }
            for qp in attention {
                let due = self
                    .host
                    .memory
                    .qp(qp)
                    .map_or(0, |qp| qp.requester.deadline_ns.get());
                if due != 0 {
                    self.timers.insert((due, qp));
                } else {
                    self.look_after(qp);
                }
            }
        }
    }

    fn directory(&self) -> MutexGuard<'_, Directory> {
        let directory = self.host.directory.lock();
        directory.unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, cq: u32) {
        if let Some(file) = self.directory().channel_of(&self.host.memory, cq) {
            // Full: the program does not take its events.
            let _ = rustix::io::write(file, &u64::from(cq).to_ne_bytes());
        }
    }

    /// Gives an event to the context it is for.
    fn hand_out(&self, event: Event, element: u32) {
        use crate::protocol::Raised;
        let table = match event {
            Event::CqError => Table::Cq,
            Event::SrqLimit => Table::Srq,
            Event::PortActive | Event::PortError | Event::DeviceFatal | Event::GidChange => {
                return self.tell_all(event, element);
            }
            _ => Table::Qp,
        };
        let context = self
            .made
            .get(&(table, element))
            .and_then(|context| self.contexts.get(context));
        if let Some(context) = context {
            let raised = Raised {
                event: event as u32,
                element,
            };
            // Full: the program does not take its events.
            let _ = rustix::io::write(&context.events, &raised.bytes());
        }
    }

    /// Tells every context of a port's HCA.
    fn tell_all(&self, event: Event, port: u32) {
        use crate::protocol::Raised;
        let Some(port) = self.host.memory.header().ports.get(port as usize) else {
            return;
        };
        let raised = Raised {
            event: event as u32,
            element: port.number.get(),
        };
        for context in self
            .contexts
            .values()
            .filter(|context| context.hca == port.hca.get())
        {
            let _ = rustix::io::write(&context.events, &raised.bytes());
        }
    }

    /// A queue pair whose peer is gone for good fails.
    fn disown(&mut self, qp: u32, number: u32) {
        let hca = self.hca();
        let Some(entry) = hca.memory.qp(qp) else {
            return;
        };
        let peer_is_back = || {
            let (_, port) = hca.memory.port_of_lid(entry.dest_lid.get() as u16)?;
            hca.memory.qp_numbered(entry.dest_qp.get(), port.hca.get())
        };
        if entry.number.get() == number && entry.state().receives() && peer_is_back().is_none() {
            hca.disconnect(qp);
        }
        self.settle();
    }

    /// A user is gone: so is all it had.
    fn leave(&mut self, index: usize) {
        let client = self.clients.remove(index);
        let Some(process) = client.process else {
            return;
        };
        self.directory().forget(process);
        self.contexts
            .retain(|_, context| context.process != process);
        let hca = Hca::new(&self.host.memory, &self.host, SLOT);
        let peers = self.control.gone(&hca, process);
        hca.settle();
        let now = self.host.now_ns();
        for peer in peers {
            self.look_after(peer);
            if let Some(qp) = self.host.memory.qp(peer) {
                let wait = requester_timeout_ns(qp).clamp(ORPHAN_NS.0, ORPHAN_NS.1);
                self.orphans.insert((now + wait, peer, qp.number.get()));
            }
        }
        let contexts = &self.contexts;
        self.made
            .retain(|_, context| contexts.contains_key(context));
        self.settle();
    }

    fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    fn device_fds(&self) -> [std::os::fd::BorrowedFd<'_>; 2] {
        [self.device.as_fd(), self.doorbell.as_fd()]
    }
}
