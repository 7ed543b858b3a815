//! What runs the machines of this crate: threads, sockets and memory of a source and of a target.
//!
//! | module | what it is |
//! |---|---|
//! | [`source`] | a source: what writers fill goes to the target |
//! | [`target`] | a target: what comes from sources is there to be read |
//! | [`common`] | the pool of a target whose images another process reads |
//! | [`transport`] | which way chunks may go |
//! | `door` | how a source comes to its target, and is let in |
//! | `greeting` | who is at the other end of a socket |
//! | `agree` | which way chunks go |
//! | `connection` | messages and chunks of a connection, and its threads |
//! | `tcp` | chunks over a socket of their own |
//! | `rdma` | chunks by RDMA (feature `rdma`) |
//! | `memory` | the pool of a node |
//! | [`lent`] | memory of a source that whoever writes an image fills |
//! | `outbox` | messages that are to leave |
//! | `queue` | what waits for a thread |
//! | `waiting` | threads that wait for a stream |
//!
//! What must stay true: a machine is told of everything in one order, and what it wants is done in that order, under one
//! lock, in which nobody waits for a peer, a reader or a writer. A connection is `Closed` to its machine when the last of its
//! threads has ended: none of them touches the pool any more.

mod agree;
pub mod common;
mod connection;
mod door;
mod greeting;
pub mod lent;
mod memory;
mod outbox;
mod queue;
#[cfg_attr(not(feature = "rdma"), path = "no_rdma.rs")]
mod rdma;
pub mod source;
pub mod target;
mod tcp;
pub mod transport;
mod waiting;

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use self::{connection::Connection, lent::Kept, memory::Memory, outbox::Outbox, waiting::Waiting};
use crate::{Failure, Ns};

/// Time passes at least so often, whatever a machine waits for.
const TICK_MAX: Duration = Duration::from_secs(1 << 10);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock of a node.
#[derive(Debug)]
struct Since(Instant);

impl Since {
    fn now(&self) -> Ns {
        Ns::try_from(self.0.elapsed().as_nanos()).unwrap_or(Ns::MAX)
    }
}

/// A machine, and what is known of those whom it serves.
trait State {
    type Input;
    /// What tells streams apart.
    type Stream: Copy + Ord;
    /// Time has passed.
    const TICK: Self::Input;

    /// When that is due.
    fn deadline(&self) -> Option<Ns>;

    /// Whether nothing happens any more.
    fn is_over(&self) -> bool;

    /// Tells the machine, and does what it wants, as far as that is done under the lock.
    fn handle(&mut self, input: Self::Input, now: Ns) -> After;

    /// Those who wait for a stream.
    fn waiting(&mut self) -> &mut Waiting<Self::Stream>;
}

/// What is left to do without the lock.
#[derive(Default)]
struct After {
    /// Outboxes that messages were left in.
    said: Vec<Arc<Outbox>>,
    /// Connections that are to end: their end is told, too.
    gone: Vec<Connection>,
    /// What writers had lent.
    given_back: Vec<Kept>,
    /// Those whom something was given to. Woken under the lock, they would run into it.
    woken: Vec<Thread>,
}

impl After {
    /// A message was left in this one.
    fn said(&mut self, outbox: &Arc<Outbox>) {
        if !self.said.iter().any(|one| Arc::ptr_eq(one, outbox)) {
            self.said.push(outbox.clone());
        }
    }

    fn finish(self) {
        self.said.iter().for_each(|outbox| outbox.flush());
        drop((self.gone, self.given_back));
        self.woken.iter().for_each(Thread::unpark);
    }
}

/// What the threads of a node share.
#[derive(Debug)]
struct Shared<S> {
    memory: Arc<Memory>,
    since: Since,
    state: Mutex<S>,
    /// Wakes who has time pass: before [`Self::ticks_at`], which is read and written under the lock alone.
    ticks: Condvar,
    ticks_at: AtomicU64,
}

impl<S: State> Shared<S> {
    fn new(memory: Arc<Memory>, since: Since, state: S) -> Self {
        Self {
            memory,
            since,
            state: Mutex::new(state),
            ticks: Condvar::new(),
            ticks_at: AtomicU64::new(0),
        }
    }

    /// Waits until something has happened to a stream. It may be called for nothing.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, S>, stream: S::Stream) -> MutexGuard<'a, S> {
        state.waiting().add(stream);
        drop(state);
        // Whoever takes this thread from the list unparks it, before or after that.
        thread::park();
        let mut state = lock(&self.state);
        state.waiting().remove(&stream);
        state
    }

    fn tell(&self, input: S::Input) {
        self.tell_locked(lock(&self.state), input);
    }

    fn tell_locked(&self, mut state: MutexGuard<'_, S>, input: S::Input) {
        let after = state.handle(input, self.since.now());
        let ticks_at = self.ticks_at.load(Ordering::Relaxed);
        let is_sooner = state.deadline().is_some_and(|due| due < ticks_at);
        if is_sooner || state.is_over() {
            self.ticks.notify_all();
        }
        drop(state);
        after.finish();
    }

    /// Time passes until all is over.
    fn tick(&self) {
        let mut state = lock(&self.state);
        while !state.is_over() {
            let due = state.deadline().map(Duration::from_nanos);
            let now = Duration::from_nanos(self.since.now());
            let left = due.map_or(TICK_MAX, |due| due.saturating_sub(now));
            if left.is_zero() {
                self.tell_locked(state, S::TICK);
                state = lock(&self.state);
                continue;
            }
            let left = left.min(TICK_MAX);
            let at = Ns::try_from((now + left).as_nanos()).unwrap_or(Ns::MAX);
            self.ticks_at.store(at, Ordering::Relaxed);
            let waited = self.ticks.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What a writer or a reader hears of a stream that has failed.
fn failed(failure: Failure) -> io::Error {
    io::Error::other(failure)
}
