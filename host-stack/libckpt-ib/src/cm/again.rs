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
    collections::{BTreeMap, BTreeSet},
    ffi::c_int,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::RawFd,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_ckpt_ib::{Name, Process};
use snaprig_verbs_cm::abi::{
    Accept, BindIp, ConnParam, Connect, Ece, EventAnswer, Header, InitQpAttr, Listen, OfId, QpAttr,
    Query, QueryAddrAnswer, ResolveIp, ResolveRoute, Sockaddr, UdParam,
};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    Ends, ID_AT, Id, PS_UDP, QP_AT, Stage,
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
const MAGIC: &[u8; 8] = b"snaprig\x02";
/// Of connections (`enum rdma_ucm_port_space`).
const PS_TCP: u16 = 0x0106;
/// `enum ibv_qp_type`.
const QPT_RC: u8 = 2;
const QPT_UD: u8 = 4;
/// `enum ibv_qp_state`.
const RTR: u32 = 2;
const RTS: u32 = 3;
/// Connections that wait to be taken.
const BACKLOG: u32 = 1024;
/// How often who has lost a packet asks again (rdma_connect(3)).
const RETRIES: u8 = 7;

/// Where a process that was asked is to be asked again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Listener {
    /// Its queue pairs with such connections.
    queue_pairs: Vec<Name>,
    /// What it is asked, and has not made a connection of yet.
    requests: Vec<Asked>,
    /// What it asks for itself, or has.
    asking: Vec<Ends>,
    /// Its addresses.
    addresses: Vec<IpAddr>,
    /// Its ports: of connections, and of datagrams.
    ports: (u16, u16),
}

/// A request that a process has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Asked {
    ends: Ends,
    /// Its id.
    number: u32,
    /// As [`Id::psns`] of that.
    psns: Option<(u32, u32)>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sought {
    /// The connection of a queue pair.
    QueuePair(Name),
    /// What an id was asked.
    Request(u32),
}

/// A device of our own, with an id that listens.
#[derive(Debug)]
pub struct Listening {
    device: RawFd,
}

