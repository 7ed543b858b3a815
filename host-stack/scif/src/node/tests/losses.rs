//! What is left of an endpoint whose peer is gone.

use super::*;

#[test]
fn an_endpoint_that_has_lost_its_peer_while_it_connected_is_as_good_as_new() {
    let mut net = Net::new();
    let (listener, endpoint) = (net.open(1), net.open(0));
    net.ask(1, listener, Op::Bind(2000)).expect("bound");
    net.ask(1, listener, Op::Listen(4)).expect("it listens");
    let peer = PortId {
        node: 1,
        port: 2000,
    };
    let first = net.request(0, endpoint, Op::Connect(peer));
    net.settle();
    net.input(0, Input::PeerDown(1));
    assert_eq!(net.done[0].remove(&first), Some(Err(libc::ECONNRESET)));
    net.input(0, Input::PeerUp(1));
    // Whoever is accepted first is gone by now.
    net.ask(1, listener, Op::Accept).expect("accepted");
    let again = net.request(0, endpoint, Op::Connect(peer));
    net.settle();
    let accepted = net.ask(1, listener, Op::Accept);
    let Ok(Value::Accepted {
        endpoint: other, ..
    }) = accepted
    else {
        panic!("{accepted:?}");
    };
    assert!(matches!(
        net.done[0].remove(&again),
        Some(Ok(Value::Port(_)))
    ));
    for (node, end) in [(0, endpoint), (1, other)] {
        let op = Op::Register {
            extents: extents(PAGE, 1),
            offset: Some(0),
            prot: PROT_READ | PROT_WRITE,
            backing: node as u64,
        };
        assert_eq!(net.ask(node, end, op), Ok(Value::Offset(0)));
    }
    let rma = Op::Rma {
        local: Local::Window(0),
        len: 8,
        remote: 0,
        write: true,
        ordered: false,
        sync: true,
    };
    net.request(0, endpoint, rma);
    let (_, job, _) = net.copies.pop().expect("it copies");
    net.input(0, Input::CopyDone(job, Ok(())));
    assert_eq!(net.released, [], "both are connected");
}

#[test]
fn a_fence_of_a_peer_that_is_closing_is_told_that_it_is_gone() {
    let mut net = Net::new();
    let (one, other) = net.connect(0, 1);
    for (node, end) in [(0, one), (1, other)] {
        let op = Op::Register {
            extents: extents(PAGE, 1),
            offset: Some(0),
            prot: PROT_READ | PROT_WRITE,
            backing: node as u64,
        };
        net.ask(node, end, op).expect("registered");
    }
    let rma = Op::Rma {
        local: Local::Window(0),
        len: 8,
        remote: 0,
        write: true,
        ordered: false,
        sync: true,
    };
    // Its close waits for this.
    net.request(1, other, rma);
    net.input(1, Input::Close(other));
    for fence in [
        Op::FenceMark { peer: true },
        Op::FenceSignal {
            local: Some((0, 1)),
            remote: None,
            peer: true,
        },
    ] {
        assert_eq!(net.ask(0, one, fence), Err(libc::ECONNRESET));
    }
}

#[test]
fn a_connection_of_a_lost_node_hears_nothing_of_the_nodes_next_life() {
    let mut net = Net::new();
    let listener = net.open(0);
    net.ask(0, listener, Op::Bind(2000)).expect("bound");
    net.ask(0, listener, Op::Listen(4)).expect("it listens");
    let peer = PortId {
        node: 0,
        port: 2000,
    };
    let mut ends = Vec::new();
    for life in 0..2 {
        if life > 0 {
            net.input(0, Input::PeerDown(1));
            net.nodes[1] = Node::with_window(1, WINDOW);
            net.input(0, Input::PeerUp(1));
            net.input(1, Input::PeerUp(0));
        }
        // The same port, and the first connection of this life.
        let endpoint = net.open(1);
        net.ask(1, endpoint, Op::Bind(3000)).expect("bound");
        let connect = net.request(1, endpoint, Op::Connect(peer));
        let Ok(Value::Accepted { endpoint: end, .. }) = net.ask(0, listener, Op::Accept) else {
            panic!("not accepted");
        };
        assert!(matches!(net.done[1].remove(&connect), Some(Ok(_))));
        net.ask(1, endpoint, Op::Send(vec![life])).expect("sent");
        ends.push(end);
    }
    for (life, end) in ends.into_iter().enumerate() {
        let came = net.ask(0, end, Op::Recv(8));
        assert_eq!(came, Ok(Value::Bytes(vec![life as u8])));
    }
}
