//! Packets to bytes and back.

use proptest::{collection::vec, option, prelude::*, sample::select};
use snaprig_hca::{
    Opcode, Packet, Transport,
    packet::{Body, Extra, Nak, Remote, Route},
    payload::Payload,
    wire::{WireError, decode, encode, seal},
};

fn encoded(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(packet, &mut bytes).expect("it can be encoded");
    bytes
}

fn remote(length: impl Strategy<Value = u32>) -> impl Strategy<Value = Remote> {
    (any::<u64>(), any::<u32>(), length).prop_map(|(address, key, length)| Remote {
        address,
        key,
        length,
    })
}

fn payload() -> impl Strategy<Value = Payload<'static>> {
    let lengths = prop_oneof![0..9usize, Just(256), 4093..=4096usize];
    lengths
        .prop_flat_map(|length| vec(any::<u8>(), length))
        .prop_map(|bytes| Payload::Bytes(bytes.into()))
}

fn immediate() -> impl Strategy<Value = Extra> {
    prop_oneof![Just(Extra::None), any::<u32>().prop_map(Extra::Immediate)]
}

fn send(invalidates: bool) -> BoxedStrategy<Body<'static>> {
    let extra = if invalidates {
        prop_oneof![immediate(), any::<u32>().prop_map(Extra::Invalidate)].boxed()
    } else {
        immediate().boxed()
    };
    (any::<bool>(), any::<bool>(), extra, payload())
        .prop_map(|(first, last, extra, payload)| Body::Send {
            first,
            last,
            extra: if last { extra } else { Extra::None },
            payload,
        })
        .boxed()
}

fn write() -> impl Strategy<Value = Body<'static>> {
    let remote = option::of(remote(any::<u32>()));
    (remote, any::<bool>(), immediate(), payload()).prop_map(|(remote, last, extra, payload)| {
        Body::Write {
            remote,
            last,
            extra: if last { extra } else { Extra::None },
            payload,
        }
    })
}

fn atomic() -> impl Strategy<Value = Body<'static>> {
    let opcodes = select(vec![Opcode::CompareSwap, Opcode::FetchAdd]);
    (opcodes, remote(Just(8)), any::<u64>(), any::<u64>()).prop_map(
        |(opcode, remote, compare_add, swap)| Body::Atomic {
            opcode,
            remote,
            compare_add,
            swap: if opcode == Opcode::CompareSwap {
                swap
            } else {
                0
            },
        },
    )
}

fn reliable() -> impl Strategy<Value = Body<'static>> {
    let naks = prop_oneof![
        select(vec![
            Nak::Sequence,
            Nak::InvalidRequest,
            Nak::RemoteAccess,
            Nak::RemoteOperation
        ]),
        (0..32u8).prop_map(Nak::NotReady),
    ];
    let responses = (any::<bool>(), any::<bool>(), payload()).prop_map(|(first, last, payload)| {
        Body::ReadResponse {
            first,
            last,
            payload,
        }
    });
    prop_oneof![
        send(true),
        write(),
        remote(any::<u32>()).prop_map(Body::Read),
        atomic(),
        Just(Body::Ack),
        naks.prop_map(Body::Nak),
        responses,
        any::<u64>().prop_map(Body::AtomicResponse),
    ]
}

fn datagram() -> impl Strategy<Value = Body<'static>> {
    (any::<u32>(), immediate(), payload()).prop_map(|(qkey, extra, payload)| Body::Datagram {
        qkey,
        extra,
        payload,
    })
}

fn number_24() -> impl Strategy<Value = u32> {
    0..1u32 << 24
}

