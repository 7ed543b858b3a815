//! Each body over valid inputs, mutated, and a little noise; the same ones in every run.

use super::*;
use crate::driver::{Hostile, Reach};
use snaprig_card_image::stream::{Encoder, PAGES_AT};
use snaprig_ckpt_image::image::{Header, Options, Writer};
use snaprig_hca::packet::{Body, Extra, Packet, Remote, Route};
use snaprig_hca::{Opcode, Transport, payload::Payload};
use snaprig_image::ImageId;
use snaprig_pci::{host::HostDevice, vfio_user_client::VfioUserClient};
use snaprig_wire::bar4;
use std::{fs, io::Write, sync::Mutex};

/// Marsaglia's xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as usize % n.max(1)
    }

    fn mutate(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        let (at, width) = (self.below(input.len()), 1 << self.below(4));
        let special = [
            0,
            0x7f,
            0xffff,
            0x7fff_ffff,
            0xffff_ffff,
            1 << 39,
            1 << 63,
            u64::MAX,
        ];
        let number = [self.below(usize::MAX) as u64, special[self.below(8)]][self.below(2)];
        let number = &number.wrapping_add(self.below(2) as u64).to_le_bytes()[..width];
        let end = (at + width).min(input.len());
        match self.below(8) {
            0 => input.truncate(at),
            1 => drop(input.splice(at..at, number.iter().copied())),
            2 => drop(input.splice(at.., other.iter().copied().skip(at))),
            3 => drop(input.drain(at..end)),
            _ => input[at..end].copy_from_slice(&number[..end - at]),
        }
    }
}

/// Runs of the targets that do no more than look at bytes.
const RUNS: usize = 20_000;

/// What the fuzzer has kept for a target, and what once broke something.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["corpus", "regressions"].map(|folder| here.join(folder).join(target));
    let entries = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok());
    let mut paths: Vec<_> = entries
        .flatten()
        .map(|entry| entry.expect("a file").path())
        .collect();
    paths.sort();
    let read = |path| fs::read(path).expect("a file that can be read");
    paths.into_iter().map(read).collect()
}

fn smoke(target: &str, seeds: &[Vec<u8>], runs: usize, body: impl Fn(&[u8])) {
    // For the fuzzer, which would never come to think of a checksum.
    if let Some(folder) = std::env::var_os("SNAPRIG_FUZZ_SEEDS") {
        let folder = Path::new(&folder).join(target);
        fs::create_dir_all(&folder).expect("a folder");
        for (index, seed) in seeds.iter().enumerate() {
            fs::write(folder.join(format!("seed-{index}")), seed).expect("a seed");
        }
        return;
    }
    let mut random = Random(0x5eed);
    kept(target).iter().for_each(|seed| body(seed));
    seeds.iter().for_each(|seed| body(seed));
    for run in 0..runs {
        let mut input = seeds[random.below(seeds.len())].clone();
        if run % 16 == 0 {
            input = (0..random.below(200))
                .map(|_| random.below(256) as u8)
                .collect();
        }
        for _ in 0..1 + random.below(4) {
            let other = &seeds[random.below(seeds.len())];
            random.mutate(&mut input, other);
        }
        body(&input);
    }
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn images() {
    let seed = |parent, gone: &[(u64, u64)]| {
        let started = Encoder::start(b"process", parent, gone);
        let (mut encoder, start) = started.expect("it is short");
        let mut pages = vec![7; PAGES_AT + 4096];
        encoder.pages(&mut pages, 4096);
        let seed = [start, pages, encoder.end(None).0].concat();
        assert!(decode(&seed, 7).is_some() && with_checksums(&seed) == seed);
        [&[255], &seed[..]].concat()
    };
    let seeds = [seed(ImageId::new(1), &[(4096, 1)]), seed(None, &[])];
    smoke("image", &seeds, RUNS, image);
}

#[test]
fn images_of_processes() {
    let seed = |zstd, parent| {
        let to = Arc::new(Mutex::new(Vec::new()));
        let header = Header {
            kernel: "6.18".into(),
            parent,
            ..Header::default()
        };
        let options = Options {
            zstd,
            ..Options::new("seed")
        };
        let mut writer = Writer::new(Shared(to.clone()), &header, options).expect("a writer");
        writer.state(&("thread", [1_u64, 2])).expect("it fits");
        writer.pages(1, 4096, &[7; 2 * 4096]).expect("pages");
        writer.zeroes(1, 1 << 40, 8192).expect("pages");
        if parent.is_some() {
            writer.gone(2, 0, 4096).expect("pages");
        }
        writer.finish().expect("memory is not full");
        let mut image = std::mem::take(&mut *to.lock().expect("nobody panics"));
        assert!(ckpt_image::read(&image));
        let before = image.clone();
        ckpt_image::seal(&mut image).expect("it is whole");
        assert_eq!(image, before);
        ckpt_image::short(&image)
    };
    let parent = "00000000000000ff".parse().ok();
    let seeds = [seed(None, None), seed(None, parent), seed(Some(1), None)];
    smoke("ckpt_image", &seeds, 5000, ckpt_image::ckpt_image);
}

struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panics").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn executables() {
    // A header (elf(5)), PT_LOAD of code, PT_LOAD of data, PT_INTERP.
    let seed = bytes(
        &[
            [
                0x0001_0102_464c_457f,
                0,
                0x1_003e_0002,
                0x40_0000,
                64,
                0,
                56 << 48,
                3,
            ]
            .as_slice(),
            &[5 << 32 | 1, 0, 0x40_0000, 0, 256, 4096, 4096],
            &[6 << 32 | 1, 16, 0x40_1010, 0, 16, 8192, 4096],
            &[
                3,
                232,
                0,
                0,
                8,
                8,
                1,
                u64::from_le_bytes(*b"/lib/ld\0"),
                0,
                0,
            ],
        ]
        .concat(),
    );
    assert!(card_elf::parse(&seed).is_ok_and(|e| e.segments.len() == 2));
    smoke("elf", &[seed], RUNS, elf);
}

