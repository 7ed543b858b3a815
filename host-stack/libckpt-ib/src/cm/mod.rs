//! The connection manager: `/dev/infiniband/rdma_cm`, at the level of its commands, so that every librdmacm stays as it is.
//!
//! ```text
//!   program   open(rdma_cm)           a descriptor of ours, as for all events ([`crate::event`])
//!             write(it, command)      the same command to the device below, with the ids that are there now
//!             write(it, GET_EVENT)    an event of the device below, with the ids that the program knows
//!
//!   id:  created --bind--> bound --listen--> listening          all of these are made again as they were
//!           '--resolve--> resolved --connect--> connecting --accepted--> answered --heard of it--> connected
//! ```
//!
//! What must stay true: ids are below before the program hears of them; an event that was put by is heard of once, before those
//! that come later.

mod again;
mod answers;
mod device;
mod exchange;
mod follow;

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::{CStr, c_char, c_int, c_void},
    net::SocketAddr,
    os::fd::RawFd,
    ptr,
};

use serde::{Deserialize, Serialize};
use snaprig_verbs_cm::{
    Call, Command,
    abi::{AhAttr, EventAnswer, Header, QpAttr, UdParam},
};
use snaprig_versioned::{descriptors::Descriptors, next};
use zerocopy::{FromBytes, IntoBytes};

use self::device::{command, event};
use crate::{
    event::Gate,
    objects::does_not_wait,
    real::set_errno,
    state::{State, Things, lock},
};

pub use self::again::Listener;

/// Where each command's request has its id, by the command's number.
const ID_AT: [Option<usize>; 23] = [
    None,
    Some(8),
    Some(36),
    Some(56),
    Some(0),
    Some(8),
    Some(272),
    Some(0),
    Some(280),
    Some(0),
    Some(0),
    Some(8),
    None,
    None,
    Some(8),
    Some(0),
    Some(44),
    Some(8),
    Some(8),
    Some(8),
    Some(0),
    Some(0),
    Some(16),
];
/// Where requests to connect and to accept have the number of a queue pair.
const QP_AT: [(u32, usize); 2] = [(command::CONNECT, 0), (command::ACCEPT, 8)];
/// Where a request to move an id to another channel has that one's descriptor.
const MIGRATE_FD_AT: usize = 12;
/// A longer command than there is.
const COMMAND_MAX: usize = 4096;
/// Of ids of datagrams, which are connected to nobody (`enum rdma_ucm_port_space`).
const PS_UDP: u16 = 0x0111;

/// How far an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Made, bound, listening, or resolved: what made it so can be done again.
    Quiet,
    /// One of two is asked, and has not answered yet.
    Connecting,
    /// It has answered, or has had the answer, and the other of the two does not know that yet.
    Answered,
    /// It is connected; whether it has asked for that.
    Connected(bool),
    /// It was connected.
    Over,
}

/// Between whom a connection is, as both know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ends {
    asks: SocketAddr,
    asked: SocketAddr,
    port_space: u16,
}

/// An id of the program's.
#[derive(Clone, Debug)]
struct Id {
    channel: RawFd,
    real: u32,
    /// What the program calls it in events.
    uid: u64,
    port_space: u16,
    qp_type: u8,
    stage: Stage,
    /// It has asked for the connection that it has, or is to have.
    asks: bool,
    /// Number of its queue pair.
    qp: u32,
    /// Commands that made it what it is, as the program wrote them.
    commands: Vec<Vec<u8>>,
    /// The one by which it has asked, or answered.
    last: Vec<u8>,
    /// Between whom the connection is, or is to be.
    ends: Option<Ends>,
    /// With what numbers packets begin, of a connection that is not made yet: those that it receives, and those that it sends.
    psns: Option<(u32, u32)>,
    /// Events of those that have not come yet.
    awaited: u32,
    /// Events that the program was given.
    given: u32,
}

impl Id {
    /// One that nothing was done with yet.
    fn new(channel: RawFd, real: u32, (port_space, qp_type): (u16, u8)) -> Self {
        Self {
            channel,
            real,
            uid: 0,
            port_space,
            qp_type,
            stage: Stage::Quiet,
            asks: false,
            qp: 0,
            commands: Vec::new(),
            last: Vec::new(),
            ends: None,
            psns: None,
            awaited: 0,
            given: 0,
        }
    }

