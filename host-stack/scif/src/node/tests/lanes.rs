//! Whose connections have lanes, and until when.

use super::*;

/// A connection of endpoints whose programs take lanes, or do not.
fn connect(net: &mut Net, [from, to]: [usize; 2], willing: [bool; 2]) -> [EndpointId; 2] {
    let listener = net.open(to);
    let Ok(Value::Port(port)) = net.ask(to, listener, Op::Bind(0)) else {
        panic!("no port");
    };
    assert_eq!(net.ask(to, listener, Op::Listen(4)), Ok(Value::Unit));
    let endpoint = net.open(from);
    for (at, endpoint, is) in [(from, endpoint, willing[0]), (to, listener, willing[1])] {
        if is {
            assert_eq!(net.ask(at, endpoint, Op::Willing), Ok(Value::Unit));
        }
    }
    let accept = net.request(to, listener, Op::Accept);
    let node = to as u16;
    let connected = net.ask(from, endpoint, Op::Connect(PortId { node, port }));
    assert!(matches!(connected, Ok(Value::Port(_))), "{connected:?}");
    match net.done[to].remove(&accept) {
        Some(Ok(Value::Accepted {
            endpoint: other, ..
        })) => [endpoint, other],
        other => panic!("{other:?}"),
    }
}

fn lanes(net: &Net, at: [usize; 2], ends: [EndpointId; 2]) -> [Option<Lanes>; 2] {
    std::array::from_fn(|end| net.nodes[at[end]].lanes(ends[end]))
}

#[test]
fn both_programs_take_them_and_one_is_of_a_card() {
    for at in [[0, 1], [1, 0], [1, 2], [1, 1], [0, 0]] {
        for willing in [[true, true], [true, false], [false, true], [false, false]] {
            let mut net = Net::new();
            let ends = connect(&mut net, at, willing);
            let have = willing == [true, true] && at != [0, 0];
            match lanes(&net, at, ends) {
                [Some(one), Some(other)] => {
                    assert!(have, "{at:?} {willing:?}");
                    assert_eq!((one.extent, one.side, other.side), (other.extent, 0, 1));
                    // A card's, and one card's alone.
                    assert!(one.backing.is_some() != other.backing.is_some());
                    assert!(one.backing.is_none() || at[0] != 0);
                }
                none => assert!(
                    none == [None, None] && !have,
                    "{at:?} {willing:?}: {none:?}"
                ),
            }
            // What was laid for nothing is given back.
            let laid = willing[0] && at[0] != 0;
            assert_eq!(net.released.len(), usize::from(laid && !have));
            let sent = net.ask(at[0], ends[0], Op::Send(vec![1]));
            assert_eq!(sent.is_ok(), !have);
        }
    }
}

#[test]
fn a_card_without_room_has_the_nodes_do_it() {
    let mut net = Net::new();
    net.has_room = false;
    for at in [[0, 1], [1, 0], [1, 2]] {
        let ends = connect(&mut net, at, [true; 2]);
        assert_eq!(lanes(&net, at, ends), [None, None]);
        assert_eq!(net.ask(at[0], ends[0], Op::Send(vec![1])), Ok(Value::Unit));
    }
}

#[test]
fn memory_that_programs_cannot_map_has_none() {
    let mut net = Net::new();
    net.nodes[0].cannot_map(1);
    for (at, have) in [([0, 1], false), ([1, 0], false), ([0, 2], true)] {
        let ends = connect(&mut net, at, [true; 2]);
        assert_eq!(lanes(&net, at, ends).map(|it| it.is_some()), [have; 2]);
    }
}

#[test]
fn bells_are_heard_at_the_other_end() {
    let mut net = Net::new();
    let [one, other] = connect(&mut net, [0, 1], [true; 2]);
    assert_eq!(net.ask(0, one, Op::Ring(Bell::Readable)), Ok(Value::Unit));
    assert_eq!(net.ask(1, other, Op::Ring(Bell::Writable)), Ok(Value::Unit));
    let expected = [(1, other, Bell::Readable), (0, one, Bell::Writable)];
    assert_eq!(net.rings, expected);
    let [plain, _] = connect(&mut net, [0, 1], [false; 2]);
    let refused = net.ask(0, plain, Op::Ring(Bell::Readable));
    assert_eq!(refused, Err(libc::ENOTCONN));
}

