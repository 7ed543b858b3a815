//! A member's side, or that of somebody who orders and asks, as a machine.
//!
//! ```text
//!            Connect                Hello              Join               Welcome
//!   Apart ------------> Dialing ------------> Greeting ---------> Joining --------> Joined
//!     ^                   |                      |                  |                |
//!     '-------------------'----------------------'------------------'----------------'
//!           unreachable, closed, silent, or not who it should be: again, after a while
//!                        wrong token, version or job: Over
//! ```
//!
//! In a round, as the agent sees it:
//!
//! ```text
//!   (none) --Begin--> phase --done--> waits --Begin--> phase ... waits --Finished--> (none)
//!                       |               |
//!                       '---- Undo -----'---> undoes --done--> (none)
//! ```
//!
//! What must stay true: a member that has begun a round is told how to end it, by the coordinator or,
//! when that is lost, by this machine: nobody stays stopped. Who loses the coordinator after it has
//! written everything cannot know whether the checkpoint is complete ([`Event::Undo`], `in_doubt`):
//! the manifest tells, and what was written stays.

mod event;

use std::collections::BTreeSet;

use snaprig_peers::token::is_same;

use crate::{
    MS, Ns, SECOND,
    auth::{proof_of_coordinator, proof_of_peer},
    message::{
        Call, CallError, Nonce, Outcome, Refusal, Role, ToCoordinator, ToMember, VERSION, cut,
    },
    phase::{Order, Phase},
};
pub use event::{Config, Event, Input, Output};

/// How long after something was sent a member says that it is there.
pub const PING_NS: Ns = 5 * SECOND;
/// A coordinator that says nothing for so long is out of reach.
pub const SILENCE_NS: Ns = 20 * SECOND;
/// How long a coordinator may take to take a member in.
pub const JOIN_NS: Ns = 10 * SECOND;
/// How long to wait before the first new attempt to reach it; twice as long each time, but no
/// longer than [`RETRY_MAX_NS`].
pub const RETRY_NS: Ns = 50 * MS;
/// The longest of these.
pub const RETRY_MAX_NS: Ns = 2 * SECOND;
/// How much longer than a phase may take a member waits for what comes after it: the manifest is
/// written meanwhile.
pub const PATIENCE_NS: Ns = 60 * SECOND;

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Apart { retry_ns: Ns },
    Dialing,
    Greeting { nonce: Nonce, since_ns: Ns },
    Joining { since_ns: Ns },
    Joined,
    Over,
}

/// The round that the member is in.
#[derive(Debug)]
struct Current {
    round: u64,
    order: Order,
    phase: Phase,
    is_done: bool,
    /// When what comes next must have come.
    patience_ns: Option<Ns>,
}

impl Current {
    /// The agent has yet to do this phase of this round.
    fn is_at(&self, round: u64, phase: Phase) -> bool {
        (self.round, self.phase) == (round, phase) && !self.is_done
    }

    fn is_decided(&self) -> bool {
        self.order.kind.is_decided_in(self.phase)
    }

    fn is_in_doubt(&self) -> bool {
        self.is_done && self.order.kind.is_last_before_decision(self.phase)
    }
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    now: Ns,
    state: State,
    attempts: u32,
    heard_ns: Ns,
    sent_ns: Ns,
    /// Calls that wait.
    calls: BTreeSet<u64>,
    current: Option<Current>,
    /// How often the agent is to undo a round that this machine has given up. Until it says that it has, what it says is of
    /// that one: the next coordinator's round may have the same number.
    undoing: u32,
    /// Why it was apart last, as far as the agent knows.
    why: Option<String>,
    out: Vec<Output>,
}

impl Machine {
    /// A member that has not been anywhere yet. [`Input::Tick`] has it begin.
    pub fn new(config: Config, now: Ns) -> Self {
        Self {
            config,
            now,
            state: State::Apart { retry_ns: now },
            attempts: 0,
            heard_ns: now,
            sent_ns: now,
            calls: BTreeSet::new(),
            current: None,
            undoing: 0,
            why: None,
            out: Vec::new(),
        }
    }

