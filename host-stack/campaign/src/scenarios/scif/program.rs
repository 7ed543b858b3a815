//! Programs: a listener each, connections to others, and three threads for each side of one.
//!
//! ```text
//! connecting: bind, connect --> a side          again after a pause, perhaps from the same port
//! listening:  bind, listen, accept --> a side, which learns from its first bytes whose it is
//! a side:     send .. send       |
//!             receive .. receive | all over --> close
//!             move .. move       |
//! ```

use std::collections::BTreeMap;

use snaprig_scif::node::{EndpointId, Input, JobId, Local, Op, RequestId};
use snaprig_sim::ProcessId;
use snaprig_wire::scif::{NodeId, PAGE, PortId};

use super::{
    calls::{Caller, Request, Rma, Signal, Thread},
    memory::Window,
    run::{Event, World},
    stream,
    work::{HELLO_BYTES, LISTENERS, Move, NOBODY, OWN_PORTS, Script, Target},
};

/// Windows at fixed offsets begin at multiples of this.
const PLACE_BYTES: i64 = PAGE as i64;

/// A program.
#[derive(Debug)]
pub struct Program {
    /// Its process.
    pub process: ProcessId,
    /// Where it runs.
    pub node: NodeId,
    /// Its node has closed what was its.
    pub forgotten: bool,
    /// Where it accepts.
    pub listener: EndpointId,
}

/// A talk at work.
#[derive(Debug, Default)]
pub struct Talking {
    /// How often it may connect still.
    pub left: u16,
    /// What it connects.
    pub endpoint: Option<EndpointId>,
    /// The number of the connection.
    pub connection: u32,
}

/// One side of a connection at work.
#[derive(Debug)]
pub struct Party {
    /// Whose it is.
    pub program: usize,
    /// Where.
    pub node: NodeId,
    /// Its endpoint.
    pub endpoint: EndpointId,
    /// What it does: of which talk, and which side of it; once it is known.
    pub role: Option<(usize, usize)>,
    /// The number of the connection.
    pub connection: Option<u32>,
    /// The other side.
    pub peer: Option<usize>,
    /// Where each thread is.
    pub step: [usize; 3],
    /// Which threads have ended.
    pub over: [bool; 3],
    /// Which of send and receive have given up, and try again with patience.
    pub tired: [bool; 2],
    /// It does not know how much it has sent, and stays for no more.
    pub lost_count: bool,
    /// Bytes of the current send that went.
    pub part: usize,
    /// Bytes that went.
    pub sent: usize,
    /// The first bytes of an accepted connection.
    pub hello: Vec<u8>,
    /// Bytes that came.
    pub came: usize,
    /// The first that is wrong.
    pub wrong: Option<String>,
    /// All that there was came.
    pub drained: bool,
    /// Its windows, by offset, as its node has them.
    pub windows: BTreeMap<i64, Window>,
    /// What it asked to be closed.
    pub closing: bool,
    /// Its node was told.
    pub closed: bool,
    /// Its program is gone.
    pub dead: bool,
}

/// What a program does next.
#[derive(Debug)]
pub enum Act {
    /// It accepts.
    Accept,
    /// It connects for this talk.
    Connect(usize),
    /// A thread of a side goes on.
    Step(usize, Thread),
    /// It has waited long enough; it wants to know what was done, or does not.
    GiveUp(Caller, RequestId, bool),
    /// It closes in the middle.
    Leave(usize),
}

impl World {
    /// Whose thread it is.
    pub fn program_of(&self, who: Caller) -> usize {
        match who {
            Caller::Listener(program) => program,
            Caller::Connecting(talk) => self.work.talks[talk].client,
            Caller::Side(side, _) => self.sides[side].program,
        }
    }

    /// A program starts.
    pub fn start_program(&mut self, program: usize) {
        let listener = self.open(Caller::Listener(program));
        self.programs[program].listener = listener;
        let (who, port) = (Caller::Listener(program), LISTENERS + program as u16);
        self.call(who, listener, Request::Bind, Op::Bind(port));
        let process = self.programs[program].process;
        for (number, talk) in self.work.talks.iter().enumerate() {
            if talk.client == program {
                let event = Event::Program(program, Act::Connect(number));
                self.net.stage.engine.after(process, talk.start_ns, event);
            }
        }
    }

