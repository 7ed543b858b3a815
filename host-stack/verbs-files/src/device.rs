//! The connection manager's device: what a program that has it open writes to it, and the thread that hears of others.
//!
//! ```text
//!   librdmacm --write(fd, command)--> Manager --> sockets --> sockets of another process
//!       ^                                |                       |
//!       +--- GET_EVENT <-- its channel <-+<----- thread <--------+
//! ```
//!
//! What must stay true: one lock guards all of it; nobody waits with it. The descriptor of a channel, an eventfd, is
//! readable exactly while its channel has events. What the manager says is to be done is done before the lock is let go.

use std::{
    ffi::{c_int, c_void},
    hash::{BuildHasher, RandomState},
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    io::Errno,
};
use snaprig_pages::threads;
use snaprig_verbs_cm::{Call, Channel, Command, LinkId, Manager, Output, Reply};
use snaprig_versioned::descriptors::Descriptors;

use crate::{
    Join,
    sockets::{Arrival, Sockets, WAKE},
};

/// The device, as this process has it.
struct Device {
    /// The process: a child of fork(2) is another one, with a device of its own.
    pid: u32,
    manager: Manager,
    sockets: Sockets,
    /// Makes the thread look again how long it may wait.
    wake: OwnedFd,
    /// When the manager's time is 0.
    epoch: Instant,
}

static DEVICE: Mutex<Option<Device>> = Mutex::new(None);

/// Descriptors of the device. A program that has more than fit gets EMFILE.
pub static DESCRIPTORS: Descriptors = Descriptors::new();

fn lock() -> MutexGuard<'static, Option<Device>> {
    DEVICE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Opens the device, with the flags of open(2) that say whether it is inherited and whether it waits.
pub fn open(flags: c_int, join: Join) -> Result<c_int, Errno> {
    catch_unwind(|| {
        join()?;
        let mut kept = EventfdFlags::empty();
        kept.set(EventfdFlags::CLOEXEC, flags & libc::O_CLOEXEC != 0);
        kept.set(EventfdFlags::NONBLOCK, flags & libc::O_NONBLOCK != 0);
        let mut device = lock();
        if !device.as_ref().is_some_and(Device::is_own) {
            // What a child of fork(2) has of its parent's is not its own to close or remove.
            mem::forget(device.take());
        }
        let device = match &mut *device {
            Some(device) => device,
            none => none.insert(Device::start(join)?),
        };
        let fd = eventfd(0, kept)?;
        if !DESCRIPTORS.add(fd.as_raw_fd()) {
            return Err(Errno::MFILE);
        }
        let fd = fd.into_raw_fd();
        device.manager.open(Channel(fd));
        Ok(fd)
    })
    .unwrap_or(Err(Errno::IO))
}

/// Descriptors of it that a checkpoint of the process cannot have.
pub fn owned(mut descriptor: impl FnMut(BorrowedFd<'_>)) {
    let device = lock();
    let Some(device) = device.as_ref().filter(|device| device.is_own()) else {
        return;
    };
    descriptor(device.wake.as_fd());
    device.sockets.owned(&mut descriptor);
    for fd in DESCRIPTORS.all() {
        descriptor(channel_fd(&Channel(fd)));
    }
}

/// The process was restarted, and none of [`owned`] is there any more. The thread ends, for what it waits on is nothing to wait on.
pub fn retire() {
    DESCRIPTORS.clear();
    drop(lock().take());
}

/// The program closes the device: its ids are gone.
pub fn closed(fd: c_int) {
    let _ = catch_unwind(|| {
        if let Some(device) = lock().as_mut().filter(|device| device.is_own()) {
            device.manager.close(Channel(fd));
            device.carry_out();
        }
    });
}

/// What a command came to.
enum Done {
    Yes,
    /// It needs an event, and there is none.
    Wait,
}

/// Does a command that the program writes to the device: how many bytes that took.
///
/// # Safety
/// `bytes` is null or points to `count` bytes; the addresses that they name for an answer and for an option's value are
/// null or those of as many bytes as they say. The program promises that to the kernel by write(2) to this device.
pub unsafe fn write(fd: c_int, bytes: *const c_void, count: usize) -> Result<usize, Errno> {
    if bytes.is_null() {
        return Err(Errno::INVAL);
    }
    loop {
        // Nothing that would have to be dropped is held while this waits: it may be cancelled.
        // SAFETY: the bytes are not null, and this function asks the same of its caller.
        match unsafe { attempt(fd, bytes, count) }? {
            Done::Yes => return Ok(count),
            Done::Wait => wait(fd)?,
        }
    }
}

/// # Safety
/// As for [`write`], and `bytes` is not null.
unsafe fn attempt(fd: c_int, bytes: *const c_void, count: usize) -> Result<Done, Errno> {
    let perform = || {
        // SAFETY: the caller says that so many bytes are there; the program does not change them while it writes them.
        let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), count) };
        let call = Call::read(bytes)?;
        // SAFETY: the caller says that an option's value is where the command says.
        let option = call
            .command
            .option_address()
            .map(|at| unsafe { ptr::with_exposed_provenance::<i32>(at as usize).read_unaligned() });
        let reply = match lock().as_mut().filter(|device| device.is_own()) {
            Some(device) => device.command(Channel(fd), &call.command, option)?,
            None => return Err(Errno::BADF),
        };
        match reply {
            Reply::Wait => Ok(Done::Wait),
            Reply::Done => Ok(Done::Yes),
            Reply::Answer(answer) => {
                let bytes = &answer[..answer.len().min(call.answer_bytes_max)];
                if call.answer_address == 0 && !bytes.is_empty() {
                    return Err(Errno::FAULT);
                }
                let to = ptr::with_exposed_provenance_mut::<u8>(call.answer_address as usize);
                // SAFETY: the caller says that `answer_bytes_max` bytes at this address are for the answer, which is
                // memory of this library's and no longer.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
                Ok(Done::Yes)
            }
        }
    };
    catch_unwind(AssertUnwindSafe(perform)).unwrap_or(Err(Errno::IO))
}

