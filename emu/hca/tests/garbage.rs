//! Whatever is in device memory, and whatever comes over a path: nothing panics, nothing loops for
//! ever.

use proptest::prelude::*;
use snaprig_hca::{
    Opcode, Packet, Path, Transport,
    cell::{U32, U64},
    control::Request,
    memory::HEAP_AT,
    packet::{Body, Extra, Nak, Remote, Route},
    payload::Payload,
    post::Data,
    queue::{Destination, Send},
    testing::{BASE, End, Link, Node, World},
    types::SendFlags,
};

/// Two connections and two datagram queue pairs between two processes, with a shared queue.
struct Busy {
    world: World,
    nodes: [Node; 2],
    ends: Vec<[End; 2]>,
    srq: u32,
}

fn busy(path: Path) -> Busy {
    let world = World::new(2, 1);
    world.path.set(path);
    let nodes = [world.node(0, 0), world.node(1, 1)];
    let request = Request::CreateSrq {
        pd: nodes[1].pd,
        slots: 8,
        sges: 2,
        limit: 1,
        xrc: None,
    };
    let srq = world.make(1, &request);
    let mut ends: Vec<_> = [Transport::Rc, Transport::Uc, Transport::Ud]
        .map(|transport| world.pair(&nodes[0], &nodes[1], transport, &Link::default()))
        .map(|(x, y)| [x, y])
        .into();
    let mut shares = World::qp_request(&nodes[1], Transport::Rc);
    if let Request::CreateQp { srq: shared, .. } = &mut shares {
        *shared = Some(srq);
    }
    let x = world.qp(&nodes[0], Transport::Rc);
    let y = world.end(&nodes[1], Transport::Rc, &shares);
    world.connect(&x, &y, &Link::default());
    ends.push([x, y]);
    Busy {
        world,
        nodes,
        ends,
        srq,
    }
}

fn opcode() -> impl Strategy<Value = Opcode> {
    (0..10u32).prop_map(|number| Opcode::from_number(number).expect("an opcode"))
}

/// Words that are likely to be taken for something.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..70u64,
        (0..64u32).prop_map(|bit| 1 << bit),
        (0..64u32).prop_map(|bit| u64::MAX >> bit),
        Just(BASE),
        Just(HEAP_AT),
        (0..200u64).prop_map(|page| HEAP_AT + page * 4096),
        (any::<u32>(), 0..20u32).prop_map(|(a, b)| u64::from(a) << 32 | u64::from(b)),
    ]
}

/// Something to do.
#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize, Opcode, u32, u32),
    Receive(usize, usize),
    SharedReceive,
    Run(usize, usize),
    Flush(usize, usize),
    Poll(usize),
    Wait(u64),
    /// A word of a queue pair, of its table entry's size on.
    SpoilQp(usize, usize, usize, u64),
    SpoilCq(usize, usize, u64),
    SpoilSrq(usize, u64),
    SpoilKey(u32, usize, u64),
    SpoilHeap(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (end, side) = (0..4usize, 0..2usize);
    prop_oneof![
        4 => (end.clone(), side.clone(), opcode(), 0..16u32, 0..6000u32)
            .prop_map(|(e, s, o, f, l)| Step::Send(e, s, o, f, l)),
        3 => (end.clone(), side.clone()).prop_map(|(e, s)| Step::Receive(e, s)),
        1 => Just(Step::SharedReceive),
        1 => (end.clone(), side.clone()).prop_map(|(e, s)| Step::Run(e, s)),
        1 => (end.clone(), side.clone()).prop_map(|(e, s)| Step::Flush(e, s)),
        1 => side.clone().prop_map(Step::Poll),
        1 => (0..10_000_000u64).prop_map(Step::Wait),
        4 => (end, side.clone(), 0..200usize, word()).prop_map(|(e, s, at, w)| Step::SpoilQp(e, s, at, w)),
        1 => (side, 0..20usize, word()).prop_map(|(s, at, w)| Step::SpoilCq(s, at, w)),
        1 => (0..20usize, word()).prop_map(|(at, w)| Step::SpoilSrq(at, w)),
        1 => (0..4u32, 0..10usize, word()).prop_map(|(key, at, w)| Step::SpoilKey(key, at, w)),
        3 => (0..60_000u64, word()).prop_map(|(at, w)| Step::SpoilHeap(at, w)),
    ]
}

