//! Frames of streams: what goes in comes out, however it is cut, and what is hostile is refused.

use proptest::prelude::*;
use snaprig_hca::{
    Packet, Transport,
    packet::{Body, Extra, Remote, Route},
    payload::Payload,
};
use snaprig_verbs_tcp::{
    Frame, Frames, Message, Relayed,
    frame::{FRAME_BYTES_MAX, FrameError, decode, put_message, put_packet},
};

fn packet(
    body: Body<'static>,
    transport: Transport,
    count: u32,
    ports: (u16, u16),
) -> Packet<'static> {
    Packet {
        route: Route {
            from_port: ports.0.into(),
            to_port: ports.1.into(),
            from_lid: 3,
            to_lid: 4,
            from_qp: 0x80_0005,
            to_qp: 6,
            service_level: 7,
            pkey: 0xffff,
            global: None,
        },
        transport,
        psn: 8,
        count,
        acknowledge: true,
        solicited: false,
        srq: 0,
        body,
    }
}

fn frames() -> impl Strategy<Value = Frame> {
    let bytes = prop::collection::vec(any::<u8>(), 0..4096);
    let ports = (any::<u16>(), any::<u16>());
    let send = (bytes.clone(), ports).prop_map(|(bytes, ports)| {
        let body = Body::Send {
            first: true,
            last: false,
            extra: Extra::None,
            payload: Payload::Bytes(bytes.into()),
        };
        Frame::Packet(packet(body, Transport::Rc, 1, ports))
    });
    let read = (any::<u32>(), ports).prop_map(|(count, ports)| {
        let remote = Remote {
            address: 1,
            key: 2,
            length: 3,
        };
        Frame::Packet(packet(Body::Read(remote), Transport::XrcSend, count, ports))
    });
    let relay = (any::<u64>(), any::<bool>(), bytes).prop_map(|(link, by_opener, bytes)| {
        let what = Relayed::Data(bytes);
        Frame::Message(Message::Relay {
            link,
            by_opener,
            what,
        })
    });
    prop_oneof![
        send,
        read,
        relay,
        Just(Frame::Message(Message::Ping)),
        any::<[u8; 32]>().prop_map(|nonce| Frame::Message(Message::Challenge { nonce })),
    ]
}

proptest! {
    #[test]
    fn frames_come_as_they_were_sent_however_the_stream_is_cut(
        frames in prop::collection::vec(frames(), 0..6), part in 1..5000usize
    ) {
        let mut stream = Vec::new();
        for frame in &frames {
            match frame {
                Frame::Message(message) => put_message(message, &mut stream),
                Frame::Packet(packet) => put_packet(packet, &mut stream).expect("it is one packet"),
            }
        }
        let (mut cut, mut came) = (Frames::default(), Vec::new());
        for part in stream.chunks(part) {
            cut.push(part);
            while let Some(frame) = cut.next_frame(FRAME_BYTES_MAX).expect("they are frames") {
                came.push(frame);
            }
        }
        prop_assert_eq!(came, frames);
    }

    #[test]
    fn whatever_comes_is_a_frame_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..3u8) {
        let _ = decode(&[&[kind][..], &bytes].concat());
        let mut frames = Frames::default();
        frames.push(&bytes);
        while let Ok(Some(_)) = frames.next_frame(FRAME_BYTES_MAX) {}
    }
}

#[test]
fn what_is_longer_than_it_may_be_is_refused_before_it_comes() {
    let mut frames = Frames::default();
    frames.push(&u32::MAX.to_le_bytes());
    let refused = frames.next_frame(FRAME_BYTES_MAX);
    assert!(
        matches!(refused, Err(FrameError::Length { .. })),
        "{refused:?}"
    );
}

#[test]
fn what_is_no_packet_leaves_nothing_behind() {
    let long = Body::Send {
        first: true,
        last: true,
        extra: Extra::None,
        payload: Payload::Bytes(vec![0; 5000].into()),
    };
    let mut bytes = vec![1, 2];
    assert!(put_packet(&packet(long, Transport::Rc, 1, (0, 1)), &mut bytes).is_err());
    assert_eq!(bytes, [1, 2]);
}
