//! Credit: how much a sender may have under way.

use super::*;

fn write(net: &mut Net, id: EndpointId, bytes: usize) -> usize {
    let data = vec![1; bytes];
    let count = net.ask(0, id, Op::Write { data, block: false });
    let Ok(Value::Count(count)) = count else {
        panic!("{count:?}");
    };
    count
}

fn read(net: &mut Net, id: EndpointId, max: usize) -> usize {
    match net.ask(1, id, Op::Read { max, block: true }) {
        Ok(Value::Bytes(bytes)) => bytes.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_waits_fills_the_window_and_who_does_not_the_queue() {
    let mut net = Net::new();
    for (id, node) in net.nodes.iter_mut().enumerate() {
        *node = Node::with_window(id as u16, 4 * WINDOW);
    }
    net.input(0, Input::PeerUp(1));
    net.input(1, Input::PeerUp(0));
    let (host, card) = net.connect(0, 1);
    assert_eq!(write(&mut net, host, 8 * WINDOW), WINDOW);
    assert_eq!(net.nodes[0].poll(host) & libc::POLLOUT, 0);
    let data = vec![1; 8 * WINDOW];
    let waits = net.request(0, host, Op::Write { data, block: true });
    net.settle();
    assert_eq!(read(&mut net, card, 8 * WINDOW), 4 * WINDOW);
    net.settle();
    assert_eq!(read(&mut net, card, 8 * WINDOW), 4 * WINDOW);
    net.settle();
    assert!(net.done[0].remove(&waits).is_some());
    assert_eq!(read(&mut net, card, 8 * WINDOW), WINDOW);
    net.settle();
    assert_eq!(write(&mut net, host, 8 * WINDOW), WINDOW);
}

#[test]
fn more_than_there_is_credit_for_is_the_end_of_the_connection() {
    let (mut net, host, card) = joined();
    write(&mut net, host, WINDOW);
    net.settle();
    let peer = net.nodes[1].endpoints[&card].peer;
    let message = Message {
        from: peer,
        to: PortId {
            node: 1,
            port: net.nodes[1].endpoints[&card].port.unwrap_or(0),
        },
        connection: net.nodes[1].endpoints[&card].connection,
        body: Body::Data(vec![1]),
    };
    net.input(1, Input::Message(message));
    assert_ne!(net.nodes[1].poll(card) & libc::POLLHUP, 0);
}
