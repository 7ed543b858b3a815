//! A fabric in one thread, with virtual time and what a fault plan has go wrong.
//!
//! ```text
//!   processes (buffers) --verbs--> Hca --transmit--> network --deliver--> Hca
//!                                   | attention         faults of the plan, partitions
//!                                   +---------------> daemon: run now, and at the deadline
//! ```
//!
//! [`World`] is the machine: it is the [`Host`] of every HCA, and does the daemon's work in
//! [`World::next`]. The same plan and the same calls give the same trace.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    panic::{self, AssertUnwindSafe},
    ptr::NonNull,
};

use snaprig_sim::{Engine, Kind, Plan, Point, ProcessId, Trace, faults::Reached};

use crate::{
    Access, Atomic, Canary, Completion, Event, Hca, Host, Memory, Packet, Path, Segment, State,
    Transport,
    control::{
        Address, Capabilities, Control, Errno, Fabric, HcaSetup, QpAttributes, Reply, Request,
        attributes::mask,
    },
    faults,
    key::NOBODY,
    memory::{HEAP_AT, PROCESSES_MAX},
    model::ModelName,
    port::Port,
    queue::Sge,
    wire::survives,
};

/// Bytes for rings.
const HEAP: usize = 64 << 20;
const PAGE: usize = 4096;
/// The daemon's slot.
const DAEMON: u32 = PROCESSES_MAX - 1;
/// Where a process's memory begins.
pub const BASE: u64 = 0x1000_0000;
/// Bytes of it.
pub const BYTES: usize = 8 << 20;
/// With so many packets under way, paths are full.
pub const UNDER_WAY_MAX: usize = 256;
/// What makes more events than this does not come to rest.
const SETTLE_EVENTS: u32 = 10_000_000;
/// A process that hangs is ended after this long; none is later than that, and no packet.
const PATIENCE_NS: u64 = 20_000_000;
/// How much later a copy of a packet comes.
const COPY_NS: u64 = 10_000;

/// What a call ends with in which a process dies.
struct Died;

struct Mapping {
    first: NonNull<u8>,
    layout: Layout,
}

impl Mapping {
    fn new() -> (Self, Memory) {
        let bytes = HEAP_AT as usize + HEAP;
        let layout = Layout::from_size_align(bytes + PAGE, 8).expect("a size");
        // SAFETY: the layout is of a table and a page, so its size is not 0.
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
        // SAFETY: `new` allocated it with this layout, and the world, which has the only users, ends here.
        unsafe { dealloc(self.first.as_ptr(), self.layout) }
    }
}

/// Something that happens.
#[derive(Debug)]
enum What {
    Deliver(Packet<'static>),
    Run(u32),
    RunShared(u32),
    Die,
    Pass,
    Task(u32, &'static str),
}

impl What {
    fn label(&self) -> String {
        match self {
            Self::Deliver(packet) => describe(packet),
            Self::Run(qp) => format!("queue pair {qp} is looked after"),
            Self::RunShared(srq) => format!("those who wait for shared queue {srq}"),
            Self::Die => "it is ended".into(),
            Self::Pass => "time passes".into(),
            Self::Task(_, what) => (*what).into(),
        }
    }
}

/// A packet in a line.
fn describe(packet: &Packet<'_>) -> String {
    let (route, mut body) = (&packet.route, format!("{:?}", packet.body));
    body.truncate(60);
    let (from, to) = (route.from_qp, route.to_qp);
    format!("{from:#x} -> {to:#x}, psn {:#x}: {body}", packet.psn)
}

/// Whose turn it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The fabric's: it is done.
    Fabric,
    /// A process's, which has something to do ([`World::task`]).
    Process {
        /// Its slot.
        process: u32,
        /// What.
        task: u32,
    },
}

/// The machine; see the module.
pub struct World {
    /// Device memory.
    pub memory: Memory,
    _mapping: Mapping,
    /// The control plane.
    pub control: RefCell<Control>,
    /// Ports that hear nothing, and are not heard.
    pub cut: RefCell<BTreeSet<u32>>,
    /// Paths that are full, from a port to a port, whatever is under way.
    pub full: RefCell<BTreeSet<(u32, u32)>>,
    /// Packets that arrived, for whoever carries them on: none is kept until there is somewhere to.
    pub carried: RefCell<Option<Vec<Packet<'static>>>>,
    /// Packets under way.
    pub under_way: Cell<usize>,
    /// The most there ever were.
    pub under_way_most: Cell<usize>,
    /// Packets that were ever sent on their way.
    pub sent: Cell<usize>,
    /// How packets go.
    pub path: Cell<Path>,
    /// Events and notifications, in order.
    pub events: RefCell<Vec<(Event, u32)>>,
    /// Completion queues that notified, in order.
    pub notified: RefCell<Vec<u32>>,
    /// Which bug is switched on.
    pub canary: Cell<Option<Canary>>,
    /// When each queue pair last heard a packet, by number.
    pub heard: RefCell<BTreeMap<u32, u64>>,
    /// When something last went wrong.
    pub fault_ns: Cell<u64>,
    /// Faults that happened.
    pub faults: Cell<u64>,
    /// Nothing goes wrong any more.
    pub healed: Cell<bool>,
    engine: RefCell<Engine<What>>,
    hcas: u32,
    processes: RefCell<Vec<Option<Vec<u8>>>>,
    joined: Cell<u32>,
    runs: RefCell<BTreeMap<u32, u64>>,
    in_daemon: Cell<bool>,
    /// Who posts.
    posting: Cell<Option<u32>>,
    /// Who does nothing any more.
    hung: RefCell<BTreeSet<ProcessId>>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("now_ns", &self.now())
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
        let plan = Plan::new(seed, "");
        Self::of_plan(models, models.len(), &plan, &[], Trace::default())
    }

