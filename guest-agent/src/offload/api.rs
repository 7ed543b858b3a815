//! The sink's C API, by the names of the public MPSS headers (`include/sink`).

use std::sync::PoisonError;

use super::Runtime;

const COI_SUCCESS: i32 = 0;

/// Run functions wait until this has been called.
#[unsafe(no_mangle)]
pub extern "C" fn COIPipelineStartExecutingRunFunctions() -> i32 {
    let runtime = Runtime::get();
    runtime.lock().started = true;
    runtime.changed.notify_all();
    COI_SUCCESS
}

/// Returns when the host destroys the process.
#[unsafe(no_mangle)]
pub extern "C" fn COIProcessWaitForShutdown() -> i32 {
    let runtime = Runtime::get();
    let mut state = runtime.lock();
    while !state.ending {
        state = runtime
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
    COI_SUCCESS
}
