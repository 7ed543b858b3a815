//! Requests that are refused, and what becomes of the queue pairs.

use snaprig_hca::{
    Access, Event, Opcode, SendFlags, State, Status, Transport,
    control::Request,
    faults,
    model::ModelName,
    post::Data,
    queue::{Send, Sge},
    testing::{ALL, BYTES, Link, World},
};
use snaprig_sim::{Fault, Kind, Plan, Trace, When};

use crate::{Two, both, ends, pattern, post, post_list, receive, remote, send};

/// A request that the peer refuses.
fn refused(world: &World, two: &Two, request: &Send, length: u32, status: Status) {
    post_list(world, &two.a, &two.x, request, 0, length);
    assert_eq!(ends(world, &two.a), [(request.wr_id, status)]);
    let state =
        |end: &snaprig_hca::testing::End| world.memory.qp(end.index).expect("a queue pair").state();
    assert_eq!((state(&two.x), state(&two.y)), (State::Error, State::Error));
}

#[test]
fn a_receive_that_is_too_short_ends_both() {
    both(|world| {
        for length in [11, 1024, 5000] {
            let two = Two::rc(world);
            receive(world, &two.b, &two.y, 1, 0, 10);
            receive(world, &two.b, &two.y, 2, 0, 10);
            let request = send(3, Opcode::Send);
            refused(world, &two, &request, length, Status::RemoteInvalidRequest);
            let expected = [(1, Status::LocalLength), (2, Status::Flushed)];
            assert_eq!(ends(world, &two.b), expected);
        }
    });
}

#[test]
fn remote_keys_are_checked() {
    both(|world| {
        for opcode in [Opcode::Write, Opcode::Read, Opcode::FetchAdd] {
            let length = if opcode == Opcode::FetchAdd { 8 } else { 2000 };
            type Case<'a> = &'a dyn Fn(&Two) -> (u32, u64);
            let cases: [Case<'_>; 5] = [
                &|_| (0x1234_5678, 0),
                &|two| (two.b.key ^ 1, 0),
                &|two| (two.b.key, BYTES as u64 - 1),
                &|two| {
                    (
                        world.region(1, two.b.pd, 0, 1 << 16, Access::LOCAL_WRITE),
                        0,
                    )
                },
                &|two| {
                    let pd = world.node(1, 1).pd;
                    (world.region(1, pd, 0, two.b.pd.max(1 << 16).into(), ALL), 0)
                },
            ];
            for (case, make) in cases.iter().enumerate() {
                let two = Two::rc(world);
                let (key, at) = make(&two);
                let at = if opcode == Opcode::FetchAdd && at > 0 {
                    at + 1
                } else {
                    at
                };
                let request = Send {
                    remote_key: key,
                    ..remote(case as u64, opcode, &two.b, at)
                };
                world.events.borrow_mut().clear();
                refused(world, &two, &request, length, Status::RemoteAccess);
                let event = (Event::QpAccessError, two.y.index);
                assert_eq!(*world.events.borrow(), [event], "{opcode:?}, case {case}");
            }
        }
    });
}

#[test]
fn the_queue_pair_must_allow_it() {
    both(|world| {
        for opcode in [Opcode::Write, Opcode::Read, Opcode::CompareSwap] {
            let link = Link {
                access: 0,
                ..Link::default()
            };
            let two = Two::new(world, Transport::Rc, &link);
            let request = remote(1, opcode, &two.b, 0);
            world.events.borrow_mut().clear();
            refused(world, &two, &request, 8, Status::RemoteInvalidRequest);
            assert_eq!(
                *world.events.borrow(),
                [(Event::QpRequestError, two.y.index)]
            );
        }
    });
}

#[test]
fn an_atomic_is_aligned() {
    both(|world| {
        let two = Two::rc(world);
        let request = remote(1, Opcode::FetchAdd, &two.b, 4);
        refused(world, &two, &request, 8, Status::RemoteInvalidRequest);
    });
}

