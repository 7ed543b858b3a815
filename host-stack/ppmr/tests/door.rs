//! Who is let in by a target: whoever has its token, with both sockets of one connection, in time; and nobody else changes
//! anything for those.

use std::{
    io::{self, Read, Write},
    thread,
    time::{Duration, Instant},
};

use snaprig_peers::{Address, Nonce, Stream, Token, frame, token::random};
use snaprig_ppmr::driver::{
    source::{Moves, SourceNode},
    target::{Takes, TargetNode},
};

/// No answer takes longer.
const LONG: Duration = Duration::from_secs(30);
/// What both sides can, and that it is not RDMA: `Offer` and `Answer`, as bytes.
const OFFER: (u8, bool, Option<()>) = (0, true, None);
type Answer = (bool, Result<(), String>);

fn token() -> Token {
    Token::new([7; 32])
}

fn target() -> TargetNode {
    let any = Address::Tcp("127.0.0.1:0".into());
    TargetNode::listen(&any, &token(), Takes::default()).unwrap()
}

fn source(target: &TargetNode, token: &Token) -> io::Result<SourceNode> {
    let moves = Moves {
        ranks: vec![0],
        ..Moves::default()
    };
    SourceNode::connect(&target.address(), token, moves)
}

/// An image goes, and it is the next that comes.
fn assert_serves(target: &TargetNode) {
    let node = source(target, &token()).unwrap();
    let mut writer = node.writer(0);
    writer.write_all(b"an image").unwrap();
    writer.end();
    let mut image = Vec::new();
    let mut reader = target.next_reader().unwrap();
    reader.read_to_end(&mut image).unwrap();
    assert_eq!((&image[..], node.wait(0)), (&b"an image"[..], Ok(())));
}

fn connect(target: &TargetNode) -> Stream {
    let socket = target.address().connect(LONG).unwrap();
    socket.set_silence_max(LONG).unwrap();
    socket
}

/// What a source says on one of its sockets; the target's nonce.
fn greet(mut socket: &Stream, chunks_of: Option<Nonce>, token: &Token) -> Nonce {
    let nonce: Nonce = random().unwrap();
    frame::send(&mut socket, &(1u32, chunks_of, nonce)).unwrap();
    let (theirs, _): (Nonce, [u8; 32]) = frame::receive(&mut socket, 128).unwrap();
    let about = snaprig_wire::frame::encode(&chunks_of);
    let proof = token.proof("snaprig ppmr 1: source ", [&nonce, &theirs], &about);
    frame::send(&mut socket, &proof).unwrap();
    theirs
}

/// A socket for messages that is let in.
fn welcome(target: &TargetNode) -> (Stream, Nonce) {
    let control = connect(target);
    let nonce = greet(&control, None, &token());
    frame::send(&mut &control, &OFFER).unwrap();
    let answer: Answer = frame::receive(&mut &control, 1024).unwrap();
    assert!(matches!(answer, (true, Err(_))));
    (control, nonce)
}

/// Fails unless the other side lets go of it, without another word.
fn assert_let_go(mut socket: &Stream) {
    match socket.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
}

#[test]
fn a_socket_of_the_file_system_is_as_good() {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Unix(directory.path().join("target"));
    let target = TargetNode::listen(&address, &token(), Takes::default()).unwrap();
    assert_eq!(target.address(), address);
    assert_serves(&target);
    drop(target);
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

#[test]
fn who_has_another_token_is_refused_by_both_sides() {
    let target = target();
    let other = Token::new([8; 32]);
    let refused = source(&target, &other).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    // Who does not look at the target's proof is refused by the target.
    let control = connect(&target);
    greet(&control, None, &other);
    assert_let_go(&control);
    let (_control, nonce) = welcome(&target);
    let chunks = connect(&target);
    greet(&chunks, Some(nonce), &other);
    assert_let_go(&chunks);
    assert_serves(&target);
}

#[test]
fn chunks_are_those_of_their_own_connection() {
    let target = target();
    let (_control, nonce) = welcome(&target);
    let mut another = nonce;
    another[0] ^= 1;
    let stray = connect(&target);
    greet(&stray, Some(another), &token());
    assert_let_go(&stray);
    // A connection has one socket for chunks, not two.
    let [first, second] = [(); 2].map(|()| {
        let chunks = connect(&target);
        greet(&chunks, Some(nonce), &token());
        chunks
    });
    assert_let_go(&second);
    // What nobody asked for is the end of it.
    (&first).write_all(&[1; 17]).unwrap();
    assert_let_go(&first);
    assert_serves(&target);
}

#[test]
fn nonsense_from_anywhere_changes_nothing() {
    let target = target();
    let (control, _) = welcome(&target);
    (&control).write_all(&[0xff; 200]).unwrap();
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 25], &[0xff; 200]] {
        let socket = connect(&target);
        (&socket).write_all(nonsense).unwrap();
        assert_let_go(&socket);
    }
    drop(connect(&target));
    assert_serves(&target);
}

#[test]
fn who_does_not_finish_is_let_go_in_time_and_more_than_some_at_once() {
    let target = target();
    let start = Instant::now();
    let (control, _) = welcome(&target);
    let silent: Vec<_> = (0..200).map(|_| connect(&target)).collect();
    // All others wait, but for few.
    let early = silent.iter().rev().take(100);
    early.for_each(assert_let_go);
    assert!(start.elapsed() < Duration::from_secs(4));
    // One that says a byte now and then has no more time than the others.
    let slow = silent[0].try_clone().unwrap();
    let slowly = thread::spawn(move || {
        while (&slow).write_all(&[1]).is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
    });
    silent.iter().for_each(assert_let_go);
    assert_let_go(&control);
    slowly.join().unwrap();
    assert!(start.elapsed() < LONG);
    assert_serves(&target);
}
