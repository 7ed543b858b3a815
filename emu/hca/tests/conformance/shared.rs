//! Shared receive queues, and extended reliable connections that use them.

use snaprig_hca::{
    Event, Opcode, State, Status, Transport,
    control::{Reply, Request, errno},
    post::PostError,
    queue::Send,
    testing::{End, Link, Node, World},
};

use crate::{both, ends, pattern, poll, post_list, remote, send};

fn srq(world: &World, node: &Node, slots: u32, limit: u32, xrc: Option<(u32, u32)>) -> u32 {
    let request = Request::CreateSrq {
        pd: node.pd,
        slots,
        sges: 2,
        limit,
        xrc,
    };
    world.make(node.process, &request)
}

fn sharing(world: &World, node: &Node, srq: u32) -> End {
    let mut request = World::qp_request(node, Transport::Rc);
    if let Request::CreateQp { srq: shared, .. } = &mut request {
        *shared = Some(srq);
    }
    world.end(node, Transport::Rc, &request)
}

fn fill(world: &World, node: &Node, srq: u32, ids: std::ops::Range<u64>) {
    for id in ids {
        let list = [node.sge(id * 4000, 4000)];
        let posted = world.hca(node.process).post_shared_receive(srq, id, &list);
        assert_eq!(posted, Ok(()));
    }
}

/// As UCX has them: it posts as many receives as it got, and takes completions later.
#[test]
fn a_shared_queue_has_no_more_receives_than_a_completion_queue_of_that_size_has_entries() {
    both(|world| {
        let node = world.node(0, 0);
        let granted = |request: &Request| match world.ask(node.process, request) {
            Ok(Reply::Queue(_, granted)) => granted,
            other => panic!("{other:?}"),
        };
        for asked in [1, 2, 3, 4, 63, 64, 1023, 1024, 4095] {
            let receives = granted(&Request::CreateSrq {
                pd: node.pd,
                slots: asked,
                sges: 1,
                limit: 0,
                xrc: None,
            });
            let entries = granted(&Request::CreateCq {
                hca: 0,
                entries: asked,
                channel: None,
                stamps: false,
            });
            assert!(
                (asked..=entries).contains(&receives),
                "{asked}: {receives} and {entries}"
            );
        }
    });
}

#[test]
fn connections_share_receives() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let shared = srq(world, &b, 16, 0, None);
        let pairs: Vec<_> = (0..3)
            .map(|_| {
                let (x, y) = (world.qp(&a, Transport::Rc), sharing(world, &b, shared));
                world.connect(&x, &y, &Link::default());
                (x, y)
            })
            .collect();
        fill(world, &b, shared, 0..6);
        for round in 0..6 {
            let data = pattern(round, 3000);
            world.put(0, 0, &data);
            let (x, y) = &pairs[round as usize % 3];
            post_list(world, &a, x, &send(9, Opcode::Send), 0, 3000);
            assert_eq!(ends(world, &a), [(9, Status::Success)]);
            let [done] = poll(world, &b)[..] else {
                panic!("one completion")
            };
            assert_eq!((done.wr_id, done.qp_number), (round.into(), y.number));
            assert_eq!(world.get(1, u64::from(round) * 4000, 3000), data);
        }
    });
}

#[test]
fn whoever_waits_for_a_shared_receive_gets_one() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let shared = srq(world, &b, 16, 0, None);
        let link = Link {
            min_rnr_timer: 0,
            ..Link::default()
        };
        for _ in 0..3 {
            let (x, y) = (world.qp(&a, Transport::Rc), sharing(world, &b, shared));
            world.connect(&x, &y, &link);
            post_list(world, &a, &x, &send(9, Opcode::Send), 0, 10);
        }
        world.run_for(1_000_000);
        let start = world.now();
        fill(world, &b, shared, 0..3);
        world.run_for(1_000_000);
        let done = world.poll(0, a.cq);
        assert_eq!(done.len(), 3);
        assert!(done.iter().all(|done| done.status == Status::Success));
        assert!(
            done[2].time_ns - start < 1_000_000,
            "none waits for the timer"
        );
        assert_eq!(world.poll(1, b.cq).len(), 3);
    });
}

#[test]
fn a_limit_raises_an_event_once() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let shared = srq(world, &b, 16, 0, None);
        let (x, y) = (world.qp(&a, Transport::Rc), sharing(world, &b, shared));
        world.connect(&x, &y, &Link::default());
        fill(world, &b, shared, 0..4);
        let limit = |limit| Request::ModifySrq {
            srq: shared,
            slots: None,
            limit: Some(limit),
        };
        assert_eq!(world.ask(1, &limit(17)), Err(errno::EINVAL));
        assert_eq!(world.ask(1, &limit(3)), Ok(Reply::Done));
        let mut told = Vec::new();
        for id in 0..4 {
            post_list(world, &a, &x, &send(id, Opcode::Send), 0, 10);
            world.settle();
            told.push(std::mem::take(&mut *world.events.borrow_mut()));
        }
        let event = vec![(Event::SrqLimit, shared)];
        assert_eq!(told, [vec![], event, vec![], vec![]]);
    });
}

