//! Queues that run full or empty, and what is told about them.

use snaprig_hca::{
    Event, Opcode, SendFlags, State, Status, Transport,
    control::{QpAttributes, Reply, Request, attributes::mask},
    post::{Data, PostError},
    queue::Send,
    testing::{End, Link, World},
};

use crate::{Two, both, ends, poll, post_list, receive, remote, send};

#[test]
fn a_send_waits_for_a_receive() {
    both(|world| {
        let two = Two::rc(world);
        post_list(world, &two.a, &two.x, &send(1, Opcode::Send), 0, 5000);
        post_list(world, &two.a, &two.x, &send(2, Opcode::Send), 0, 10);
        world.run_for(3_000_000);
        assert!(world.poll(0, two.a.cq).is_empty());
        receive(world, &two.b, &two.y, 1, 0, 5000);
        receive(world, &two.b, &two.y, 2, 0, 5000);
        let both_done = [(1, Status::Success), (2, Status::Success)];
        assert_eq!(ends(world, &two.a), both_done);
        assert_eq!(ends(world, &two.b), both_done);
    });
}

#[test]
fn a_send_gives_up_without_a_receive() {
    both(|world| {
        for retries in [0, 3] {
            let link = Link {
                rnr_retry: retries,
                ..Link::default()
            };
            let two = Two::new(world, Transport::Rc, &link);
            let start = world.now();
            post_list(world, &two.a, &two.x, &send(1, Opcode::Send), 0, 10);
            post_list(world, &two.a, &two.x, &send(2, Opcode::Send), 0, 10);
            let done = poll(world, &two.a);
            let statuses = [0, 1].map(|i: usize| done[i].status);
            assert_eq!(statuses, [Status::RnrRetryExceeded, Status::Flushed]);
            // Code 12 of the timer: 640 us.
            let waited = (done[0].time_ns - start) / 640_000;
            assert_eq!(waited, u64::from(retries), "waits");
        }
    });
}

#[test]
fn a_dead_peer_is_found_out_after_all_retries() {
    both(|world| {
        for retry_cnt in [0, 2, 7] {
            let link = Link {
                retry_cnt,
                timeout: 14,
                ..Link::default()
            };
            let two = Two::new(world, Transport::Rc, &link);
            let destroy = Request::DestroyQp { qp: two.y.index };
            assert_eq!(world.ask(1, &destroy), Ok(Reply::Done));
            let start = world.now();
            post_list(world, &two.a, &two.x, &send(1, Opcode::Send), 0, 10);
            post_list(world, &two.a, &two.x, &send(2, Opcode::Send), 0, 10);
            let done = poll(world, &two.a);
            let statuses = [0, 1].map(|i: usize| done[i].status);
            assert_eq!(statuses, [Status::RetryExceeded, Status::Flushed]);
            let timeouts = (done[0].time_ns - start) / (4096 << 14);
            assert_eq!(timeouts, u64::from(retry_cnt) + 1);
        }
    });
}

#[test]
fn a_dead_process_is_found_out() {
    both(|world| {
        let two = Two::rc(world);
        world.kill(1);
        post_list(world, &two.a, &two.x, &send(1, Opcode::Send), 0, 10);
        assert_eq!(ends(world, &two.a), [(1, Status::RetryExceeded)]);
    });
}

#[test]
fn slots_are_free_when_a_completion_was_taken() {
    both(|world| {
        let two = Two::rc(world);
        let hca = world.hca(0);
        let write = |id, flags| {
            let request = Send {
                flags,
                ..remote(id, Opcode::Write, &two.b, 0)
            };
            hca.post_send(two.x.index, &request, Data::List(&[two.a.sge(0, 8)]))
        };
        for round in 0..5 {
            for id in 0..63 {
                assert_eq!(write(id, SendFlags::empty()), Ok(()), "round {round}");
            }
            assert_eq!(write(63, SendFlags::SIGNALED), Ok(()));
            assert_eq!(write(64, SendFlags::empty()), Err(PostError::Full));
            world.settle();
            assert_eq!(write(64, SendFlags::empty()), Err(PostError::Full));
            assert_eq!(ends(world, &two.a), [(63, Status::Success)]);
        }
        for id in 0..64 {
            receive(world, &two.b, &two.y, id, 0, 8);
        }
        let full = world.hca(1).post_receive(two.y.index, 64, &[]);
        assert_eq!(full, Err(PostError::Full));
    });
}