    /// Something has happened. To be called again at [`Self::deadline`], if nothing happens before.
    pub fn handle(&mut self, input: Input, now: Ns) -> Vec<Output> {
        self.now = self.now.max(now);
        match input {
            Input::Connected { nonce } => self.connected(nonce),
            Input::Closed { why } => self.closed(why),
            Input::Message(message) => self.heard(message),
            Input::Call { id, call } => self.call(id, call),
            Input::Done {
                round,
                phase,
                result,
            } => self.done(round, phase, result),
            Input::GetsOn { round, phase } => self.gets_on(round, phase),
            Input::Renamed { name } => self.renamed(name),
            Input::Leave => self.leave(),
            Input::Tick => {}
        }
        self.expire();
        std::mem::take(&mut self.out)
    }

    /// When to call [`Self::handle`] at the latest.
    pub fn deadline(&self) -> Option<Ns> {
        match &self.state {
            State::Apart { retry_ns } => Some(*retry_ns),
            State::Greeting { since_ns, .. } | State::Joining { since_ns } => {
                Some(since_ns.saturating_add(JOIN_NS))
            }
            State::Joined => {
                let patience = self.current.as_ref().and_then(|at| at.patience_ns);
                let ping = self.sent_ns.saturating_add(PING_NS);
                let silence = self.heard_ns.saturating_add(SILENCE_NS);
                Some(ping.min(silence).min(patience.unwrap_or(Ns::MAX)))
            }
            State::Dialing | State::Over => None,
        }
    }

    /// Whether it is over: it has left, was refused, or has lost the coordinator and does not try
    /// again.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// The round that it is in, and the phase.
    pub fn round(&self) -> Option<(u64, Phase)> {
        let current = self.current.as_ref()?;
        Some((current.round, current.phase))
    }

    fn send(&mut self, message: ToCoordinator) {
        self.sent_ns = self.now;
        self.out.push(Output::Send(message));
    }

    fn event(&mut self, event: Event) {
        self.out.push(Output::Event(event));
    }

    fn connected(&mut self, nonce: Nonce) {
        if self.state != State::Dialing {
            return;
        }
        let since_ns = self.now;
        self.state = State::Greeting { nonce, since_ns };
        self.send(ToCoordinator::Hello {
            version: VERSION,
            nonce,
        });
    }

    fn closed(&mut self, why: String) {
        if !matches!(self.state, State::Apart { .. } | State::Over) {
            self.lost(why);
        }
    }

    /// There is no coordinator any more, or none yet.
    fn lost(&mut self, why: String) {
        let retry_ns = (RETRY_NS << self.attempts.min(16)).min(RETRY_MAX_NS);
        // Not all at once: up to half as long again, by chance, but no clock and no dice in here.
        let spread = match &self.config.role {
            Role::Member { incarnation, .. } => incarnation % 256,
            Role::Control => 0,
        };
        let retry_ns = self.now.saturating_add(retry_ns + retry_ns * spread / 512);
        self.attempts = self.attempts.saturating_add(1);
        self.part(State::Apart { retry_ns }, &why);
        if self.why.as_ref() != Some(&why) {
            self.why = Some(why.clone());
            self.event(Event::Apart { why });
        }
        if !self.config.is_persistent {
            self.state = State::Over;
        }
    }

    /// What waits for the coordinator waits no more.
    fn part(&mut self, state: State, why: &str) {
        self.state = state;
        for id in std::mem::take(&mut self.calls) {
            let error = CallError::Apart { why: why.into() };
            let result = Err(error);
            self.out.push(Output::Answer { id, result });
        }
        let Some(current) = self.current.take() else {
            return;
        };
        if current.is_decided() || current.phase == Phase::Undo && current.is_done {
            return;
        }
        self.undoing = self.undoing.saturating_add(1);
        if current.phase != Phase::Undo {
            self.event(Event::Undo {
                round: current.round,
                reason: format!("the coordinator is lost: {why}"),
                in_doubt: current.is_in_doubt(),
            });
        }
    }

    /// Ends the connection.
    fn hang_up(&mut self, why: &str) {
        self.out.push(Output::Close);
        self.lost(why.into());
    }

