//! Connections are made again: who asks whom, and how far each goes by itself. The diagram is in [`super::again`].
//!
//! What must stay true: what comes of a connection that was half made is the program's; of all others, nobody's.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::c_int,
    net::{IpAddr, SocketAddr},
    os::fd::RawFd,
    time::Instant,
};

use snaprig_ckpt_ib::{Name, Process};
use snaprig_verbs_cm::abi::{
    Accept, ConnParam, Connect, Ece, EventAnswer, Header, OfId, ResolveIp, ResolveRoute, Sockaddr,
    UdParam,
};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    Ends, Id, PS_UDP, Stage,
    again::{LOOK_EVERY, Listener, PATIENCE, migrate, said},
    device::{self, command, event},
};
use crate::state::{Receive, Request, Things};

/// How long a step of one may take, in milliseconds.
const STEP_MS: u32 = 5000;
/// What a request of ours begins with.
const MAGIC: &[u8; 8] = b"snaprig\x02";
/// How often who has lost a packet asks again (rdma_connect(3)).
const RETRIES: u8 = 7;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sought {
    /// The connection of a queue pair.
    QueuePair(Name),
    /// What an id was asked.
    Request(u32),
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

/// What a request is for that has come to who listens for such ([`super::again`]).
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

/// An id that asks.
pub struct Call {
    /// The program's number for it.
    pub number: u32,
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
    pub fn next(&mut self, own: RawFd, real: u32) -> Result<(), String> {
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

impl Things {
    /// Where ids find the other ends of their connections: those that ask, those that are asked, and those whose request nobody has.
    pub fn find_ends(
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

    pub fn exchange(
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
    pub(super) fn destroy_below(&self, id: &Id) -> Result<(), String> {
        let Some(channel) = self.manager.device_of(id) else {
            return Ok(());
        };
        let gone: Result<u32, c_int> =
            device::ask_for(channel, command::DESTROY_ID, |response| OfId {
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
    pub fn hand_over_to(&mut self, number: u32, from: RawFd, real: u32) -> Result<(), String> {
        let Some(id) = self.manager.ids.get_mut(&number) else {
            return Ok(());
        };
        id.real = real;
        match self.manager.channels.get(&id.channel) {
            Some(channel) => migrate(channel.real, real, from),
            None => Ok(()),
        }
    }
}
