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
use snaprig_verbs_cm::abi::{
    Accept, BindIp, ConnParam, Connect, Ece, EventAnswer, Header, Listen, OfId, Query,
    QueryAddrAnswer, ResolveIp, ResolveRoute, Sockaddr,
};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    ID_AT, Id, Stage,
    device::{self, command, event},
};
use crate::{
    objects::{Context, does_not_wait},
    state::{Receive, Request, Things},
};

/// How long connections may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a step of one may take, in milliseconds.
const STEP_MS: u32 = 5000;
/// How often the devices are looked at.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// What a request of ours begins with.
const MAGIC: &[u8; 8] = b"snaprig\x01";
/// Connections that wait to be taken.
const BACKLOG: u32 = 1024;
/// How often who has lost a packet asks again (rdma_connect(3)).
const RETRIES: u8 = 7;

/// Where a process that was asked is to be asked again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Listener {
    /// Its queue pairs with such connections.
    pub queue_pairs: Vec<Name>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its port.
    pub port: u16,
}

/// A device of our own, with an id that listens.
#[derive(Debug)]
pub struct Listening {
    device: RawFd,
}

fn said(what: &str, errno: c_int) -> String {
    let error = std::io::Error::from_raw_os_error(errno);
    format!("the connection manager (rdma_cm): {what}: {error}")
}

/// A device that does not wait.
fn open() -> Result<RawFd, String> {
    let opened = device::open(libc::O_RDWR | libc::O_CLOEXEC);
    let device = opened.map_err(|errno| said("the device cannot be opened", errno))?;
    does_not_wait(device);
    Ok(device)
}

/// Whom a request of ours is for.
fn private_data(to: Name) -> Vec<u8> {
    let number = u64::from(to.number);
    [&MAGIC[..], &to.port.to_ne_bytes(), &number.to_ne_bytes()].concat()
}

fn read_private_data(data: &[u8]) -> Option<Name> {
    let rest = data.strip_prefix(&MAGIC[..])?;
    let (port, rest) = u64::read_from_prefix(rest).ok()?;
    let (number, _) = u64::read_from_prefix(rest).ok()?;
    let number = number as u32;
    Some(Name { port, number })
}

