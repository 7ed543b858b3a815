//! What is needed of the libibverbs below, whoever made it.

use crate::{
    Completion,
    cookie::{Cookie, Queue},
    process::Came,
};

/// The libibverbs below. `S` and `R` are what it takes to post a send and a receive, with virtual names.
pub trait Below<S, R> {
    /// Takes the next completion of a queue, with virtual names but for its wr_id, which means nothing.
    fn poll(&mut self, cq: u32) -> Option<(Came, Completion)>;
    /// A send queue that the program has drained goes on below: its requests that are there were posted before.
    fn go_on(&mut self, qp: u32) -> Result<(), String>;
    /// Posts a request behind all others whose completion tells that they are done: of the same kind as `like`, so that it
    /// is allowed where that is, but without effect. It asks for a completion.
    fn mark(&mut self, qp: u32, like: &S, cookie: Cookie) -> Result<S, String>;
    /// Posts a receive of so many bytes; whether there was room for it.
    fn lend(&mut self, queue: Queue, bytes: u64, cookie: Cookie) -> Result<bool, String>;
    /// What came in it; it is not needed any more.
    fn lent(&mut self, cookie: Cookie, completion: &Completion) -> Vec<u8>;
    /// Puts into a receive of the program what came in one that was lent.
    fn fill(&mut self, receive: &R, data: &[u8]);
    /// Posts a receive of the program; whether there was room for it.
    fn receive(&mut self, receive: &R, cookie: Cookie) -> Result<bool, String>;
}
