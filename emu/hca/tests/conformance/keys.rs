//! Windows, invalidation, and regions that change.

use snaprig_hca::{
    Access, Opcode, State, Status, Transport,
    control::{Reply, Request, errno},
    post::{Data, PostError},
    queue::Send,
    testing::{ALL, BASE, End, Link, World},
};

use crate::{Two, both, ends, pattern, post, post_list, receive, remote, send};

/// Has `owner` bind a window to the first bytes after `at`; how it ended.
fn bind(world: &World, two: &Two, end: &End, keys: (u32, u32), at: u64, length: u64) -> Status {
    bind_with(world, two, end, keys, (at, length), ALL)
}

fn bind_with(
    world: &World,
    two: &Two,
    end: &End,
    (window, region): (u32, u32),
    (at, length): (u64, u64),
    access: Access,
) -> Status {
    let request = Send {
        compare_add: u64::from(window) | u64::from(region) << 32,
        swap: access.bits().into(),
        remote_address: BASE + at,
        remote_key: length as u32,
        immediate: (length >> 32) as u32,
        ..send(77, Opcode::BindWindow)
    };
    post(world, end, &request, Data::EMPTY);
    let done = ends(world, &two.b);
    assert_eq!((done.len(), done[0].0), (1, 77));
    done[0].1
}

fn window(world: &World, two: &Two, kind: u32) -> u32 {
    let pd = two.b.pd;
    world.make(1, &Request::AllocMw { pd, kind })
}

/// Writes through a key; how it ended.
fn write(world: &World, two: &Two, end: &End, key: u32, at: u64, length: u32) -> Status {
    let request = Send {
        remote_key: key,
        ..remote(1, Opcode::Write, &two.b, at)
    };
    post_list(world, &two.a, end, &request, 0, length);
    ends(world, &two.a)[0].1
}

/// One more connection of the same nodes.
fn again(world: &World, two: &Two) -> Two {
    let (x, y) = world.pair(&two.a, &two.b, Transport::Rc, &Link::default());
    Two { x, y, ..*two }
}

#[test]
fn a_window_of_type_1_moves() {
    both(|world| {
        let two = Two::rc(world);
        let key = window(world, &two, 1);
        assert_eq!(
            write(world, &two, &two.x, key, 0, 1),
            Status::RemoteAccess,
            "not bound"
        );
        let two = again(world, &two);
        assert_eq!(
            bind(world, &two, &two.y, (key + 1, two.b.key), 1000, 100),
            Status::Success
        );
        assert_eq!(
            write(world, &two, &two.x, key + 1, 1000, 100),
            Status::Success
        );
        assert_eq!(
            bind(world, &two, &two.y, (key + 2, two.b.key), 3000, 9),
            Status::Success
        );
        assert_eq!(
            write(world, &two, &two.x, key + 2, 3000, 9),
            Status::Success
        );
        let other = again(world, &two);
        assert_eq!(
            write(world, &two, &other.x, key + 2, 3000, 9),
            Status::Success
        );
        for (key, at) in [(key + 1, 1000), (key + 2, 1000), (key + 2, 3001)] {
            let two = again(world, &two);
            assert_eq!(write(world, &two, &two.x, key, at, 9), Status::RemoteAccess);
        }
        let busy = world.ask(1, &Request::DeregisterMr { key: two.b.key });
        assert_eq!(busy, Err(errno::EBUSY));
        assert_eq!(
            bind(world, &two, &two.y, (key + 3, two.b.key), 0, 0),
            Status::Success
        );
        let free = world.ask(1, &Request::DeregisterMr { key: two.b.key });
        assert_eq!(free, Ok(Reply::Done));
    });
}

#[test]
fn a_window_of_type_2_belongs_to_a_queue_pair_until_it_is_invalidated() {
    both(|world| {
        let two = Two::rc(world);
        let key = window(world, &two, 2);
        assert_eq!(
            bind(world, &two, &two.y, (key, two.b.key), 64, 64),
            Status::Success
        );
        assert_eq!(write(world, &two, &two.x, key, 64, 64), Status::Success);
        let other = again(world, &two);
        assert_eq!(
            write(world, &other, &other.x, key, 64, 64),
            Status::RemoteAccess
        );
        receive(world, &two.b, &two.y, 5, 0, 10);
        let invalidate = Send {
            immediate: key,
            ..send(2, Opcode::SendInvalidate)
        };
        post_list(world, &two.a, &two.x, &invalidate, 0, 10);
        assert_eq!(ends(world, &two.a), [(2, Status::Success)]);
        let [done] = world.poll(1, two.b.cq)[..] else {
            panic!("one completion")
        };
        assert_eq!((done.flags, done.immediate), (8, key));
        assert_eq!(
            write(world, &two, &two.x, key, 64, 64),
            Status::RemoteAccess
        );

        let two = again(world, &two);
        let key = key + 1;
        assert_eq!(
            bind(world, &two, &two.y, (key, two.b.key), 64, 64),
            Status::Success
        );
        assert_eq!(write(world, &two, &two.x, key, 64, 64), Status::Success);
        let invalidate = Send {
            immediate: key,
            ..send(3, Opcode::LocalInvalidate)
        };
        post(world, &two.y, &invalidate, Data::EMPTY);
        assert_eq!(ends(world, &two.b), [(3, Status::Success)]);
        assert_eq!(
            write(world, &two, &two.x, key, 64, 64),
            Status::RemoteAccess
        );
    });
}

