//! After a restart: devices are opened again, ids made again, and those that were connected are connected again by the connection
//! managers below, whatever those are.
//!
//! ```text
//!   who was asked                            who asked
//!   rebuild    listens somewhere; where,
//!              and for which queue pairs, to the board
//!   exchange                                 resolves, connects: "for this queue pair of yours"
//!              accepts                       accepts the answer
//!              both move what they have to the channels of the program
//! ```
//!
//! Of a connection that is not made yet as many of these steps are made as the programs had made and heard of, and the rest is
//! theirs: "for this request that you have". Whose request nobody has, or who was about to be told of an address, asks as it did.
//!
//! Queue pairs are connected elsewhere ([`crate::rebuild`]): nobody here touches them. What must stay true: events of all this are
//! nobody's.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::RawFd,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_ckpt_ib::{Name, Process};
use snaprig_verbs_cm::abi::{BindIp, EventAnswer, Header, Listen, Sockaddr};
use zerocopy::FromBytes;

use super::{
    Ends, ID_AT, Id, PS_UDP, QP_AT, Stage,
    device::{self, command, event},
    put_word,
};
use crate::{
    objects::{Context, does_not_wait},
    state::{Receive, Request, Things},
};

/// How long connections may take.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often the devices are looked at.
pub const LOOK_EVERY: Duration = Duration::from_micros(200);
/// Of connections (`enum rdma_ucm_port_space`).
const PS_TCP: u16 = 0x0106;
/// `enum ibv_qp_type`.
const QPT_RC: u8 = 2;
const QPT_UD: u8 = 4;
/// Connections that wait to be taken.
const BACKLOG: u32 = 1024;

/// Where a process that was asked is to be asked again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Listener {
    /// Its queue pairs with such connections.
    pub queue_pairs: Vec<Name>,
    /// What it is asked, and has not made a connection of yet.
    pub requests: Vec<Asked>,
    /// What it asks for itself, or has.
    pub asking: Vec<Ends>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its ports: of connections, and of datagrams.
    pub ports: (u16, u16),
}

/// A request that a process has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Asked {
    pub ends: Ends,
    /// Its id.
    pub number: u32,
    /// As [`Id::psns`] of that.
    pub psns: Option<(u32, u32)>,
}

/// A device of our own, with an id that listens.
#[derive(Debug)]
pub struct Listening {
    pub device: RawFd,
}

pub fn said(what: &str, errno: c_int) -> String {
    let error = std::io::Error::from_raw_os_error(errno);
    format!("the connection manager (rdma_cm): {what}: {error}")
}

/// Moves an id to a device.
pub fn migrate(to: RawFd, id: u32, from: RawFd) -> Result<(), String> {
    device::migrate(to, id, from).map_err(|errno| said("an id cannot be moved", errno))
}

/// A device that does not wait.
pub fn open() -> Result<RawFd, String> {
    let opened = device::open(libc::O_RDWR | libc::O_CLOEXEC);
    let device = opened.map_err(|errno| said("the device cannot be opened", errno))?;
    does_not_wait(device);
    Ok(device)
}

/// Between whom an id connects, if those have addresses of the Internet.
pub fn ends(real: RawFd, id: &Id) -> Option<Ends> {
    let found = device::addresses(real, id.real).ok()?;
    let address = |of: Sockaddr| of.get().ok().flatten();
    let (own, other) = (
        address(found.source.address)?,
        address(found.target.address)?,
    );
    let (asks, asked) = if id.asks { (own, other) } else { (other, own) };
    Some(Ends {
        asks,
        asked,
        port_space: id.port_space,
    })
}

/// Who binds to any port has the same one again: others know it.
pub fn keep_port(bind: &mut [u8], real: Option<RawFd>, id: u32) {
    /// Where requests to bind have the port of the address.
    const PORT_AT: usize = size_of::<Header>() + 10;
    let Some(port) = bind
        .get_mut(PORT_AT..PORT_AT + 2)
        .filter(|port| **port == [0, 0])
    else {
        return;
    };
    let bound = real.and_then(|real| device::addresses(real, id).ok());
    let address = bound.and_then(|bound| bound.source.address.get().ok().flatten());
    if let Some(address) = address {
        port.copy_from_slice(&address.port().to_be_bytes());
    }
}