#[test]
fn all_messages() {
    let path = || "/snapshot".to_owned();
    let [from, to] = [
        scif::PortId {
            node: 0,
            port: 1088,
        },
        scif::PortId { node: 1, port: 40 },
    ];
    let scif = |body| {
        frame::encode(&scif::Message {
            from,
            to,
            connection: 7,
            body,
        })
    };
    let extents = vec![
        scif::Extent {
            address: dma::HOST_BASE,
            len: 4096
        };
        5
    ];
    let (argv, env) = (vec![path(); 3], vec!["A=b".into()]);
    let program = coi::Program {
        name: path(),
        bytes: 1 << 20,
        window: 1 << 20,
        argv,
        env,
        libraries: vec![coi::Library {
            path: path(),
            bytes: 1 << 20,
            window: 1 << 21,
            hash: u64::MAX,
        }],
        proxy: true,
    };
    let window = coi::Window {
        id: 1,
        offset: -1,
        len: 4096,
        address: coi::BUFFER_SPACE,
    };
    let buffer = coi::BufferUse {
        id: 1,
        address: coi::BUFFER_SPACE,
        bytes: 4096,
        offset: 8,
        len: u64::MAX,
        add_ref: true,
    };
    let (buffers, misc) = (vec![buffer; 3], vec![9; 100]);
    let run = coi::RunFunction {
        function: u64::MAX,
        buffers,
        misc,
        return_len: 8,
        tell_start: true,
    };
    let file = snapify::StoredFile {
        name: path(),
        card_path: path(),
        len: 1 << 40,
        mode: 0o600,
    };
    let (local_store, binaries) = (vec![file.clone(); 3], vec![file]);
    let restore = snapify::Request::Restore {
        snapshot: path(),
        number: 3,
        local_store,
        from: 2,
        binaries,
        proxy: true,
    };
    let open = snapify_io::Message::Open {
        version: snapify_io::VERSION,
        path: path(),
        kind: snapify_io::Kind::Plain,
        mode: snapify_io::Mode::Read,
        window: -1,
    };
    let copy = dma::Descriptor {
        src: 1,
        dst: 2,
        len: 3,
        interrupt: true,
    };
    let seeds = [
        scif(scif::Body::Data(vec![1; 300])),
        scif(scif::Body::Window {
            offset: -4096,
            prot: 3,
            more: true,
            extents,
        }),
        frame::encode(&coi::ToDaemon::Create(program)),
        frame::encode(&coi::Answer::Windows(vec![window; 4])),
        frame::encode(&run),
        frame::encode(&restore),
        frame::encode(&snapify::Reply::Failed {
            step: path(),
            errno: 5,
            why: path(),
        }),
        frame::encode_framed(&open),
        copy.encode().to_vec(),
    ];
    smoke("messages", &seeds, RUNS, messages);
}

