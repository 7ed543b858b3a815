//! An endpoint: its descriptor, and its connections to the node.
//!
//! Each connection has one call at a time; a call takes one that is idle, or makes another. So threads
//! wait each on their own, and a signal interrupts the one that it is for.
//!
//! What must stay true: an endpoint is open as long as a process has one of its connections; a child
//! of fork(2) leaves those of its parent alone, and makes its own.

use std::{
    cell::RefCell,
    ffi::c_int,
    os::fd::{BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{Mutex, Once, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use rustix::net::SocketFlags;
use snaprig_peers::packets;
use snaprig_scif::{
    client::{SOCKET, rig_from_environment},
    host::protocol::{Answer, Call, MESSAGE_MAX, Reply, Request},
};
use snaprig_wire::frame;

use super::{NONSENSE, direct::Direct, fork, lease::Leased, lock, memory, rma::Windows, watch};
use crate::ffi::Result;

pub(super) struct Endpoint {
    /// As ready as the endpoint is; its number is the endpoint descriptor.
    descriptor: Mutex<Option<OwnedFd>>,
    raw: c_int,
    /// The node's number for it.
    number: u64,
    channels: Mutex<Channels>,
    forks: u32,
    pub(super) sending: Mutex<()>,
    pub(super) receiving: Mutex<()>,
    pub(super) pool_offered: Mutex<bool>,
    windows: RwLock<Windows>,
    /// None: messages go through the node.
    direct: OnceLock<Option<Direct>>,
    leased: OnceLock<Option<Leased>>,
}

struct Channels {
    process: u32,
    idle: Vec<OwnedFd>,
    /// A parent's: they keep the endpoint open, and are not used.
    _inherited: Vec<OwnedFd>,
}

impl Endpoint {
    /// A new one.
    pub(super) fn open() -> Result<Self> {
        Self::over(connect()?)
    }

    /// The one that this connection is of.
    pub(super) fn over(channel: OwnedFd) -> Result<Self> {
        fork::watch();
        let (answer, descriptor) = ask(&channel, Call::Descriptor, None, false)?;
        let (Answer::Endpoint(number), Some(descriptor)) = (answer, descriptor) else {
            return Err(NONSENSE);
        };
        Ok(Self {
            raw: std::os::fd::AsRawFd::as_raw_fd(&descriptor),
            descriptor: Mutex::new(Some(descriptor)),
            number,
            channels: Mutex::new(Channels {
                process: std::process::id(),
                idle: vec![channel],
                _inherited: Vec::new(),
            }),
            forks: fork::count(),
            sending: Mutex::default(),
            receiving: Mutex::default(),
            pool_offered: Mutex::default(),
            windows: RwLock::default(),
            direct: OnceLock::new(),
            leased: OnceLock::new(),
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is that of the `OwnedFd` in `self.descriptor`, which stays open until
        // the endpoint is taken out of the table and closed. Only calls that found the endpoint in
        // the table come here, and what they borrow does not outlive their borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.raw) }
    }

    /// The program closed the descriptor, and its number is another's by now.
    pub(super) fn abandon_descriptor(&self) {
        std::mem::forget(lock(&self.descriptor).take());
        self.close();
    }

    pub(super) fn call(&self, call: Call) -> Result<Answer> {
        self.call_with(call, None, false).map(|(answer, _)| answer)
    }

    /// `interruptible`: a signal ends it.
    pub(super) fn call_with(
        &self,
        call: Call,
        fd: Option<BorrowedFd<'_>>,
        interruptible: bool,
    ) -> Result<(Answer, Option<OwnedFd>)> {
        let channel = self.take_channel()?;
        let result = ask(&channel, call, fd, interruptible);
        self.put_channel(channel);
        result
    }

    /// The way to the peer, if it is not through the node. Of one that is not connected there is none yet.
    pub(super) fn direct(&self) -> Result<Option<&Direct>> {
        if let Some(direct) = self.direct.get() {
            return Ok(direct.as_ref());
        }
        let channel = self.take_channel()?;
        let result = ask_all(&channel, Call::Direct, None, false);
        self.put_channel(channel);
        let direct = match result {
            Ok((Answer::Direct(place), fds)) => {
                let descriptor = self.descriptor().try_clone_to_owned();
                let descriptor = descriptor.map_err(|_| libc::ENOMEM)?;
                Some(Direct::new(place, descriptor, fds)?)
            }
            Ok(_) => None,
            // Whatever it is, the call itself says so.
            Err(_) => return Ok(None),
        };
        // Another thread has the same.
        let direct = self.direct.get_or_init(|| direct).as_ref();
        if let Some(direct) = direct {
            watch::start();
            // It may have gone before it could see this one.
            if watch::is_gone() {
                direct.hang_up();
            }
        }
        Ok(direct)
    }

    /// The same, if that is known already.
    pub(super) fn known_direct(&self) -> Option<&Direct> {
        self.direct.get().and_then(Option::as_ref)
    }

    /// Another process may use it, too.
    pub(super) fn is_shared(&self) -> bool {
        self.forks != fork::count()
    }

    pub(super) fn take_channel(&self) -> Result<OwnedFd> {
        let mut channels = lock(&self.channels);
        let process = std::process::id();
        if channels.process != process {
            channels.process = process;
            let mut inherited = std::mem::take(&mut channels.idle);
            channels._inherited.append(&mut inherited);
        }
        if let Some(channel) = channels.idle.pop() {
            return Ok(channel);
        }
        drop(channels);
        let channel = connect()?;
        ask(&channel, Call::Join(self.number), None, false)?;
        Ok(channel)
    }

    pub(super) fn put_channel(&self, channel: OwnedFd) {
        lock(&self.channels).idle.push(channel);
    }

    pub(super) fn add_window(&self, offset: i64, memory: memory::Shared) {
        self.windows_mut().insert(offset, memory);
    }

    /// `held`: the peer has some of it mapped; it stays shared.
    pub(super) fn remove_windows(&self, offset: i64, len: u64, held: bool) {
        let mut windows = self.windows_mut();
        let end = offset.saturating_add_unsigned(len);
        let gone: Vec<_> = windows.range(offset..end).map(|(at, _)| *at).collect();
        for at in gone {
            if let Some(memory) = windows.remove(&at) {
                memory.give_back(held);
            }
        }
    }

    /// The own windows: none goes while a copy looks at them.
    pub(super) fn windows(&self) -> RwLockReadGuard<'_, Windows> {
        self.windows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn windows_mut(&self) -> RwLockWriteGuard<'_, Windows> {
        self.windows.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leases of this process.
    pub(super) fn leased(&self) -> Option<&Leased> {
        let leased = self.leased.get_or_init(|| {
            let channel = self.take_channel().ok()?;
            Leased::new(channel).ok()
        });
        leased.as_ref().filter(|leased| leased.is_own())
    }

    /// scif_close. What another process has of it after a fork stays open.
    pub(super) fn close(&self) {
        let is_own = lock(&self.channels).process == std::process::id();
        let mut held = true;
        if let Some(direct) = self.known_direct() {
            direct.close(self.is_shared());
        }
        if is_own && !self.is_shared() {
            // No call is in the lanes any more when the peer hears of it: they may be a card's memory.
            drop(lock(&self.sending));
            drop(lock(&self.receiving));
            match self.call(Call::CloseWait) {
                Ok(Answer::Gone { held: still }) => held = still,
                // The node is gone, and with it everybody who could use the memory.
                Err(libc::ECONNRESET) => held = false,
                _ => {}
            }
        }
        self.remove_windows(0, i64::MAX as u64, held);
        lock(&self.channels).idle.clear();
        if let Some(Some(leased)) = self.leased.get() {
            leased.close();
        }
        drop(lock(&self.descriptor).take());
    }
}

/// A call that needs no endpoint.
pub(super) fn ask_node(call: Call) -> Result<Answer> {
    ask(&connect()?, call, None, false).map(|(answer, _)| answer)
}

/// A connection to the node: a new endpoint.
pub(super) fn connect() -> Result<OwnedFd> {
    static RIG: OnceLock<Option<PathBuf>> = OnceLock::new();
    let rig = RIG.get_or_init(rig_from_environment).as_ref();
    let rig = rig.ok_or_else(|| complain("SNAPRIG_RIG is not set", libc::ENXIO))?;
    packets::connect(&rig.join(SOCKET), SocketFlags::empty()).map_err(|error| {
        match error.raw_os_error() {
            Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => errno,
            _ => complain(&format!("{}: {error}", rig.display()), libc::ENODEV),
        }
    })
}

/// Says once why there is no SCIF here.
fn complain(why: &str, errno: c_int) -> c_int {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| eprintln!("libscif: no rig: {why}; `snaprig run -- PROGRAM` starts one"));
    errno
}

/// Asks on a connection whose last call has ended.
pub(super) fn ask(
    channel: &OwnedFd,
    call: Call,
    fd: Option<BorrowedFd<'_>>,
    interruptible: bool,
) -> Result<(Answer, Option<OwnedFd>)> {
    let (answer, mut fds) = ask_all(channel, call, fd, interruptible)?;
    Ok((answer, fds.pop()))
}

/// The same, where several descriptors come with the answer.
fn ask_all(
    channel: &OwnedFd,
    call: Call,
    fd: Option<BorrowedFd<'_>>,
    interruptible: bool,
) -> Result<(Answer, Vec<OwnedFd>)> {
    tell(channel, call, fd)?;
    if interruptible && !wait(channel) {
        tell(channel, Call::Interrupt, None)?;
    }
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    let (reply, fds) = BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(MESSAGE_MAX, 0);
        let received = packets::receive(channel, buffer).map_err(|_| libc::ECONNRESET)?;
        let (len, fds) = received.ok_or(libc::ECONNRESET)?;
        let reply = frame::decode::<Reply>(&buffer[..len]).map_err(|_| NONSENSE)?;
        Ok::<_, c_int>((reply, fds))
    })?;
    Ok((reply.result?, fds))
}

/// Says something on a connection.
pub(super) fn tell(channel: &OwnedFd, call: Call, fd: Option<BorrowedFd<'_>>) -> Result {
    let bytes = frame::encode(&Request { id: 0, call });
    packets::send(channel, &bytes, fd.as_slice()).map_err(|_| libc::ECONNRESET)
}

/// Waits for an answer; false if a signal came first.
fn wait(channel: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    poll(&mut fds, None) != Err(rustix::io::Errno::INTR)
}
