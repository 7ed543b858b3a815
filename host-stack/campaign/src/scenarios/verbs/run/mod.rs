//! A plan's work on a simulated fabric, to its end.

mod end;

use std::{
    collections::BTreeSet,
    fmt::Write,
    hash::{Hash, Hasher},
};

use snaprig_hca::{
    Opcode, SendFlags, State,
    control::Request,
    faults,
    post::Data,
    queue::{Destination, Send},
    requester_timeout_ns, rnr_timer_ns,
    testing::{BASE, BYTES, End, Link, Node, Turn, World},
    types::completed,
};
use snaprig_sim::{Kind, Plan};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Ended, GRH_BYTES, Memories, Parameters, Sent, Side,
    canary::Bug,
    data_of,
    work::{Connection, LONGEST, Message, Task, Work},
};
use crate::{
    caught::caught,
    scenario::{Ending, Outcome, Until, Watch},
};

/// A run that makes more events than this does not come to rest.
const EVENTS_MAX: u64 = 100_000;
/// No fault happens after so many events: that there is progress can be asked only of what is left
/// alone.
const FAULTS_UNTIL: u64 = EVENTS_MAX / 2;
/// How long timers and packets may take beside what a queue pair's attributes say.
const SLACK_NS: u64 = 1_000_000;

/// One end of a connection at work.
struct Peer {
    side: Side,
    node: Node,
    end: End,
    peer_end: End,
    peer_node: Node,
    to_send: std::vec::IntoIter<Message>,
    shared: Option<u32>,
    link: Link,
}

struct Run {
    world: World,
    work: Work,
    nodes: Vec<Node>,
    connections: Vec<[Peer; 2]>,
    /// Memory in use of each process.
    used: Vec<u64>,
    /// Who is about to poll.
    polls: Vec<bool>,
    states: Option<BTreeSet<u64>>,
    until: Option<Until>,
}

/// Runs a plan to its end, or to where it is to be looked at.
pub fn run(plan: &Plan, parameters: &Parameters, watch: Watch<Bug>) -> Outcome<Ended> {
    let run = Run::new(plan, parameters, watch);
    match run.until {
        None => run.finish(plan),
        Some(_) => run.stop(),
    }
}