    /// HCAs of these models, so many processes, and what goes wrong with them. In the trace they are
    /// "hca1" and so on, then "process1" and so on.
    pub fn of_plan(
        models: &[ModelName],
        processes: usize,
        plan: &Plan,
        points: &[Point],
        trace: Trace,
    ) -> Self {
        let (mapping, memory) = Mapping::new();
        let hcas = models.iter().map(|model| HcaSetup { model: *model });
        let control = Control::new(
            &memory,
            &Fabric {
                hcas: hcas.collect(),
                ..Fabric::default()
            },
        );
        let mut engine = Engine::new(plan, points, trace);
        for number in 1..=models.len() {
            engine.process(&format!("hca{number}"));
        }
        let world = Self {
            memory,
            _mapping: mapping,
            control: RefCell::new(control),
            cut: RefCell::default(),
            full: RefCell::default(),
            carried: RefCell::default(),
            under_way: Cell::default(),
            under_way_most: Cell::default(),
            sent: Cell::default(),
            path: Cell::new(Path::Whole),
            events: RefCell::default(),
            notified: RefCell::default(),
            canary: Cell::new(None),
            heard: RefCell::default(),
            fault_ns: Cell::new(0),
            faults: Cell::new(0),
            healed: Cell::new(false),
            engine: RefCell::new(engine),
            hcas: models.len() as u32,
            processes: RefCell::default(),
            joined: Cell::new(0),
            runs: RefCell::default(),
            in_daemon: Cell::new(false),
            posting: Cell::new(None),
            hung: RefCell::default(),
        };
        for _ in 0..processes {
            world.join();
        }
        world
    }

    /// One more process.
    pub fn join(&self) -> u32 {
        let mut processes = self.processes.borrow_mut();
        let id = self.joined.get() + 1;
        self.joined.set(id);
        let slot = self.control.borrow_mut().join(&self.memory, id, id);
        let slot = slot.expect("a slot") as usize;
        let mut engine = self.engine.borrow_mut();
        if slot < processes.len() {
            let id = self.id(slot as u32);
            engine.restart(id);
            self.hung.borrow_mut().remove(&id);
        }
        while processes.len() <= slot {
            engine.process(&format!("process{}", processes.len() + 1));
            processes.push(None);
        }
        processes[slot] = Some(Vec::new());
        slot as u32
    }

    /// A process as the engine knows it.
    fn id(&self, process: u32) -> ProcessId {
        ProcessId((self.hcas + process) as u16)
    }

    /// The HCA of a port as the engine knows it.
    fn id_of_port(&self, port: u32) -> ProcessId {
        let port = self.memory.header().ports.get(port as usize);
        let hca = port.map_or(0, |port| port.hca.get());
        ProcessId(hca.min(self.hcas - 1) as u16)
    }

