//! Credit: a sender fills the window, and hears of its reader a quarter at a time.

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
fn a_window_is_filled_and_given_back_by_quarters() {
    let (mut net, host, card) = joined();
    assert_eq!(write(&mut net, host, 2 * WINDOW), WINDOW);
    net.settle();
    assert_eq!(read(&mut net, card, WINDOW / 4 - 1), WINDOW / 4 - 1);
    assert_eq!(write(&mut net, host, 1), 0, "it has not heard of that");
    assert_eq!(read(&mut net, card, 1), 1);
    assert_eq!(write(&mut net, host, WINDOW), WINDOW / 4);
    net.settle();
    assert_eq!(read(&mut net, card, 2 * WINDOW), WINDOW);
    assert_eq!(write(&mut net, host, 2 * WINDOW), WINDOW);
}

#[test]
fn short_messages_that_are_read_are_told_once_in_a_while() {
    let (mut net, host, card) = joined();
    let mut told = 0;
    for _ in 0..WINDOW / 8 {
        write(&mut net, host, 8);
        net.settle();
        let read = net.request(
            1,
            card,
            Op::Read {
                max: 8,
                block: true,
            },
        );
        told += net.links[1].len();
        net.settle();
        assert!(net.done[1].remove(&read).is_some());
    }
    assert_eq!(told, 4);
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