/// Every packet that goes over a link, as far as a link knows it.
fn packets() -> impl Strategy<Value = Packet<'static>> {
    let transports = prop_oneof![
        (Just(Transport::Rc), reliable().boxed()),
        (Just(Transport::XrcSend), reliable().boxed()),
        (
            Just(Transport::Uc),
            prop_oneof![send(false), write()].boxed()
        ),
        (Just(Transport::Ud), datagram().boxed()),
    ];
    let gids = option::of((any::<[u8; 16]>(), any::<[u8; 16]>()));
    let addresses = (any::<[u16; 3]>(), number_24(), number_24(), 0..16u8, gids);
    let rest = (number_24(), any::<bool>(), any::<bool>(), number_24());
    (transports, addresses, rest).prop_map(|((transport, body), addresses, rest)| {
        let ([from_lid, to_lid, pkey], from_qp, to_qp, service_level, global) = addresses;
        let (psn, acknowledge, solicited, srq) = rest;
        let mut packet = Packet {
            route: Route {
                from_port: 0,
                to_port: 0,
                from_lid,
                to_lid,
                from_qp: if transport == Transport::Ud {
                    from_qp
                } else {
                    0
                },
                to_qp,
                service_level,
                pkey,
                global,
            },
            transport,
            psn,
            count: 1,
            acknowledge,
            solicited,
            srq: 0,
            body,
        };
        if transport == Transport::XrcSend && !packet.is_response() {
            packet.srq = srq;
        }
        packet
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_is_decoded_is_what_was_encoded(packet in packets()) {
        let mut bytes = b"before".to_vec();
        encode(&packet, &mut bytes)?;
        prop_assert_eq!(decode(&bytes[6..]), Ok(packet));
    }

    #[test]
    fn any_flipped_bit_is_refused(packet in packets(), at: prop::sample::Index) {
        let mut bytes = encoded(&packet);
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn any_shorter_packet_is_refused(packet in packets(), at: prop::sample::Index) {
        let bytes = encoded(&packet);
        prop_assert_eq!(decode(&bytes[..at.index(bytes.len())]), Err(WireError::Length));
    }

    /// The same with CRCs that are right, so that it is the headers that are looked at.
    #[test]
    fn changed_headers_never_panic(
        packet in packets(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encoded(&packet);
        bytes.truncate(bytes.len() - 4 * cut.index(bytes.len() / 4));
        for (at, value) in changes {
            let at = at.index(bytes.len().min(80));
            bytes[at] = value;
        }
        if bytes.len() >= 8 {
            let words = ((bytes.len() - 2) / 4) as u16;
            bytes[4..6].copy_from_slice(&words.to_be_bytes());
        }
        seal(&mut bytes);
        if let Ok(packet) = decode(&bytes) {
            prop_assert_eq!(decode(&encoded(&packet)), Ok(packet));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
        seal(&mut bytes);
        let _ = decode(&bytes);
    }
}

fn packet(transport: Transport, body: Body<'static>) -> Packet<'static> {
    Packet {
        route: Route {
            from_port: 0,
            to_port: 0,
            from_lid: 1,
            to_lid: 2,
            from_qp: 0,
            to_qp: 3,
            service_level: 0,
            pkey: 0xffff,
            global: None,
        },
        transport,
        psn: 0,
        count: 1,
        acknowledge: false,
        solicited: false,
        srq: 0,
        body,
    }
}

#[test]
fn what_is_no_packet_is_not_encoded() {
    let refusal = |packet: &Packet<'_>| encode(packet, &mut Vec::new()).err();
    let read = Body::Read(Remote {
        address: 0,
        key: 0,
        length: 1,
    });
    let send = |extra, length| Body::Send {
        first: true,
        last: false,
        extra,
        payload: Payload::Bytes(vec![0; length].into()),
    };
    for (transport, body) in [
        (Transport::Uc, read.clone()),
        (Transport::Ud, read),
        (Transport::Ud, send(Extra::None, 1)),
        (Transport::Rc, send(Extra::Immediate(1), 1)),
        (Transport::Rc, send(Extra::Invalidate(1), 1)),
    ] {
        assert_eq!(refusal(&packet(transport, body)), Some(WireError::Kind));
    }
    let long = packet(Transport::Rc, send(Extra::None, 4097));
    assert_eq!(refusal(&long), Some(WireError::Length));
    let message = Packet {
        count: 2,
        ..packet(Transport::Rc, send(Extra::None, 512))
    };
    assert_eq!(refusal(&message), Some(WireError::NotOnePacket));
}

/// From Wireshark's sample capture infiniband.pcap: packets 5, 6, 10 and 11, as an analyser saw them
/// on a link between two HCAs.
const CAPTURED_MULTICAST: &str = "\
    0003c00000210004 6000000000541b00 fe800000000000000002c9020024f636
    ff12401bffff000000000000ffffffff 6440ffff00ffffff000020af 00000b1b00000405
    080600000020080014040001 80000405fe800000000000000002c9020024f636 0a000122
    0000000000000000000000000000000000000000 0a00003a bd6bd6a8 8883";
const CAPTURED_DATAGRAM: &str = "\
    0002000400170001 6440ffff00000405000d43bc 00000b1b00000404
    080600000020080014040002 80000404fe800000000000000002c9020020b4dd 0a00003a
    80000405fe800000000000000002c9020024f636 0a000122 06e87bdb 685c";
const CAPTURED_SEND: &str = "\
    00020001001c0004 0440ffff00fc040780d40a55 08000000
    45000054000040004001254e0a0001220a00003a 0800857617020001 f7412b48000000007229080000000000
    101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637
    0acca5df 24a8";
const CAPTURED_ACK: &str = "0002000400070001 1140ffff0087040800d40a55 1f000001 a8035550 3081";

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u32> = digits.chars().filter_map(|c| c.to_digit(16)).collect();
    let bytes = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]);
    bytes.map(|byte| byte as u8).collect()
}

#[test]
fn a_captured_datagram_is_encoded_byte_by_byte() {
    let bytes = hex(CAPTURED_DATAGRAM);
    let expected = Packet {
        route: Route {
            from_lid: 1,
            to_lid: 4,
            from_qp: 0x404,
            to_qp: 0x405,
            ..packet(Transport::Ud, Body::Ack).route
        },
        psn: 869_308,
        ..packet(
            Transport::Ud,
            Body::Datagram {
                qkey: 0xb1b,
                extra: Extra::None,
                payload: Payload::Bytes(bytes[28..88].to_vec().into()),
            },
        )
    };
    assert_eq!(encoded(&expected), bytes);
    assert_eq!(decode(&bytes), Ok(expected));
}

#[test]
fn a_captured_send_is_encoded_byte_by_byte() {
    let bytes = hex(CAPTURED_SEND);
    let expected = Packet {
        route: Route {
            from_lid: 4,
            to_lid: 1,
            to_qp: 0xfc_0407,
            ..packet(Transport::Rc, Body::Ack).route
        },
        psn: 13_896_277,
        acknowledge: true,
        ..packet(
            Transport::Rc,
            Body::Send {
                first: true,
                last: true,
                extra: Extra::None,
                payload: Payload::Bytes(bytes[20..108].to_vec().into()),
            },
        )
    };
    assert_eq!(encoded(&expected), bytes);
    assert_eq!(decode(&bytes), Ok(expected));
}

/// Its message sequence number is not kept.
#[test]
fn a_captured_acknowledgement_is_decoded() {
    let ack = decode(&hex(CAPTURED_ACK)).expect("it is a packet");
    assert_eq!(ack.body, Body::Ack);
    assert_eq!((ack.psn, ack.route.to_qp), (13_896_277, 0x87_0408));
    let mut bytes = encoded(&ack);
    bytes[23] = 1;
    seal(&mut bytes);
    assert_eq!(bytes, hex(CAPTURED_ACK));
}

/// Its hop limit is not kept.
#[test]
fn a_captured_multicast_packet_is_decoded() {
    let captured = hex(CAPTURED_MULTICAST);
    let multicast = decode(&captured).expect("it is a packet");
    let (source, destination) = multicast.route.global.expect("a global route");
    assert_eq!(source[..2], [0xfe, 0x80]);
    assert_eq!(destination[..2], [0xff, 0x12]);
    assert_eq!(multicast.route.to_qp, 0xff_ffff);
    let mut bytes = encoded(&multicast);
    bytes[15] = 0;
    seal(&mut bytes);
    assert_eq!(bytes, captured);
}