#[test]
fn local_keys_are_checked() {
    both(|world| {
        let read_only = |two: &Two| world.region(0, two.a.pd, 0, 4096, Access::empty());
        let two = Two::rc(world);
        let bad = Sge {
            key: 0x777,
            ..two.a.sge(0, 8)
        };
        post(world, &two.x, &send(1, Opcode::Send), Data::List(&[bad]));
        assert_eq!(ends(world, &two.a), [(1, Status::LocalProtection)]);

        let two = Two::rc(world);
        let sge = Sge {
            key: read_only(&two),
            ..two.a.sge(0, 8)
        };
        receive(world, &two.b, &two.y, 1, 0, 8);
        post(world, &two.x, &send(1, Opcode::Send), Data::List(&[sge]));
        post(
            world,
            &two.x,
            &remote(2, Opcode::Read, &two.b, 0),
            Data::List(&[sge]),
        );
        let expected = [(1, Status::Success), (2, Status::LocalProtection)];
        assert_eq!(ends(world, &two.a), expected);

        let two = Two::rc(world);
        let sge = Sge {
            key: world.region(1, two.b.pd, 0, 4096, Access::empty()),
            ..two.b.sge(0, 8)
        };
        let posted = world.hca(1).post_receive(two.y.index, 1, &[sge]);
        assert_eq!(posted, Ok(()));
        refused(
            world,
            &two,
            &send(1, Opcode::Send),
            8,
            Status::RemoteOperation,
        );
        assert_eq!(ends(world, &two.b), [(1, Status::LocalProtection)]);
    });
}

#[test]
fn what_came_before_a_bad_request_completes() {
    both(|world| {
        let two = Two::rc(world);
        world.put(1, 0, &pattern(1, 9000));
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(1, Opcode::Read, &two.b, 0),
            0,
            9000,
        );
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(2, Opcode::Write, &two.b, 10_000),
            0,
            9000,
        );
        let bad = Sge {
            key: 0x777,
            ..two.a.sge(0, 8)
        };
        post(world, &two.x, &send(3, Opcode::Send), Data::List(&[bad]));
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(4, Opcode::Write, &two.b, 0),
            0,
            10,
        );
        let expected = [
            (1, Status::Success),
            (2, Status::Success),
            (3, Status::LocalProtection),
            (4, Status::Flushed),
        ];
        assert_eq!(ends(world, &two.a), expected);
    });
}

#[test]
fn an_atomic_has_eight_bytes() {
    both(|world| {
        let two = Two::rc(world);
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(1, Opcode::FetchAdd, &two.b, 0),
            0,
            4,
        );
        assert_eq!(ends(world, &two.a), [(1, Status::LocalLength)]);
    });
}

#[test]
fn reads_need_a_reliable_connection_and_leave_to_read() {
    both(|world| {
        let two = Two::new(world, Transport::Uc, &Link::default());
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(1, Opcode::Read, &two.b, 0),
            0,
            4,
        );
        assert_eq!(ends(world, &two.a), [(1, Status::LocalOperation)]);
        let none = Link {
            rd_atomic: 0,
            ..Link::default()
        };
        let two = Two::new(world, Transport::Rc, &none);
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(1, Opcode::Read, &two.b, 0),
            0,
            4,
        );
        assert_eq!(ends(world, &two.a), [(1, Status::LocalOperation)]);
    });
}

#[test]
fn everything_left_is_flushed_in_order() {
    both(|world| {
        let two = Two::rc(world);
        for id in 0..4 {
            receive(world, &two.b, &two.y, id, 0, 8);
        }
        world.state(&two.y, State::Error).expect("an error");
        receive(world, &two.b, &two.y, 4, 0, 8);
        let expected: Vec<_> = (0..5).map(|id| (id, Status::Flushed)).collect();
        assert_eq!(ends(world, &two.b), expected);

        for id in 0..3 {
            let request = Send {
                flags: SendFlags::empty(),
                ..send(id, Opcode::Send)
            };
            post_list(world, &two.a, &two.x, &request, 0, 8);
        }
        world.state(&two.x, State::Error).expect("an error");
        post_list(world, &two.a, &two.x, &send(3, Opcode::Send), 0, 8);
        let expected: Vec<_> = (0..4).map(|id| (id, Status::Flushed)).collect();
        assert_eq!(ends(world, &two.a), expected);
    });
}

#[test]
fn an_unreliable_connection_drops_what_it_may_not_do() {
    both(|world| {
        let two = Two::new(world, Transport::Uc, &Link::default());
        let request = Send {
            remote_key: 0x55,
            ..remote(1, Opcode::Write, &two.b, 0)
        };
        post_list(world, &two.a, &two.x, &request, 0, 3000);
        post_list(world, &two.a, &two.x, &send(2, Opcode::Send), 0, 3000);
        world.settle();
        receive(world, &two.b, &two.y, 1, 0, 3000);
        post_list(world, &two.a, &two.x, &send(3, Opcode::Send), 0, 3000);
        let expected: Vec<_> = (1..4).map(|id| (id, Status::Success)).collect();
        assert_eq!(ends(world, &two.a), expected);
        assert_eq!(ends(world, &two.b), [(1, Status::Success)]);
    });
}