/// Words of an entry of a table.
fn words<T>(entry: &T) -> &[U64] {
    let first = std::ptr::from_ref(entry).cast::<U64>();
    assert!(first.is_aligned());
    // SAFETY: an entry of device memory holds atomic words alone, and is aligned to 8 bytes.
    unsafe { std::slice::from_raw_parts(first, size_of::<T>() / 8) }
}

fn spoil<T>(entry: &T, at: usize, word: u64) {
    let words = words(entry);
    words[at % words.len()].set(word);
}

impl Busy {
    fn take(&self, step: &Step) {
        let world = &self.world;
        match *step {
            Step::Send(e, s, opcode, flags, length) => {
                let (end, node, peer) = (&self.ends[e][s], &self.nodes[s], &self.nodes[1 - s]);
                let request = Send {
                    wr_id: 1,
                    opcode,
                    flags: SendFlags::from_bits_truncate(flags),
                    immediate: 0,
                    remote_address: BASE,
                    remote_key: peer.key,
                    compare_add: 0,
                    swap: 0,
                    to: Destination {
                        lid: world.lid(peer.hca),
                        qp: self.ends[e][1 - s].number,
                        qkey: 0x1234,
                        ..Destination::default()
                    },
                    srq: 0,
                    length: 0,
                    sges: 0,
                    psn: 0,
                };
                let list = [node.sge(0, length)];
                let hca = world.hca(node.process);
                let _ = hca.post_send(end.index, &request, Data::List(&list));
            }
            Step::Receive(e, s) => {
                let list = [self.nodes[s].sge(0, 4000)];
                let hca = world.hca(self.nodes[s].process);
                let _ = hca.post_receive(self.ends[e][s].index, 1, &list);
            }
            Step::SharedReceive => {
                let list = [self.nodes[1].sge(0, 4000)];
                let _ = world.hca(1).post_shared_receive(self.srq, 1, &list);
            }
            Step::Run(e, s) => world.hca(0).run(self.ends[e][s].index),
            Step::Flush(e, s) => world.hca(0).flush(self.ends[e][s].index),
            Step::Poll(s) => {
                let hca = world.hca(self.nodes[s].process);
                let cq = world.memory.cq(self.nodes[s].cq).expect("a queue");
                for _ in 0..10_000 {
                    if hca.poll(cq).is_none() {
                        break;
                    }
                }
            }
            Step::Wait(ns) => self.wait(ns),
            Step::SpoilQp(e, s, at, word) => {
                let qp = world
                    .memory
                    .qp(self.ends[e][s].index)
                    .expect("a queue pair");
                spoil(qp, at, word);
                self.free_locks();
            }
            Step::SpoilCq(s, at, word) => {
                spoil(
                    world.memory.cq(self.nodes[s].cq).expect("a queue"),
                    at,
                    word,
                );
                self.free_locks();
            }
            Step::SpoilSrq(at, word) => {
                spoil(world.memory.srq(self.srq).expect("a queue"), at, word);
                self.free_locks();
            }
            Step::SpoilKey(key, at, word) => {
                spoil(world.memory.key(key).expect("a key"), at, word);
            }
            Step::SpoilHeap(at, word) => {
                if let Some(words) = world.memory.words(HEAP_AT + at * 8, 1) {
                    words[0].set(word);
                }
            }
        }
    }

    fn wait(&self, ns: u64) {
        let end = self.world.now() + ns;
        for _ in 0..20_000 {
            if self.world.next_at().is_none_or(|at| at > end) {
                break;
            }
            self.world.step();
        }
    }

    /// Who holds a lock that is spoiled would have to die first.
    fn free_locks(&self) {
        fn free(lock: &snaprig_hca::lock::Lock) {
            // SAFETY: a lock is one atomic word.
            let word = unsafe { &*std::ptr::from_ref(lock).cast::<U32>() };
            word.set(0);
        }
        let memory = &self.world.memory;
        for end in self.ends.iter().flatten() {
            let qp = memory.qp(end.index).expect("a queue pair");
            for lock in [&qp.post_lock, &qp.send_lock, &qp.receive_lock] {
                free(lock);
            }
        }
        for node in &self.nodes {
            free(&memory.cq(node.cq).expect("a queue").lock);
        }
        let srq = memory.srq(self.srq).expect("a queue");
        free(&srq.post_lock);
        free(&srq.take_lock);
    }
}

