//! A plan at work.

use std::panic::{self, AssertUnwindSafe};

use snaprig_hca::{
    Completion, Opcode, Path, SendFlags, State, Transport,
    control::Request,
    post::{Data, PostError},
    queue::{Destination, Send},
    testing::{BASE, BYTES, Canary, Died, End, Node, World},
    types::completed,
};

use crate::{
    invariants,
    plan::{Action, LONGEST, Message, Plan},
};

/// Bytes before the data of a datagram.
pub const GRH: u32 = 40;
/// So long does nobody wait, once nothing goes wrong any more.
const REST_NS: u64 = 120 * 1_000_000_000;

/// How a run went.
#[derive(Debug)]
pub struct Outcome {
    /// Which invariant broke, and how.
    pub broken: Option<(&'static str, String)>,
    pub hash: u64,
    pub packets: u64,
    /// Reliable connections that few packets were lost of, and how many of them failed.
    pub calm: u64,
    pub calm_failed: u64,
}

/// A message on its way.
#[derive(Debug)]
pub struct Sent {
    pub message: Message,
    /// Where its data is at the sender, and where it goes to at the peer; of a read, the other way.
    pub local: u64,
    pub remote: u64,
    pub data: Vec<u8>,
}

/// One end of a connection, and what happened there.
#[derive(Debug)]
pub struct Side {
    pub node: Node,
    pub end: End,
    pub peer: End,
    pub peer_node: Node,
    pub to_send: std::vec::IntoIter<Message>,
    pub sent: Vec<Sent>,
    /// Where each receive is.
    pub receives: Vec<u64>,
    pub send_done: Vec<Completion>,
    pub receive_done: Vec<Completion>,
    /// Where the peer's counter is.
    pub counter: u64,
    /// Where receives come from, if not from its own queue.
    pub shared: Option<u32>,
    /// Died, with its process.
    pub dead: bool,
    pub peer_dead: bool,
}

/// A run.
pub struct Run {
    pub world: World,
    pub plan: Plan,
    pub sides: Vec<[Side; 2]>,
    /// Who posts next dies so soon.
    dies_in: u32,
    /// Memory in use of each process.
    used: Vec<u64>,
}

impl Run {
    fn new(seed: u64, canary: Option<Canary>) -> Self {
        let plan = Plan::new(seed);
        let world = World::new(plan.nodes, seed);
        world.canary.set(canary);
        world.path.set(plan.path);
        let nodes: Vec<_> = (0..plan.nodes as u32).map(|n| world.node(n, n)).collect();
        {
            let mut net = world.net.borrow_mut();
            (net.loss, net.damage) = (plan.loss, plan.damage);
            (net.copies, net.reorder) = (plan.copies, plan.reorder);
        }
        let mut run = Self {
            world,
            sides: Vec::new(),
            dies_in: 0,
            used: vec![0; plan.nodes],
            plan,
        };
        for connection in run.plan.connections.clone() {
            let [a, b] = connection.nodes.map(|n| nodes[n]);
            let shared = [a, b].map(|node| connection.shared.then(|| run.shared_queue(&node)));
            let [x, y] = [(a, shared[0]), (b, shared[1])]
                .map(|(node, shared)| run.end(&node, connection.transport, shared));
            run.world.connect(&x, &y, &connection.link);
            let [from_a, from_b] = connection.messages;
            let mut side = |node: Node, end, peer_node: Node, peer, messages: Vec<Message>| Side {
                shared: if node.process == a.process {
                    shared[0]
                } else {
                    shared[1]
                },
                node,
                end,
                peer,
                peer_node,
                to_send: messages.into_iter(),
                sent: Vec::new(),
                receives: Vec::new(),
                send_done: Vec::new(),
                receive_done: Vec::new(),
                counter: run.take(peer_node.process, 8),
                dead: false,
                peer_dead: false,
            };
            let sides = [side(a, x, b, y, from_a), side(b, y, a, x, from_b)];
            run.sides.push(sides);
        }
        run
    }

    fn shared_queue(&self, node: &Node) -> u32 {
        let request = Request::CreateSrq {
            pd: node.pd,
            slots: 32,
            sges: 4,
            limit: 2,
            xrc: None,
        };
        self.world.make(node.process, &request)
    }

    fn end(&self, node: &Node, transport: Transport, shared: Option<u32>) -> End {
        let mut request = World::qp_request(node, transport);
        if let Request::CreateQp { srq, .. } = &mut request {
            *srq = shared;
        }
        self.world.end(node, transport, &request)
    }

