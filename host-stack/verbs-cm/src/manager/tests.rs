//! Two processes, whose managers are joined by a network of queues.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
};

use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros};

use super::*;
use crate::{
    abi::{
        Accept, BindIp, Connect, CreateId, Disconnect, EventAnswer, GetEvent, IdAnswer, Listen,
        OfId, Reject, ResolveIp, ResolveRoute, Sockaddr,
    },
    command::Command,
    host::{NotConnected, Port, Service},
    wire::{Endpoint, REJ_INVALID_SERVICE},
};

const SERVER: usize = 0;
const CLIENT: usize = 1;
const CHANNEL: Channel = Channel(3);
const PS_TCP: u16 = 0x0106;
const QPT_RC: u8 = 2;
const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 7174);
const MS: u64 = 1_000_000;

/// What goes from one process to the other.
#[derive(Debug)]
enum Traffic {
    Accepted { listener: LinkId, new: LinkId },
    Message(LinkId, Message),
    End(LinkId),
}

/// All sockets of both processes, and what is under way.
#[derive(Debug, Default)]
struct Network {
    next_link: u64,
    listeners: BTreeMap<String, (usize, LinkId)>,
    /// Each end of a connection: whose it is, and the other end.
    ends: BTreeMap<LinkId, (usize, LinkId)>,
    /// For each process, in order.
    under_way: [VecDeque<Traffic>; 2],
}

impl Network {
    fn link(&mut self) -> LinkId {
        self.next_link += 1;
        LinkId(self.next_link)
    }

    fn name(service: &Service) -> String {
        format!("{}-{}", service.space, service.address.port())
    }

    fn send(&mut self, link: LinkId, message: Message) {
        if let Some((_, other)) = self.ends.get(&link)
            && let Some((process, _)) = self.ends.get(other)
        {
            self.under_way[*process].push_back(Traffic::Message(*other, message));
        }
    }

    fn close(&mut self, link: LinkId) {
        self.listeners.retain(|_, (_, listener)| *listener != link);
        if let Some((_, other)) = self.ends.remove(&link)
            && let Some((process, _)) = self.ends.get(&other)
        {
            self.under_way[*process].push_back(Traffic::End(other));
        }
    }
}

/// The network, as one of the processes sees it.
struct Seen<'a> {
    network: &'a mut Network,
    process: usize,
}

impl Host for Seen<'_> {
    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || address.is_unspecified()
    }

    fn source_for(&self, target: std::net::SocketAddr) -> Option<IpAddr> {
        Some(target.ip())
    }

    fn port_at(&self, _address: IpAddr) -> Result<Port, Errno> {
        Ok(Port {
            hca: 0,
            node_guid: 1,
            endpoint: Endpoint {
                lid: 1,
                gid: [1; 16],
            },
        })
    }

    fn mtu_bytes(&self) -> u32 {
        4096
    }

    fn is_taken(&self, service: &Service) -> bool {
        self.network.listeners.contains_key(&Network::name(service))
    }

    fn listen(&mut self, service: &Service, _ipv6_only: bool) -> Result<LinkId, Errno> {
        let link = self.network.link();
        let of = (self.process, link);
        self.network.listeners.insert(Network::name(service), of);
        Ok(link)
    }

    fn connect(&mut self, service: &Service, first: &Message) -> Result<LinkId, NotConnected> {
        let listener = self.network.listeners.get(&Network::name(service));
        let (process, listener) = *listener.ok_or(NotConnected::Refused)?;
        let (own, new) = (self.network.link(), self.network.link());
        self.network.ends.insert(own, (self.process, new));
        self.network.ends.insert(new, (process, own));
        self.network.under_way[process].push_back(Traffic::Accepted { listener, new });
        self.network.send(own, first.clone());
        Ok(own)
    }
}