#[test]
fn requests_are_checked_when_posted() {
    both(|world| {
        let two = Two::rc(world);
        let fresh = world.qp(&two.a, Transport::Rc);
        let hca = world.hca(0);
        let request = send(1, Opcode::Send);
        let post = |end: &End, data| hca.post_send(end.index, &request, data);
        assert_eq!(post(&fresh, Data::EMPTY), Err(PostError::WrongState));
        assert_eq!(
            hca.post_receive(fresh.index, 1, &[]),
            Err(PostError::WrongState)
        );
        world.raise(&fresh, &two.y, &Link::default(), State::Rtr);
        assert_eq!(post(&fresh, Data::EMPTY), Err(PostError::WrongState));
        assert_eq!(hca.post_receive(fresh.index, 1, &[]), Ok(()));
        let many = [two.a.sge(0, 1); 5];
        assert_eq!(post(&two.x, Data::List(&many)), Err(PostError::TooManySges));
        assert_eq!(
            hca.post_receive(two.x.index, 1, &many),
            Err(PostError::TooManySges)
        );
        let long: [&[u8]; 2] = [&[0; 200], &[0; 57]];
        assert_eq!(
            post(&two.x, Data::Inline(&long)),
            Err(PostError::InlineTooLong)
        );
        assert_eq!(
            hca.post_send(77, &request, Data::EMPTY),
            Err(PostError::Unknown)
        );
        assert!(poll(world, &two.a).is_empty());
    });
}

#[test]
fn what_is_not_committed_was_never_posted() {
    both(|world| {
        let two = Two::rc(world);
        let hca = world.hca(0);
        let sending = hca.sending(two.x.index).expect("ready");
        for id in 0..64 {
            let added = sending.add(&remote(id, Opcode::Write, &two.b, 0), Data::EMPTY);
            assert_eq!(added, Ok(()));
        }
        let added = sending.add(&send(64, Opcode::Send), Data::EMPTY);
        assert_eq!(added, Err(PostError::Full));
        drop(sending);
        assert!(poll(world, &two.a).is_empty());
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(7, Opcode::Write, &two.b, 0),
            0,
            8,
        );
        assert_eq!(ends(world, &two.a), [(7, Status::Success)]);
    });
}

#[test]
fn an_armed_queue_notifies_once() {
    both(|world| {
        let two = Two::rc(world);
        let arm = |solicited_only| world.hca(1).request_notification(two.b.cq, solicited_only);
        let told = || std::mem::take(&mut *world.notified.borrow_mut());
        let say = |id, flags| {
            receive(world, &two.b, &two.y, id, 0, 10);
            let request = Send {
                flags,
                ..send(id, Opcode::Send)
            };
            post_list(world, &two.a, &two.x, &request, 0, 10);
            world.settle();
            let told = told();
            assert_eq!(ends(world, &two.b), [(id, Status::Success)]);
            told
        };
        assert_eq!(say(1, SendFlags::SOLICITED), [0u32; 0]);
        arm(false);
        assert_eq!(say(2, SendFlags::empty()), [two.b.cq]);
        assert!(say(3, SendFlags::empty()).is_empty());
        arm(true);
        assert!(say(4, SendFlags::empty()).is_empty());
        assert_eq!(say(5, SendFlags::SOLICITED), [two.b.cq]);
        arm(true);
        arm(false);
        arm(true);
        assert_eq!(
            say(6, SendFlags::empty()),
            [two.b.cq],
            "the wider wish counts"
        );
        arm(true);
        assert!(told().is_empty());
        world.state(&two.y, State::Error).expect("an error");
        receive(world, &two.b, &two.y, 9, 0, 10);
        world.settle();
        assert_eq!(told(), [two.b.cq], "a failure is told");
    });
}

