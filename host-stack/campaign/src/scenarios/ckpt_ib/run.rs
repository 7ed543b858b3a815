//! One run of a plan: programs work and are checkpointed while things go wrong; then nothing goes wrong any more, and all
//! come to their end.

use std::{
    collections::BTreeSet,
    fmt::Write,
    hash::{Hash, Hasher},
};

use snaprig_ckpt_ib::{
    Below, Completion, Name, Names,
    behind::Behind,
    completions::{Completions, SUCCESS},
    cookie::{Cookie, Queue},
    process::{self, Process},
    queue_pair::{QueuePair, Service, Stage},
    receives::{Fate, Receives},
    serve,
};
use snaprig_hca::{Opcode, State, Transport, faults as of_hcas, post::PostError, testing::World};
use snaprig_sim::{Kind as FaultKind, Plan, Random};
use xxhash_rust::xxh3::Xxh3;

use super::{
    super::verbs::work::{Task, Work},
    Bug, POINTS, Parameters,
    check::{self, Weather},
    hardware::{Driver, FIRST_KEYS, Fabric, Hardware, Receive, XRC, in_region, port},
    invariants::COMPLETIONS,
    job::Job,
    program::{End, Had, Layout, Program, RECEIVE, Request, Which, is_receive, posted},
};
use crate::{
    caught::caught,
    scenario::{Ending, Outcome, Until, Watch, invariant::RDMA},
};

/// A run that makes more events than this does not come to rest.
const EVENTS_MAX: u64 = 200_000;
/// No fault happens after so many events: that there is progress can be asked only of what is left alone.
const FAULTS_UNTIL: u64 = 30_000;
/// A program looks into its memory this often, so many times a life.
const LOOK_NS: u64 = 4_000;
const LOOKS: u32 = 100;
/// Most regions of a process.
const REGIONS_MAX: usize = 3;

/// A process of the job, in this life.
pub struct Member {
    pub process: Process<Request, Receive>,
    pub program: Program,
    pub hardware: Hardware,
    /// The program is kept out of verbs.
    pub is_closed: bool,
    /// What it would have done meanwhile.
    pub deferred: Vec<u32>,
    is_polling: bool,
    looks: u32,
}

impl Member {
    pub fn new(process: Process<Request, Receive>, program: Program, hardware: Hardware) -> Self {
        Self {
            process,
            program,
            hardware,
            is_closed: false,
            deferred: Vec::new(),
            is_polling: false,
            looks: 0,
        }
    }

    /// Where its receives for a connection are posted.
    pub fn queue(&self, qp: u32) -> Queue {
        let pair = self.process.qps.get(qp as usize).and_then(Option::as_ref);
        pair.map_or(Queue::Receives(qp), |pair| pair.receive_queue(qp))
    }
}

pub struct Run {
    pub fabric: Fabric,
    pub layout: Layout,
    pub members: Vec<Member>,
    pub names: Names,
    pub job: Job,
    pub random: Random,
    pub violations: Vec<(&'static str, String)>,
    pub hcas: u32,
    pub canary: Option<snaprig_ckpt_ib::Canary>,
    weather: Weather,
    states: Option<BTreeSet<u64>>,
    until: Option<Until>,
}

/// Runs a plan to its end, or to where it is to be looked at.
pub fn run(plan: &Plan, parameters: &Parameters, watch: Watch<Bug>) -> Outcome<()> {
    Run::new(plan, parameters, watch).finish()
}

fn weather(plan: &Plan, work: &Work) -> Weather {
    let is_harmless = |kind: &FaultKind| matches!(kind, FaultKind::Crash(_) | FaultKind::Hang(_));
    let overtakes = |kind: &FaultKind| matches!(kind, FaultKind::Duplicate | FaultKind::Reorder);
    Weather {
        is_calm: plan.faults.iter().all(|fault| is_harmless(&fault.kind)) && !work.switches,
        is_strange: work.switches || plan.faults.iter().any(|fault| overtakes(&fault.kind)),
    }
}

impl Run {
    fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Bug>) -> Self {
        let work = Work::new(plan, &parameters.of_verbs());
        let weather = weather(plan, &work);
        let count = usize::from(parameters.processes);
        let world = World::of_plan(&work.models, count, plan, &POINTS, watch.trace);
        world.path.set(work.path);
        let canary = watch.canary.map(|Bug(planted)| planted);
        let mut random = Random::new(plan.seed, "checkpoints");
        let layout = Layout::new(work, count, &mut random, &mut Random::new(plan.seed, "xrc"));
        let orders = (0..parameters.checkpoints).map(|_| random.below(1500));
        let mut run = Self {
            fabric: Fabric::new(world),
            layout,
            members: Vec::new(),
            names: Names::new([], canary),
            job: Job::new(orders.collect()),
            random,
            violations: Vec::new(),
            hcas: parameters.hcas.into(),
            canary,
            weather,
            states: watch.is_counting.then(BTreeSet::new),
            until: watch.until,
        };
        let first_keys = run.first_keys();
        run.fabric.forget(first_keys);
        run.launch();
        run
    }