/// Waits for an event, if the descriptor is one that waits.
fn wait(fd: c_int) -> Result<(), Errno> {
    // SAFETY: the program is in a write(2) to this descriptor, so it is open; it is borrowed for one call.
    let flags = rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(fd) })?;
    if flags.contains(rustix::fs::OFlags::NONBLOCK) {
        return Err(Errno::AGAIN);
    }
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: poll(2) has this type, and is given one entry, which is valid for the call. It is the C library's own, for
    // a thread may be cancelled in it; nothing that has to be dropped is held here or in the callers.
    let polled = unsafe {
        snaprig_versioned::next!(
            c"poll",
            fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int,
            &mut poll,
            1,
            -1
        )
    };
    if polled < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}

impl Device {
    /// Starts the thread, which never ends: the device is there as long as the process.
    fn start(join: Join) -> Result<Self, Errno> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        let waited = epoll.clone();
        let builder = thread::Builder::new().name("snaprig-cm".into());
        threads::spawn(builder, move || serve(&waited))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Self {
            pid: std::process::id(),
            manager: Manager::new(RandomState::new().hash_one(0)),
            sockets: Sockets::new(join, epoll),
            wake,
            epoch: Instant::now(),
        })
    }

    fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn command(
        &mut self,
        channel: Channel,
        command: &Command,
        option: Option<i32>,
    ) -> Result<Reply, Errno> {
        let before = self.manager.next_timeout_ns();
        let now_ns = self.now_ns();
        let reply = self
            .manager
            .command(now_ns, channel, command, option, &mut self.sockets);
        self.carry_out();
        if self.manager.next_timeout_ns() != before {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        reply
    }

    /// Does what the manager says is to be done.
    fn carry_out(&mut self) {
        for output in self.manager.outputs() {
            match output {
                Output::Send(link, message) => self.sockets.send(link, &message),
                Output::Close(link) => self.sockets.close(link),
                Output::Readable(channel) => signal(channel),
                Output::Empty(channel) => clear(channel),
            }
        }
    }

    /// Something is to be read from a socket.
    fn ready(&mut self, link: LinkId) {
        loop {
            let now_ns = self.now_ns();
            let is_listener = match self.sockets.take(link) {
                Arrival::Nothing => return,
                Arrival::Accepted(new) => {
                    self.manager.accepted(link, new);
                    true
                }
                Arrival::Message(message) => {
                    self.manager
                        .received(now_ns, link, message, &mut self.sockets);
                    false
                }
                Arrival::End => {
                    self.manager.hung_up(now_ns, link);
                    false
                }
            };
            self.carry_out();
            if !is_listener {
                return;
            }
        }
    }

    /// Does what is due; how long until the next.
    fn expire(&mut self) -> Option<Duration> {
        let now_ns = self.now_ns();
        self.manager.expire(now_ns, &mut self.sockets);
        self.carry_out();
        let next_ns = self.manager.next_timeout_ns()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(now_ns)))
    }
}

/// The descriptor of a channel: the program's, which closes it by [`closed`].
fn channel_fd(channel: &Channel) -> BorrowedFd<'_> {
    // SAFETY: the manager speaks of channels between `open` and `closed` alone, and the program's descriptor is open from
    // before the one until after the other. What is borrowed is used for one call, with the device's lock held.
    unsafe { BorrowedFd::borrow_raw(channel.0) }
}

fn signal(channel: Channel) {
    let _ = rustix::io::write(channel_fd(&channel), &1u64.to_ne_bytes());
}

/// Makes an eventfd unreadable. It may be one that waits: it is read only if it is readable, and
/// nobody else reads it.
fn clear(channel: Channel) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let fd = channel_fd(&channel);
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
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let step = || {
            let mut device = lock();
            let device = device.as_mut()?;
            for event in &events {
                match event.data.u64() {
                    WAKE => drop(rustix::io::read(&device.wake, &mut [0u8; 8])),
                    number => device.ready(LinkId(number)),
                }
            }
            device.expire()
        };
        timeout = catch_unwind(AssertUnwindSafe(step)).unwrap_or(None);
    }
}
