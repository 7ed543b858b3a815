//! Case 4: Pipe_Thread2 runs the functions of one pipeline, one after the other (paper figure 4).
//!
//! A pipeline is made by a command, waits for its connection, and ends when a command says so or the
//! host's end is gone.
//!
//! What must stay true: a number is free only when the thread that had it is gone, and no channel of it is on its way; a run function that
//! was begun returns its result, whatever else ends.

use std::{
    ffi::c_void,
    io::{self, PipeReader, PipeWriter, Write},
    mem,
    os::fd::AsRawFd,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use snaprig_offload_wire::coi::{
    BUFFERS_MAX, CPU_MASK_BITS, Channel as Kind, MISC_DATA_MAX, Notice, PIPELINES_MAX, RunFunction,
    RunResult,
};

use super::{Runtime, channel::Channel, lock, machine::Input};
use crate::frames;

type Function =
    unsafe extern "C" fn(u32, *mut *mut c_void, *mut u64, *mut c_void, u16, *mut c_void, u16);

/// How long the channel of a pipeline that ends may be on its way.
const CHANNEL_MAX: Duration = Duration::from_secs(5);
/// Words of a CPU_SET(3).
const MASK_WORDS: usize = CPU_MASK_BITS / 64;

/// A pipeline's thread.
pub struct Pipeline {
    thread: JoinHandle<()>,
    /// Closed, it ends the thread when that waits for the next run function.
    alive: PipeWriter,
}

/// Starts a pipeline's thread: on these processors, with so many bytes of stack.
pub fn create(
    runtime: &'static Runtime,
    number: u32,
    mask: &[u64],
    stack_bytes: u64,
) -> io::Result<()> {
    if number >= PIPELINES_MAX || mask.len() > MASK_WORDS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let is_taken = lock(&runtime.pipelines).contains_key(&number);
    if is_taken || lock(&runtime.overdue).contains(&number) {
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    let mut words = [0; MASK_WORDS];
    words[..mask.len()].copy_from_slice(mask);
    let is_bound = !mask.is_empty();
    let (ended, alive) = io::pipe()?;
    let (tell, told) = mpsc::channel();
    let stack = match stack_bytes {
        0 => usual_stack(),
        bytes => bytes as usize,
    };
    let thread = thread::Builder::new().stack_size(stack).spawn(move || {
        let bound = if is_bound { bind(&words) } else { Ok(()) };
        let runs = bound.is_ok();
        // Whoever made the pipeline waits for this.
        let _ = tell.send(bound);
        let ends = || is_readable(ended.as_raw_fd());
        if runs && let Some(channel) = runtime.wait_for_channel(Kind::Pipeline(number), ends) {
            serve(runtime, &channel, number, &ended);
        }
    })?;
    told.recv()
        .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
    lock(&runtime.pipelines).insert(number, Pipeline { thread, alive });
    Ok(())
}

/// Ends a pipeline, once what it was sent has returned.
pub fn destroy(runtime: &Runtime, number: u32) -> io::Result<()> {
    // The host has made its channel, or has tried to. It may still be on its way, and must not be taken for that of the
    // next pipeline of this number.
    if lock(&runtime.pipelines).contains_key(&number)
        && !runtime.has_channel_within(Kind::Pipeline(number), CHANNEL_MAX)
    {
        lock(&runtime.overdue).insert(number);
    }
    let pipeline = lock(&runtime.pipelines).remove(&number);
    let Pipeline { thread, mut alive } =
        pipeline.ok_or(io::Error::from_raw_os_error(libc::ENOENT))?;
    // It may be gone already.
    let _ = alive.write(b".");
    // If it still waits for its connection, it looks again.
    drop(runtime.lock());
    runtime.changed.notify_all();
    // A panic of it is the end of it, too.
    let _ = thread.join();
    if runtime.disconnect(Kind::Pipeline(number)) {
        // It has come after all.
        lock(&runtime.overdue).remove(&number);
    }
    Ok(())
}

/// What pthread_create(3) takes: the limit of the process's first stack.
fn usual_stack() -> usize {
    const UNLIMITED: usize = 2 << 20;
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: 0,
    };
    // SAFETY: getrlimit(2) writes a struct rlimit, which is a variable of this function.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    match limit.rlim_cur {
        libc::RLIM_INFINITY => UNLIMITED,
        bytes => bytes as usize,
    }
}

