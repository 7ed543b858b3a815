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
//! happens, and its caller is told of one result or one error, and before that of its beginning; while the process is paused its loss
//! fails nobody who can wait for a successor. A result that comes between `Settle` and `Resume` is of
//! a process that runs again already, while its host does not know: it waits for `Resume`, and is
//! void if the process is lost before, because a successor will send it again. So are notices.

mod progress;
mod results;
#[cfg(test)]
mod tests;
mod told;
mod words;

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{Hash, Hasher},
    time::Duration,
};

use snaprig_offload_wire::coi::{
    Answer, Command, Exit, FromDaemon, Notice, PIPELINES_MAX, RunFunction, RunResult,
};
use snaprig_wire::scif::NodeId;

use self::told::Told;
pub use self::words::{Generation, Input, Link, Output, Region, Ticket, Value};
use crate::CoiError;

/// How long the daemon may take to say what became of a process whose link broke.
const GRACE: Duration = Duration::from_secs(5);

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
    /// There is one of this number now.
    live: bool,
    /// Run functions ever sent, and results ever received, whoever had the number.
    sent: u64,
    received: u64,
    queue: VecDeque<(Ticket, RunFunction)>,
    in_flight: Option<Ticket>,
    /// Its caller was told that it has begun.
    begun: bool,
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
    settler: Option<(Ticket, Vec<u64>, u64)>,
    settled: bool,
    /// Results that came since, by pipeline, and notices.
    early: BTreeMap<u32, RunResult>,
    early_notices: VecDeque<Notice>,
    /// Notices ever received.
    notices: u64,
    /// What waits for references that are still to be told of.
    told: Told,
    /// Everybody was told that the process is gone.
    gone: bool,
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
            early_notices: VecDeque::new(),
            notices: 0,
            told: Told::default(),
            gone: false,
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

    /// The numbers of the pipelines that there are.
    pub fn live_pipelines(&self) -> Vec<u32> {
        let numbers = (0..).zip(&self.pipelines);
        numbers
            .filter(|(_, pipeline)| pipeline.live)
            .map(|(number, _)| number)
            .collect()
    }

    /// The smallest number that no pipeline has.
    pub fn free_pipeline(&self) -> Option<u32> {
        let mut used = self.pipelines.iter();
        let free = used.position(|pipeline| !pipeline.live);
        let number = free.unwrap_or(self.pipelines.len()) as u32;
        (number < PIPELINES_MAX).then_some(number)
    }

    /// How the process ended, once it is known and there is no hope of a successor.
    pub fn end(&self) -> Option<CoiError> {
        self.gone.then(|| self.death())
    }

    /// Whether somebody waits for the process: with a call, a transfer, a run function, sent or not, or for its end.
    pub fn is_wanted(&self) -> bool {
        let regions = [&self.lifecycle, &self.rdma].into_iter();
        let inside = regions.map(|region| region.inside + region.waiting.len());
        // The marker of a pause is nobody's call.
        let in_command = self.in_command.is_some() && self.pause < Pause::Marker;
        let mut pipelines = self.pipelines.iter();
        inside.sum::<usize>() > 0
            || in_command
            || !(self.commands.is_empty() && self.enders.is_empty())
            || pipelines.any(|one| one.in_flight.is_some() || !one.queue.is_empty())
    }

    /// Between the beginning of a pause and resume.
    pub fn is_paused(&self) -> bool {
        self.pause != Pause::No
    }

    /// Whether it is ended on purpose, for its snapshot to go on elsewhere.
    pub fn is_swapped_out(&self) -> bool {
        self.swapped_out
    }

    /// Lets a caller into a region at once, as [`Input::Enter`] would; false if it has to come with a ticket.
    pub fn pass(&mut self, region: Region) -> bool {
        let open = self.is_open(region) && self.fate.is_none();
        let region = self.region(region);
        let passes = open && region.waiting.is_empty();
        region.inside += usize::from(passes);
        passes
    }

    /// A caller has passed, and nobody waits for that; false if it has to be said with [`Input::Leave`].
    pub fn leave(&mut self, region: Region) -> bool {
        let unheeded = self.pause == Pause::No;
        if unheeded {
            self.left(region);
        }
        unheeded
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
        (
            self.settled,
            self.early.is_empty(),
            self.early_notices.is_empty(),
            self.gone,
            self.told.is_empty(),
        )
            .hash(hash);
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
            Input::Leave(region) => self.left(region),
            Input::Command(ticket, command) => self.commands.push_back((ticket, command)),
            Input::AddPipeline(number) if number < PIPELINES_MAX => {
                let number = number as usize;
                if self.pipelines.len() <= number {
                    self.pipelines.resize_with(number + 1, Pipeline::default);
                }
                self.pipelines[number].live = true;
            }
            Input::AddPipeline(_) => {}
            Input::RemovePipeline(number) => self.remove_pipeline(number),
            Input::Run(ticket, number, function) => match self.pipelines.get_mut(number as usize) {
                Some(pipeline) if pipeline.live => pipeline.queue.push_back((ticket, function)),
                _ => self.fail(ticket, CoiError::InvalidHandle("no such pipeline".into())),
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
            Input::Settle(ticket, counts, notices) => {
                self.settler = Some((ticket, counts, notices));
            }
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
            Input::Notice(generation, notice) if generation == self.generation => {
                self.notice(notice);
            }
            Input::Result(generation, number, result) if generation == self.generation => {
                self.result(number, result);
            }
            Input::Lost(generation, link) if generation == self.generation => self.lost(link, now),
            Input::Sent(..)
            | Input::Daemon(..)
            | Input::Answer(..)
            | Input::Result(..)
            | Input::Notice(..)
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

    fn left(&mut self, region: Region) {
        let region = self.region(region);
        region.inside = region.inside.saturating_sub(1);
    }

    /// Whether the pause, if there is one, has not come to it.
    fn is_open(&self, region: Region) -> bool {
        self.pause
            < match region {
                Region::Lifecycle => Pause::Lifecycle,
                Region::Rdma => Pause::Rdma,
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
        if matches!(self.settler, Some((settler, ..)) if settler == ticket) {
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
        self.early_notices.clear();
    }

    fn resume(&mut self, now: Duration) {
        (self.pause, self.pauser) = (Pause::No, None);
        self.hold_at = self.hold_next.take();
        self.swapped_out = false;
        for notice in std::mem::take(&mut self.early_notices) {
            self.notice(notice);
        }
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
            FromDaemon::SwappedOut => self.swapped_out = true,
            // Whatever it died of meanwhile, its snapshot is there.
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
            Answer::Failed { errno, why } => {
                let node = self.node;
                self.fail(ticket, CoiError::Refused { node, errno, why });
            }
            answer => self.done(ticket, Value::Answer(answer)),
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
}