#[test]
fn a_queue_that_is_armed_notifies_of_what_waits() {
    both(|world| {
        let two = Two::rc(world);
        let told_at_arming = |solicited_only| {
            world.hca(1).request_notification(two.b.cq, solicited_only);
            std::mem::take(&mut *world.notified.borrow_mut())
        };
        let say = |id, flags| {
            receive(world, &two.b, &two.y, id, 0, 10);
            let request = Send {
                flags,
                ..send(id, Opcode::Send)
            };
            post_list(world, &two.a, &two.x, &request, 0, 10);
            world.settle();
        };
        let nobody = [0u32; 0];
        say(1, SendFlags::empty());
        assert_eq!(told_at_arming(true), nobody);
        assert_eq!(told_at_arming(false), [two.b.cq]);
        say(2, SendFlags::SOLICITED);
        assert_eq!(*world.notified.borrow(), nobody, "once an arming");
        assert_eq!(told_at_arming(true), [two.b.cq]);
        let good = [1, 2].map(|id| (id, Status::Success));
        assert_eq!(ends(world, &two.b), good);
        assert_eq!(told_at_arming(true), nobody, "it was taken");
        world.state(&two.y, State::Error).expect("an error");
        receive(world, &two.b, &two.y, 3, 0, 10);
        world.settle();
        assert_eq!(
            std::mem::take(&mut *world.notified.borrow_mut()),
            [two.b.cq]
        );
        let again = "it was told of, and nobody has looked since";
        assert_eq!(told_at_arming(true), nobody, "{again}");
        receive(world, &two.b, &two.y, 4, 0, 10);
        receive(world, &two.b, &two.y, 5, 0, 10);
        world.settle();
        assert_eq!(
            std::mem::take(&mut *world.notified.borrow_mut()),
            [two.b.cq]
        );
        let cq = world.memory.cq(two.b.cq).expect("a queue");
        world.hca(1).poll(cq).expect("the first of three");
        assert_eq!(told_at_arming(true), [two.b.cq], "what it has left");
    });
}

#[test]
fn a_completion_queue_holds_what_it_promised_and_no_more() {
    both(|world| {
        for asked in [1, 7, 8, 9, 64] {
            let mut two = Two::rc(world);
            let request = Request::CreateCq {
                hca: 0,
                entries: asked,
                channel: None,
                stamps: false,
            };
            let Ok(Reply::Queue(cq, granted)) = world.ask(0, &request) else {
                panic!("no queue")
            };
            assert!(granted >= asked, "{asked} were asked for");
            two.a.cq = cq;
            let (x, _) = world.pair(&two.a, &two.b, Transport::Uc, &Link::default());
            world.events.borrow_mut().clear();
            let mut posted = 0;
            let mut write = || {
                if posted % 32 == 0 {
                    world.settle();
                }
                posted += 1;
                let request = remote(posted, Opcode::Write, &two.b, 0);
                let hca = world.hca(0);
                hca.post_send(x.index, &request, Data::EMPTY).is_ok()
            };
            for _ in 0..granted.min(63) {
                assert!(write());
            }
            world.settle();
            assert!(world.events.borrow().is_empty());
            if granted > 63 {
                continue;
            }
            for _ in granted..64 {
                assert!(write());
            }
            world.settle();
            let events = world.events.borrow().clone();
            let told = [(Event::CqError, cq), (Event::QpFatal, x.index)];
            assert_eq!(events, told, "once");
            assert_eq!(world.poll(0, cq).len(), granted as usize);
        }
    });
}

#[test]
fn an_overrun_queue_ends_who_completes_to_it_and_keeps_what_it_has() {
    both(|world| {
        let (mut a, b) = (world.node(0, 0), world.node(1, 1));
        a.cq = world.cq(0, 0, 3);
        let pairs = [0; 3].map(|_| world.pair(&a, &b, Transport::Rc, &Link::default()));
        let state = |end: &End| world.memory.qp(end.index).expect("a queue pair").state();
        let write = |x: &End, id, flags| {
            let request = Send {
                flags,
                ..remote(id, Opcode::Write, &b, 0)
            };
            post_list(world, &a, x, &request, 0, 8);
            world.settle();
        };
        for id in 0..4 {
            write(&pairs[0].0, id, SendFlags::SIGNALED);
        }
        let overrun = [(Event::CqError, a.cq), (Event::QpFatal, pairs[0].0.index)];
        assert_eq!(*world.events.borrow(), overrun);
        assert_eq!(state(&pairs[0].0), State::Error);

        // What does not complete there is not ended by it.
        write(&pairs[1].0, 10, SendFlags::empty());
        assert_eq!(state(&pairs[1].0), State::Rts);
        write(&pairs[1].0, 11, SendFlags::SIGNALED);
        assert_eq!(state(&pairs[1].0), State::Error);

        // Room there was made changes nothing.
        let expected: Vec<_> = (0..3).map(|id| (id, Status::Success)).collect();
        assert_eq!(ends(world, &a), expected);
        receive(world, &a, &pairs[2].0, 20, 0, 8);
        post_list(world, &b, &pairs[2].1, &send(21, Opcode::Send), 0, 8);
        assert_eq!(ends(world, &b), [(21, Status::RetryExceeded)]);
        assert_eq!(state(&pairs[2].0), State::Error);
        assert!(ends(world, &a).is_empty());
        let fatal = [1, 2].map(|pair: usize| (Event::QpFatal, pairs[pair].0.index));
        assert_eq!(world.events.borrow()[2..], fatal);
    });
}