/// Has the calling thread run on these processors alone.
fn bind(words: &[u64; MASK_WORDS]) -> io::Result<()> {
    // SAFETY: the mask has as many bytes as is said.
    match unsafe { libc::sched_setaffinity(0, size_of_val(words), words.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Serves until the host's end is gone, or the pipeline or the process ends.
fn serve(runtime: &'static Runtime, channel: &Channel, number: u32, ended: &PipeReader) {
    while let Some(request) = next(runtime, channel, ended) {
        runtime.tell(Input::Received(number));
        if !runtime.may_run() {
            return;
        }
        if request.tell_start {
            let (pipeline, count) = (number, runtime.lock().machine.received(number));
            runtime.notices.put(Notice::Started { pipeline, count });
        }
        let result = run(runtime, request);
        // Nothing may be in the channel when the snapshot is taken.
        runtime.begin_sending();
        let result = match result {
            Ok(value) => {
                let references = &mut lock(&runtime.buffers).references;
                let added = references.tell_added();
                let told = references.told();
                RunResult::Returned { value, added, told }
            }
            Err(why) => RunResult::Refused(why),
        };
        let sent = channel.send(&result);
        runtime.end_sending(Input::Sent(number));
        runtime.has_run();
        if sent.is_err() {
            return;
        }
    }
}

/// The next run function; `None` if there will be none. A host that waits for each sends the next one at once: to sleep until
/// then takes longer than most functions.
fn next(runtime: &'static Runtime, channel: &Channel, ended: &PipeReader) -> Option<RunFunction> {
    loop {
        let endpoint = channel.endpoint();
        match channel.receive_by(runtime, &endpoint, frames::receive_soon) {
            Some(Ok(None)) => {}
            Some(Ok(request)) => return request,
            Some(Err(_)) => return None,
            None => continue,
        }
        if !wait(endpoint.as_file().as_raw_fd(), ended.as_raw_fd()) {
            return None;
        }
        if let Some(received) = channel.receive_by(runtime, &endpoint, frames::receive) {
            return received.ok();
        }
    }
}

/// Waits for a message, or for the host's end to be gone; false if the pipeline ends instead.
fn wait(endpoint: i32, ended: i32) -> bool {
    let entry = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries = [entry(endpoint), entry(ended)];
    // SAFETY: two entries, valid for the call.
    while unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) } < 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
    // What it was sent is run before it ends.
    entries[0].revents & libc::POLLIN != 0 || entries[1].revents == 0
}

fn is_readable(fd: i32) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, valid for the call, which does not wait.
    unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
}

fn run(runtime: &Runtime, mut request: RunFunction) -> Result<Vec<u8>, String> {
    if request.buffers.len() > BUFFERS_MAX || request.misc.len() > MISC_DATA_MAX {
        return Err("too many buffers, or too much data".into());
    }
    let address = request.function as usize;
    if !lock(&runtime.libraries).is_function(address) {
        return Err(format!("{address:#x} is no function of the program"));
    }
    let (mut pointers, mut lengths) = (Vec::new(), Vec::new());
    let mut buffers = lock(&runtime.buffers);
    for buffer in &request.buffers {
        let (address, len) = buffers.part(buffer)?;
        pointers.push(address as *mut c_void);
        lengths.push(len);
    }
    for buffer in request.buffers.iter().filter(|buffer| buffer.add_ref) {
        buffers.references.given(buffer.id);
    }
    drop(buffers);
    let mut returned = vec![0; request.return_len.into()];
    // SAFETY: the address is that of a dynamic function symbol of this program or of a library that
    // is loaded, which by COI's interface has this signature; the arguments are as long as they say.
    unsafe {
        let function = mem::transmute::<usize, Function>(address);
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
    Ok(returned)
}