/// Both processes.
struct World {
    managers: [Manager; 2],
    network: Network,
    now_ns: u64,
    /// Which channels are readable, as their descriptors would be.
    readable: [BTreeSet<Channel>; 2],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut managers = [Manager::new(seed), Manager::new(seed + 1)];
        for manager in &mut managers {
            manager.open(CHANNEL);
        }
        Self {
            managers,
            network: Network::default(),
            now_ns: 0,
            readable: Default::default(),
        }
    }

    /// Does what a manager says is to be done.
    fn carry_out(&mut self, process: usize) {
        for output in self.managers[process].outputs() {
            match output {
                Output::Send(link, message) => self.network.send(link, message),
                Output::Close(link) => self.network.close(link),
                Output::Readable(channel) => {
                    assert!(self.readable[process].insert(channel), "readable twice");
                }
                Output::Empty(channel) => {
                    assert!(self.readable[process].remove(&channel), "empty twice");
                }
            }
        }
    }

    fn command(&mut self, process: usize, command: Command) -> Result<Reply, Errno> {
        let mut host = Seen {
            network: &mut self.network,
            process,
        };
        let manager = &mut self.managers[process];
        let reply = manager.command(self.now_ns, CHANNEL, &command, None, &mut host);
        self.carry_out(process);
        reply
    }

    /// Delivers the next of what is under way to a process; whether there was any.
    fn deliver(&mut self, process: usize) -> bool {
        let Some(traffic) = self.network.under_way[process].pop_front() else {
            return false;
        };
        let mut host = Seen {
            network: &mut self.network,
            process,
        };
        let manager = &mut self.managers[process];
        match traffic {
            Traffic::Accepted { listener, new } => manager.accepted(listener, new),
            Traffic::Message(link, message) => {
                manager.received(self.now_ns, link, message, &mut host);
            }
            Traffic::End(link) => manager.hung_up(self.now_ns, link),
        }
        self.carry_out(process);
        true
    }

    fn settle(&mut self) {
        while self.deliver(SERVER) || self.deliver(CLIENT) {}
    }

    /// Lets time pass, and what is due be done.
    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        for process in [SERVER, CLIENT] {
            let mut host = Seen {
                network: &mut self.network,
                process,
            };
            self.managers[process].expire(self.now_ns, &mut host);
            self.carry_out(process);
            let next = self.managers[process].next_timeout_ns();
            assert!(next.is_none_or(|next_ns| next_ns > self.now_ns));
        }
        self.settle();
    }

    fn create(&mut self, process: usize, uid: u64) -> u32 {
        let mut create = CreateId::new_zeroed();
        (create.uid, create.port_space, create.qp_type) = (uid, PS_TCP, QPT_RC);
        let reply = self.command(process, Command::CreateId(create));
        let Ok(Reply::Answer(answer)) = reply else {
            panic!("{reply:?}");
        };
        IdAnswer::read_from_bytes(&answer).expect("a handle").id
    }

    fn listen(&mut self, id: u32) -> Result<Reply, Errno> {
        let address = Sockaddr::from(std::net::SocketAddr::from(ADDRESS));
        let bind = BindIp {
            response: 0,
            address,
            id,
        };
        self.command(SERVER, Command::BindIp(bind))?;
        self.command(SERVER, Command::Listen(Listen { id, backlog: 0 }))
    }

    fn resolve(&mut self, id: u32) {
        let target = Sockaddr::from(std::net::SocketAddr::from(ADDRESS));
        let resolve = ResolveIp {
            source: Sockaddr::default(),
            target,
            id,
            timeout_ms: 1000,
        };
        let resolved = self.command(CLIENT, Command::ResolveIp(resolve));
        assert_eq!(resolved, Ok(Reply::Done));
        let route = ResolveRoute {
            id,
            timeout_ms: 1000,
        };
        let resolved = self.command(CLIENT, Command::ResolveRoute(route));
        assert_eq!(resolved, Ok(Reply::Done));
    }

    fn connect(&mut self, id: u32) -> Result<Reply, Errno> {
        let mut connect = Connect::new_zeroed();
        (connect.id, connect.param.valid) = (id, 1);
        self.command(CLIENT, Command::Connect(connect))
    }

    fn accept(&mut self, process: usize, id: u32, uid: u64) -> Result<Reply, Errno> {
        let mut accept = Accept::new_zeroed();
        (accept.id, accept.uid, accept.param.valid) = (id, uid, 1);
        self.command(process, Command::Accept(accept))
    }

    /// The next event of a process: its number, its id and its status.
    fn event(&mut self, process: usize) -> Option<(u32, u32, i32)> {
        let event = Command::GetEvent(GetEvent { response: 8 });
        match self
            .command(process, event)
            .expect("events can be asked for")
        {
            Reply::Wait => {
                assert!(!self.readable[process].contains(&CHANNEL));
                None
            }
            Reply::Answer(answer) => {
                let event = EventAnswer::read_from_bytes(&answer).expect("an event");
                Some((event.event, event.id, event.status))
            }
            Reply::Done => panic!("no event"),
        }
    }

    fn kinds(&mut self, process: usize) -> Vec<u32> {
        let events = std::iter::from_fn(|| self.event(process));
        events.map(|(kind, ..)| kind).collect()
    }
}