fn param(qp: u32, data: &[u8]) -> ConnParam {
    let mut param = ConnParam {
        qp_num: qp,
        private_data_bytes: data.len() as u8,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        valid: 1,
        ..ConnParam::default()
    };
    param.private_data[..data.len()].copy_from_slice(data);
    param
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

    /// Opens devices again, and makes ids again that are not connected; listens for those that were asked.
    pub fn manage_again(&mut self) -> Result<Listener, String> {
        for channel in self.manager.channels.values_mut() {
            // What was open is another file now, of ours.
            device::close(channel.real);
            channel.real = open()?;
            let added = channel.gate.add(channel.real);
            added.map_err(|error| said("its events", error.raw_os_error()))?;
        }
        let mut asked = Vec::new();
        let numbers: Vec<u32> = self.manager.ids.keys().copied().collect();
        for number in numbers {
            let Some(id) = self.manager.ids.get(&number).cloned() else {
                continue;
            };
            match id.stage {
                Stage::Connected(false) => asked.extend(self.name_of(id.qp).map(|(name, _)| name)),
                _ => self.make_again(number, &id)?,
            }
        }
        if asked.is_empty() {
            return Ok(Listener::default());
        }
        let device = open()?;
        let listener = listen(device).map_err(|errno| said("nobody can be heard", errno))?;
        self.manager.listening = Some(Listening { device });
        Ok(Listener {
            queue_pairs: asked,
            ..listener
        })
    }

    /// Makes an id, and does again what made it what it was.
    fn make_again(&mut self, number: u32, id: &Id) -> Result<(), String> {
        let Some(real) = self
            .manager
            .channels
            .get(&id.channel)
            .map(|channel| channel.real)
        else {
            return Ok(());
        };
        let made = device::create_id(real, id.uid, id.port_space, id.qp_type);
        let new = made.map_err(|errno| said("an id cannot be made again", errno))?;
        if let Some(id) = self.manager.ids.get_mut(&number) {
            id.real = new;
        }
        if id.stage != Stage::Quiet {
            return Ok(());
        }
        for bytes in &id.commands {
            let done = repeat(real, new, bytes);
            let is_resolved = matches!(
                &done,
                Ok(Some(event::ADDR_RESOLVED | event::ROUTE_RESOLVED))
            );
            match done {
                Ok(None) => {}
                _ if is_resolved => {}
                // Whom it has resolved is not there any more: the program hears of that when it connects.
                Ok(Some(_)) => break,
                Err(errno) => return Err(said("an id cannot be bound again", errno)),
            }
        }
        Ok(())
    }

    /// Connects again what was connected: `all` is where others listen.
    pub fn connect_again(
        &mut self,
        process: &Process<Request, Receive>,
        all: &[Listener],
    ) -> Result<(), String> {
        let mut calls: BTreeMap<u32, Call> = BTreeMap::new();
        let mut awaited: BTreeMap<Name, u32> = BTreeMap::new();
        for (number, id) in &self.manager.ids {
            let Some((name, place)) = self.name_of(id.qp) else {
                continue;
            };
            match id.stage {
                Stage::Connected(false) => drop(awaited.insert(name, *number)),
                Stage::Connected(true) => {
                    let pair = process.qps.get(place as usize).and_then(Option::as_ref);
                    let peer = pair
                        .and_then(|pair| pair.peer)
                        .map(|peer| self.names.canonical(peer));
                    let listener = all
                        .iter()
                        .find(|one| peer.is_some_and(|peer| one.queue_pairs.contains(&peer)));
                    // Whose peer has gone is connected to nobody.
                    if let (Some(peer), Some(listener)) = (peer, listener) {
                        calls.insert(id.real, Call::new(*number, peer, listener));
                    }
                }
                _ => {}
            }
        }
        if calls.is_empty() && awaited.is_empty() {
            return Ok(());
        }
        let own = open()?;
        // Ids that ask do so on a device of our own, so that their events are nobody's.
        let asking: Vec<u32> = calls.keys().copied().collect();
        let mut moved = BTreeMap::new();
        for real in asking {
            let Some(mut call) = calls.remove(&real) else {
                continue;
            };
            let Some(id) = self.manager.ids.get(&call.number) else {
                continue;
            };
            let Some(channel) = self.manager.channels.get(&id.channel) else {
                continue;
            };
            let on = migrate(own, real, channel.real);
            on.map_err(|errno| said("an id cannot be moved", errno))?;
            call.next(own, real)?;
            moved.insert(real, call);
        }
        self.exchange(own, moved, awaited)?;
        device::close(own);
        if let Some(listening) = self.manager.listening.take() {
            device::close(listening.device);
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        own: RawFd,
        mut calls: BTreeMap<u32, Call>,
        mut awaited: BTreeMap<Name, u32>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        let mut accepted: BTreeMap<u32, u32> = BTreeMap::new();
        while !(calls.is_empty() && awaited.is_empty() && accepted.is_empty()) {
            if begun.elapsed() > PATIENCE {
                let (asking, asked) = (calls.len(), awaited.len() + accepted.len());
                return Err(format!(
                    "{asking} connections of the connection manager (rdma_cm) are not answered, {asked} are not asked for"
                ));
            }
            let mut is_quiet = true;
            while let Ok(event) = device::take_event(own) {
                is_quiet = false;
                self.answered(own, &mut calls, &event)?;
            }
            let listening = self.manager.listening.as_ref().map(|one| one.device);
            while let Some(device) = listening
                && let Ok(event) = device::take_event(device)
            {
                is_quiet = false;
                self.asked(device, &event, &mut awaited, &mut accepted)?;
            }
            if is_quiet {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// An event of those that ask.
    fn answered(
        &mut self,
        own: RawFd,
        calls: &mut BTreeMap<u32, Call>,
        event: &EventAnswer,
    ) -> Result<(), String> {
        let Some(call) = calls.get_mut(&event.id) else {
            return Ok(());
        };
        match event.event {
            event::ADDR_RESOLVED => {
                let request = ResolveRoute {
                    id: event.id,
                    timeout_ms: STEP_MS,
                };
                let done = device::ask(own, command::RESOLVE_ROUTE, &request);
                done.map_err(|errno| said("no route", errno))
            }
            event::ROUTE_RESOLVED => {
                let qp = self.manager.ids.get(&call.number).map_or(0, |id| id.qp);
                let request = Connect {
                    param: param(self.real_qp(qp), &private_data(call.peer)),
                    id: event.id,
                    reserved: 0,
                    ece: Ece::default(),
                };
                let done = device::ask(own, command::CONNECT, &request);
                done.map_err(|errno| said("a connection cannot be asked for", errno))
            }
            event::CONNECT_RESPONSE | event::ESTABLISHED => {
                if event.event == event::CONNECT_RESPONSE {
                    let request = Accept {
                        uid: event.uid,
                        param: ConnParam::default(),
                        id: event.id,
                        reserved: 0,
                        ece: Ece::default(),
                    };
                    let done = device::ask(own, command::ACCEPT, &request);
                    done.map_err(|errno| said("an answer cannot be taken", errno))?;
                }
                let number = call.number;
                calls.remove(&event.id);
                self.hand_over(own, event.id, number)
            }
            // There is nobody at this address: another one may do.
            _ => call.next(own, event.id),
        }
    }

    /// An event of the one that listens, or of those that it has made.
    fn asked(
        &mut self,
        device: RawFd,
        event: &EventAnswer,
        awaited: &mut BTreeMap<Name, u32>,
        accepted: &mut BTreeMap<u32, u32>,
    ) -> Result<(), String> {
        match event.event {
            event::CONNECT_REQUEST => {
                let Ok((conn, _)) = ConnParam::read_from_prefix(event.param.as_bytes()) else {
                    return Ok(());
                };
                let name = read_private_data(&conn.private_data);
                let Some(number) = name.and_then(|name| awaited.remove(&name)) else {
                    return Ok(());
                };
                let Some(id) = self.manager.ids.get(&number) else {
                    return Ok(());
                };
                let request = Accept {
                    uid: id.uid,
                    param: param(self.real_qp(id.qp), &[]),
                    id: event.id,
                    reserved: 0,
                    ece: Ece::default(),
                };
                accepted.insert(event.id, number);
                let done = device::ask(device, command::ACCEPT, &request);
                done.map_err(|errno| said("a connection cannot be accepted", errno))
            }
            event::ESTABLISHED => match accepted.remove(&event.id) {
                Some(number) => self.hand_over(device, event.id, number),
                None => Ok(()),
            },
            _ => match accepted.remove(&event.id) {
                Some(_) => Err(said("a connection fails", -event.status)),
                None => Ok(()),
            },
        }
    }

    /// An id below is the program's from here on: its events go to the program's channel.
    fn hand_over(&mut self, from: RawFd, real: u32, number: u32) -> Result<(), String> {
        let Some(id) = self.manager.ids.get_mut(&number) else {
            return Ok(());
        };
        id.real = real;
        let Some(channel) = self.manager.channels.get(&id.channel) else {
            return Ok(());
        };
        let on = migrate(channel.real, real, from);
        on.map_err(|errno| said("an id cannot be moved", errno))
    }
}

/// An id that asks.
struct Call {
    /// The program's number for it.
    number: u32,
    peer: Name,
    /// Where its peer may be.
    addresses: Vec<SocketAddr>,
}

impl Call {
    fn new(number: u32, peer: Name, listener: &Listener) -> Self {
        let all = listener.addresses.iter().rev();
        Self {
            number,
            peer,
            addresses: all
                .map(|address| SocketAddr::new(*address, listener.port))
                .collect(),
        }
    }

    /// Tries the next address.
    fn next(&mut self, own: RawFd, real: u32) -> Result<(), String> {
        while let Some(address) = self.addresses.pop() {
            let request = ResolveIp {
                source: Sockaddr::default(),
                target: address.into(),
                id: real,
                timeout_ms: STEP_MS,
            };
            if device::ask(own, command::RESOLVE_IP, &request).is_ok() {
                return Ok(());
            }
        }
        Err(format!(
            "the connection manager (rdma_cm): {} is nowhere",
            self.peer
        ))
    }
}

/// Moves an id to a device.
fn migrate(to: RawFd, id: u32, from: RawFd) -> Result<(), c_int> {
    let moved: Result<u32, c_int> = device::ask_for(to, command::MIGRATE_ID, |response| OfId {
        response,
        id,
        reserved: from as u32,
    });
    moved.map(drop)
}

/// Listens at a port of its own, everywhere.
fn listen(device: RawFd) -> Result<Listener, c_int> {
    const PS_TCP: u16 = 0x0106;
    const QPT_RC: u8 = 2;
    let id = device::create_id(device, 0, PS_TCP, QPT_RC)?;
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let bind = BindIp {
        response: 0,
        address: any.into(),
        id,
    };
    device::ask(device, command::BIND_IP, &bind)?;
    let backlog = BACKLOG;
    device::ask(device, command::LISTEN, &Listen { id, backlog })?;
    let bound: QueryAddrAnswer = device::ask_for(device, command::QUERY, |response| Query {
        response,
        id,
        option: 0,
    })?;
    let address = bound
        .source
        .address
        .get()
        .map_err(|error| error.raw_os_error())?;
    Ok(Listener {
        queue_pairs: Vec::new(),
        addresses: own_addresses(),
        port: address.map_or(0, |address| address.port()),
    })
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

/// Does a command again that made an id what it is; the event that it came to, if it is one that comes to one.
fn repeat(real: RawFd, id: u32, bytes: &[u8]) -> Result<Option<u32>, c_int> {
    let mut bytes = bytes.to_vec();
    let (header, _) = Header::read_from_prefix(&bytes).map_err(|_| libc::EINVAL)?;
    let head = size_of::<Header>();
    if let Some(at) = ID_AT.get(header.command as usize).copied().flatten() {
        bytes[head + at..head + at + 4].copy_from_slice(&id.to_ne_bytes());
    }
    // SAFETY: commands that are kept have no room for an answer.
    unsafe { device::perform(real, &bytes)? };
    let is_awaited = matches!(
        header.command,
        command::RESOLVE_IP | command::RESOLVE_ROUTE | command::RESOLVE_ADDR
    );
    if !is_awaited {
        return Ok(None);
    }
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        match device::take_event(real) {
            Ok(event) if event.id == id => return Ok(Some(event.event)),
            Ok(_) => {}
            Err(libc::EAGAIN) => std::thread::sleep(LOOK_EVERY),
            Err(errno) => return Err(errno),
        }
    }
    Err(libc::ETIMEDOUT)
}
