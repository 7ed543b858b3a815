//! Two or more nodes, joined in memory, stepped in an order that a seed chooses.

mod credit;
mod fences;
mod lanes;
mod leases;
mod losses;

use std::collections::VecDeque;

use proptest::prelude::*;
use snaprig_wire::{
    dma::Descriptor,
    scif::{Bell, Body, Extent, Fence, Held, LANES_BYTES, Message, PAGE, Way},
};

use super::*;

/// Few bytes fill it.
const WINDOW: usize = 4096;

/// Nodes 0 (the host), 1 and 2; links deliver in order, one message at a time.
struct Net {
    nodes: Vec<Node>,
    links: Vec<VecDeque<(usize, Message)>>,
    done: Vec<BTreeMap<RequestId, Result<Value, i32>>>,
    copies: Vec<(usize, u64, Vec<Descriptor>)>,
    released: Vec<(usize, BackingId)>,
    pokes: Vec<(usize, u64, u64)>,
    rings: Vec<(usize, EndpointId, Bell)>,
    /// For lanes.
    has_room: bool,
    next: u64,
}

impl Net {
    fn new() -> Self {
        let mut net = Self {
            nodes: (0..3).map(|id| Node::with_window(id, WINDOW)).collect(),
            links: (0..3).map(|_| VecDeque::new()).collect(),
            done: vec![BTreeMap::new(); 3],
            copies: Vec::new(),
            released: Vec::new(),
            pokes: Vec::new(),
            rings: Vec::new(),
            has_room: true,
            next: 0,
        };
        for card in 1..3 {
            net.input(0, Input::PeerUp(card));
            net.input(card.into(), Input::PeerUp(0));
        }
        net.settle();
        net
    }

    fn input(&mut self, at: usize, input: Input) {
        self.nodes[at].handle(input);
        while let Some(output) = self.nodes[at].poll_output() {
            match output {
                Output::Done(request, result) => {
                    assert!(
                        self.done[at].insert(request, result).is_none(),
                        "told twice"
                    );
                }
                Output::Send(to, message) => self.links[at].push_back((to.into(), message)),
                Output::Copy { job, copies, .. } => self.copies.push((at, job, copies)),
                Output::Release(backing) => self.released.push((at, backing)),
                Output::Poke { address, bytes, .. } => {
                    let value = bytes.try_into().map_or(0, u64::from_le_bytes);
                    self.pokes.push((at, address, value));
                }
                Output::Changed(_) => {}
                Output::Lay(endpoint) => {
                    self.next += 1;
                    let (address, len) = (self.next << 32, LANES_BYTES);
                    let laid = self
                        .has_room
                        .then_some((Extent { address, len }, self.next));
                    self.nodes[at].handle(Input::Laid(endpoint, laid));
                }
                Output::Ring(endpoint, bell) => self.rings.push((at, endpoint, bell)),
            }
        }
    }

    /// Delivers one message from the link that `choice` picks; false if all are empty.
    fn step(&mut self, choice: usize) -> bool {
        let busy: Vec<_> = (0..3).filter(|at| !self.links[*at].is_empty()).collect();
        let Some(from) = busy.get(choice % busy.len().max(1)) else {
            return false;
        };
        let (to, message) = self.links[*from].pop_front().expect("it is not empty");
        // Through bytes, as over the rings.
        let bytes = snaprig_wire::frame::encode(&message);
        let message = snaprig_wire::frame::decode(&bytes).expect("what was encoded");
        self.input(to, Input::Message(message));
        true
    }

    fn settle(&mut self) {
        while self.step(0) {}
    }

    fn request(&mut self, at: usize, endpoint: EndpointId, op: Op) -> RequestId {
        self.next += 1;
        let request = self.next;
        self.input(at, Input::Request(request, endpoint, op));
        request
    }

    fn ask(&mut self, at: usize, endpoint: EndpointId, op: Op) -> Result<Value, i32> {
        let request = self.request(at, endpoint, op);
        self.settle();
        self.done[at].remove(&request).expect("it has ended")
    }

    fn open(&mut self, at: usize) -> EndpointId {
        self.next += 1;
        self.input(at, Input::Open(self.next));
        self.next
    }

