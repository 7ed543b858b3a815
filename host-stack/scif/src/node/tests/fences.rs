//! What waits for copies: fences, signals, and windows that are taken back.

use super::*;

#[test]
fn fences_wait_for_what_was_marked_and_no_more() {
    let (mut net, host, card) = joined();
    let first = copying(&mut net, host);
    let mark = |net: &mut Net, at, id, peer| match net.ask(at, id, Op::FenceMark { peer }) {
        Ok(Value::Mark(mark)) => mark,
        other => panic!("{other:?}"),
    };
    let own = mark(&mut net, 0, host, false);
    let theirs = mark(&mut net, 1, card, true);
    let second = copying(&mut net, host);
    let waits = [
        (0, net.request(0, host, Op::FenceWait(own))),
        (1, net.request(1, card, Op::FenceWait(theirs))),
    ];
    net.settle();
    assert!(
        waits
            .iter()
            .all(|(at, wait)| !net.done[*at].contains_key(wait))
    );
    // A later one that ends first changes nothing.
    net.input(0, Input::CopyDone(second, Ok(())));
    net.settle();
    assert!(
        waits
            .iter()
            .all(|(at, wait)| !net.done[*at].contains_key(wait))
    );
    net.input(0, Input::CopyDone(first, Ok(())));
    net.settle();
    for (at, wait) in waits {
        assert!(matches!(net.done[at].remove(&wait), Some(Ok(_))), "{at}");
    }
    let beyond = net.ask(0, host, Op::FenceWait(own + 5));
    assert_eq!(beyond, Err(libc::EINVAL));
}

#[test]
fn signals_are_written_by_who_has_the_window_when_the_copies_have_ended() {
    for peer in [false, true] {
        let (mut net, host, card) = joined();
        let job = copying(&mut net, host);
        let (at, id) = if peer { (1, card) } else { (0, host) };
        let signal = Op::FenceSignal {
            local: Some((8, 1)),
            remote: Some((16, 2)),
            peer,
        };
        net.ask(at, id, signal).expect("it is marked");
        assert_eq!(net.pokes, []);
        net.input(0, Input::CopyDone(job, Ok(())));
        net.settle();
        net.pokes.sort_unstable();
        let expected = match peer {
            false => [(0, (1 << 20) + 8, 1), (1, (2 << 20) + 16, 2)],
            true => [(0, (1 << 20) + 16, 2), (1, (2 << 20) + 8, 1)],
        };
        assert_eq!(net.pokes, expected);
    }
}

#[test]
fn a_window_is_taken_back_when_copies_have_ended_and_kept_while_it_is_mapped() {
    let (mut net, host, card) = joined();
    let job = copying(&mut net, host);
    let map = Op::Map {
        offset: PAGE as i64,
        len: PAGE,
        prot: PROT_READ,
    };
    let Ok(Value::Mapped { mapping, extents }) = net.ask(0, host, map) else {
        panic!("it can be mapped");
    };
    assert_eq!(extents[0].address, (2 << 20) + PAGE);
    let whole = Op::Unregister {
        offset: 0,
        len: 4 * PAGE,
    };
    let taken = net.request(1, card, whole);
    net.settle();
    assert!(!net.done[1].contains_key(&taken), "a copy uses it");
    net.input(0, Input::CopyDone(job, Ok(())));
    net.settle();
    let held = Some(Ok(Value::Gone { held: true }));
    assert_eq!(net.done[1].remove(&taken), held);
    assert_eq!(net.released, []);
    assert_eq!(net.ask(1, card, window(3 << 20, 9)), Err(libc::EADDRINUSE));
    net.released.clear();
    // It outlives its endpoint.
    let closed = net.request(0, host, Op::Close);
    net.settle();
    assert!(net.done[0].contains_key(&closed));
    assert_eq!(net.released, [(0, 7)]);
    net.input(0, Input::Unmapped(mapping));
    net.settle();
    assert_eq!(net.released, [(0, 7), (1, 8)]);
    net.input(1, Input::Close(card));
    net.settle();
    assert!(
        net.nodes[..2]
            .iter()
            .all(|node| node.endpoints.is_empty() || node.endpoints.len() == 1)
    );
}

fn start(net: &mut Net, endpoint: EndpointId, ordered: bool) -> RequestId {
    let rma = Op::Rma {
        local: Local::Window(10),
        len: PAGE,
        remote: 0,
        write: true,
        ordered,
        sync: false,
    };
    net.request(0, endpoint, rma)
}

#[test]
fn a_copy_that_nobody_waits_for_is_waited_for_by_fences_and_by_who_starts_too_many() {
    let (mut net, host, card) = joined();
    let mut jobs = Vec::new();
    let last = loop {
        let started = start(&mut net, host, false);
        jobs.push(net.copies.pop().expect("a copy").1);
        match net.done[0].remove(&started) {
            Some(done) => assert_eq!(done, Ok(Value::Unit)),
            None => break started,
        }
    };
    assert!((2..1000).contains(&jobs.len()));
    let Ok(Value::Mark(mark)) = net.ask(1, card, Op::FenceMark { peer: true }) else {
        panic!("it can be marked");
    };
    let wait = net.request(1, card, Op::FenceWait(mark));
    for job in jobs {
        net.settle();
        assert!(!net.done[1].contains_key(&wait));
        // That it fails nobody is told but who waits for it.
        net.input(0, Input::CopyDone(job, Err(libc::EIO)));
    }
    net.settle();
    assert!(matches!(net.done[1].remove(&wait), Some(Ok(_))));
    assert_eq!(net.done[0].remove(&last), Some(Err(libc::EIO)));
}

#[test]
fn the_last_cache_line_of_an_ordered_copy_is_a_copy_of_its_own() {
    let (mut net, host, _) = joined();
    start(&mut net, host, true);
    let (_, _, copies) = net.copies.pop().expect("copies");
    let lens: Vec<_> = copies.iter().map(|copy| copy.len).collect();
    assert_eq!(lens, [PAGE as u32 - 10, 10]);
    assert_eq!(copies[1].src, (1 << 20) + PAGE);
    assert_eq!(copies[1].dst, copies[0].dst + u64::from(copies[0].len));
}