    /// Whether one of two knows more of a connection than the other.
    fn is_half(&self) -> bool {
        match self.stage {
            Stage::Connecting => true,
            // Nobody says that he has heard the answer about datagrams.
            Stage::Answered => self.port_space != PS_UDP,
            _ => false,
        }
    }
}

/// A channel of the program's.
pub struct Channel {
    gate: Gate,
    /// The device below.
    real: RawFd,
    /// Events that were put by, with the program's ids.
    pending: VecDeque<EventAnswer>,
}

/// What a program has of the connection manager.
#[derive(Default)]
pub struct Manager {
    /// By descriptor.
    channels: BTreeMap<RawFd, Channel>,
    /// By the program's number for it.
    ids: BTreeMap<u32, Id>,
    /// In a restart: where those that were asked are asked again.
    listening: Option<again::Listening>,
    /// While others move, until that is decided.
    follows: Option<follow::Follows>,
}

/// The program's descriptors of channels: what is none of them is left alone, without the lock, which the libibverbs below may have
/// been called with.
static CHANNELS: Descriptors = Descriptors::new();

impl Manager {
    /// Whether some are neither quiet nor connected.
    pub fn is_connecting(&self) -> bool {
        let mut ids = self.ids.values();
        ids.any(|id| id.is_half() || id.awaited > 0)
    }

    /// The device below that an id is on.
    fn device_of(&self, id: &Id) -> Option<RawFd> {
        let channel = self.channels.get(&id.channel)?;
        Some(channel.real)
    }

    fn real_id(&self, id: u32) -> u32 {
        self.ids.get(&id).map_or(id, |id| id.real)
    }

    fn called(&self, real: u32) -> u32 {
        let known = self.ids.iter().find(|(_, id)| id.real == real);
        known.map_or(real, |(id, _)| *id)
    }

    /// A new id; what the program calls it: the number that it has below, unless that is given already.
    fn put(&mut self, id: Id) -> u32 {
        let mut number = id.real;
        while self.ids.contains_key(&number) {
            number = number.wrapping_add(1 << 20);
        }
        self.ids.insert(number, id);
        number
    }

    /// Before a checkpoint: events that are there are put by. An error says what cannot be a part of it.
    pub fn save(things: &mut Things) -> Result<(), String> {
        let fds: Vec<RawFd> = things.manager.channels.keys().copied().collect();
        for fd in fds {
            while let Some(real) = things.manager.channels.get(&fd).map(|channel| channel.real) {
                let Ok(event) = device::take_event(real) else {
                    break;
                };
                let event = things.heard(fd, event);
                if let Some(channel) = things.manager.channels.get_mut(&fd) {
                    channel.pending.push_back(event);
                    channel.gate.ring();
                }
            }
        }
        let Self { channels, ids, .. } = &mut things.manager;
        let mut nowhere = 0;
        for id in ids.values_mut() {
            let Some(channel) = channels.get(&id.channel) else {
                continue;
            };
            id.ends = match id.stage {
                Stage::Connecting | Stage::Answered | Stage::Connected(true) => {
                    again::ends(channel.real, id)
                }
                Stage::Connected(false) | Stage::Quiet | Stage::Over => None,
            };
            nowhere += u32::from(id.is_half() && id.ends.is_none());
            // Who was asked knows both.
            if id.is_half() && !id.asks && id.psns.is_none() {
                id.psns = device::psns(channel.real, id.real);
            }
        }
        match nowhere {
            0 => Ok(()),
            count => Err(format!(
                "{count} ids of the connection manager (rdma_cm) are about to be connected to what has no IP address: try again when they are"
            )),
        }
    }

    /// The program's descriptors.
    pub fn gates(&self) -> impl Iterator<Item = &Gate> {
        self.channels.values().map(|channel| &channel.gate)
    }

    /// Descriptors of devices below.
    pub fn below(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.channels.values().map(|channel| channel.real)
    }
}

