//! Drives the machine of a source: the connection to the target, the clock, and what the machine has done to the tree.
//!
//! What must stay true: what the machine says is done in its order; nothing waits for a peer beyond the machine's deadline.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snaprig_coord::{
    Ns,
    migration::{
        GREETING_NS, Record, Source, WriteError,
        message::ToTarget,
        source::{Input, Outcome, Output},
    },
};
use snaprig_peers::{Exchange, Stream, frame, token::random};
use snaprig_tracee::faults::reached;

use super::{MESSAGE_MAX, Target, faults};

/// What the machine of a source has its driver do.
pub trait SourceTree {
    /// A connection is there, the first one or another.
    fn connected(&mut self, stream: &Stream) -> Result<(), String>;
    /// Sends the image; the tree stands still when it returns.
    fn copy(&mut self, stream: &Stream) -> Result<(), String>;
    /// Writes down how far it is.
    fn write(&mut self, record: Record) -> Result<(), WriteError>;
    /// What was written down is of no use any more.
    fn erase(&mut self);
    /// The tree goes on here.
    fn let_go(&mut self);
    /// The tree ends here.
    fn end(&mut self);
    /// The target does not answer: it is asked again later, as often as it takes.
    fn doubts(&mut self);
    /// Somebody else who may want something meanwhile.
    fn client(&self) -> Option<BorrowedFd<'_>>;
    /// He does.
    fn answer(&mut self);
}

/// A source, and its connection to the target.
pub struct SourceDriver<'a, D> {
    machine: Source,
    to: &'a Target,
    pub tree: D,
    stream: Option<Stream>,
    start: Instant,
    /// How often it has connected to ask what has become of the tree.
    asked: u32,
}

impl<'a, D: SourceTree> SourceDriver<'a, D> {
    /// A machine that was made at the time 0.
    pub fn new(machine: Source, to: &'a Target, tree: D) -> Self {
        Self {
            machine,
            to,
            tree,
            stream: None,
            start: Instant::now(),
            asked: 0,
        }
    }

    /// Goes on to the end.
    pub fn run(&mut self) -> Outcome {
        let mut inputs = VecDeque::from([Input::Tick]);
        loop {
            while let Some(input) = inputs.pop_front() {
                for output in self.machine.handle(input, self.now()) {
                    match self.perform(output) {
                        Next::Nothing => {}
                        Next::Input(input) => inputs.push_back(input),
                        Next::Over(outcome) => return outcome,
                    }
                }
            }
            inputs.extend(self.wait());
        }
    }

    fn now(&self) -> Ns {
        self.start.elapsed().as_nanos() as Ns
    }

    fn perform(&mut self, output: Output) -> Next {
        match output {
            Output::Connect => return Next::Input(self.connect()),
            Output::Send(message) => return self.send(&message),
            Output::Close => self.stream = None,
            Output::Copy => return Next::Input(self.copy()),
            // It has ended when this is said.
            Output::StopCopying => {}
            Output::Write(record) => {
                let written = self.tree.write(record);
                reached(match record {
                    Record::Going(..) => &faults::GOING,
                    Record::Gone(_) => &faults::GONE,
                });
                return Next::Input(Input::Written(written));
            }
            Output::Erase => self.tree.erase(),
            Output::LetGo => self.tree.let_go(),
            Output::End => {
                reached(&faults::TOLD);
                self.tree.end();
                reached(&faults::ENDED);
            }
            Output::Over(outcome) => return Next::Over(outcome),
        }
        Next::Nothing
    }

    fn connect(&mut self) -> Input {
        if self.machine.is_in_doubt() {
            self.asked = self.asked.saturating_add(1);
            if self.asked == DOUBTS_FROM {
                self.tree.doubts();
            }
        }
        let connected = || -> Result<_, String> {
            let told = |error: io::Error| format!("migration to {}: {error}", self.to);
            let timeout = Duration::from_nanos(GREETING_NS);
            let stream = self.to.address().connect(timeout).map_err(told)?;
            stream.check_user().map_err(told)?;
            let nonce = random().map_err(told)?;
            Ok((stream, nonce))
        };
        let connected = connected().and_then(|(stream, nonce)| {
            self.tree.connected(&stream)?;
            Ok((stream, nonce))
        });
        match connected {
            Ok((stream, nonce)) => {
                self.stream = Some(stream);
                Input::Connected { nonce }
            }
            Err(why) => Input::Closed { why },
        }
    }

    fn send(&mut self, message: &ToTarget) -> Next {
        let Some(stream) = &self.stream else {
            return Next::Nothing;
        };
        let mut exchange = Exchange::new(stream, self.left().unwrap_or(SENDING_MAX));
        let sent = frame::send(&mut exchange, message);
        if matches!(message, ToTarget::Go { .. }) {
            reached(&faults::ASKED);
        }
        match sent {
            Ok(()) => Next::Nothing,
            Err(error) => Next::Input(self.lost(&error)),
        }
    }

    /// How long it is to the machine's deadline.
    fn left(&self) -> Option<Duration> {
        let due = self.machine.deadline()?;
        Some(Duration::from_nanos(due.saturating_sub(self.now())))
    }

    fn lost(&mut self, error: &io::Error) -> Input {
        self.stream = None;
        let why = format!("the connection to {} is lost: {error}", self.to);
        Input::Closed { why }
    }

    /// Sends the image. If that fails, what the target says is why, if it says something.
    fn copy(&mut self) -> Input {
        let Some(stream) = &self.stream else {
            return Input::Copied(Err(format!("there is no connection to {}", self.to)));
        };
        let copied = self.tree.copy(stream);
        let mut ready = [PollFd::new(stream, PollFlags::IN)];
        let now = Timespec::default();
        if copied.is_err()
            && matches!(poll(&mut ready, Some(&now)), Ok(1..))
            && let Input::Message(message) = self.hear(SENDING_MAX)
        {
            return Input::Message(message);
        }
        Input::Copied(copied)
    }

    /// What comes next: a message, the end of the connection, or the time.
    fn wait(&mut self) -> Option<Input> {
        let left = self.left();
        let mut ready = Vec::new();
        let connection = self.stream.as_ref().map(AsFd::as_fd);
        for fd in [connection, self.tree.client()].into_iter().flatten() {
            ready.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        // A signal is whoever's it was before.
        let count = poll(&mut ready, timeout.as_ref()).unwrap_or(0);
        let is_ready =
            |index: usize| count > 0 && ready.get(index).is_some_and(|it| !it.revents().is_empty());
        let from_target = self.stream.is_some() && is_ready(0);
        let from_client = is_ready(usize::from(self.stream.is_some()));
        if from_client {
            self.tree.answer();
        }
        match from_target {
            true => Some(self.hear(left.unwrap_or(SENDING_MAX))),
            false => Some(Input::Tick),
        }
    }

    fn hear(&mut self, within: Duration) -> Input {
        let Some(stream) = &self.stream else {
            return Input::Tick;
        };
        match frame::receive(&mut Exchange::new(stream, within), MESSAGE_MAX) {
            Ok(message) => Input::Message(message),
            Err(error) => self.lost(&error),
        }
    }
}

/// What comes of an output.
enum Next {
    Nothing,
    Input(Input),
    Over(Outcome),
}

/// How long a message takes at most that the machine does not wait for.
const SENDING_MAX: Duration = Duration::from_secs(5);
/// Connections, of which the last says that there is no answer yet.
const DOUBTS_FROM: u32 = 3;