    /// All processes begin.
    pub fn launch(&mut self) {
        self.names = Names::new([], self.canary);
        self.members.clear();
        let count = self.layout.used.len();
        for member in 0..count {
            let slot = match self.job.is_first_life() {
                true => member as u32,
                false => self.fabric.world.join(),
            };
            let hca = member as u32 % self.hcas;
            let mut hardware = Hardware::new(&self.fabric, slot, hca);
            let mut process = Process {
                canary: self.canary,
                ..Process::default()
            };
            process::put(&mut process.cqs, Completions::default());
            process::put(&mut process.shared, Receives::default());
            process::put(&mut process.shared, Receives::default());
            let program = Program {
                done: vec![false; self.layout.work.tasks.len()],
                keys: vec![hardware.register(&self.fabric, 0)],
                port: port(hca),
                ..Program::default()
            };
            self.members.push(Member::new(process, program, hardware));
            for which in self.layout.ends_of(member) {
                self.offer(member, which);
            }
        }
        for connection in 0..self.layout.work.connections.len() {
            if !self.layout.is_late[connection] {
                self.connect(connection);
            }
        }
        for member in 0..count {
            self.schedule(member);
        }
    }

    /// What waits for no receive finds them there: whoever is kept out posts none.
    fn post_unreliable(&mut self, connection: usize) {
        for index in 0..self.layout.work.tasks.len() {
            if let (_, Task::Receive(of, side)) = self.layout.work.tasks[index]
                && let which = (Which { connection, side })
                && of == connection
                && self.layout.transport(which) != Transport::Rc
            {
                let member = self.layout.process(which);
                self.members[member].program.done[index] = true;
                self.receive(member, which);
            }
        }
    }

    /// Where keys begin, by HCA.
    pub fn first_keys(&mut self) -> Vec<u32> {
        let hcas = 0..self.hcas;
        hcas.map(|_| 1 + self.random.below(FIRST_KEYS) as u32)
            .collect()
    }

    /// A program makes its end of a connection, under a name that is nobody's.
    fn create(&mut self, which: Which) {
        let (transport, receives) = self.layout.transports(which);
        let member = self.layout.process(which);
        if receives.is_some() {
            self.share(member);
        }
        let (qp, name) = self.create_one(member, which, transport);
        let (by, by_name) = match receives {
            Some(transport) => self.create_one(member, which, transport),
            None => (qp, name),
        };
        let end = End {
            which,
            qp,
            name,
            by,
            by_name,
            sent: 0,
            posted: 0,
            done: Vec::new(),
            had: Vec::new(),
            flushed: Vec::new(),
            found: vec![0; self.layout.messages(which.peer()).len()],
            brought: Vec::new(),
        };
        self.members[member].program.ends.push(end);
    }

    /// A program makes a queue pair; its place, and its name.
    fn create_one(&mut self, member: usize, which: Which, transport: Transport) -> (u32, Name) {
        let is_shared = self.layout.connection(which).shared;
        let (names, one) = (&self.names, &mut self.members[member]);
        let port = one.program.port;
        let is_given = |real: Name| names.is_given(port, real.number);
        let hardware = &mut one.hardware;
        let real = hardware.create_new(&self.fabric, transport, is_shared, is_given);
        let name = Name { port, ..real };
        let service = match transport {
            Transport::Ud => Service::Datagram,
            Transport::Uc => Service::Unreliable,
            _ => Service::Reliable,
        };
        let mut pair = QueuePair::new(name, service, is_shared.then_some(0));
        // All here are shorter than programs want them.
        pair.limit_sends(hardware.sends_max());
        let qp = process::put(&mut one.process.qps, pair);
        hardware.call(&self.fabric, qp, name);
        (qp, name)
    }

