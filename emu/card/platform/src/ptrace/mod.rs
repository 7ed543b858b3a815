//! The `ptrace` platform: a traced host task for each guest thread, for hosts with no usable
//! /dev/kvm.
//!
//! An address space is a host process whose memory is empty but for a stub page. Its first task,
//! the leader, never runs the guest's code; it makes a new task whenever a CPU is wanted. Each new
//! task is seized by the host thread that owns the CPU. `PTRACE_SYSEMU` lets it run without ever
//! letting a system call through. When it touches an address, the page tables say what belongs
//! there, and the tracer makes it map that part of card memory: the host process's mappings are a
//! cache of the page tables, like a TLB, and flushing is unmapping.
//!
//! ```text
//!  host thread (CPU)      forking thread       leader (stub)       task (stub, then guest code)
//!    asks for a task  -->  clone in the stub --> clone  ---------->  spins at PARK
//!    <------ tid --------  <-- stop -----------  stopped
//!    PTRACE_SEIZE, INTERRUPT ------------------------------------->  stopped
//!    set registers, PTRACE_SYSEMU -------------------------------->  guest code
//!    <------------------------------------------------------------   stop: call, fault, kick
//! ```
//!
//! What must stay true: a task runs no host system call of the guest's choosing; the only ones it
//! ever makes are those that the tracer puts into the stub page, one at a time, and a seccomp filter
//! knows those ([`filter`]). Nothing that the guest can write tells the VMM anything but the
//! registers that it stopped with.

mod cpu;
mod filter;
mod outside;
mod space;
mod stub;
mod task;

use std::sync::{
    Arc, Mutex, PoisonError,
    mpsc::{Sender, channel},
};

use snaprig_card_memory::CardMemory;

pub use self::{space::MEMORY_FD, stub::STUB};
use self::{space::PtraceSpace, task::Task};
use crate::{Cpu, Kind, Platform, PlatformError, Space, xstate};

/// The platform. A thread of its own forks spaces and traces their leaders: a child dies with the
/// thread that forked it (PR_SET_PDEATHSIG, prctl(2)), and guest threads come and go.
pub struct PtracePlatform {
    forker: Mutex<Sender<Request>>,
}

enum Request {
    Space {
        root: u64,
        forker: Sender<Request>,
        reply: Sender<Result<PtraceSpace, PlatformError>>,
    },
    Task {
        leader: Task,
        reply: Sender<Result<libc::pid_t, PlatformError>>,
    },
    Unmap {
        leader: Task,
        start: u64,
        len: u64,
        reply: Sender<Result<(), PlatformError>>,
    },
}

impl PtracePlatform {
    /// A platform over `memory`.
    pub fn new(memory: &Arc<CardMemory>) -> Result<Self, PlatformError> {
        let (forker, requests) = channel::<Request>();
        let memory = memory.clone();
        let thread = std::thread::Builder::new().name("forker".into());
        let spawned = thread.spawn(move || {
            for request in requests {
                // What is made for a requester that is gone ends with its channel.
                match request {
                    Request::Space {
                        root,
                        forker,
                        reply,
                    } => drop(reply.send(PtraceSpace::new(&memory, root, forker))),
                    Request::Task { leader, reply } => drop(reply.send(space::spawn(leader))),
                    Request::Unmap {
                        leader,
                        start,
                        len,
                        reply,
                    } => drop(reply.send(leader.unmap(start, len))),
                }
            }
        });
        spawned.map_err(|source| PlatformError::Host {
            call: "the forking thread".into(),
            source,
        })?;
        Ok(Self {
            forker: Mutex::new(forker),
        })
    }
}

impl Platform for PtracePlatform {
    fn kind(&self) -> Kind {
        Kind::Ptrace
    }

    fn new_space(&self, root: u64) -> Result<Arc<dyn Space>, PlatformError> {
        let (reply, answer) = channel();
        let forker = self.forker.lock().unwrap_or_else(PoisonError::into_inner);
        let request = Request::Space {
            root,
            forker: forker.clone(),
            reply,
        };
        forker.send(request).map_err(|_| forker_gone())?;
        drop(forker);
        Ok(Arc::new(answer.recv().map_err(|_| forker_gone())??))
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

fn forker_gone() -> PlatformError {
    PlatformError::Guest("the forking thread is gone".into())
}

/// An error of the host in `call`.
fn host(call: &str) -> PlatformError {
    PlatformError::Host {
        call: call.into(),
        source: std::io::Error::last_os_error(),
    }
}
