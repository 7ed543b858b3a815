//! A capture, read by Wireshark.

use std::{fs::File, path::Path, process::Command};

use snaprig_hca::{
    Opcode, Packet, Transport,
    capture::Capture,
    packet::{Body, Extra, Nak, Remote, Route},
    payload::Payload,
};

/// What `tshark` says on standard output.
fn tshark(file: &Path, arguments: &[&str]) -> String {
    let mut tshark = Command::new("tshark");
    let tshark = tshark.arg("-r").arg(file).args(arguments);
    let output = tshark.output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn bytes(length: usize) -> Payload<'static> {
    Payload::Bytes(vec![0xda; length].into())
}

fn sends() -> Vec<(u8, Body<'static>)> {
    let cases = [
        (0x00, true, false, Extra::None),
        (0x01, false, false, Extra::None),
        (0x02, false, true, Extra::None),
        (0x03, false, true, Extra::Immediate(7u32.to_be())),
        (0x04, true, true, Extra::None),
        (0x05, true, true, Extra::Immediate(7u32.to_be())),
        (0x16, false, true, Extra::Invalidate(7)),
        (0x17, true, true, Extra::Invalidate(7)),
    ];
    let body = |(code, first, last, extra)| {
        let payload = bytes(256 - usize::from(last));
        let body = Body::Send {
            first,
            last,
            extra,
            payload,
        };
        (code, body)
    };
    cases.map(body).into()
}

const REMOTE: Remote = Remote {
    address: 0x1234_5678_9abc,
    key: 0x5500,
    length: 300,
};

fn writes() -> Vec<(u8, Body<'static>)> {
    let cases = [
        (0x06, Some(REMOTE), false, Extra::None),
        (0x07, None, false, Extra::None),
        (0x08, None, true, Extra::None),
        (0x09, None, true, Extra::Immediate(7u32.to_be())),
        (0x0a, Some(REMOTE), true, Extra::None),
        (0x0b, Some(REMOTE), true, Extra::Immediate(7u32.to_be())),
    ];
    let body = |(code, remote, last, extra)| {
        let payload = bytes(256 - usize::from(last));
        let body = Body::Write {
            remote,
            last,
            extra,
            payload,
        };
        (code, body)
    };
    cases.map(body).into()
}

fn others() -> Vec<(u8, Body<'static>)> {
    let response = |first, last| Body::ReadResponse {
        first,
        last,
        payload: bytes(256),
    };
    let atomic = |opcode, swap| Body::Atomic {
        opcode,
        remote: Remote {
            length: 8,
            ..REMOTE
        },
        compare_add: 1,
        swap,
    };
    vec![
        (0x0c, Body::Read(REMOTE)),
        (0x0d, response(true, false)),
        (0x0e, response(false, false)),
        (0x0f, response(false, true)),
        (0x10, response(true, true)),
        (0x11, Body::Ack),
        (0x11, Body::Nak(Nak::NotReady(12))),
        (0x11, Body::Nak(Nak::Sequence)),
        (0x11, Body::Nak(Nak::InvalidRequest)),
        (0x11, Body::Nak(Nak::RemoteAccess)),
        (0x11, Body::Nak(Nak::RemoteOperation)),
        (0x12, Body::AtomicResponse(5)),
        (0x13, atomic(Opcode::CompareSwap, 2)),
        (0x14, atomic(Opcode::FetchAdd, 0)),
    ]
}

/// One of each kind, with its opcode.
fn packets() -> Vec<(u8, Packet<'static>)> {
    let datagram = |extra| Body::Datagram {
        qkey: 0x1234,
        extra,
        payload: bytes(5),
    };
    let datagrams = vec![
        (0x04, datagram(Extra::None)),
        (0x05, datagram(Extra::Immediate(7u32.to_be()))),
    ];
    let connected = [sends(), writes()].concat();
    let unreliable = connected.iter().filter(|(code, _)| *code < 0x16);
    let unreliable = unreliable.cloned().collect();
    let reliable = [connected, others()].concat();
    let transports = [
        (0x00, Transport::Rc, reliable.clone()),
        (0x20, Transport::Uc, unreliable),
        (0x60, Transport::Ud, datagrams),
        (0xa0, Transport::XrcSend, reliable),
    ];
    let gids = ([0xfe; 16], [0xfd; 16]);
    let mut packets = Vec::new();
    for global in [None, Some(gids)] {
        for (upper, transport, bodies) in &transports {
            for (lower, body) in bodies {
                let packet = Packet {
                    route: Route {
                        from_port: 0,
                        to_port: 1,
                        from_lid: 17,
                        to_lid: 18,
                        from_qp: 0x40,
                        to_qp: 0x41,
                        service_level: 3,
                        pkey: 0x8001,
                        global,
                    },
                    transport: *transport,
                    psn: 0xff_ff00 + packets.len() as u32,
                    count: 1,
                    acknowledge: true,
                    solicited: false,
                    srq: 9,
                    body: body.clone(),
                };
                packets.push((upper | lower, packet));
            }
        }
    }
    packets
}