    fn open(&mut self, who: Caller) -> EndpointId {
        self.next_number += 1;
        let endpoint = self.next_number;
        self.tell_node(who, 0, None, Input::Open(endpoint));
        endpoint
    }

    pub fn later(&mut self, program: usize, by_ns: u64, act: Act) {
        let process = self.programs[program].process;
        self.net
            .stage
            .engine
            .after(process, by_ns, Event::Program(program, act));
    }

    /// What a program does.
    pub fn act(&mut self, program: usize, act: Act) {
        match act {
            Act::Accept => {
                let listener = self.programs[program].listener;
                self.call(
                    Caller::Listener(program),
                    listener,
                    Request::Accept,
                    Op::Accept,
                );
            }
            Act::Connect(talk) => self.connect(talk),
            Act::Step(side, thread) if !self.sides[side].closing => self.step(side, thread),
            Act::Leave(side) => self.close(side),
            Act::Step(..) => {}
            Act::GiveUp(who, request, true) => {
                self.tell_node(who, 0, None, Input::Cancel(request));
            }
            Act::GiveUp(who, request, false) => {
                self.tell_node(who, 0, None, Input::Interrupt(request));
            }
        }
    }

    fn give_up_after(&mut self, who: Caller, request: RequestId, by_ns: Option<u64>, blind: bool) {
        if let Some(by_ns) = by_ns {
            let program = self.program_of(who);
            self.later(program, by_ns, Act::GiveUp(who, request, blind));
        }
    }

    // Connecting.

    fn connect(&mut self, number: usize) {
        let (who, talk) = (Caller::Connecting(number), &self.work.talks[number]);
        let port = if talk.same_port {
            OWN_PORTS + number as u16
        } else {
            0
        };
        let talking = &mut self.talking[number];
        if talking.left == 0 {
            return;
        }
        talking.left -= 1;
        match talking.endpoint {
            Some(endpoint) => self.connect_endpoint(number, endpoint),
            None => {
                let endpoint = self.open(who);
                self.talking[number].endpoint = Some(endpoint);
                self.call(who, endpoint, Request::Bind, Op::Bind(port));
            }
        }
    }

    pub fn connect_endpoint(&mut self, number: usize, endpoint: EndpointId) {
        let (who, talk) = (Caller::Connecting(number), self.work.talks[number].clone());
        let node = |program: usize| self.programs[program].node;
        let (node, port, expected) = match talk.target {
            Target::Program(program) => (node(program), LISTENERS + program as u16, None),
            Target::Nobody(program) => (node(program), NOBODY, Some(libc::ECONNREFUSED)),
            Target::Nowhere => (self.nodes.len() as NodeId, LISTENERS, Some(libc::ENODEV)),
        };
        self.next_connection += 1;
        self.talking[number].connection = self.next_connection;
        self.connections
            .insert(self.next_connection, (number, None));
        let op = Op::Connect(PortId { node, port });
        let request = self.call(who, endpoint, Request::Connect(expected), op);
        self.give_up_after(who, request, talk.patience_ns, false);
    }

    // Sides.

    pub fn side(&mut self, program: usize, endpoint: EndpointId) -> usize {
        let node = self.programs[program].node;
        let side = self.sides.len();
        self.ends.insert((node, endpoint), side);
        self.sides.push(Party {
            program,
            node,
            endpoint,
            role: None,
            connection: None,
            peer: None,
            step: [0; 3],
            over: [false; 3],
            tired: [false; 2],
            lost_count: false,
            part: 0,
            sent: 0,
            hello: Vec::new(),
            came: 0,
            wrong: None,
            drained: false,
            windows: BTreeMap::new(),
            closing: false,
            closed: !self.owners.contains_key(&(node, endpoint)),
            dead: false,
        });
        side
    }

