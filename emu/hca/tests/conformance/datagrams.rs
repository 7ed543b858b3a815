//! Datagrams and multicast.

use snaprig_hca::{
    Event, Opcode, Packet, Path, State, Status, Transport,
    control::{QpAttributes, Reply, Request, attributes::mask, errno},
    packet::{Body, Extra, Route},
    payload::Payload,
    post::Data,
    queue::{Destination, Send},
    testing::{End, Link, Node, World},
    types::completion_flags,
};

use crate::{both, ends, pattern, poll, post, post_list, receive, send};

const GRH: u64 = 40;
const GROUP: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

fn end(world: &World, node: &Node) -> End {
    let end = world.qp(node, Transport::Ud);
    world.raise(&end, &end, &Link::default(), State::Rts);
    end
}

fn to(world: &World, wr_id: u64, peer: &End) -> Send {
    Send {
        to: Destination {
            lid: world.lid(peer.hca),
            qp: peer.number,
            qkey: 0x1234,
            ..Destination::default()
        },
        ..send(wr_id, Opcode::Send)
    }
}

#[test]
fn datagrams_of_all_sizes_arrive() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let (x, y) = (end(world, &a), end(world, &b));
        for length in [0, 1, 40, 1024, 4095, 4096] {
            let data = pattern(length as u8, length as usize);
            world.put(0, 0, &data);
            receive(world, &b, &y, 1, 0, 5000);
            let request = Send {
                immediate: 99,
                opcode: Opcode::SendImm,
                ..to(world, 2, &y)
            };
            post_list(world, &a, &x, &request, 0, length);
            assert_eq!(ends(world, &a), [(2, Status::Success)]);
            let [done] = poll(world, &b)[..] else {
                panic!("one completion")
            };
            assert_eq!(done.length, length + GRH as u32);
            assert_eq!((done.flags, done.immediate), (completion_flags::IMM, 99));
            assert_eq!((done.source_qp, done.source_lid), (x.number, world.lid(0)));
            assert_eq!(world.get(1, GRH, length as usize), data);
        }
        post_list(world, &a, &x, &to(world, 3, &y), 0, 4097);
        assert_eq!(ends(world, &a), [(3, Status::LocalLength)]);
    });
}

#[test]
fn a_global_route_is_told() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let (x, y) = (end(world, &a), end(world, &b));
        let gid = |port: usize| world.memory.header().ports[port].gid(0).expect("a GID");
        receive(world, &b, &y, 1, 0, 200);
        let mut request = to(world, 2, &y);
        (request.to.global, request.to.gid) = (Some(0), gid(1));
        post(world, &x, &request, Data::Inline(&[b"hello"]));
        assert_eq!(ends(world, &a), [(2, Status::Success)]);
        let [done] = poll(world, &b)[..] else {
            panic!("one completion")
        };
        assert_eq!((done.flags, done.length), (completion_flags::GRH, 45));
        let header = world.get(1, 0, 45);
        assert_eq!((header[0] >> 4, header[6]), (6, 0x1b));
        assert_eq!(header[8..24], gid(0));
        assert_eq!(header[24..40], gid(1));
        assert_eq!(header[40..], *b"hello");
    });
}

#[test]
fn a_global_route_counts_what_follows_it() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let (x, y) = (end(world, &a), end(world, &b));
        // BTH, DETH, immediate data; payload and pad; ICRC.
        for (opcode, data, length) in [
            (Opcode::Send, 5, 12 + 8 + 8 + 4),
            (Opcode::SendImm, 5, 12 + 8 + 4 + 8 + 4),
            (Opcode::SendImm, 0, 12 + 8 + 4 + 4),
        ] {
            receive(world, &b, &y, 1, 0, 200);
            let mut request = Send {
                opcode,
                ..to(world, 2, &y)
            };
            let gid = world.memory.header().ports[1].gid(0).expect("a GID");
            (request.to.global, request.to.gid) = (Some(0), gid);
            post_list(world, &a, &x, &request, 0, data);
            assert_eq!(ends(world, &b), [(1, Status::Success)]);
            let header: [u8; 6] = world.get(1, 0, 6).try_into().expect("six");
            let counted = u16::from_be_bytes([header[4], header[5]]);
            assert_eq!(counted, length, "{opcode:?} of {data} bytes");
        }
    });
}

#[test]
fn what_nobody_takes_is_dropped() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let (x, y) = (end(world, &a), end(world, &b));
        post_list(world, &a, &x, &to(world, 0, &y), 0, 8);
        world.settle();
        receive(world, &b, &y, 1, 0, 100);
        let mut wrong_key = to(world, 1, &y);
        wrong_key.to.qkey = 1;
        let mut nobody = to(world, 2, &y);
        nobody.to.qp += 1;
        let mut nowhere = to(world, 3, &y);
        nowhere.to.lid = 999;
        for request in [&wrong_key, &nobody, &nowhere] {
            post_list(world, &a, &x, request, 0, 8);
        }
        let all: Vec<_> = (0..4).map(|id| (id, Status::Success)).collect();
        assert_eq!(ends(world, &a), all, "a sender does not hear of it");
        assert!(poll(world, &b).is_empty());
        assert_eq!(world.memory.header().ports[1].bad_qkeys.get(), 1);
        let mut own_key = to(world, 4, &y);
        own_key.to.qkey = 1 << 31;
        post_list(world, &a, &x, &own_key, 0, 8);
        assert_eq!(poll(world, &b).len(), 1);
    });
}

