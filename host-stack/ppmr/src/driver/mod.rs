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
//! | `queue` | what waits for a thread |
//!
//! What must stay true: a machine is told of everything in one order, and what it wants is done in that order, under one
//! lock, in which nobody waits for a peer, a reader or a writer. A connection is `Closed` to its machine when the last of its
//! threads has ended: none of them touches the pool any more.

mod agree;
pub mod common;
mod connection;
mod door;
mod greeting;
mod memory;
mod queue;
#[cfg_attr(not(feature = "rdma"), path = "no_rdma.rs")]
mod rdma;
pub mod source;
pub mod target;
mod tcp;
pub mod transport;

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use self::{connection::Connection, memory::Memory};
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
    /// Time has passed.
    const TICK: Self::Input;

    /// When that is due.
    fn deadline(&self) -> Option<Ns>;

    /// Whether nothing happens any more.
    fn is_over(&self) -> bool;

    /// Tells the machine, and does what it wants. Connections that are to end are let go without the lock: their end is told,
    /// too.
    fn handle(&mut self, input: Self::Input, now: Ns) -> Vec<Connection>;
}

/// What the threads of a node share.
#[derive(Debug)]
struct Shared<S> {
    memory: Arc<Memory>,
    since: Since,
    state: Mutex<S>,
    changed: Condvar,
}

impl<S: State> Shared<S> {
    fn wait<'a>(&self, state: MutexGuard<'a, S>) -> MutexGuard<'a, S> {
        let state = self.changed.wait(state);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, input: S::Input) {
        self.tell_locked(lock(&self.state), input);
    }

    fn tell_locked(&self, mut state: MutexGuard<'_, S>, input: S::Input) {
        let gone = state.handle(input, self.since.now());
        drop(state);
        drop(gone);
        self.changed.notify_all();
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
            let waited = self.changed.wait_timeout(state, left.min(TICK_MAX));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What a writer or a reader hears of a stream that has failed.
fn failed(failure: Failure) -> io::Error {
    io::Error::other(failure)
}
