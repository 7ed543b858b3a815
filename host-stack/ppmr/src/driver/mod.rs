//! What runs the machines of this crate: threads, sockets and memory of a source and of a target.
//!
//! | module | what it is |
//! |---|---|
//! | [`source`] | a source: what writers fill goes to the target |
//! | [`target`] | a target: what comes from sources is there to be read |
//! | `tcp` | chunks and messages over two TCP connections, where there is no RDMA |
//! | `memory` | the pool of a node |
//!
//! What must stay true: a machine is told of everything in one order, and what it wants is done in that order, under one
//! lock, in which nobody waits for a peer, a reader or a writer. A connection is `Closed` to its machine when the last of its
//! threads has ended: none of them touches the pool any more.

mod memory;
pub mod source;
pub mod target;
mod tcp;

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{Failure, Ns};

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

/// What a writer or a reader hears of a stream that has failed.
fn failed(failure: Failure) -> io::Error {
    io::Error::other(failure)
}
