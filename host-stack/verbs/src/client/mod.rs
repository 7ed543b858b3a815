//! A process's share of a fabric.
//!
//! Joining connects to the daemon (and starts it if need be), maps device memory, and offers the
//! process's pool. From then on data moves without the daemon; [`Fabric`] is the [`Host`] of the
//! HCA's machines in this process.

mod ordered;
pub mod peers;

use std::{
    collections::HashMap,
    ffi::c_void,
    fmt::Display,
    fs::File,
    io, ops,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::ReadWriteFlags,
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
};
use snaprig_fabric::Node;
use snaprig_hca::{
    Atomic, Event, Hca, Host, Memory, Packet, Path, Segment,
    control::{Errno, Fabric as Setup, Reply, Request},
    memory::{CQS_MAX, DEVICE_BYTES, MAGIC, QPS_MAX},
    model::ModelName,
};

use snaprig_pages::{
    pages::Range,
    pool::{Moves, Pool, PoolError},
};

use crate::{
    place::Place,
    protocol::{Answer, Ask, RAISED_BYTES, Raised, VERSION},
    socket, start,
};
use peers::{Peers, Pools};

/// How long the daemon has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Why a process cannot join a fabric, or was refused something.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The daemon cannot be started or reached.
    #[error("fabric {name}: {why}")]
    Join {
        /// The fabric.
        name: String,
        /// What went wrong, and what to do.
        why: String,
    },
    /// The socket failed.
    #[error("the fabric's control daemon is gone: {0}")]
    Gone(#[from] io::Error),
    /// The control plane said no.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Refused(Errno),
}

impl FabricError {
    /// As an errno value.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Join { .. } => libc::ENODEV,
            Self::Gone(_) => libc::EIO,
            Self::Refused(errno) => *errno,
        }
    }
}

/// A process's share of a fabric.
#[derive(Debug)]
pub struct Fabric {
    /// Its slot in the table of processes.
    pub process: u32,
    /// Models of the HCAs.
    pub hcas: Vec<ModelName>,
    /// Those that the daemon has: where nodes have daemons of their own, the others are elsewhere.
    here: ops::Range<u32>,
    /// The node that this process is on, if it is on one.
    pub node: Option<Node>,
    /// Device memory.
    pub memory: Memory,
    /// Registered memory of this process.
    pool: Arc<Pool>,
    peers: Peers,
    control: Mutex<OwnedFd>,
    watch: OwnedFd,
    /// For what is asked while locks are held: see [`crate::daemon`].
    lookup: Mutex<OwnedFd>,
    doorbell: OwnedFd,
    /// Where completion events go in, by the channel's number.
    channels: RwLock<HashMap<u32, Arc<File>>>,
    /// Where asynchronous events go in, by the context's number.
    contexts: Mutex<HashMap<u32, File>>,
    /// Its memory is nobody's any more: see [`Self::retire`].
    is_retired: AtomicBool,
}

/// What a fabric's daemon is that does not answer as ours does.
const ANOTHER_VERSION: &str =
    "another version of snaprig runs it: end its programs, or take another name";

/// How often a message that may be lost looks for a receive, and how long it waits in between once it has let others run so often:
/// some 4 s in all, in which a receiver has a turn on a busy machine, too. With six busy loops on two processors, one that could run
/// had none for 800 ms.
const LOOKS: u32 = 26_000;
const YIELDS: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);