    /// Drains a send queue, or lets it go on.
    fn drain(&self, side: &Side, drain: bool) {
        let qp = self.world.memory.qp(side.end.index).expect("a queue pair");
        let (from, to) = match drain {
            true => (State::Rts, State::Sqd),
            false => (State::Sqd, State::Rts),
        };
        if !side.dead && qp.state() == from {
            let done = self.world.state(&side.end, to);
            assert!(done.is_ok(), "{done:?}");
        }
    }

    /// Room in a process's memory.
    fn take(&mut self, process: u32, bytes: u32) -> u64 {
        let used = &mut self.used[process as usize];
        let at = *used;
        *used += u64::from(bytes).next_multiple_of(8);
        assert!(*used <= BYTES as u64, "too much for a process");
        at
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send(c, side) => self.send(c, side),
            Action::Receive(c, side) => self.receive(c, side),
            Action::Wait(ns) => self.world.run_for(ns),
            Action::Cut(port, true) => {
                self.world.net.borrow_mut().cut.insert(port);
            }
            Action::Cut(..) => self.world.net.borrow_mut().cut.clear(),
            Action::Die(calls) => self.dies_in = calls,
            Action::Drain(c, side, drain) => self.drain(&self.sides[c][side], drain),
            Action::Path(path) => self.world.path.set(path),
            Action::Kill(node) => {
                let process = node as u32;
                self.world.kill(process);
                for side in self.sides.iter_mut().flatten() {
                    side.dead |= side.node.process == process;
                    side.peer_dead |= side.peer_node.process == process;
                }
            }
        }
        self.poll();
    }

    fn send(&mut self, c: usize, side: usize) {
        let (process, peer_process, dead, peer_dead) = {
            let side = &self.sides[c][side];
            (
                side.node.process,
                side.peer_node.process,
                side.dead,
                side.peer_dead,
            )
        };
        if dead {
            return;
        }
        let Some(message) = self.sides[c][side].to_send.next() else {
            return;
        };
        let local = self.take(process, message.length);
        let remote = match message.opcode {
            Opcode::FetchAdd => self.sides[c][side].counter,
            _ => self.take(peer_process, message.length),
        };
        let id = self.sides[c][side].sent.len();
        let data = pattern((c * 97 + side * 31 + id * 7) as u8, message.length as usize);
        match message.opcode {
            Opcode::FetchAdd => {}
            Opcode::Read if peer_dead => {}
            Opcode::Read => self.world.put(peer_process, remote, &data),
            _ => self.world.put(process, local, &data),
        }
        let dies_in = std::mem::take(&mut self.dies_in);
        let side = &mut self.sides[c][side];
        let flag = |on: bool, flag| if on { flag } else { SendFlags::empty() };
        let request = Send {
            wr_id: id as u64,
            opcode: message.opcode,
            flags: flag(message.signaled, SendFlags::SIGNALED)
                | flag(message.fenced, SendFlags::FENCE),
            immediate: id as u32,
            remote_address: BASE + remote,
            remote_key: side.peer_node.key,
            compare_add: 1,
            swap: 0,
            to: Destination {
                lid: self.world.lid(side.peer_node.hca),
                qp: side.peer.number,
                qkey: 0x1234,
                ..Destination::default()
            },
            srq: 0,
            length: 0,
            sges: 0,
            psn: 0,
        };
        let half = message.length / 2;
        let list = [
            side.node.sge(local, half),
            side.node
                .sge(local + u64::from(half), message.length - half),
        ];
        let parts = [&data[..half as usize], &data[half as usize..]];
        let data_at = if message.inline {
            Data::Inline(&parts)
        } else {
            Data::List(&list)
        };
        let hca = self.world.hca(process);
        let posted = mortal(&self.world, dies_in, || {
            hca.post_send(side.end.index, &request, data_at)
        });
        side.sent.push(Sent {
            message,
            local,
            remote,
            data,
        });
        if posted == Err(Died) {
            self.act(Action::Kill(process as usize));
        }
    }

    fn receive(&mut self, c: usize, side: usize) {
        let process = self.sides[c][side].node.process;
        if self.sides[c][side].dead {
            return;
        }
        let at = self.take(process, LONGEST + GRH);
        let dies_in = std::mem::take(&mut self.dies_in);
        let side = &mut self.sides[c][side];
        let list = [
            side.node.sge(at, 100),
            side.node.sge(at + 100, LONGEST + GRH - 100),
        ];
        let hca = self.world.hca(process);
        let id = side.receives.len() as u64;
        let posted = mortal(&self.world, dies_in, || match side.shared {
            Some(srq) => hca.post_shared_receive(srq, id, &list),
            None => hca.post_receive(side.end.index, id, &list),
        });
        side.receives.push(at);
        if posted == Err(Died) {
            self.act(Action::Kill(process as usize));
        }
    }