    fn heard(&mut self, message: ToMember) {
        self.heard_ns = self.now;
        let is_welcome = match (&self.state, message) {
            (State::Apart { .. } | State::Dialing | State::Over, _) => true,
            (_, ToMember::Refused(refusal)) => {
                self.refused(refusal);
                true
            }
            (
                State::Greeting { nonce, .. },
                ToMember::Challenge {
                    nonce: theirs,
                    proof,
                    ..
                },
            ) => {
                let own = *nonce;
                self.challenged(own, theirs, proof);
                true
            }
            (State::Joining { .. }, ToMember::Welcome) => {
                self.state = State::Joined;
                self.attempts = 0;
                self.why = None;
                self.event(Event::Joined);
                true
            }
            (State::Joined, message) => self.heard_joined(message),
            _ => false,
        };
        if !is_welcome {
            self.hang_up("the coordinator said what is not due");
        }
    }

    /// Whether that was due.
    fn heard_joined(&mut self, message: ToMember) -> bool {
        match message {
            ToMember::Pong => true,
            ToMember::Answer { id, result } => {
                let is_due = self.calls.remove(&id);
                if is_due {
                    self.out.push(Output::Answer { id, result });
                }
                is_due
            }
            ToMember::Begin {
                round,
                phase,
                order,
            } => self.begin(round, phase, order),
            ToMember::Undo { round, reason } => self.undo(round, reason),
            ToMember::Finished { round, outcome } => self.finished(round, outcome),
            ToMember::Refused(_) | ToMember::Challenge { .. } | ToMember::Welcome => false,
        }
    }

    fn refused(&mut self, refusal: Refusal) {
        self.out.push(Output::Close);
        match refusal {
            Refusal::Version { .. } | Refusal::Token | Refusal::Job { .. } => {
                self.part(State::Over, &refusal.to_string());
                self.event(Event::Refused(refusal));
            }
            Refusal::Taken { .. }
            | Refusal::Full { .. }
            | Refusal::Nonsense { .. }
            | Refusal::Silent { .. } => self.lost(refusal.to_string()),
        }
    }

    fn challenged(&mut self, own: Nonce, theirs: Nonce, proof: [u8; 32]) {
        let Config {
            job, token, role, ..
        } = &self.config;
        if !is_same(&proof_of_coordinator(token, &own, &theirs), &proof) {
            return self.hang_up("who answers there does not know the job's token");
        }
        let join = ToCoordinator::Join {
            job: job.clone(),
            role: role.clone(),
            proof: proof_of_peer(token, &own, &theirs, job, role),
        };
        let since_ns = self.now;
        self.state = State::Joining { since_ns };
        self.send(join);
    }

    fn begin(&mut self, round: u64, phase: Phase, order: Order) -> bool {
        let is_due = match &self.current {
            None => order.begins(self.name(), phase),
            Some(current) => {
                let next = current.order.kind.after(current.phase);
                current.is_done && current.round == round && next == Some(phase)
            }
        };
        if is_due {
            self.current = Some(Current {
                round,
                order: order.clone(),
                phase,
                is_done: false,
                patience_ns: None,
            });
            self.event(Event::Begin {
                round,
                phase,
                order,
            });
        }
        is_due
    }

    fn undo(&mut self, round: u64, reason: String) -> bool {
        let current = self.current.as_mut();
        let current = current.filter(|at| at.round == round && at.phase != Phase::Undo);
        let Some(current) = current.filter(|current| !current.is_decided()) else {
            return false;
        };
        current.phase = Phase::Undo;
        current.is_done = false;
        current.patience_ns = None;
        let in_doubt = false;
        self.event(Event::Undo {
            round,
            reason,
            in_doubt,
        });
        true
    }

    fn finished(&mut self, round: u64, outcome: Outcome) -> bool {
        match &self.current {
            // It has lost the coordinator meanwhile, and come again.
            None => true,
            Some(current) if current.round != round => true,
            Some(current) if current.is_done || current.is_decided() => {
                self.current = None;
                self.event(Event::Finished { round, outcome });
                true
            }
            Some(_) => false,
        }
    }

