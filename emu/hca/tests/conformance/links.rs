//! Links that are down, and paths that lose or hold what goes over them.

use snaprig_hca::{
    Opcode, Path, State, Status, Transport,
    queue::{Destination, Send},
    testing::{End, Link, UNDER_WAY_MAX, World},
};

use crate::{Two, both, ends, pattern, poll, post_list, receive, remote, send};

/// The nanoseconds of one try.
const TRY_NS: u64 = 4096 << 14;
const LINK: Link = Link {
    mtu: 256,
    psn: 0xff_fff0,
    timeout: 14,
    retry_cnt: 3,
    rnr_retry: 7,
    min_rnr_timer: 12,
    rd_atomic: 4,
    access: 0xf,
    qkey: 0x1234,
};

fn set_link(world: &World, port: usize, up: bool) {
    world.memory.header().ports[port].up.set(up.into());
}

#[test]
fn a_link_that_is_down_on_either_side_ends_a_connection_after_all_tries() {
    both(|world| {
        for port in [0, 1] {
            for opcode in [Opcode::Send, Opcode::Write, Opcode::Read, Opcode::FetchAdd] {
                let two = Two::new(world, Transport::Rc, &LINK);
                receive(world, &two.b, &two.y, 1, 0, 8);
                set_link(world, port, false);
                let start = world.now();
                post_list(world, &two.a, &two.x, &remote(2, opcode, &two.b, 0), 0, 8);
                let [done] = poll(world, &two.a)[..] else {
                    panic!("one completion")
                };
                assert_eq!((done.wr_id, done.status), (2, Status::RetryExceeded));
                assert_eq!((done.time_ns - start) / TRY_NS, 4, "{opcode:?}");
                assert!(ends(world, &two.b).is_empty());
                set_link(world, port, true);
            }
        }
    });
}

#[test]
fn a_switch_that_takes_nothing_ends_a_connection() {
    let world = World::new(2, 1);
    world.path.set(Path::Packets);
    world.cut.borrow_mut().insert(1);
    let two = Two::new(&world, Transport::Rc, &LINK);
    post_list(&world, &two.a, &two.x, &send(2, Opcode::Send), 0, 8);
    assert_eq!(ends(&world, &two.a), [(2, Status::RetryExceeded)]);
}

#[test]
fn a_link_that_is_down_loses_what_is_unreliable() {
    both(|world| {
        for (port, transport) in [0, 1].into_iter().zip([Transport::Uc, Transport::Ud]) {
            let two = match transport {
                Transport::Ud => unconnected(world),
                _ => Two::new(world, transport, &LINK),
            };
            receive(world, &two.b, &two.y, 1, 0, 3000);
            set_link(world, port, false);
            post_list(world, &two.a, &two.x, &to(world, 2, &two.y), 0, 2000);
            assert_eq!(ends(world, &two.a), [(2, Status::Success)]);
            assert!(ends(world, &two.b).is_empty());
            set_link(world, port, true);
            world.put(0, 0, &pattern(3, 2000));
            post_list(world, &two.a, &two.x, &to(world, 3, &two.y), 0, 2000);
            assert_eq!(ends(world, &two.a), [(3, Status::Success)]);
            let [done] = poll(world, &two.b)[..] else {
                panic!("one completion")
            };
            let header = u64::from(done.length) - 2000;
            assert_eq!(world.get(1, header, 2000), pattern(3, 2000));
        }
    });
}

/// A send; a datagram's destination does not matter on a connection.
fn to(world: &World, id: u64, peer: &End) -> Send {
    Send {
        to: Destination {
            lid: world.lid(peer.hca),
            qp: peer.number,
            qkey: LINK.qkey,
            ..Destination::default()
        },
        ..send(id, Opcode::Send)
    }
}

fn unconnected(world: &World) -> Two {
    let (a, b) = (world.node(0, 0), world.node(1, 1));
    let [x, y] = [&a, &b].map(|node| {
        let end = world.qp(node, Transport::Ud);
        world.raise(&end, &end, &LINK, State::Rts);
        end
    });
    Two { a, b, x, y }
}

