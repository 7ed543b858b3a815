//! Calls of programs: on their way to the node, under way there, and on their way back; and what the
//! node wants done for them.

use std::collections::VecDeque;

use snaprig_scif::{
    faults,
    node::{
        BackingId, EndpointId, Input, JobId, Op, Output, PROT_READ, PROT_WRITE, RequestId, Value,
    },
};
use snaprig_sim::engine::Lane;
use snaprig_wire::{
    dma::Descriptor,
    scif::{Body, HOST, NodeId},
};

use super::{
    Refusal,
    canary::Canary,
    invariants, lanes,
    memory::{Part, Window},
    run::{Event, World},
};
use crate::{
    links::Network as _,
    scenario::invariant,
    stage::{Effect, System as _},
};

/// Who has registered a window so long ago has told its peer.
const KNOWN_NS: u64 = 1_000_000;

/// A thread of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thread {
    /// It sends.
    Send,
    /// It receives.
    Receive,
    /// It registers, and copies.
    Move,
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Caller {
    /// A program's listener.
    Listener(usize),
    /// Who connects for a talk.
    Connecting(usize),
    /// A side of a connection.
    Side(usize, Thread),
}

/// What was asked of a node.
#[derive(Clone, Debug)]
pub enum Request {
    /// scif_bind.
    Bind,
    /// scif_listen.
    Listen,
    /// scif_connect; the errno to expect.
    Connect(Option<i32>),
    /// scif_accept.
    Accept,
    /// scif_send, so many bytes.
    Send(usize),
    /// scif_recv.
    Receive,
    /// scif_register: its memory, and what may be done with it.
    Register(BackingId, u8),
    /// scif_unregister, from there on.
    Unregister(i64),
    /// RMA.
    Rma(Rma),
    /// scif_fence_mark; the RMA under way then.
    Mark(Vec<(NodeId, JobId)>),
    /// scif_fence_wait, for that RMA.
    Wait(Vec<(NodeId, JobId)>),
    /// scif_fence_signal.
    Signal,
}

/// An RMA, as its program asks for it.
#[derive(Clone, Copy, Debug)]
pub struct Rma {
    /// An offset in the own windows.
    pub local: Option<i64>,
    /// Memory that is no window.
    pub memory: Option<BackingId>,
    /// Bytes.
    pub len: u64,
    /// Offset in the peer's windows.
    pub remote: i64,
    /// From here to the peer.
    pub write: bool,
    /// SCIF_RMA_SYNC.
    pub sync: bool,
    /// SCIF_RMA_ORDERED.
    pub ordered: bool,
}

impl Rma {
    /// Its call ends when it does: a program has memory that is no window again when the call ends.
    pub fn is_awaited(&self) -> bool {
        self.sync || self.memory.is_some()
    }
}

impl Request {
    /// As the manual pages call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bind => "bind",
            Self::Listen => "listen",
            Self::Connect(_) => "connect",
            Self::Accept => "accept",
            Self::Send(_) => "send",
            Self::Receive => "receive",
            Self::Register(..) => "register",
            Self::Unregister(_) => "unregister",
            Self::Rma(_) => "RMA",
            Self::Mark(_) => "fence_mark",
            Self::Wait(_) => "fence_wait",
            Self::Signal => "fence_signal",
        }
    }
}

/// A call that a node has under way.
#[derive(Debug)]
pub struct PendingCall {
    pub who: Caller,
    pub node: NodeId,
    pub endpoint: EndpointId,
    pub what: Request,
}

/// A value that is to be written when RMA has ended.
#[derive(Debug)]
pub struct Signal {
    /// Into whose windows.
    pub side: usize,
    /// Where.
    pub offset: i64,
    /// That RMA.
    pub jobs: Vec<(NodeId, JobId)>,
}

