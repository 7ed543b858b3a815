//! Which system calls each kind of thread makes, and with which arguments.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError,
    SeccompCmpArgLen::{Dword, Qword},
    SeccompCmpOp::{Eq, Lt, MaskedEq},
    SeccompCondition, SeccompRule,
};
use snaprig_card_memory::USER_END;
use snaprig_card_platform::{self as platform, Kind, TRACED_MEMORY_FD, TRACED_STUB};

pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Any of them.
    Any,
    /// Runs a guest thread and the card kernel on its behalf.
    Guest,
    /// Serves the host's driver.
    Host,
    /// Carries what leaves the card by its network.
    Network,
    /// Waits for the rig's end and tidies up.
    Rig,
}

/// What every thread does: memory, locks, clocks, its own birth and death, output, and waking others.
const ALL: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone3, // refused another way
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_io_uring_enter,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_write,
];

/// The vfio-user server, and what it is given: memfds and eventfds.
const HOST: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_readlink,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
];

/// What is done with sockets of the host that the card is given: none is made, bound or connected.
const NETWORK: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_getsockname,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
];

/// Removing a directory, which may be missing in part.
const RIG: &[i64] = &[
    libc::SYS_fstat,
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_rmdir,
    libc::SYS_statx,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];

/// What a tracer does.
const TRACER: &[i64] = &[libc::SYS_ptrace, libc::SYS_wait4];

/// Making an address space of the ptrace platform: a memfd for its stub, and the child's own steps.
const FORKER: &[i64] = &[
    libc::SYS_close_range,
    libc::SYS_dup2,
    libc::SYS_getppid,
    libc::SYS_memfd_create,
    // Of signals that the child does not handle.
    libc::SYS_rt_sigaction,
];

