//! The side that a tree leaves. It may let its tree go on until it has written down that it says Go; from then on it
//! asks until it is told what has become of the tree.

use snaprig_peers::{Nonce, Token};

use super::{
    ANSWER_NS, GREETING_NS, Id, RESTORING_NS, Record, SILENCE_NS, SiteId, WriteError,
    greeting::{Greeting, Next, Side},
    message::{COMMAND_MAX, ToSource, ToTarget, VERSION},
    retry_ns,
};
use crate::{Ns, message::cut};

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// [`Output::Connect`] has succeeded.
    Connected {
        /// Random bytes.
        nonce: Nonce,
    },
    /// The connection has ended, or none could be made.
    Closed {
        /// Why.
        why: String,
    },
    /// A message came.
    Message(ToSource),
    /// A part of the image has left ([`Output::Copy`]).
    Progress,
    /// All of the image has left, and the tree stands still; or why not.
    Copied(Result<(), String>),
    /// A record is on the disk ([`Output::Write`]), or why not.
    Written(Result<(), WriteError>),
    /// Whoever asked for the migration does not want it any more.
    Cancel,
    /// Time has passed: [`Source::deadline`].
    Tick,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To connect to the target; [`Input::Connected`] or [`Input::Closed`] says what came of it.
    Connect,
    /// A message leaves.
    Send(ToTarget),
    /// The connection is to end. Nothing of it is of interest any more, and [`Input::Closed`] need not be said.
    Close,
    /// The image leaves: pages while the tree runs, then it is stopped, and what is left. [`Input::Progress`] and
    /// [`Input::Copied`] say how far it is.
    Copy,
    /// A copy that is under way is to end.
    StopCopying,
    /// This is to be the record on the disk; [`Input::Written`] says whether it is.
    Write(Record),
    /// The record is of no use any more. Nobody need be told whether it is gone: it is asked about again.
    Erase,
    /// The tree runs here, as if nothing had been. If it has died meanwhile, it may be restarted from a checkpoint.
    LetGo,
    /// The tree ends here: it runs at the target.
    End,
    /// That was it.
    Over(Outcome),
}

/// How a migration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The tree is the target's.
    Gone,
    /// The tree is here.
    Stays {
        /// Why.
        why: String,
    },
}

/// What a source is told of a migration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which one: random.
    pub id: Id,
    /// What both sides know, if the kernel does not say who the other side is.
    pub token: Option<Token>,
    /// The program's command line.
    pub command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// A connection is being made.
    Connecting,
    /// The other side is to show who it is.
    Greeting,
    /// The image leaves.
    Copying,
    /// It has left; the target restores.
    Waiting,
    /// The record is being written that the target is to be asked.
    Deciding,
    /// Go was said, or will be: over a connection that greets, or one that is known, or when it is time.
    Asking(Link),
    /// The record is being written that the tree is gone.
    Leaving,
    Over,
}

/// The connection of who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Link {
    None,
    Connecting,
    Greeting,
    Known,
}

/// The machine of a source.
#[derive(Debug)]
pub struct Source {
    config: Config,
    now: Ns,
    state: State,
    /// When what is waited for must have come, or is to be tried again.
    due_ns: Ns,
    attempts: u32,
    greeting: Option<Greeting>,
    /// Who has the tree, once it has said that it is ready.
    site: Option<SiteId>,
    out: Vec<Output>,
}

impl Source {
    /// A migration that begins. [`Input::Tick`] has it begin.
    pub fn new(config: Config, now: Ns) -> Self {
        let mut new = Self {
            config,
            now,
            state: State::Connecting,
            due_ns: now.saturating_add(GREETING_NS),
            attempts: 0,
            greeting: None,
            site: None,
            out: Vec::new(),
        };
        new.out.push(Output::Connect);
        new
    }

    /// A migration of which a supervisor that has died has left [`Record::Going`]: no tree runs, and the target is
    /// asked. [`Input::Tick`] has it begin.
    pub fn resumed(config: Config, site: SiteId, now: Ns) -> Self {
        Self {
            config,
            now,
            state: State::Asking(Link::None),
            due_ns: now,
            attempts: 0,
            greeting: None,
            site: Some(site),
            out: Vec::new(),
        }
    }