#[test]
fn a_resized_queue_keeps_its_entries() {
    both(|world| {
        let two = Two::rc(world);
        let resize = |entries| {
            world.ask(
                0,
                &Request::ResizeCq {
                    cq: two.a.cq,
                    entries,
                },
            )
        };
        for id in 0..5 {
            post_list(
                world,
                &two.a,
                &two.x,
                &remote(id, Opcode::Write, &two.b, 0),
                0,
                8,
            );
        }
        world.settle();
        assert_eq!(resize(4), Err(snaprig_hca::control::errno::EINVAL));
        assert!(resize(5).is_ok());
        assert!(resize(100).is_ok());
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(5, Opcode::Write, &two.b, 0),
            0,
            8,
        );
        let expected: Vec<_> = (0..6).map(|id| (id, Status::Success)).collect();
        assert_eq!(ends(world, &two.a), expected);
    });
}

#[test]
fn a_drained_queue_tells_and_starts_again() {
    both(|world| {
        let two = Two::rc(world);
        world.memory.header().ports[1].up.set(0);
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(1, Opcode::Write, &two.b, 0),
            0,
            5000,
        );
        world.run_for(1_000_000);
        let attributes = QpAttributes {
            state: State::Sqd as u32,
            en_sqd_async_notify: true,
            ..QpAttributes::default()
        };
        let drain = mask::STATE | mask::EN_SQD_ASYNC_NOTIFY;
        world.modify(&two.x, drain, attributes).expect("drains");
        post_list(
            world,
            &two.a,
            &two.x,
            &remote(2, Opcode::Write, &two.b, 0),
            0,
            5000,
        );
        world.run_for(5_000_000);
        assert!(world.events.borrow().is_empty(), "one is under way");
        world.memory.header().ports[1].up.set(1);
        assert_eq!(
            ends(world, &two.a),
            [(1, Status::Success)],
            "the rest waits"
        );
        let drained = (Event::Drained, two.x.index);
        assert_eq!(*world.events.borrow(), [drained]);
        world.state(&two.x, State::Rts).expect("goes on");
        assert_eq!(ends(world, &two.a), [(2, Status::Success)]);
        assert_eq!(world.events.borrow().len(), 1);
    });
}

#[test]
fn a_queue_pair_is_as_new_after_a_reset() {
    both(|world| {
        let two = Two::rc(world);
        for id in 0..3 {
            receive(world, &two.b, &two.y, id, 0, 8);
            post_list(world, &two.a, &two.x, &send(id, Opcode::Send), 0, 8);
        }
        world.settle();
        // Not polled before the reset: what is old frees nothing of what is new.
        for end in [&two.x, &two.y] {
            world.state(end, State::Reset).expect("a reset");
        }
        world.connect(&two.x, &two.y, &Link::default());
        world.poll(0, two.a.cq);
        world.poll(1, two.b.cq);
        for id in 0..64 {
            receive(world, &two.b, &two.y, id, 0, 8);
        }
        for id in 0..64 {
            post_list(world, &two.a, &two.x, &send(id, Opcode::Send), 0, 8);
        }
        assert_eq!(ends(world, &two.a).len(), 64);
        assert_eq!(ends(world, &two.b).len(), 64);
    });
}

#[test]
fn the_first_message_establishes() {
    both(|world: &World| {
        let (a, b) = (world.node(0, 0), world.node(1, 1));
        let (x, y) = (world.qp(&a, Transport::Rc), world.qp(&b, Transport::Rc));
        world.raise(&x, &y, &Link::default(), State::Rts);
        world.raise(&y, &x, &Link::default(), State::Rtr);
        receive(world, &b, &y, 1, 0, 8);
        post_list(world, &a, &x, &send(1, Opcode::Send), 0, 8);
        assert_eq!(ends(world, &b), [(1, Status::Success)]);
        assert_eq!(*world.events.borrow(), [(Event::Established, y.index)]);
    });
}