    /// A connection from `from` to `to`: both endpoints.
    fn connect(&mut self, from: usize, to: usize) -> (EndpointId, EndpointId) {
        let listener = self.open(to);
        let port = match self.ask(to, listener, Op::Bind(0)) {
            Ok(Value::Port(port)) => port,
            other => panic!("{other:?}"),
        };
        assert_eq!(self.ask(to, listener, Op::Listen(4)), Ok(Value::Unit));
        let accept = self.request(to, listener, Op::Accept);
        let endpoint = self.open(from);
        let peer = PortId {
            node: to as u16,
            port,
        };
        assert!(matches!(
            self.ask(from, endpoint, Op::Connect(peer)),
            Ok(Value::Port(_))
        ));
        match self.done[to].remove(&accept) {
            Some(Ok(Value::Accepted {
                endpoint: accepted, ..
            })) => (endpoint, accepted),
            other => panic!("{other:?}"),
        }
    }
}

fn extents(address: u64, pages: u64) -> Vec<Extent> {
    vec![Extent {
        address,
        len: pages * PAGE,
    }]
}

#[test]
fn connections_are_refused_where_nobody_listens() {
    let mut net = Net::new();
    let endpoint = net.open(0);
    let nobody = PortId { node: 1, port: 99 };
    assert_eq!(
        net.ask(0, endpoint, Op::Connect(nobody)),
        Err(libc::ECONNREFUSED)
    );
    let no_such_card = PortId { node: 9, port: 99 };
    assert_eq!(
        net.ask(0, endpoint, Op::Connect(no_such_card)),
        Err(libc::ENODEV)
    );
    assert_eq!(net.ask(0, endpoint, Op::Send(vec![1])), Err(libc::ENOTCONN));
    let other = net.open(0);
    assert_eq!(net.ask(0, other, Op::Bind(77)), Ok(Value::Port(77)));
    let third = net.open(0);
    assert_eq!(net.ask(0, third, Op::Bind(77)), Err(libc::EINVAL));
}

#[test]
fn windows_are_reached_by_rma_and_released_when_nobody_uses_them() {
    let mut net = Net::new();
    let (host, card) = net.connect(0, 1);
    let window = |address, backing| Op::Register {
        extents: extents(address, 4),
        offset: None,
        prot: PROT_READ | PROT_WRITE,
        backing,
    };
    let Ok(Value::Offset(here)) = net.ask(0, host, window(1 << 20, 7)) else {
        panic!()
    };
    let Ok(Value::Offset(there)) = net.ask(1, card, window(2 << 20, 8)) else {
        panic!()
    };
    let local = Local::Window(here + 10);
    let rma = Op::Rma {
        local,
        len: 5000,
        remote: there + 3,
        write: true,
        ordered: false,
        sync: true,
    };
    let request = net.request(0, host, rma);
    let (at, job, copies) = net.copies.pop().expect("a copy");
    assert_eq!(
        (at, copies[0].src, copies[0].dst),
        (0, (1 << 20) + 10, (2 << 20) + 3)
    );
    assert_eq!(copies.iter().map(|copy| copy.len).sum::<u32>(), 5000);
    let beyond = Op::Rma {
        local: Local::Window(here),
        len: 5 * PAGE,
        remote: there,
        write: true,
        ordered: false,
        sync: true,
    };
    assert_eq!(net.ask(0, host, beyond), Err(libc::ENXIO));
    // The peer closes while the copy runs: its memory stays until the copy has ended.
    net.input(1, Input::Close(card));
    net.settle();
    assert!(net.released.is_empty());
    net.input(0, Input::CopyDone(job, Ok(())));
    net.settle();
    assert_eq!(net.done[0].remove(&request), Some(Ok(Value::Unit)));
    // Neither waits for a close of the other's program: nobody can use a window any more.
    assert_eq!(net.released, [(0, 7), (1, 8)]);
    net.input(0, Input::Close(host));
    assert_eq!(net.released.len(), 2);
}

#[test]
fn a_close_is_told_when_the_last_copy_has_ended() {
    let mut net = Net::new();
    let (host, card) = net.connect(0, 1);
    let window = |backing| Op::Register {
        extents: extents(1 << 20, 4),
        offset: None,
        prot: PROT_READ | PROT_WRITE,
        backing,
    };
    let Ok(Value::Offset(local)) = net.ask(0, host, window(7)) else {
        panic!()
    };
    let Ok(Value::Offset(remote)) = net.ask(1, card, window(8)) else {
        panic!()
    };
    let copy = Op::Rma {
        local: Local::Window(local),
        len: PAGE,
        remote,
        write: true,
        ordered: false,
        sync: true,
    };
    net.request(0, host, copy);
    let (_, job, _) = net.copies.pop().expect("a copy");
    // The copy's own program ends, and so does the other.
    for (at, endpoint) in [(0, host), (1, card)] {
        net.input(at, Input::Close(endpoint));
        net.settle();
    }
    assert!(net.released.is_empty(), "{:?}", net.released);
    net.input(0, Input::CopyDone(job, Ok(())));
    net.settle();
    net.released.sort_unstable();
    assert_eq!(net.released, [(0, 7), (1, 8)]);
    assert!(!net.nodes[0].endpoints.contains_key(&host));
    assert!(!net.nodes[1].endpoints.contains_key(&card));
}