#[test]
fn only_sends_are_datagrams() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let y = end(world, &b);
        for opcode in [
            Opcode::Write,
            Opcode::Read,
            Opcode::FetchAdd,
            Opcode::SendInvalidate,
        ] {
            let x = end(world, &a);
            let request = Send {
                opcode,
                ..to(world, 1, &y)
            };
            post_list(world, &a, &x, &request, 0, 8);
            assert_eq!(ends(world, &a), [(1, Status::LocalOperation)]);
        }
    });
}

#[test]
fn a_group_gets_what_others_send() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let (x, y, z) = (end(world, &a), end(world, &b), end(world, &b));
        for member in [&x, &y, &z] {
            join(world, member);
        }
        let nodes = [&a, &b, &b];
        for (number, member) in [&x, &y, &z].into_iter().enumerate() {
            let at = number as u64 * 1000;
            receive(world, nodes[number], member, number as u64, at, 100);
        }
        let request = to_group(9);
        post(world, &x, &request, Data::Inline(&[b"all"]));
        assert_eq!(
            ends(world, &a),
            [(9, Status::Success)],
            "nothing for the sender"
        );
        assert_eq!(
            ends(world, &b),
            [(1, Status::Success), (2, Status::Success)]
        );
        assert_eq!(world.get(1, 1000 + GRH, 3), b"all");
        let destroy = world.ask(1, &Request::DestroyQp { qp: y.index });
        assert_eq!(destroy, Err(errno::EBUSY));
        let leave = Request::DetachMulticast {
            qp: y.index,
            gid: GROUP,
            lid: 0xc001,
        };
        assert_eq!(world.ask(1, &leave), Ok(Reply::Done));
        assert_eq!(world.ask(1, &leave), Err(errno::EINVAL));
        receive(world, &b, &y, 5, 0, 100);
        receive(world, &b, &z, 6, 0, 100);
        post(world, &x, &request, Data::Inline(&[b"all"]));
        assert_eq!(ends(world, &b), [(6, Status::Success)]);
    });
}

fn join(world: &World, member: &End) {
    let join = Request::AttachMulticast {
        qp: member.index,
        gid: GROUP,
        lid: 0xc001,
    };
    assert_eq!(world.ask(member.process, &join), Ok(Reply::Done));
}

/// To all of a group.
fn to_group(wr_id: u64) -> Send {
    Send {
        to: Destination {
            lid: 0xc001,
            qp: 0xff_ffff,
            qkey: 0x1234,
            global: Some(0),
            gid: GROUP,
            ..Destination::default()
        },
        ..send(wr_id, Opcode::Send)
    }
}

/// A datagram to a group, as it comes from another device memory.
fn from_elsewhere(world: &World, from_port: u32, from_qp: u32, pkey: u16) -> Packet<'static> {
    let header = world.memory.header();
    let port = &header.ports[from_port as usize];
    Packet {
        route: Route {
            from_port,
            to_port: from_port,
            from_lid: port.lid.get() as u16,
            to_lid: 0xc001,
            from_qp,
            to_qp: 0xff_ffff,
            service_level: 0,
            pkey,
            global: Some((port.gid(0).expect("a GID"), GROUP)),
        },
        transport: Transport::Ud,
        psn: 0,
        count: 1,
        acknowledge: false,
        solicited: false,
        srq: 0,
        body: Body::Datagram {
            qkey: 0x1234,
            extra: Extra::None,
            payload: Payload::Bytes(b"all".to_vec().into()),
        },
    }
}

/// Queue pairs of two device memories have the same numbers.
#[test]
fn a_member_gets_what_another_of_its_number_sends() {
    let world = World::new(2, 1);
    let b = world.node(1, 1);
    let y = end(&world, &b);
    join(&world, &y);
    receive(&world, &b, &y, 1, 0, 100);
    world
        .hca(b.process)
        .deliver(&from_elsewhere(&world, 1, y.number, 0xffff));
    assert!(poll(&world, &b).is_empty(), "it is its own");
    let packet = from_elsewhere(&world, 0, y.number, 0xffff);
    world.hca(b.process).deliver(&packet);
    let [done] = poll(&world, &b)[..] else {
        panic!("one completion")
    };
    assert_eq!((done.flags, done.length), (completion_flags::GRH, 43));
    assert_eq!((done.source_qp, done.source_lid), (y.number, world.lid(0)));
    let header = world.get(1, 0, 43);
    let (source, group) = packet.route.global.expect("a route");
    assert_eq!((&header[8..24], &header[24..40]), (&source[..], &group[..]));
    assert_eq!(header[40..], *b"all");
}

