//! Waiting for events, and events of the user's.

use std::{
    sync::{PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{Event, Order, Payload, RUNTIME};
use crate::{CoiError, graph::Work};

/// What is called when an event happens.
pub(super) type Callback = Box<dyn FnOnce(Event, Result<(), CoiError>) + Send>;

/// Whether an event was ever given out.
pub fn known(event: Event) -> bool {
    RUNTIME.lock().graph.is_known(event.0)
}

/// Waits until all of these events, or any, have happened, and tells which have by their places in the
/// list. The error is the event's own if there is only one; of several, that something has died or
/// was unregistered.
pub fn wait(
    events: &[Event],
    all: bool,
    timeout: Option<Duration>,
) -> Result<Vec<usize>, CoiError> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut receives = true;
    let mut state = RUNTIME.lock();
    loop {
        let mut happened = Vec::new();
        for (index, event) in events.iter().enumerate() {
            if !state.graph.is_known(event.0) {
                let what = format!("event {} was never made", event.0);
                return Err(CoiError::InvalidHandle(what));
            }
            if !state.open.contains(&event.0) {
                happened.push(index);
            }
        }
        let enough = match all {
            true => happened.len() == events.len(),
            false => !happened.is_empty(),
        };
        if enough {
            for index in &happened {
                state.graph.result(events[*index].0)?;
            }
            return Ok(happened);
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Err(CoiError::TimedOut);
        }
        // A callback is for a thread that holds nothing of the program's.
        if receives
            && state.callbacks.is_empty()
            && let Some((process, number)) = RUNTIME.pipeline_of(&state, events)
            && !process.is_observed()
        {
            let known = RUNTIME.told.load(Ordering::Relaxed);
            drop(state);
            let is_news = || RUNTIME.told.load(Ordering::Relaxed) != known;
            process.receive_results(number, is_news);
            // Whoever lets go of it last has the graph told.
            drop(process);
            // It may have been another event.
            receives = is_news();
            state = RUNTIME.lock();
            continue;
        }
        state.waiting += 1;
        state = match deadline {
            Some(deadline) => {
                let waited = RUNTIME.signaled.wait_timeout(state, deadline - now);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => RUNTIME
                .signaled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
        };
        state.waiting -= 1;
    }
}

/// A new user event (COIEventRegisterUserEvent).
pub fn register_user_event(tag: u64) -> Event {
    let order = Order {
        tag,
        ..Order::default()
    };
    let event = RUNTIME.submit(Work::UserEvent, Payload::default(), order);
    event.expect("a user event depends on nothing that could be refused")
}

/// A user event happens (COIEventSignalUserEvent).
pub fn signal(event: Event) -> Result<(), CoiError> {
    RUNTIME.lock().graph.signal(event.0)?;
    RUNTIME.perform(None);
    Ok(())
}

/// A user event will not happen (COIEventUnregisterUserEvent).
pub fn unregister(event: Event) -> Result<(), CoiError> {
    RUNTIME.lock().graph.unregister(event.0)?;
    RUNTIME.perform(None);
    Ok(())
}

/// A user event that stands for something fails as that does.
pub fn fail(event: Event, error: CoiError) -> Result<(), CoiError> {
    RUNTIME.lock().graph.fail(event.0, error)?;
    RUNTIME.perform(None);
    Ok(())
}

/// Has a function be called when an event happens, before anybody who waits for it is told; at once if
/// it has. It takes the place of an earlier one.
pub fn on_complete(
    event: Event,
    callback: impl FnOnce(Event, Result<(), CoiError>) + Send + 'static,
) {
    let result = {
        let mut state = RUNTIME.lock();
        if state.open.contains(&event.0) {
            state.callbacks.insert(event.0, Box::new(callback));
            return;
        }
        state.graph.result(event.0)
    };
    callback(event, result);
}
