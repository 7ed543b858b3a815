//! Processes that die between two steps of what they do to the queues of others: what the steps
//! leave is set up by hand.

use snaprig_hca::{
    Opcode, State, Status, Transport,
    control::Request,
    lock::Lock,
    qp::Qp,
    queue::{Destination, Send, count_add},
    testing::{End, Link, Node, World},
};

use crate::{both, ends, post_list, receive, send};

/// Who dies.
const DEAD: u32 = 0;

/// The dead process had a lock.
fn hold(lock: &Lock) {
    std::mem::forget(lock.try_take(DEAD).expect("free"));
}

fn entry<'w>(world: &'w World, end: &End) -> &'w Qp {
    world.memory.qp(end.index).expect("a queue pair")
}

/// A third process, whom the death of another does not concern.
fn survivor(world: &World) -> Node {
    world.node(world.join(), 1)
}

fn datagram_end(world: &World, node: &Node, srq: Option<u32>) -> End {
    let mut request = World::qp_request(node, Transport::Ud);
    if let Request::CreateQp { srq: shared, .. } = &mut request {
        *shared = srq;
    }
    let end = world.end(node, Transport::Ud, &request);
    world.raise(&end, &end, &Link::default(), State::Rts);
    end
}

fn datagram(world: &World, from: &Node, x: &End, y: &End, id: u64) {
    let request = Send {
        to: Destination {
            lid: world.lid(y.hca),
            qp: y.number,
            qkey: Link::default().qkey,
            ..Destination::default()
        },
        ..send(id, Opcode::Send)
    };
    post_list(world, from, x, &request, 0, 8);
    assert_eq!(ends(world, from), [(id, Status::Success)]);
}

/// A step of the dead: the receive is complete, and not yet counted.
fn uncount_receive(world: &World, end: &End) {
    let qp = entry(world, end);
    hold(&qp.receive_lock);
    qp.responder.holds.set(1);
    qp.rq.taken.set(count_add(qp.rq.taken.get(), u32::MAX));
}

#[test]
fn a_receive_is_completed_once() {
    both(|world| {
        for polled in [false, true] {
            let (a, b, c) = (world.node(DEAD, 0), world.node(1, 1), survivor(world));
            let [x, y, z] = [&a, &b, &c].map(|node| datagram_end(world, node, None));
            for id in 0..3 {
                receive(world, &b, &y, id, 0, 64);
            }
            world.hca(1).request_notification(b.cq, false);
            datagram(world, &a, &x, &y, 9);
            let mut done = Vec::new();
            if polled {
                done.extend(ends(world, &b));
            }
            uncount_receive(world, &y);
            world.notified.borrow_mut().clear();
            world.kill(DEAD);
            assert_eq!(world.notified.borrow().contains(&b.cq), !polled);
            datagram(world, &c, &z, &y, 9);
            world.state(&y, State::Error).expect("an error");
            done.extend(ends(world, &b));
            let good = [0, 1].map(|id| (id, Status::Success));
            assert_eq!(done, [&good[..], &[(2, Status::Flushed)]].concat());
            assert_eq!(world.join(), DEAD, "its slot is free");
        }
    });
}

#[test]
fn a_receive_of_a_shared_queue_is_taken_and_completed_once() {
    both(|world| {
        for (polled, uncounted) in [(false, false), (true, false), (false, true)] {
            let (a, b, c) = (world.node(DEAD, 0), world.node(1, 1), survivor(world));
            let create = Request::CreateSrq {
                pd: b.pd,
                slots: 4,
                sges: 1,
                limit: 0,
                xrc: None,
            };
            let srq = world.make(1, &create);
            let shared = world.memory.srq(srq).expect("a queue");
            let y = datagram_end(world, &b, Some(srq));
            let [x, z] = [&a, &c].map(|node| datagram_end(world, node, None));
            for id in 0..4 {
                let list = [b.sge(0, 64)];
                let posted = world.hca(1).post_shared_receive(srq, id, &list);
                assert_eq!(posted, Ok(()));
            }
            datagram(world, &a, &x, &y, 9);
            datagram(world, &a, &x, &y, 9);
            let mut done = Vec::new();
            if polled {
                done.extend(ends(world, &b));
            }
            if uncounted {
                // Copied out for a third message, and not counted in the shared queue.
                let taken = shared.queue.taken.get();
                let qp = entry(world, &y);
                hold(&qp.receive_lock);
                hold(&shared.take_lock);
                let slots = (
                    shared.queue.receive_slot(&world.memory, taken),
                    qp.borrowed.receive_slot(&world.memory, 0),
                );
                let (Some(from), Some(to)) = slots else {
                    panic!("slots")
                };
                for (to, from) in to.iter().zip(from) {
                    to.set(from.get());
                }
                qp.borrowed.posted.set(taken);
                qp.rq.posted.set(count_add(qp.rq.posted.get(), 1));
                qp.responder.holds.set(1);
            } else {
                uncount_receive(world, &y);
            }
            world.kill(DEAD);
            datagram(world, &c, &z, &y, 9);
            datagram(world, &c, &z, &y, 9);
            done.extend(ends(world, &b));
            let good = [0, 1, 2, 3].map(|id| (id, Status::Success));
            assert_eq!(done, good, "polled {polled}, uncounted {uncounted}");
            assert_eq!(world.join(), DEAD, "its slot is free");
        }
    });
}

#[test]
fn a_send_is_completed_once() {
    both(|world| {
        for polled in [false, true] {
            // The dead had a receive for it, and so moved the peer's requester.
            let (a, b) = (world.node(DEAD, 0), world.node(1, 1));
            let (x, y) = world.pair(&a, &b, Transport::Rc, &Link::default());
            receive(world, &a, &x, 1, 0, 64);
            post_list(world, &b, &y, &send(5, Opcode::Send), 0, 8);
            let mut done = Vec::new();
            world.settle();
            if polled {
                done.extend(ends(world, &b));
            }
            post_list(world, &b, &y, &send(6, Opcode::Send), 0, 8);
            let qp = entry(world, &y);
            hold(&qp.send_lock);
            qp.sq.taken.set(count_add(qp.sq.taken.get(), u32::MAX));
            world.hca(1).request_notification(b.cq, false);
            world.notified.borrow_mut().clear();
            world.kill(DEAD);
            world.state(&y, State::Error).expect("an error");
            assert!(world.notified.borrow().contains(&b.cq), "of the flush");
            done.extend(ends(world, &b));
            assert_eq!(done, [(5, Status::Success), (6, Status::Flushed)]);
            assert_eq!(world.join(), DEAD, "its slot is free");
        }
    });
}

#[test]
fn who_waits_for_the_dead_finishes_their_step() {
    both(|world| {
        let (a, b, c) = (world.node(DEAD, 0), world.node(1, 1), survivor(world));
        let [x, y, z] = [&a, &b, &c].map(|node| datagram_end(world, node, None));
        for id in 0..2 {
            receive(world, &b, &y, id, 0, 64);
        }
        datagram(world, &a, &x, &y, 9);
        uncount_receive(world, &y);
        hold(&entry(world, &x).send_lock);
        // The daemon has not heard of it: it may wait for who waits.
        world.die(DEAD);
        datagram(world, &c, &z, &y, 9);
        assert!(entry(world, &x).send_lock.try_take(c.process).is_some());
        assert_eq!(
            ends(world, &b),
            [(0, Status::Success), (1, Status::Success)]
        );
        world.kill(DEAD);
        assert_eq!(world.join(), DEAD, "its slot is free");
    });
}