#[test]
fn what_comes_from_elsewhere_needs_the_keys_of_each_member() {
    let world = World::new(2, 1);
    let b = world.node(1, 1);
    let (y, z) = (end(&world, &b), end(&world, &b));
    for (member, at) in [(&y, 0), (&z, 1000)] {
        join(&world, member);
        receive(&world, &b, member, at, at, 100);
    }
    let attributes = QpAttributes {
        qkey: 1,
        ..QpAttributes::default()
    };
    let changed = world.modify(&z, mask::QKEY, attributes);
    assert_eq!(changed, Ok(Reply::Done));
    let hca = world.hca(b.process);
    hca.deliver(&from_elsewhere(&world, 0, 7, 0x0002));
    assert!(poll(&world, &b).is_empty());
    hca.deliver(&from_elsewhere(&world, 0, 7, 0xffff));
    assert_eq!(ends(&world, &b), [(0, Status::Success)]);
    let port = &world.memory.header().ports[1];
    assert_eq!((port.bad_pkeys.get(), port.bad_qkeys.get()), (2, 1));
}

#[test]
fn what_no_group_has_as_its_address_is_dropped() {
    let world = World::new(2, 1);
    let b = world.node(1, 1);
    let y = end(&world, &b);
    join(&world, &y);
    receive(&world, &b, &y, 1, 0, 100);
    let hca = world.hca(b.process);
    for destination in [None, Some([0; 16]), Some([0xff; 16])] {
        let mut packet = from_elsewhere(&world, 0, 7, 0xffff);
        let source = packet.route.global.expect("a route").0;
        packet.route.global = destination.map(|gid| (source, gid));
        hca.deliver(&packet);
    }
    for port in [2, u32::MAX] {
        let mut packet = from_elsewhere(&world, 0, 7, 0xffff);
        (packet.route.from_port, packet.route.to_port) = (port, port);
        hca.deliver(&packet);
    }
    assert!(poll(&world, &b).is_empty());
}

/// A link without credits has whoever sends to a group wait, whichever of its members is behind it.
#[test]
fn a_group_waits_for_room_on_the_way_to_each_port() {
    let world = World::new(3, 1);
    world.path.set(Path::Packets);
    let (a, b) = (world.node(0, 0), world.node(1, 1));
    let (x, y) = (end(&world, &a), end(&world, &b));
    join(&world, &y);
    receive(&world, &b, &y, 1, 0, 100);
    for full in [(0, 1), (0, 2)] {
        world.full.borrow_mut().insert(full);
    }
    post(&world, &x, &to_group(9), Data::Inline(&[b"all"]));
    let nothing_is_done = || {
        world.run_for(10_000_000);
        [&a, &b]
            .iter()
            .all(|node| !world.has_completion(node.process, node.cq))
    };
    assert!(nothing_is_done());
    world.full.borrow_mut().remove(&(0, 1));
    assert!(nothing_is_done());
    world.full.borrow_mut().clear();
    assert_eq!(ends(&world, &a), [(9, Status::Success)]);
    assert_eq!(ends(&world, &b), [(1, Status::Success)]);
}

#[test]
fn many_members_fail_at_once() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let x = end(world, &a);
        let members: Vec<_> = (0..9).map(|_| end(world, &b)).collect();
        for (id, member) in members.iter().enumerate() {
            let join = Request::AttachMulticast {
                qp: member.index,
                gid: GROUP,
                lid: 0,
            };
            assert_eq!(world.ask(1, &join), Ok(Reply::Done));
            receive(world, &b, member, id as u64, 0, 41);
            receive(world, &b, member, id as u64 + 100, 0, 41);
        }
        let mut request = to(world, 9, &x);
        request.to.lid = 0xc000;
        (request.to.global, request.to.gid) = (Some(0), GROUP);
        post(world, &x, &request, Data::Inline(&[b"too long"]));
        let done = ends(world, &b);
        let short = done.iter().filter(|done| done.1 == Status::LocalLength);
        assert_eq!((short.count(), done.len()), (9, 18), "the rest is flushed");
    });
}

#[test]
fn the_sender_goes_on_after_an_error_when_told() {
    let world = World::new(2, 1);
    for path in [Path::Whole, Path::Packets] {
        world.path.set(path);
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let (x, y) = (end(&world, &a), end(&world, &b));
        receive(&world, &b, &y, 1, 0, 100);
        post_list(&world, &a, &x, &to(&world, 1, &y), 0, 5000);
        assert_eq!(ends(&world, &a), [(1, Status::LocalLength)]);
        world.state(&x, State::Rts).expect("goes on");
        post_list(&world, &a, &x, &to(&world, 2, &y), 0, 8);
        assert_eq!(ends(&world, &a), [(2, Status::Success)]);
        assert_eq!(ends(&world, &b), [(1, Status::Success)]);
        assert!(!world.events.borrow().contains(&(Event::QpFatal, x.index)));
    }
}
