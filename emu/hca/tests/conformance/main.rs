//! What the HCA does, by capability: each test on paths that take messages whole, and on paths that
//! go packet by packet.

mod connected;
mod control;
mod datagrams;
mod deaths;
mod failures;
mod flow;
mod keys;
mod links;
mod shared;

use snaprig_hca::{
    Completion, Opcode, Path, Status, Transport,
    post::Data,
    queue::Send,
    testing::{End, Link, Node, World},
    types::SendFlags,
};

/// Runs a test on both kinds of paths.
fn both(test: impl Fn(&World)) {
    for path in [Path::Whole, Path::Packets] {
        let world = World::new(2, 1);
        world.path.set(path);
        test(&world);
    }
}

/// Two nodes with a connection.
struct Two {
    a: Node,
    b: Node,
    x: End,
    y: End,
}

impl Two {
    fn new(world: &World, transport: Transport, link: &Link) -> Self {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let (x, y) = world.pair(&a, &b, transport, link);
        Self { a, b, x, y }
    }

    fn rc(world: &World) -> Self {
        Self::new(world, Transport::Rc, &Link::default())
    }
}

/// A send request; signaled.
fn send(wr_id: u64, opcode: Opcode) -> Send {
    Send::new(wr_id, opcode, SendFlags::SIGNALED)
}

/// The same, at some memory of the peer.
fn remote(wr_id: u64, opcode: Opcode, peer: &Node, at: u64) -> Send {
    Send {
        remote_address: snaprig_hca::testing::BASE + at,
        remote_key: peer.key,
        ..send(wr_id, opcode)
    }
}

fn post(world: &World, end: &End, send: &Send, data: Data<'_>) {
    let posted = world.hca(end.process).post_send(end.index, send, data);
    assert_eq!(posted, Ok(()));
}

fn post_list(world: &World, node: &Node, end: &End, send: &Send, at: u64, length: u32) {
    post(world, end, send, Data::List(&[node.sge(at, length)]));
}

fn receive(world: &World, node: &Node, end: &End, wr_id: u64, at: u64, length: u32) {
    let list = [node.sge(at, length)];
    let posted = world.hca(end.process).post_receive(end.index, wr_id, &list);
    assert_eq!(posted, Ok(()));
}

fn poll(world: &World, node: &Node) -> Vec<Completion> {
    world.settle();
    world.poll(node.process, node.cq)
}

/// Names and ends of what completed.
fn ends(world: &World, node: &Node) -> Vec<(u64, Status)> {
    let done = poll(world, node);
    done.iter().map(|done| (done.wr_id, done.status)).collect()
}

/// Bytes that tell where they come from.
fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| seed.wrapping_add((i * 7 + i / 251) as u8))
        .collect()
}