    pub fn begin(&mut self, side: usize, talk: usize, role: usize) {
        self.sides[side].role = Some((talk, role));
        let program = self.sides[side].program;
        if let Some(by_ns) = self.work.talks[talk].scripts[role].leaves_ns {
            self.later(program, by_ns, Act::Leave(side));
        }
        for thread in [Thread::Send, Thread::Receive, Thread::Move] {
            // Who was accepted is receiving.
            if role == 0 || thread != Thread::Receive {
                self.next_step(side, thread);
            }
        }
    }

    pub fn script(&self, side: usize) -> Option<Script> {
        let (talk, role) = self.sides[side].role?;
        Some(self.work.talks[talk].scripts[role].clone())
    }

    pub fn next_step(&mut self, side: usize, thread: Thread) {
        let pace_ns = self.script(side).map_or(0, |script| script.pace_ns);
        let program = self.sides[side].program;
        self.later(program, pace_ns, Act::Step(side, thread));
    }

    pub fn step(&mut self, side: usize, thread: Thread) {
        let Some(script) = self.script(side) else {
            // Nothing is known yet but that it was accepted.
            let endpoint = self.sides[side].endpoint;
            let max = HELLO_BYTES - self.sides[side].hello.len();
            let who = Caller::Side(side, Thread::Receive);
            self.call(who, endpoint, Request::Receive, Op::Recv(max));
            return;
        };
        match thread {
            Thread::Send => self.send(side, &script),
            Thread::Receive => self.receive(side, &script),
            Thread::Move => self.do_move(side, &script),
        }
    }

    fn send(&mut self, side: usize, script: &Script) {
        let who = Caller::Side(side, Thread::Send);
        let party = &self.sides[side];
        let (Some((_, role)), Some(connection)) = (party.role, party.connection) else {
            return;
        };
        let step = party.step[0];
        let hello = role == 0 && step == 0;
        let send = script.sends.get(step.wrapping_sub(usize::from(role == 0)));
        let (bytes, patience_ns, blind) = match (hello, send) {
            (true, _) => (HELLO_BYTES, None, false),
            (false, Some(send)) => (send.bytes, send.patience_ns, send.blind),
            (false, None) => return self.is_over(side, Thread::Send),
        };
        let endpoint = party.endpoint;
        let data = stream::bytes(connection, role, party.sent, bytes - party.part);
        let what = Request::Send(data.len());
        let op = match blind {
            true => Op::Send(data),
            false => Op::Write { data, block: true },
        };
        let request = self.call(who, endpoint, what, op);
        let patience_ns = patience_ns.filter(|_| !self.sides[side].tired[0]);
        self.give_up_after(who, request, patience_ns, blind);
    }

    fn receive(&mut self, side: usize, script: &Script) {
        let who = Caller::Side(side, Thread::Receive);
        let party = &mut self.sides[side];
        if Some(party.came) == self.work.all_bytes(party.role) {
            party.drained = true;
            return self.is_over(side, Thread::Receive);
        }
        let max = script.receives[party.step[1] % script.receives.len()];
        let endpoint = party.endpoint;
        let request = self.call(who, endpoint, Request::Receive, Op::Recv(max));
        let patience_ns = script.receive_patience_ns;
        let patience_ns = patience_ns.filter(|_| !self.sides[side].tired[1]);
        self.give_up_after(who, request, patience_ns, false);
    }

