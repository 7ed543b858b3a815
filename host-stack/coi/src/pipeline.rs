//! Pipelines: run functions in order, one Pipe_Thread1 each (paper figure 4).

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError, Weak,
        atomic::Ordering,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use snaprig_scif::client::Endpoint;
use snaprig_wire::coi::{BUFFERS_MAX, MISC_DATA_MAX, RunFunction, RunResult};

use crate::{
    Buffer, CoiError, Function, Process,
    channel::{self, Channel},
    process::{Inner, lock},
};

/// A pipeline of a process.
pub struct Pipeline {
    pub(crate) inner: Arc<PipelineInner>,
    pub(crate) process: Process,
}

pub(crate) struct PipelineInner {
    pub number: u32,
    pub channel: Channel,
    queue: Mutex<Sender<(RunFunction, Arc<Completion>)>>,
}

/// The completion of a run function.
#[derive(Clone)]
pub struct Event {
    completion: Arc<Completion>,
}

#[derive(Default)]
pub(crate) struct Completion {
    result: Mutex<Option<Result<Vec<u8>, CoiError>>>,
    done: Condvar,
}

impl Pipeline {
    /// Queues a run function (COIPipelineRunFunction): buffers, miscellaneous data, and the bytes
    /// of its return value.
    pub fn run(
        &self,
        function: Function,
        buffers: &[&Buffer],
        misc: &[u8],
        return_len: u16,
    ) -> Result<Event, CoiError> {
        if buffers.len() > BUFFERS_MAX || misc.len() > MISC_DATA_MAX {
            return Err(CoiError::OutOfRange(format!(
                "a run function takes {BUFFERS_MAX} buffers and {MISC_DATA_MAX} bytes of data"
            )));
        }
        let request = RunFunction {
            function: function.0,
            buffers: buffers.iter().map(|buffer| buffer.id()).collect(),
            misc: misc.to_vec(),
            return_len,
        };
        let completion = Arc::new(Completion::default());
        let queued = lock(&self.inner.queue).send((request, completion.clone()));
        if queued.is_err() {
            return Err(self.process.0.broken());
        }
        Ok(Event { completion })
    }
}

impl Event {
    /// Waits for the function's return value.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Vec<u8>, CoiError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut result = lock(&self.completion.result);
        loop {
            if let Some(result) = &*result {
                return result.clone();
            }
            result = match deadline {
                None => self
                    .completion
                    .done
                    .wait(result)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(CoiError::TimedOut);
                    }
                    let waited = self.completion.done.wait_timeout(result, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl PipelineInner {
    /// A pipeline over its connection, and its thread.
    pub fn start(process: &Arc<Inner>, number: u32, endpoint: Endpoint) -> Arc<Self> {
        let (queue, requests) = channel();
        let channel = Channel::new(endpoint);
        let pipeline = Arc::new(Self {
            number,
            channel,
            queue: Mutex::new(queue),
        });
        let (process, own) = (Arc::downgrade(process), Arc::downgrade(&pipeline));
        std::thread::spawn(move || pipe_thread(&process, &own, &requests));
        pipeline
    }
}

fn pipe_thread(
    process: &Weak<Inner>,
    pipeline: &Weak<PipelineInner>,
    requests: &Receiver<(RunFunction, Arc<Completion>)>,
) {
    for (request, completion) in requests {
        let (Some(process), Some(pipeline)) = (process.upgrade(), pipeline.upgrade()) else {
            return;
        };
        let result = run_one(&process, &pipeline, &request);
        *lock(&completion.result) = Some(result);
        completion.done.notify_all();
    }
}

fn run_one(
    process: &Inner,
    pipeline: &PipelineInner,
    request: &RunFunction,
) -> Result<Vec<u8>, CoiError> {
    hold(process);
    {
        // Pause closes this gate, so that no request is in the channel afterwards.
        let _pass = process.sends.enter();
        channel::send(&pipeline.channel.endpoint(), request).map_err(|_| process.broken())?;
        process.started.fetch_add(1, Ordering::SeqCst);
    }
    drop(process.lock());
    process.changed.notify_all();
    let result = pipeline.channel.receive(|| process.is_paused());
    let result = result.map_err(|_| process.broken())?;
    process.finished.fetch_add(1, Ordering::SeqCst);
    match result {
        RunResult::Returned(value) => Ok(value),
        RunResult::Refused(why) => Err(CoiError::Refused {
            node: process.lock().engine.node(),
            why,
        }),
    }
}

/// Waits while a breakpoint is reached.
fn hold(process: &Inner) {
    let mut state = process.lock();
    while state.ended.is_none()
        && state
            .hold_at
            .is_some_and(|at| process.started.load(Ordering::SeqCst) >= at)
    {
        state = process
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
}
