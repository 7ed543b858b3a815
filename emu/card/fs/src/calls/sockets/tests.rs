//! Calls on sockets, as programs make them.

use snaprig_card_driver::errno::Errno;

use crate::test_kit::{Kit, error, is_wait};

/// Puts a `struct sockaddr_un` at 0x700; returns its length.
fn address(kit: &mut Kit, name: &[u8]) -> u64 {
    kit.put(0x700, &[libc::AF_UNIX as u8, 0]);
    kit.put(0x702, name);
    name.len() as u64 + 2
}

fn socket(kit: &mut Kit) -> u64 {
    kit.call(libc::SYS_socket, &[1, 1, 0]).unwrap()
}

#[test]
fn a_connection_waits_until_there_is_a_descriptor_for_it() {
    let mut kit = Kit::new();
    let (listener, client) = (socket(&mut kit), socket(&mut kit));
    let len = address(&mut kit, b"/tmp/s\0");
    kit.call(libc::SYS_bind, &[listener, 0x700, len]).unwrap();
    kit.call(libc::SYS_listen, &[listener, 5]).unwrap();
    kit.call(libc::SYS_connect, &[client, 0x700, len]).unwrap();
    kit.limit_nofile = 5;
    let full = error(Errno::EMFILE);
    assert_eq!(kit.call(libc::SYS_accept, &[listener, 0, 0]), full);
    kit.limit_nofile = 6;
    assert_eq!(kit.call(libc::SYS_accept, &[listener, 0, 0]), Ok(5));
    assert!(is_wait(&kit.call(libc::SYS_read, &[client, 0x2000, 1])));
}

#[test]
fn nothing_is_made_without_a_descriptor_for_it() {
    let mut kit = Kit::new();
    kit.limit_nofile = 4;
    let full = error(Errno::EMFILE);
    assert_eq!(kit.call(libc::SYS_pipe, &[0x800]), full);
    assert_eq!(kit.call(libc::SYS_socketpair, &[1, 1, 0, 0x800]), full);
    kit.limit_nofile = 3;
    assert_eq!(kit.open("/tmp/a", libc::O_CREAT | libc::O_RDWR), full);
    assert!(!kit.exists("/tmp/a"));
    // A pair that cannot be told is closed again.
    kit.limit_nofile = 1024;
    assert_eq!(
        kit.call(libc::SYS_pipe, &[u64::MAX - 3]),
        error(Errno::EFAULT)
    );
    assert_eq!(kit.call(libc::SYS_dup, &[0]), Ok(3));
}

#[test]
fn an_abstract_name_is_free_when_its_socket_is_gone() {
    let mut kit = Kit::new();
    let len = address(&mut kit, b"\0name");
    for _ in 0..2 {
        let (one, other) = (socket(&mut kit), socket(&mut kit));
        assert_eq!(kit.call(libc::SYS_bind, &[one, 0x700, len]), Ok(0));
        let used = kit.call(libc::SYS_bind, &[other, 0x700, len]);
        assert_eq!(used, error(Errno::EADDRINUSE));
        kit.call(libc::SYS_listen, &[one, 5]).unwrap();
        assert_eq!(kit.call(libc::SYS_connect, &[other, 0x700, len]), Ok(0));
        kit.call(libc::SYS_close, &[one]).unwrap();
        kit.call(libc::SYS_close, &[other]).unwrap();
    }
    let late = socket(&mut kit);
    let refused = error(Errno::ECONNREFUSED);
    assert_eq!(kit.call(libc::SYS_connect, &[late, 0x700, len]), refused);
}

#[test]
fn a_socket_that_cannot_have_its_name_is_not_bound() {
    let mut kit = Kit::new();
    let fd = socket(&mut kit);
    let len = address(&mut kit, b"/none/s\0");
    assert_eq!(
        kit.call(libc::SYS_bind, &[fd, 0x700, len]),
        error(Errno::ENOENT)
    );
    let len = address(&mut kit, b"/tmp/s\0");
    assert_eq!(kit.call(libc::SYS_bind, &[fd, 0x700, len]), Ok(0));
}

