//! A fabric in one thread, with virtual time and a network that fails by a seed.
//!
//! ```text
//!   processes (buffers) --verbs--> Hca --transmit--> network --deliver--> Hca
//!                                   | attention         loss, delay, order, copies, partitions
//!                                   +---------------> daemon: run now, and at the deadline
//! ```
//!
//! [`World`] is the machine: it is the [`Host`] of every HCA, and does the daemon's work in
//! [`World::step`]. The same seed and the same calls give the same [`World::hash`].

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    cell::{Cell, RefCell},
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    ptr::NonNull,
};

use snaprig_sim::Random;

pub use crate::canary::Canary;
use crate::{
    Access, Atomic, Completion, Event, Hca, Host, Memory, Packet, Path, Segment, State, Transport,
    control::{
        Address, Capabilities, Control, Errno, Fabric, HcaSetup, QpAttributes, Reply, Request,
        attributes::mask,
    },
    key::NOBODY,
    memory::{HEAP_AT, PROCESSES_MAX},
    model::ModelName,
    queue::Sge,
};

/// Bytes for rings.
const HEAP: usize = 64 << 20;
const PAGE: usize = 4096;
/// The daemon's slot.
const DAEMON: u32 = PROCESSES_MAX - 1;
/// Where a process's memory begins.
pub const BASE: u64 = 0x1000_0000;
/// Bytes of it.
pub const BYTES: usize = 2 << 20;
/// So many events at one moment are a loop.
const LOOP_EVENTS: u32 = 200_000;

/// What a call ends with in which a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Died;

struct Mapping {
    first: NonNull<u8>,
    layout: Layout,
}

impl Mapping {
    fn new() -> (Self, Memory) {
        let bytes = HEAP_AT as usize + HEAP;
        let layout = Layout::from_size_align(bytes + PAGE, 8).expect("a size");
        // SAFETY: the size is not 0.
        let first = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        let skip = first.as_ptr().align_offset(PAGE);
        // SAFETY: one page more than needed was allocated.
        let base = unsafe { first.byte_add(skip) };
        // SAFETY: it lives as long as the world, and is reached through the words alone.
        let memory = unsafe { Memory::new(base, bytes) }.expect("large enough");
        (Self { first, layout }, memory)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: allocated so.
        unsafe { dealloc(self.first.as_ptr(), self.layout) }
    }
}

/// What the network does to packets.
#[derive(Debug)]
pub struct Net {
    random: Random,
    /// Packets of 1000 that are lost.
    pub loss: u64,
    /// Packets of 1000 that are damaged, and dropped for their checksum.
    pub damage: u64,
    /// Packets of 1000 that come twice.
    pub copies: u64,
    /// Packets of 1000 that others overtake.
    pub reorder: u64,
    /// Ports that hear nothing, and are not heard.
    pub cut: BTreeSet<u32>,
    /// When the last packet of each flow arrives.
    last: BTreeMap<(u32, u32), u64>,
    /// Packets that were handed over.
    pub sent: u64,
    /// Packets that were lost, damaged or cut off.
    pub lost: u64,
    /// Packets that came twice or out of order.
    pub strange: u64,
}

#[derive(Debug)]
enum What {
    Deliver(Packet<'static>),
    Run(u32),
    RunShared(u32),
}

#[derive(Debug)]
struct Due {
    at: u64,
    order: u64,
    what: What,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The machine; see the module.
pub struct World {
    /// Device memory.
    pub memory: Memory,
    _mapping: Mapping,
    /// The control plane.
    pub control: RefCell<Control>,
    /// What the network does.
    pub net: RefCell<Net>,
    /// How packets go.
    pub path: Cell<Path>,
    /// Events and notifications, in order.
    pub events: RefCell<Vec<(Event, u32)>>,
    /// Completion queues that notified, in order.
    pub notified: RefCell<Vec<u32>>,
    /// Which bug is switched on.
    pub canary: Cell<Option<Canary>>,
    /// A process dies in so many calls of the host; 0: never.
    pub dies_in: Cell<u32>,
    /// Whether packets are printed.
    pub prints: Cell<bool>,
    processes: RefCell<Vec<Option<Vec<u8>>>>,
    now_ns: Cell<u64>,
    due: RefCell<BinaryHeap<Reverse<Due>>>,
    order: Cell<u64>,
    runs: RefCell<BTreeMap<u32, u64>>,
    at_once: Cell<u32>,
    in_daemon: Cell<bool>,
    hash: Cell<u64>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("now_ns", &self.now_ns.get())
            .finish_non_exhaustive()
    }
}

/// A process with a protection domain, a completion queue and a key for all its memory.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Slot in the table of processes.
    pub process: u32,
    /// HCA.
    pub hca: u32,
    /// Protection domain.
    pub pd: u32,
    /// Completion queue.
    pub cq: u32,
    /// Key that allows everything.
    pub key: u32,
}

