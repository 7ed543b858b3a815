//! SCIF endpoints for host programs: blocking calls over a socket to the host node.
//!
//! Two threads may use one endpoint at once (one receives, one sends): replies are told apart by
//! number, and whoever waits first reads for all.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
    net::SocketFlags,
};
use serde::{Serialize, de::DeserializeOwned};
use snaprig_peers::packets;
use snaprig_scif_lanes::host::{OnHost, Place, Program};
use snaprig_wire::{
    frame::{self, Incoming},
    scif::{Bell, NodeId, PortId},
};

use crate::{
    checkpoint::{self, RigDescriptor, RigMemory},
    copying::{
        self, Connection,
        lease::{Lease, PROT_READ, PROT_WRITE},
        peers::{self, Peers},
    },
    host::{
        cards::CardState,
        protocol::{Answer, Call, MESSAGE_MAX, Reply, Request, SEND_MAX},
    },
};

/// Name of the host node's socket in a rig's directory.
pub const SOCKET: &str = "scif.sock";

/// A call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScifError {
    /// Which.
    pub call: &'static str,
    /// As the manual page has it.
    pub errno: i32,
}

impl fmt::Display for ScifError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            self.call,
            io::Error::from_raw_os_error(self.errno)
        )
    }
}

impl std::error::Error for ScifError {}

/// The rig that the environment names.
pub fn rig_from_environment() -> Option<PathBuf> {
    std::env::var_os("SNAPRIG_RIG").map(PathBuf::from)
}

/// One endpoint.
pub struct Endpoint {
    _leads: RigDescriptor,
    socket: OwnedFd,
    next: AtomicU64,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// Messages of the protocols above SCIF. Whoever has them is the one who receives.
    incoming: Mutex<Incoming>,
    /// As ready as the endpoint.
    descriptor: Option<(RigDescriptor, Arc<OwnedFd>)>,
    /// None: there are none.
    lanes: OnceLock<Option<MappedLanes>>,
    /// None: there are none.
    leased: OnceLock<Option<Leased>>,
    /// One message after the other.
    sending: Mutex<()>,
    receiving: Mutex<()>,
}

/// Lanes, and what of them is the rig's.
struct MappedLanes {
    _leads: Vec<RigDescriptor>,
    memory: RigMemory,
    end: OnHost,
}

/// Leases of the peer's windows, and the memory that these are in.
struct Leased {
    _memory: RigMemory,
    lease: Lease,
    peers: RwLock<Peers<RigMemory>>,
}

#[derive(Default)]
struct Inbox {
    replies: BTreeMap<u64, (Reply, Vec<OwnedFd>)>,
    /// A thread is reading for all, else this is what it reads into.
    reading: bool,
    room: Vec<u8>,
    /// Threads that wait for it.
    waiting: usize,
    closed: bool,
}

impl Endpoint {
    /// scif_open, on the node of the rig in this directory.
    pub fn open(rig: &Path) -> Result<Self, ScifError> {
        let rig = checkpoint::place(rig);
        let socket = packets::connect(&rig.join(SOCKET), SocketFlags::empty());
        let socket = socket.map_err(|error| ScifError {
            call: "scif_open",
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        });
        Self::over(socket?).willing()
    }

    fn over(socket: OwnedFd) -> Self {
        Self {
            _leads: RigDescriptor::new(&socket),
            socket,
            next: AtomicU64::new(1),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            incoming: Mutex::default(),
            descriptor: None,
            lanes: OnceLock::new(),
            leased: OnceLock::new(),
            sending: Mutex::default(),
            receiving: Mutex::default(),
        }
    }

    /// Takes lanes on connections that are made or accepted by it, if their other ends do.
    fn willing(mut self) -> Result<Self, ScifError> {
        let (_, fds) = self.request("scif_open", Call::OnlyDescriptor, None)?;
        let descriptor = fds.into_iter().next();
        self.descriptor = descriptor.map(|fd| (RigDescriptor::new(&fd), Arc::new(fd)));
        Ok(self)
    }

