//! What the host's kernel lets a traced process do, whatever becomes of its tracer: a second wall behind
//! PTRACE_SYSEMU.
//!
//! The kernel asks the tracer first and the filter after it (seccomp(2), since Linux 4.8): a guest's system
//! call under PTRACE_SYSEMU never gets to the filter. The calls that the tracer puts into the stub do, and so
//! would one of a task that runs without its tracer, one made in 32-bit mode (another architecture), and
//! one of the vsyscall page, which the kernel emulates without telling the tracer.

use std::io;

use seccompiler::{
    BpfProgram, SeccompAction,
    SeccompCmpArgLen::{Dword, Qword},
    SeccompCmpOp::{Eq, Lt},
    SeccompCondition as Condition, SeccompFilter, SeccompRule, TargetArch,
};
use snaprig_card_memory::USER_END;

use super::{
    outside::{OPEN_FLAGS, PEER_FD},
    space::{CLONE_FLAGS, MEMORY_FD},
    stub,
};

/// The filter: card memory, and a peer's that the tracer has just opened, may be mapped below the stub,
/// anything unmapped, tasks made, a task ended.
pub fn program() -> io::Result<BpfProgram> {
    build().map_err(io::Error::other)
}

fn build() -> Result<BpfProgram, seccompiler::BackendError> {
    let fixed_shared = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
    let map = |fd: i32| {
        SeccompRule::new(vec![
            Condition::new(0, Qword, Lt, USER_END)?,
            Condition::new(3, Dword, Eq, fixed_shared)?,
            Condition::new(4, Dword, Eq, fd as u64)?,
        ])
    };
    // The name is in a page that the guest cannot write, and is none but for the length of the call.
    let open = SeccompRule::new(vec![
        Condition::new(0, Dword, Eq, libc::AT_FDCWD as u32 as u64)?,
        Condition::new(1, Qword, Eq, stub::NAME)?,
        Condition::new(2, Dword, Eq, OPEN_FLAGS as u64)?,
    ])?;
    let close = SeccompRule::new(vec![Condition::new(0, Dword, Eq, PEER_FD as u64)?])?;
    let spawn = SeccompRule::new(vec![
        Condition::new(0, Qword, Eq, CLONE_FLAGS)?,
        Condition::new(1, Qword, Eq, 0)?,
    ])?;
    let rules = [
        (libc::SYS_mmap, vec![map(MEMORY_FD)?, map(PEER_FD)?]),
        (libc::SYS_openat, vec![open]),
        (libc::SYS_close, vec![close]),
        (libc::SYS_munmap, vec![]),
        (libc::SYS_clone, vec![spawn]),
        (libc::SYS_exit, vec![]),
    ];
    SeccompFilter::new(
        rules.into(),
        // A signal that stops the task for its tracer, and ends it where there is none.
        SeccompAction::Trap,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?
    .try_into()
}

/// Puts the calling thread under the filter, for good. Returns whether that worked.
/// It makes plain system calls, as a forked child may.
pub fn enter(program: &BpfProgram) -> bool {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: prctl(2) takes integers here, seccomp(2) a program that lives through the call; seccompiler's
    // `sock_filter` has the layout of linux/filter.h.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                0,
                &raw const filter,
            ) == 0
    }
}