impl Node {
    /// A range of its memory.
    pub fn sge(&self, at: u64, length: u32) -> Sge {
        Sge {
            address: BASE + at,
            length,
            key: self.key,
        }
    }
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Owner's slot.
    pub process: u32,
    /// HCA.
    pub hca: u32,
    /// Place in the table.
    pub index: u32,
    /// Number.
    pub number: u32,
    /// Transport.
    pub transport: Transport,
}

/// How a connection is set up.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // ibv_modify_qp(3) documents them
pub struct Link {
    pub mtu: u32,
    pub psn: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub rd_atomic: u8,
    pub access: u32,
    pub qkey: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            mtu: 1024,
            psn: 0xff_fff0,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 4,
            access: 0xf,
            qkey: 0x1234,
        }
    }
}

/// All that a key can allow.
pub const ALL: Access = Access::all().difference(Access::ZERO_BASED);

impl World {
    /// HCAs of model A with a process each.
    pub fn new(hcas: usize, seed: u64) -> Self {
        Self::of(&vec![ModelName::A; hcas], seed)
    }

    /// HCAs of these models with a process each.
    pub fn of(models: &[ModelName], seed: u64) -> Self {
        let (mapping, memory) = Mapping::new();
        let hcas = models.iter().map(|model| HcaSetup { model: *model });
        let control = Control::new(
            &memory,
            &Fabric {
                hcas: hcas.collect(),
                ..Fabric::default()
            },
        );
        let world = Self {
            memory,
            _mapping: mapping,
            control: RefCell::new(control),
            net: RefCell::new(Net {
                random: Random::new(seed, "network"),
                loss: 0,
                damage: 0,
                copies: 0,
                reorder: 0,
                cut: BTreeSet::new(),
                last: BTreeMap::new(),
                sent: 0,
                lost: 0,
                strange: 0,
            }),
            path: Cell::new(Path::Whole),
            events: RefCell::default(),
            notified: RefCell::default(),
            canary: Cell::new(None),
            dies_in: Cell::new(0),
            prints: Cell::new(false),
            processes: RefCell::default(),
            now_ns: Cell::new(1_000_000),
            due: RefCell::default(),
            order: Cell::new(0),
            runs: RefCell::default(),
            at_once: Cell::new(0),
            in_daemon: Cell::new(false),
            hash: Cell::new(seed),
        };
        for _ in models {
            world.join();
        }
        world
    }

    /// One more process.
    pub fn join(&self) -> u32 {
        let mut processes = self.processes.borrow_mut();
        let id = self.order.replace(self.order.get() + 1) as u32 + 1;
        let slot = self.control.borrow_mut().join(&self.memory, id, id);
        let slot = slot.expect("a slot") as usize;
        let count = processes.len().max(slot + 1);
        processes.resize(count, None);
        processes[slot] = Some(vec![0; BYTES]);
        slot as u32
    }