    /// A program makes its shared receive queue of XRC, if it has none, under a number that is nobody's.
    fn share(&mut self, member: usize) {
        let (names, one) = (&self.names, &mut self.members[member]);
        let port = one.program.port;
        if one.hardware.xrc.is_none() {
            let is_given = |number| names.is_shared_given(port, number);
            let number = one.hardware.share(&self.fabric, is_given);
            one.process
                .behind
                .insert(XRC, Behind::new(Name { port, number }));
        }
    }

    /// Brings the queue pairs of an end to a state, and, of its first connection, to each other.
    fn raise(&mut self, which: Which, to: State) {
        for (place, peer) in self.pairs(which) {
            let member = self.layout.process(which);
            self.driver(member).raise(place, which, peer, to);
        }
    }

    /// Places of the queue pairs of an end, and what they are connected to.
    pub fn pairs(&self, which: Which) -> Vec<(u32, Name)> {
        let (end, peer) = (self.end(which), self.end(which.peer()));
        let mut both = vec![(end.qp, peer.by_name)];
        if end.by != end.qp {
            both.push((end.by, peer.name));
        }
        both
    }

    /// Two programs connect.
    fn connect(&mut self, connection: usize) {
        let sides = [0, 1].map(|side| Which { connection, side });
        for which in sides {
            self.create(which);
        }
        for which in sides {
            let (end, peer) = (self.end(which).clone(), self.end(which.peer()).clone());
            let member = self.layout.process(which);
            let transport = self.layout.transport(which);
            // Of most, both are one.
            for (place, peer) in [(end.by, peer.name), (end.qp, peer.by_name)] {
                if let Some(pair) = self.members[member].process.qp(place) {
                    pair.peer = (transport != Transport::Ud).then_some(peer);
                    pair.stage = Stage::Sends;
                }
            }
            self.raise(which, State::Rts);
        }
        self.post_unreliable(connection);
    }

    fn is_connected(&self, connection: usize) -> bool {
        let which = Which {
            connection,
            side: 0,
        };
        let ends = &self.members[self.layout.process(which)].program.ends;
        ends.iter().any(|end| end.which == which)
    }

    /// What a peer reads is there before.
    fn offer(&mut self, member: usize, which: Which) {
        let from = which.peer();
        let messages = self.layout.messages(from).iter().enumerate();
        let reads = messages.filter(|(_, message)| message.opcode == Opcode::Read);
        for (number, _) in reads {
            let at = self.layout.place(from, number).remote;
            let data = self.layout.data(from, number);
            self.members[member].hardware.write(&self.fabric, at, &data);
        }
    }

    pub fn end(&self, which: Which) -> &End {
        let member = &self.members[self.layout.process(which)];
        let mut ends = member.program.ends.iter();
        ends.find(|end| end.which == which).expect("it is made")
    }