#[test]
fn bytes_can_be_peeked_at_and_waited_for() {
    let mut kit = Kit::new();
    let (a, b) = kit.sockets();
    kit.put(0x2000, b"12345678");
    kit.call(libc::SYS_write, &[a, 0x2000, 4]).unwrap();
    let peek = [b, 0x3000, 8, libc::MSG_PEEK as u64];
    let all = [b, 0x4000, 8, libc::MSG_WAITALL as u64];
    assert_eq!(kit.call(libc::SYS_recvfrom, &peek), Ok(4));
    assert!(is_wait(&kit.call(libc::SYS_recvfrom, &all)));
    kit.meanwhile(|kit| kit.call(libc::SYS_write, &[a, 0x2004, 4]))
        .unwrap();
    assert_eq!(kit.call(libc::SYS_recvfrom, &all), Ok(8));
    assert_eq!(kit.bytes(0x3000, 4), b"1234");
    assert_eq!(kit.bytes(0x4000, 8), b"12345678");
    // The end of the stream ends the waiting.
    kit.call(libc::SYS_write, &[a, 0x2000, 4]).unwrap();
    kit.call(libc::SYS_close, &[a]).unwrap();
    assert_eq!(kit.call(libc::SYS_recvfrom, &all), Ok(4));
    assert_eq!(kit.call(libc::SYS_recvfrom, &all), Ok(0));
}

#[test]
fn options_are_cut_to_the_room_for_them() {
    let mut kit = Kit::new();
    let (a, _) = kit.sockets();
    kit.put(0x600, &[2, 0, 0, 0, 0xee, 0xee, 0xee, 0xee]);
    let kind = [
        a,
        libc::SOL_SOCKET as u64,
        libc::SO_TYPE as u64,
        0x604,
        0x600,
    ];
    assert_eq!(kit.call(libc::SYS_getsockopt, &kind), Ok(0));
    assert_eq!(kit.bytes(0x600, 8), &[2, 0, 0, 0, 1, 0, 0xee, 0xee]);
    kit.put(0x600, &(-1_i32).to_le_bytes());
    assert_eq!(kit.call(libc::SYS_getsockopt, &kind), error(Errno::EINVAL));
}

#[test]
fn a_connection_holds_what_its_sender_asks_for() {
    let mut kit = Kit::new();
    let (a, _b) = kit.sockets();
    let mut sent = 0;
    for (option, bytes, holds) in [
        (libc::SO_SNDBUF, 100_000, 200_000),
        (libc::SO_SNDBUFFORCE, i32::MAX, 1 << 20),
    ] {
        kit.put(0x600, &i32::to_le_bytes(bytes));
        let set = [a, libc::SOL_SOCKET as u64, option as u64, 0x600, 4];
        assert_eq!(kit.call(libc::SYS_setsockopt, &set), Ok(0));
        let send = [a, 0x2000, 4096, libc::MSG_DONTWAIT as u64];
        while kit.call(libc::SYS_sendto, &send) == Ok(4096) {
            sent += 4096;
        }
        assert_eq!(sent / 4096, holds / 4096);
    }
}

#[test]
fn a_send_without_a_reader_raises_sigpipe_unless_told_not_to() {
    let mut kit = Kit::new();
    let (a, b) = kit.sockets();
    kit.call(libc::SYS_close, &[b]).unwrap();
    for (flags, raises) in [(0, true), (libc::MSG_NOSIGNAL, false)] {
        kit.sigpipe = false;
        let sent = kit.call(libc::SYS_sendto, &[a, 0x2000, 4, flags as u64]);
        assert_eq!((sent, kit.sigpipe), (error(Errno::EPIPE), raises));
    }
}

/// Puts a `struct msghdr` at 0xc00, of `bytes` at 0x2000 and control data at 0xd00.
fn message(kit: &mut Kit, bytes: u64, control_bytes: u64) -> u64 {
    kit.put_words(0xb00, &[0x2000, bytes]);
    kit.put_words(0xc00, &[0, 0, 0xb00, 1, 0xd00, control_bytes, 0]);
    0xc00
}

/// Control data that passes a descriptor.
fn rights(kit: &mut Kit, fd: u64) {
    kit.put_words(0xd00, &[20, 1 << 32 | 1]);
    kit.put(0xd10, &(fd as i32).to_le_bytes());
}