#[test]
fn coordinators() {
    use snaprig_coord::message::{Call, ToCoordinator};
    use snaprig_coord::phase::{Kind, Order, Phase};
    let frame = |peer: u8, message: &ToCoordinator| {
        let bytes = frame::encode(message);
        let len = (bytes.len() as u16).to_le_bytes();
        [&[peer + 8, 1, 0][..], &len, &bytes].concat()
    };
    let call = |id, call| ToCoordinator::Call { id, call };
    let done = |phase| ToCoordinator::Done {
        round: 1,
        phase,
        result: Ok("an image".into()),
    };
    let publish = Call::Publish {
        round: 1,
        entries: vec![(b"key".to_vec(), b"value".to_vec())],
    };
    let lookup = Call::Lookup {
        round: 1,
        keys: vec![b"key".to_vec()],
        patience_ms: 1000,
    };
    let barrier = Call::Barrier {
        round: 1,
        name: "drained".into(),
        patience_ms: 1000,
    };
    let mut round = vec![frame(
        2,
        &call(1, Call::Order(Order::new(Kind::Checkpoint))),
    )];
    for (id, one) in (1..).zip([publish, lookup, barrier]) {
        round.extend([0, 1].map(|peer| frame(peer, &call(id, one.clone()))));
    }
    for phase in [Phase::Stop, Phase::Drain, Phase::Write] {
        round.extend([0, 1].map(|peer| frame(peer, &done(phase))));
    }
    // The disk answers, and all resume.
    round.push(vec![4 + 32, 0, 0, 0, 0]);
    round.extend([0, 1].map(|peer| frame(peer, &done(Phase::Resume))));
    // With the proof of somebody else.
    let stranger = coord::hello(2).map(|message| frame(3, &message)).concat();
    let others = [
        call(2, Call::Status),
        call(3, Call::Forget { name: "0".into() }),
    ];
    let others = others.map(|message| frame(2, &message)).concat();
    let leave = frame(0, &ToCoordinator::Leave);
    let seeds = [round.concat(), stranger, others, leave];
    smoke("coord", &seeds, RUNS / 4, coord::coord);
}

#[test]
fn fabric_packets() {
    let seed = |transport, global, body| {
        let route = Route {
            from_port: 0,
            to_port: 0,
            from_lid: 1,
            to_lid: 2,
            from_qp: 3,
            to_qp: 4,
            service_level: 0,
            pkey: 0xffff,
            global,
        };
        let packet = Packet {
            route,
            transport,
            psn: 5,
            count: 1,
            acknowledge: true,
            solicited: false,
            srq: 6,
            body,
        };
        let mut bytes = Vec::new();
        wire::encode(&packet, &mut bytes).expect("a packet");
        bytes
    };
    let payload = || Payload::Bytes(vec![7; 101].into());
    let remote = Remote {
        address: 4096,
        key: 8,
        length: 101,
    };
    let write = Body::Write {
        remote: Some(remote),
        last: true,
        extra: Extra::Immediate(9),
        payload: payload(),
    };
    let datagram = Body::Datagram {
        qkey: 10,
        extra: Extra::None,
        payload: payload(),
    };
    let atomic = Body::Atomic {
        opcode: Opcode::CompareSwap,
        remote,
        compare_add: 11,
        swap: 12,
    };
    let seeds = [
        seed(Transport::Rc, None, write),
        seed(Transport::Ud, Some(([1; 16], [2; 16])), datagram),
        seed(Transport::XrcSend, None, atomic),
        seed(Transport::Rc, None, Body::AtomicResponse(13)),
    ];
    assert!(seeds.iter().all(|seed| wire::decode(seed).is_ok()));
    smoke("packets", &seeds, RUNS, packets);
}

