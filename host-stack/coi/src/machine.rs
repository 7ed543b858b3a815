//! An offload process as its host process sees it: the four cases of channel use of the paper's
//! section 4.1, their locks, and what becomes of callers when the process ends, moves, or is lost.
//!
//! ```text
//!            Pause                                       answer to the marker
//!  Running --------> Lifecycle -> Rdma -> Commands -> Marker ------------> Sends -> Paused
//!     ^   |             (each: closed, then waits until nobody is inside)             |  ^
//!     |   '------------------------- Resume --------------------------<---------------'  | Moved
//!     |                                                                               '--'
//!     '-- fate known (exit, card lost) and not paused: everybody fails, now and later
//! ```
//!
//! Callers come with a ticket and are told exactly once, with [`Output::Done`], unless they give
//! up. Links belong to a generation, which [`Input::Moved`] ends: what an old link still says is
//! void.
//!
//! What must stay true: between the pause's `Done` and `Resume` the host sends nothing, and when
//! `Settle` is done it has received all that was sent to it; a run function is sent once, whatever
//! happens, and its caller is told of one result or one error; while the process is paused its loss
//! fails nobody who can wait for a successor. A result that comes between `Settle` and `Resume` is of
//! a process that runs again already, while its host does not know: it waits for `Resume`, and is
//! void if the process is lost before, because a successor will send it again.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
    time::Duration,
};

use snaprig_wire::{
    coi::{Answer, Command, Exit, FromDaemon, PIPELINES_MAX, RunFunction, RunResult},
    scif::NodeId,
};

use crate::CoiError;

/// A caller's number for its call, new for each call.
pub type Ticket = u64;
/// Which connections a link is one of: counts the moves of the process.
pub type Generation = u64;

/// How long the daemon may take to say what became of a process whose link broke.
const GRACE: Duration = Duration::from_secs(5);

/// A region that callers pass through and pause closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Case 1: creating and destroying processes, pipelines and buffers.
    Lifecycle,
    /// Case 2: RDMA.
    Rdma,
}

/// A connection that carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// To the daemon, which tells of the process's end.
    Control,
    /// Case 3.
    Command,
    /// Case 4, of this pipeline.
    Pipeline(u32),
}

/// What happens. Times are since any fixed point.
#[derive(Clone, Debug)]
pub enum Input {
    /// A caller wants to pass through a region.
    Enter(Ticket, Region),
    /// It has passed.
    Leave(Region),
    /// Case 3: a command for the process.
    Command(Ticket, Command),
    /// There is one more pipeline: the next number.
    AddPipeline,
    /// Case 4: a run function for a pipeline.
    Run(Ticket, u32, RunFunction),
    /// [`Output::Run`] of this pipeline is done.
    Sent(Generation, u32),
    /// Tell when this many run functions have been sent, and send no more before resume; said while
    /// the process is paused, before the resume after that one.
    HoldAt(Ticket, u64),
    /// Tell how the process ends.
    End(Ticket),
    /// A call failed on a connection: tell what became of the process.
    Broken(Ticket),
    /// The caller gives up.
    GiveUp(Ticket),
    /// Close all regions; `Done` when the host sends nothing any more.
    Pause(Ticket),
    /// While it is paused: tell when this many results of each pipeline have ever been received.
    Settle(Ticket, Vec<u64>),
    /// The process's end is (or is not any more) on purpose: it is swapped out.
    SwappedOut(bool),
    /// The process is back, paused, with new links.
    Moved {
        /// Its card.
        node: NodeId,
        /// Its id there.
        pid: i32,
    },
    /// While it is paused: ask for the windows of all buffers.
    Windows(Ticket),
    /// Open all regions.
    Resume,
    /// The daemon said this.
    Daemon(Generation, FromDaemon),
    /// The process answered a command.
    Answer(Generation, Answer),
    /// A run function of this pipeline returned.
    Result(Generation, u32, RunResult),
    /// A link broke.
    Lost(Generation, Link),
    /// The host's SCIF node is gone, and with it every hope of a successor.
    RigGone,
    /// [`Machine::deadline`] has come.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send this on the command link.
    Command(Generation, Command),
    /// Send this on the pipeline's link, then say [`Input::Sent`].
    Run(Generation, u32, RunFunction),
    /// The call has ended.
    Done(Ticket, Result<Value, CoiError>),
}