fn number(kinds: &[EventKind]) -> Vec<u32> {
    kinds.iter().map(|kind| *kind as u32).collect()
}

#[test]
fn a_connection_from_the_first_command_to_the_last() {
    use EventKind::*;
    let mut world = World::new(1);
    let listener = world.create(SERVER, 1);
    assert_eq!(world.listen(listener), Ok(Reply::Done));
    let client = world.create(CLIENT, 2);
    world.resolve(client);
    assert_eq!(world.kinds(CLIENT), number(&[AddrResolved, RouteResolved]));
    assert_eq!(world.connect(client), Ok(Reply::Done));
    world.settle();
    let (kind, server, _) = world.event(SERVER).expect("a request");
    assert_eq!(kind, ConnectRequest as u32);
    assert_eq!(world.accept(SERVER, server, 3), Ok(Reply::Done));
    world.settle();
    assert_eq!(world.kinds(CLIENT), number(&[ConnectResponse]));
    assert_eq!(world.accept(CLIENT, client, 0), Ok(Reply::Done));
    world.settle();
    assert_eq!(world.kinds(SERVER), number(&[Established]));
    let disconnect = Command::Disconnect(Disconnect { id: client });
    assert_eq!(world.command(CLIENT, disconnect), Ok(Reply::Done));
    world.settle();
    assert_eq!(world.kinds(SERVER), number(&[Disconnected]));
    assert_eq!(world.kinds(CLIENT), number(&[Disconnected]));
    world.pass(TIMEWAIT.as_nanos() as u64);
    assert_eq!(world.kinds(CLIENT), number(&[TimewaitExit]));
}

#[test]
fn who_asks_before_anybody_listens_waits_a_while() {
    let mut world = World::new(1);
    let client = world.create(CLIENT, 2);
    world.resolve(client);
    world.kinds(CLIENT);
    assert_eq!(world.connect(client), Ok(Reply::Done));
    for _ in 0..100 {
        world.pass(2 * MS);
    }
    assert_eq!(world.event(CLIENT), None);
    let listener = world.create(SERVER, 1);
    assert_eq!(world.listen(listener), Ok(Reply::Done));
    world.pass(2 * MS);
    assert!(world.event(SERVER).is_some());
}

#[test]
fn who_asks_where_nobody_listens_is_refused() {
    let mut world = World::new(1);
    let client = world.create(CLIENT, 2);
    world.resolve(client);
    world.kinds(CLIENT);
    assert_eq!(world.connect(client), Ok(Reply::Done));
    world.pass(LISTEN_PATIENCE.as_nanos() as u64);
    let refused = (
        EventKind::Rejected as u32,
        client,
        REJ_INVALID_SERVICE as i32,
    );
    assert_eq!(world.event(CLIENT), Some(refused));
    assert_eq!(world.managers[CLIENT].next_timeout_ns(), None);
}

#[test]
fn who_closes_a_channel_is_heard_of() {
    let mut world = World::new(1);
    let listener = world.create(SERVER, 1);
    assert_eq!(world.listen(listener), Ok(Reply::Done));
    let client = world.create(CLIENT, 2);
    world.resolve(client);
    world.kinds(CLIENT);
    assert_eq!(world.connect(client), Ok(Reply::Done));
    world.settle();
    world.managers[SERVER].close(CHANNEL);
    world.carry_out(SERVER);
    world.settle();
    assert_eq!(world.kinds(CLIENT), number(&[EventKind::Rejected]));
    assert!(world.network.listeners.is_empty() && world.network.ends.is_empty());
}