#[test]
fn streams_between_daemons() {
    use snaprig_verbs_tcp::{Message, Relayed};
    let message = |message| {
        let mut bytes = Vec::new();
        tcp::put_message(&message, &mut bytes);
        bytes
    };
    let body = Body::Send {
        first: true,
        last: true,
        extra: Extra::Immediate(1),
        payload: Payload::Bytes(vec![7; 101].into()),
    };
    let packet = Packet {
        route: Route {
            from_port: 0,
            to_port: 1,
            from_lid: 1,
            to_lid: 2,
            from_qp: 3,
            to_qp: 4,
            service_level: 0,
            pkey: 0xffff,
            global: None,
        },
        transport: Transport::Rc,
        psn: 5,
        count: 1,
        acknowledge: true,
        solicited: false,
        srq: 0,
        body,
    };
    let mut stream = Vec::new();
    tcp::put_packet(&packet, &mut stream).expect("a packet");
    let open = Relayed::Open {
        names: vec!["cm-tcp".into()],
        first: vec![1, 2],
    };
    let relay = Message::Relay {
        link: 1,
        by_opener: true,
        what: open,
    };
    let hello = Message::Hello {
        node: 2,
        nonce: [1; 32],
        proof: [2; 32],
    };
    let streams = [stream, message(relay), message(hello)];
    // Without its length, too, so that what is mutated stays one frame.
    let frames = streams.each_ref().map(|stream| stream[4..].to_vec());
    let seeds = [streams, frames].concat();
    smoke("verbs_tcp", &seeds, RUNS, verbs_tcp);
}

#[test]
fn messages_between_buffer_managers() {
    use snaprig_ppmr::{
        Failure, Mode,
        message::{Open, Remote, ToSource, ToTarget, VERSION, encode_framed},
    };
    let open = |mode| Open {
        version: VERSION,
        mode,
        chunk_bytes: 1000,
        chunks: 8,
        ranks: vec![0, 300],
    };
    let full = |offset| ToTarget::Full {
        rank: 300,
        offset,
        bytes: 1000,
        remote: Remote::default(),
    };
    let to_target = |mode, more| {
        let all = [
            ToTarget::Open(open(mode)),
            full(0),
            full(1000),
            ToTarget::Alive,
        ];
        let end = ToTarget::End {
            rank: 300,
            bytes: 2000,
            checksum: 7,
        };
        let all = all.into_iter().chain([more, end]);
        all.flat_map(|message| encode_framed(&message)).collect()
    };
    let (rank, offset, remote) = (1, 0, Remote::default());
    let failure = Failure::Reader;
    let to_source = |answer| {
        let fail = ToSource::Fail { rank: 0, failure };
        let all = [ToSource::Opened, answer, ToSource::Alive, fail];
        all.iter().flat_map(encode_framed).collect()
    };
    let streams: [Vec<u8>; 4] = [
        to_target(Mode::Pull, ToTarget::Fail { rank: 0, failure }),
        to_target(Mode::Push, ToTarget::Written { rank: 300, offset }),
        to_source(ToSource::Done { rank, offset }),
        to_source(ToSource::Place {
            rank,
            offset,
            remote,
        }),
    ];
    let seeds = streams.map(|stream| [&[1][..], &stream].concat());
    smoke("ppmr", &seeds, RUNS, ppmr::ppmr);
}

#[test]
fn byte_rings() {
    let operation = |kind: u8, number: u64| [&[kind][..], &number.to_le_bytes()].concat();
    let fill = [operation(6, 1000), operation(7, 70_000), operation(3, 0)].concat();
    let far = [
        operation(0, u64::MAX - 3),
        operation(1, u64::MAX - 3),
        operation(6, 99),
    ]
    .concat();
    let long = [operation(0, 64), operation(2, 0xffff_fff0), operation(3, 0)].concat();
    let seeds = [fill.repeat(8), [far, long].concat().repeat(3)];
    smoke("rings", &seeds, RUNS, rings);
}