#[test]
fn a_dead_node_fails_everything_that_waits_for_it() {
    let mut net = Net::new();
    let (host, _) = net.connect(0, 1);
    let waiting = net.request(0, host, Op::Recv(10));
    net.input(0, Input::PeerDown(1));
    assert_eq!(net.done[0].remove(&waiting), Some(Err(libc::ECONNRESET)));
    assert_eq!(net.ask(0, host, Op::Send(vec![1])), Err(libc::ECONNRESET));
}

/// Whoever closed it: the peer, or the loss of its node, even if another one has come in its place.
#[test]
fn every_call_on_a_connection_that_is_over_says_that_it_is_reset() {
    let extents = vec![Extent {
        address: 0,
        len: 4096,
    }];
    let rma = |local| Op::Rma {
        local,
        len: 8,
        remote: 0,
        write: true,
        ordered: false,
        sync: true,
    };
    let calls = [
        Op::Send(vec![1]),
        Op::Recv(1),
        Op::Register {
            extents: extents.clone(),
            offset: None,
            prot: 3,
            backing: 1,
        },
        Op::Unregister {
            offset: 0,
            len: 4096,
        },
        rma(Local::Window(0)),
        rma(Local::Memory { extents, skip: 0 }),
        Op::FenceMark { peer: false },
        Op::FenceMark { peer: true },
        Op::FenceWait(0),
        Op::FenceSignal {
            local: Some((0, 1)),
            remote: None,
            peer: false,
        },
    ];
    for how in 0..3 {
        let mut net = Net::new();
        let (host, card) = net.connect(0, 1);
        match how {
            0 => net.input(1, Input::Close(card)),
            _ => net.input(0, Input::PeerDown(1)),
        }
        net.settle();
        if how == 2 {
            net.input(0, Input::PeerUp(1));
        }
        assert_ne!(net.nodes[0].poll(host) & libc::POLLHUP, 0);
        for call in calls.clone() {
            let said = net.ask(0, host, call.clone());
            assert_eq!(said, Err(libc::ECONNRESET), "{call:?}");
        }
    }
}

#[test]
fn a_dead_node_is_no_longer_in_a_backlog() {
    let mut net = Net::new();
    let listener = net.open(0);
    net.ask(0, listener, Op::Bind(77)).unwrap();
    net.ask(0, listener, Op::Listen(4)).unwrap();
    for card in 1..3 {
        let endpoint = net.open(card);
        net.request(card, endpoint, Op::Connect(PortId { node: 0, port: 77 }));
    }
    net.settle();
    net.input(0, Input::PeerDown(1));
    let accepted = net.ask(0, listener, Op::Accept);
    assert!(matches!(accepted, Ok(Value::Accepted { peer, .. }) if peer.node == 2));
    assert_eq!(net.nodes[0].poll(listener), 0);
}