fn body() -> impl Strategy<Value = Body<'static>> {
    let bytes = || (any::<u8>(), 0..3000usize).prop_map(|(b, n)| Payload::Bytes(vec![b; n].into()));
    let extra = || {
        prop_oneof![
            Just(Extra::None),
            any::<u32>().prop_map(Extra::Immediate),
            (0..2000u32).prop_map(Extra::Invalidate)
        ]
    };
    let remote = || {
        (
            0..4096u64,
            250..260u32,
            prop_oneof![0..5000u32, any::<u32>()],
        )
            .prop_map(|(at, key, length)| Remote {
                address: BASE + at,
                key,
                length,
            })
    };
    let nak = prop_oneof![
        Just(Nak::Sequence),
        Just(Nak::InvalidRequest),
        Just(Nak::RemoteAccess),
        Just(Nak::RemoteOperation),
        any::<u8>().prop_map(Nak::NotReady)
    ];
    prop_oneof![
        (any::<bool>(), any::<bool>(), extra(), bytes()).prop_map(
            |(first, last, extra, payload)| {
                Body::Send {
                    first,
                    last,
                    extra,
                    payload,
                }
            }
        ),
        (
            proptest::option::of(remote()),
            any::<bool>(),
            extra(),
            bytes()
        )
            .prop_map(|(remote, last, extra, payload)| Body::Write {
                remote,
                last,
                extra,
                payload
            }),
        remote().prop_map(|remote| Body::Read(Remote {
            length: remote.length % 10_000,
            ..remote
        })),
        (opcode(), remote(), any::<u64>()).prop_map(|(opcode, remote, number)| Body::Atomic {
            opcode,
            remote,
            compare_add: number,
            swap: number
        }),
        (any::<u32>(), extra(), bytes()).prop_map(|(qkey, extra, payload)| Body::Datagram {
            qkey,
            extra,
            payload
        }),
        Just(Body::Ack),
        nak.prop_map(Body::Nak),
        (any::<bool>(), any::<bool>(), bytes()).prop_map(|(first, last, payload)| {
            Body::ReadResponse {
                first,
                last,
                payload,
            }
        }),
        any::<u64>().prop_map(Body::AtomicResponse),
    ]
}

/// A packet for somebody, near what is expected.
fn packet() -> impl Strategy<Value = (usize, usize, i32, u32, bool, Body<'static>)> {
    (
        0..4usize,
        0..2usize,
        prop_oneof![3 => -3..3i32, 1 => any::<i32>()],
        prop_oneof![3 => Just(1), 1 => 0..10u32, 1 => any::<u32>()],
        any::<bool>(),
        body(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_in_device_memory_harms_nobody(
        whole in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let busy = busy(if whole { Path::Whole } else { Path::Packets });
        for step in &steps {
            busy.take(step);
        }
        busy.wait(1_000_000_000);
    }

    #[test]
    fn garbage_from_a_path_harms_nobody(
        steps in proptest::collection::vec((step(), packet()), 1..40),
    ) {
        let busy = busy(Path::Packets);
        for (step, (e, s, ahead, count, acknowledge, body)) in &steps {
            if !matches!(step, Step::SpoilQp(..) | Step::SpoilCq(..) | Step::SpoilSrq(..) | Step::SpoilKey(..) | Step::SpoilHeap(..)) {
                busy.take(step);
            }
            let (to, from) = (&busy.ends[*e][*s], &busy.ends[*e][1 - *s]);
            let qp = busy.world.memory.qp(to.index).expect("a queue pair");
            let mut packet = Packet {
                route: Route {
                    from_port: from.hca,
                    to_port: to.hca,
                    from_lid: busy.world.lid(from.hca),
                    to_lid: busy.world.lid(to.hca),
                    from_qp: from.number,
                    to_qp: to.number,
                    service_level: 0,
                    pkey: 0xffff,
                    global: None,
                },
                transport: to.transport,
                psn: 0,
                count: *count,
                acknowledge: *acknowledge,
                solicited: false,
                srq: 0,
                body: body.clone(),
            };
            let near = if packet.is_response() { qp.requester.unacked.get() } else { qp.responder.psn.get() };
            packet.psn = near.wrapping_add_signed(*ahead) & 0xff_ffff;
            busy.world.hca(0).deliver(&packet);
        }
        busy.wait(1_000_000_000);
    }
}
