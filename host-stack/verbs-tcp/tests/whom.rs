//! Datagrams to groups whose members are on nodes with a device memory each.

use proptest::prelude::*;
use snaprig_hca::{
    Opcode, Packet, Path, State, Transport,
    control::{Reply, Request},
    post::Data,
    queue::{Destination, Send},
    testing::{End, Link, Node, World},
    types::SendFlags,
};
use snaprig_verbs_tcp::{
    Frame, Frames, Places, Whom,
    frame::{FRAME_BYTES_MAX, put_packet},
};

const GRH_BYTES: u64 = 40;
/// Room for a receive.
const SLOT: u64 = 64;
const GROUPS_LID: u16 = 0xc001;

fn gid(group: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    (gid[0], gid[15]) = (0xff, group);
    gid
}

/// Nodes of one HCA each. Each has a device memory, in which all HCAs are, its own alone with users.
struct Nodes(Vec<(World, Node)>);

/// The node, from 1, that has a port, of so many.
fn node_of(nodes: usize) -> impl Fn(u32) -> Option<u32> {
    move |port| (port < nodes as u32).then_some(port + 1)
}

impl Nodes {
    fn new(count: usize) -> Self {
        let node = |own: usize| {
            let world = World::new(count, 1);
            world.path.set(Path::Packets);
            *world.carried.borrow_mut() = Some(Vec::new());
            // The queue pairs of all nodes have the same places, and so the same numbers.
            let node = world.node(0, own as u32);
            (world, node)
        };
        Self((0..count).map(node).collect())
    }

    fn places(&self, own: usize) -> Places<impl Fn(u32) -> Option<u32>> {
        Places {
            own: own as u32 + 1,
            node_of: node_of(self.0.len()),
        }
    }

    /// A queue pair that can send, with a receive for everything that comes.
    fn end(&self, own: usize, receives: u64) -> End {
        let (world, node) = &self.0[own];
        let end = world.qp(node, Transport::Ud);
        world.raise(&end, &end, &Link::default(), State::Rts);
        for at in 0..receives {
            let list = [node.sge(at * SLOT, SLOT as u32)];
            let posted = world.hca(0).post_receive(end.index, at, &list);
            assert_eq!(posted, Ok(()));
        }
        end
    }

    fn join(&self, own: usize, end: &End, group: u8) {
        let join = Request::AttachMulticast {
            qp: end.index,
            gid: gid(group),
            lid: GROUPS_LID,
        };
        assert_eq!(self.0[own].0.ask(0, &join), Ok(Reply::Done));
    }

    /// Sends a datagram with a number, and carries it to whom it is for.
    fn send(&self, own: usize, end: &End, group: u8, number: u32) {
        let (world, _) = &self.0[own];
        let send = Send {
            immediate: number,
            to: Destination {
                lid: GROUPS_LID,
                qp: 0xff_ffff,
                qkey: 0x1234,
                global: Some(0),
                gid: gid(group),
                ..Destination::default()
            },
            ..Send::new(0, Opcode::SendImm, SendFlags::empty())
        };
        let posted = world
            .hca(0)
            .post_send(end.index, &send, Data::Inline(&[&[7]]));
        assert_eq!(posted, Ok(()));
        world.settle();
        for packet in self.carried(own) {
            assert_eq!(self.places(own).whom(&packet), Whom::All);
            for other in (0..self.0.len()).filter(|other| *other != own) {
                self.come(other, own, &packet);
            }
        }
    }

    fn carried(&self, own: usize) -> Vec<Packet<'static>> {
        let mut carried = self.0[own].0.carried.borrow_mut();
        carried.as_mut().map(std::mem::take).expect("it is kept")
    }

    /// What a node sends comes to another one, over a stream.
    fn come(&self, to: usize, from: usize, packet: &Packet<'_>) {
        let (mut bytes, mut frames) = (Vec::new(), Frames::default());
        put_packet(packet, &mut bytes).expect("it is one packet");
        frames.push(&bytes);
        let came = frames.next_frame(FRAME_BYTES_MAX).expect("a frame");
        let Some(Frame::Packet(came)) = came else {
            panic!("a packet: {came:?}")
        };
        if self.places(to).takes(from as u32 + 1, &came) {
            self.0[to].0.hca(0).deliver(&came);
        }
        self.0[to].0.settle();
        assert!(self.carried(to).is_empty(), "nobody hands it on");
    }
}