impl Fabric {
    /// Joins a fabric; starts it as `setup` says if nobody has. `pool`: of one that this process was in before.
    pub fn join(
        place: &Place,
        setup: &Setup,
        pool: Option<Arc<Pool>>,
    ) -> Result<Arc<Self>, FabricError> {
        let failed = |why: String| FabricError::Join {
            name: place.name.clone(),
            why,
        };
        let socket =
            start::connect(place, setup, &Vec::new()).map_err(|e| failed(e.to_string()))?;
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Recv,
            Some(ANSWER_MAX),
        )
        .map_err(io::Error::from)?;
        let another = |why: &dyn Display| failed(format!("{ANOTHER_VERSION} ({why})"));
        let lookup = start::try_connect(&place.lookup()).map_err(|e| another(&e))?;
        let pool = match pool {
            Some(pool) => pool,
            None => Arc::new(Pool::new(Moves::Plain, peers::is_window)?),
        };
        // Where /proc is hidden, peers do without.
        let all_memory = open_memory();
        let memory = all_memory.as_ref().ok().map(AsFd::as_fd);
        let fds: Vec<_> = std::iter::once(pool.fd()).chain(memory).collect();
        socket::send(&socket, &Ask::Hello { version: VERSION }, &fds)?;
        let (answer, fds) = socket::receive::<Answer>(&socket)?.ok_or_else(|| {
            another(&"it hung up; if it has ended, its log beside its socket says why")
        })?;
        let Answer::Welcome {
            process,
            hcas,
            here: (first, end),
            pid_namespace,
        } = answer
        else {
            return Err(another(&format!("{answer:?}")));
        };
        let [device, doorbell]: [OwnedFd; 2] = fds
            .try_into()
            .map_err(|_| failed("the daemon sent no device memory".into()))?;
        let memory = map_device(&device)?;
        if memory.header().magic.acquire() != MAGIC {
            return Err(failed(ANOTHER_VERSION.into()));
        }
        // Peers without our pages mapped read them by process_vm_readv(2); prctl(2), Yama.
        // SAFETY: prctl(2) with PR_SET_PTRACER takes numbers, and sets an attribute of this
        // process: no memory of it is read or written.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
        Ok(Arc::new(Self {
            process,
            hcas,
            here: first..end,
            node: Node::from_env(),
            memory,
            pool,
            peers: Peers::of_daemon_in(pid_namespace),
            watch: socket.try_clone()?,
            control: Mutex::new(socket),
            lookup: Mutex::new(lookup),
            doorbell,
            channels: RwLock::default(),
            contexts: Mutex::default(),
            is_retired: AtomicBool::new(false),
        }))
    }

    /// Asks the daemon.
    pub fn ask(&self, ask: &Ask) -> Result<(Answer, Vec<OwnedFd>), FabricError> {
        ask_on(&self.control, ask)
    }

    /// Asks the control plane.
    pub fn request(&self, context: u32, request: Request) -> Result<Reply, FabricError> {
        match self.ask(&Ask::Control { context, request })? {
            (Answer::Done(reply), _) => reply.map_err(FabricError::Refused),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    /// Opens an HCA: the context's number, and where its events come out.
    pub fn open_context(&self, hca: u32) -> Result<(u32, OwnedFd), FabricError> {
        let (context, into, out) = self.open_pipe(&Ask::Open { hca })?;
        if let Ok(mut contexts) = self.contexts.lock() {
            contexts.insert(context, into);
        }
        Ok((context, out))
    }

    /// Closes a context.
    pub fn close_context(&self, context: u32) -> Result<(), FabricError> {
        if let Ok(mut contexts) = self.contexts.lock() {
            contexts.remove(&context);
        }
        self.ask(&Ask::Close { context }).map(drop)
    }

    /// Takes events of a context back that nobody has read: `out` is where they come out.
    pub fn drop_events(&self, context: u32, out: BorrowedFd<'_>, is_gone: impl Fn(Raised) -> bool) {
        if let Some(into) = self
            .contexts
            .lock()
            .ok()
            .as_ref()
            .and_then(|c| c.get(&context))
        {
            purge(out, into, |record| is_gone(Raised::from_bytes(record)));
        }
    }

    /// Takes completion events of a queue back that nobody has read.
    pub fn drop_completion_events(&self, channel: u32, out: BorrowedFd<'_>, cq: u32) {
        let into = self
            .channels
            .read()
            .ok()
            .and_then(|c| c.get(&channel).cloned());
        if let Some(into) = into {
            purge(out, &into, |record| {
                u64::from_ne_bytes(record) == u64::from(cq)
            });
        }
    }

    /// Asks for something with a number that has a pipe: in, out.
    fn open_pipe(&self, ask: &Ask) -> Result<(u32, File, OwnedFd), FabricError> {
        let (answer, fds) = self.ask(ask)?;
        match (answer, <[OwnedFd; 2]>::try_from(fds)) {
            (Answer::Made(number), Ok([out, into])) => Ok((number, into.into(), out)),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    /// The machines, in this process.
    pub fn hca(&self) -> Hca<'_, Self> {
        Hca::new(&self.memory, self, self.process)
    }

    /// The daemon's end can be awaited on it: see [`wait_for_end`].
    pub fn watch(&self) -> io::Result<OwnedFd> {
        self.watch.try_clone()
    }

    /// The daemon is gone: every queue pair of this process fails.
    pub fn abandon(&self) {
        self.memory.header().alive.release(0);
        let fatal = Raised {
            event: Event::DeviceFatal as u32,
            element: 0,
        };
        for into in self
            .contexts
            .lock()
            .iter()
            .flat_map(|contexts| contexts.values())
        {
            // Full: the program does not take its events.
            let _ = rustix::io::write(into, &fatal.bytes());
        }
        let hca = self.hca();
        for place in 0..QPS_MAX {
            let Some(qp) = self.memory.qp(place) else {
                continue;
            };
            if qp.number.acquire() != 0 && qp.process.get() == self.process {
                hca.disconnect(place);
            }
        }
        // A peer that was to tell may have asked the daemon where, in vain.
        for place in 0..CQS_MAX {
            let Some(cq) = self.memory.cq(place) else {
                continue;
            };
            if cq.used.acquire() != 0 && cq.process.get() == self.process {
                hca.tell_again(place, cq);
            }
        }
    }

    /// What a process has of a fabric that cannot be a part of its checkpoint: descriptors, and memory.
    pub fn owned(
        &self,
        mut descriptor: impl FnMut(BorrowedFd<'_>),
        mut region: impl FnMut(*mut c_void, usize),
    ) {
        for socket in [&self.control, &self.lookup] {
            if let Ok(socket) = socket.lock() {
                descriptor(socket.as_fd());
            }
        }
        descriptor(self.watch.as_fd());
        descriptor(self.doorbell.as_fd());
        for channel in self.channels.read().iter().flat_map(|all| all.values()) {
            descriptor(channel.as_fd());
        }
        for context in self.contexts.lock().iter().flat_map(|all| all.values()) {
            descriptor(context.as_fd());
        }
        region(self.memory.base().as_ptr().cast(), DEVICE_BYTES as usize);
        for window in self.peers.windows() {
            region(
                ptr::with_exposed_provenance_mut(window),
                peers::WINDOW as usize,
            );
        }
    }

    /// The process was restarted, and all of [`Self::owned`] is gone. What the program had below can still be destroyed: it
    /// finds an empty device, and no daemon. Registered memory is where it was, in the pool of the next one: so none of it is
    /// copied, and where it is that of another process until a move is decided, none of it is changed.
    pub fn retire(&self) -> Arc<Pool> {
        self.pool.begin_anew();
        let (at, bytes) = (self.memory.base().as_ptr().cast(), DEVICE_BYTES as usize);
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: this is where device memory was, of which nothing is left. Zeroes are values of all of its cells.
        if let Err(error) = unsafe { mmap_anonymous(at, bytes, both, flags) } {
            tracing::error!(%error, "what was open in another life cannot be closed");
            return self.pool.clone();
        }
        self.is_retired.store(true, Ordering::Release);
        self.peers.forget();
        self.pool.clone()
    }

    /// Registers memory: whether it is in the pool.
    pub fn register(&self, address: u64, length: u64, writes: bool) -> Result<bool, PoolError> {
        self.pool.register(address, length, writes)
    }

    /// Gives back memory that is in the pool; that of another life is the next one's.
    pub fn deregister(&self, address: u64, length: u64) {
        if !self.is_retired.load(Ordering::Acquire) {
            self.pool.deregister(address, length);
        }
    }

    /// The HCAs that programs see: those of their node; all that the daemon has, on none.
    pub fn visible(&self) -> ops::Range<u32> {
        let ops::Range { start, end } = self.here;
        let of_node = |node: Node| node.hcas(self.hcas.len() as u32);
        let seen = self.node.map_or(start..end, of_node);
        seen.start.clamp(start, end)..seen.end.clamp(start, end)
    }

    /// Where this process has registered pages that it shares with its peers.
    pub fn shared_pages(&self) -> Vec<Range> {
        if self.pool.lock().all().next().is_none() {
            return Vec::new();
        }
        self.pool.shared().unwrap_or_else(|error| {
            tracing::error!(%error, "a child will share registered pages with its parent");
            Vec::new()
        })
    }

    fn descriptor(&self, ask: &Ask) -> io::Result<OwnedFd> {
        match ask_on(&self.lookup, ask) {
            Ok((Answer::Here, mut fds)) if fds.len() == 1 => Ok(fds.remove(0)),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Where events of a queue's channel go in.
    fn channel_of(&self, cq: u32, channel: u32) -> Option<Arc<File>> {
        if let Some(file) = self.channels.read().ok()?.get(&channel) {
            return Some(file.clone());
        }
        let file = Arc::new(File::from(self.descriptor(&Ask::ChannelOf { cq }).ok()?));
        self.channels.write().ok()?.insert(channel, file.clone());
        Some(file)
    }

    /// Opens a completion channel: its number, and where its events come out.
    pub fn open_channel(&self) -> Result<(u32, OwnedFd), FabricError> {
        let (channel, into, out) = self.open_pipe(&Ask::OpenChannel)?;
        if let Ok(mut channels) = self.channels.write() {
            channels.insert(channel, Arc::new(into));
        }
        Ok((channel, out))
    }

    /// Closes a completion channel.
    pub fn close_channel(&self, channel: u32) -> Result<(), FabricError> {
        if let Ok(mut channels) = self.channels.write() {
            channels.remove(&channel);
        }
        self.ask(&Ask::CloseChannel { channel }).map(drop)
    }

    fn wake_daemon(&self) {
        let header = self.memory.header();
        snaprig_hca::cell::announce();
        if header.asleep.swap(0) != 0 {
            // Fails only when 2^64 - 2 wake-ups wait already.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // Ends the daemon's view of this process even if a child has the descriptor too.
        let _ = rustix::net::shutdown(&self.watch, rustix::net::Shutdown::Both);
        if self.is_retired.load(Ordering::Acquire) {
            let at = self.memory.base().as_ptr().cast();
            // SAFETY: this was the last of those who have the fabric, and with it device memory: whoever is in one of its machines
            // has it, too.
            let _ = unsafe { munmap(at, DEVICE_BYTES as usize) };
        }
    }
}

fn ask_on(socket: &Mutex<OwnedFd>, ask: &Ask) -> Result<(Answer, Vec<OwnedFd>), FabricError> {
    let socket = socket
        .lock()
        .map_err(|_| io::Error::other("a thread panicked"))?;
    socket::send(&*socket, ask, &[])?;
    let answer = socket::receive(&*socket).inspect_err(|_| {
        // An answer that comes too late would be taken for that to another question.
        let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
    })?;
    match answer.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))? {
        (Answer::Refused(errno), _) => Err(FabricError::Refused(errno)),
        other => Ok(other),
    }
}

/// Takes records out of a pipe that are about something that is gone; the others stay.
fn purge(out: BorrowedFd<'_>, into: &File, is_gone: impl Fn([u8; RAISED_BYTES]) -> bool) {
    let mut kept = Vec::new();
    let mut record = [0; RAISED_BYTES];
    loop {
        let mut buffer = [io::IoSliceMut::new(&mut record)];
        // Whatever the program made of the descriptor, this does not wait. preadv2(2)
        let read = rustix::io::preadv2(out, &mut buffer, u64::MAX, ReadWriteFlags::NOWAIT);
        if read != Ok(RAISED_BYTES) {
            break;
        }
        if !is_gone(record) {
            kept.push(record);
        }
    }
    for record in kept {
        // There was room for it a moment ago.
        let _ = rustix::io::write(into, &record);
    }
}

/// Waits until the daemon of a connection is gone, whatever the reason.
pub fn wait_for_end(watch: &OwnedFd) {
    loop {
        let mut fds = [PollFd::new(watch, PollFlags::RDHUP)];
        match poll(&mut fds, None) {
            Ok(_) if fds[0].revents().is_empty() => {}
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// All memory of this process.
fn open_memory() -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
}

/// Maps device memory.
pub(crate) fn map_device(fd: impl AsFd) -> io::Result<Memory> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: the address is null and the flags have no MAP_FIXED, so that the kernel chooses a
    // place where nothing else is: no memory that is in use is replaced.
    let base = unsafe { mmap(ptr::null_mut(), DEVICE_BYTES as usize, both, flags, fd, 0) }?;
    let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: `base` is a mapping of so many bytes that was just made, and that is never unmapped:
    // it lives as long as the process. The file is sealed against shrinking, so that every page of
    // it stays there.
    unsafe { Memory::new(base, DEVICE_BYTES as usize) }
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Nanoseconds of the clock that all processes share.
pub(crate) fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Pools for Fabric {
    fn pool_of(&self, process: u32) -> io::Result<File> {
        if process == self.process {
            return Ok(self.pool.fd().try_clone_to_owned()?.into());
        }
        self.descriptor(&Ask::PoolOf { process }).map(File::from)
    }

    fn memory_of(&self, process: u32) -> io::Result<File> {
        if process == self.process {
            return open_memory();
        }
        self.descriptor(&Ask::MemoryOf { process }).map(File::from)
    }
}

impl Host for Fabric {
    fn copy(&self, from: Segment, to: Segment) -> bool {
        self.peers.copy(&self.memory, self, from, to)
    }

    fn read(&self, from: Segment, into: &mut [u8]) -> bool {
        self.peers.read(&self.memory, self, from, into)
    }

    fn write(&self, bytes: &[u8], to: Segment) -> bool {
        self.peers.write(&self.memory, self, bytes, to)
    }

    fn atomic(&self, at: Segment, operation: Atomic) -> Option<u64> {
        self.peers
            .atomic(&self.memory, self, (self.process, at), operation)
    }

    fn notify(&self, cq: u32) {
        let Some(entry) = self.memory.cq(cq) else {
            return;
        };
        let Some(channel) = entry.channel.get().checked_sub(1) else {
            return;
        };
        if let Some(file) = self.channel_of(cq, channel) {
            // Full: the program does not take its events, and has thousands to take.
            let _ = rustix::io::write(&*file, &u64::from(cq).to_ne_bytes());
        }
    }

    fn event(&self, event: Event, element: u32) {
        if let Ok(socket) = self.lookup.lock() {
            let event = event as u32;
            // A daemon that is gone has its own event.
            let _ = socket::send(&*socket, &Ask::Raise { event, element }, &[]);
        }
    }

    fn is_patient(&self, looked: u32) -> bool {
        match looked {
            ..YIELDS => thread::yield_now(),
            YIELDS..LOOKS => thread::sleep(BETWEEN_LOOKS),
            _ => return false,
        }
        true
    }

    fn attention(&self, qp: u32) {
        let header = self.memory.header();
        if let Some(word) = header.attention.get(qp as usize / 64) {
            word.or(1 << (qp % 64));
            self.wake_daemon();
        }
    }

    fn srq_attention(&self, srq: u32) {
        let header = self.memory.header();
        if let Some(word) = header.srq_attention.get(srq as usize / 64) {
            word.or(1 << (srq % 64));
            self.wake_daemon();
        }
    }

    fn path(&self, from_port: u32, to_port: u32) -> Path {
        if self.memory.header().is_clean(from_port, to_port) {
            Path::Whole
        } else {
            Path::Elsewhere
        }
    }

    fn transmit(&self, _packet: &Packet<'_>) {
        // Only the daemon goes packet by packet.
    }

    fn is_dead(&self, process: u32) -> bool {
        self.peers.is_gone(&self.memory, self, process)
    }

    fn now_ns(&self) -> u64 {
        now_ns()
    }
}
