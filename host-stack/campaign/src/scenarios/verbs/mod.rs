//! Verbs: processes with queue pairs, on HCAs of one fabric. All machines are those of
//! `emu/hca`, in the simulated fabric that its tests use, too.
//!
//! ```text
//!  "process1"    "process2"    "process3" ...      post, poll: drawn work
//!      |             |             |
//!   "hca1" ------ "hca2" ------ "hca1" ...         packets: what the plan has go wrong
//! ```
//!
//! The seed decides transports, messages, sizes, and whether packets go one by one.
//!
//! A process that hangs is ended after 20 ms, and none is later than that; a link that goes down
//! stays down until all is healed.
//!
//! | module | what it is |
//! |---|---|
//! | [`parameters`] | how much there is of everything |
//! | `work` | what processes do, drawn from the seed |
//! | `run` | one run of a plan |
//! | [`invariants`], `check` | what must be true of every run |
//! | `canary` | planted bugs |
//! | `draw` | plans from a seed, and those in which everything is tried |

mod canary;
mod check;
mod draw;
pub mod invariants;
pub mod parameters;
mod run;
pub(super) mod work;

use std::fmt;

use snaprig_hca::{Completion, Opcode, Status, Transport, faults};
use snaprig_sim::{Fault, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount};

use self::canary::Bug;
pub use self::{
    parameters::{Parameters, Workload},
    work::{LONGEST, Message},
};
use crate::scenario::{Invariant, Outcome, Scenario, Watch};

/// Its scenario.
pub const SCENARIO: &str = "verbs";
/// Bytes before the data of a datagram.
pub const GRH_BYTES: u32 = 40;

/// Verbs, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Verbs;

impl Scenario for Verbs {
    type Parameters = Parameters;
    type Canary = Bug;
    type End = Ended;

    fn names(&self) -> &'static [&'static str] {
        &[SCENARIO]
    }

    fn points(&self) -> &'static [Point] {
        faults::ALL
    }

    fn processes(&self, parameters: &Parameters) -> Vec<Process> {
        parameters.processes()
    }

    fn parameters(&self, random: &mut Random) -> Parameters {
        draw::parameters(random)
    }

    fn run(&self, plan: &Plan, parameters: &Parameters, watch: Watch<Bug>) -> Outcome<Ended> {
        run::run(plan, parameters, watch)
    }

    fn invariants(&self) -> &'static [Invariant<Ended>] {
        &invariants::ALL
    }

    fn impossible(&self, parameters: &Parameters) -> Option<String> {
        parameters.impossible()
    }

    fn amounts(&self) -> &'static [Amount<'static>] {
        &draw::AMOUNTS
    }

    fn draw(&self, seed: u64, fixed: &Fixed) -> Plan {
        draw::draw(seed, fixed)
    }

    fn undisturbed(&self) -> Vec<Plan> {
        draw::undisturbed()
    }

    fn deaths(&self, plan: &Plan) -> Vec<Fault> {
        draw::deaths_at_posts(&self.processes_of(plan))
    }
}

/// A request that was posted.
#[derive(Debug)]
pub struct Sent {
    /// What was asked.
    pub message: Message,
    /// Where its data is at the sender.
    pub local: u64,
    /// Where it goes to at the peer; of a read, where it comes from.
    pub remote: u64,
    /// Which data: [`Sent::data`].
    pub pattern: u8,
    /// When it was posted.
    pub posted_ns: u64,
}

impl Sent {
    /// The data.
    pub fn data(&self) -> Vec<u8> {
        data_of(self.pattern, self.message.length as usize)
    }
}

/// Bytes that tell where they come from; none is 0.
pub(super) fn data_of(pattern: u8, length: usize) -> Vec<u8> {
    let byte = |i: usize| (i as u8).wrapping_mul(5).wrapping_add((i >> 8) as u8);
    (0..length)
        .map(|i| byte(i).wrapping_add(pattern) | 1)
        .collect()
}

