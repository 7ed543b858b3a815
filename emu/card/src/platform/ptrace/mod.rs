//! The `ptrace` platform: a traced host task for each guest thread, for hosts with no usable
//! /dev/kvm.
//!
//! An address space is a host process whose memory is empty but for a stub page. Its first task,
//! the leader, makes a new task whenever a CPU is wanted, and is never traced; each new task is
//! seized by the host thread that owns the CPU. `PTRACE_SYSEMU` lets it run without ever letting a
//! system call through. When it touches an address, the page tables say what belongs there, and
//! the tracer makes it map that part of card memory: the host process's mappings are a cache of
//! the page tables, like a TLB, and flushing is unmapping.
//!
//! ```text
//!  host thread (CPU)          leader (stub)                 task (stub, then guest code)
//!    command = 1, wake  --->    clone  ----------------------->  spins at PARK
//!    <--- tid, wake             sleeps
//!    PTRACE_SEIZE, INTERRUPT ------------------------------->    stopped
//!    set registers, PTRACE_SYSEMU -------------------------->    guest code
//!    <------------------------------------------------------     stop: call, fault, kick
//! ```
//!
//! What must stay true: a task runs no host system call of the guest's choosing; the only ones it
//! ever makes are those that the tracer puts into the stub page, one at a time.

mod cpu;
mod space;
mod stub;

use std::sync::{
    Arc, Mutex, PoisonError,
    mpsc::{Sender, channel},
};

use super::{Cpu, Platform, PlatformError, Space};
use crate::{memory::CardMemory, xstate};

/// The platform. Spaces are forked by a thread of its own, because a child dies with the thread
/// that forked it (PR_SET_PDEATHSIG, prctl(2)), and guest threads come and go.
pub struct PtracePlatform {
    forker: Mutex<Sender<Request>>,
}

struct Request {
    root: u64,
    reply: Sender<Result<space::PtraceSpace, PlatformError>>,
}

impl PtracePlatform {
    /// A platform over `memory`.
    pub fn new(memory: &Arc<CardMemory>) -> Result<Self, PlatformError> {
        let (forker, requests) = channel::<Request>();
        let memory = memory.clone();
        std::thread::spawn(move || {
            for request in requests {
                // A requester that is gone drops the space with its channel.
                let _ = request
                    .reply
                    .send(space::PtraceSpace::new(&memory, request.root));
            }
        });
        Ok(Self {
            forker: Mutex::new(forker),
        })
    }
}

impl Platform for PtracePlatform {
    fn name(&self) -> &'static str {
        "ptrace"
    }

    fn new_space(&self, root: u64) -> Result<Arc<dyn Space>, PlatformError> {
        let (reply, answer) = channel();
        let forker = self.forker.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = || PlatformError::Guest("the forking thread is gone".into());
        forker.send(Request { root, reply }).map_err(|_| gone())?;
        Ok(Arc::new(answer.recv().map_err(|_| gone())??))
    }

    fn new_cpu(&self, space: Arc<dyn Space>) -> Result<Box<dyn Cpu>, PlatformError> {
        Ok(Box::new(cpu::PtraceCpu::new(space)?))
    }

    fn cpus_max(&self) -> usize {
        usize::MAX
    }

    fn has_host_counter(&self) -> bool {
        true
    }

    fn xstate_bytes(&self) -> usize {
        xstate::bytes()
    }
}

/// An error of the host in `call`.
fn host(call: &str) -> PlatformError {
    PlatformError::Host {
        call: call.into(),
        source: std::io::Error::last_os_error(),
    }
}