#[test]
fn descriptors_go_with_their_bytes() {
    let mut kit = Kit::new();
    let (a, b) = kit.sockets();
    let (read, write) = kit.pipe(0);
    kit.call(libc::SYS_write, &[a, 0x2000, 3]).unwrap();
    rights(&mut kit, read);
    let at = message(&mut kit, 4, 24);
    assert_eq!(kit.call(libc::SYS_sendmsg, &[a, at, 0]), Ok(4));
    kit.call(libc::SYS_close, &[read]).unwrap();
    kit.call(libc::SYS_write, &[a, 0x2000, 2]).unwrap();
    let at = message(&mut kit, 100, 24);
    // What came before is read with them, what came after is a read of its own.
    assert_eq!(kit.call(libc::SYS_recvmsg, &[b, at, 0]), Ok(7));
    assert_eq!(kit.bytes(0xc28, 8), &24_u64.to_le_bytes());
    let passed = i32::from_le_bytes(kit.bytes(0xd10, 4).try_into().unwrap()) as u64;
    kit.call(libc::SYS_write, &[write, 0x2000, 2]).unwrap();
    assert_eq!(kit.call(libc::SYS_read, &[passed, 0x3000, 9]), Ok(2));
    let at = message(&mut kit, 100, 24);
    assert_eq!(kit.call(libc::SYS_recvmsg, &[b, at, 0]), Ok(2));
    assert_eq!(kit.bytes(0xc28, 8), &[0; 8]);
}

#[test]
fn descriptors_that_nobody_takes_are_closed() {
    let mut kit = Kit::new();
    for takes in ["read", "close", "no room"] {
        let (a, b) = kit.sockets();
        let (read, write) = kit.pipe(0);
        rights(&mut kit, read);
        let at = message(&mut kit, 4, 24);
        kit.call(libc::SYS_sendmsg, &[a, at, 0]).unwrap();
        kit.call(libc::SYS_close, &[read]).unwrap();
        match takes {
            "read" => {
                kit.call(libc::SYS_read, &[b, 0x3000, 9]).unwrap();
                kit.call(libc::SYS_write, &[a, 0x3000, 1]).unwrap();
                kit.call(libc::SYS_read, &[b, 0x3000, 9]).unwrap();
            }
            "close" => drop(kit.call(libc::SYS_close, &[b]).unwrap()),
            _ => {
                let at = message(&mut kit, 4, 0);
                kit.call(libc::SYS_recvmsg, &[b, at, 0]).unwrap();
                assert_eq!(kit.bytes(0xc30, 4), &libc::MSG_CTRUNC.to_le_bytes());
            }
        }
        let broken = kit.call(libc::SYS_write, &[write, 0x3000, 1]);
        assert_eq!(broken, error(Errno::EPIPE), "{takes}");
    }
    let (a, _) = kit.sockets();
    rights(&mut kit, 999);
    let at = message(&mut kit, 4, 24);
    let bad = kit.call(libc::SYS_sendmsg, &[a, at, 0]);
    assert_eq!(bad, error(Errno::EBADF));
}

#[test]
fn descriptors_on_their_way_are_bounded() {
    let mut kit = Kit::new();
    let mut sent = || {
        let (a, b) = kit.sockets();
        rights(&mut kit, b);
        let at = message(&mut kit, 1, 24);
        let result = kit.call(libc::SYS_sendmsg, &[a, at, 0]);
        // A socket that is on its way through itself.
        kit.call(libc::SYS_close, &[a]).unwrap();
        kit.call(libc::SYS_close, &[b]).unwrap();
        result
    };
    let full = (0..100_000).find_map(|_| sent().err());
    assert_eq!(full, error::<()>(Errno::ETOOMANYREFS).err());
}

#[test]
fn several_messages_at_once() {
    let mut kit = Kit::new();
    let (a, b) = kit.sockets();
    kit.put_words(0xb00, &[0x2000, 3]);
    for header in [0xc00, 0xc40] {
        kit.put_words(header, &[0, 0, 0xb00, 1, 0, 0, 0, 0]);
    }
    assert_eq!(kit.call(libc::SYS_sendmmsg, &[a, 0xc00, 2, 0]), Ok(2));
    assert_eq!(kit.call(libc::SYS_recvmmsg, &[b, 0xc00, 2, 0, 0]), Ok(2));
    assert_eq!(kit.bytes(0xc78, 4), &3_u32.to_le_bytes());
    let none = kit.call(
        libc::SYS_recvmmsg,
        &[b, 0xc00, 2, libc::MSG_DONTWAIT as u64, 0],
    );
    assert_eq!(none, error(Errno::EAGAIN));
}