#[test]
fn a_window_of_type_2_is_not_unbound_by_binding_nothing() {
    both(|world| {
        let two = Two::rc(world);
        let key = window(world, &two, 2);
        for region in [two.b.key, 0] {
            let two = again(world, &two);
            let done = bind(world, &two, &two.y, (key, region), 64, 0);
            assert_eq!(done, Status::WindowBind);
        }
        let two = again(world, &two);
        let done = bind(world, &two, &two.y, (key, two.b.key), 64, 64);
        assert_eq!(done, Status::Success, "it is as it was");
    });
}

#[test]
fn a_window_that_is_not_bound_is_not_invalidated() {
    both(|world| {
        let two = Two::rc(world);
        let invalidate = Send {
            immediate: window(world, &two, 2),
            ..send(3, Opcode::LocalInvalidate)
        };
        post(world, &two.y, &invalidate, Data::EMPTY);
        assert_eq!(ends(world, &two.b), [(3, Status::LocalProtection)]);
    });
}

#[test]
fn datagrams_have_no_windows() {
    both(|world| {
        let node = world.node(0, 0);
        let end = world.qp(&node, Transport::Ud);
        world.raise(&end, &end, &Link::default(), State::Rts);
        for opcode in [Opcode::BindWindow, Opcode::LocalInvalidate] {
            let request = send(1, opcode);
            let posted = world.hca(0).post_send(end.index, &request, Data::EMPTY);
            assert_eq!(posted, Err(PostError::Unsupported), "{opcode:?}");
        }
        assert!(ends(world, &node).is_empty());
    });
}

#[test]
fn a_window_is_bound_to_what_allows_it() {
    both(|world| {
        let two = Two::rc(world);
        let key = window(world, &two, 1);
        let no_bind = world.region(1, two.b.pd, 0, 4096, ALL - Access::BIND);
        let no_write = world.region(1, two.b.pd, 0, 4096, Access::BIND | Access::REMOTE_READ);
        let elsewhere = world.node(1, 1).key;
        for region in [no_bind, no_write, elsewhere, key] {
            let two = again(world, &two);
            assert_eq!(
                bind(world, &two, &two.y, (key, region), 0, 64),
                Status::WindowBind
            );
        }
        let two = again(world, &two);
        let ranges = (0, 64);
        let done = bind_with(
            world,
            &two,
            &two.y,
            (key, no_write),
            ranges,
            Access::REMOTE_READ,
        );
        assert_eq!(done, Status::Success);
        assert_eq!(write(world, &two, &two.x, key, 0, 8), Status::RemoteAccess);
        let two = again(world, &two);
        let based = Access::REMOTE_READ | Access::ZERO_BASED;
        let done = bind_with(world, &two, &two.y, (key, two.b.key), ranges, based);
        assert_eq!(done, Status::WindowBind, "type 1 has no base of zero");
        let two = again(world, &two);
        let done = bind(world, &two, &two.y, (key, no_write), 4000, 97);
        assert_eq!(done, Status::WindowBind, "past the end");
    });
}

#[test]
fn an_unknown_key_is_not_invalidated() {
    both(|world| {
        let two = Two::rc(world);
        receive(world, &two.b, &two.y, 5, 0, 10);
        let invalidate = Send {
            immediate: two.b.key,
            ..send(2, Opcode::SendInvalidate)
        };
        post_list(world, &two.a, &two.x, &invalidate, 0, 10);
        assert_eq!(ends(world, &two.a), [(2, Status::RemoteAccess)]);
        assert_eq!(ends(world, &two.b), [(5, Status::Flushed)]);
    });
}

#[test]
fn a_zero_based_region_counts_from_zero() {
    both(|world| {
        let two = Two::rc(world);
        let key = world.region(1, two.b.pd, 5000, 100, ALL | Access::ZERO_BASED);
        world.put(0, 0, &pattern(8, 50));
        let request = Send {
            remote_key: key,
            remote_address: 50,
            ..send(1, Opcode::Write)
        };
        post_list(world, &two.a, &two.x, &request, 0, 50);
        assert_eq!(ends(world, &two.a), [(1, Status::Success)]);
        assert_eq!(world.get(1, 5050, 50), pattern(8, 50));
        let range = Some((BASE + 9000, 100, false));
        let moved = Request::ReregisterMr {
            key,
            pd: None,
            access: None,
            range,
        };
        assert_eq!(world.ask(1, &moved), Ok(Reply::Done));
        post_list(world, &two.a, &two.x, &request, 0, 50);
        assert_eq!(ends(world, &two.a), [(1, Status::Success)]);
        assert_eq!(world.get(1, 9050, 50), pattern(8, 50));
    });
}

#[test]
fn a_null_region_forgets_and_reads_as_zeroes() {
    both(|world| {
        let two = Two::rc(world);
        let key = world.make(1, &Request::NullMr { pd: two.b.pd });
        let sge = snaprig_hca::queue::Sge {
            key,
            ..two.b.sge(0, 100)
        };
        world.put(0, 0, &pattern(8, 100));
        let posted = world.hca(1).post_receive(two.y.index, 1, &[sge]);
        assert_eq!(posted, Ok(()));
        post_list(world, &two.a, &two.x, &send(1, Opcode::Send), 0, 100);
        assert_eq!(ends(world, &two.b), [(1, Status::Success)]);
        assert_eq!(world.get(1, 0, 100), [0; 100]);
        receive(world, &two.a, &two.x, 2, 0, 100);
        post(world, &two.y, &send(3, Opcode::Send), Data::List(&[sge]));
        assert_eq!(
            ends(world, &two.a),
            [(1, Status::Success), (2, Status::Success)]
        );
        assert_eq!(world.get(0, 0, 100), [0; 100]);
    });
}