impl Things {
    /// An event that came from below, as the program is to have it.
    fn heard(&mut self, channel: RawFd, mut event: EventAnswer) -> EventAnswer {
        if event.event == event::CONNECT_REQUEST {
            let real = event.id;
            // The event is the listener's.
            let mut ids = self.manager.ids.values_mut();
            let listener = ids.find(|id| id.uid == event.uid);
            let (port_space, qp_type) = listener.map_or((0, 0), |id| {
                id.given += 1;
                (id.port_space, id.qp_type)
            });
            let id = Id::new(channel, real, (port_space, qp_type));
            event.id = self.manager.put(Id {
                stage: Stage::Connecting,
                ..id
            });
            return event;
        }
        event.id = self.manager.called(event.id);
        let Some(id) = self.manager.ids.get_mut(&event.id) else {
            return event;
        };
        id.given += 1;
        match event.event {
            event::ADDR_RESOLVED
            | event::ADDR_ERROR
            | event::ROUTE_RESOLVED
            | event::ROUTE_ERROR => {
                id.awaited = id.awaited.saturating_sub(1);
            }
            event::CONNECT_RESPONSE => id.stage = Stage::Answered,
            event::ESTABLISHED if id.port_space == PS_UDP => {
                id.stage = Stage::Quiet;
                self.call_sender(&mut event);
            }
            event::ESTABLISHED => id.stage = Stage::Connected(id.asks),
            // Errors, rejections, and the end.
            _ => id.stage = Stage::Over,
        }
        event
    }

    /// Where datagrams are to be sent, as the program is to know it.
    fn call_sender(&self, event: &mut EventAnswer) {
        if self.restarts == 0 {
            return;
        }
        let bytes = event.param.as_bytes();
        let Ok(mut ud) = UdParam::read_from_bytes(bytes) else {
            return;
        };
        if let Some((name, _)) = self.names.called(ud.ah_attr.dlid, ud.qp_num) {
            ud.qp_num = name.number;
        }
        self.call_address(&mut ud.ah_attr);
        event.param = ud.into();
    }

    fn call_address(&self, address: &mut AhAttr) {
        address.dlid = self.names.called_lid(address.dlid);
        address.dgid = self.names.called_gid(address.dgid);
    }

    /// The number below of a queue pair of the program's.
    fn real_qp(&self, number: u32) -> u32 {
        let mut qps = self.qps.iter().filter(|qp| !qp.is_null());
        // SAFETY: what is in the table is alive.
        let found = qps.find(|qp| unsafe { (***qp).ex.qp_base.qp_num } == number);
        // SAFETY: the same, and so is what is below it.
        found.map_or(number, |qp| unsafe { (*(**qp).real).qp_num })
    }

