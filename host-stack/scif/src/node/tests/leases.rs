//! Copies of which nobody tells until they are recalled.

use super::*;

fn leased(net: &mut Net, host: EndpointId) -> Result<Value, i32> {
    net.ask(0, host, Op::Lease(PAGE as i64 + 7))
}

fn recalled(net: &mut Net, revoke: bool) -> JobId {
    let recall = net.nodes[0].poll_recall().expect("a recall");
    assert_eq!(recall.revoke, revoke);
    assert_eq!(net.nodes[0].poll_recall(), None);
    recall.job
}

#[test]
fn a_lease_is_the_rest_of_a_window() {
    let (mut net, host, _) = joined();
    let Ok(Value::Leased {
        offset,
        prot,
        extents,
    }) = leased(&mut net, host)
    else {
        panic!("it can be leased");
    };
    assert_eq!((offset, prot), (PAGE as i64, PROT_READ | PROT_WRITE));
    assert_eq!(extents[0].address, (2 << 20) + PAGE);
    let bytes: u64 = extents.iter().map(|extent| extent.len).sum();
    assert_eq!(bytes, 3 * PAGE);
    for nowhere in [-1, 4 * PAGE as i64, i64::MAX, i64::MIN] {
        assert_eq!(net.ask(0, host, Op::Lease(nowhere)), Err(libc::ENXIO));
    }
}

#[test]
fn a_window_is_taken_back_when_leased_copies_have_ended() {
    for how in 0..3 {
        let (mut net, host, card) = joined();
        leased(&mut net, host).expect("it can be leased");
        let whole = Op::Unregister {
            offset: 0,
            len: 4 * PAGE,
        };
        let (at, taken) = match how {
            0 => (1, net.request(1, card, whole)),
            // The leases are for copies with the own windows, too.
            1 => (0, net.request(0, host, whole)),
            _ => (1, net.request(1, card, Op::Close)),
        };
        net.settle();
        assert!(!net.done[at].contains_key(&taken), "somebody may copy");
        assert_eq!(net.released, []);
        let job = recalled(&mut net, true);
        let refused = leased(&mut net, host);
        assert!(refused.is_err(), "{refused:?}");
        net.input(0, Input::CopyDone(job, Ok(())));
        net.settle();
        let gone = Some(Ok(Value::Gone { held: false }));
        assert_eq!(net.done[at].remove(&taken), gone, "{how}");
        assert!(!net.released.is_empty());
        assert_eq!(leased(&mut net, host).is_ok(), how == 1);
    }
}

#[test]
fn fences_wait_for_leased_copies() {
    let (mut net, host, card) = joined();
    leased(&mut net, host).expect("it can be leased");
    for (at, id, peer) in [(0, host, false), (1, card, true)] {
        let Ok(Value::Mark(mark)) = net.ask(at, id, Op::FenceMark { peer }) else {
            panic!("a mark");
        };
        // However often it is asked for, one job stands for all of them.
        net.ask(at, id, Op::FenceMark { peer }).expect("a mark");
        let wait = net.request(at, id, Op::FenceWait(mark));
        net.settle();
        assert!(!net.done[at].contains_key(&wait));
        let job = recalled(&mut net, false);
        net.input(0, Input::CopyDone(job, Ok(())));
        net.settle();
        assert!(net.done[at].remove(&wait).is_some());
    }
    assert!(net.nodes[0].jobs.is_empty());
}