impl Run {
    fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Bug>) -> Self {
        let work = Work::new(plan, parameters);
        let processes = u32::from(parameters.workload.processes);
        let world = World::of_plan(
            &work.models,
            processes as usize,
            plan,
            faults::ALL,
            watch.trace,
        );
        world.canary.set(watch.canary.map(|Bug(of_hca)| of_hca));
        world.path.set(work.path);
        let hcas = u32::from(parameters.hcas);
        let nodes = (0..processes).map(|process| world.node(process, process % hcas));
        let mut run = Self {
            nodes: nodes.collect(),
            world,
            connections: Vec::new(),
            used: vec![0; processes as usize],
            polls: vec![false; processes as usize],
            states: watch.is_counting.then(BTreeSet::new),
            until: watch.until,
            work,
        };
        for connection in run.work.connections.clone() {
            let ends = run.connect(connection);
            run.connections.push(ends);
        }
        for (number, (at, task)) in run.work.tasks.iter().enumerate() {
            let (process, what) = run.who(*task);
            let number = number_of(number, false);
            run.world.task(process, *at, number, what);
        }
        run
    }

    fn connect(&mut self, connection: Connection) -> [Peer; 2] {
        let nodes = connection.processes.map(|one| self.nodes[one as usize]);
        let shared = nodes.map(|node| connection.shared.then(|| self.shared_queue(&node)));
        let ends = [0, 1].map(|me| {
            let mut request = World::qp_request(&nodes[me], connection.transport);
            if let Request::CreateQp { srq, .. } = &mut request {
                *srq = shared[me];
            }
            self.world.end(&nodes[me], connection.transport, &request)
        });
        self.world.connect(&ends[0], &ends[1], &connection.link);
        let mut messages = connection.messages.into_iter();
        [0, 1].map(|me| Peer {
            side: Side {
                process: nodes[me].process,
                transport: connection.transport,
                sent: Vec::new(),
                receives: Vec::new(),
                send_done: Vec::new(),
                receive_done: Vec::new(),
                counter: self.take(nodes[1 - me].process, 8),
                shared: connection.shared,
                impatient: connection.link.rnr_retry < 7,
                waiting: 0,
                gives_up_ns: 0,
                moved_ns: 0,
            },
            node: nodes[me],
            end: ends[me],
            peer_end: ends[1 - me],
            peer_node: nodes[1 - me],
            to_send: messages.next().unwrap_or_default().into_iter(),
            shared: shared[me],
            link: connection.link,
        })
    }

    fn shared_queue(&self, node: &Node) -> u32 {
        let request = Request::CreateSrq {
            pd: node.pd,
            slots: 64,
            sges: 4,
            limit: 2,
            xrc: None,
        };
        self.world.make(node.process, &request)
    }

    /// Room in a process's memory.
    fn take(&mut self, process: u32, bytes: u32) -> u64 {
        let used = &mut self.used[process as usize];
        let at = *used;
        *used += u64::from(bytes).next_multiple_of(8);
        assert!(*used <= BYTES as u64, "too much for a process");
        at
    }

    /// Whose task it is, and what it is called.
    fn who(&self, task: Task) -> (u32, &'static str) {
        let process =
            |connection: usize, side: usize| self.work.connections[connection].processes[side];
        match task {
            Task::Send(c, side) => (process(c, side), "ibv_post_send"),
            Task::Receive(c, side) => (process(c, side), "ibv_post_recv"),
            Task::Drain(c, side, true) => (process(c, side), "ibv_modify_qp to SQD"),
            Task::Drain(c, side, false) => (process(c, side), "ibv_modify_qp to RTS"),
            Task::Path(_) => (0, "the path changes"),
        }
    }

    /// Runs until nothing is to come any more; whether it comes to rest.
    fn rest(&mut self) -> bool {
        while let Some(turn) = self.world.next() {
            if let Turn::Process { process, task } = turn {
                self.take_turn(process, task);
            }
            self.plan_polls();
            if self.states.is_some() {
                let state = self.state();
                self.states.get_or_insert_default().insert(state);
            }
            let events = self.world.events();
            if events > FAULTS_UNTIL {
                self.world.healed.set(true);
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
            Some(Until::Point(name)) => self.world.reached().contains_key(name.as_str()),
            Some(Until::Now) => true,
        }
    }

    /// A process does what is due; or later, or never, if a fault has it so.
    fn take_turn(&mut self, process: u32, number: u32) {
        let (index, is_late) = (number as usize / 2, !number.is_multiple_of(2));
        let task = self.work.tasks.get(index).map(|(_, task)| *task);
        let point = match task {
            None => Some(&faults::POLL),
            Some(Task::Send(..) | Task::Receive(..)) => Some(&faults::POST),
            Some(Task::Drain(..) | Task::Path(_)) => None,
        };
        // A fault's delay is one delay.
        let late_ns = match point.filter(|_| !is_late) {
            Some(point) => self.world.process_at(process, point),
            None => Some(0),
        };
        match (late_ns, task) {
            (None, _) => {}
            (Some(0), None) => self.poll(process),
            (Some(0), Some(task)) => self.carry_out(task),
            (Some(late_ns), _) => {
                let at = self.world.now().saturating_add(late_ns);
                self.world
                    .task(process, at, number_of(index, true), "it is late");
            }
        }
    }

    fn carry_out(&mut self, task: Task) {
        match task {
            Task::Send(c, side) => self.send(c, side),
            Task::Receive(c, side) => self.receive(c, side),
            Task::Drain(c, side, on) => self.drain(c, side, on),
            Task::Path(path) => self.world.path.set(path),
        }
    }

    fn drain(&mut self, c: usize, side: usize, on: bool) {
        let peer = &mut self.connections[c][side];
        let qp = self.world.memory.qp(peer.end.index);
        let (from, to) = match on {
            true => (State::Rts, State::Sqd),
            false => (State::Sqd, State::Rts),
        };
        if self.world.lives(peer.side.process) && qp.is_some_and(|qp| qp.state() == from) {
            let done = self.world.state(&peer.end, to);
            assert!(done.is_ok(), "{done:?}");
            peer.side.moved_ns = self.world.now();
        }
    }

    fn send(&mut self, c: usize, me: usize) {
        let peer = &mut self.connections[c][me];
        let Some(message) = peer.to_send.next() else {
            return;
        };
        let (process, peer_process) = (peer.side.process, peer.peer_node.process);
        let (id, counter) = (peer.side.sent.len(), peer.side.counter);
        let local = self.take(process, message.length);
        let remote = match message.opcode {
            Opcode::FetchAdd => counter,
            _ => self.take(peer_process, message.length),
        };
        let pattern = (c * 97 + me * 31 + id * 7) as u8;
        let data = data_of(pattern, message.length as usize);
        match message.opcode {
            Opcode::FetchAdd => {}
            Opcode::Read if !self.world.lives(peer_process) => {}
            Opcode::Read => self.world.put(peer_process, remote, &data),
            _ => self.world.put(process, local, &data),
        }
        let peer = &mut self.connections[c][me];
        let request = request(&self.world, peer, &message, id, remote);
        let half = message.length / 2;
        let list = [
            peer.node.sge(local, half),
            peer.node
                .sge(local + u64::from(half), message.length - half),
        ];
        let parts = [&data[..half as usize], &data[half as usize..]];
        let place = match message.inline {
            true => Data::Inline(&parts),
            false => Data::List(&list),
        };
        let index = peer.end.index;
        let posted = self
            .world
            .posting(process, |hca| hca.post_send(index, &request, place));
        assert!(matches!(posted, None | Some(Ok(()))), "{posted:?}");
        peer.side.sent.push(Sent {
            message,
            local,
            remote,
            pattern,
            posted_ns: self.world.now(),
        });
    }

    fn receive(&mut self, c: usize, me: usize) {
        let process = self.connections[c][me].side.process;
        let at = self.take(process, LONGEST + GRH_BYTES);
        let peer = &mut self.connections[c][me];
        let list = [
            peer.node.sge(at, 100),
            peer.node.sge(at + 100, LONGEST + GRH_BYTES - 100),
        ];
        let (id, index) = (peer.side.receives.len() as u64, peer.end.index);
        let posted = self.world.posting(process, |hca| match peer.shared {
            Some(srq) => hca.post_shared_receive(srq, id, &list),
            None => hca.post_receive(index, id, &list),
        });
        assert!(matches!(posted, None | Some(Ok(()))), "{posted:?}");
        peer.side.receives.push(at);
    }

    /// Whoever has completions polls soon.
    fn plan_polls(&mut self) {
        for node in &self.nodes {
            let process = node.process;
            let planned = &mut self.polls[process as usize];
            let has_some = self.world.has_completion(process, node.cq);
            if !*planned && has_some && self.world.lives(process) {
                *planned = true;
                let poll = number_of(self.work.tasks.len(), false);
                self.world.task_soon(process, poll, "ibv_poll_cq");
            }
        }
    }

    fn poll(&mut self, process: u32) {
        self.polls[process as usize] = false;
        for done in self.world.poll(process, self.nodes[process as usize].cq) {
            let (status, number) = (done.status as u64, u64::from(done.qp_number));
            let noted = [number, done.wr_id, status, done.opcode.into(), done.time_ns];
            self.world.note(&noted);
            let mut peers = self.connections.iter_mut().flatten();
            let peer = peers.find(|peer| peer.end.number == done.qp_number);
            let side = &mut peer.expect("somebody's completion").side;
            match done.opcode >= completed::RECEIVE {
                true => side.receive_done.push(done),
                false => side.send_done.push(done),
            }
        }
    }

    /// Nothing goes wrong any more, and everything comes to rest; whether it does.
    fn heal(&mut self) -> bool {
        self.world.heal();
        for c in 0..self.connections.len() {
            for side in 0..2 {
                self.drain(c, side, false);
            }
        }
        self.rest()
    }

    /// What waits; then the receives that nothing came for are flushed.
    fn flush(&mut self) {
        let world = &self.world;
        let heard = world.heard.borrow();
        for peer in self.connections.iter_mut().flatten() {
            let Some(qp) = world.memory.qp(peer.end.index) else {
                continue;
            };
            if !world.lives(peer.side.process) {
                continue;
            }
            peer.side.waiting = world.hca(peer.side.process).outstanding(qp);
            let timer_ns = rnr_timer_ns(peer.link.min_rnr_timer);
            peer.side.gives_up_ns = requester_timeout_ns(qp).saturating_add(timer_ns + SLACK_NS);
            let heard_ns = heard.get(&peer.end.number).copied().unwrap_or(0);
            let moved_ns = heard_ns.max(world.fault_ns.get());
            peer.side.moved_ns = peer.side.moved_ns.max(moved_ns);
            let done = world.state(&peer.end, State::Error);
            assert!(done.is_ok(), "{done:?}");
        }
        drop(heard);
        for process in 0..self.nodes.len() as u32 {
            if self.world.lives(process) {
                self.poll(process);
            }
        }
    }
}

/// The number of a task, or, of the first that there is not, of polling.
fn number_of(index: usize, is_late: bool) -> u32 {
    index as u32 * 2 + u32::from(is_late)
}

fn request(world: &World, peer: &Peer, message: &Message, id: usize, remote: u64) -> Send {
    let flag = |on: bool, flag| if on { flag } else { SendFlags::empty() };
    Send {
        wr_id: id as u64,
        opcode: message.opcode,
        flags: flag(message.signaled, SendFlags::SIGNALED) | flag(message.fenced, SendFlags::FENCE),
        immediate: id as u32,
        remote_address: BASE + remote,
        remote_key: peer.peer_node.key,
        compare_add: 1,
        swap: 0,
        to: Destination {
            lid: world.lid(peer.peer_node.hca),
            qp: peer.peer_end.number,
            qkey: peer.link.qkey,
            ..Destination::default()
        },
        srq: 0,
        length: 0,
        sges: 0,
        psn: 0,
    }
}
