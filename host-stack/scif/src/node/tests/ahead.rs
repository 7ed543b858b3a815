//! Readers that wait for more than the queue holds.

use super::*;
use snaprig_wire::scif::AHEAD_BYTES;

fn write(net: &mut Net, id: EndpointId) -> usize {
    let data = vec![1; 2 * AHEAD_BYTES];
    let count = net.ask(0, id, Op::Write { data, block: false });
    let Ok(Value::Count(count)) = count else {
        panic!("{count:?}");
    };
    count
}

fn read(net: &mut Net, id: EndpointId, max: usize) -> RequestId {
    let read = net.request(1, id, Op::Read { max, block: true });
    net.settle();
    read
}

fn has_read(net: &mut Net, read: RequestId) -> usize {
    match net.done[1].remove(&read) {
        Some(Ok(Value::Bytes(bytes))) => bytes.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_waits_for_many_bytes_has_room_for_them() {
    let (mut net, host, card) = joined();
    let waiting = read(&mut net, card, AHEAD_BYTES);
    assert_eq!(write(&mut net, host), AHEAD_BYTES + QUEUE_BYTES);
    net.settle();
    assert_eq!(has_read(&mut net, waiting), AHEAD_BYTES);
    // What is left is the queue, and full.
    assert_eq!(write(&mut net, host), 0);
    let rest = read(&mut net, card, 2 * AHEAD_BYTES);
    assert_eq!(has_read(&mut net, rest), QUEUE_BYTES);
    assert_eq!(write(&mut net, host), QUEUE_BYTES);
}

#[test]
fn what_was_given_ahead_is_given_once() {
    let (mut net, host, card) = joined();
    let first = read(&mut net, card, AHEAD_BYTES);
    net.ask(
        0,
        host,
        Op::Write {
            data: vec![1; 100],
            block: true,
        },
    )
    .expect("it is sent");
    net.settle();
    assert_eq!(has_read(&mut net, first), 100);
    let second = read(&mut net, card, AHEAD_BYTES);
    assert_eq!(write(&mut net, host), AHEAD_BYTES + QUEUE_BYTES);
    net.settle();
    assert_eq!(has_read(&mut net, second), AHEAD_BYTES);
    // More than there is credit for is the end of the connection.
    let last = read(&mut net, card, 10);
    assert_eq!(has_read(&mut net, last), 10);
    assert_eq!(net.nodes[1].poll(card) & libc::POLLHUP, 0);
}