#[test]
fn vfio_user_requests() {
    // Commands of the vfio-user specification, bodies as `struct vfio_*` of `linux/vfio.h`.
    let request = |command: u32, body: &[u32]| {
        let words = [&[command << 16, 16 + 4 * body.len() as u32, 0, 0], body].concat();
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let write = |register: u64, value| request(10, &[register as u32, 0, 4, 4, value]);
    let dma = |register, value| write(bar4::dma_register(1, register), value);
    let hello = [request(1, &[1 << 16]), request(4, &[16, 0, 0, 0])].concat();
    let regions = [
        request(5, &[32, 0, 0, 0, 0, 0, 0, 0]),
        request(7, &[16, 0, 2, 0]),
    ]
    .concat();
    let irqs = [request(8, &[20, 36, 2, 0, 1]), write(bar4::SICE0, !0)].concat();
    let map = request(2, &[32, 3, 0, 0, 4096, 0, 65536, 0]);
    let read = [request(9, &[0, 0, 7, 64]), request(9, &[4096, 0, 0, 128])].concat();
    // A descriptor at 1 MiB of card memory.
    let ring = request(
        10,
        &[1 << 20, 0, 0, 16, 0x1000, 0x7f_0000, 0x2000, 0x8800_0000],
    );
    let address = [dma(bar4::DRAR_LO, 1 << 20), dma(bar4::DRAR_HI, 16 << 4)].concat();
    let start = [ring, address, write(bar4::DCR, 0xaa), dma(bar4::DHPR, 2)].concat();
    let end = [request(3, &[24, 0, 4096, 0, 65536, 0]), request(13, &[])].concat();
    let seeds = [
        [&[1], &irqs[..], &hello, &regions, &start, &read].concat(),
        [&[0], &map[..], &hello, &start, &end, &read].concat(),
    ];
    let card = card();
    let socket = card.socket();
    smoke("vfio_user", &seeds, RUNS, |bytes| vfio_user(&socket, bytes));
    card.stop();
}

/// Noise of this many bytes.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len).map(|_| random.below(256) as u8).collect()
}

#[test]
fn hostile_drivers() {
    let seeds: Vec<_> = (1..20).map(|seed| noise(seed, 1000)).collect();
    smoke("driver", &seeds, 1000, driver::driver);
}

#[test]
fn hostile_guests() {
    let seeds: Vec<_> = (1..20).map(|seed| noise(seed, 1000)).collect();
    smoke("guest", &seeds, 300, guest::guest);
}

/// A host behind a socket, of which there may be one after another.
struct Socket(PathBuf, Option<VfioUserClient>);

impl Reach for Socket {
    fn host(&self) -> &dyn HostDevice {
        self.1.as_ref().expect("only `next` takes it")
    }

    fn next(&mut self) {
        self.1 = None;
        self.1 = Some(VfioUserClient::connect(&self.0).expect("a connection"));
    }
}

#[test]
fn hostile_drivers_behind_a_socket() {
    for seed in 1..100 {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("card");
        let memory = Arc::new(CardMemory::new(driver::CARD_BYTES).expect("memory"));
        let device = Device::new(memory, 1, 1).expect("a device");
        let server = device.serve(&socket).expect("a server");
        let mut link = Socket(socket, None);
        link.next();
        Hostile::new(device.clone(), link).run(&noise(seed, 600));
        device.stop();
        server.join().expect("the server lives");
    }
}

#[test]
fn commands_of_the_connection_manager() {
    use snaprig_verbs_cm::{abi, wire::Message};
    use zerocopy::{FromZeros, IntoBytes};

    let step = |choice: u8, ms: u8, what: &[u8]| {
        [&[choice, ms], &(what.len() as u16).to_le_bytes()[..], what].concat()
    };
    let command = |number: u32, request: &[u8]| {
        let header = abi::Header {
            command: number,
            request_bytes: request.len() as u16,
            answer_bytes: 512,
        };
        step(0, 0, &[header.as_bytes(), request].concat())
    };
    let address = abi::Sockaddr::from(std::net::SocketAddr::from(([127, 0, 0, 1], 8)));
    let mut create = abi::CreateId::new_zeroed();
    (create.uid, create.port_space, create.qp_type) = (1, 0x0106, 2);
    let create = command(0, create.as_bytes());
    let mut bind = abi::BindIp::new_zeroed();
    bind.address = address;
    let listen = [
        create.clone(),
        command(2, bind.as_bytes()),
        command(7, abi::Listen::new_zeroed().as_bytes()),
        // Where nothing is left to say, the host agrees.
        vec![0],
    ];
    let mut resolve = abi::ResolveIp::new_zeroed();
    resolve.target = address;
    let mut connect = abi::Connect::new_zeroed();
    connect.param.valid = 1;
    let connect = [
        create,
        command(3, resolve.as_bytes()),
        command(4, abi::ResolveRoute::new_zeroed().as_bytes()),
        command(6, connect.as_bytes()),
        vec![0, 0],
        step(4 + 8, 1, &frame::encode(&Message::Rtu)),
        command(12, abi::GetEvent::new_zeroed().as_bytes()),
        vec![7, 255, 7, 255, 7, 255],
    ];
    let seeds = [listen.concat(), connect.concat()];
    smoke("verbs_cm", &seeds, RUNS, verbs_cm::verbs_cm);
}
