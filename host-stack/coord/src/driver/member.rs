//! What agents and the command line call: it waits, and says what came of it.

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use snaprig_peers::{Token, token::random};

use super::{
    locator::Locator,
    session::{CallResult, Command, Reply, Session},
};
use crate::{
    member::{Config, Event},
    message::{
        Answer, Call, CallError, ENTRIES_MAX, Entry, MESSAGE_MAX, PATIENCE_MS_MAX, Refusal, Role,
        Status, Summary,
    },
    phase::{Order, Phase},
};

/// Bytes of entries and keys that go in one call.
const BATCH_BYTES: usize = MESSAGE_MAX / 2;

/// Why nobody joins.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The coordinator says no.
    #[error(transparent)]
    Refused(Refusal),
    /// It is not there, or does not answer.
    #[error(
        "no coordinator within {waited:?}: {why}; start one, or look whether it is where the job says"
    )]
    Unreachable {
        /// How long.
        waited: Duration,
        /// The last attempt.
        why: String,
    },
    /// There is no thread or descriptor for it.
    #[error("a connection to the coordinator: {0}")]
    Io(#[from] io::Error),
}

/// The thread that talks to the coordinator.
#[derive(Debug)]
struct Link {
    /// `None`: it is to end.
    commands: Option<mpsc::Sender<Command>>,
    wake: UnixStream,
    events: Mutex<mpsc::Receiver<Event>>,
    ready: Arc<OwnedFd>,
    /// The thread's, whenever it does anything but wait in the kernel.
    gate: Arc<Mutex<()>>,
    /// The last call's number: they reach the machine in order.
    last_id: Mutex<u64>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    fn start(locator: Locator, config: Config) -> io::Result<Self> {
        let (commands, receiver) = mpsc::channel();
        let (sender, events) = mpsc::channel();
        let (wake, woken) = UnixStream::pair()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let ready = Arc::new(eventfd(0, flags)?);
        wake.set_nonblocking(true)?;
        let gate = Arc::new(Mutex::new(()));
        let (its_ready, its_gate) = (ready.clone(), gate.clone());
        let session = Session::new(
            locator, config, receiver, woken, sender, its_ready, its_gate,
        )?;
        let thread = thread::Builder::new().name("coord".into());
        Ok(Self {
            commands: Some(commands),
            wake,
            events: Mutex::new(events),
            ready,
            gate,
            last_id: Mutex::new(0),
            thread: Some(thread.spawn(move || session.run())?),
        })
    }