#[test]
fn a_link_that_comes_up_in_time_loses_and_doubles_nothing() {
    both(|world| {
        for port in [0, 1] {
            // Down before anything was sent; and with packets under way, which do not arrive.
            for before_ns in [0, 500, 1500, 2500] {
                let two = Two::new(world, Transport::Rc, &LINK);
                world.put(0, 0, &pattern(1, 2000));
                world.put(1, 8000, &[0; 8]);
                for id in 0..3 {
                    receive(world, &two.b, &two.y, id, id * 2000, 2000);
                }
                let flip = |up| {
                    world.run_for(before_ns);
                    set_link(world, port, up);
                };
                if before_ns == 0 {
                    flip(false);
                }
                post_all(world, &two);
                if before_ns > 0 {
                    flip(false);
                }
                world.run_for(2 * TRY_NS);
                set_link(world, port, true);
                let sent = [0, 1, 2, 3].map(|id| (id, Status::Success));
                assert_eq!(ends(world, &two.a), sent);
                assert_eq!(ends(world, &two.b), sent[..3]);
                for id in 0..3 {
                    assert_eq!(world.get(1, id * 2000, 2000), pattern(1, 2000));
                }
                assert_eq!(world.get(1, 8000, 8), 5u64.to_ne_bytes());
            }
        }
    });
}

/// Three sends of 2000 bytes, and an addition of five.
fn post_all(world: &World, two: &Two) {
    for id in 0..3 {
        post_list(world, &two.a, &two.x, &send(id, Opcode::Send), 0, 2000);
    }
    let add = Send {
        compare_add: 5,
        ..remote(3, Opcode::FetchAdd, &two.b, 8000)
    };
    post_list(world, &two.a, &two.x, &add, 4000, 8);
}

const LONG: u32 = 1 << 20;

/// An unreliable connection over a path that goes packet by packet.
fn unreliable(world: &World) -> Two {
    world.path.set(Path::Packets);
    Two::new(world, Transport::Uc, &LINK)
}

#[test]
fn a_long_unreliable_message_waits_for_room() {
    let world = World::new(2, 1);
    let two = unreliable(&world);
    let datagrams = unconnected(&world);
    world.put(0, 0, &pattern(1, LONG as usize));
    receive(&world, &two.b, &two.y, 1, 0, LONG);
    post_list(&world, &two.a, &two.x, &send(2, Opcode::Send), 0, LONG);
    for id in 0..64 {
        let request = to(&world, id, &datagrams.y);
        post_list(&world, &datagrams.a, &datagrams.x, &request, 0, 8);
    }
    assert_eq!(ends(&world, &two.a), [(2, Status::Success)]);
    assert_eq!(ends(&world, &datagrams.a).len(), 64);
    assert_eq!(ends(&world, &two.b), [(1, Status::Success)]);
    assert_eq!(world.get(1, 0, LONG as usize), pattern(1, LONG as usize));
    let (sent, most) = (world.sent.get(), world.under_way_most.get());
    assert!(sent > 4096 && most <= UNDER_WAY_MAX, "{most} of {sent}");
}

#[test]
fn a_lost_packet_takes_one_unreliable_message_with_it() {
    // The first, the last, and one in the middle.
    for lost in [0, 1000, 4095] {
        let world = World::new(2, 1);
        let two = unreliable(&world);
        receive(&world, &two.b, &two.y, 1, 0, LONG);
        receive(&world, &two.b, &two.y, 2, 0, LONG);
        post_list(&world, &two.a, &two.x, &send(1, Opcode::Send), 0, LONG);
        lose(&world, &two.y, lost);
        for id in 2..4 {
            world.put(0, 0, &pattern(id, 3000));
            post_list(
                &world,
                &two.a,
                &two.x,
                &send(id.into(), Opcode::Send),
                0,
                3000,
            );
            world.settle();
            assert_eq!(world.get(1, 0, 3000), pattern(id, 3000));
        }
        let sent = [1, 2, 3].map(|id| (id, Status::Success));
        assert_eq!(ends(&world, &two.a), sent);
        assert_eq!(ends(&world, &two.b), sent[..2], "packet {lost} is lost");
    }
}

/// Runs until so many packets have come to a queue pair, and loses the next.
fn lose(world: &World, end: &End, after: i32) {
    let qp = world.memory.qp(end.index).expect("a queue pair");
    let next = snaprig_hca::types::psn::add(LINK.psn, after as u32);
    while qp.responder.psn.get() != next || world.under_way.get() == 0 {
        assert!(world.step(), "it comes");
    }
    set_link(world, 1, false);
    let before = world.under_way.get();
    while world.under_way.get() >= before {
        assert!(world.step(), "it is lost");
    }
    set_link(world, 1, true);
}