    /// The machines, as a process sees them.
    pub fn hca(&self, process: u32) -> Hca<'_, Self> {
        let hca = Hca::new(&self.memory, self, process);
        hca.canary.set(self.canary.get());
        hca
    }

    /// Takes something into the hash.
    pub fn note(&self, numbers: &[u64]) {
        let mut hash = self.hash.get();
        for number in numbers {
            hash = (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        self.hash.set(hash);
    }

    /// All that happened.
    pub fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// Lets a process ask the control plane.
    pub fn ask(&self, process: u32, request: &Request) -> Result<Reply, Errno> {
        let mut control = self.control.borrow_mut();
        control.handle(&self.hca(DAEMON), process, request)
    }

    /// The same, for what has a number.
    pub fn make(&self, process: u32, request: &Request) -> u32 {
        match self.ask(process, request).expect("made") {
            Reply::Made(number) | Reply::Queue(number, _) | Reply::Qp(number, ..) => number,
            Reply::Done => panic!("nothing was made"),
        }
    }

    /// A process dies, and the daemon hears of it.
    pub fn kill(&self, process: u32) {
        self.processes.borrow_mut()[process as usize] = None;
        let peers = self.control.borrow_mut().gone(&self.hca(DAEMON), process);
        for peer in peers {
            self.attention(peer);
        }
    }

    /// Whether it lives.
    pub fn lives(&self, process: u32) -> bool {
        self.processes.borrow()[process as usize].is_some()
    }

    /// Everything that a process needs to talk.
    pub fn node(&self, process: u32, hca: u32) -> Node {
        let pd = self.make(process, &Request::AllocPd { hca });
        Node {
            process,
            hca,
            pd,
            cq: self.cq(process, hca, 1024),
            key: self.region(process, pd, 0, BYTES as u64, ALL),
        }
    }

    /// A completion queue.
    pub fn cq(&self, process: u32, hca: u32, entries: u32) -> u32 {
        let request = Request::CreateCq {
            hca,
            entries,
            channel: Some(0),
        };
        self.make(process, &request)
    }

    /// A key for a range of memory.
    pub fn region(&self, process: u32, pd: u32, at: u64, length: u64, access: Access) -> u32 {
        let request = Request::RegisterMr {
            pd,
            start: BASE + at,
            address: BASE + at,
            length,
            access: access.bits(),
            pooled: false,
        };
        self.make(process, &request)
    }

    /// What creates a queue pair of a node.
    pub fn qp_request(node: &Node, transport: Transport) -> Request {
        Request::CreateQp {
            pd: node.pd,
            transport: transport as u32,
            send_cq: node.cq,
            recv_cq: node.cq,
            srq: None,
            xrc_domain: None,
            signals_all: false,
            capabilities: Capabilities {
                send_slots: 64,
                receive_slots: 64,
                send_sges: 4,
                receive_sges: 4,
                inline_bytes: 256,
            },
        }
    }

    /// A queue pair.
    pub fn qp(&self, node: &Node, transport: Transport) -> End {
        self.end(node, transport, &Self::qp_request(node, transport))
    }

    /// A queue pair as asked for.
    pub fn end(&self, node: &Node, transport: Transport, request: &Request) -> End {
        match self.ask(node.process, request) {
            Ok(Reply::Qp(index, number, _)) => End {
                process: node.process,
                hca: node.hca,
                index,
                number,
                transport,
            },
            other => panic!("no queue pair: {other:?}"),
        }
    }

    /// The LID of an HCA's first port.
    pub fn lid(&self, hca: u32) -> u16 {
        let port = crate::control::find_port(&self.memory, hca, 1);
        port.expect("a port").1.lid.get() as u16
    }

    /// Modifies a queue pair.
    pub fn modify(&self, end: &End, mask: u32, attributes: QpAttributes) -> Result<Reply, Errno> {
        let request = Request::ModifyQp {
            qp: end.index,
            mask,
            attributes,
        };
        self.ask(end.process, &request)
    }

    /// Modifies a queue pair's state.
    pub fn state(&self, end: &End, state: State) -> Result<Reply, Errno> {
        let attributes = QpAttributes {
            state: state as u32,
            ..QpAttributes::default()
        };
        self.modify(end, mask::STATE, attributes)
    }

    /// Brings a queue pair up to a state, with `peer` as the other end.
    pub fn raise(&self, end: &End, peer: &End, link: &Link, to: State) {
        let datagram = end.transport == Transport::Ud;
        let reliable = !datagram && end.transport != Transport::Uc;
        let (requests, responds) = (
            end.transport != Transport::XrcReceive && reliable,
            end.transport != Transport::XrcSend && reliable,
        );
        let mut attributes = QpAttributes {
            path_mtu: link.mtu,
            qkey: link.qkey,
            rq_psn: link.psn,
            sq_psn: link.psn,
            dest_qp: peer.number,
            access: link.access,
            address: Address {
                lid: self.lid(peer.hca),
                port_number: 1,
                ..Address::default()
            },
            max_rd_atomic: link.rd_atomic,
            max_dest_rd_atomic: link.rd_atomic,
            min_rnr_timer: link.min_rnr_timer,
            port_number: 1,
            timeout: link.timeout,
            retry_cnt: link.retry_cnt,
            rnr_retry: link.rnr_retry,
            ..QpAttributes::default()
        };
        use mask::*;
        let steps = [
            (
                State::Init,
                PKEY_INDEX | PORT | if datagram { QKEY } else { ACCESS_FLAGS },
            ),
            (
                State::Rtr,
                match (datagram, responds) {
                    (true, _) => 0,
                    (_, false) => AV | PATH_MTU | DEST_QPN | RQ_PSN,
                    (_, true) => {
                        AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER
                    }
                },
            ),
            (
                State::Rts,
                match (requests, end.transport) {
                    (true, _) => SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC,
                    (_, Transport::XrcReceive) => SQ_PSN | TIMEOUT,
                    _ => SQ_PSN,
                },
            ),
        ];
        for (state, bits) in steps {
            attributes.state = state as u32;
            let done = self.modify(end, STATE | bits, attributes);
            assert_eq!(done, Ok(Reply::Done), "{end:?} to {state:?}");
            if state == to {
                break;
            }
        }
    }

    /// Connects two queue pairs.
    pub fn connect(&self, a: &End, b: &End, link: &Link) {
        self.raise(a, b, link, State::Rts);
        self.raise(b, a, link, State::Rts);
    }

    /// A connection of two nodes.
    pub fn pair(&self, a: &Node, b: &Node, transport: Transport, link: &Link) -> (End, End) {
        let ends = (self.qp(a, transport), self.qp(b, transport));
        self.connect(&ends.0, &ends.1, link);
        ends
    }

    /// Takes all entries of a completion queue.
    pub fn poll(&self, process: u32, cq: u32) -> Vec<Completion> {
        let hca = self.hca(process);
        let entry = self.memory.cq(cq).expect("a queue");
        std::iter::from_fn(|| hca.poll(entry)).collect()
    }

    /// Writes a process's memory.
    pub fn put(&self, process: u32, at: u64, bytes: &[u8]) {
        let mut processes = self.processes.borrow_mut();
        let memory = processes[process as usize].as_mut().expect("it lives");
        memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Reads a process's memory.
    pub fn get(&self, process: u32, at: u64, length: usize) -> Vec<u8> {
        let processes = self.processes.borrow();
        let memory = processes[process as usize].as_ref().expect("it lives");
        memory[at as usize..][..length].to_vec()
    }

    fn print(&self, what: &str, packet: &Packet<'_>) {
        if self.prints.get() {
            let (at, route) = (self.now_ns.get(), &packet.route);
            let (from, to) = (route.from_qp & 0xffff, route.to_qp & 0xffff);
            let mut body = format!("{:?}", packet.body);
            body.truncate(100);
            eprintln!("{at:>10} {what} {from} -> {to} psn {:x} {body}", packet.psn);
        }
    }

    fn push(&self, at: u64, what: What) {
        let order = self.order.get();
        self.order.set(order + 1);
        self.due.borrow_mut().push(Reverse(Due { at, order, what }));
    }

    fn plan_run(&self, qp: u32, at: u64) {
        let mut runs = self.runs.borrow_mut();
        if runs.get(&qp).is_none_or(|planned| *planned > at) {
            runs.insert(qp, at);
            drop(runs);
            self.push(at, What::Run(qp));
        }
    }

    /// Virtual time, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now_ns.get()
    }

    /// When something happens next.
    pub fn next_at(&self) -> Option<u64> {
        self.due.borrow().peek().map(|Reverse(due)| due.at)
    }

    /// The next thing happens; false if nothing is to come.
    pub fn step(&self) -> bool {
        let Some(Reverse(due)) = self.due.borrow_mut().pop() else {
            return false;
        };
        if due.at > self.now_ns.get() {
            self.now_ns.set(due.at);
            self.at_once.set(0);
        }
        self.at_once.set(self.at_once.get() + 1);
        assert!(self.at_once.get() < LOOP_EVENTS, "a loop: {:?}", due.what);
        let hca = self.hca(DAEMON);
        self.in_daemon.set(true);
        match due.what {
            What::Deliver(packet) => {
                self.note(&[1, due.at, packet.psn.into(), packet.route.to_qp.into()]);
                self.print("comes", &packet);
                hca.deliver(&packet);
            }
            What::Run(qp) => {
                let mut runs = self.runs.borrow_mut();
                if runs.get(&qp) == Some(&due.at) {
                    runs.remove(&qp);
                }
                drop(runs);
                hca.run(qp);
                let deadline = self
                    .memory
                    .qp(qp)
                    .map_or(0, |qp| qp.requester.deadline_ns.get());
                if deadline > 0 {
                    self.plan_run(qp, deadline.max(self.now_ns.get()));
                }
            }
            What::RunShared(srq) => self.control.borrow().receives_shared(&hca, srq),
        }
        self.in_daemon.set(false);
        true
    }

    /// Lets time pass.
    pub fn run_for(&self, ns: u64) {
        let end = self.now_ns.get() + ns;
        while self.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now_ns.set(end);
    }

    /// Lets everything happen that is to come, in bounded time.
    pub fn settle(&self) {
        let end = self.now_ns.get() + 3600 * 1_000_000_000;
        while self.step() {
            assert!(self.now_ns.get() < end, "it does not come to rest");
        }
    }

    /// A call of the host.
    fn called(&self) {
        let left = self.dies_in.get();
        self.dies_in.set(left.saturating_sub(1));
        if left == 1 {
            std::panic::resume_unwind(Box::new(Died));
        }
    }

    fn with<T>(&self, at: Segment, f: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut processes = self.processes.borrow_mut();
        let memory = processes.get_mut(at.process as usize)?.as_mut()?;
        let first = usize::try_from(at.address.checked_sub(BASE)?).ok()?;
        let end = first.checked_add(usize::try_from(at.length).ok()?)?;
        Some(f(memory.get_mut(first..end)?))
    }
}

impl Host for World {
    fn copy(&self, from: Segment, to: Segment) -> bool {
        assert_eq!(from.length, to.length, "both have the same length");
        self.called();
        let there = |at: Segment| at.process == NOBODY || self.with(at, |_| ()).is_some();
        if !there(from) || !there(to) || from.length > BYTES as u64 {
            return false;
        }
        let mut bytes = vec![0; from.length as usize];
        self.read(from, &mut bytes) && self.write(&bytes, to)
    }

    fn read(&self, from: Segment, into: &mut [u8]) -> bool {
        if from.process == NOBODY {
            into.fill(0);
            return true;
        }
        self.with(from, |bytes| into.copy_from_slice(bytes))
            .is_some()
    }

    fn write(&self, bytes: &[u8], to: Segment) -> bool {
        to.process == NOBODY
            || self
                .with(to, |memory| memory.copy_from_slice(bytes))
                .is_some()
    }

    fn atomic(&self, at: Segment, operation: Atomic) -> Option<u64> {
        self.with(at, |bytes| {
            let before = u64::from_ne_bytes((&*bytes).try_into().expect("8 bytes"));
            let after = match operation {
                Atomic::CompareSwap(compare, swap) if before == compare => swap,
                Atomic::CompareSwap(..) => before,
                Atomic::FetchAdd(by) => before.wrapping_add(by),
            };
            bytes.copy_from_slice(&after.to_ne_bytes());
            before
        })
    }

    fn notify(&self, cq: u32) {
        self.called();
        self.note(&[2, cq.into()]);
        self.notified.borrow_mut().push(cq);
    }

    fn event(&self, event: Event, element: u32) {
        self.called();
        self.note(&[3, event as u64, element.into()]);
        self.events.borrow_mut().push((event, element));
    }

    fn attention(&self, qp: u32) {
        self.called();
        self.plan_run(qp, self.now_ns.get());
    }

    fn srq_attention(&self, srq: u32) {
        self.push(self.now_ns.get(), What::RunShared(srq));
    }

    fn path(&self, _from_port: u32, _to_port: u32) -> Path {
        match self.path.get() {
            Path::Packets if !self.in_daemon.get() => Path::Elsewhere,
            path => path,
        }
    }

    fn transmit(&self, packet: &Packet<'_>) {
        let mut net = self.net.borrow_mut();
        net.sent += 1;
        let Some(packet) = packet.to_owned(self) else {
            return;
        };
        let route = packet.route;
        let (loss, damage, copies, reorder) = (net.loss, net.damage, net.copies, net.reorder);
        let mut roll = |of: u64| of > 0 && net.random.below(1000) < of;
        let gone = roll(loss) | roll(damage);
        let (twice, late) = (roll(copies), roll(reorder));
        if gone || net.cut.contains(&route.from_port) || net.cut.contains(&route.to_port) {
            net.lost += 1;
            self.note(&[4, packet.psn.into()]);
            self.print("is lost", &packet);
            return;
        }
        let now = self.now_ns.get();
        let mut at = now + 1000 + net.random.below(500);
        let flow = (route.from_qp, route.to_qp);
        if late {
            at += net.random.below(20_000);
        } else {
            at = at.max(net.last.get(&flow).copied().unwrap_or(0) + 1);
            net.last.insert(flow, at);
        }
        if twice {
            let again = at + net.random.below(20_000);
            self.push(again, What::Deliver(packet.clone()));
        }
        net.strange += u64::from(twice | late);
        self.push(at, What::Deliver(packet));
    }

    fn now_ns(&self) -> u64 {
        self.called();
        self.now_ns.get()
    }
}