    /// The machines, as a process sees them.
    pub fn hca(&self, process: u32) -> Hca<'_, Self> {
        Hca::new(&self.memory, self, process)
    }

    /// Takes something into the trace's hash.
    pub fn note(&self, numbers: &[u64]) {
        let mut engine = self.engine.borrow_mut();
        for number in numbers {
            engine.trace.content(&number.to_le_bytes());
        }
    }

    /// Lets a process ask the control plane.
    pub fn ask(&self, process: u32, request: &Request) -> Result<Reply, Errno> {
        let hca = self.hca(DAEMON);
        let reply = self.control.borrow_mut().handle(&hca, process, request);
        hca.settle();
        reply
    }

    /// The same, for what has a number.
    pub fn make(&self, process: u32, request: &Request) -> u32 {
        match self.ask(process, request).expect("made") {
            Reply::Made(number) | Reply::Queue(number, _) | Reply::Qp(number, ..) => number,
            Reply::Done => panic!("nothing was made"),
        }
    }

    /// A process dies, and nobody is told.
    pub fn die(&self, process: u32) {
        self.engine.borrow_mut().crash(self.id(process));
        self.fault_ns.set(self.now());
        self.processes.borrow_mut()[process as usize] = None;
    }

    /// A process dies, and the daemon hears of it.
    pub fn kill(&self, process: u32) {
        self.die(process);
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
            stamps: true,
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

    /// Whether a completion queue has something.
    pub fn has_completion(&self, process: u32, cq: u32) -> bool {
        let entry = self.memory.cq(cq);
        entry.is_some_and(|entry| self.hca(process).has_completion(entry))
    }

    /// Writes a process's memory.
    pub fn put(&self, process: u32, at: u64, bytes: &[u8]) {
        let mut processes = self.processes.borrow_mut();
        let memory = processes[process as usize].as_mut().expect("it lives");
        let part = part(memory, at, bytes.len() as u64);
        part.expect("it is its memory").copy_from_slice(bytes);
    }

    /// Reads a process's memory.
    pub fn get(&self, process: u32, at: u64, length: usize) -> Vec<u8> {
        let mut processes = self.processes.borrow_mut();
        let memory = processes[process as usize].as_mut().expect("it lives");
        let part = part(memory, at, length as u64);
        part.expect("it is its memory").to_vec()
    }

    fn at(&self, to: ProcessId, time_ns: u64, what: What) {
        self.engine.borrow_mut().at(to, time_ns, what);
    }

    fn plan_run(&self, qp: u32, at: u64) {
        let mut runs = self.runs.borrow_mut();
        if runs.get(&qp).is_none_or(|planned| *planned > at) {
            runs.insert(qp, at);
            drop(runs);
            let port = self.memory.qp(qp).map_or(0, |qp| qp.port.get());
            self.at(self.id_of_port(port), at, What::Run(qp));
        }
    }

    /// Virtual time, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.engine.borrow().now_ns()
    }

    /// When something happens next.
    pub fn next_at(&self) -> Option<u64> {
        self.engine.borrow().next_ns()
    }

    /// A process has something to do at a time; `what` is for the record.
    pub fn task(&self, process: u32, time_ns: u64, task: u32, what: &'static str) {
        self.at(self.id(process), time_ns, What::Task(task, what));
    }

    /// The same, as soon as it comes to it.
    pub fn task_soon(&self, process: u32, task: u32, what: &'static str) {
        let id = self.id(process);
        let mut engine = self.engine.borrow_mut();
        engine.after(id, 0, What::Task(task, what));
    }

    /// The next thing happens; false if nothing is to come.
    pub fn step(&self) -> bool {
        self.next().is_some()
    }

    /// The same; whose turn it was, or, of a process, is.
    pub fn next(&self) -> Option<Turn> {
        let (id, what) = self.engine.borrow_mut().next(What::label)?;
        let process = u32::from(id.0).checked_sub(self.hcas);
        let hca = self.hca(DAEMON);
        self.in_daemon.set(true);
        match &what {
            What::Deliver(packet) => {
                self.under_way.set(self.under_way.get() - 1);
                self.note(&[packet.psn.into(), packet.route.to_qp.into()]);
                self.heard
                    .borrow_mut()
                    .insert(packet.route.to_qp, self.now());
                if let Some(carried) = &mut *self.carried.borrow_mut() {
                    carried.push(packet.clone());
                }
                hca.deliver(packet);
            }
            &What::Run(qp) => {
                let mut runs = self.runs.borrow_mut();
                if runs.get(&qp) == Some(&self.now()) {
                    runs.remove(&qp);
                }
                drop(runs);
                hca.run(qp);
                let deadline = self
                    .memory
                    .qp(qp)
                    .map_or(0, |qp| qp.requester.deadline_ns.get());
                if deadline > 0 {
                    self.plan_run(qp, deadline.max(self.now()));
                }
            }
            &What::RunShared(srq) => self.control.borrow().receives_shared(&hca, srq),
            What::Die => self.kill(process.unwrap_or(DAEMON)),
            What::Pass | What::Task(..) => {}
        }
        self.in_daemon.set(false);
        Some(match (what, process) {
            (What::Task(task, _), Some(process)) => Turn::Process { process, task },
            _ => Turn::Fabric,
        })
    }

    /// Lets time pass.
    pub fn run_for(&self, ns: u64) {
        let end = self.now() + ns;
        self.at(ProcessId(0), end, What::Pass);
        while self.now() < end {
            self.step();
        }
    }

    /// Lets everything happen that is to come, in bounded time.
    pub fn settle(&self) {
        let end = self.now() + 3600 * 1_000_000_000;
        let mut events = 0;
        while self.step() {
            events += 1;
            let rests = self.now() < end && events < SETTLE_EVENTS;
            assert!(rests, "it does not come to rest");
        }
    }

    /// A process posts, and may die of it: then it is gone.
    pub fn posting<T>(&self, process: u32, post: impl FnOnce(&Hca<'_, Self>) -> T) -> Option<T> {
        self.posting.set(Some(process));
        let posted = panic::catch_unwind(AssertUnwindSafe(|| post(&self.hca(process))));
        self.posting.set(None);
        match posted {
            Ok(posted) => Some(posted),
            Err(cause) if cause.is::<Died>() => {
                self.kill(process);
                None
            }
            Err(cause) => panic::resume_unwind(cause),
        }
    }

    /// A process reaches a fault point; how much later it goes on, if it does.
    pub fn process_at(&self, process: u32, point: &Point) -> Option<u64> {
        let id = self.id(process);
        let hangs = || self.hung.borrow().contains(&id);
        if hangs() {
            return None;
        }
        match self.point(id, point) {
            Some(Kind::Crash(name)) if self.named(&name) == Some(id) => None,
            Some(Kind::Delay(ns)) => Some(ns.min(PATIENCE_NS)),
            _ => (!hangs()).then_some(0),
        }
    }

    fn named(&self, name: &str) -> Option<ProcessId> {
        self.engine.borrow().named(name)
    }

    /// A fault point is reached. What happens to processes and links is done; the rest is left to do.
    fn point(&self, at: ProcessId, point: &Point) -> Option<Kind> {
        if self.healed.get() {
            return None;
        }
        let kind = self.engine.borrow_mut().point(at, point)?;
        self.faults.set(self.faults.get() + 1);
        self.fault_ns.set(self.now());
        match (&kind, kind.process().and_then(|name| self.named(name))) {
            // Not in the middle of somebody's work: it may hold what that needs.
            (Kind::Crash(_), Some(process)) => self.at(process, self.now(), What::Die),
            (Kind::Hang(_), Some(process)) => {
                // Whoever started it loses patience.
                self.at(process, self.now() + PATIENCE_NS, What::Die);
                self.hung.borrow_mut().insert(process);
            }
            (Kind::LinkDown(_), Some(hca)) => {
                self.each_port(hca, |index, port| {
                    port.up.set(0);
                    self.events.borrow_mut().push((Event::PortError, index));
                });
            }
            (Kind::Partition(_), Some(hca)) => {
                self.each_port(hca, |index, _| {
                    self.cut.borrow_mut().insert(index);
                });
            }
            _ => {}
        }
        Some(kind)
    }

    fn each_port(&self, hca: ProcessId, mut act: impl FnMut(u32, &Port)) {
        let header = self.memory.header();
        let count = header.port_count.get();
        for (index, port) in (0..count).zip(&header.ports) {
            if port.hca.get() == u32::from(hca.0) {
                act(index, port);
            }
        }
    }

    /// The fault points that were reached.
    pub fn reached(&self) -> BTreeMap<&'static str, Reached> {
        self.engine.borrow().faults().reached()
    }

    /// Names of HCAs and processes, as in the trace.
    pub fn names(&self) -> Vec<String> {
        self.engine.borrow().names()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.engine.borrow().trace.events()
    }

    /// What each process that lives has used of its memory: it has none from now on.
    pub fn take_memory(&self) -> Vec<Option<Vec<u8>>> {
        let mut processes = self.processes.borrow_mut();
        let memories = processes.iter_mut();
        memories
            .map(|memory| memory.as_mut().map(std::mem::take))
            .collect()
    }

    /// What happened.
    pub fn into_trace(self) -> Trace {
        self.engine.into_inner().trace
    }

    /// Nothing goes wrong any more, and every link is up.
    pub fn heal(&self) {
        self.healed.set(true);
        self.cut.borrow_mut().clear();
        let header = self.memory.header();
        for port in header.ports.iter().take(header.port_count.get() as usize) {
            port.up.set(1);
        }
    }

    /// A call of the host.
    fn called(&self) {
        if let Some(process) = self.posting.get()
            && let Some(Kind::Crash(name)) = self.point(self.id(process), &faults::STEP)
            && self.named(&name) == Some(self.id(process))
        {
            panic::resume_unwind(Box::new(Died));
        }
    }

    fn with<T>(&self, at: Segment, f: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut processes = self.processes.borrow_mut();
        let memory = processes.get_mut(at.process as usize)?.as_mut()?;
        let first = at.address.checked_sub(BASE)?;
        Some(f(part(memory, first, at.length)?))
    }
}