    /// A command of the program's, to be done below.
    ///
    /// # Safety
    /// The addresses in the command are the program's.
    unsafe fn perform(&mut self, fd: RawFd, bytes: &[u8]) -> Result<(), c_int> {
        let call = Call::read(bytes).map_err(|errno| errno.raw_os_error())?;
        let (header, request) = Header::ref_from_prefix(bytes).map_err(|_| libc::EINVAL)?;
        let number = header.command;
        let Some(channel) = self.manager.channels.get_mut(&fd) else {
            return Err(libc::EBADF);
        };
        let real = channel.real;
        if number == command::GET_EVENT {
            let event = match channel.pending.pop_front() {
                Some(event) => {
                    if channel.pending.is_empty() {
                        channel.gate.quiet();
                    }
                    event
                }
                None => {
                    let event = device::take_event(real)?;
                    self.heard(fd, event)
                }
            };
            answer(&call, event.as_bytes());
            return Ok(());
        }
        let mut below = bytes.to_vec();
        let word = |at: usize| {
            let bytes = request.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let mut put = |at, word| put_word(&mut below, at, word);
        let id_at = ID_AT.get(number as usize).copied().flatten();
        let id = id_at.and_then(word);
        if let (Some(at), Some(id)) = (id_at, id) {
            put(at, self.manager.real_id(id));
        }
        let mut qp = None;
        if let Some((_, at)) = QP_AT.into_iter().find(|(of, _)| *of == number) {
            qp = word(at);
            put(at, self.real_qp(qp.unwrap_or(0)));
        }
        if number == command::MIGRATE_ID {
            let from = word(MIGRATE_FD_AT).ok_or(libc::EINVAL)?;
            let channel = self.manager.channels.get(&(from as RawFd));
            put(
                MIGRATE_FD_AT,
                channel.map_or(from, |channel| channel.real as u32),
            );
        }
        // SAFETY: the caller says so.
        unsafe { device::perform(real, &below)? };
        self.done(fd, &call, bytes, (id, qp));
        Ok(())
    }

    /// A command was done, of an id, with a queue pair.
    fn done(
        &mut self,
        channel: RawFd,
        call: &Call,
        bytes: &[u8],
        (id, qp): (Option<u32>, Option<u32>),
    ) {
        let at = ptr::with_exposed_provenance_mut::<u8>(call.answer_address as usize);
        if let Command::CreateId(request) = call.command {
            let at = at.cast::<u32>();
            // SAFETY: the device below has written the id there.
            let real = unsafe { at.read_unaligned() };
            let id = Id::new(channel, real, (request.port_space, request.qp_type));
            let number = self.manager.put(Id {
                uid: request.uid,
                ..id
            });
            // SAFETY: the same.
            unsafe { at.write_unaligned(number) };
            return;
        }
        let Some(number) = id else { return };
        let Some(id) = self.manager.ids.get_mut(&number) else {
            return;
        };
        // Who accepts an answer has said it before.
        if let Some(qp) = qp.filter(|qp| *qp != 0) {
            id.qp = qp;
        }
        match call.command {
            Command::DestroyId(_) => {
                let mut not_given = 0;
                for channel in self.manager.channels.values_mut() {
                    let before = channel.pending.len();
                    channel.pending.retain(|event| match event.event {
                        event::CONNECT_REQUEST => event.uid != id.uid,
                        _ => event.id != number,
                    });
                    not_given += (before - channel.pending.len()) as u32;
                    if channel.pending.is_empty() {
                        channel.gate.quiet();
                    }
                }
                id.given = id.given.saturating_sub(not_given);
                if call.answer_bytes_max >= 4 && !at.is_null() {
                    // Those that others than the program have heard do not count: it waits until it has acknowledged as many.
                    // SAFETY: the device below has written their number there.
                    unsafe { at.cast::<u32>().write_unaligned(id.given) };
                }
                self.manager.ids.remove(&number);
            }
            Command::BindIp(_) | Command::Bind(_) => {
                let mut bytes = bytes.to_vec();
                let real = self
                    .manager
                    .channels
                    .get(&channel)
                    .map(|channel| channel.real);
                again::keep_port(&mut bytes, real, id.real);
                id.commands.push(bytes);
            }
            Command::Listen(_) => id.commands.push(bytes.to_vec()),
            Command::ResolveIp(_) | Command::ResolveAddr(_) | Command::ResolveRoute(_) => {
                id.awaited += 1;
                id.commands.push(bytes.to_vec());
            }
            Command::Connect(_) => {
                (id.asks, id.stage) = (true, Stage::Connecting);
                id.last = bytes.to_vec();
            }
            // Who has asked accepts the answer, of which there is no event.
            Command::Accept(_) if id.asks => id.stage = Stage::Connected(true),
            Command::Accept(request) => {
                (id.uid, id.stage) = (request.uid, Stage::Answered);
                id.last = bytes.to_vec();
            }
            Command::Reject(_) | Command::Disconnect(_) => id.stage = Stage::Over,
            Command::MigrateId(_) => id.channel = channel,
            Command::Query(_) | Command::QueryRoute(_) if self.restarts > 0 => {
                self.call_answer(call);
            }
            Command::InitQpAttr(_) if self.restarts > 0 => {
                let at = at.cast::<QpAttr>();
                // SAFETY: the device below has written the attributes there.
                let mut attr = unsafe { at.read_unaligned() };
                if let Some((name, _)) = self.names.called(attr.ah_attr.dlid, attr.dest_qp_num) {
                    attr.dest_qp_num = name.number;
                }
                if let Some(id) = self.manager.ids.get(&number)
                    && let Some(psns) = id.psns
                {
                    (attr.rq_psn, attr.sq_psn) = psns;
                }
                self.call_address(&mut attr.ah_attr);
                // SAFETY: the same.
                unsafe { at.write_unaligned(attr) };
            }
            _ => {}
        }
    }
}

/// Puts a word into a command, where its request has it.
fn put_word(command: &mut [u8], at: usize, word: u32) {
    let at = size_of::<Header>() + at;
    if let Some(place) = command.get_mut(at..at + 4) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
}

/// Puts an answer where the program wants it.
fn answer(call: &Call, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(call.answer_bytes_max)];
    let to = ptr::with_exposed_provenance_mut::<u8>(call.answer_address as usize);
    // SAFETY: the program says that there is so much room.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Whether a path is the device's.
unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: open(2) asks the program for a string; null is not looked at.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == device::DEVICE
}

