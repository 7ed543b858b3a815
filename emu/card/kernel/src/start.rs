//! Guest threads begin: each on a host thread of its own.

use std::sync::Arc;

use crate::{
    exit::end_thread,
    kernel::Kernel,
    state::{State, Thread},
};

/// Adds a thread to its process and starts its host thread.
pub fn start(kernel: &Arc<Kernel>, state: &mut State, thread: Thread) {
    let (tid, pid) = (thread.tid, thread.pid);
    state.process(pid).threads.push(tid);
    state.threads.insert(tid, thread);
    let own = kernel.clone();
    let handle = std::thread::Builder::new()
        .name(format!("guest {tid}"))
        .spawn(move || (own.live)(&own, tid));
    match handle {
        Ok(handle) => {
            state.handles.retain(|handle| !handle.is_finished());
            state.handles.push(handle);
        }
        Err(error) => {
            tracing::error!(%error, tid, "no host thread for a guest thread");
            end_thread(kernel, state, tid, None);
        }
    }
}