    fn call(&mut self, id: u64, call: Call) {
        let is_of_round = match &call {
            Call::Barrier { round, .. }
            | Call::Publish { round, .. }
            | Call::Lookup { round, .. }
            | Call::Collect { round, .. }
            | Call::Count { round, .. } => *round != 0,
            Call::Order(_) | Call::Status | Call::Forget { .. } => false,
        };
        let is_late = is_of_round && self.undoing > 0;
        if self.state == State::Joined && !is_late {
            self.calls.insert(id);
            return self.send(ToCoordinator::Call { id, call });
        }
        let why = self.why.clone();
        let why = why.unwrap_or_else(|| "it has not been reached yet".into());
        let result = Err(CallError::Apart { why });
        self.out.push(Output::Answer { id, result });
    }

    /// What has been undone meanwhile is not of interest any more.
    fn done(&mut self, round: u64, phase: Phase, result: Result<String, String>) {
        if self.undoing > 0 {
            self.undoing -= u32::from(phase == Phase::Undo);
            return;
        }
        let now = self.now;
        let current = self.current.as_mut();
        let current = current.filter(|current| current.is_at(round, phase));
        if let Some(current) = current {
            current.is_done = true;
            // Once it is decided, it waits for nothing but the end of it, however long others need.
            let waits_ns = Ns::from(current.order.phase_ms) * MS + PATIENCE_NS;
            current.patience_ns = (!current.is_decided()).then_some(now.saturating_add(waits_ns));
            let result = result.map_err(cut);
            self.send(ToCoordinator::Done {
                round,
                phase,
                result,
            });
        }
    }

    fn gets_on(&mut self, round: u64, phase: Phase) {
        let current = self.current.as_ref();
        let is_at_it = current.is_some_and(|current| current.is_at(round, phase));
        if is_at_it && self.undoing == 0 {
            // However often it goes, nobody answers to it: that the coordinator is there is heard from pings, which go as well.
            let gets_on = ToCoordinator::GetsOn { round, phase };
            self.out.push(Output::Send(gets_on));
        }
    }

    fn name(&self) -> &str {
        match &self.config.role {
            Role::Member { name, .. } => name,
            Role::Control => "",
        }
    }

    /// A coordinator that has decided it has done the same. Any other knows the member by the name that it had: it comes
    /// again, and does not say that the one of that name leaves, who may be somebody else by now.
    fn renamed(&mut self, new: String) {
        if let Role::Member { name, is_heir, .. } = &mut self.config.role {
            (*name, *is_heir) = (new, !*is_heir);
        }
        let is_known = self.current.as_ref().is_some_and(Current::is_decided);
        if !is_known && !matches!(self.state, State::Apart { .. } | State::Over) {
            self.hang_up("it has another name");
        }
    }

    fn leave(&mut self) {
        if self.state == State::Joined && matches!(self.config.role, Role::Member { .. }) {
            self.send(ToCoordinator::Leave);
        }
        if !matches!(self.state, State::Apart { .. } | State::Over) {
            self.out.push(Output::Close);
        }
        self.part(State::Over, "the member has left");
    }

    fn expire(&mut self) {
        let is_past = |then: Ns, after: Ns| then.saturating_add(after) <= self.now;
        match &self.state {
            State::Apart { retry_ns } if *retry_ns <= self.now => {
                self.state = State::Dialing;
                self.out.push(Output::Connect);
            }
            State::Greeting { since_ns, .. } | State::Joining { since_ns }
                if is_past(*since_ns, JOIN_NS) =>
            {
                self.hang_up("the coordinator does not answer");
            }
            State::Joined if is_past(self.heard_ns, SILENCE_NS) => {
                self.hang_up("the coordinator does not answer any more");
            }
            State::Joined => {
                let patience = self.current.as_ref().and_then(|at| at.patience_ns);
                if patience.is_some_and(|patience| patience <= self.now) {
                    self.hang_up("the coordinator does not go on with a round");
                } else if is_past(self.sent_ns, PING_NS) {
                    self.send(ToCoordinator::Ping);
                }
            }
            State::Apart { .. } | State::Greeting { .. } | State::Joining { .. } => {}
            State::Dialing | State::Over => {}
        }
    }
}
