//! What a coordinator keeps, in a thread of its own: a slow disk keeps nobody from being heard.
//!
//! What must stay true: what was said first is on the disk first.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    os::unix::net::UnixStream,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use super::serve::Keeper;
use crate::{coordinator::Input, phase::Order};

/// What is to be kept.
pub(super) enum Work {
    Members(Vec<String>),
    Commit {
        round: u64,
        order: Order,
        reports: BTreeMap<String, String>,
    },
}

pub(super) struct Disk {
    /// `None`: it is to end.
    work: Option<mpsc::Sender<Work>>,
    done: mpsc::Receiver<Input>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// A byte comes to `waker` when there is something in [`Self::done`].
    pub(super) fn start(keeper: Arc<dyn Keeper>, mut waker: UnixStream) -> io::Result<Self> {
        let (work, wanted) = mpsc::channel();
        let (says, done) = mpsc::channel();
        let report = move |input| {
            // Nobody hears: the coordinator has been stopped.
            let _ = says.send(input);
            // Full: it is awake.
            let _ = waker.write(&[1]);
        };
        let thread = thread::Builder::new().name("disk".into());
        Ok(Self {
            work: Some(work),
            done,
            thread: Some(thread.spawn(move || run(&*keeper, &wanted, report))?),
        })
    }

    pub(super) fn keep(&self, work: Work) {
        if let Some(queue) = &self.work {
            // A thread that has panicked keeps nothing, and says so of nothing.
            let _ = queue.send(work);
        }
    }

    /// What is done.
    pub(super) fn done(&self) -> Option<Input> {
        self.done.try_recv().ok()
    }
}

/// Waits until all of it is kept.
impl Drop for Disk {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(keeper: &dyn Keeper, wanted: &mpsc::Receiver<Work>, mut report: impl FnMut(Input)) {
    while let Ok(work) = wanted.recv() {
        let mut all = [work].into_iter().chain(wanted.try_iter()).peekable();
        let mut unanswered = 0;
        while let Some(work) = all.next() {
            match work {
                Work::Members(members) => {
                    unanswered += 1;
                    // Of several in a row, the last one is it.
                    if matches!(all.peek(), Some(Work::Members(_))) {
                        continue;
                    }
                    if let Err(error) = keeper.members(&members) {
                        tracing::error!(%error, "who belongs to the job could not be kept");
                    }
                    (0..std::mem::take(&mut unanswered)).for_each(|_| report(Input::Kept));
                }
                Work::Commit {
                    round,
                    order,
                    reports,
                } => {
                    let result = keeper.commit(round, &order, &reports);
                    report(Input::Committed { round, result });
                }
            }
        }
    }
}