#[test]
#[cfg_attr(
    not(has_program = "tshark"),
    ignore = "tshark is not installed (ci/setup installs it)"
)]
fn wireshark_reads_every_kind_of_packet() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("fabric.pcapng");
    let mut capture = Capture::new(File::create(&path).expect("a file")).expect("it is written");
    let packets = packets();
    for (index, (_, packet)) in packets.iter().enumerate() {
        let time_ns = 1_700_000_000_000_000_001 + index as u64;
        capture.record(time_ns, packet).expect("it is written");
    }
    capture.flush().expect("it is written");

    let fields = [
        "frame.time_epoch",
        "infiniband.lrh.slid",
        "infiniband.lrh.dlid",
        "infiniband.lrh.sl",
        "infiniband.bth.opcode",
        "infiniband.bth.p_key",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "infiniband.grh.hoplmt",
    ];
    let mut arguments = vec!["-T", "fields"];
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    let read = tshark(&path, &arguments);
    let expected = packets.iter().enumerate().map(|(index, (opcode, packet))| {
        let hop_limit = packet.route.global.map_or("", |_| "1");
        format!(
            "1700000000.{:09}\t17\t18\t3\t{opcode}\t32769\t0x000041\t{}\t{hop_limit}",
            index + 1,
            packet.psn
        )
    });
    let expected: Vec<String> = expected.collect();
    assert_eq!(read.lines().collect::<Vec<_>>(), expected);
    let malformed = tshark(
        &path,
        &["-Y", "_ws.malformed || _ws.expert.severity >= 6291456"],
    );
    assert_eq!(malformed, "");
}

#[test]
#[cfg_attr(
    not(has_program = "tshark"),
    ignore = "tshark is not installed (ci/setup installs it)"
)]
fn wireshark_reads_the_extended_headers() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("fabric.pcapng");
    let mut capture = Capture::new(File::create(&path).expect("a file")).expect("it is written");
    for (_, packet) in packets() {
        capture.record(0, &packet).expect("it is written");
    }
    // What the filter finds all has these values.
    for (filter, fields, expected) in [
        (
            "infiniband.reth",
            "infiniband.reth.va infiniband.reth.r_key infiniband.reth.dmalen",
            "0x0000123456789abc\t0x00005500\t300",
        ),
        (
            "infiniband.bth.opcode == 0x13",
            "infiniband.atomiceth.swapdt infiniband.atomiceth.cmpdt",
            "2\t1",
        ),
        (
            "infiniband.bth.opcode == 0x14",
            "infiniband.atomiceth.swapdt infiniband.atomiceth.cmpdt",
            "1\t0",
        ),
        (
            "infiniband.bth.opcode == 0x12",
            "infiniband.aeth.syndrome infiniband.atomicacketh.origremdt",
            "31\t5",
        ),
        (
            "infiniband.deth",
            "infiniband.deth.q_key infiniband.deth.srcqp",
            "0x0000000000001234\t0x00000040",
        ),
        ("infiniband.ieth", "infiniband.ieth", "00000007"),
        ("infiniband.immdt", "infiniband.immdt", "00000007"),
        (
            "infiniband.aeth.syndrome.timer",
            "infiniband.aeth.syndrome.timer",
            "12",
        ),
    ] {
        let mut arguments = vec!["-Y", filter, "-T", "fields", "-E", "occurrence=f"];
        arguments.extend(fields.split(' ').flat_map(|field| ["-e", field]));
        let read = tshark(&path, &arguments);
        assert!(read.lines().count() > 0, "{filter}");
        for line in read.lines() {
            assert_eq!(line, expected, "{filter}");
        }
    }
}