/// What may happen in any order: programs that do anything, and a network that delivers when it likes.
#[derive(Clone, Debug)]
enum Move {
    Create(usize),
    Listen(u32),
    Resolve(u32),
    Connect(u32),
    Accept(usize, u32),
    Reject(usize, u32),
    Disconnect(usize, u32),
    Destroy(usize, u32),
    Event(usize),
    Deliver(usize),
    Pass(u64),
}

fn any_move() -> impl Strategy<Value = Move> {
    let (process, id) = (0..2usize, 0..6u32);
    let both = || (process.clone(), id.clone());
    prop_oneof![
        process.clone().prop_map(Move::Create),
        id.clone().prop_map(Move::Listen),
        id.clone().prop_map(Move::Resolve),
        id.clone().prop_map(Move::Connect),
        both().prop_map(|(process, id)| Move::Accept(process, id)),
        both().prop_map(|(process, id)| Move::Reject(process, id)),
        both().prop_map(|(process, id)| Move::Disconnect(process, id)),
        both().prop_map(|(process, id)| Move::Destroy(process, id)),
        process.clone().prop_map(Move::Event),
        process.clone().prop_map(Move::Deliver),
        (0..600 * MS).prop_map(Move::Pass),
    ]
}

impl World {
    fn make(&mut self, it: &Move) {
        match *it {
            Move::Create(process) => drop(self.create(process, 7)),
            Move::Listen(id) => drop(self.listen(id)),
            Move::Resolve(id) => {
                let target = Sockaddr::from(std::net::SocketAddr::from(ADDRESS));
                let source = Sockaddr::default();
                let timeout_ms = 1000;
                let resolve = ResolveIp {
                    source,
                    target,
                    id,
                    timeout_ms,
                };
                let _ = self.command(CLIENT, Command::ResolveIp(resolve));
                let route = ResolveRoute { id, timeout_ms };
                let _ = self.command(CLIENT, Command::ResolveRoute(route));
            }
            Move::Connect(id) => drop(self.connect(id)),
            Move::Accept(process, id) => drop(self.accept(process, id, 9)),
            Move::Reject(process, id) => {
                let mut reject = Reject::new_zeroed();
                reject.id = id;
                let _ = self.command(process, Command::Reject(reject));
            }
            Move::Disconnect(process, id) => {
                let _ = self.command(process, Command::Disconnect(Disconnect { id }));
            }
            Move::Destroy(process, id) => {
                let (response, reserved) = (8, 0);
                let of = OfId {
                    response,
                    id,
                    reserved,
                };
                let _ = self.command(process, Command::DestroyId(of));
            }
            Move::Event(process) => drop(self.event(process)),
            Move::Deliver(process) => drop(self.deliver(process)),
            Move::Pass(ns) => self.pass(ns),
        }
    }
}

proptest! {
    /// `carry_out` and `event` check that a channel is readable exactly while it has events.
    #[test]
    fn nothing_is_left_when_all_ids_are_gone(
        moves in prop::collection::vec(any_move(), 0..120),
        seed in 0..1000u64,
    ) {
        let (mut world, mut again) = (World::new(seed), World::new(seed));
        for it in &moves {
            world.make(it);
            again.make(it);
        }
        prop_assert_eq!(format!("{:?}", world.managers), format!("{:?}", again.managers));
        for process in [SERVER, CLIENT] {
            world.managers[process].close(CHANNEL);
            world.carry_out(process);
        }
        world.settle();
        for manager in &world.managers {
            prop_assert!(manager.ids.is_empty() && manager.groups.is_empty());
            prop_assert!(manager.links.is_empty(), "{:?}", manager.links);
            prop_assert!(manager.timers.is_empty());
        }
        prop_assert!(world.network.listeners.is_empty());
    }
}
