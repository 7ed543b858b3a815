//! Calls that ask: who am I, what is this machine, and small settings.

use snaprig_card_driver::{
    clock::monotonic, device::UserMemory, errno::Errno, random, wait::SysResult,
};
use snaprig_card_memory::USER_END;

use crate::{call::Call, sched::priority_range, state::lock};

const UTS_FIELD: usize = 65;
const RANDOM_MAX: usize = 1 << 20;
/// Bytes of `struct robust_list_head`.
const ROBUST_HEAD_BYTES: u64 = 24;

impl Call<'_> {
    /// Runs a call that asks; `None` if it is none.
    pub fn info_call(&mut self, number: u64, a: [u64; 6]) -> Option<SysResult> {
        let int = |i: usize| a[i] as i32;
        Some(match number as i64 {
            libc::SYS_getpid => Ok(self.pid as u64),
            libc::SYS_gettid => Ok(self.tid as u64),
            libc::SYS_getppid => Ok(self.process().parent as u64),
            libc::SYS_getpgrp => Ok(self.process().group.0 as u64),
            libc::SYS_getpgid => self.group_of(int(0)).map(|group| group.0 as u64),
            libc::SYS_getsid => self.group_of(int(0)).map(|group| group.1 as u64),
            libc::SYS_setpgid => self.setpgid(int(0), int(1)),
            libc::SYS_sched_rr_get_interval => self.round_robin(int(0), a[1]),
            libc::SYS_personality => self.personality(a[0] as u32),
            libc::SYS_get_robust_list => self.get_robust_list(int(0), a[1], a[2]),
            libc::SYS_setsid => self.setsid(),
            libc::SYS_getpriority => self.getpriority(int(0), int(1)),
            libc::SYS_setpriority => self.setpriority(int(0), int(1), int(2)),
            libc::SYS_uname => self.uname(a[0]),
            libc::SYS_sysinfo => self.sysinfo(a[0]),
            libc::SYS_getrandom => self.getrandom(a[0], a[1] as usize, a[2] as u32),
            libc::SYS_getrlimit => self.prlimit(0, int(0), 0, a[1]),
            libc::SYS_setrlimit => self.prlimit(0, int(0), a[1], 0),
            libc::SYS_prlimit64 => self.prlimit(int(0), int(1), a[2], a[3]),
            libc::SYS_getrusage => self.getrusage(int(0), a[1]),
            libc::SYS_times => self.times(a[0]),
            libc::SYS_sched_yield => self.sched_yield(),
            libc::SYS_sched_getaffinity => self.getaffinity(int(0), a[1], a[2]),
            libc::SYS_sched_setaffinity => self.setaffinity(int(0), a[1], a[2]),
            libc::SYS_sched_getscheduler => self.getscheduler(int(0)),
            libc::SYS_sched_getparam => self.getparam(int(0), a[1]),
            libc::SYS_sched_setscheduler => self.setscheduler(int(0), Some(int(1)), a[2]),
            libc::SYS_sched_setparam => self.setscheduler(int(0), None, a[1]),
            libc::SYS_sched_getattr => {
                self.sched_getattr(int(0), a[1], a[2] as u32 as u64, a[3] as u32)
            }
            libc::SYS_sched_setattr => self.sched_setattr(int(0), a[1], a[2] as u32),
            libc::SYS_sched_get_priority_max => priority_range(int(0), 99),
            libc::SYS_sched_get_priority_min => priority_range(int(0), 1),
            libc::SYS_getcpu => self.getcpu(a[0], a[1]),
            libc::SYS_set_tid_address => {
                self.thread().clear_child_tid = a[0];
                Ok(self.tid as u64)
            }
            libc::SYS_set_robust_list if a[1] != ROBUST_HEAD_BYTES => Err(Errno::EINVAL.into()),
            libc::SYS_set_robust_list => {
                self.thread().robust_list = a[0];
                Ok(0)
            }
            libc::SYS_rseq => self.rseq(a[0], a[1] as u32, int(2), a[3] as u32),
            libc::SYS_arch_prctl => self.arch_prctl(int(0), a[1]),
            libc::SYS_prctl => self.prctl(a),
            libc::SYS_membarrier => self.membarrier(int(0), a[1] as u32, int(2)),
            _ => return self.credentials_call(number, a),
        })
    }

    fn round_robin(&mut self, tid: i32, to: u64) -> SysResult {
        const SLICE_NANOS: u64 = 10_000_000;
        if tid < 0 {
            return Err(Errno::EINVAL.into());
        }
        self.scheduled(tid)?;
        self.write_words(to, &[0, SLICE_NANOS])?;
        Ok(0)
    }

    fn get_robust_list(&mut self, tid: i32, head: u64, len: u64) -> SysResult {
        let tid = self.scheduled(tid)?;
        let list = self.state.thread(tid).robust_list;
        self.write_words(len, &[ROBUST_HEAD_BYTES])?;
        self.write_words(head, &[list])?;
        Ok(0)
    }

    fn uname(&mut self, to: u64) -> SysResult {
        let node = format!("mic{}", self.kernel.node.saturating_sub(1));
        let fields = [
            "Linux",
            &node,
            "6.1.0-snaprig",
            "#1 SMP snaprig",
            "x86_64",
            "(none)",
        ];
        let mut bytes = [0; UTS_FIELD * 6];
        for (index, field) in fields.iter().enumerate() {
            bytes[index * UTS_FIELD..][..field.len()].copy_from_slice(field.as_bytes());
        }
        self.write(to, &bytes)?;
        Ok(0)
    }

    fn sysinfo(&mut self, to: u64) -> SysResult {
        let (total, free) = (self.kernel.memory.bytes(), self.kernel.memory.free_bytes());
        let mut bytes = [0; 112];
        bytes[..8].copy_from_slice(&monotonic().as_secs().to_le_bytes());
        bytes[32..40].copy_from_slice(&total.to_le_bytes());
        bytes[40..48].copy_from_slice(&free.to_le_bytes());
        let processes = self.state.processes.len() as u16;
        bytes[80..82].copy_from_slice(&processes.to_le_bytes());
        // The unit of the sizes, in bytes.
        bytes[104..108].copy_from_slice(&1_u32.to_le_bytes());
        self.write(to, &bytes)?;
        Ok(0)
    }

    fn getrandom(&mut self, to: u64, len: usize, flags: u32) -> SysResult {
        const BOTH: u32 = libc::GRND_RANDOM | libc::GRND_INSECURE;
        if flags & !(libc::GRND_NONBLOCK | BOTH) != 0 || flags & BOTH == BOTH {
            return Err(Errno::EINVAL.into());
        }
        if to
            .checked_add(len.min(i32::MAX as usize) as u64)
            .is_none_or(|end| end > USER_END)
        {
            return Err(Errno::EFAULT.into());
        }
        let mm = self.process().mm.clone();
        let good = lock(&mm).writable(to, len.min(RANDOM_MAX));
        if good == 0 && len > 0 {
            return Err(Errno::EFAULT.into());
        }
        let mut bytes = vec![0; good];
        random::fill(&mut bytes);
        self.write(to, &bytes)?;
        Ok(good as u64)
    }

    /// membarrier(2). Every other thread leaves ring 3 once, which orders everything, and aborts its
    /// restartable sequence.
    fn membarrier(&mut self, command: i32, flags: u32, _cpu: i32) -> SysResult {
        const GLOBAL: i32 = 1;
        const GLOBAL_EXPEDITED: i32 = 1 << 1;
        const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
        const PRIVATE_EXPEDITED: i32 = 1 << 3;
        const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
        const SYNC_CORE: i32 = 1 << 5;
        const REGISTER_SYNC_CORE: i32 = 1 << 6;
        const RSEQ: i32 = 1 << 7;
        const REGISTER_RSEQ: i32 = 1 << 8;
        const GET_REGISTRATIONS: i32 = 1 << 9;
        const ALL: i32 = GET_REGISTRATIONS * 2 - 1;
        const FLAG_CPU: u32 = 1;
        const READY_SHIFT: i32 = 16;
        if flags != 0 && !(command == RSEQ && flags == FLAG_CPU) {
            return Err(Errno::EINVAL.into());
        }
        let registered = self.process().settings.barriers;
        let needs = match command {
            0 => return Ok(ALL as u64),
            GET_REGISTRATIONS => return Ok((registered & ALL) as u64),
            REGISTER_GLOBAL_EXPEDITED
            | REGISTER_PRIVATE_EXPEDITED
            | REGISTER_SYNC_CORE
            | REGISTER_RSEQ => {
                // Each of the private ones is told with the first, but does not serve for it.
                let own = match command {
                    REGISTER_GLOBAL_EXPEDITED => command,
                    _ => command | REGISTER_PRIVATE_EXPEDITED,
                };
                self.process().settings.barriers |= own | command << READY_SHIFT;
                return Ok(0);
            }
            GLOBAL | GLOBAL_EXPEDITED => 0,
            PRIVATE_EXPEDITED => REGISTER_PRIVATE_EXPEDITED,
            SYNC_CORE => REGISTER_SYNC_CORE,
            RSEQ => REGISTER_RSEQ,
            _ => return Err(Errno::EINVAL.into()),
        };
        if registered >> READY_SHIFT & needs != needs {
            return Err(Errno::EPERM.into());
        }
        let (me, pid) = (self.tid, self.pid);
        let everybody = command & (GLOBAL | GLOBAL_EXPEDITED) != 0;
        for (tid, thread) in &self.state.threads {
            if *tid != me
                && (everybody || thread.pid == pid)
                && let Some(kick) = &thread.kick
            {
                kick.kick();
            }
        }
        Ok(0)
    }
}