    /// Its lanes, if it is connected and has any.
    fn lanes(&self, call: &'static str) -> Result<Option<&OnHost>, ScifError> {
        if self.lanes.get().is_none() {
            match self.request(call, Call::Direct, None) {
                Ok((Answer::Direct(place), fds)) => {
                    let mapped = self.map_lanes(place, fds);
                    let mapped = mapped.map_err(|errno| ScifError { call, errno })?;
                    // Another thread has the same.
                    self.lanes.get_or_init(|| Some(mapped));
                }
                Ok(_) => drop(self.lanes.set(None)),
                // Whatever it is, the call itself says so.
                Err(_) => return Ok(None),
            }
        }
        let lanes = self.lanes.get().and_then(Option::as_ref);
        Ok(lanes.map(|lanes| &lanes.end))
    }

    fn map_lanes(&self, place: Place, fds: Vec<OwnedFd>) -> Result<MappedLanes, i32> {
        let (_, descriptor) = self.descriptor.as_ref().ok_or(libc::EPROTO)?;
        let end = OnHost::new(place, descriptor.clone(), fds)?;
        Ok(MappedLanes {
            _leads: end.files().map(|file| RigDescriptor::new(&file)).collect(),
            memory: RigMemory::new(end.range()),
            end,
        })
    }

    /// scif_bind: port 0 takes a free one.
    pub fn bind(&self, port: u16) -> Result<u16, ScifError> {
        match self.call("scif_bind", Call::Bind(port))? {
            Answer::Port(port) => Ok(port),
            _ => Err(protocol("scif_bind")),
        }
    }

    /// scif_listen.
    pub fn listen(&self, backlog: u32) -> Result<(), ScifError> {
        self.call("scif_listen", Call::Listen(backlog)).map(|_| ())
    }

    /// scif_connect; returns the own port.
    pub fn connect(&self, peer: PortId) -> Result<u16, ScifError> {
        match self.call("scif_connect", Call::Connect(peer))? {
            Answer::Port(port) => Ok(port),
            _ => Err(protocol("scif_connect")),
        }
    }

    /// Maps the lanes of its connection, if that has any, as the first message would. EMFILE: they take descriptors, of which
    /// this process may have no more; with more it can be asked again.
    pub fn prepare(&self) -> Result<(), ScifError> {
        self.lanes("scif_connect").map(drop)
    }

    /// scif_accept: waits for a connection.
    pub fn accept(&self) -> Result<(Self, PortId), ScifError> {
        let (answer, fds) = self.request("scif_accept", Call::Accept, None)?;
        match (answer, fds.into_iter().next()) {
            (Answer::Accepted(peer), Some(socket)) => Ok((Self::over(socket).willing()?, peer)),
            _ => Err(protocol("scif_accept")),
        }
    }

    /// scif_send, all of it.
    pub fn send(&self, mut data: &[u8]) -> Result<(), ScifError> {
        if let Some(lanes) = self.lanes("scif_send")? {
            let _turn = lock(&self.sending);
            while !data.is_empty() {
                let sent = lanes.send(self, data.as_ptr().expose_provenance(), data.len(), true);
                data = &data[uninterrupted("scif_send", sent)?..];
            }
            return Ok(());
        }
        for part in data.chunks(SEND_MAX) {
            self.call("scif_send", Call::Send(part.to_vec()))?;
        }
        Ok(())
    }