#[test]
fn tcp_reaches_this_machine_alone() {
    let mut kit = Kit::new();
    let sockets = [0; 3].map(|_| kit.call(libc::SYS_socket, &[2, 1, 0]).unwrap());
    let [server, client, other] = sockets;
    let mut address = |ip: [u8; 4], port: u16| {
        let [high, low] = port.to_be_bytes();
        kit.put(0x700, &[2, 0, high, low]);
        kit.put(0x704, &ip);
        kit.put(0x708, &[0; 8]);
    };
    address([10, 0, 0, 1], 80);
    let away = kit.call(libc::SYS_bind, &[server, 0x700, 16]);
    assert_eq!(away, error(Errno::EADDRNOTAVAIL));
    kit.put(0x702, &[0x1f, 0x90, 127, 0, 0, 1]);
    assert_eq!(kit.call(libc::SYS_bind, &[server, 0x700, 16]), Ok(0));
    let used = kit.call(libc::SYS_bind, &[other, 0x700, 16]);
    assert_eq!(used, error(Errno::EADDRINUSE));
    kit.call(libc::SYS_listen, &[server, 5]).unwrap();
    assert_eq!(kit.call(libc::SYS_connect, &[client, 0x700, 16]), Ok(0));
    kit.put(0x600, &16_u32.to_le_bytes());
    kit.call(libc::SYS_getpeername, &[client, 0x800, 0x600])
        .unwrap();
    assert_eq!(kit.bytes(0x800, 8), &[2, 0, 0x1f, 0x90, 127, 0, 0, 1]);
    kit.put(0x702, &[0, 1]);
    let refused = kit.call(libc::SYS_connect, &[other, 0x700, 16]);
    assert_eq!(refused, error(Errno::ECONNREFUSED));
}

#[test]
fn a_receive_gives_up_after_its_timeout() {
    let mut kit = Kit::new();
    let (a, _) = kit.sockets();
    kit.put_words(0x600, &[0, 5000]);
    let receive = libc::SO_RCVTIMEO as u64;
    kit.call(libc::SYS_setsockopt, &[a, 1, receive, 0x600, 16])
        .unwrap();
    assert!(is_wait(&kit.call(libc::SYS_read, &[a, 0x2000, 1])));
    kit.now += std::time::Duration::from_millis(5);
    let late = kit.call(libc::SYS_read, &[a, 0x2000, 1]);
    assert_eq!(late, error(Errno::EAGAIN));
}

#[test]
fn messages_stay_apart() {
    let mut kit = Kit::new();
    kit.call(
        libc::SYS_socketpair,
        &[1, libc::SOCK_SEQPACKET as u64, 0, 0x800],
    )
    .unwrap();
    let (a, b) = (kit.bytes(0x800, 1)[0].into(), kit.bytes(0x804, 1)[0].into());
    for len in [5, 0, 7] {
        assert_eq!(kit.call(libc::SYS_write, &[a, 0x2000, len]), Ok(len));
    }
    let huge = kit.call(libc::SYS_write, &[a, 0x2000, 1 << 20]);
    assert_eq!(huge, error(Errno::EMSGSIZE));
    for (room, got) in [(100, 5), (100, 0), (3, 3)] {
        assert_eq!(kit.call(libc::SYS_read, &[b, 0x3000, room]), Ok(got));
    }
    assert!(is_wait(&kit.call(libc::SYS_read, &[b, 0x3000, 100])));
    let full = (0..10_000).find(|_| is_wait(&kit.call(libc::SYS_sendto, &[a, 0x2000, 0, 0])));
    assert!(full.is_some());
}

#[test]
fn nobody_is_behind_the_path_of_a_socket_that_is_gone() {
    let mut kit = Kit::new();
    let letters = [libc::AF_UNIX as u64, libc::SOCK_DGRAM as u64, 0];
    let [gone, sender] = [0; 2].map(|_| kit.call(libc::SYS_socket, &letters).unwrap());
    let len = address(&mut kit, b"/tmp/s\0");
    kit.call(libc::SYS_bind, &[gone, 0x700, len]).unwrap();
    let send = [sender, 0x2000, 1, 0, 0x700, len];
    assert_eq!(kit.call(libc::SYS_sendto, &send), Ok(1));
    kit.call(libc::SYS_close, &[gone]).unwrap();
    let refused = error(Errno::ECONNREFUSED);
    assert_eq!(kit.call(libc::SYS_sendto, &send), refused);
    let connected = kit.call(libc::SYS_connect, &[sender, 0x700, len]);
    assert_eq!(connected, refused);
}

#[test]
fn messages_go_with_both_ends_of_their_queue() {
    let mut kit = Kit::new();
    let kind = libc::SOCK_SEQPACKET as u64;
    kit.call(libc::SYS_socketpair, &[1, kind, 0, 0x800])
        .unwrap();
    kit.call(libc::SYS_write, &[4, 0x2000, 5]).unwrap();
    let both = libc::SHUT_RDWR as u64;
    kit.call(libc::SYS_shutdown, &[3, both]).unwrap();
    assert_eq!(kit.call(libc::SYS_read, &[3, 0x2000, 9]), Ok(0));
}