impl Things {
    /// What the job calls the queue pair with this number.
    fn name_of(&self, number: u32) -> Option<(Name, u32)> {
        let mut qps = self.qps.iter().filter(|qp| !qp.is_null());
        // SAFETY: what is in the table is alive, and so is its context.
        let qp = qps.find(|qp| unsafe { (***qp).ex.qp_base.qp_num } == number)?;
        // SAFETY: the same.
        let (context, place) = unsafe { ((**qp).ex.qp_base.context, (**qp).place) };
        // SAFETY: the same.
        let port = unsafe { Context::of(context) }.port();
        Some((Name { port, number }, place))
    }

    /// Opens devices again, and makes ids again that are not connected; listens for those that were asked. In a move (`moves`) who
    /// was there listens as yet: what ids are bound to, and have resolved, waits for [`Self::bind_again`].
    pub fn manage_again(&mut self, moves: bool) -> Result<Listener, String> {
        for channel in self.manager.channels.values_mut() {
            // What was open is another file now, of ours.
            device::close(channel.real);
            channel.real = open()?;
            let added = channel.gate.add(channel.real);
            added.map_err(|error| said("its events", error.raw_os_error()))?;
        }
        let mut own = Listener::default();
        let numbers: Vec<u32> = self.manager.ids.keys().copied().collect();
        for number in numbers {
            let Some(id) = self.manager.ids.get(&number).cloned() else {
                continue;
            };
            if id.asks {
                own.asking.extend(id.ends);
            }
            match id.stage {
                Stage::Connected(false) => {
                    let name = self.name_of(id.qp).map(|(name, _)| name);
                    own.queue_pairs.extend(name);
                }
                Stage::Connecting | Stage::Answered if !id.asks => {
                    own.requests.extend(id.ends.map(|ends| Asked {
                        ends,
                        number,
                        psns: id.psns,
                    }));
                    self.make_again(number, &id)?;
                }
                _ => self.make_again(number, &id)?,
            }
        }
        if !moves {
            self.bind_again(false)?;
        }
        self.listen_for(&mut own)?;
        Ok(own)
    }

    /// Listens for those that were asked, if some were.
    pub fn listen_for(&mut self, own: &mut Listener) -> Result<(), String> {
        if own.queue_pairs.is_empty() && own.requests.is_empty() {
            return Ok(());
        }
        let device = open()?;
        self.manager.listening = Some(Listening { device });
        let port = |space, kind| {
            let port = listen(device, space, kind);
            port.map_err(|errno| said("nobody can be heard", errno))
        };
        own.ports = (port(PS_TCP, QPT_RC)?, port(PS_UDP, QPT_UD)?);
        own.addresses = own_addresses();
        Ok(())
    }

    /// Makes an id.
    fn make_again(&mut self, number: u32, id: &Id) -> Result<(), String> {
        let Some(real) = self.manager.device_of(id) else {
            return Ok(());
        };
        let made = device::create_id(real, id.uid, id.port_space, id.qp_type);
        let new = made.map_err(|errno| said("an id cannot be made again", errno))?;
        if let Some(id) = self.manager.ids.get_mut(&number) {
            id.real = new;
        }
        Ok(())
    }

    /// Does again what made ids what they were that are not connected. In a move, once the others are gone that were bound alike.
    pub fn bind_again(&mut self, moves: bool) -> Result<(), String> {
        let all = self.manager.ids.values();
        let all = all.filter(|id| id.stage == Stage::Quiet && !id.commands.is_empty());
        let all: Vec<Id> = all.cloned().collect();
        if all.is_empty() {
            return Ok(());
        }
        let own = open()?;
        for id in &all {
            self.repeat_all(own, id, moves)?;
        }
        device::close(own);
        Ok(())
    }