#[test]
fn a_send_queue_in_error_goes_on_when_told() {
    both(|world| {
        let two = Two::new(world, Transport::Uc, &Link::default());
        let bad = Sge {
            key: 0x777,
            ..two.a.sge(0, 8)
        };
        post(world, &two.x, &send(1, Opcode::Send), Data::List(&[bad]));
        post_list(world, &two.a, &two.x, &send(2, Opcode::Send), 0, 8);
        let expected = [(1, Status::LocalProtection), (2, Status::Flushed)];
        assert_eq!(ends(world, &two.a), expected);
        let qp = world.memory.qp(two.x.index).expect("a queue pair");
        assert_eq!(qp.state(), State::Sqe);
        world.state(&two.x, State::Rts).expect("goes on");
        receive(world, &two.b, &two.y, 1, 0, 8);
        post_list(world, &two.a, &two.x, &send(3, Opcode::Send), 0, 8);
        assert_eq!(ends(world, &two.a), [(3, Status::Success)]);
        assert_eq!(ends(world, &two.b), [(1, Status::Success)]);
    });
}

#[test]
fn a_partition_key_must_match() {
    both(|world| {
        let link = Link {
            retry_cnt: 1,
            ..Link::default()
        };
        let two = Two::new(world, Transport::Rc, &link);
        world.memory.header().ports[1].pkeys[0].set(0x8001);
        post_list(world, &two.a, &two.x, &send(1, Opcode::Send), 0, 8);
        assert_eq!(ends(world, &two.a), [(1, Status::RetryExceeded)]);
        assert_eq!(world.memory.header().ports[1].bad_pkeys.get(), 2);
    });
}

/// Two processes, the first of which dies after so many steps of posting.
fn mortal(steps: u64) -> World {
    let mut plan = Plan::new(1, "");
    plan.faults.push(Fault {
        point: faults::STEP.name.into(),
        when: When::Nth(steps),
        kind: Kind::Crash("process1".into()),
    });
    let models = [ModelName::A; 2];
    World::of_plan(&models, 2, &plan, faults::ALL, Trace::default())
}

#[test]
fn who_dies_in_the_middle_leaves_others_whole() {
    for steps in 1..40 {
        let world = mortal(steps);
        let two = Two::rc(&world);
        receive(&world, &two.b, &two.y, 1, 0, 10);
        receive(&world, &two.b, &two.y, 2, 0, 10);
        let list = [two.a.sge(0, 11)];
        world.posting(0, |hca| {
            let _ = hca.post_send(two.x.index, &send(3, Opcode::Send), Data::List(&list));
        });
        if world.lives(0) {
            world.kill(0);
        }
        let failed = world.memory.qp(two.y.index).expect("a queue pair").state() == State::Error;
        let done = ends(&world, &two.b);
        assert_eq!(
            done.len(),
            if failed { 2 } else { 0 },
            "after {steps} steps"
        );
    }
}

#[test]
fn who_dies_while_a_group_fails_leaves_it_whole() {
    let mut gid = [0; 16];
    gid[0] = 0xff;
    for steps in 1..60 {
        let world = mortal(steps);
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let end = |node| {
            let end = world.qp(node, Transport::Ud);
            world.raise(&end, &end, &Link::default(), State::Rts);
            end
        };
        let x = end(&a);
        let members: Vec<_> = (0..6).map(|_| end(&b)).collect();
        for member in &members {
            let join = Request::AttachMulticast {
                qp: member.index,
                gid,
                lid: 0,
            };
            assert!(world.ask(1, &join).is_ok());
            receive(&world, &b, member, 1, 0, 41);
            receive(&world, &b, member, 2, 0, 41);
        }
        let mut request = send(9, Opcode::Send);
        request.to.lid = 0xc000;
        (request.to.global, request.to.gid) = (Some(0), gid);
        request.to.qkey = Link::default().qkey;
        world.posting(0, |hca| {
            let _ = hca.post_send(x.index, &request, Data::Inline(&[b"too long"]));
        });
        if world.lives(0) {
            world.kill(0);
        }
        let failed = members.iter().filter(|member| {
            world.memory.qp(member.index).expect("a queue pair").state() == State::Error
        });
        let failed = failed.count();
        assert_eq!(ends(&world, &b).len(), 2 * failed, "after {steps} steps");
    }
}