    /// scif_recv: at least one byte.
    pub fn recv(&self, to: &mut [u8]) -> Result<usize, ScifError> {
        if let Some(lanes) = self.lanes("scif_recv")? {
            let _turn = lock(&self.receiving);
            loop {
                let at = to.as_mut_ptr().expose_provenance();
                let received = lanes.recv(self, at, to.len(), 1.min(to.len()));
                match uninterrupted("scif_recv", received)? {
                    0 if !to.is_empty() => {}
                    count => return Ok(count),
                }
            }
        }
        let max = to.len().min(SEND_MAX) as u32;
        match self.call("scif_recv", Call::Recv(max))? {
            Answer::Bytes(bytes) if bytes.len() <= to.len() => {
                to[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            _ => Err(protocol("scif_recv")),
        }
    }

    /// Sends one message of the protocols above SCIF, behind its length.
    pub fn send_message<T: Serialize>(&self, message: &T) -> Result<(), ScifError> {
        self.send(&frame::encode_framed(message))
    }

    /// Receives one message of the protocols above SCIF.
    pub fn receive_message<T: DeserializeOwned>(&self) -> Result<T, ScifError> {
        let incoming = self.incoming.lock();
        let mut incoming = incoming.unwrap_or_else(PoisonError::into_inner);
        let message = incoming.next(|to| self.recv(to))?;
        message.map_err(|_| protocol("scif_recv"))
    }

    /// The same, of a connection that has lanes: a message that is there, or comes within the time that receiving spins; none,
    /// if it does not, or this is to `stop`. Whoever stops has left no message behind that was there.
    pub fn receive_soon<T: DeserializeOwned>(
        &self,
        stop: impl Fn() -> bool,
    ) -> Result<Option<T>, ScifError> {
        let failed = |errno| ScifError {
            call: "scif_recv",
            errno,
        };
        let Some(lanes) = self.lanes("scif_recv")? else {
            return Err(failed(libc::EOPNOTSUPP));
        };
        let incoming = self.incoming.lock();
        let mut incoming = incoming.unwrap_or_else(PoisonError::into_inner);
        let message = incoming.next_there(|to| {
            let _turn = lock(&self.receiving);
            let at = to.as_mut_ptr().expose_provenance();
            let received = lanes.recv_soon(self, at, to.len(), &stop);
            uninterrupted("scif_recv", received)
        })?;
        message.transpose().map_err(|_| protocol("scif_recv"))
    }

    /// Sleeps until there may be a message for [`Endpoint::receive_soon`], or an error of its.
    pub fn wait_readable(&self) -> Result<(), ScifError> {
        match self.lanes("scif_recv")? {
            Some(lanes) => {
                uninterrupted("scif_recv", lanes.wait_readable(self).map(|()| 0)).map(drop)
            }
            None => Err(ScifError {
                call: "scif_recv",
                errno: libc::EOPNOTSUPP,
            }),
        }
    }

    /// Whether messages go by memory ([`snaprig_scif_lanes`]).
    pub fn has_lanes(&self) -> bool {
        self.lanes("scif_recv").is_ok_and(|lanes| lanes.is_some())
    }

    /// scif_register: `len` bytes of `memory` from `start`, both whole pages.
    pub fn register(
        &self,
        memory: &SharedMemory,
        start: usize,
        len: usize,
        offset: Option<i64>,
        prot: u8,
    ) -> Result<i64, ScifError> {
        let call = Call::Register {
            fd_offset: start as u64,
            len: len as u64,
            offset,
            prot,
        };
        match self.request("scif_register", call, Some(memory.fd.as_fd()))? {
            (Answer::Offset(offset), _) => Ok(offset),
            _ => Err(protocol("scif_register")),
        }
    }

    /// scif_unregister.
    pub fn unregister(&self, offset: i64, len: u64) -> Result<(), ScifError> {
        self.call("scif_unregister", Call::Unregister { offset, len })
            .map(|_| ())
    }

    /// scif_readfrom: from the peer's window to the own one. Returns when the bytes are there.
    pub fn readfrom(&self, local: i64, len: u64, remote: i64) -> Result<(), ScifError> {
        self.call(
            "scif_readfrom",
            Call::Rma {
                local,
                len,
                remote,
                write: false,
            },
        )
        .map(|_| ())
    }

    /// scif_writeto: from the own window to the peer's. Returns when the bytes are there.
    pub fn writeto(&self, local: i64, len: u64, remote: i64) -> Result<(), ScifError> {
        self.call(
            "scif_writeto",
            Call::Rma {
                local,
                len,
                remote,
                write: true,
            },
        )
        .map(|_| ())
    }

    /// scif_vreadfrom, and (`write`) scif_vwriteto: between memory of the caller's and the peer's window, by the caller's own
    /// processor. False: the node leases no window now, or has none that can be; the other calls say what is wrong.
    ///
    /// # Safety
    /// From `memory` on there are `len` bytes, which may be read, or if this does not `write`, written, until this returns.
    pub unsafe fn copy(&self, memory: *mut u8, len: u64, remote: i64, write: bool) -> bool {
        let leased = self.leased.get_or_init(|| {
            let lease = Lease::new(self).ok()?;
            Some(Leased {
                _memory: lease.range().into(),
                lease,
                peers: RwLock::default(),
            })
        });
        let Some(leased) = leased else {
            return false;
        };
        let prot = if write { PROT_WRITE } else { PROT_READ };
        let copied = leased.lease.copy(self, remote, len, prot, |segments| {
            let peers = peers::with(&leased.peers, self, segments)?;
            let here = |moved| Some((memory.wrapping_add(moved as usize), len - moved));
            // SAFETY: the caller says that there are `len` bytes; the segments have as many.
            unsafe { copying::copy(&peers, segments, here, write, false) }
        });
        copied.is_some_and(|copied| copied.is_ok())
    }

    /// scif_get_nodeIDs: all nodes, and the own one.
    pub fn node_ids(&self) -> Result<(Vec<NodeId>, NodeId), ScifError> {
        match self.call("scif_get_nodeIDs", Call::NodeIds)? {
            Answer::Nodes { all, own } => Ok((all, own)),
            _ => Err(protocol("scif_get_nodeIDs")),
        }
    }

    /// What state each card of the rig is in. No call of scif.h: it is what sysfs says of a real card.
    pub fn cards(&self) -> Result<Vec<(NodeId, CardState)>, ScifError> {
        match self.call("the states of cards", Call::Cards)? {
            Answer::Cards(cards) => Ok(cards),
            _ => Err(protocol("the states of cards")),
        }
    }

    /// scif_close for every thread: calls that wait fail with EBADF, the peer sees the end.
    pub fn close(&self) {
        if let Some(Some(lanes)) = self.lanes.get() {
            lanes.end.close();
            lanes.end.wake();
            if lanes.memory.is_there() {
                // No call is in them any more when the peer hears of it: they may be a card's. (Where they are gone, a restart
                // may hold who is in such a call.)
                drop(lock(&self.sending));
                drop(lock(&self.receiving));
            }
        }
        // The node may be gone, and with it everything there is to close.
        let _ = self.call("scif_close", Call::Close);
    }

    fn call(&self, name: &'static str, call: Call) -> Result<Answer, ScifError> {
        self.request(name, call, None).map(|(answer, _)| answer)
    }

    fn request(
        &self,
        name: &'static str,
        call: Call,
        fd: Option<BorrowedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), ScifError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let bytes = frame::encode(&Request { id, call });
        let lost = ScifError {
            call: name,
            errno: libc::ECONNRESET,
        };
        packets::send(&self.socket, &bytes, fd.as_slice()).map_err(|_| lost.clone())?;
        let (reply, fds) = self.wait_for(id).ok_or(lost)?;
        let answer = reply
            .result
            .map_err(|errno| ScifError { call: name, errno })?;
        Ok((answer, fds))
    }

    fn wait_for(&self, id: u64) -> Option<(Reply, Vec<OwnedFd>)> {
        let mut inbox = self.lock();
        loop {
            if let Some(reply) = inbox.replies.remove(&id) {
                return Some(reply);
            }
            if inbox.closed {
                return None;
            }
            if inbox.reading {
                inbox.waiting += 1;
                let woken = self.arrived.wait(inbox);
                inbox = woken.unwrap_or_else(PoisonError::into_inner);
                inbox.waiting -= 1;
                continue;
            }
            inbox.reading = true;
            let mut room = std::mem::take(&mut inbox.room);
            drop(inbox);
            let received = self.read_one(&mut room);
            inbox = self.lock();
            (inbox.reading, inbox.room) = (false, room);
            match received {
                Some((reply, fds)) => {
                    inbox.replies.insert(reply.id, (reply, fds));
                }
                None => inbox.closed = true,
            }
            if inbox.waiting > 0 {
                self.arrived.notify_all();
            }
        }
    }

    fn read_one(&self, room: &mut Vec<u8>) -> Option<(Reply, Vec<OwnedFd>)> {
        room.resize(MESSAGE_MAX, 0);
        let (len, fds) = packets::receive(&self.socket, room).ok()??;
        Some((frame::decode(&room[..len]).ok()?, fds))
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Program for Endpoint {
    fn ring(&self, bell: Bell) {
        // If the node is gone there is nobody to be told.
        let _ = self.call("scif_send", Call::Ring(bell));
    }

    fn has_node(&self) -> bool {
        self.call("scif_poll", Call::Mask).is_ok()
    }

    fn check(&self, _address: usize, _len: usize, _writes: bool) -> Result<(), i32> {
        Ok(())
    }
}

impl Connection for Endpoint {
    fn ask(&self, call: Call) -> Result<(Answer, Option<OwnedFd>), i32> {
        let asked = self.request("scif_vwriteto", call, None);
        let (answer, fds) = asked.map_err(|error| error.errno)?;
        Ok((answer, fds.into_iter().next()))
    }

    fn tell(&self, call: Call) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let bytes = frame::encode(&Request { id, call });
        // A node that is gone waits for nothing.
        let _ = packets::send(&self.socket, &bytes, &[]);
    }
}

/// How much went; nothing, if a signal came first.
fn uninterrupted(call: &'static str, moved: Result<usize, i32>) -> Result<usize, ScifError> {
    match moved {
        Err(libc::EINTR) => Ok(0),
        moved => moved.map_err(|errno| ScifError { call, errno }),
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn protocol(call: &'static str) -> ScifError {
    ScifError {
        call,
        errno: libc::EPROTO,
    }
}

/// Memory that can be registered: a sealed memfd, mapped here.
pub struct SharedMemory {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `base` and `len` are the mapping's, which is this value's own and lives as long; any thread may copy from and
// to it, for no reference into it is ever made.
unsafe impl Send for SharedMemory {}
// SAFETY: two threads that share this only copy through raw pointers, as the DMA engine does at any time: bytes are
// then the old or the new ones.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// `len` zero bytes, rounded up to whole pages.
    pub fn new(len: usize) -> io::Result<Self> {
        Self::placed(len, None)
    }

    /// The same, mapped at an address that nothing else is mapped at.
    pub fn placed(len: usize, address: Option<usize>) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(4096);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("snaprig-window", flags)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let flags = match address {
            Some(_) => MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
            None => MapFlags::SHARED,
        };
        let place = std::ptr::without_provenance_mut(address.unwrap_or(0));
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED, or with MAP_FIXED_NOREPLACE, nothing is mapped where something is, so no memory of
        // ours changes. The file is as long as the mapping and sealed, so all of it can be touched.
        let base = unsafe { mmap(place, len, prot, flags, &fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { fd, base, len })
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is mapped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies out.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        assert!(at.checked_add(to.len()).is_some_and(|end| end <= self.len));
        // SAFETY: the range is inside the mapping; `to` is private. The DMA engine may write to
        // it at the same time, and then the bytes are either the old or the new ones.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base.add(at).as_ptr(), to.as_mut_ptr(), to.len());
        }
    }

    /// Copies in. Panics as [`SharedMemory::read`] does.
    pub fn write(&self, at: usize, from: &[u8]) {
        assert!(
            at.checked_add(from.len())
                .is_some_and(|end| end <= self.len)
        );
        // SAFETY: the range is inside the mapping, as was asserted; `from` is memory that others do not write. The DMA
        // engine may use the same bytes at the same time, and then they are the old or the new ones.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.add(at).as_ptr(), from.len());
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are those of the mapping that `placed` made, and no reference into it is ever made,
        // so nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