    /// Whether the target may have decided: the tree must not run here.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self.state, State::Asking(_) | State::Leaving)
    }

    /// When [`Input::Tick`] is due, if nothing happens before.
    pub fn deadline(&self) -> Option<Ns> {
        // The disk takes as long as it takes.
        let waits = matches!(self.state, State::Deciding | State::Leaving | State::Over);
        (!waits).then_some(self.due_ns)
    }

    /// What the machine would do next depends on this, and on nothing else but numbers and times.
    pub fn hash_state(&self, hash: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (self.state, self.site.is_some()).hash(hash);
    }

    /// Something has happened. To be called again at [`Self::deadline`], if nothing happens before.
    pub fn handle(&mut self, input: Input, now: Ns) -> Vec<Output> {
        self.now = self.now.max(now);
        match input {
            Input::Connected { nonce } => self.connected(nonce),
            Input::Closed { why } => self.closed(why),
            Input::Message(message) => self.heard(message),
            Input::Progress => self.progress(),
            Input::Copied(result) => self.copied(result),
            Input::Written(result) => self.written(result),
            Input::Cancel => self.cancel(),
            Input::Tick => self.tick(),
        }
        std::mem::take(&mut self.out)
    }

    fn connected(&mut self, nonce: Nonce) {
        self.state = match self.state {
            State::Connecting => State::Greeting,
            State::Asking(Link::Connecting) => State::Asking(Link::Greeting),
            _ => return self.out.push(Output::Close),
        };
        self.wait(GREETING_NS);
        self.greeting = Some(Greeting::new(Side::Source, nonce));
        let version = VERSION;
        self.say(ToTarget::Hello { version, nonce });
    }

    fn heard(&mut self, message: ToSource) {
        let token = self.config.token.as_ref();
        let Some(greeting) = &mut self.greeting else {
            return;
        };
        let is_known = greeting.is_over();
        let next = match message {
            ToSource::Hello { version, nonce } => greeting.hello(version, nonce, token),
            ToSource::Proof(proof) => greeting.proof_came(&proof, token),
            answer if is_known => return self.answered(answer),
            _ => Next::Refuse("the other side has not shown who it is".into()),
        };
        match next {
            Next::Wait => {}
            Next::Say(proof) => self.say(ToTarget::Proof(proof)),
            Next::Known(proof) => {
                self.out
                    .extend(proof.map(|proof| Output::Send(ToTarget::Proof(proof))));
                self.known();
            }
            Next::Refuse(why) => self.lost(why),
        }
    }

    /// The other side is who it should be.
    fn known(&mut self) {
        let id = self.config.id;
        match self.state {
            State::Greeting => {
                self.state = State::Copying;
                self.wait(SILENCE_NS);
                let command = self.config.command.clone();
                match command.iter().map(String::len).sum::<usize>() <= COMMAND_MAX {
                    true => self.say(ToTarget::Begin { id, command }),
                    false => return self.stays("the command line is too long to be told".into()),
                }
                self.out.push(Output::Copy);
            }
            State::Asking(Link::Greeting) => self.ask(),
            _ => self.lost("the other side shows twice who it is".into()),
        }
    }

    fn ask(&mut self) {
        self.state = State::Asking(Link::Known);
        self.wait(ANSWER_NS);
        let id = self.config.id;
        if let Some(site) = self.site {
            self.say(ToTarget::Go { id, site });
        }
    }

    fn answered(&mut self, answer: ToSource) {
        let own = self.config.id;
        match (answer, self.state) {
            (ToSource::Ready { id, site }, State::Waiting) if id == own => self.decide(site),
            // An image that goes another way than messages can be there before this side knows.
            (ToSource::Ready { id, site }, State::Copying) if id == own => self.site = Some(site),
            (ToSource::Running { id }, State::Asking(_)) if id == own => {
                self.state = State::Leaving;
                self.out.push(Output::End);
                self.out.push(Output::Write(Record::Gone(id)));
            }
            // It was asked twice.
            (ToSource::Running { id }, State::Leaving | State::Over) if id == own => {}
            (ToSource::Failed { id, why }, _) if id == own => self.failed(cut(why)),
            (other, _) => self.lost(format!(
                "the other side says what makes no sense now: {other:?}"
            )),
        }
    }

    /// The tree stands still at both sides.
    fn decide(&mut self, site: SiteId) {
        self.state = State::Deciding;
        self.site = Some(site);
        let id = self.config.id;
        self.out.push(Output::Write(Record::Going(id, site)));
    }

    /// The tree will never run at the target.
    fn failed(&mut self, why: String) {
        match self.state {
            // The record is on its way to the disk: what it says is settled when it is there.
            State::Deciding => self.lost(why),
            State::Leaving | State::Over => {}
            _ => self.stays(why),
        }
    }

    fn progress(&mut self) {
        if self.state == State::Copying {
            self.wait(SILENCE_NS);
        }
    }

    fn copied(&mut self, result: Result<(), String>) {
        if self.state != State::Copying {
            return;
        }
        match result {
            Ok(()) => {
                self.state = State::Waiting;
                self.wait(RESTORING_NS);
                if let Some(site) = self.site {
                    self.decide(site);
                }
            }
            Err(why) => self.stays(why),
        }
    }

    fn written(&mut self, result: Result<(), WriteError>) {
        match (self.state, result) {
            (State::Deciding, Ok(())) if self.is_known() => self.ask(),
            // The connection was lost meanwhile. Go was not said: nobody can have decided.
            (State::Deciding, Ok(())) => {
                self.stays("the connection was lost before the target was told to go".into());
            }
            (State::Deciding, Err(error)) => self.stays(error.why),
            // With the record before it, the target would be asked again, and say the same.
            (State::Leaving, _) => {
                self.state = State::Over;
                if self.is_known() {
                    let id = self.config.id;
                    self.say(ToTarget::Gone { id });
                }
                self.hang_up();
                self.out.push(Output::Over(Outcome::Gone));
            }
            _ => {}
        }
    }

    fn cancel(&mut self) {
        match self.state {
            State::Connecting | State::Greeting | State::Copying | State::Waiting => {
                self.stays("it was cancelled".into());
            }
            // As soon as the record is written.
            State::Deciding => self.hang_up(),
            // The target may have decided.
            State::Asking(_) | State::Leaving | State::Over => {}
        }
    }

    fn closed(&mut self, why: String) {
        self.greeting = None;
        self.lost(why);
    }

    /// The connection is of no use any more.
    fn lost(&mut self, why: String) {
        match self.state {
            State::Connecting | State::Greeting | State::Copying | State::Waiting => {
                self.stays(why)
            }
            State::Deciding => self.hang_up(),
            State::Leaving => self.hang_up(),
            State::Asking(Link::None) | State::Over => {}
            State::Asking(_) => {
                self.hang_up();
                self.state = State::Asking(Link::None);
                self.wait(retry_ns(self.attempts));
                self.attempts = self.attempts.saturating_add(1);
            }
        }
    }

    fn tick(&mut self) {
        if self.deadline().is_none_or(|due| self.now < due) {
            return;
        }
        match self.state {
            State::Asking(Link::None) => {
                self.state = State::Asking(Link::Connecting);
                self.wait(GREETING_NS);
                self.out.push(Output::Connect);
            }
            _ => self.lost("the other side does not answer".into()),
        }
    }

    /// The tree goes on here.
    fn stays(&mut self, why: String) {
        let was = std::mem::replace(&mut self.state, State::Over);
        if was == State::Copying {
            self.out.push(Output::StopCopying);
        }
        if self.is_known() && !matches!(was, State::Asking(_)) {
            let id = self.config.id;
            self.say(ToTarget::Abandon { id });
        }
        self.hang_up();
        self.out.push(Output::LetGo);
        if matches!(was, State::Deciding | State::Asking(_)) {
            self.out.push(Output::Erase);
        }
        self.out.push(Output::Over(Outcome::Stays { why }));
    }

    fn is_known(&self) -> bool {
        self.greeting.as_ref().is_some_and(Greeting::is_over)
    }

    fn hang_up(&mut self) {
        if self.greeting.take().is_some() {
            self.out.push(Output::Close);
        }
    }

    fn say(&mut self, message: ToTarget) {
        self.out.push(Output::Send(message));
    }

    fn wait(&mut self, for_ns: Ns) {
        self.due_ns = self.now.saturating_add(for_ns);
    }
}