    fn do_move(&mut self, side: usize, script: &Script) {
        let who = Caller::Side(side, Thread::Move);
        let (endpoint, node) = (self.sides[side].endpoint, self.sides[side].node);
        let Some(next) = script.moves.get(self.sides[side].step[2]) else {
            return self.is_over(side, Thread::Move);
        };
        match *next {
            Move::Register {
                pages,
                place,
                whole,
                prot,
            } => {
                let backing = self.memory.allocate(node, pages, whole);
                let op = Op::Register {
                    extents: self.memory.extents(backing),
                    offset: place.map(|place| place as i64 * PLACE_BYTES),
                    prot,
                    backing,
                };
                self.call(who, endpoint, Request::Register(backing, prot), op);
            }
            Move::Unregister(pick) => {
                let windows = &self.sides[side].windows;
                let nth = pick as usize % windows.len().max(1);
                let window = windows.iter().nth(nth);
                let (offset, backing) = window.map_or((0, 0), |(at, one)| (*at, one.backing));
                let len = self.memory.len(backing).max(PAGE);
                let op = Op::Unregister { offset, len };
                self.call(who, endpoint, Request::Unregister(offset), op);
            }
            Move::Rma {
                picks,
                write,
                windowed,
                sync,
                ordered,
                patience_ns,
            } => {
                let peer = self.sides[side].peer;
                let remote = self.place(peer, picks[0], picks[1]);
                let len = self.length(peer, remote, picks[2]);
                let local = windowed.then(|| self.place(Some(side), picks[3], picks[1] >> 32));
                let memory = local
                    .is_none()
                    .then(|| self.memory.allocate(node, len.div_ceil(PAGE), write));
                let rma = Rma {
                    local,
                    memory,
                    len,
                    remote,
                    write,
                    sync,
                    ordered,
                };
                let op = Op::Rma {
                    local: match (local, memory) {
                        (None, Some(memory)) => Local::Memory {
                            extents: self.memory.extents(memory),
                            skip: 0,
                        },
                        (offset, _) => Local::Window(offset.unwrap_or(0)),
                    },
                    len,
                    remote,
                    write,
                    ordered,
                    sync,
                };
                let request = self.call(who, endpoint, Request::Rma(rma), op);
                self.give_up_after(who, request, patience_ns, false);
            }
            Move::Fence { peer } => {
                let jobs = self.jobs_of(side, peer);
                let op = Op::FenceMark { peer };
                self.call(who, endpoint, Request::Mark(jobs), op);
            }
            Move::Signal { picks, peer } => {
                let jobs = self.jobs_of(side, peer);
                let local = self.signal(Some(side), picks[0], picks[1], &jobs);
                let remote = self.signal(self.sides[side].peer, picks[2], picks[3], &jobs);
                let op = Op::FenceSignal {
                    local,
                    remote,
                    peer,
                };
                self.call(who, endpoint, Request::Signal, op);
            }
        }
    }

    /// RMA under way, of a side or its peer.
    fn jobs_of(&self, side: usize, peer: bool) -> Vec<(NodeId, JobId)> {
        let whose = if peer {
            self.sides[side].peer
        } else {
            Some(side)
        };
        whose.map_or(Vec::new(), |side| self.under_way(side))
    }

    /// An offset in one of a side's windows, if it has any.
    fn place(&self, side: Option<usize>, which: u64, within: u64) -> i64 {
        let windows = side.map(|side| &self.sides[side].windows);
        let count = windows.map_or(0, BTreeMap::len);
        let window = windows.and_then(|all| all.iter().nth(which as usize % count.max(1)));
        match window {
            Some((offset, window)) => offset + (within % self.memory.len(window.backing)) as i64,
            None => (which % 8) as i64 * PLACE_BYTES,
        }
    }

    /// Bytes of RMA: a few, as many as there are, or what may be more.
    fn length(&self, side: Option<usize>, offset: i64, pick: u64) -> u64 {
        let most = side.map_or(0, |side| {
            let windows = &self.sides[side].windows;
            let window = windows.range(..=offset).next_back();
            window.map_or(0, |(at, window)| {
                self.memory
                    .len(window.backing)
                    .saturating_sub((offset - at) as u64)
            })
        });
        let pick_len = pick >> 8;
        match pick % 4 {
            0 => 1 + pick_len % 64,
            1 | 2 => 1 + pick_len % most.max(1),
            _ => 1 + pick_len % (3 * PAGE),
        }
    }

    /// A value for one of a side's windows, which comes when this RMA has ended.
    fn signal(
        &mut self,
        side: Option<usize>,
        which: u64,
        within: u64,
        jobs: &[(NodeId, JobId)],
    ) -> Option<(i64, u64)> {
        let side = side?;
        let offset = self.place(Some(side), which, within) / 8 * 8;
        self.next_number += 1;
        let value = self.next_number;
        let signal = Signal {
            side,
            offset,
            jobs: jobs.to_vec(),
        };
        self.signals.insert((self.sides[side].node, value), signal);
        Some((offset, value))
    }
}