    fn command(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A thread that has ended has answered all calls.
            let _ = commands.send(command);
            // Full: it is awake.
            let _ = (&self.wake).write(&[1]);
        }
    }

    fn start_call(&self, call: Call, reply: Reply) {
        let mut last = self.last_id.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        let id = *last;
        self.command(Command::Call { id, call, reply });
    }

    fn call(&self, call: Call) -> CallResult {
        let (reply, answer) = mpsc::channel();
        // The caller may not wait any more.
        self.start_call(call, Box::new(move |result| drop(reply.send(result))));
        let why = "its thread has ended".into();
        answer.recv().unwrap_or(Err(CallError::Apart { why }))
    }

    fn next_event(&self, patience: Option<Duration>) -> Option<Event> {
        let timeout = patience.map(|patience| Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        });
        let mut fds = [PollFd::new(&self.ready, PollFlags::IN)];
        // EINTR: as if it had taken too long.
        let _ = poll(&mut fds, timeout.as_ref());
        let mut count = [0; 8];
        rustix::io::read(&self.ready, &mut count).ok()?;
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.try_recv().ok()
    }

    /// Until it has joined.
    fn join(&self, patience: Duration) -> Result<(), ConnectError> {
        let until = Instant::now() + patience;
        let mut last = "it does not answer".to_owned();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.next_event(Some(left)) {
                Some(Event::Joined) => return Ok(()),
                Some(Event::Refused(refusal)) => return Err(ConnectError::Refused(refusal)),
                Some(Event::Apart { why }) => last = why,
                Some(_) => {}
                None if left.is_zero() => {
                    return Err(ConnectError::Unreachable {
                        waited: patience,
                        why: last,
                    });
                }
                None => {}
            }
        }
    }

    fn order(&self, order: Order) -> Result<Summary, CallError> {
        match self.call(Call::Order(order))? {
            Answer::Round(summary) => Ok(summary),
            other => Err(unexpected(&other)),
        }
    }

    fn status(&self) -> Result<Status, CallError> {
        match self.call(Call::Status)? {
            Answer::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    fn end(&mut self) {
        self.commands = None;
        let _ = self.wake.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

fn unexpected(answer: &Answer) -> CallError {
    let what = format!("the coordinator answers {answer:?}");
    CallError::Invalid { what }
}

fn milliseconds(patience: Duration) -> u32 {
    let ms = patience.as_millis().min(PATIENCE_MS_MAX.into());
    ms as u32
}

/// A member of a job, for its agent. All calls can be made from any thread. Dropped, it ends like an
/// agent that dies; [`Self::leave`] says farewell.
#[derive(Debug)]
pub struct Member {
    link: Link,
}

impl Member {
    /// Joins a job under a name, within this time.
    pub fn connect(
        locator: Locator,
        job: &str,
        token: Token,
        name: &str,
        patience: Duration,
    ) -> Result<Self, ConnectError> {
        Self::come(locator, job, token, (name, false), patience)
    }

    /// Comes to a job as one to whom a member's tree is to move.
    pub fn inherit(
        locator: Locator,
        job: &str,
        token: Token,
        name: &str,
        patience: Duration,
    ) -> Result<Self, ConnectError> {
        Self::come(locator, job, token, (name, true), patience)
    }

    fn come(
        locator: Locator,
        job: &str,
        token: Token,
        (name, is_heir): (&str, bool),
        patience: Duration,
    ) -> Result<Self, ConnectError> {
        let config = Config {
            job: job.into(),
            token,
            role: Role::Member {
                name: name.into(),
                incarnation: u64::from_le_bytes(random()?),
                is_heir,
            },
            is_persistent: true,
        };
        let link = Link::start(locator, config)?;
        link.join(patience)?;
        Ok(Self { link })
    }

    /// What the agent must know next, within this time (`None`: whenever it comes). `None` also when
    /// a signal came.
    pub fn next_event(&self, patience: Option<Duration>) -> Option<Event> {
        self.link.next_event(patience)
    }

    /// Is readable when [`Self::next_event`] need not wait: for poll(2), with what else an agent
    /// waits for.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.link.ready.as_fd()
    }

    /// This phase is done ([`Phase::Undo`] too): what goes into the manifest, of the phase
    /// [`Phase::Write`]; or why it cannot be, which ends the round.
    pub fn done(&self, round: u64, phase: Phase, result: Result<String, String>) {
        self.link.command(Command::Done {
            round,
            phase,
            result,
        });
    }

    /// This phase is not done yet, but is got on with: it may take as long again.
    pub fn gets_on(&self, round: u64, phase: Phase) {
        self.link.command(Command::GetsOn { round, phase });
    }

    /// Calls, and does not wait: `reply` is told what came of it, on another thread, which it must not keep. If that
    /// thread has ended, it is dropped.
    pub fn start_call(
        &self,
        call: Call,
        reply: impl FnOnce(Result<Answer, CallError>) + Send + 'static,
    ) {
        self.link.start_call(call, Box::new(reply));
    }

    /// Entries that are on the board now whose keys begin so.
    pub fn collect(&self, round: u64, prefix: &[u8]) -> Result<Vec<Entry>, CallError> {
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let call = Call::Collect {
                round,
                prefix: prefix.to_vec(),
                after: all.last().map(|(key, _)| key.clone()).unwrap_or_default(),
                bytes_max: BATCH_BYTES as u32,
            };
            match self.link.call(call)? {
                Answer::Entries(more) if more.is_empty() => return Ok(all),
                Answer::Entries(more) => all.extend(more),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Waits until all members of the round are at the barrier (`round` 0: of the job).
    pub fn barrier(&self, round: u64, name: &str, patience: Duration) -> Result<(), CallError> {
        let call = Call::Barrier {
            round,
            name: name.into(),
            patience_ms: milliseconds(patience),
        };
        self.link.call(call).map(drop)
    }

    /// Puts entries on the board, for the round (0: for as long as the member is there).
    pub fn publish(&self, round: u64, entries: &[Entry]) -> Result<(), CallError> {
        for batch in batches(entries, |(key, value)| key.len() + value.len() + 16) {
            let entries = batch.to_vec();
            self.link.call(Call::Publish { round, entries })?;
        }
        Ok(())
    }

    /// The values of these keys, once all of them are on the board. They are looked up in portions,
    /// each within this time.
    pub fn lookup(
        &self,
        round: u64,
        keys: &[Vec<u8>],
        patience: Duration,
    ) -> Result<Vec<Vec<u8>>, CallError> {
        let mut values = Vec::with_capacity(keys.len());
        for batch in batches(keys, |key| key.len() + 1024) {
            let call = Call::Lookup {
                round,
                keys: batch.to_vec(),
                patience_ms: milliseconds(patience),
            };
            match self.link.call(call)? {
                Answer::Values(some) => values.extend(some),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(values)
    }

    /// Has a round begin, and waits for its end: by another thread than the one that takes part in it.
    pub fn order(&self, order: Order) -> Result<Summary, CallError> {
        self.link.order(order)
    }

    /// How the job is.
    pub fn status(&self) -> Result<Status, CallError> {
        self.link.status()
    }

    /// Until this is dropped, the thread that talks to the coordinator waits in the kernel and holds nothing: the
    /// process can be forked as if it had one thread.
    pub fn quiet(&self) -> MutexGuard<'_, ()> {
        self.link
            .gate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A move is decided, and this member has the name of its heir, or of whose heir it was.
    pub fn rename(&self, name: &str) {
        self.link.command(Command::Rename(name.into()));
    }

    /// The member goes for good: it does not count as missing.
    pub fn leave(mut self) {
        self.link.command(Command::Leave);
        self.link.end();
    }
}

/// Portions that fit into one call each.
fn batches<T>(mut all: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut batches = Vec::new();
    while !all.is_empty() {
        let mut sum = 0;
        let fits = all.iter().take(ENTRIES_MAX).take_while(|one| {
            sum += bytes(one);
            sum <= BATCH_BYTES
        });
        let (batch, rest) = all.split_at(fits.count().max(1));
        batches.push(batch);
        all = rest;
    }
    batches
}

/// Somebody who orders and asks, and is no member.
#[derive(Debug)]
pub struct Control {
    link: Link,
}

impl Control {
    /// Connects, at the first attempt.
    pub fn connect(locator: Locator, job: &str, token: Token) -> Result<Self, ConnectError> {
        let config = Config {
            job: job.into(),
            token,
            role: Role::Control,
            is_persistent: false,
        };
        let link = Link::start(locator, config)?;
        loop {
            match link.next_event(None) {
                Some(Event::Joined) => return Ok(Self { link }),
                Some(Event::Refused(refusal)) => return Err(ConnectError::Refused(refusal)),
                Some(Event::Apart { why }) => {
                    let waited = Duration::ZERO;
                    return Err(ConnectError::Unreachable { waited, why });
                }
                _ => {}
            }
        }
    }

    /// Has a round begin, and waits for its end.
    pub fn order(&self, order: Order) -> Result<Summary, CallError> {
        self.link.order(order)
    }

    /// How the job is.
    pub fn status(&self) -> Result<Status, CallError> {
        self.link.status()
    }

    /// A member that is missing does not come back.
    pub fn forget(&self, name: &str) -> Result<(), CallError> {
        let call = Call::Forget { name: name.into() };
        self.link.call(call).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_all_of_it_in_order_and_fit() {
        let sizes: Vec<usize> = (0..10_000).map(|i| i * 7 % 300).collect();
        let all = batches(&sizes, |size| *size);
        assert_eq!(all.concat(), sizes);
        for batch in &all {
            assert!(batch.iter().sum::<usize>() <= BATCH_BYTES && batch.len() <= ENTRIES_MAX);
        }
        assert_eq!(batches(&[BATCH_BYTES * 2, 1], |size| *size).len(), 2);
    }
}