#[test]
fn a_resized_shared_queue_keeps_its_receives_and_its_limit() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let shared = srq(world, &b, 8, 0, None);
        let (x, y) = (world.qp(&a, Transport::Rc), sharing(world, &b, shared));
        world.connect(&x, &y, &Link::default());
        let modify = |slots, limit| {
            let request = Request::ModifySrq {
                srq: shared,
                slots,
                limit,
            };
            world.ask(1, &request)
        };
        let take = |id| {
            post_list(world, &a, &x, &send(id, Opcode::Send), 0, 10);
            assert_eq!(ends(world, &b), [(id, Status::Success)]);
        };
        // A ring that has gone round.
        for id in 0..5 {
            fill(world, &b, shared, id..id + 1);
            take(id);
        }
        fill(world, &b, shared, 5..13);
        for slots in [0, 4, 7, 1 << 20] {
            assert_eq!(
                modify(Some(slots), None),
                Err(errno::EINVAL),
                "{slots} slots"
            );
        }
        assert_eq!(modify(Some(32), Some(33)), Err(errno::EINVAL));
        assert_eq!(modify(Some(32), Some(3)), Ok(Reply::Done));
        fill(world, &b, shared, 13..37);
        let full = world.hca(1).post_shared_receive(shared, 37, &[]);
        assert_eq!(full, Err(PostError::Full));
        for id in 5..33 {
            take(id);
        }
        assert_eq!(modify(Some(2), None), Err(errno::EINVAL), "below the limit");
        assert_eq!(modify(Some(4), None), Ok(Reply::Done));
        world.events.borrow_mut().clear();
        take(33);
        assert!(world.events.borrow().is_empty());
        take(34);
        assert_eq!(*world.events.borrow(), [(Event::SrqLimit, shared)]);
        fill(world, &b, shared, 37..39);
        for id in 35..39 {
            take(id);
        }
    });
}

#[test]
fn a_shared_queue_is_full_and_is_kept_by_a_flush() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let shared = srq(world, &b, 4, 0, None);
        let (x, y) = (world.qp(&a, Transport::Rc), sharing(world, &b, shared));
        world.connect(&x, &y, &Link::default());
        fill(world, &b, shared, 0..4);
        let hca = world.hca(1);
        assert_eq!(
            hca.post_shared_receive(shared, 4, &[]),
            Err(PostError::Full)
        );
        post_list(world, &a, &x, &send(1, Opcode::Send), 0, 10);
        world.settle();
        assert_eq!(
            hca.post_shared_receive(shared, 4, &[]),
            Ok(()),
            "a taken one is free"
        );
        for _ in 0..2 {
            world.state(&y, State::Error).expect("an error");
        }
        assert_eq!(ends(world, &b), [(0, Status::Success)]);
        assert_eq!(*world.events.borrow(), [(Event::LastWqe, y.index)]);
        let busy = world.ask(1, &Request::DestroySrq { srq: shared });
        assert_eq!(busy, Err(errno::EBUSY));
    });
}

/// An extended connection: the sender, and who receives for these shared queues.
fn extended(world: &World, a: &Node, b: &Node, domain: u32) -> (End, End) {
    let mut sends = World::qp_request(a, Transport::XrcSend);
    let mut receives = World::qp_request(b, Transport::XrcReceive);
    if let Request::CreateQp { transport, .. } = &mut sends {
        *transport = Transport::XrcSend as u32;
    }
    if let Request::CreateQp { xrc_domain, pd, .. } = &mut receives {
        (*xrc_domain, *pd) = (Some(domain), 0);
    }
    let x = world.end(a, Transport::XrcSend, &sends);
    let y = world.end(b, Transport::XrcReceive, &receives);
    world.connect(&x, &y, &Link::default());
    (x, y)
}

#[test]
fn an_extended_connection_reaches_many_shared_queues() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let domain = world.make(1, &Request::OpenXrcd { hca: 1, file: None });
        let cqs = [0; 2].map(|_| world.cq(1, 1, 16));
        let queues = cqs.map(|cq| srq(world, &b, 16, 0, Some((domain, cq))));
        let (x, y) = extended(world, &a, &b, domain);
        world.put(0, 0, &pattern(1, 3000));
        for (number, shared) in queues.into_iter().enumerate() {
            let id = number as u64;
            let request = Send {
                srq: shared,
                ..send(id, Opcode::Send)
            };
            post_list(world, &a, &x, &request, 0, 3000);
            world.run_for(500_000);
            fill(world, &b, shared, id..id + 1);
            assert_eq!(ends(world, &a), [(id, Status::Success)]);
            let [done] = world.poll(1, cqs[number])[..] else {
                panic!("one completion")
            };
            assert_eq!(
                (done.wr_id, done.status, done.qp_number),
                (id, Status::Success, y.number)
            );
            assert_eq!(world.get(1, id * 4000, 3000), pattern(1, 3000));
        }
        world.put(1, 50_000, &pattern(2, 3000));
        for (id, opcode) in [(5, Opcode::Write), (6, Opcode::Read), (7, Opcode::FetchAdd)] {
            let request = Send {
                srq: queues[0],
                ..remote(id, opcode, &b, 50_000)
            };
            let length = if opcode == Opcode::FetchAdd { 8 } else { 3000 };
            post_list(world, &a, &x, &request, 60_000, length);
            assert_eq!(ends(world, &a), [(id, Status::Success)], "{opcode:?}");
        }
        assert!(world.poll(1, b.cq).is_empty());
        let busy = world.ask(1, &Request::CloseXrcd { xrcd: domain });
        assert_eq!(busy, Err(errno::EBUSY));
    });
}

#[test]
fn an_extended_connection_stays_in_its_domain() {
    both(|world| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let open = Request::OpenXrcd { hca: 1, file: None };
        let (mine, other) = (world.make(1, &open), world.make(1, &open));
        let cq = world.cq(1, 1, 16);
        let shared = srq(world, &b, 16, 0, Some((other, cq)));
        fill(world, &b, shared, 0..1);
        let (x, _) = extended(world, &a, &b, mine);
        let request = Send {
            srq: shared,
            ..send(1, Opcode::Send)
        };
        post_list(world, &a, &x, &request, 0, 10);
        assert_eq!(ends(world, &a), [(1, Status::RemoteInvalidRequest)]);
        assert!(world.poll(1, cq).is_empty());
    });
}