    /// On a device of our own, so that no event of another id is in the way.
    fn repeat_all(&mut self, own: RawFd, id: &Id, waits: bool) -> Result<(), String> {
        let Some(channel) = self.manager.device_of(id) else {
            return Ok(());
        };
        migrate(own, id.real, channel)?;
        let is_resolving = |bytes: &&Vec<u8>| {
            Header::read_from_prefix(bytes).is_ok_and(|(header, _)| is_answered_late(&header))
        };
        // The last ones are those that the program has not heard of.
        let mut known = id.commands.iter().filter(is_resolving).count();
        known = known.saturating_sub(id.awaited as usize);
        let begun = Instant::now();
        for bytes in &id.commands {
            let mut done = repeat(own, id.real, bytes);
            while waits && done.is_err() && begun.elapsed() < PATIENCE {
                std::thread::sleep(LOOK_EVERY);
                done = repeat(own, id.real, bytes);
            }
            let Some(event) = done.map_err(|errno| said("an id cannot be bound again", errno))?
            else {
                continue;
            };
            let is_resolved = matches!(event.event, event::ADDR_RESOLVED | event::ROUTE_RESOLVED);
            match known.checked_sub(1) {
                Some(left) => known = left,
                None => self.tell(id.channel, event),
            }
            // Whom it has resolved is not there any more: the program hears of that when it connects.
            if !is_resolved {
                break;
            }
        }
        migrate(channel, id.real, own)
    }

    /// The program has an event of an id below.
    fn tell(&mut self, channel: RawFd, event: EventAnswer) {
        let event = self.heard(channel, event);
        if let Some(channel) = self.manager.channels.get_mut(&channel) {
            channel.pending.push_back(event);
            channel.gate.ring();
        }
    }

    /// Connects again what was connected: `all` is where others listen.
    pub fn connect_again(
        &mut self,
        process: &Process<Request, Receive>,
        all: &[Listener],
    ) -> Result<(), String> {
        let numbers = self.manager.ids.keys().copied().collect();
        let (calls, awaited, unheard) = self.find_ends(process, all, &numbers);
        if calls.is_empty() && awaited.is_empty() && unheard.is_empty() {
            return Ok(());
        }
        let own = open()?;
        // Ids that ask do so on a device of our own, so that their events are nobody's.
        let mut asking = BTreeMap::new();
        for mut call in calls {
            let Some(id) = self.manager.ids.get(&call.number) else {
                continue;
            };
            let Some(channel) = self.manager.device_of(id) else {
                continue;
            };
            migrate(own, id.real, channel)?;
            call.next(own, id.real)?;
            asking.insert(id.real, call);
        }
        self.exchange(own, asking, awaited)?;
        for number in unheard {
            self.ask_again(own, number)?;
        }
        device::close(own);
        if let Some(listening) = self.manager.listening.take() {
            device::close(listening.device);
        }
        Ok(())
    }

    /// Queue pairs of ids, by number: what the job calls them, and their peers.
    pub fn names_of_ids(
        &self,
        process: &Process<Request, Receive>,
    ) -> BTreeMap<u32, (Name, Option<Name>)> {
        let named = self.manager.ids.values().filter_map(|id| {
            let (name, place) = self.name_of(id.qp)?;
            let pair = process.qps.get(place as usize).and_then(Option::as_ref);
            let peer = pair.and_then(|pair| pair.peer);
            Some((id.qp, (name, peer.map(|peer| self.names.canonical(peer)))))
        });
        named.collect()
    }

    /// An id whose request nobody has had asks again, as it has asked.
    fn ask_again(&mut self, own: RawFd, number: u32) -> Result<(), String> {
        let Some(id) = self.manager.ids.get(&number).cloned() else {
            return Ok(());
        };
        let Some(channel) = self.manager.device_of(&id) else {
            return Ok(());
        };
        migrate(own, id.real, channel)?;
        let mut done = Ok(());
        for bytes in &id.commands {
            done = done.and_then(|()| repeat(own, id.real, bytes).map(drop));
        }
        migrate(channel, id.real, own)?;
        let last = self.renewed(&id.last, &id);
        // SAFETY: a request to connect has no answer.
        let done = done.and_then(|()| unsafe { device::perform(channel, &last) });
        if let Err(errno) = done {
            self.tell(
                id.channel,
                EventAnswer {
                    uid: id.uid,
                    id: id.real,
                    event: event::UNREACHABLE,
                    status: -errno,
                    ..EventAnswer::default()
                },
            );
        }
        Ok(())
    }

