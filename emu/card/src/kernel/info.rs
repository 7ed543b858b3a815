//! Calls that ask: who am I, what is this machine, and small settings.

use super::{call::Call, errno::Errno, sched::priority_range, wait::SysResult};

const UTS_FIELD: usize = 65;
const RANDOM_MAX: usize = 1 << 20;

/// Fills `bytes` with the host's random numbers.
pub fn random(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the pointer and length are those of `rest`.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        done += got.max(0) as usize;
    }
}

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
            libc::SYS_personality => Ok(0),
            libc::SYS_setreuid | libc::SYS_setregid | libc::SYS_setfsuid | libc::SYS_setfsgid => {
                Ok(0)
            }
            libc::SYS_get_robust_list => self.get_robust_list(int(0), a[1], a[2]),
            libc::SYS_setsid => {
                let pid = self.pid;
                self.process().group = (pid, pid);
                Ok(pid as u64)
            }
            // Everybody on a card is root.
            libc::SYS_getuid
            | libc::SYS_geteuid
            | libc::SYS_getgid
            | libc::SYS_getegid
            | libc::SYS_getgroups
            | libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setgroups
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setpriority => Ok(0),
            libc::SYS_getresuid | libc::SYS_getresgid => self.getresuid(a),
            libc::SYS_getpriority if !(0..=2).contains(&int(0)) => Err(Errno::EINVAL.into()),
            libc::SYS_getpriority => Ok(20),
            libc::SYS_uname => self.uname(a[0]),
            libc::SYS_sysinfo => self.sysinfo(a[0]),
            libc::SYS_getrandom => self.getrandom(a[0], a[1] as usize, a[2] as u32),
            libc::SYS_getrlimit => self.prlimit(0, int(0), 0, a[1]),
            libc::SYS_setrlimit => self.prlimit(0, int(0), a[1], 0),
            libc::SYS_prlimit64 => self.prlimit(int(0), int(1), a[2], a[3]),
            libc::SYS_getrusage => self.getrusage(int(0), a[1]),
            libc::SYS_times => self.times(a[0]),
            libc::SYS_sched_yield => Ok(0),
            libc::SYS_sched_getaffinity => self.getaffinity(int(0), a[1], a[2]),
            libc::SYS_sched_setaffinity => self.setaffinity(int(0), a[1], a[2]),
            libc::SYS_sched_getscheduler => self.scheduled(int(0)).map(|_| 0),
            libc::SYS_sched_getparam => self.getparam(int(0), a[1]),
            libc::SYS_sched_setscheduler => self.setscheduler(int(0), int(1), a[2]),
            libc::SYS_sched_setparam => self.setscheduler(int(0), libc::SCHED_OTHER, a[1]),
            libc::SYS_sched_get_priority_max => priority_range(int(0), 99),
            libc::SYS_sched_get_priority_min => priority_range(int(0), 1),
            libc::SYS_getcpu => self.getcpu(a[0], a[1]),
            libc::SYS_set_tid_address => {
                self.thread().clear_child_tid = a[0];
                Ok(self.tid as u64)
            }
            libc::SYS_set_robust_list => {
                self.thread().robust_list = a[0];
                Ok(0)
            }
            libc::SYS_arch_prctl => self.arch_prctl(int(0), a[1]),
            libc::SYS_prctl => self.prctl(int(0), a[1]),
            libc::SYS_membarrier => self.membarrier(int(0)),
            _ => return None,
        })
    }

    fn round_robin(&mut self, tid: i32, to: u64) -> SysResult {
        const SLICE_NANOS: u64 = 10_000_000;
        self.scheduled(tid)?;
        self.write_words(to, &[0, SLICE_NANOS])?;
        Ok(0)
    }

    fn get_robust_list(&mut self, tid: i32, head: u64, len: u64) -> SysResult {
        const HEAD_BYTES: u64 = 24;
        let tid = self.scheduled(tid)?;
        let list = self.state.thread(tid).robust_list;
        self.write_words(head, &[list])?;
        self.write_words(len, &[HEAD_BYTES])?;
        Ok(0)
    }

    fn group_of(&mut self, pid: i32) -> Result<(i32, i32), super::wait::Stop> {
        let pid = if pid == 0 { self.pid } else { pid };
        Ok(self.state.processes.get(&pid).ok_or(Errno::ESRCH)?.group)
    }

    fn setpgid(&mut self, pid: i32, group: i32) -> SysResult {
        let pid = if pid == 0 { self.pid } else { pid };
        let process = self.state.processes.get_mut(&pid).ok_or(Errno::ESRCH)?;
        process.group.0 = if group == 0 { pid } else { group };
        Ok(0)
    }

    fn getresuid(&mut self, a: [u64; 6]) -> SysResult {
        for address in &a[..3] {
            self.write(*address, &[0; 4])?;
        }
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
        bytes[..8].copy_from_slice(&super::now().as_secs().to_le_bytes());
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
        let mut bytes = vec![0; len.min(RANDOM_MAX)];
        random(&mut bytes);
        self.write(to, &bytes)?;
        Ok(bytes.len() as u64)
    }

    fn arch_prctl(&mut self, code: i32, value: u64) -> SysResult {
        const ARCH_SET_GS: i32 = 0x1001;
        const ARCH_SET_FS: i32 = 0x1002;
        const ARCH_GET_FS: i32 = 0x1003;
        const ARCH_GET_GS: i32 = 0x1004;
        let regs = &mut self.thread().regs;
        let in_user_space = value < crate::platform::USER_END;
        match code {
            ARCH_SET_FS if in_user_space => regs.fs_base = value,
            ARCH_SET_GS if in_user_space => regs.gs_base = value,
            ARCH_SET_FS | ARCH_SET_GS => return Err(Errno::EPERM.into()),
            ARCH_GET_FS => {
                let base = regs.fs_base;
                self.write_words(value, &[base])?;
            }
            ARCH_GET_GS => {
                let base = regs.gs_base;
                self.write_words(value, &[base])?;
            }
            _ => return Err(Errno::EINVAL.into()),
        }
        Ok(0)
    }

    fn prctl(&mut self, option: i32, value: u64) -> SysResult {
        match option {
            libc::PR_SET_NAME => {
                let mut name = [0; 16];
                for (i, byte) in name.iter_mut().take(15).enumerate() {
                    let mut one = [0];
                    self.read(value.wrapping_add(i as u64), &mut one)?;
                    *byte = one[0];
                    if one[0] == 0 {
                        break;
                    }
                }
                let end = name.iter().position(|byte| *byte == 0).unwrap_or(15);
                self.thread().name = String::from_utf8_lossy(&name[..end]).into_owned();
                Ok(0)
            }
            libc::PR_GET_NAME => {
                let mut name = self.thread().name.clone().into_bytes();
                name.resize(16, 0);
                self.write(value, &name)?;
                Ok(0)
            }
            libc::PR_SET_PDEATHSIG | libc::PR_SET_DUMPABLE | libc::PR_SET_NO_NEW_PRIVS => Ok(0),
            libc::PR_GET_DUMPABLE => Ok(1),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn membarrier(&mut self, command: i32) -> SysResult {
        // Query: global and private expedited with their registrations.
        const SUPPORTED: u64 = 1 | 1 << 3 | 1 << 4;
        match command {
            0 => Ok(SUPPORTED),
            1 | 8 => {
                // Every other thread leaves ring 3 once, which orders everything.
                let others = self.process().threads.clone();
                let me = self.tid;
                for tid in others.into_iter().filter(|tid| *tid != me) {
                    if let Some(kick) = &self.state.thread(tid).kick {
                        kick.kick();
                    }
                }
                Ok(0)
            }
            16 => Ok(0),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}