/// RMA under way.
#[derive(Debug)]
pub struct Job {
    pub side: usize,
    pub peer: NodeId,
    /// The call that waits for it, if one does.
    pub awaited: Option<RequestId>,
    /// What is still to be copied, in this order.
    pub copies: VecDeque<Descriptor>,
    pub from: Vec<Part>,
    pub to: Vec<Part>,
    /// Its windows are gone with their node.
    pub is_doomed: bool,
    pub memory: Option<BackingId>,
}

/// The lane on which calls of one thread keep their order.
fn lane(who: Caller, back: bool) -> Lane {
    let number = match who {
        Caller::Listener(program) => program as u64,
        Caller::Connecting(talk) => 1 << 20 | talk as u64,
        Caller::Side(side, thread) => 2 << 20 | (side as u64) << 2 | thread as u64,
    };
    1 << 62 | number << 1 | u64::from(back)
}

impl World {
    /// A thread calls its node, unless it dies of it.
    pub fn call(&mut self, who: Caller, endpoint: EndpointId, what: Request, op: Op) -> RequestId {
        self.next_number += 1;
        let request = self.next_number;
        let program = self.program_of(who);
        let process = self.programs[program].process;
        let by_ns = match self.fault(process, &faults::program::CALL) {
            Effect::Ended => return request,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let input = Input::Request(request, endpoint, op);
        self.tell_node(who, by_ns, Some(what), input);
        request
    }

    /// Something reaches the node, after what this thread has called before.
    pub fn tell_node(&mut self, who: Caller, by_ns: u64, what: Option<Request>, input: Input) {
        let program = self.program_of(who);
        let process = self.programs[program].process;
        let node = self.process_of(self.programs[program].node);
        let event = Event::Call(who, what, input);
        self.net
            .stage
            .engine
            .send_late(process, node, lane(who, false), by_ns, event);
    }

    /// A call has come to the node.
    pub fn called(&mut self, who: Caller, what: Option<Request>, input: Input) {
        let program = self.program_of(who);
        let node = self.programs[program].node;
        // The node has closed what was its.
        if self.programs[program].forgotten {
            return;
        }
        match (&input, what) {
            (Input::Request(request, endpoint, _), Some(what)) => {
                if let Request::Register(backing, _) = what {
                    self.memory.register(backing);
                }
                if let (Request::Unregister(offset), Caller::Side(side, _)) = (&what, who) {
                    let about = self.sides[side].windows.get_mut(offset);
                    about.into_iter().for_each(|window| window.going = true);
                }
                let asked = PendingCall {
                    who,
                    node,
                    endpoint: *endpoint,
                    what,
                };
                self.asked.insert(*request, asked);
                self.current = Some(*request);
            }
            (Input::Open(endpoint), _) => {
                self.owners.insert((node, *endpoint), program);
                if self.work.takes_lanes[program] {
                    let willing = Input::Request(lanes::WILLING, *endpoint, Op::Willing);
                    self.node_hears(node, input);
                    return self.node_hears(node, willing);
                }
            }
            (Input::Close(endpoint), _) => self.closes(node, *endpoint),
            (Input::Cancel(request), _) => {
                if let Some(asked) = self.asked.remove(request) {
                    self.answer(asked, Err(libc::EINTR));
                }
            }
            _ => {}
        }
        if !self.takes_lanes(node, &input) {
            self.node_hears(node, input);
        }
        self.pump(node);
        self.current = None;
    }

    /// An endpoint is closed by its program, or for it.
    fn closes(&mut self, node: NodeId, endpoint: EndpointId) {
        self.owners.remove(&(node, endpoint));
        if let Some(side) = self.ends.get(&(node, endpoint)) {
            self.sides[*side].closed = true;
        }
    }

    /// A program is gone: its node closes everything that was its.
    pub fn forget_program(&mut self, program: usize) {
        let node = self.programs[program].node;
        self.programs[program].forgotten = true;
        let owned = self.owners.iter().filter(|(_, owner)| **owner == program);
        let owned: Vec<_> = owned.map(|((_, endpoint), _)| *endpoint).collect();
        for endpoint in owned {
            self.closes(node, endpoint);
            let close = Input::Close(endpoint);
            self.takes_lanes(node, &close);
            self.node_hears(node, close);
            self.pump(node);
        }
    }

    /// What a node wants done.
    pub fn does(&mut self, node: NodeId, output: Output) {
        let own = self.process_of(node);
        if !self.net.stage.engine.is_alive(own) {
            return;
        }
        match output {
            Output::Send(to, message) => {
                self.announces(node, &message.body);
                if self.may_send(&message) {
                    self.send_message(own, node, to, &message);
                }
            }
            Output::Done(request, _) if lanes::is_of_driver(request) => {}
            Output::Done(request, result) => self.ended(request, result),
            Output::Copy {
                job, peer, copies, ..
            } => self.begin_copy(node, job, peer, copies),
            Output::Release(backing) => {
                if self.leaking && self.canary == Some(Canary::LeakedWindow) {
                    return;
                }
                self.laid.release(backing);
                if !self.memory.release(backing) {
                    let how = format!("backing {backing} is given back again");
                    self.violation(invariants::BACKINGS, how);
                }
                for side in &mut self.sides {
                    side.windows.retain(|_, window| window.backing != backing);
                }
            }
            Output::Poke { address, bytes, .. } => self.poke(node, address, &bytes),
            Output::Changed(endpoint) | Output::Ring(endpoint, _) => {
                self.look_again(node, endpoint);
            }
            Output::Lay(endpoint) => self.lay(node, endpoint),
        }
    }

    /// A call has ended.
    pub fn ended(&mut self, request: RequestId, result: Result<Value, i32>) {
        let Some(asked) = self.asked.remove(&request) else {
            let how = format!("call {request} is told {result:?}, and has ended");
            return self.violation(invariant::CONTRADICTION, how);
        };
        let mut jobs = self.jobs.values();
        if result.is_ok() && jobs.any(|job| job.awaited == Some(request)) {
            let how = format!("call {request} has ended, and its RMA has not");
            self.violation(invariant::RDMA, how);
        }
        self.remember(&asked, &result);
        self.answer(asked, result);
    }

    /// A peer is told of a window: from then on there is one, whenever the call ends.
    fn announces(&mut self, node: NodeId, body: &Body) {
        let Body::Window {
            offset, extents, ..
        } = body
        else {
            return;
        };
        let mut asked = self.asked.values().filter(|asked| asked.node == node);
        let found = asked.find_map(|asked| match (&asked.what, asked.who) {
            (Request::Register(backing, prot), Caller::Side(side, _))
                if self.memory.extents(*backing).starts_with(extents) =>
            {
                Some((side, *backing, *prot))
            }
            _ => None,
        });
        if let Some((side, backing, prot)) = found {
            let window = Window {
                backing,
                prot,
                since_ns: u64::MAX,
                going: false,
            };
            self.sides[side].windows.insert(*offset, window);
        }
    }

    /// What a call has changed at its node.
    fn remember(&mut self, asked: &PendingCall, result: &Result<Value, i32>) {
        match (&asked.what, result) {
            (Request::Accept, Ok(Value::Accepted { endpoint, .. })) => {
                let program = self.program_of(asked.who);
                self.owners.insert((asked.node, *endpoint), program);
            }
            (Request::Register(backing, prot), Ok(Value::Offset(offset))) => {
                if let Caller::Side(side, _) = asked.who {
                    let window = Window {
                        backing: *backing,
                        prot: *prot,
                        since_ns: self.net.stage.engine.now_ns(),
                        going: false,
                    };
                    self.sides[side].windows.insert(*offset, window);
                }
            }
            (Request::Wait(jobs), Ok(_)) => {
                let left = jobs.iter().find(|job| self.jobs.contains_key(job));
                if let Some(job) = left {
                    let how = format!("a fence is over, and {job:?} is not");
                    self.violation(invariant::RDMA, how);
                }
            }
            (Request::Rma(rma), Err(_)) => {
                // Nothing is copied any more, or what is has it.
                let memory = rma
                    .memory
                    .filter(|memory| self.jobs.values().all(|job| job.memory != Some(*memory)));
                memory.into_iter().for_each(|memory| {
                    self.memory.release(memory);
                });
            }
            _ => {}
        }
    }

    /// The program hears how its call has ended.
    fn answer(&mut self, asked: PendingCall, result: Result<Value, i32>) {
        if let Err(errno) = result {
            self.refused(&asked, errno);
        }
        let program = self.program_of(asked.who);
        let (process, node) = (self.programs[program].process, self.process_of(asked.node));
        let way = lane(asked.who, true);
        let event = Event::Told(asked.who, asked.what, result);
        self.net.stage.engine.send(node, process, way, event);
    }

    fn refused(&mut self, asked: &PendingCall, errno: i32) {
        let mut refusal = Refusal {
            call: asked.what.name(),
            errno,
            closed: !self.owners.contains_key(&(asked.node, asked.endpoint)),
            is_peer_gone: self.net.stage.tally.faults > 0,
            is_expected: false,
        };
        match (&asked.what, asked.who) {
            (Request::Connect(expected), _) => refusal.is_expected = *expected == Some(errno),
            (Request::Rma(rma), Caller::Side(side, _)) => {
                let sure = |side, offset, prot| self.is_sure(side, offset, rma.len, prot);
                let (reads, writes) = (PROT_READ, PROT_WRITE);
                let (own, other) = if rma.write {
                    (reads, writes)
                } else {
                    (writes, reads)
                };
                let here = rma.local.is_none_or(|local| sure(side, local, own));
                let peer = self.sides[side].peer;
                let there = peer.is_some_and(|peer| sure(peer, rma.remote, other));
                let injected = self.injected.contains(&errno);
                let missing = [libc::ENXIO, libc::EACCES].contains(&errno) && !(here && there);
                refusal.is_expected = injected || missing;
            }
            _ => {}
        }
        if let Caller::Side(side, _) = asked.who {
            refusal.is_peer_gone = self.is_peer_gone(side);
        }
        self.refusals.push(refusal);
    }

    /// Whether a range is of windows that both sides have long known of, that stay and allow this.
    fn is_sure(&self, side: usize, offset: i64, len: u64, prot: u8) -> bool {
        if self.has_host_hung {
            return false;
        }
        let windows = &self.sides[side].windows;
        let stage = &self.net.stage;
        // From card to card a message goes over two links, and may be late on each.
        let late_ns = stage.tally.late_ns.saturating_mul(2);
        let now_ns = stage.engine.now_ns();
        let long_ago_ns = now_ns.saturating_sub(KNOWN_NS.saturating_add(late_ns));
        let mut inside = windows.range(..offset.saturating_add_unsigned(len));
        self.memory.range(windows, offset, len).is_some()
            && inside.all(|(_, window)| {
                let allows = window.prot & prot == prot;
                allows && !window.going && window.since_ns < long_ago_ns
            })
    }

    /// Whether a connection may end for something that its side has not done.
    fn is_peer_gone(&self, side: usize) -> bool {
        let Some(peer) = self.sides[side].peer else {
            // Who was accepted does not know its peer before that has said who it is.
            return self.net.stage.tally.faults > 0 || self.sides[side].role.is_none();
        };
        let nodes = [side, peer].map(|one| self.sides[one].node);
        self.sides[peer].closed || nodes.iter().any(|node| self.is_disturbed(*node))
    }

    /// Whether something has happened to a node or its link, since it was first there.
    pub fn is_disturbed(&self, node: NodeId) -> bool {
        let dead = !self.net.stage.engine.is_alive(self.process_of(node));
        dead || node != HOST && self.net.link(node).was_disturbed()
    }
}
