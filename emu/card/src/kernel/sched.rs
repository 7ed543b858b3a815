//! Scheduling and processor time (sched(7), getrusage(2)). Every thread is of the ordinary kind, and a
//! core is taken by whoever comes: affinity is remembered, and said to be kept.

use std::time::Duration;

use super::{
    call::Call,
    errno::Errno,
    wait::{Stop, SysResult},
};

/// Ticks a second of times(2).
const TICKS: u128 = 100;
/// Bytes of a set of cores: more than any card has.
pub const SET_BYTES: usize = 64;

/// The cores that a thread wants to run on; none: all.
pub type Affinity = Option<[u8; SET_BYTES]>;

/// The lowest or highest priority of a policy: 0 unless it is a real-time one.
pub fn priority_range(policy: i32, real_time: u64) -> SysResult {
    match policy {
        libc::SCHED_FIFO | libc::SCHED_RR => Ok(real_time),
        libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE => Ok(0),
        _ => Err(Errno::EINVAL.into()),
    }
}

impl Call<'_> {
    /// The thread that a call of sched(7) means.
    pub fn scheduled(&mut self, tid: i32) -> Result<i32, Stop> {
        let tid = if tid == 0 { self.tid } else { tid };
        match self.state.threads.contains_key(&tid) {
            true => Ok(tid),
            false => Err(Errno::ESRCH.into()),
        }
    }

    /// All cores of the card.
    pub fn cores(&self) -> [u8; SET_BYTES] {
        let mut set = [0; SET_BYTES];
        for core in 0..self.kernel.cores.count().min(SET_BYTES * 8) {
            set[core / 8] |= 1 << (core % 8);
        }
        set
    }

    /// sched_getaffinity(2).
    pub fn getaffinity(&mut self, tid: i32, bytes: u64, to: u64) -> SysResult {
        let tid = self.scheduled(tid)?;
        let used = self.kernel.cores.count().div_ceil(64) * 8;
        if bytes < used as u64 || !bytes.is_multiple_of(8) {
            return Err(Errno::EINVAL.into());
        }
        let all = self.cores();
        let set = self.state.thread(tid).affinity.unwrap_or(all);
        let part = &set[..used.min(SET_BYTES)];
        self.write(to, part)?;
        Ok(part.len() as u64)
    }

    /// sched_setaffinity(2).
    pub fn setaffinity(&mut self, tid: i32, bytes: u64, from: u64) -> SysResult {
        let tid = self.scheduled(tid)?;
        let mut set = [0; SET_BYTES];
        let part = SET_BYTES.min(bytes as usize);
        self.read(from, &mut set[..part])?;
        for (wanted, there) in set.iter_mut().zip(self.cores()) {
            *wanted &= there;
        }
        if set == [0; SET_BYTES] {
            return Err(Errno::EINVAL.into());
        }
        self.state.thread(tid).affinity = Some(set);
        Ok(0)
    }

    /// getcpu(2): a core that the thread wants to run on.
    pub fn getcpu(&mut self, cpu: u64, node: u64) -> SysResult {
        let all = self.cores();
        let set = self.thread().affinity.unwrap_or(all);
        let core = (0..SET_BYTES as u32 * 8).find(|core| {
            let byte = set[(core / 8) as usize];
            byte >> (core % 8) & 1 == 1
        });
        for (to, value) in [(cpu, core.unwrap_or(0)), (node, 0)] {
            if to != 0 {
                self.write(to, &value.to_le_bytes())?;
            }
        }
        Ok(0)
    }

    /// sched_getparam(2): ordinary threads have priority 0.
    pub fn getparam(&mut self, tid: i32, to: u64) -> SysResult {
        self.scheduled(tid)?;
        self.write(to, &[0; 4])?;
        Ok(0)
    }

    /// sched_setscheduler(2): a card has no real-time policy.
    pub fn setscheduler(&mut self, tid: i32, policy: i32, parameter: u64) -> SysResult {
        self.scheduled(tid)?;
        let priority = self.read_u32(parameter)?;
        match policy & !libc::SCHED_RESET_ON_FORK {
            libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE if priority == 0 => Ok(0),
            libc::SCHED_FIFO | libc::SCHED_RR if (1..=99).contains(&priority) => {
                Err(Errno::EPERM.into())
            }
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Processor time of the caller's process, its ended threads included.
    pub fn process_time(&mut self) -> Duration {
        let process = self.state.process(self.pid);
        let (ended, threads) = (process.ran, process.threads.clone());
        let running = threads.iter().map(|tid| self.state.thread(*tid).ran);
        running.fold(ended, Duration::saturating_add)
    }

    /// getrusage(2): processor time; the rest is 0. All of it is user time: the card kernel's own
    /// work is the host's.
    pub fn getrusage(&mut self, who: i32, to: u64) -> SysResult {
        let time = match who {
            libc::RUSAGE_SELF => self.process_time(),
            libc::RUSAGE_THREAD => self.thread().ran,
            libc::RUSAGE_CHILDREN => self.process().children_ran,
            _ => return Err(Errno::EINVAL.into()),
        };
        self.write(to, &usage(time))?;
        Ok(0)
    }

    /// times(2).
    pub fn times(&mut self, to: u64) -> SysResult {
        let ticks = |time: Duration| (time.as_micros() * TICKS / 1_000_000) as u64;
        let (own, children) = (self.process_time(), self.process().children_ran);
        if to != 0 {
            self.write_words(to, &[ticks(own), 0, ticks(children), 0])?;
        }
        Ok(ticks(super::now()))
    }
}

/// `struct rusage`.
pub fn usage(time: Duration) -> [u8; size_of::<libc::rusage>()] {
    let mut bytes = [0; size_of::<libc::rusage>()];
    bytes[..8].copy_from_slice(&time.as_secs().to_le_bytes());
    bytes[8..16].copy_from_slice(&u64::from(time.subsec_micros()).to_le_bytes());
    bytes
}