proptest! {
    #[test]
    fn streams_arrive_once_and_in_order(
        parts in proptest::collection::vec(1..9000usize, 1..8),
        choices in proptest::collection::vec(0..3usize, 0..400),
        across in any::<bool>(),
    ) {
        let mut net = Net::new();
        // From card to card everything passes through the host.
        let (from, to) = if across { (1, 2) } else { (0, 1) };
        let (sender, receiver) = net.connect(from, to);
        let sent: Vec<u8> = (0..parts.iter().sum::<usize>()).map(|i| (i / 7) as u8).collect();
        let mut rest = &sent[..];
        for part in parts {
            let (now, later) = rest.split_at(part);
            net.request(from, sender, Op::Send(now.to_vec()));
            rest = later;
        }
        let (mut received, mut choices) = (Vec::new(), choices.into_iter());
        while received.len() < sent.len() {
            let request = net.request(to, receiver, Op::Recv(1000));
            while !net.done[to].contains_key(&request) {
                prop_assert!(net.step(choices.next().unwrap_or(0)), "nobody waits for ever");
            }
            match net.done[to].remove(&request) {
                Some(Ok(Value::Bytes(bytes))) => received.extend(bytes),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn hostile_messages_never_panic(bodies in proptest::collection::vec((0..13u8, any::<i64>(), any::<u64>()), 0..40)) {
        let mut net = Net::new();
        let (host, card) = net.connect(0, 1);
        let peer = net.nodes[0].endpoints[&host].peer;
        let own = PortId { node: 0, port: net.nodes[0].endpoints[&host].port.unwrap_or(0) };
        let connection = net.nodes[1].endpoints[&card].connection;
        for (kind, offset, len) in bodies {
            let extents = vec![Extent { address: len, len: offset as u64 }];
            let body = match kind {
                0 => Body::Data(vec![0; (len % 10_000) as usize]),
                1 => Body::Credit(len as u32),
                2 => Body::Window { offset, prot: len as u8, more: len % 2 == 0, extents },
                3 => Body::Unwindow { offset, len },
                4 => Body::Unwindowed { offset, len, held: len % 2 == 0 },
                5 => Body::Held(Held::ALL[(len % 2) as usize]),
                6 => Body::Released { offset, len },
                7 => Body::Fence(len, Fence::Mark),
                8 => Body::Fence(len, Fence::Wait(offset as i32)),
                9 => Body::Fence(len, Fence::Signal { local: Some((offset, len)), remote: Some((offset, len)) }),
                10 => Body::Fenced(len, Err(offset as i32)),
                11 => Body::Poke { offset, value: len },
                _ => Body::Accepted(Way::Nodes),
            };
            net.input(0, Input::Message(Message { from: peer, to: own, connection, body }));
        }
    }
}

#[test]
fn a_card_that_is_gone_ends_its_connections_to_other_cards_and_no_others() {
    let mut net = Net::new();
    let (one, two) = net.connect(1, 2);
    let (with_host, _) = net.connect(1, 0);
    let reading = net.request(1, one, Op::Recv(1));
    let untouched = net.request(1, with_host, Op::Recv(1));
    net.input(0, Input::PeerDown(2));
    net.settle();
    let told = net.done[1].remove(&reading);
    assert_eq!(told, Some(Err(libc::ECONNRESET)));
    assert!(!net.done[1].contains_key(&untouched));
    // Only the host may say so, and not of itself.
    let (from, to) = (PortId { node: 2, port: 0 }, PortId { node: 1, port: 0 });
    for (from, lost) in [(from, 0), (PortId { node: 0, port: 0 }, 0)] {
        let (connection, body) = (0, Body::Lost(lost));
        let message = Message {
            from,
            to,
            connection,
            body,
        };
        net.input(1, Input::Message(message));
    }
    net.settle();
    assert!(!net.done[1].contains_key(&untouched));
    net.input(2, Input::Close(two));
}

fn window(address: u64, backing: BackingId) -> Op {
    Op::Register {
        extents: extents(address, 4),
        offset: Some(0),
        prot: PROT_READ | PROT_WRITE,
        backing,
    }
}

/// A connection from node 0 to node 1, with a window of four pages at offset 0 on either side.
fn joined() -> (Net, EndpointId, EndpointId) {
    let mut net = Net::new();
    let (host, card) = net.connect(0, 1);
    net.ask(0, host, window(1 << 20, 7)).expect("a window");
    net.ask(1, card, window(2 << 20, 8)).expect("a window");
    (net, host, card)
}

fn copying(net: &mut Net, endpoint: EndpointId) -> u64 {
    let rma = Op::Rma {
        local: Local::Window(0),
        len: PAGE,
        remote: 0,
        write: true,
        ordered: false,
        sync: true,
    };
    net.request(0, endpoint, rma);
    net.copies.pop().expect("a copy").1
}

#[test]
fn a_send_that_is_interrupted_says_how_much_went() {
    let mut net = Net::new();
    let (host, card) = net.connect(0, 1);
    let write = |block, bytes| Op::Write {
        data: vec![1; bytes],
        block,
    };
    let long = net.request(0, host, write(true, 10_000));
    net.settle();
    assert_eq!(net.ask(0, host, write(false, 5)), Ok(Value::Count(0)));
    net.input(0, Input::Interrupt(long));
    let count = Some(Ok(Value::Count(WINDOW)));
    assert_eq!(net.done[0].remove(&long), count);
    let waiting = net.request(0, host, Op::Recv(1));
    net.input(0, Input::Interrupt(waiting));
    assert_eq!(net.done[0].remove(&waiting), Some(Err(libc::EINTR)));
    // It ended before the signal came.
    net.input(0, Input::Interrupt(waiting));
    let read = Op::Read {
        max: 3,
        block: false,
    };
    assert_eq!(net.ask(1, card, read), Ok(Value::Bytes(vec![1; 3])));
}