#[test]
fn they_stay_until_both_have_closed_and_nobody_has_them_mapped() {
    for at in [[0, 1], [1, 0], [1, 2]] {
        let mut net = Net::new();
        let ends = connect(&mut net, at, [true; 2]);
        let maps = |end: usize| net_mapping(at[end], ends[end]);
        // Who has mapped its peer's memory holds it.
        let of = lanes(&net, at, ends).map(|it| it.unwrap().backing.is_none());
        let theirs = of.iter().position(|is| *is).unwrap();
        let mapping = maps(theirs)(&mut net).expect("a mapping");
        assert_eq!(maps(1 - theirs)(&mut net), None);
        for end in [0, 1] {
            assert_eq!(net.released, []);
            net.input(at[end], Input::Close(ends[end]));
            net.settle();
        }
        assert_eq!(net.released, []);
        net.input(at[theirs], Input::Unmapped(mapping));
        net.settle();
        assert_eq!(net.released.len(), 1);
        assert_eq!(
            net.nodes.iter().map(Node::in_use).max(),
            Some(1),
            "listeners"
        );
    }
}

#[test]
fn windows_of_who_is_gone_go_before_the_lanes() {
    let mut net = Net::new();
    let [host, card] = connect(&mut net, [0, 1], [true; 2]);
    let mapping = net_mapping(0, host)(&mut net).expect("they are the card's");
    let request = net.request(1, card, window(2 << 20, 8));
    net.settle();
    let Some(Ok(Value::Offset(offset))) = net.done[1].remove(&request) else {
        panic!("no window");
    };
    let map = Op::Map {
        offset,
        len: PAGE,
        prot: PROT_READ,
    };
    let Ok(Value::Mapped {
        mapping: mapped, ..
    }) = net.ask(0, host, map)
    else {
        panic!("not mapped");
    };
    net.input(1, Input::Close(card));
    net.settle();
    assert_eq!(net.released, []);
    net.input(0, Input::Unmapped(mapped));
    net.settle();
    assert_eq!(net.released, [(1, 8)]);
    net.input(0, Input::Unmapped(mapping));
    net.settle();
    assert_eq!(net.released.len(), 1, "the program may still read there");
    net.input(0, Input::Close(host));
    net.settle();
    assert_eq!(net.released.len(), 2);
}

#[test]
fn windows_of_who_is_gone_do_not_wait_for_the_lanes() {
    let mut net = Net::new();
    let [host, card] = connect(&mut net, [0, 1], [true; 2]);
    net_mapping(0, host)(&mut net).expect("they are the card's");
    let request = net.request(1, card, window(2 << 20, 8));
    net.settle();
    assert!(net.done[1].remove(&request).is_some_and(|it| it.is_ok()));
    net.input(1, Input::Close(card));
    net.settle();
    assert_eq!(net.released, [(1, 8)]);
}