/// Connections of a process that stays with those that move, beside what there is.
#[derive(Debug, Default)]
pub struct Follows {
    /// Ids that are connected so.
    numbers: BTreeSet<u32>,
    /// A device of our own.
    own: Option<RawFd>,
    /// For which id, on which device, what was made.
    made: Vec<(u32, RawFd, u32)>,
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

/// What a request of ours is for.
fn private_data(to: Sought) -> Vec<u8> {
    let (port, number) = match to {
        Sought::QueuePair(name) => (name.port, u64::from(name.number)),
        // No port of an HCA is called so.
        Sought::Request(number) => (0, u64::from(number)),
    };
    [&MAGIC[..], &port.to_ne_bytes(), &number.to_ne_bytes()].concat()
}

fn read_private_data(data: &[u8]) -> Option<Sought> {
    let rest = data.strip_prefix(&MAGIC[..])?;
    let (port, rest) = u64::read_from_prefix(rest).ok()?;
    let (number, _) = u64::read_from_prefix(rest).ok()?;
    let number = number as u32;
    Some(match port {
        0 => Sought::Request(number),
        _ => Sought::QueuePair(Name { port, number }),
    })
}

/// Between which addresses an id is.
fn addresses(real: RawFd, id: u32) -> Result<QueryAddrAnswer, c_int> {
    device::ask_for(real, command::QUERY, |response| Query {
        response,
        id,
        option: 0,
    })
}

/// Between whom an id connects, if those have addresses of the Internet.
pub fn ends(real: RawFd, id: &Id) -> Option<Ends> {
    let found = addresses(real, id.real).ok()?;
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
    let bound = real.and_then(|real| addresses(real, id).ok());
    let address = bound.and_then(|bound| bound.source.address.get().ok().flatten());
    if let Some(address) = address {
        port.copy_from_slice(&address.port().to_be_bytes());
    }
}

/// With what numbers packets begin of a connection that an id is asked for: those that it receives, and those that it sends.
pub fn psns(real: RawFd, id: u32) -> Option<(u32, u32)> {
    let attr = |qp_state| {
        let asked: Result<QpAttr, c_int> =
            device::ask_for(real, command::INIT_QP_ATTR, |response| InitQpAttr {
                response,
                id,
                qp_state,
            });
        asked.ok()
    };
    Some((attr(RTR)?.rq_psn, attr(RTS)?.sq_psn))
}

/// What a request that has come to one of [`listen`] is for.
fn sought_by(request: &EventAnswer) -> Option<Sought> {
    let param = request.param.as_bytes();
    if request.uid == u64::from(PS_UDP) {
        let (param, _) = UdParam::read_from_prefix(param).ok()?;
        return read_private_data(&param.private_data);
    }
    let (param, _) = ConnParam::read_from_prefix(param).ok()?;
    read_private_data(&param.private_data)
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
            if id.asks && !matches!(id.stage, Stage::Quiet | Stage::Over) {
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
    fn listen_for(&mut self, own: &mut Listener) -> Result<(), String> {
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
        let Some(channel) = self.manager.channels.get(&id.channel) else {
            return Ok(());
        };
        let channel = channel.real;
        let moved = |errno| said("an id cannot be moved", errno);
        migrate(own, id.real, channel).map_err(moved)?;
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
        migrate(channel, id.real, own).map_err(moved)
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
            let Some(channel) = self.manager.channels.get(&id.channel) else {
                continue;
            };
            let on = migrate(own, id.real, channel.real);
            on.map_err(|errno| said("an id cannot be moved", errno))?;
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

    /// Where ids find the other ends of their connections: those that ask, those that are asked, and those whose request nobody has.
    fn find_ends(
        &mut self,
        process: &Process<Request, Receive>,
        all: &[Listener],
        numbers: &BTreeSet<u32>,
    ) -> (Vec<Call>, BTreeMap<Sought, u32>, Vec<u32>) {
        let names = self.names_of_ids(process);
        let (mut calls, mut awaited, mut unheard) = (Vec::new(), BTreeMap::new(), Vec::new());
        let asking: BTreeSet<&Ends> = all.iter().flat_map(|one| &one.asking).collect();
        let ids = self.manager.ids.iter_mut();
        for (number, id) in ids.filter(|(number, _)| numbers.contains(number)) {
            if !id.asks {
                let sought = match id.stage {
                    Stage::Connected(_) => {
                        names.get(&id.qp).map(|(name, _)| Sought::QueuePair(*name))
                    }
                    Stage::Connecting | Stage::Answered => {
                        let is_asked = id.ends.is_some_and(|ends| asking.contains(&ends));
                        is_asked.then_some(Sought::Request(*number))
                    }
                    Stage::Quiet | Stage::Over => None,
                };
                awaited.extend(sought.map(|sought| (sought, *number)));
                continue;
            }
            if matches!(id.stage, Stage::Quiet | Stage::Over) {
                continue;
            }
            let peer = names.get(&id.qp).and_then(|(_, peer)| *peer);
            let by_peer = peer.and_then(|peer| {
                let listener = all.iter().find(|one| one.queue_pairs.contains(&peer))?;
                Some((listener, Sought::QueuePair(peer)))
            });
            let by_peer = by_peer.filter(|_| id.stage == Stage::Connected(true));
            let found = by_peer.or_else(|| {
                let ends = id.ends?;
                all.iter().find_map(|listener| {
                    let asked = listener.requests.iter().find(|asked| asked.ends == ends)?;
                    id.psns = asked.psns.map(|(receives, sends)| (sends, receives));
                    Some((listener, Sought::Request(asked.number)))
                })
            });
            match found {
                Some((listener, sought)) => {
                    let port = match id.port_space {
                        PS_UDP => listener.ports.1,
                        _ => listener.ports.0,
                    };
                    calls.push(Call::new(*number, sought, (&listener.addresses, port)));
                }
                None if id.stage == Stage::Connecting => unheard.push(*number),
                // Whose peer has gone is connected to nobody.
                None => {}
            }
        }
        (calls, awaited, unheard)
    }

    /// Others move, of whose queue pairs these are the names: ids that are connected with them, and where those are listened for
    /// that were asked.
    pub fn follow(
        &mut self,
        process: &Process<Request, Receive>,
        moved: &BTreeSet<Name>,
    ) -> Result<Listener, String> {
        let names = self.names_of_ids(process);
        let mut own = Listener::default();
        let mut follows = Follows::default();
        for (number, id) in &self.manager.ids {
            let named = names.get(&id.qp);
            let Some((name, _)) =
                named.filter(|(_, peer)| peer.is_some_and(|peer| moved.contains(&peer)))
            else {
                continue;
            };
            if let Stage::Connected(asks) = id.stage {
                follows.numbers.insert(*number);
                own.queue_pairs.extend((!asks).then_some(*name));
            }
        }
        if !follows.numbers.is_empty() {
            follows.own = Some(open()?);
        }
        self.manager.follows = Some(follows);
        self.listen_for(&mut own)?;
        Ok(own)
    }

    /// Connects with those that move, beside what there is.
    pub fn connect_beside(
        &mut self,
        process: &Process<Request, Receive>,
        all: &[Listener],
    ) -> Result<(), String> {
        let Some(follows) = &self.manager.follows else {
            return Ok(());
        };
        let Some(own) = follows.own else {
            return Ok(());
        };
        let numbers = follows.numbers.clone();
        let (calls, awaited, _) = self.find_ends(process, all, &numbers);
        let mut asking = BTreeMap::new();
        for mut call in calls {
            let Some(id) = self.manager.ids.get(&call.number) else {
                continue;
            };
            let made = device::create_id(own, id.uid, id.port_space, id.qp_type);
            let real = made.map_err(|errno| said("an id cannot be made again", errno))?;
            call.next(own, real)?;
            asking.insert(real, call);
        }
        self.exchange(own, asking, awaited)
    }

    /// It is decided that they move: what was made takes the place of what there was.
    pub fn change_over_ids(&mut self) -> Result<(), String> {
        let made = self
            .manager
            .follows
            .as_mut()
            .map(|follows| std::mem::take(&mut follows.made));
        for (number, from, real) in made.into_iter().flatten() {
            let Some(id) = self.manager.ids.get(&number) else {
                continue;
            };
            self.destroy_below(id)?;
            self.hand_over_to(number, from, real)?;
        }
        self.leave_ids();
        Ok(())
    }

    /// What was made beside goes, or is where it belongs.
    pub fn leave_ids(&mut self) {
        let own = self.manager.follows.take().and_then(|follows| follows.own);
        let listening = self.manager.listening.take().map(|one| one.device);
        for device in own.into_iter().chain(listening) {
            device::close(device);
        }
    }

    /// Queue pairs of ids, by number: what the job calls them, and their peers.
    fn names_of_ids(
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
        let Some(channel) = self
            .manager
            .channels
            .get(&id.channel)
            .map(|channel| channel.real)
        else {
            return Ok(());
        };
        let moved = |errno| said("an id cannot be moved", errno);
        migrate(own, id.real, channel).map_err(moved)?;
        let mut done = Ok(());
        for bytes in &id.commands {
            done = done.and_then(|()| repeat(own, id.real, bytes).map(drop));
        }
        migrate(channel, id.real, own).map_err(moved)?;
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
    fn renewed(&self, bytes: &[u8], id: &Id) -> Vec<u8> {
        let mut bytes = of_id(bytes, id.real);
        let head = size_of::<Header>();
        if let Ok((header, _)) = Header::read_from_prefix(&bytes)
            && let Some((_, at)) = QP_AT.into_iter().find(|(of, _)| *of == header.command)
            && let Some(place) = bytes.get_mut(head + at..head + at + 4)
        {
            place.copy_from_slice(&self.real_qp(id.qp).to_ne_bytes());
        }
        bytes
    }

    /// How an id asks for what it had asked for.
    fn param_of(&self, id: &Id, to: Sought) -> ConnParam {
        let (qp, data) = (self.real_qp(id.qp), private_data(to));
        let asked = id.last.get(size_of::<Header>()..);
        let asked = asked.and_then(|bytes| ConnParam::read_from_prefix(bytes).ok());
        let default = param(qp, &data);
        match asked {
            Some((asked, _)) => ConnParam {
                qp_num: qp,
                private_data: default.private_data,
                private_data_bytes: default.private_data_bytes,
                ..asked
            },
            None => default,
        }
    }

    fn exchange(
        &mut self,
        own: RawFd,
        mut calls: BTreeMap<u32, Call>,
        mut awaited: BTreeMap<Sought, u32>,
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
                let (number, sought) = (call.number, call.sought);
                let Some(id) = self.manager.ids.get(&number) else {
                    return Ok(());
                };
                let request = Connect {
                    param: self.param_of(id, sought),
                    id: event.id,
                    reserved: 0,
                    ece: Ece::default(),
                };
                let done = device::ask(own, command::CONNECT, &request);
                done.map_err(|errno| said("a connection cannot be asked for", errno))?;
                // The answer is the program's.
                if id.stage == Stage::Connecting {
                    calls.remove(&event.id);
                    return self.hand_over(own, event.id, number);
                }
                Ok(())
            }
            event::CONNECT_RESPONSE | event::ESTABLISHED => {
                let number = call.number;
                let stage = self.manager.ids.get(&number).map(|id| id.stage);
                if event.event == event::CONNECT_RESPONSE && stage != Some(Stage::Answered) {
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
        awaited: &mut BTreeMap<Sought, u32>,
        accepted: &mut BTreeMap<u32, u32>,
    ) -> Result<(), String> {
        match event.event {
            event::CONNECT_REQUEST => {
                let Some(number) = sought_by(event).and_then(|sought| awaited.remove(&sought))
                else {
                    return Ok(());
                };
                let Some(id) = self.manager.ids.get(&number).cloned() else {
                    return Ok(());
                };
                if matches!(id.stage, Stage::Connecting | Stage::Answered) {
                    return self.asked_half(device, event.id, number, &id);
                }
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

    /// A request that a program is to answer, or has answered, is there again: what comes of it is the program's.
    fn asked_half(&mut self, device: RawFd, real: u32, number: u32, id: &Id) -> Result<(), String> {
        // It stood for this one until now.
        self.destroy_below(id)?;
        if id.stage == Stage::Answered {
            let now = Id { real, ..id.clone() };
            let bytes = self.renewed(&id.last, &now);
            // SAFETY: an answer has none itself.
            let done = unsafe { device::perform(device, &bytes) };
            done.map_err(|errno| said("a connection cannot be accepted", errno))?;
        }
        self.hand_over(device, real, number)
    }

    /// What stands for an id goes, and its events.
    fn destroy_below(&self, id: &Id) -> Result<(), String> {
        let Some(channel) = self.manager.channels.get(&id.channel) else {
            return Ok(());
        };
        let gone: Result<u32, c_int> =
            device::ask_for(channel.real, command::DESTROY_ID, |response| OfId {
                response,
                id: id.real,
                reserved: 0,
            });
        gone.map(drop)
            .map_err(|errno| said("an id does not go", errno))
    }

    /// An id below is the program's from here on; where others move, once that is decided.
    fn hand_over(&mut self, from: RawFd, real: u32, number: u32) -> Result<(), String> {
        if let Some(follows) = &mut self.manager.follows {
            follows.made.push((number, from, real));
            return Ok(());
        }
        self.hand_over_to(number, from, real)
    }

    /// Its events go to the program's channel.
    fn hand_over_to(&mut self, number: u32, from: RawFd, real: u32) -> Result<(), String> {
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
    sought: Sought,
    /// Where its peer may be.
    addresses: Vec<SocketAddr>,
}

impl Call {
    fn new(number: u32, sought: Sought, (addresses, port): (&[IpAddr], u16)) -> Self {
        let all = addresses.iter().rev();
        Self {
            number,
            sought,
            addresses: all.map(|address| SocketAddr::new(*address, port)).collect(),
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
            "the connection manager (rdma_cm): {:?} is nowhere",
            self.sought
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
    let address = addresses(device, id)?
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
    let head = size_of::<Header>();
    if let Ok((header, _)) = Header::read_from_prefix(&bytes)
        && let Some(at) = ID_AT.get(header.command as usize).copied().flatten()
        && let Some(place) = bytes.get_mut(head + at..head + at + 4)
    {
        place.copy_from_slice(&id.to_ne_bytes());
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
