//! Case 4: Pipe_Thread2 runs the functions of one pipeline, one after the other (paper figure 4).

use std::{ffi::c_void, sync::PoisonError};

use snaprig_wire::coi::{BUFFERS_MAX, MISC_DATA_MAX, RunFunction, RunResult};

use super::{Runtime, channel::Channel, machine::Input, symbols};

type Function =
    unsafe extern "C" fn(u32, *mut *mut c_void, *mut u64, *mut c_void, u16, *mut c_void, u16);

/// Serves until the host's end is gone.
pub fn serve(runtime: &'static Runtime, channel: &Channel, number: u32) {
    while let Ok(request) = channel.receive::<RunFunction>(runtime) {
        runtime.tell(Input::Received(number));
        let mut state = runtime.lock();
        while !state.started {
            state = runtime
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let result = run(runtime, request).unwrap_or_else(RunResult::Refused);
        // Nothing may be in the channel when the snapshot is taken.
        runtime.begin_sending();
        let sent = channel.send(&result);
        runtime.tell(Input::Sent(number));
        if sent.is_err() {
            return;
        }
    }
}

fn run(runtime: &Runtime, mut request: RunFunction) -> Result<RunResult, String> {
    if request.buffers.len() > BUFFERS_MAX || request.misc.len() > MISC_DATA_MAX {
        return Err("too many buffers, or too much data".into());
    }
    if !symbols::is_function(request.function as usize) {
        return Err(format!(
            "{:#x} is no function of the program",
            request.function
        ));
    }
    let buffers = runtime
        .buffers
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let (mut pointers, mut lengths) = (Vec::new(), Vec::new());
    for id in &request.buffers {
        let (address, len) = buffers
            .get(*id)
            .ok_or(format!("buffer {id} does not exist"))?;
        pointers.push(address as *mut c_void);
        lengths.push(len as u64);
    }
    drop(buffers);
    let mut returned = vec![0; request.return_len.into()];
    // SAFETY: the address is that of a dynamic function symbol of this program, which by COI's
    // interface has this signature; the arguments are as long as they say.
    unsafe {
        let function = std::mem::transmute::<usize, Function>(request.function as usize);
        function(
            pointers.len() as u32,
            pointers.as_mut_ptr(),
            lengths.as_mut_ptr(),
            request.misc.as_mut_ptr().cast(),
            request.misc.len() as u16,
            returned.as_mut_ptr().cast(),
            request.return_len,
        );
    }
    Ok(RunResult::Returned(returned))
}