fn net_mapping(at: usize, end: EndpointId) -> impl Fn(&mut Net) -> Option<MappingId> {
    move |net| match net.ask(at, end, Op::MapLanes) {
        Ok(Value::Lanes { mapping, .. }) => mapping,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_that_is_not_made_leaves_none() {
    let mut net = Net::new();
    let endpoint = net.open(1);
    net.ask(1, endpoint, Op::Willing).unwrap();
    let nobody = PortId { node: 0, port: 77 };
    for laid in 1..=2 {
        let refused = net.ask(1, endpoint, Op::Connect(nobody));
        assert_eq!(refused, Err(libc::ECONNREFUSED));
        assert_eq!(net.released.len(), laid);
    }
    // Whoever gives up does not know whether they are in use: the peer's answer is waited for.
    let listener = net.open(0);
    net.ask(0, listener, Op::Willing).unwrap();
    let Ok(Value::Port(port)) = net.ask(0, listener, Op::Bind(0)) else {
        panic!("no port");
    };
    net.ask(0, listener, Op::Listen(4)).unwrap();
    let there = PortId { node: 0, port };
    let request = net.request(1, endpoint, Op::Connect(there));
    net.settle();
    net.input(1, Input::Interrupt(request));
    assert_eq!(net.done[1].remove(&request), Some(Err(libc::EINTR)));
    assert_eq!(net.released.len(), 2);
    let accepted = net.ask(0, listener, Op::Accept).unwrap();
    let Value::Accepted {
        endpoint: other, ..
    } = accepted
    else {
        panic!("{accepted:?}");
    };
    assert_eq!(net.nodes[0].check_connected(other), Err(libc::ECONNRESET));
    assert_eq!(net.released.len(), 2, "it may still read there");
    net.input(0, Input::Close(other));
    net.settle();
    assert_eq!(net.released.len(), 3);
    // A card is lost in the middle.
    let other = PortId { node: 2, port: 77 };
    net.request(1, endpoint, Op::Connect(other));
    net.input(1, Input::PeerDown(0));
    assert_eq!(net.released.len(), 4);
}

#[test]
fn bytes_by_the_nodes_end_a_connection_that_has_lanes() {
    let mut net = Net::new();
    let ends = connect(&mut net, [0, 1], [true; 2]);
    let message = Message {
        from: net.nodes[1].peer(ends[1]).unwrap(),
        to: net.nodes[0].peer(ends[0]).unwrap(),
        connection: 1,
        body: Body::Data(vec![1]),
    };
    net.input(1, Input::Message(message));
    assert_eq!(net.nodes[1].check_connected(ends[1]), Err(libc::ECONNRESET));
}

#[test]
fn a_window_is_registered_when_the_peer_knows_it() {
    let register = |net: &mut Net, at: usize, endpoint| {
        let extent = Extent {
            address: 0,
            len: 2 * PAGE,
        };
        let op = Op::Register {
            extents: vec![extent],
            offset: Some(0),
            prot: PROT_READ,
            backing: 7,
        };
        net.request(at, endpoint, op)
    };
    for (at, willing) in [
        ([0, 1], true),
        ([0, 1], false),
        ([1, 1], true),
        ([1, 1], false),
    ] {
        let mut net = Net::new();
        let [one, other] = connect(&mut net, at, [willing; 2]);
        let request = register(&mut net, at[0], one);
        // What is sent by the nodes comes behind it.
        let is_known = !willing || at[0] == at[1];
        assert_eq!(net.done[at[0]].contains_key(&request), is_known);
        net.settle();
        let registered = net.done[at[0]].remove(&request);
        assert_eq!(registered, Some(Ok(Value::Offset(0))));
        let map = Op::Map {
            offset: 0,
            len: PAGE,
            prot: PROT_READ,
        };
        assert!(net.ask(at[1], other, map).is_ok());
    }
    // A signal, or the peer's end, does not undo it.
    for end in [0, 1] {
        let mut net = Net::new();
        let [one, other] = connect(&mut net, [0, 1], [true; 2]);
        let request = register(&mut net, 0, one);
        match end {
            0 => net.input(0, Input::Interrupt(request)),
            _ => net.input(1, Input::Close(other)),
        }
        net.settle();
        assert_eq!(net.done[0].remove(&request), Some(Ok(Value::Offset(0))));
        // After the peer's end nobody can touch the memory: it is given back.
        let released: &[_] = if end == 0 { &[] } else { &[(0, 7)] };
        assert_eq!(net.released, released);
    }
}

#[test]
fn who_has_heard_that_nothing_is_mapped_any_more_can_register_there() {
    for interrupted in [false, true] {
        let mut net = Net::new();
        let [one, other] = connect(&mut net, [0, 1], [true; 2]);
        let window = |backing| Op::Register {
            extents: vec![Extent {
                address: 0,
                len: PAGE,
            }],
            offset: Some(0),
            prot: PROT_READ,
            backing,
        };
        assert!(net.ask(0, one, window(7)).is_ok());
        let map = Op::Map {
            offset: 0,
            len: PAGE,
            prot: PROT_READ,
        };
        let Ok(Value::Mapped { mapping, .. }) = net.ask(1, other, map) else {
            panic!("not mapped")
        };
        let unregister = Op::Unregister {
            offset: 0,
            len: PAGE,
        };
        assert_eq!(net.ask(0, one, unregister), Ok(Value::Gone { held: true }));
        assert_eq!(net.ask(0, one, window(8)), Err(libc::EADDRINUSE));
        // The peer unmaps it and says so by the lanes, before its node's message is here.
        net.input(1, Input::Unmapped(mapping));
        let request = net.request(0, one, window(9));
        if interrupted {
            net.input(0, Input::Interrupt(request));
        }
        net.settle();
        let registered = net.done[0].remove(&request);
        let expected = match interrupted {
            true => Err(libc::EINTR),
            false => Ok(Value::Offset(0)),
        };
        assert_eq!(registered, Some(expected));
        let given_back: &[_] = match interrupted {
            true => &[(0, 8), (0, 9), (0, 7)],
            false => &[(0, 8), (0, 7)],
        };
        assert_eq!(net.released, given_back);
    }
}
