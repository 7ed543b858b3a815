//! Threads that move bytes: as many as are busy at once, so that a transfer that waits (its process is
//! paused, its card slow) keeps no other one from going on.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use crate::process::lock;

/// Most threads; what comes then waits for one.
const THREADS_MAX: usize = 256;
/// How long one stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// The threads.
#[derive(Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    wanted: Condvar,
}

impl Pool {
    pub fn spawn(&'static self, job: Job) {
        let mut state = lock(&self.state);
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() || state.threads >= THREADS_MAX {
            self.wanted.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        std::thread::spawn(move || self.work());
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let waited = self.wanted.wait_timeout(state, IDLE);
            let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
