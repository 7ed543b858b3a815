//! Sends, writes, reads and atomics of connections.

use snaprig_hca::{
    Opcode, SendFlags, Status, Transport,
    post::Data,
    queue::Send,
    testing::{Link, World},
    types::{completed, completion_flags},
};

use crate::{Two, both, ends, pattern, poll, post, post_list, receive, remote, send};

const SIZES: [u32; 12] = [0, 1, 7, 8, 255, 1023, 1024, 1025, 2047, 2048, 4097, 100_000];

#[test]
fn sends_of_all_sizes_arrive() {
    for transport in [Transport::Rc, Transport::Uc] {
        both(|world| {
            let two = Two::new(world, transport, &Link::default());
            for (id, length) in (0..).zip(SIZES) {
                let data = pattern(id as u8, length as usize);
                world.put(0, 0, &data);
                receive(world, &two.b, &two.y, 100 + id, 0, 100_000);
                post_list(world, &two.a, &two.x, &send(id, Opcode::Send), 0, length);
                assert_eq!(ends(world, &two.a), [(id, Status::Success)]);
                let done = poll(world, &two.b);
                assert_eq!(done.len(), 1, "{length} bytes");
                assert_eq!((done[0].wr_id, done[0].length), (100 + id, length));
                assert_eq!(done[0].opcode, completed::RECEIVE);
                assert_eq!(done[0].qp_number, two.y.number);
                assert_eq!(world.get(1, 0, length as usize), data);
            }
        });
    }
}

#[test]
fn immediate_data_comes_with_the_completion() {
    both(|world| {
        let two = Two::rc(world);
        for opcode in [Opcode::SendImm, Opcode::WriteImm] {
            receive(world, &two.b, &two.y, 1, 0, 5000);
            let request = Send {
                immediate: 0xdead_beef,
                ..remote(2, opcode, &two.b, 8192)
            };
            post_list(world, &two.a, &two.x, &request, 0, 3000);
            assert_eq!(ends(world, &two.a), [(2, Status::Success)]);
            let [done] = poll(world, &two.b)[..] else {
                panic!("one completion")
            };
            assert_eq!((done.immediate, done.length), (0xdead_beef, 3000));
            assert_eq!(done.flags, completion_flags::IMM);
            let expected = match opcode {
                Opcode::WriteImm => completed::RECEIVE_WRITE_IMM,
                _ => completed::RECEIVE,
            };
            assert_eq!(done.opcode, expected);
        }
    });
}

#[test]
fn inline_data_is_taken_at_once() {
    both(|world| {
        let two = Two::new(
            world,
            Transport::Rc,
            &Link {
                mtu: 256,
                ..Link::default()
            },
        );
        let data = pattern(3, 256);
        for cut in [0, 1, 8, 13, 255, 256] {
            receive(world, &two.b, &two.y, 1, 0, 256);
            let parts: [&[u8]; 3] = [&data[..cut], &[], &data[cut..]];
            post(world, &two.x, &send(0, Opcode::Send), Data::Inline(&parts));
            assert_eq!(ends(world, &two.a), [(0, Status::Success)]);
            assert_eq!(poll(world, &two.b).len(), 1);
            assert_eq!(world.get(1, 0, 256), data, "cut at {cut}");
        }
    });
}

#[test]
fn lists_scatter_and_gather() {
    both(|world| {
        let two = Two::rc(world);
        let data = pattern(9, 4000);
        world.put(0, 100, &data);
        let from = [
            two.a.sge(100, 1000),
            two.a.sge(1100, 0),
            two.a.sge(1100, 1),
            two.a.sge(1101, 2999),
        ];
        let to = [
            two.b.sge(1000, 1500),
            two.b.sge(2500, 3),
            two.b.sge(2503, 2497),
            two.b.sge(60_000, 0),
        ];
        let posted = world.hca(1).post_receive(two.y.index, 5, &to);
        assert_eq!(posted, Ok(()));
        post(world, &two.x, &send(4, Opcode::Send), Data::List(&from));
        assert_eq!(ends(world, &two.a), [(4, Status::Success)]);
        assert_eq!(poll(world, &two.b)[0].length, 4000);
        assert_eq!(world.get(1, 1000, 4000), data);
    });
}

#[test]
fn writes_arrive_without_a_receive() {
    for transport in [Transport::Rc, Transport::Uc] {
        both(|world| {
            let two = Two::new(world, transport, &Link::default());
            for (id, length) in (0..).zip(SIZES) {
                let data = pattern(id as u8 + 50, length as usize);
                world.put(0, 0, &data);
                let request = remote(id, Opcode::Write, &two.b, 4096);
                post_list(world, &two.a, &two.x, &request, 0, length);
                let done = poll(world, &two.a);
                assert_eq!((done.len(), done[0].status), (1, Status::Success));
                assert_eq!(done[0].opcode, completed::WRITE);
                assert_eq!(world.get(1, 4096, length as usize), data);
                assert!(poll(world, &two.b).is_empty());
            }
        });
    }
}