/// How a call ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing to tell.
    Unit,
    /// The process's answer.
    Answer(Answer),
    /// The value that a run function returned.
    Returned(Vec<u8>),
    /// How the process ended.
    Exit(Exit),
}

/// How far a pause is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Pause {
    No,
    Lifecycle,
    Rdma,
    Commands,
    Marker,
    Sends,
    Paused,
}

#[derive(Debug, Default)]
struct Waiters {
    inside: usize,
    waiting: VecDeque<Ticket>,
}

#[derive(Debug, Default)]
struct Pipeline {
    /// Run functions ever sent, and results ever received.
    sent: u64,
    received: u64,
    queue: VecDeque<(Ticket, RunFunction)>,
    in_flight: Option<Ticket>,
    /// Handed out and not yet confirmed.
    sending: bool,
}

/// The machine: [`Machine::handle`] everything that happens, then [`Machine::poll_output`].
#[derive(Debug)]
pub struct Machine {
    node: NodeId,
    pid: i32,
    generation: Generation,
    /// How the process ended; `Err` if its card is lost.
    fate: Option<Result<Exit, ()>>,
    /// A link broke, and the daemon has until then to say why.
    suspect: Option<Duration>,
    /// A link of this generation broke while the process was paused.
    broken: bool,
    swapped_out: bool,
    /// The rig is gone.
    forsaken: bool,
    pause: Pause,
    pauser: Option<Ticket>,
    settler: Option<(Ticket, Vec<u64>)>,
    settled: bool,
    /// Results that came since, by pipeline.
    early: BTreeMap<u32, RunResult>,
    lifecycle: Waiters,
    rdma: Waiters,
    commands: VecDeque<(Ticket, Command)>,
    in_command: Option<Ticket>,
    pipelines: Vec<Pipeline>,
    started: u64,
    finished: u64,
    hold_at: Option<u64>,
    /// The same from resume on.
    hold_next: Option<u64>,
    holders: Vec<(u64, Ticket)>,
    /// Who waits for the end as such, and who for what became of a broken link.
    enders: Vec<(Ticket, bool)>,
    outputs: VecDeque<Output>,
}

impl Machine {
    /// For a process that has just been made and connected to.
    pub fn new(node: NodeId, pid: i32) -> Self {
        Self {
            node,
            pid,
            generation: 0,
            fate: None,
            suspect: None,
            broken: false,
            swapped_out: false,
            forsaken: false,
            pause: Pause::No,
            pauser: None,
            settler: None,
            settled: false,
            early: BTreeMap::new(),
            lifecycle: Waiters::default(),
            rdma: Waiters::default(),
            commands: VecDeque::new(),
            in_command: None,
            pipelines: Vec::new(),
            started: 0,
            finished: 0,
            hold_at: None,
            hold_next: None,
            holders: Vec::new(),
            enders: Vec::new(),
            outputs: VecDeque::new(),
        }
    }

    /// The process's card and id.
    pub fn place(&self) -> (NodeId, i32) {
        (self.node, self.pid)
    }

    /// The generation of the links of now.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Run functions that were sent, and whose results came back.
    pub fn counts(&self) -> (u64, u64) {
        (self.started, self.finished)
    }

    /// Run functions ever sent, pipeline by pipeline.
    pub fn sent(&self) -> Vec<u64> {
        self.pipelines
            .iter()
            .map(|pipeline| pipeline.sent)
            .collect()
    }

    /// Between the beginning of a pause and resume.
    pub fn is_paused(&self) -> bool {
        self.pause != Pause::No
    }

