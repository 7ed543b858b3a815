//! The control plane: who may do what, and what is in use.

use snaprig_hca::{
    Opcode, State, Status, Transport,
    control::{QpAttributes, Reply, Request, attributes::mask, errno},
    model::{Model, ModelName},
    testing::{Link, World},
};

use crate::{Two, ends, post_list, remote};

#[test]
fn what_is_in_use_stays() {
    let world = World::new(2, 1);
    let two = Two::rc(&world);
    let busy = |request| assert_eq!(world.ask(0, &request), Err(errno::EBUSY), "{request:?}");
    let done = |request| assert_eq!(world.ask(0, &request), Ok(Reply::Done), "{request:?}");
    busy(Request::FreePd { pd: two.a.pd });
    busy(Request::DestroyCq { cq: two.a.cq });
    done(Request::DestroyQp { qp: two.x.index });
    done(Request::DestroyCq { cq: two.a.cq });
    busy(Request::FreePd { pd: two.a.pd });
    done(Request::DeregisterMr { key: two.a.key });
    done(Request::FreePd { pd: two.a.pd });
}

#[test]
fn what_is_not_ones_own_is_not_there() {
    let world = World::new(2, 1);
    let two = Two::rc(&world);
    let attributes = QpAttributes {
        state: State::Error as u32,
        ..QpAttributes::default()
    };
    for request in [
        Request::FreePd { pd: two.a.pd },
        Request::DestroyCq { cq: two.a.cq },
        Request::DestroyQp { qp: two.x.index },
        Request::DeregisterMr { key: two.a.key },
        Request::DeregisterMr { key: two.b.key ^ 1 },
        Request::ModifyQp {
            qp: two.x.index,
            mask: mask::STATE,
            attributes,
        },
        Request::AllocMw {
            pd: two.a.pd,
            kind: 1,
        },
        World::qp_request(&two.a, Transport::Rc),
        Request::AllocPd { hca: 2 },
        Request::DestroySrq { srq: 0 },
        Request::CloseXrcd { xrcd: 1 },
    ] {
        assert_eq!(world.ask(1, &request), Err(errno::EINVAL), "{request:?}");
    }
}

#[test]
fn states_change_as_the_tables_say() {
    let world = World::new(2, 1);
    let node = world.node(0, 0);
    let end = world.qp(&node, Transport::Rc);
    assert_eq!(world.state(&end, State::Rts), Err(errno::EINVAL));
    assert_eq!(world.state(&end, State::Init), Err(errno::EINVAL));
    world.raise(&end, &end, &Link::default(), State::Rts);
    assert_eq!(world.state(&end, State::Init), Err(errno::EINVAL));
    let claimed = QpAttributes {
        state: State::Rts as u32,
        cur_state: State::Sqd as u32,
        ..QpAttributes::default()
    };
    let mask = mask::STATE | mask::CUR_STATE;
    assert_eq!(world.modify(&end, mask, claimed), Err(errno::EINVAL));
    assert_eq!(world.state(&end, State::Error), Ok(Reply::Done));
    assert_eq!(world.state(&end, State::Rts), Err(errno::EINVAL));
    assert_eq!(world.state(&end, State::Reset), Ok(Reply::Done));
    world.raise(&end, &end, &Link::default(), State::Rts);
}

#[test]
fn a_model_has_limits() {
    let world = World::of(&[ModelName::B], 1);
    let node = world.node(0, 0);
    let model = Model::of(ModelName::B);
    let ask = |request: &Request| world.ask(0, request);
    for (entries, fits) in [
        (0, false),
        (model.cq_entries, true),
        (model.cq_entries + 1, false),
    ] {
        let request = Request::CreateCq {
            hca: 0,
            entries,
            channel: None,
            stamps: false,
        };
        assert_eq!(ask(&request).is_ok(), fits, "{entries}");
    }
    let mut request = World::qp_request(&node, Transport::Rc);
    if let Request::CreateQp { capabilities, .. } = &mut request {
        capabilities.send_sges = model.sges + 1;
    }
    assert_eq!(ask(&request), Err(errno::EINVAL));
    let pds = (1..model.pds).all(|_| ask(&Request::AllocPd { hca: 0 }).is_ok());
    assert!(pds);
    assert_eq!(ask(&Request::AllocPd { hca: 0 }), Err(errno::ENOMEM));
}

#[test]
fn a_dead_process_leaves_nothing() {
    let world = World::new(2, 1);
    let two = Two::rc(&world);
    for process in 0..2 {
        let node = world.node(process, process);
        let file = Some((1, 2));
        let domain = world.make(process, &Request::OpenXrcd { hca: 0, file });
        for xrc in [None, Some((domain, node.cq))] {
            let request = Request::CreateSrq {
                pd: node.pd,
                slots: 8,
                sges: 1,
                limit: 0,
                xrc,
            };
            world.make(process, &request);
        }
        world.make(
            process,
            &Request::AllocMw {
                pd: node.pd,
                kind: 2,
            },
        );
        let end = world.qp(&node, Transport::Ud);
        let mut gid = [0; 16];
        gid[0] = 0xff;
        let join = Request::AttachMulticast {
            qp: end.index,
            gid,
            lid: 0,
        };
        assert_eq!(world.ask(process, &join), Ok(Reply::Done));
    }
    // One closes what its queue still uses: it goes when the last user does.
    assert_eq!(
        world.ask(0, &Request::CloseXrcd { xrcd: 1 }),
        Ok(Reply::Done)
    );
    world.kill(1);
    post_list(
        &world,
        &two.a,
        &two.x,
        &remote(1, Opcode::Write, &two.b, 0),
        0,
        8,
    );
    assert_eq!(ends(&world, &two.a), [(1, Status::RetryExceeded)]);
    world.kill(0);
    assert_eq!(world.control.borrow().in_use(), []);
}

#[test]
fn a_lock_of_a_dead_process_is_free() {
    let world = World::new(2, 1);
    let two = Two::rc(&world);
    let qp = world.memory.qp(two.x.index).expect("a queue pair");
    std::mem::forget(qp.receive_lock.take(1, |_| false));
    std::mem::forget(
        world
            .memory
            .cq(two.a.cq)
            .expect("a queue")
            .lock
            .take(1, |_| false),
    );
    world.kill(1);
    post_list(
        &world,
        &two.a,
        &two.x,
        &remote(1, Opcode::Write, &two.b, 0),
        0,
        8,
    );
    assert_eq!(ends(&world, &two.a), [(1, Status::RetryExceeded)]);
}