/// Opens the device for the program.
fn open_device(flags: c_int) -> c_int {
    // What is opened below, and its being known here, are one step for a checkpoint.
    crate::plugin::register();
    let mut state = lock();
    let real = match device::open(flags) {
        Ok(real) => real,
        Err(errno) => {
            set_errno(errno);
            return -1;
        }
    };
    does_not_wait(real);
    let gate = match Gate::new(real) {
        Ok(gate) => gate,
        Err(error) => {
            device::close(real);
            set_errno(error.raw_os_error());
            return -1;
        }
    };
    let fd = gate.fd;
    if flags & libc::O_NONBLOCK != 0 {
        does_not_wait(fd);
    }
    let channel = Channel {
        gate,
        real,
        pending: VecDeque::new(),
    };
    state.things.manager.channels.insert(fd, channel);
    CHANNELS.add(fd);
    fd
}

/// What stands below a descriptor of the program's, if it is a channel.
fn real_of(fd: RawFd) -> Option<RawFd> {
    if !CHANNELS.has(fd) {
        return None;
    }
    lock()
        .things
        .manager
        .channels
        .get(&fd)
        .map(|channel| channel.real)
}

macro_rules! open {
    ($($function:ident $name:literal;)*) => {
        $(
            #[unsafe(export_name = concat!("snaprig_ckpt_ib_", stringify!($function)))]
            pub unsafe extern "C-unwind" fn $function(
                path: *const c_char,
                flags: c_int,
                mode: libc::mode_t,
            ) -> c_int {
                // SAFETY: open(2) asks the program for a string. libc's function of this name has this type, and gets what the
                // program passed: a mode is where a variadic argument is.
                unsafe {
                    match is_device(path) {
                        true => open_device(flags),
                        false => next!(
                            $name,
                            fn(*const c_char, c_int, libc::mode_t) -> c_int,
                            path, flags, mode
                        ),
                    }
                }
            }
        )*
    };
}

mod functions {
    use super::*;

    open! {
        open c"open";
        open64 c"open64";
    }

    macro_rules! fstat {
        ($($function:ident $name:literal;)*) => {
            $(
                /// librdmacm looks whether it has the device.
                #[unsafe(export_name = concat!("snaprig_ckpt_ib_", stringify!($function)))]
                pub unsafe extern "C-unwind" fn $function(fd: c_int, into: *mut libc::stat) -> c_int {
                    let fd = real_of(fd).unwrap_or(fd);
                    // SAFETY: libc's function of this name has this type, and gets what the program passed.
                    unsafe { next!($name, fn(c_int, *mut libc::stat) -> c_int, fd, into) }
                }
            )*
        };
    }

    fstat! {
        fstat c"fstat";
        fstat64 c"fstat64";
    }

    /// Commands for the device.
    #[unsafe(export_name = "snaprig_ckpt_ib_write")]
    pub unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
        if !CHANNELS.has(fd) {
            // SAFETY: it gets what the program passed.
            return unsafe { device::write(fd, bytes, count) };
        }
        if bytes.is_null() || count > COMMAND_MAX {
            set_errno(libc::EINVAL);
            return -1;
        }
        // SAFETY: write(2) asks the program for so many bytes; whoever writes commands to this device names places for their
        // answers in them.
        let done = unsafe {
            let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), count).to_vec();
            perform(fd, &bytes)
        };
        match done {
            Ok(()) => count as isize,
            Err(errno) => {
                set_errno(errno);
                -1
            }
        }
    }

    /// The device is closed with the program's descriptor.
    #[unsafe(export_name = "snaprig_ckpt_ib_close")]
    pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
        if CHANNELS.remove(fd) {
            let state: &mut State = &mut lock();
            let manager = &mut state.things.manager;
            if let Some(channel) = manager.channels.remove(&fd) {
                manager.ids.retain(|_, id| id.channel != fd);
                // The gate closes the program's.
                return device::close(channel.real);
            }
        }
        device::close(fd)
    }
}

/// Does a command; waits for an event, if that is what is asked for, unless the program's descriptor does not wait.
///
/// # Safety
/// The addresses in the command are the program's.
unsafe fn perform(fd: RawFd, bytes: &[u8]) -> Result<(), c_int> {
    let is_wait = Header::read_from_prefix(bytes)
        .is_ok_and(|(header, _)| header.command == command::GET_EVENT);
    loop {
        // SAFETY: the caller says so.
        let done = unsafe { lock().things.perform(fd, bytes) };
        match done {
            // It was closed since the program has begun to wait: a kernel's would not notice.
            Err(libc::EBADF) if is_wait => loop {
                // SAFETY: pause(2) takes no argument.
                unsafe { libc::pause() };
            },
            Err(libc::EAGAIN) if is_wait => {
                Gate::wait(fd).map_err(|error| error.raw_os_error())?;
            }
            done => return done,
        }
    }
}
