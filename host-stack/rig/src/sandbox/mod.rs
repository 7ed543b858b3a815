//! What is left to a card's process once it runs: the second wall behind the card, for the day when a
//! guest or a host's driver finds a hole in the first.
//!
//! | thread | filter |
//! |---|---|
//! | all, by TSYNC | [`Role::Any`]: what any of them needs |
//! | guest threads, and the first thread, which starts them | and [`Role::Guest`]: no file, socket or process is made |
//! | `vfio-user` | and [`Role::Host`]: its sockets, and mapping what it is given |
//! | `network`, if the card has one | and [`Role::Network`]: what it does with sockets that it is given, and accepting |
//! | `rig`, which tidies up | and [`Role::Rig`]: reading directories, removing what is in them |
//!
//! A call that is in no list is not made: the thread says which it was, and where, and the
//! process ends with [`FORBIDDEN`]. `SNAPRIG_SECCOMP=log` lets it be made and has the kernel log it
//! (dmesg, audit); `off` does without filters, for debuggers.
//!
//! io_uring makes calls that no filter sees. Rings are made before [`enter`], allow nothing but what they are
//! for (`snaprig_dma::restrict`), and io_uring_setup(2) is in no list.
//!
//! What a filter cannot tell: what a pointer points to, so which file is opened (`rig` alone may), which memory a
//! KVM slot shows; on `ptrace`, which task of the same user a tracer seizes. So `kvm` is the stronger wall.

mod rules;
mod trap;

use std::{hint::black_box, io, thread::JoinHandle};

use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter,
    apply_filter_all_threads,
};
use snaprig_card_platform::Kind;

pub use rules::Role;
pub use trap::FORBIDDEN;

/// Says what becomes of forbidden calls.
const VARIABLE: &str = "SNAPRIG_SECCOMP";

/// Why a process could not be locked up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// `SNAPRIG_SECCOMP` is set to something unknown.
    #[error("{VARIABLE}={0}: there are on, log and off")]
    Mode(String),
    /// A filter could not be made or entered.
    #[error("seccomp: {0}; {VARIABLE}=off does without")]
    Filter(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A limit could not be set.
    #[error("limits: {0}")]
    Limit(#[from] io::Error),
}

impl From<seccompiler::Error> for SandboxError {
    fn from(error: seccompiler::Error) -> Self {
        Self::Filter(error.into())
    }
}

impl From<BackendError> for SandboxError {
    fn from(error: BackendError) -> Self {
        Self::Filter(error.into())
    }
}

/// The filters of this process.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox {
    platform: Kind,
    has_network: bool,
    /// What becomes of a forbidden call; `None`: there are no filters.
    forbidden: Option<Forbidden>,
}

#[derive(Clone, Copy, Debug)]
enum Forbidden {
    Trap,
    Log,
}

/// Locks up the process, all of its threads and all that they will start, for good. A card on
/// `platform`, with a network or without, has made and opened by now what it cannot later.
pub fn enter(platform: Kind, has_network: bool) -> Result<Sandbox, SandboxError> {
    let mode = std::env::var(VARIABLE).unwrap_or_default();
    let forbidden = match mode.as_str() {
        "" | "on" => Some(Forbidden::Trap),
        "log" => Some(Forbidden::Log),
        "off" => None,
        _ => return Err(SandboxError::Mode(mode)),
    };
    let sandbox = Sandbox {
        platform,
        has_network,
        forbidden,
    };
    // A core would have the memory of everybody who uses the card.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none).map_err(io::Error::from)?;
    settle_malloc();
    let Some(program) = sandbox.program(Role::Any)? else {
        tracing::warn!("{VARIABLE}=off: a card without filters");
        return Ok(sandbox);
    };
    trap::install()?;
    apply_filter_all_threads(&program)?;
    // glibc makes threads by clone3(2), whose flags are in memory, where no filter sees them. It falls back
    // to clone(2) where that is missing.
    let no_clone3 = filter(
        [(libc::SYS_clone3, vec![])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
    )?;
    apply_filter_all_threads(&no_clone3)?;
    Ok(sandbox)
}

/// glibc's malloc reads files when it first asks itself something, which may be in any thread. How many arenas there
/// may be, it is told (mallopt(3)). Whether memory is overcommitted, it asks when it first gives back the end of a
/// thread's heap: here, where it keeps little of that. Then it is told the thresholds that it would come to by itself.
fn settle_malloc() {
    const ARENAS_PER_CORE: usize = 8;
    const LITTLE: libc::c_int = 128 << 10;
    const BLOCK: usize = 100 << 10;
    // DEFAULT_MMAP_THRESHOLD_MAX of malloc.c, and twice that.
    const MMAP_THRESHOLD: libc::c_int = 32 << 20;
    const TRIM_THRESHOLD: libc::c_int = 2 * MMAP_THRESHOLD;
    let set = |parameter, value| {
        // SAFETY: mallopt(3) takes numbers; malloc locks its own state against other threads.
        unsafe { libc::mallopt(parameter, value) };
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let arenas = libc::c_int::try_from(cores * ARENAS_PER_CORE).unwrap_or(libc::c_int::MAX);
    set(libc::M_ARENA_MAX, arenas);
    set(libc::M_TRIM_THRESHOLD, LITTLE);
    let blocks = || {
        let blocks = (0..10).map(|_| Vec::<u8>::with_capacity(BLOCK));
        drop(black_box(blocks.collect::<Vec<_>>()));
    };
    // Where there is no thread to be had, a card has none either, and says so.
    let _ = std::thread::Builder::new()
        .spawn(blocks)
        .map(JoinHandle::join);
    set(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD);
    set(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD);
}

impl Sandbox {
    /// Leaves the calling thread, and those that it will start, only what the role needs.
    pub fn narrow(&self, role: Role) -> Result<(), SandboxError> {
        if let Some(program) = self.program(role)? {
            apply_filter(&program)?;
        }
        Ok(())
    }

    fn program(&self, role: Role) -> Result<Option<BpfProgram>, SandboxError> {
        let forbidden = match self.forbidden {
            None => return Ok(None),
            Some(Forbidden::Trap) => SeccompAction::Trap,
            Some(Forbidden::Log) => SeccompAction::Log,
        };
        let rules = rules::rules(role, self.platform, self.has_network)?;
        Ok(Some(filter(rules, forbidden, SeccompAction::Allow)?))
    }
}

fn filter(
    rules: rules::Rules,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, others, these, TargetArch::x86_64)?.try_into()
}

/// Whether cards run under filters here: tries one, on a thread of its own, and says what it found.
pub fn probe() -> Result<String, String> {
    match std::env::var(VARIABLE).as_deref() {
        Ok("off") => return Err(format!("{VARIABLE}=off")),
        Ok("log") => return Err(format!("{VARIABLE}=log: forbidden calls are made")),
        _ => {}
    }
    let try_one = || {
        let refuse = SeccompAction::Errno(libc::EXDEV as u32);
        let rules = [(libc::SYS_getppid, vec![])].into();
        apply_filter(&filter(rules, SeccompAction::Allow, refuse)?)?;
        // SAFETY: getppid(2) takes no argument; refused, it returns an error.
        let parent = unsafe { libc::syscall(libc::SYS_getppid) };
        Ok::<_, SandboxError>(parent == -1)
    };
    match std::thread::spawn(try_one).join() {
        Ok(Ok(true)) => Ok("filters refuse calls".into()),
        Ok(Ok(false)) => Err("a filter refused nothing".into()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the trial panicked".into()),
    }
}