    fn poll(&mut self) {
        for node in 0..self.plan.nodes as u32 {
            if !self.world.lives(node) {
                continue;
            }
            let cq = self
                .sides
                .iter()
                .flatten()
                .find(|side| side.node.process == node);
            let Some(cq) = cq.map(|side| side.node.cq) else {
                continue;
            };
            for done in self.world.poll(node, cq) {
                if self.world.prints.get() {
                    eprintln!("{:>10} {done:?}", self.world.now());
                }
                self.world.note(&[
                    5,
                    done.qp_number.into(),
                    done.wr_id,
                    done.status as u64,
                    done.opcode.into(),
                    done.time_ns,
                ]);
                let mut sides = self.sides.iter_mut().flatten();
                let side = sides.find(|side| side.end.number == done.qp_number);
                let side = side.expect("somebody's completion");
                if done.opcode >= completed::RECEIVE {
                    side.receive_done.push(done);
                } else {
                    side.send_done.push(done);
                }
            }
        }
    }

    /// Nothing goes wrong any more, and everything comes to rest.
    fn rest(&mut self) -> bool {
        {
            let mut net = self.world.net.borrow_mut();
            net.cut.clear();
            (net.loss, net.damage, net.copies, net.reorder) = (0, 0, 0, 0);
        }
        for side in self.sides.iter().flatten() {
            self.drain(side, false);
        }
        self.poll();
        let end = self.world.now() + REST_NS;
        while self.world.next_at().is_some_and(|at| at < end) {
            self.world.step();
            self.poll();
        }
        self.world.next_at().is_none()
    }

    /// Receives that nothing came for are flushed.
    fn flush(&mut self) {
        for side in self.sides.iter().flatten().filter(|side| !side.dead) {
            let done = self.world.state(&side.end, State::Error);
            assert!(done.is_ok(), "{done:?}");
        }
        self.poll();
    }

    /// Everything is given back.
    fn tear_down(&mut self) {
        for side in self.sides.iter().flatten().filter(|side| !side.dead) {
            let request = Request::DestroyQp { qp: side.end.index };
            let done = self.world.ask(side.node.process, &request);
            assert!(done.is_ok(), "{done:?}");
        }
        for process in 0..self.plan.nodes as u32 {
            if self.world.lives(process) {
                self.world.kill(process);
            }
        }
    }
}

/// Posts, and maybe dies of it.
fn mortal(
    world: &World,
    dies_in: u32,
    post: impl FnOnce() -> Result<(), PostError>,
) -> Result<(), Died> {
    world.dies_in.set(dies_in);
    let posted = panic::catch_unwind(AssertUnwindSafe(post));
    world.dies_in.set(0);
    match posted {
        Ok(posted) => {
            assert_eq!(posted, Ok(()));
            Ok(())
        }
        Err(cause) if cause.is::<Died>() => Err(Died),
        Err(cause) => panic::resume_unwind(cause),
    }
}

/// Bytes that tell where they come from; none is 0.
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| {
            (i as u8)
                .wrapping_mul(5)
                .wrapping_add((i >> 8) as u8)
                .wrapping_add(seed)
                | 1
        })
        .collect()
}

/// Runs a seed.
pub fn run(seed: u64, canary: Option<Canary>, prints: bool) -> Outcome {
    let mut run = Run::new(seed, canary);
    run.world.prints.set(prints);
    if prints {
        eprintln!("{:#?}", run.plan);
    }
    for action in run.plan.actions.clone() {
        run.act(action);
    }
    let rested = run.rest();
    let broken = invariants::at_rest(&run, rested);
    run.flush();
    let broken = broken.or_else(|| invariants::at_end(&run));
    let rc = |side: &&[Side; 2]| side[0].end.transport == Transport::Rc;
    let plan = &run.plan;
    let is_calm = plan.loss + plan.damage <= 50
        && plan.copies + plan.reorder <= 50
        && !plan.cuts
        && !plan.kills
        && plan.path == Path::Packets;
    let patient = run.plan.connections.iter().map(|c| c.link.rnr_retry == 7);
    let (mut calm, mut calm_failed) = (0, 0);
    for (sides, _) in run
        .sides
        .iter()
        .zip(patient)
        .filter(|c| rc(&c.0) && c.1 && is_calm)
    {
        calm += 1;
        calm_failed += u64::from(sides.iter().any(invariants::failed));
    }
    run.tear_down();
    Outcome {
        broken: broken.or_else(|| invariants::after_all(&run)),
        hash: run.world.hash(),
        packets: run.world.net.borrow().sent,
        calm,
        calm_failed,
    }
}