/// One end of a connection, and what happened there.
#[derive(Debug)]
pub struct Side {
    /// Whose it is.
    pub process: u32,
    /// Its service.
    pub transport: Transport,
    /// Its requests, in order.
    pub sent: Vec<Sent>,
    /// Where each of its receives is.
    pub receives: Vec<u64>,
    /// Completions of its requests.
    pub send_done: Vec<Completion>,
    /// Completions of its receives.
    pub receive_done: Vec<Completion>,
    /// Where the counter of its atomics is at the peer.
    pub counter: u64,
    /// Receives come from a shared queue.
    pub shared: bool,
    /// Its peer may be given up for having no receive.
    pub impatient: bool,
    /// Requests that were still not completed when nothing was to come any more.
    pub waiting: u32,
    /// After this long without an answer, its peer is to be given up.
    pub gives_up_ns: u64,
    /// When something last came, or began to go wrong, or its send queue went on.
    pub moved_ns: u64,
}

impl Side {
    /// How many requests of the send queue succeeded, signaled or not: all before the first failure.
    pub fn succeeded(&self) -> usize {
        let failed = self.first_failed();
        failed.map_or(self.sent.len(), |done| done.wr_id as usize)
    }

    /// The first request that failed.
    pub fn first_failed(&self) -> Option<&Completion> {
        let mut done = self.send_done.iter();
        done.find(|done| done.status != Status::Success)
    }

    /// The messages that came.
    pub fn arrived(&self) -> impl Iterator<Item = &Completion> {
        let done = self.receive_done.iter();
        done.filter(|done| done.status == Status::Success)
    }
}

/// The memory of each process that lives.
#[derive(Default)]
pub struct Memories(Vec<Option<Vec<u8>>>);

impl fmt::Debug for Memories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(Option::is_some))
            .finish()
    }
}

/// What there is to know of a run's end.
#[derive(Debug, Default)]
pub struct Ended {
    /// Both ends of each connection.
    pub connections: Vec<[Side; 2]>,
    /// What processes have in their memory.
    pub memories: Memories,
    /// Packets may have overtaken each other, or come twice.
    pub strange: bool,
}

impl Ended {
    /// Whether a process has not died.
    pub fn lives(&self, process: u32) -> bool {
        matches!(self.memories.0.get(process as usize), Some(Some(_)))
    }

    /// A part of the memory of a process that lives.
    pub fn get(&self, process: u32, at: u64, length: usize) -> &[u8] {
        let memory = self.memories.0.get(process as usize);
        let memory = memory.and_then(Option::as_deref).unwrap_or_default();
        memory.get(at as usize..).map_or(&[], |rest| {
            let end = length.min(rest.len());
            &rest[..end]
        })
    }

    /// How a side whose process lives, and its peer, break something.
    pub fn each(
        &self,
        check: impl Fn(&Self, &Side, &Side) -> Result<(), String>,
    ) -> Option<String> {
        let connections = self.connections.iter().enumerate();
        let sides = connections.flat_map(|(number, [a, b])| [(number, a, b), (number, b, a)]);
        let mut alive = sides.filter(|(_, side, _)| self.lives(side.process));
        alive.find_map(|(number, side, peer)| {
            let how = check(self, side, peer).err()?;
            Some(format!("connection {number}, {:?}: {how}", side.transport))
        })
    }

    /// That a message is in the receive that it came with, and nothing more.
    pub fn is_whole(
        &self,
        side: &Side,
        done: &Completion,
        sent: &Sent,
        head: u32,
    ) -> Result<(), String> {
        let length = sent.message.length + head;
        if done.length != length {
            return Err(format!("{} bytes, not {length}", done.length));
        }
        let at = side.receives.get(done.wr_id as usize);
        let at = *at.ok_or_else(|| format!("{} was not posted", done.wr_id))?;
        let buffer = self.get(side.process, at, (LONGEST + GRH_BYTES) as usize);
        let (data, rest) = buffer[head as usize..].split_at(sent.message.length as usize);
        let is_clean = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        // A receive of a message that was given up serves the next one.
        let reused = side.transport == Transport::Uc;
        match sent.message.opcode {
            Opcode::WriteImm if !reused && !is_clean(buffer) => {
                Err("a write touched the receive".into())
            }
            Opcode::WriteImm => Ok(()),
            _ if data != sent.data() => Err(format!("{:?} is damaged", sent.message)),
            _ if !reused && !is_clean(rest) => Err("more than the message was written".into()),
            _ => Ok(()),
        }
    }
}