proptest! {
    /// Members have all that others send to their groups, once and in order, with who has sent it.
    #[test]
    fn each_member_of_each_node_gets_a_datagram_once(
        members in prop::collection::vec((0..3usize, prop::collection::vec(any::<bool>(), 2)), 1..8),
        sends in prop::collection::vec((0..8usize, 0..2u8), 0..12),
    ) {
        let nodes = Nodes::new(3);
        let ends: Vec<End> = members.iter().map(|(own, _)| nodes.end(*own, 12)).collect();
        for ((own, groups), end) in members.iter().zip(&ends) {
            for group in (0..2).filter(|group| groups[usize::from(*group)]) {
                nodes.join(*own, end, group);
            }
        }
        let sends: Vec<_> = sends.iter().map(|(by, group)| (by % ends.len(), *group)).collect();
        for (number, (by, group)) in sends.iter().enumerate() {
            nodes.send(members[*by].0, &ends[*by], *group, number as u32);
        }
        for own in 0..3 {
            let (world, node) = &nodes.0[own];
            let done = world.poll(0, node.cq);
            for (index, end) in ends.iter().enumerate().filter(|(index, _)| members[*index].0 == own) {
                let came: Vec<_> = done.iter().filter(|done| done.qp_number == end.number).map(|done| {
                    (done.immediate, done.source_qp, done.source_lid)
                }).collect();
                let is_for_it = |(_, (by, group)): &(usize, &(usize, u8))| {
                    *by != index && members[index].1[usize::from(*group)]
                };
                let expected: Vec<_> = sends.iter().enumerate().filter(is_for_it).map(|(number, (by, _))| {
                    (number as u32, ends[*by].number, world.lid(ends[*by].hca))
                }).collect();
                prop_assert_eq!(came, expected);
            }
        }
    }

    /// Whatever a node says of a packet, it is from there, and for here.
    #[test]
    fn what_is_taken_is_from_its_sender(
        (from_port, to_port) in (0..5u32, 0..5u32), to_lid in any::<u16>(), sender in 1..5u32, reliable in any::<bool>()
    ) {
        let mut packet = group_packet();
        (packet.route.from_port, packet.route.to_port, packet.route.to_lid) = (from_port, to_port, to_lid);
        if reliable {
            packet.transport = Transport::Rc;
        }
        let places = Places { own: 4, node_of: node_of(4) };
        if places.takes(sender, &packet) {
            prop_assert_eq!(from_port + 1, sender);
            let to_group = to_lid >= 0xc000 && !reliable;
            prop_assert_eq!(to_port, if to_group { from_port } else { 3 });
        }
    }
}

/// A packet for a group, as the first node sends it.
fn group_packet() -> Packet<'static> {
    let nodes = Nodes::new(2);
    let end = nodes.end(0, 0);
    let (world, _) = &nodes.0[0];
    let send = Send {
        to: Destination {
            lid: GROUPS_LID,
            global: Some(0),
            gid: gid(0),
            ..Destination::default()
        },
        ..Send::new(0, Opcode::Send, SendFlags::empty())
    };
    let posted = world
        .hca(0)
        .post_send(end.index, &send, Data::Inline(&[&[7]]));
    assert_eq!(posted, Ok(()));
    world.settle();
    nodes.carried(0).remove(0)
}

/// The route header says who has sent it, and to which group.
#[test]
fn the_route_header_comes_along() {
    let nodes = Nodes::new(2);
    let (x, y) = (nodes.end(0, 0), nodes.end(1, 1));
    nodes.join(1, &y, 5);
    nodes.send(0, &x, 5, 0);
    let (world, node) = &nodes.0[1];
    assert_eq!(world.poll(0, node.cq).len(), 1);
    let header = world.get(0, 0, GRH_BYTES as usize);
    let sender = world.memory.header().ports[0].gid(0).expect("a GID");
    assert_eq!(header[8..24], sender);
    assert_eq!(header[24..40], gid(5));
}