/// linux/kvm.h, by what the platform does with virtual CPUs and its one VM.
const KVM_IOCTLS: &[u64] = &[
    0xae41,      // KVM_CREATE_VCPU
    0x4020_ae46, // KVM_SET_USER_MEMORY_REGION
    0xae80,      // KVM_RUN
    0x8138_ae83, // KVM_GET_SREGS
    0x4138_ae84, // KVM_SET_SREGS
    0x4008_ae89, // KVM_SET_MSRS
    0x4008_ae90, // KVM_SET_CPUID2
    0x9000_aea4, // KVM_GET_XSAVE
    0x5000_aea5, // KVM_SET_XSAVE
    0x4188_aea7, // KVM_SET_XCRS
    0x4018_aee1, // KVM_SET_DEVICE_ATTR
];
/// ioctl_userfaultfd(2) and PAGEMAP_SCAN.
const DIRTY_IOCTLS: &[u64] = &[
    0xc018_aa3f, // UFFDIO_API
    0xc020_aa00, // UFFDIO_REGISTER
    snaprig_userfault::scan::PAGEMAP_SCAN,
];
/// io_uring_register(2): IORING_REGISTER_EVENTFD, IORING_UNREGISTER_EVENTFD.
const URING_EVENTFDS: &[u64] = &[4, 5];
/// Names of threads, and, in newer C libraries, of memory.
const PRCTLS: &[u64] = &[
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_SET_VMA as u64,
];
/// The calls of a role on a platform. `Any` has those of all roles.
pub(super) fn rules(role: Role, platform: Kind, has_network: bool) -> Result<Rules, BackendError> {
    let is = |one| role == one || role == Role::Any;
    let ptrace = platform == Kind::Ptrace;
    let mut list = List::default();
    list.calls(ALL);
    // Flags of a thread, and no new namespace.
    let thread = (libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as u64;
    let never = libc::CLONE_NEWNS
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    let mask = thread | never as u64;
    list.rule(libc::SYS_clone, &[(0, Compare::Masked(mask, thread))])?;
    let executable = libc::PROT_EXEC as u64;
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        list.rule(call, &[(2, Compare::Masked(executable, 0))])?;
    }
    list.one_of(libc::SYS_prctl, 0, PRCTLS)?;
    // Kicks, and abort(3).
    let signals = [platform::kick_signal() as u64, libc::SIGABRT as u64];
    list.one_of(libc::SYS_tgkill, 2, &signals)?;
    if is(Role::Guest) {
        if !ptrace {
            list.one_of(libc::SYS_ioctl, 1, KVM_IOCTLS)?;
        }
        list.one_of(libc::SYS_ioctl, 1, DIRTY_IOCTLS)?;
        // What the library asks, where assertions are on, of a descriptor that it closes: a peer's memory.
        list.one_of(libc::SYS_fcntl, 1, &[libc::F_GETFD as u64])?;
    }
    if is(Role::Guest) && ptrace {
        list.calls(TRACER);
        // The end of an address space.
        list.one_of(libc::SYS_kill, 1, &[libc::SIGKILL as u64])?;
    }
    if is(Role::Host) {
        list.calls(HOST);
        let flags = [
            libc::F_GETFL,
            libc::F_SETFL,
            libc::F_GET_SEALS,
            libc::F_GETFD,
            libc::F_DUPFD_CLOEXEC,
        ];
        list.one_of(libc::SYS_fcntl, 1, &flags.map(|one| one as u64))?;
        list.one_of(libc::SYS_ioctl, 1, &[libc::FIONBIO])?;
        list.one_of(libc::SYS_io_uring_register, 1, URING_EVENTFDS)?;
        // getrlimit(2), which sets nothing.
        list.rule(libc::SYS_prlimit64, &[(2, Compare::Is(0))])?;
    }
    if is(Role::Network) && has_network {
        list.calls(NETWORK);
        // What the library asks, where assertions are on, of a descriptor that it closes.
        list.one_of(libc::SYS_fcntl, 1, &[libc::F_GETFD as u64])?;
        for (call, option) in [
            (libc::SYS_getsockopt, libc::SO_ERROR),
            (libc::SYS_setsockopt, libc::SO_LINGER),
        ] {
            let arguments = [
                (1, Compare::Int(libc::SOL_SOCKET)),
                (2, Compare::Int(option)),
            ];
            list.rule(call, &arguments)?;
        }
    }
    if is(Role::Rig) {
        list.calls(RIG);
        let flags = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL];
        list.one_of(libc::SYS_fcntl, 1, &flags.map(|one| one as u64))?;
    }
    if role == Role::Any {
        // A thread that narrows itself.
        list.rule(
            libc::SYS_seccomp,
            &[(0, Compare::Is(libc::SECCOMP_SET_MODE_FILTER.into()))],
        )?;
        list.one_of(libc::SYS_prctl, 0, &[libc::PR_SET_NO_NEW_PRIVS as u64])?;
        // The DMA engine's threads: memory of files that may become shorter, and all, where there is no io_uring.
        list.calls(&[libc::SYS_pread64, libc::SYS_pwrite64]);
    }
    if role == Role::Any && ptrace {
        list.calls(FORKER);
        list.one_of(libc::SYS_prctl, 0, &[libc::PR_SET_PDEATHSIG as u64])?;
        // fork(3) of glibc.
        let fork = libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
        list.rule(libc::SYS_clone, &[(0, Compare::Is(fork as u64))])?;
        // The stub, and card memory below it, are code in a traced process, which has this filter, too.
        list.rule(libc::SYS_mmap, &[(0, Compare::Is(TRACED_STUB))])?;
        list.rule(
            libc::SYS_mmap,
            &[
                (0, Compare::Below(USER_END)),
                (3, Compare::Int(libc::MAP_SHARED | libc::MAP_FIXED)),
                (4, Compare::Int(TRACED_MEMORY_FD)),
            ],
        )?;
    }
    Ok(list.0)
}

/// What an argument must be.
#[derive(Clone, Copy)]
enum Compare {
    Is(u64),
    /// An `int`.
    Int(i32),
    Below(u64),
    /// These bits are those.
    Masked(u64, u64),
}

#[derive(Default)]
struct List(Rules);

impl List {
    /// Calls with any arguments.
    fn calls(&mut self, calls: &[i64]) {
        for call in calls {
            self.0.insert(*call, Vec::new());
        }
    }

    /// A call whose arguments are all as said.
    fn rule(&mut self, call: i64, arguments: &[(u8, Compare)]) -> Result<(), BackendError> {
        let conditions = arguments.iter().map(|(index, compare)| match *compare {
            Compare::Is(value) => SeccompCondition::new(*index, Qword, Eq, value),
            Compare::Int(value) => SeccompCondition::new(*index, Dword, Eq, value as u32 as u64),
            Compare::Below(value) => SeccompCondition::new(*index, Qword, Lt, value),
            Compare::Masked(mask, value) => {
                SeccompCondition::new(*index, Qword, MaskedEq(mask), value)
            }
        });
        let rule = SeccompRule::new(conditions.collect::<Result<_, _>>()?)?;
        self.0.entry(call).or_default().push(rule);
        Ok(())
    }

    /// A call one of whose arguments, an `int`, is among those.
    fn one_of(&mut self, call: i64, index: u8, values: &[u64]) -> Result<(), BackendError> {
        for value in values {
            let condition = SeccompCondition::new(index, Dword, Eq, *value)?;
            let rule = SeccompRule::new(vec![condition])?;
            self.0.entry(call).or_default().push(rule);
        }
        Ok(())
    }
}