    /// When [`Input::Tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.suspect
    }

    /// Takes into a hash what decides what it does next, but for numbers and times: to count the
    /// states that an exhaustive search has seen.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        let fate = self.fate.map(|fate| fate.is_ok());
        (self.pause, fate, self.suspect.is_some(), self.broken).hash(hash);
        (self.swapped_out, self.forsaken, self.in_command.is_some()).hash(hash);
        (
            self.pauser.is_some(),
            self.settler.is_some(),
            self.commands.is_empty(),
        )
            .hash(hash);
        (self.settled, self.early.is_empty()).hash(hash);
        for region in [&self.lifecycle, &self.rdma] {
            (region.inside > 0, region.waiting.is_empty()).hash(hash);
        }
        for pipeline in &self.pipelines {
            (
                pipeline.queue.is_empty(),
                pipeline.in_flight.is_some(),
                pipeline.sending,
            )
                .hash(hash);
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes note of what happened at `now`.
    pub fn handle(&mut self, input: Input, now: Duration) {
        match input {
            Input::Enter(ticket, region) => self.region(region).waiting.push_back(ticket),
            Input::Leave(region) => {
                let region = self.region(region);
                region.inside = region.inside.saturating_sub(1);
            }
            Input::Command(ticket, command) => self.commands.push_back((ticket, command)),
            Input::AddPipeline => {
                if self.pipelines.len() < PIPELINES_MAX as usize {
                    self.pipelines.push(Pipeline::default());
                }
            }
            Input::Run(ticket, number, function) => match self.pipelines.get_mut(number as usize) {
                Some(pipeline) => pipeline.queue.push_back((ticket, function)),
                None => self.fail(ticket, CoiError::OutOfRange("no such pipeline".into())),
            },
            Input::HoldAt(ticket, count) => {
                match self.pause {
                    Pause::Paused => self.hold_next = Some(count),
                    _ => self.hold_at = Some(count),
                }
                self.holders.push((count, ticket));
            }
            Input::End(ticket) => self.enders.push((ticket, true)),
            Input::Broken(ticket) => {
                self.enders.push((ticket, false));
                self.suspect(now);
            }
            Input::GiveUp(ticket) => self.give_up(ticket),
            Input::Pause(ticket) => self.begin_pause(ticket),
            Input::Settle(ticket, counts) => self.settler = Some((ticket, counts)),
            Input::SwappedOut(is) => self.swapped_out = is,
            Input::Moved { node, pid } => self.moved(node, pid),
            Input::Windows(ticket) => self.windows(ticket),
            Input::Resume => self.resume(now),
            Input::RigGone => (self.fate, self.forsaken) = (Some(Err(())), true),
            Input::Tick => {
                if self.suspect.is_some_and(|due| due <= now) {
                    self.fate = Some(Err(()));
                }
            }
            Input::Sent(generation, number) if generation == self.generation => {
                self.is_sent(number);
            }
            Input::Daemon(generation, message) if generation == self.generation => {
                self.daemon(message);
            }
            Input::Answer(generation, answer) if generation == self.generation => {
                self.answer(answer);
            }
            Input::Result(generation, number, result) if generation == self.generation => {
                self.result(number, result);
            }
            Input::Lost(generation, link) if generation == self.generation => self.lost(link, now),
            Input::Sent(..)
            | Input::Daemon(..)
            | Input::Answer(..)
            | Input::Result(..)
            | Input::Lost(..) => {}
        }
        self.go_on();
    }

    fn region(&mut self, region: Region) -> &mut Waiters {
        match region {
            Region::Lifecycle => &mut self.lifecycle,
            Region::Rdma => &mut self.rdma,
        }
    }

    fn done(&mut self, ticket: Ticket, value: Value) {
        self.outputs.push_back(Output::Done(ticket, Ok(value)));
    }

    fn fail(&mut self, ticket: Ticket, error: CoiError) {
        self.outputs.push_back(Output::Done(ticket, Err(error)));
    }

    fn give_up(&mut self, ticket: Ticket) {
        for region in [&mut self.lifecycle, &mut self.rdma] {
            region.waiting.retain(|other| *other != ticket);
        }
        self.commands.retain(|(other, _)| *other != ticket);
        self.holders.retain(|(_, other)| *other != ticket);
        self.enders.retain(|(other, _)| *other != ticket);
        if self.pauser == Some(ticket) {
            // Whoever paused must still resume.
            self.pauser = None;
        }
        if matches!(self.settler, Some((settler, _)) if settler == ticket) {
            self.settler = None;
        }
    }

    fn begin_pause(&mut self, ticket: Ticket) {
        if self.pause != Pause::No {
            let what = "the process is paused already; resume it first".into();
            return self.fail(ticket, CoiError::OutOfRange(what));
        }
        (self.pause, self.pauser, self.settled) = (Pause::Lifecycle, Some(ticket), false);
    }

    fn windows(&mut self, ticket: Ticket) {
        if self.pause != Pause::Paused || self.in_command.is_some() || self.fate.is_some() {
            let error = self.death();
            return self.fail(ticket, error);
        }
        self.send_command(ticket, Command::Windows);
    }

    fn moved(&mut self, node: NodeId, pid: i32) {
        (self.node, self.pid) = (node, pid);
        self.generation += 1;
        (self.fate, self.suspect, self.broken) = (None, None, false);
        self.swapped_out = false;
        self.in_command = None;
        self.early.clear();
    }

    fn resume(&mut self, now: Duration) {
        (self.pause, self.pauser) = (Pause::No, None);
        self.hold_at = self.hold_next.take();
        self.swapped_out = false;
        for (number, result) in std::mem::take(&mut self.early) {
            self.result(number, result);
        }
        if std::mem::take(&mut self.broken) {
            self.suspect(now);
        }
    }

    fn suspect(&mut self, now: Duration) {
        if self.fate.is_none() && self.suspect.is_none() {
            self.suspect = Some(now + GRACE);
        }
    }

    fn is_sent(&mut self, number: u32) {
        if let Some(pipeline) = self.pipelines.get_mut(number as usize) {
            pipeline.sending = false;
        }
    }

    fn daemon(&mut self, message: FromDaemon) {
        match message {
            FromDaemon::Exited(_) if self.swapped_out => {}
            FromDaemon::Exited(exit) => self.fate = Some(Ok(exit)),
            _ => self.fate = Some(Err(())),
        }
    }

    fn answer(&mut self, answer: Answer) {
        let Some(ticket) = self.in_command.take() else {
            self.fate = Some(Err(()));
            return;
        };
        if self.pause == Pause::Marker {
            match answer {
                Answer::Done => self.pause = Pause::Sends,
                _ => self.fail_pause(CoiError::Protocol {
                    node: self.node,
                    what: "the Shutdown marker",
                }),
            }
            return;
        }
        match answer {
            Answer::Failed { why, .. } => {
                let node = self.node;
                self.fail(ticket, CoiError::Refused { node, why });
            }
            answer => self.done(ticket, Value::Answer(answer)),
        }
    }

    fn result(&mut self, number: u32, result: RunResult) {
        if self.pause == Pause::Paused && self.settled {
            if self.early.insert(number, result).is_some() {
                self.fate = Some(Err(()));
            }
            return;
        }
        let pipeline = self.pipelines.get_mut(number as usize);
        let taken = pipeline.and_then(|pipeline| {
            pipeline.received += 1;
            pipeline.in_flight.take()
        });
        let Some(ticket) = taken else {
            // A result that nobody asked for: the process makes no sense any more.
            self.fate = Some(Err(()));
            return;
        };
        self.finished += 1;
        match result {
            RunResult::Returned(value) => self.done(ticket, Value::Returned(value)),
            RunResult::Refused(why) => {
                let node = self.node;
                self.fail(ticket, CoiError::Refused { node, why });
            }
        }
    }

    fn lost(&mut self, link: Link, now: Duration) {
        if let Link::Pipeline(number) = link {
            self.is_sent(number);
        }
        match link {
            // Its last word was the process's end.
            Link::Control if self.fate.is_some() => {}
            // A swapped-out process has no daemon that looks after it.
            Link::Control if self.swapped_out => {}
            Link::Control => self.fate = Some(Err(())),
            _ if self.pause == Pause::Paused => {
                self.broken = true;
                self.fail_paused_calls();
            }
            _ => self.suspect(now),
        }
    }

    /// Why nothing works any more.
    fn death(&self) -> CoiError {
        let (node, pid) = (self.node, self.pid);
        match self.fate {
            Some(Ok(exit)) => CoiError::ProcessDied { pid, node, exit },
            _ => CoiError::CardLost { node },
        }
    }

    /// Does whatever can be done now.
    fn go_on(&mut self) {
        if let Some(fate) = self.fate {
            self.suspect = None;
            self.tell_the_end(fate);
            match self.pause {
                _ if self.forsaken => {
                    let error = self.death();
                    self.fail_pause(error);
                    self.fail_paused_calls();
                    return self.fail_everybody();
                }
                Pause::No => return self.fail_everybody(),
                Pause::Paused => self.fail_paused_calls(),
                _ => {
                    let error = self.death();
                    self.fail_pause(error);
                }
            }
        }
        self.let_in();
        self.next_command();
        self.advance_pause();
        self.next_runs();
        self.settle();
        let started = self.started;
        let mut reached = Vec::new();
        self.holders.retain(|(count, ticket)| {
            let there = *count <= started;
            if there {
                reached.push(*ticket);
            }
            !there
        });
        for ticket in reached {
            self.done(ticket, Value::Unit);
        }
    }

    fn let_in(&mut self) {
        for (region, closed_at) in [
            (Region::Lifecycle, Pause::Lifecycle),
            (Region::Rdma, Pause::Rdma),
        ] {
            while self.pause < closed_at {
                let region = self.region(region);
                let Some(ticket) = region.waiting.pop_front() else {
                    break;
                };
                region.inside += 1;
                self.done(ticket, Value::Unit);
            }
        }
    }

    fn next_command(&mut self) {
        if self.pause >= Pause::Commands || self.in_command.is_some() {
            return;
        }
        if let Some((ticket, command)) = self.commands.pop_front() {
            self.send_command(ticket, command);
        }
    }

    fn send_command(&mut self, ticket: Ticket, command: Command) {
        self.in_command = Some(ticket);
        let generation = self.generation;
        self.outputs.push_back(Output::Command(generation, command));
    }

    fn advance_pause(&mut self) {
        if self.pause == Pause::Lifecycle && self.lifecycle.inside == 0 {
            self.pause = Pause::Rdma;
        }
        if self.pause == Pause::Rdma && self.rdma.inside == 0 {
            self.pause = Pause::Commands;
        }
        if self.pause == Pause::Commands && self.in_command.is_none() {
            self.pause = Pause::Marker;
            self.send_command(self.pauser.unwrap_or_default(), Command::Shutdown);
        }
        if self.pause == Pause::Sends && !self.pipelines.iter().any(|one| one.sending) {
            self.pause = Pause::Paused;
            if let Some(ticket) = self.pauser.take() {
                self.done(ticket, Value::Unit);
            }
        }
    }

    fn settle(&mut self) {
        let Some((ticket, counts)) = &self.settler else {
            return;
        };
        let mut received = self.pipelines.iter().map(|pipeline| pipeline.received);
        if counts
            .iter()
            .all(|count| *count <= received.next().unwrap_or(0))
        {
            let ticket = *ticket;
            (self.settler, self.settled) = (None, true);
            self.done(ticket, Value::Unit);
        }
    }

    fn next_runs(&mut self) {
        for number in 0..self.pipelines.len() {
            let held = self.hold_at.is_some_and(|at| self.started >= at);
            let pipeline = &mut self.pipelines[number];
            if self.pause >= Pause::Sends || held || pipeline.in_flight.is_some() {
                continue;
            }
            if let Some((ticket, function)) = pipeline.queue.pop_front() {
                (pipeline.in_flight, pipeline.sending) = (Some(ticket), true);
                pipeline.sent += 1;
                self.started += 1;
                let (generation, number) = (self.generation, number as u32);
                self.outputs
                    .push_back(Output::Run(generation, number, function));
            }
        }
    }

    fn fail_pause(&mut self, error: CoiError) {
        if self.pause == Pause::Marker {
            // The command in flight is the pause's own.
            self.in_command = None;
        }
        if self.pause != Pause::No {
            self.pause = Pause::Paused;
        }
        if let Some(ticket) = self.pauser.take() {
            self.fail(ticket, error);
        }
    }

    /// What goes on while the process is paused.
    fn fail_paused_calls(&mut self) {
        let settler = self.settler.take().map(|(ticket, _)| ticket);
        for ticket in self.in_command.take().into_iter().chain(settler) {
            let error = self.death();
            self.fail(ticket, error);
        }
    }

    fn tell_the_end(&mut self, fate: Result<Exit, ()>) {
        // A lost card can be replaced as long as the process is paused.
        let all = self.pause == Pause::No || fate.is_ok() || self.forsaken;
        for (ticket, as_such) in std::mem::take(&mut self.enders) {
            match fate {
                Ok(exit) if as_such => self.done(ticket, Value::Exit(exit)),
                _ if all || !as_such => {
                    let error = self.death();
                    self.fail(ticket, error);
                }
                _ => self.enders.push((ticket, as_such)),
            }
        }
    }

    fn fail_everybody(&mut self) {
        let mut tickets = BTreeSet::new();
        for region in [&mut self.lifecycle, &mut self.rdma] {
            tickets.extend(region.waiting.drain(..));
        }
        tickets.extend(self.commands.drain(..).map(|(ticket, _)| ticket));
        tickets.extend(self.in_command.take());
        for pipeline in &mut self.pipelines {
            tickets.extend(pipeline.queue.drain(..).map(|(ticket, _)| ticket));
            tickets.extend(pipeline.in_flight.take());
            pipeline.sending = false;
        }
        tickets.extend(self.holders.drain(..).map(|(_, ticket)| ticket));
        for ticket in tickets {
            let error = self.death();
            self.fail(ticket, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn function() -> RunFunction {
        RunFunction {
            function: 1,
            buffers: vec![],
            misc: vec![],
            return_len: 1,
        }
    }

    /// A process with one run function (ticket 1) in flight, paused and settled.
    fn paused() -> Machine {
        let mut machine = Machine::new(1, 7);
        for input in [
            Input::AddPipeline,
            Input::Run(1, 0, function()),
            Input::Sent(0, 0),
            Input::Pause(2),
            Input::Answer(0, Answer::Done),
            Input::Settle(3, vec![0]),
        ] {
            machine.handle(input, NOW);
        }
        assert_eq!(told(&mut machine), [(2, true), (3, true)]);
        machine
    }

    /// Who has been told since, and whether it ended well.
    fn told(machine: &mut Machine) -> Vec<(Ticket, bool)> {
        std::iter::from_fn(|| machine.poll_output())
            .filter_map(|output| match output {
                Output::Done(ticket, result) => Some((ticket, result.is_ok())),
                _ => None,
            })
            .collect()
    }

    fn result(value: u8) -> RunResult {
        RunResult::Returned(vec![value])
    }

    #[test]
    fn a_result_that_comes_before_resume_is_confirmed_waits_for_it() {
        let mut machine = paused();
        machine.handle(Input::Result(0, 0, result(1)), NOW);
        assert_eq!(told(&mut machine), []);
        machine.handle(Input::Resume, NOW);
        assert_eq!(told(&mut machine), [(1, true)]);
    }

    #[test]
    fn a_hold_that_is_set_while_paused_holds_from_resume_on_until_the_next_one() {
        let mut machine = paused();
        for input in [
            Input::HoldAt(4, 0),
            Input::Run(5, 0, function()),
            Input::Resume,
            Input::Result(0, 0, result(1)),
        ] {
            machine.handle(input, NOW);
        }
        assert_eq!(told(&mut machine), [(4, true), (1, true)]);
        assert_eq!(machine.counts(), (1, 1));
        for input in [
            Input::Pause(6),
            Input::Answer(0, Answer::Done),
            Input::Resume,
        ] {
            machine.handle(input, NOW);
        }
        assert_eq!(machine.counts(), (2, 1));
    }

    #[test]
    fn it_is_void_if_a_successor_comes_instead() {
        let mut machine = paused();
        machine.handle(Input::Result(0, 0, result(1)), NOW);
        machine.handle(Input::Lost(0, Link::Control), NOW);
        machine.handle(Input::Moved { node: 2, pid: 7 }, NOW);
        machine.handle(Input::Resume, NOW);
        assert_eq!(told(&mut machine), []);
        machine.handle(Input::Result(1, 0, result(1)), NOW);
        assert_eq!(told(&mut machine), [(1, true)]);
    }

    #[test]
    fn a_pipeline_has_one_result_at_a_time_or_makes_no_sense() {
        let mut machine = paused();
        for value in [1, 2] {
            machine.handle(Input::Result(0, 0, result(value)), NOW);
        }
        machine.handle(Input::Resume, NOW);
        machine.handle(Input::End(4), NOW);
        assert_eq!(told(&mut machine), [(1, true), (4, false)]);
    }
}