    pub fn driver(&mut self, member: usize) -> Driver<'_> {
        self.split(member).1
    }

    /// The machines of a process, and what is below them.
    pub fn split(&mut self, member: usize) -> (&mut Process<Request, Receive>, Driver<'_>) {
        let Member {
            process, hardware, ..
        } = &mut self.members[member];
        let driver = Driver {
            fabric: &self.fabric,
            layout: &self.layout,
            names: &self.names,
            me: hardware,
        };
        (process, driver)
    }

    // What a process does, by number: tasks of the plan, those that are late, and the others.

    fn look_task(&self) -> u32 {
        self.layout.work.tasks.len() as u32 * 2
    }

    fn poll_task(&self) -> u32 {
        self.look_task() + 1
    }

    pub fn phase_task(&self) -> u32 {
        self.look_task() + 2
    }

    /// What a program has still to do, as far apart as the plan has it.
    pub fn schedule(&mut self, member: usize) {
        let world = &self.fabric.world;
        let (slot, now) = (self.members[member].hardware.slot(), world.now());
        let mut first = None;
        for (index, (at, task)) in self.layout.work.tasks.iter().enumerate() {
            let is_own = match *task {
                Task::Send(connection, side)
                | Task::Receive(connection, side)
                | Task::Drain(connection, side, _) => {
                    self.layout.process(Which { connection, side }) == member
                }
                Task::Path(_) => member == 0,
            };
            if is_own && !self.members[member].program.done[index] {
                let first = *first.get_or_insert(*at);
                world.task(slot, now + (at - first), index as u32 * 2, "it works");
            }
        }
        self.look_later(member);
    }

    fn look_later(&mut self, member: usize) {
        let task = self.look_task();
        let one = &mut self.members[member];
        if one.looks < LOOKS {
            one.looks += 1;
            let world = &self.fabric.world;
            let at = world.now() + LOOK_NS;
            world.task(one.hardware.slot(), at, task, "it looks into its memory");
        }
    }

    /// A process does what is due; or later, or never, if a fault has it so.
    pub fn take_turn(&mut self, slot: u32, number: u32) {
        let is_its = |one: &Member| one.hardware.slot() == slot;
        let is_phase = number == self.phase_task();
        let leaving = self.job.moving.iter_mut();
        let mut leaving = leaving.flat_map(|moving| &mut moving.left);
        if let Some((_, one)) = leaving.find(|(_, one)| is_its(one))
            && !is_phase
        {
            return one.deferred.push(number);
        }
        let Some(member) = self.members.iter().position(is_its) else {
            return;
        };
        if number == self.phase_task() {
            return self.phase_turn(member);
        }
        if self.members[member].is_closed {
            return self.members[member].deferred.push(number);
        }
        if number == self.look_task() {
            self.look(member);
            return self.look_later(member);
        }
        let is_poll = number == self.poll_task();
        let point = match is_poll {
            true => &of_hcas::POLL,
            false => &of_hcas::POST,
        };
        let is_late = !is_poll && !number.is_multiple_of(2);
        let late_ns = match is_late {
            false => self.fabric.world.process_at(slot, point),
            true => Some(0),
        };
        match late_ns {
            None => {}
            Some(0) if is_poll => self.poll(member),
            Some(0) => self.work(member, number as usize / 2),
            Some(late_ns) => {
                let at = self.fabric.world.now().saturating_add(late_ns);
                let again = if is_poll { number } else { number | 1 };
                self.fabric.world.task(slot, at, again, "it is late");
            }
        }
    }

    fn work(&mut self, member: usize, index: usize) {
        let (_, task) = self.layout.work.tasks[index];
        if self.members[member].program.done[index] {
            return;
        }
        if let Task::Send(connection, _)
        | Task::Receive(connection, _)
        | Task::Drain(connection, ..) = task
            && !self.is_connected(connection)
        {
            let is_kept_out = |side| {
                let peer = self.layout.process(Which { connection, side });
                self.members[peer].is_closed
            };
            if [0, 1].into_iter().any(is_kept_out) {
                let world = &self.fabric.world;
                let slot = self.members[member].hardware.slot();
                let number = index as u32 * 2 + 1;
                return world.task(slot, world.now() + LOOK_NS, number, "its peer is kept out");
            }
            self.connect(connection);
        }
        if std::mem::replace(&mut self.members[member].program.done[index], true) {
            return;
        }
        match task {
            Task::Send(connection, side) => {
                self.register(member);
                self.send(member, Which { connection, side });
            }
            Task::Receive(connection, side) => self.receive(member, Which { connection, side }),
            Task::Path(path) => self.fabric.world.path.set(path),
            Task::Drain(connection, side, is_on) => {
                if !is_on {
                    self.drop_late_drains(member, connection, side);
                }
                self.hold(member, Which { connection, side }, is_on);
            }
        }
    }

    /// Whoever comes to drain a send queue after it was to go on does not any more.
    fn drop_late_drains(&mut self, member: usize, connection: usize, side: usize) {
        for (index, (_, task)) in self.layout.work.tasks.iter().enumerate() {
            if matches!(task, Task::Drain(of, at, true) if (*of, *at) == (connection, side)) {
                self.members[member].program.done[index] = true;
            }
        }
    }

    /// A program has its send queue drained, or go on.
    fn hold(&mut self, member: usize, which: Which, is_on: bool) {
        let qp = self.members[member].program.end(which).qp;
        let (process, mut driver) = self.split(member);
        let Some(pair) = process.qp(qp) else {
            return;
        };
        match (pair.stage, is_on) {
            (Stage::Sends, true) => {
                pair.stage = Stage::Holds;
                driver.drain(qp);
            }
            (Stage::Holds, false) => {
                pair.stage = Stage::Sends;
                driver.go_on(qp).expect("it was drained");
                self.release(member, qp);
            }
            _ => {}
        }
    }

    /// What is held of a send queue goes below, as far as there is room.
    fn release(&mut self, member: usize, qp: u32) {
        let (process, driver) = self.split(member);
        let Some(pair) = process.qp(qp) else {
            return;
        };
        while let Some((number, posted)) = pair.sends.release() {
            let (request, kind, is_signaled) =
                (posted.request.clone(), posted.kind, posted.signaled);
            let is_signaled = is_signaled || pair.sends.asks(number);
            if let Some(to) = kind.receiver(request.to) {
                pair.count_sent(to);
            }
            let cookie = Cookie {
                queue: Queue::Sends(qp),
                own: false,
                number,
            };
            match driver.send(qp, &request, is_signaled, cookie) {
                Some(done) => assert_eq!(done, Ok(())),
                // It has died of it.
                None => return,
            }
        }
    }

    /// Now and then, a program registers more memory, under a name that is nobody's.
    fn register(&mut self, member: usize) {
        let one = &mut self.members[member];
        let region = one.program.keys.len();
        if region >= REGIONS_MAX || !self.random.one_in(8) {
            return;
        }
        let key = loop {
            let key = one.hardware.register(&self.fabric, region);
            if !self.names.is_key_given(one.program.port, key) {
                break key;
            }
            one.hardware.deregister(&self.fabric, key);
        };
        one.program.keys.push(key);
    }

    fn send(&mut self, member: usize, which: Which) {
        let number = self.members[member].program.end(which).sent;
        let Some(message) = self.layout.messages(which).get(number).cloned() else {
            return;
        };
        let place = self.layout.place(which, number);
        let data = self.layout.data(which, number);
        if !message.opcode.fetches() {
            let hardware = &mut self.members[member].hardware;
            hardware.write(&self.fabric, place.local, &data);
        }
        let peer = self.layout.process(which.peer());
        let keys = &self.members[peer].program.keys;
        let region = self.random.below(keys.len() as u64) as usize;
        let request = Request {
            which,
            message: number,
            opcode: message.opcode,
            length: message.length,
            remote: in_region(region, place.remote),
            remote_key: keys[region],
            to: self.end(which.peer()).by_name,
            shared: self.layout.is_xrc(which).then(|| {
                let behind = &self.members[peer].process.behind[&XRC];
                behind.name.number
            }),
            inline: message.inline.then_some(data),
            fenced: message.fenced,
            local: place.local,
        };
        let end = self.members[member].program.end(which);
        end.sent += 1;
        let qp = end.qp;
        let to = request.to;
        let entry = posted(&message, request.clone());
        let (process, driver) = self.split(member);
        let Some(pair) = process.qp(qp) else {
            return;
        };
        if pair.stage == Stage::Holds || pair.sends.is_holding() {
            pair.sends.hold(entry);
            return self.release_all(member);
        }
        if let Some(to) = entry.kind.receiver(to) {
            pair.count_sent(to);
        }
        let number = pair.sends.post(entry);
        let cookie = Cookie {
            queue: Queue::Sends(qp),
            own: false,
            number,
        };
        let is_signaled = message.signaled || pair.sends.asks(number);
        let done = driver.send(qp, &request, is_signaled, cookie);
        assert!(
            matches!(done, None | Some(Ok(()) | Err(PostError::WrongState))),
            "{done:?}"
        );
        // Nobody tells of it: now and then, a checkpoint is ordered just then.
        let is_silent = !message.signaled && !message.takes_receive();
        if is_silent && self.random.one_in(8) {
            self.job.order_now();
        }
    }

    fn receive(&mut self, member: usize, which: Which) {
        let one = &mut self.members[member];
        let end = one.program.end(which);
        let (number, qp) = (end.posted, end.qp);
        let Some(at) = self.layout.receives(which).get(number).copied() else {
            return;
        };
        end.posted += 1;
        let queue = match self.layout.is_xrc(which) {
            true => Queue::Shared(XRC),
            false => one.queue(qp),
        };
        let wr_id = match queue {
            Queue::Shared(_) => {
                one.program.shared.push((which, number));
                one.program.shared.len() as u64 - 1
            }
            _ => number as u64,
        };
        let (process, mut driver) = self.split(member);
        let Some(receives) = process.receives(queue) else {
            return;
        };
        if let Fate::Below(number) = receives.post(wr_id | RECEIVE, |receive| *receive = at) {
            let cookie = Cookie {
                queue,
                own: false,
                number,
            };
            let has_room = driver.receive(&at, cookie).expect("it may");
            assert!(has_room || receives.no_room(number), "one has room");
        }
        self.serve(member, queue);
    }

    /// Receives that wait are served, or posted.
    pub fn serve(&mut self, member: usize, queue: Queue) {
        let (process, mut driver) = self.split(member);
        serve::serve(process, &mut driver, queue).expect("one has room");
        self.poll_soon(member);
    }

    /// Whoever has completions polls soon.
    fn plan_polls(&mut self) {
        for member in 0..self.members.len() {
            let has_put_by =
                |one: &Member| one.process.cqs.iter().flatten().any(|cq| !cq.is_empty());
            if !self.members[member].is_closed
                && (has_put_by(&self.members[member]) || self.driver(member).has_completion())
            {
                self.poll_soon(member);
            }
        }
    }

    fn poll_soon(&mut self, member: usize) {
        let task = self.poll_task();
        let one = &mut self.members[member];
        if !one.is_polling && self.fabric.world.lives(one.hardware.slot()) {
            one.is_polling = true;
            let slot = one.hardware.slot();
            self.fabric.world.task_soon(slot, task, "ibv_poll_cq");
        }
    }

    /// The program takes all completions that there are.
    fn poll(&mut self, member: usize) {
        self.members[member].is_polling = false;
        self.look(member);
        if self.members[member].hardware.is_narrow && self.random.one_in(2) {
            self.make_room(member);
        }
        // It may die of what is posted meanwhile.
        while self.lives(member) {
            let (process, mut driver) = self.split(member);
            if let Some(completion) = process.cq(0).and_then(Completions::take) {
                self.sees(member, &completion);
                continue;
            }
            let Some(came) = driver.poll(0) else {
                return self.release_all(member);
            };
            let queue = came.0.cookie.queue;
            serve::settle(process, &mut driver, 0, came);
            serve::serve(process, &mut driver, queue).expect("one has room");
        }
    }

    /// Makes room in short send queues, now and then before the program polls, which finds completions that were put by then.
    fn make_room(&mut self, member: usize) {
        let (process, mut driver) = self.split(member);
        while let Some(came) = driver.poll(0) {
            serve::settle(process, &mut driver, 0, came);
        }
        self.release_all(member);
        // Unless it has died of it.
        if self.lives(member) {
            self.serve_all(member);
        }
    }

    /// What is held goes below, but for what the program holds back; of a queue pair that has failed, it is flushed there.
    pub fn release_all(&mut self, member: usize) {
        let goes = |(place, pair): (u32, &QueuePair<_, _>)| {
            (pair.sends.is_holding() && pair.stage != Stage::Holds).then_some(place)
        };
        let all: Vec<u32> = self.members[member]
            .process
            .each_qp()
            .filter_map(goes)
            .collect();
        for place in all {
            self.release(member, place);
        }
    }

    /// The program sees a completion.
    fn sees(&mut self, member: usize, completion: &Completion) {
        let layout = &self.layout;
        let world = &self.fabric.world;
        let one = &mut self.members[member];
        let slot = one.hardware.slot();
        let shared = one.program.shared.clone();
        let Some(end) = one.program.end_of(completion.qp) else {
            self.violations.push((
                COMPLETIONS,
                format!("a completion of queue pair {:#x}", completion.qp),
            ));
            return;
        };
        let qp = end.qp;
        if !is_receive(completion) {
            end.done.push((completion.wr_id, completion.status));
            let message = completion.wr_id as usize;
            let asked = layout.messages(end.which).get(message);
            if let Some(asked) = asked
                && asked.opcode.fetches()
                && completion.status == SUCCESS
            {
                let at = layout.place(end.which, message).local;
                let bytes = world.get(slot, at, asked.length as usize);
                end.brought.push((message, bytes));
            }
            return;
        }
        if completion.status != SUCCESS {
            end.flushed.push(completion.wr_id);
            return;
        }
        let index = (completion.wr_id & !RECEIVE) as usize;
        let is_shared = layout.is_xrc(end.which)
            || one.process.qp(qp).is_some_and(|pair| pair.shared.is_some());
        let end = one.program.end_of(completion.qp).expect("it was there");
        let (which, index) = match is_shared {
            true => shared[index],
            false => (end.which, index),
        };
        let at = layout.receives(which)[index];
        end.had.push(Had {
            wr_id: completion.wr_id,
            opcode: completion.opcode,
            length: completion.length,
            immediate: completion.immediate,
            data: world.get(slot, at, completion.length as usize),
        });
    }

    /// A program looks into its memory: what peers have written there, it takes out and wipes.
    fn look(&mut self, member: usize) {
        let world = &self.fabric.world;
        let layout = &self.layout;
        let one = &mut self.members[member];
        let slot = one.hardware.slot();
        for end in &mut one.program.ends {
            let from = end.which.peer();
            if layout.transport(from) != Transport::Rc {
                continue;
            }
            for (number, message) in layout.messages(from).iter().enumerate() {
                let is_write = matches!(message.opcode, Opcode::Write | Opcode::WriteImm);
                if !is_write || message.length == 0 {
                    continue;
                }
                let at = layout.place(from, number).remote;
                let length = message.length as usize;
                let last = world.get(slot, at + length as u64 - 1, 1);
                if last == [0] {
                    continue;
                }
                end.found[number] += 1;
                let bytes = world.get(slot, at, length);
                let who = format!("write {number} of {from:?}");
                if end.found[number] > 1 {
                    self.violations.push((RDMA, format!("{who} came again")));
                } else if bytes != layout.data(from, number) {
                    self.violations.push((RDMA, format!("{who} is damaged")));
                }
                one.hardware.write(&self.fabric, at, &vec![0; length]);
            }
        }
    }

    /// Runs until nothing is to come any more; whether it comes to rest.
    fn rest(&mut self) -> bool {
        while let Some(turn) = self.fabric.world.next() {
            if let snaprig_hca::testing::Turn::Process { process, task } = turn {
                self.take_turn(process, task);
            }
            self.tend();
            self.plan_polls();
            if self.states.is_some() {
                let state = self.state();
                self.states.get_or_insert_default().insert(state);
            }
            let events = self.fabric.world.events();
            if events > FAULTS_UNTIL {
                self.fabric.world.healed.set(true);
            }
            if self.is_enough(events) {
                break;
            }
            if events > EVENTS_MAX {
                return false;
            }
        }
        true
    }

    fn is_enough(&self, events: u64) -> bool {
        match &self.until {
            None => false,
            Some(Until::Event(count)) => events >= *count,
            Some(Until::Point(name)) => self.fabric.world.reached().contains_key(name.as_str()),
            Some(Until::Now) => true,
        }
    }

    fn finish(mut self) -> Outcome<()> {
        let is_stopped = self.until.is_some();
        let rested = caught(|| {
            let mut rests = self.rest();
            if !is_stopped && rests {
                self.fabric.world.heal();
                self.job.is_last = true;
                self.tend();
                rests = self.rest();
                for member in 0..self.members.len() {
                    self.look(member);
                }
            }
            rests
        });
        let ending = match rested {
            Err(panic) => Ending::Crashed(panic),
            Ok(false) => Ending::Endless,
            Ok(true) if is_stopped => Ending::Finished,
            Ok(true) => match self.waits() {
                Some(who) => Ending::Stuck(who),
                None => {
                    self.check();
                    Ending::Finished
                }
            },
        };
        let description = is_stopped.then(|| self.describe());
        let world = self.fabric.world;
        let reached = world.reached().into_iter();
        let reached = reached.map(|(name, reached)| (name, reached.times, reached.faults));
        Outcome {
            ending,
            violations: self.violations,
            leftovers: Vec::new(),
            faults: world.faults.get(),
            loud_faults: 0,
            states: self.states.unwrap_or_default(),
            reached: reached.collect(),
            now_ns: world.now(),
            processes: world.names(),
            trace: world.into_trace(),
            description,
            end: (),
        }
    }

    /// Who has still something to do when nothing is to come any more.
    fn waits(&self) -> Option<String> {
        if let Some(round) = self.job.waits() {
            return Some(round);
        }
        self.members.iter().enumerate().find_map(|(number, one)| {
            if one.program.ends.len() < self.layout.ends_of(number).len() {
                return Some(format!("process{}: a connection is not made", number + 1));
            }
            let ends = one.program.ends.iter();
            let mut short = ends.filter(|end| {
                let is_reliable = self.layout.transport(end.which) == Transport::Rc;
                let all = self.layout.messages(end.which).len();
                end.sent < all || is_reliable && self.is_short(end)
            });
            let end = short.next()?;
            Some(format!("process{}: {:?} waits", number + 1, end.which))
        })
    }

    /// Whether a completion is still to come on a connection that has not failed.
    fn is_short(&self, end: &End) -> bool {
        let peer = self.end(end.which.peer());
        let failed = |end: &End| {
            !end.flushed.is_empty() || end.done.iter().any(|(_, status)| *status != SUCCESS)
        };
        if failed(end) || failed(peer) {
            return false;
        }
        let messages = self.layout.messages(end.which);
        let signaled = messages.iter().filter(|message| message.signaled);
        let to_come = self.layout.taking(end.which.peer()).len();
        end.done.len() < signaled.count() || end.had.len() < to_come
    }

    fn check(&mut self) {
        for member in 0..self.members.len() {
            for end in self.members[member].program.ends.clone() {
                let peer = self.end(end.which.peer());
                let broken = check::at_the_end(&self.layout, &end, peer, self.weather);
                let has_failed = |end: &End| end.done.iter().any(|(_, status)| *status != SUCCESS);
                let counts = !has_failed(peer) && self.layout.transport(end.which) == Transport::Rc;
                self.violations.extend(broken);
                let from = end.which.peer();
                let adds = self.layout.messages(from).iter();
                let adds = adds
                    .filter(|message| message.opcode == Opcode::FetchAdd)
                    .count();
                let at = self.layout.counter(end.which);
                let slot = self.members[member].hardware.slot();
                let count = self.fabric.world.get(slot, at, 8);
                let count = u64::from_ne_bytes(count.try_into().expect("8 bytes"));
                if counts && count != adds as u64 {
                    let what = format!(
                        "{adds} were added to the counter of {:?}: {count}",
                        end.which
                    );
                    self.violations.push((RDMA, what));
                }
            }
        }
    }

    /// Everybody, as they are.
    fn describe(&self) -> String {
        let mut text = format!(
            "at {} ns: {}\n",
            self.fabric.world.now(),
            self.job.describe()
        );
        for (number, one) in self.members.iter().enumerate() {
            for end in &one.program.ends {
                let pair = one
                    .process
                    .qps
                    .get(end.qp as usize)
                    .and_then(Option::as_ref);
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "process{} {:?} {}: {} sent, {} completed, {} receives posted, {} had\n  {pair:?}",
                    number + 1,
                    end.which,
                    end.name,
                    end.sent,
                    end.done.len(),
                    end.posted,
                    end.had.len(),
                );
            }
        }
        text
    }

    /// What would happen next depends on this, and on nothing else but numbers and times.
    fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        self.job.describe().hash(&mut hash);
        for one in &self.members {
            one.is_closed.hash(&mut hash);
            for (_, pair) in one.process.each_qp() {
                let sends = pair.sends.outstanding().count();
                let receives = pair.receives.below();
                (pair.stage as u8, sends, receives).hash(&mut hash);
            }
        }
        hash.finish()
    }
}