    /// A command that the program has given for an id, for what is there now.
    pub(super) fn renewed(&self, bytes: &[u8], id: &Id) -> Vec<u8> {
        let mut bytes = of_id(bytes, id.real);
        if let Ok((header, _)) = Header::read_from_prefix(&bytes)
            && let Some((_, at)) = QP_AT.into_iter().find(|(of, _)| *of == header.command)
        {
            put_word(&mut bytes, at, self.real_qp(id.qp));
        }
        bytes
    }
}

/// Listens at a port of its own, everywhere; the port. Events of it have the port space for a name.
fn listen(device: RawFd, port_space: u16, qp_type: u8) -> Result<u16, c_int> {
    let id = device::create_id(device, port_space.into(), port_space, qp_type)?;
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let bind = BindIp {
        response: 0,
        address: any.into(),
        id,
    };
    device::ask(device, command::BIND_IP, &bind)?;
    let backlog = BACKLOG;
    device::ask(device, command::LISTEN, &Listen { id, backlog })?;
    let address = device::addresses(device, id)?
        .source
        .address
        .get()
        .map_err(|error| error.raw_os_error())?;
    Ok(address.map_or(0, |address| address.port()))
}

/// Addresses by which others may reach this process: those of the machine's links, and its own.
fn own_addresses() -> Vec<IpAddr> {
    let mut all = Vec::new();
    let mut first = std::ptr::null_mut();
    // SAFETY: getifaddrs(3) gives a list, which is read while it is there, and freed once. An address of this family is of this
    // structure.
    unsafe {
        if libc::getifaddrs(&mut first) == 0 {
            let mut next = first;
            while let Some(one) = next.as_ref() {
                next = one.ifa_next;
                if let Some(address) = one.ifa_addr.as_ref()
                    && i32::from(address.sa_family) == libc::AF_INET
                {
                    let v4 = &*one.ifa_addr.cast::<libc::sockaddr_in>();
                    let v4 = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                    if !v4.is_loopback() {
                        all.push(v4.into());
                    }
                }
            }
            libc::freeifaddrs(first);
        }
    }
    all.push(Ipv4Addr::LOCALHOST.into());
    all
}

/// A command of the program's, with the id that is there now.
fn of_id(bytes: &[u8], id: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Ok((header, _)) = Header::read_from_prefix(&bytes)
        && let Some(at) = ID_AT.get(header.command as usize).copied().flatten()
    {
        put_word(&mut bytes, at, id);
    }
    bytes
}

/// Whether a command comes to an event.
fn is_answered_late(header: &Header) -> bool {
    matches!(
        header.command,
        command::RESOLVE_IP | command::RESOLVE_ROUTE | command::RESOLVE_ADDR
    )
}

/// Does a command again that made an id what it is; the event that it came to, if it is one that comes to one.
fn repeat(real: RawFd, id: u32, bytes: &[u8]) -> Result<Option<EventAnswer>, c_int> {
    let bytes = of_id(bytes, id);
    let (header, _) = Header::read_from_prefix(&bytes).map_err(|_| libc::EINVAL)?;
    // SAFETY: commands that are kept have no room for an answer.
    unsafe { device::perform(real, &bytes)? };
    if !is_answered_late(&header) {
        return Ok(None);
    }
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        match device::take_event(real) {
            Ok(event) if event.id == id => return Ok(Some(event)),
            Ok(_) => {}
            Err(libc::EAGAIN) => std::thread::sleep(LOOK_EVERY),
            Err(errno) => return Err(errno),
        }
    }
    Err(libc::ETIMEDOUT)
}