/// A part of a process's memory, which grows up to [`BYTES`] as it is used.
fn part(memory: &mut Vec<u8>, at: u64, length: u64) -> Option<&mut [u8]> {
    let end = at.checked_add(length).filter(|end| *end <= BYTES as u64)? as usize;
    if memory.len() < end {
        memory.resize(end, 0);
    }
    memory.get_mut(at as usize..end)
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
        self.plan_run(qp, self.now());
    }

    fn srq_attention(&self, srq: u32) {
        self.at(ProcessId(0), self.now(), What::RunShared(srq));
    }

    fn path(&self, _from_port: u32, _to_port: u32) -> Path {
        match self.path.get() {
            Path::Packets if !self.in_daemon.get() => Path::Elsewhere,
            path => path,
        }
    }

    fn is_full(&self, from_port: u32, to_port: u32) -> bool {
        self.under_way.get() >= UNDER_WAY_MAX || self.full.borrow().contains(&(from_port, to_port))
    }

    fn transmit(&self, packet: &Packet<'_>) {
        let Some(packet) = packet.to_owned(self) else {
            return;
        };
        let route = packet.route;
        let (from, to) = (
            self.id_of_port(route.from_port),
            self.id_of_port(route.to_port),
        );
        let point = match packet.is_response() {
            true => &faults::RESPONSE,
            false => &faults::PACKET,
        };
        let kind = self.point(from, point);
        let lost = match kind {
            Some(Kind::Drop) => true,
            Some(Kind::Corrupt(bit)) => !survives(&packet, bit),
            _ => false,
        };
        let (header, cut) = (self.memory.header(), self.cut.borrow());
        let ports = [route.from_port, route.to_port];
        if lost
            || ports
                .iter()
                .any(|port| !header.is_up(*port) || cut.contains(port))
        {
            return;
        }
        let count = 1 + usize::from(kind == Some(Kind::Duplicate));
        self.sent.set(self.sent.get() + count);
        self.under_way.set(self.under_way.get() + count);
        let most = self.under_way_most.get().max(self.under_way.get());
        self.under_way_most.set(most);
        let lane = u64::from(route.from_qp) << 32 | u64::from(route.to_qp);
        let mut engine = self.engine.borrow_mut();
        match kind {
            Some(Kind::Reorder) => engine.send_out_of_order(from, to, What::Deliver(packet)),
            Some(Kind::Duplicate) => {
                engine.after(to, COPY_NS, What::Deliver(packet.clone()));
                engine.send(from, to, lane, What::Deliver(packet));
            }
            Some(Kind::Delay(ns)) => {
                // No switch keeps a packet longer (its head-of-queue lifetime limit).
                engine.send_late(from, to, lane, ns.min(PATIENCE_NS), What::Deliver(packet));
            }
            _ => engine.send(from, to, lane, What::Deliver(packet)),
        }
    }

    fn is_dead(&self, process: u32) -> bool {
        let processes = self.processes.borrow();
        processes.get(process as usize).is_some_and(Option::is_none)
    }

    fn has(&self, canary: Canary) -> bool {
        self.canary.get() == Some(canary)
    }

    fn now_ns(&self) -> u64 {
        self.called();
        self.now()
    }
}