#[test]
fn reads_fetch() {
    both(|world| {
        let two = Two::rc(world);
        for (id, length) in (0..).zip(SIZES) {
            let data = pattern(id as u8 + 80, length as usize);
            world.put(1, 500, &data);
            let request = remote(id, Opcode::Read, &two.b, 500);
            post_list(world, &two.a, &two.x, &request, 64, length);
            let done = poll(world, &two.a);
            assert_eq!(
                (done.len(), done[0].status),
                (1, Status::Success),
                "{length}"
            );
            assert_eq!((done[0].opcode, done[0].length), (completed::READ, length));
            assert_eq!(world.get(0, 64, length as usize), data);
        }
    });
}

#[test]
fn many_reads_are_under_way_and_complete_in_order() {
    both(|world| {
        let two = Two::rc(world);
        let data = pattern(1, 50_000);
        world.put(1, 0, &data);
        for id in 0..10 {
            let request = remote(id, Opcode::Read, &two.b, id * 5000);
            post_list(world, &two.a, &two.x, &request, id * 5000, 5000);
        }
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(10, Opcode::Write, &two.b, 60_000),
            0,
            9,
        );
        let expected: Vec<_> = (0..11).map(|id| (id, Status::Success)).collect();
        assert_eq!(ends(world, &two.a), expected);
        assert_eq!(world.get(0, 0, 50_000), data);
    });
}

#[test]
fn no_more_reads_are_under_way_than_agreed() {
    both(|world| {
        for rd_atomic in [1, 3] {
            let link = Link {
                rd_atomic,
                ..Link::default()
            };
            let two = Two::new(world, Transport::Rc, &link);
            for id in 0..8 {
                let length = if id % 2 == 0 { 40_000 } else { 100 };
                post_list(
                    world,
                    &two.a,
                    &two.x,
                    &remote(id, Opcode::Read, &two.b, 0),
                    0,
                    length,
                );
            }
            let qp = world.memory.qp(two.x.index).expect("a queue pair");
            let mut most = 0;
            while world.step() {
                most = most.max(qp.requester.fetching.get());
            }
            let packets = world.path.get() == snaprig_hca::Path::Packets;
            assert!(
                !packets || most == u32::from(rd_atomic),
                "{most} of {rd_atomic}"
            );
            assert_eq!(world.poll(0, two.a.cq).len(), 8);
        }
    });
}

#[test]
fn atomics_return_what_was_there() {
    both(|world| {
        let two = Two::rc(world);
        world.put(1, 800, &5u64.to_ne_bytes());
        let value = |process, at| {
            u64::from_ne_bytes(world.get(process, at, 8).try_into().expect("8 bytes"))
        };
        let step = |opcode, compare_add, swap, before, after| {
            let request = Send {
                compare_add,
                swap,
                ..remote(1, opcode, &two.b, 800)
            };
            post_list(world, &two.a, &two.x, &request, 16, 8);
            assert_eq!(ends(world, &two.a), [(1, Status::Success)]);
            assert_eq!((value(0, 16), value(1, 800)), (before, after));
        };
        step(Opcode::FetchAdd, 3, 0, 5, 8);
        step(Opcode::CompareSwap, 7, 1, 8, 8);
        step(Opcode::CompareSwap, 8, 1, 8, 1);
        step(Opcode::FetchAdd, u64::MAX, 0, 1, 0);
    });
}

#[test]
fn a_fence_waits_for_reads() {
    both(|world| {
        let two = Two::rc(world);
        world.put(1, 0, &pattern(1, 8000));
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(1, Opcode::Read, &two.b, 0),
            0,
            8000,
        );
        let fenced = Send {
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
            ..remote(2, Opcode::Write, &two.b, 20_000)
        };
        post_list(world, &two.a, &two.x, &fenced, 0, 8000);
        assert_eq!(
            ends(world, &two.a),
            [(1, Status::Success), (2, Status::Success)]
        );
        // Unfenced, the packets of the write would have left before the data was here.
        assert_eq!(world.get(1, 20_000, 8000), pattern(1, 8000));
    });
}

#[test]
fn a_queue_pair_talks_to_itself() {
    both(|world| {
        let node = world.node(0, 0);
        let end = world.qp(&node, Transport::Rc);
        world.raise(&end, &end, &Link::default(), snaprig_hca::State::Rts);
        world.put(0, 0, &pattern(4, 3000));
        receive(world, &node, &end, 1, 10_000, 3000);
        post_list(world, &node, &end, &send(2, Opcode::Send), 0, 3000);
        let mut done = ends(world, &node);
        done.sort_by_key(|done| done.0);
        assert_eq!(done, [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(world.get(0, 10_000, 3000), pattern(4, 3000));
    });
}

#[test]
fn a_path_changes_in_the_middle() {
    use snaprig_hca::Path;
    let world = World::new(2, 1);
    let two = Two::rc(&world);
    let data = pattern(1, 30_000);
    world.put(0, 0, &data);
    for id in 0..8 {
        receive(&world, &two.b, &two.y, id, id * 30_000, 30_000);
    }
    for id in 0..8 {
        world
            .path
            .set([Path::Whole, Path::Packets][id as usize % 2]);
        post_list(&world, &two.a, &two.x, &send(id, Opcode::Send), 0, 30_000);
        world.run_for(1200);
    }
    let expected: Vec<_> = (0..8).map(|id| (id, Status::Success)).collect();
    assert_eq!(ends(&world, &two.a), expected);
    assert_eq!(ends(&world, &two.b), expected);
    for id in 0..8 {
        assert_eq!(world.get(1, id * 30_000, 30_000), data, "message {id}");
    }
}
