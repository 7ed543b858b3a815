//! Calls of sched(7), and those that tell processor time.

use std::time::Duration;

use snaprig_card_driver::{
    clock::monotonic,
    errno::Errno,
    wait::{Stop, SysResult},
};
use snaprig_card_memory::PAGE;

use super::{ATTR_BYTES, ATTR_BYTES_NOW, FLAG_RESET_ON_FORK, Policy, SET_BYTES, ticks, usage};
use crate::{call::Call, state::Process};

impl Call<'_> {
    /// The thread that a call of sched(7) means.
    pub fn scheduled(&mut self, tid: i32) -> Result<i32, Stop> {
        let tid = if tid == 0 { self.tid } else { tid };
        match tid > 0 && self.state.threads.contains_key(&tid) {
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
        let used = self.kernel.cores.count().div_ceil(64) * 8;
        if bytes < used as u64 || !bytes.is_multiple_of(8) {
            return Err(Errno::EINVAL.into());
        }
        let tid = self.scheduled(tid)?;
        let all = self.cores();
        let set = self.state.thread(tid).affinity.unwrap_or(all);
        let part = &set[..used.min(SET_BYTES)];
        self.write(to, part)?;
        Ok(part.len() as u64)
    }

    /// sched_setaffinity(2).
    pub fn setaffinity(&mut self, tid: i32, bytes: u64, from: u64) -> SysResult {
        let mut set = [0; SET_BYTES];
        let part = SET_BYTES.min(bytes as usize);
        self.read(from, &mut set[..part])?;
        let tid = self.scheduled(tid)?;
        for (wanted, there) in set.iter_mut().zip(self.cores()) {
            *wanted &= there;
        }
        if set == [0; SET_BYTES] {
            return Err(Errno::EINVAL.into());
        }
        let thread = self.state.thread(tid);
        thread.affinity = Some(set);
        // It goes there when it takes its next core.
        if let Some(kick) = &thread.kick {
            kick.kick();
        }
        Ok(0)
    }

    /// getcpu(2).
    pub fn getcpu(&mut self, cpu: u64, node: u64) -> SysResult {
        let core = self.thread().core;
        for (to, value) in [(cpu, core), (node, 0)] {
            if to != 0 {
                self.write(to, &value.to_le_bytes())?;
            }
        }
        Ok(0)
    }

    /// The policy of the thread that a call of sched(7) means.
    fn policy_of(&mut self, tid: i32) -> Result<&mut Policy, Stop> {
        if tid < 0 {
            return Err(Errno::EINVAL.into());
        }
        let tid = self.scheduled(tid)?;
        Ok(&mut self.state.thread(tid).policy)
    }

    /// sched_getscheduler(2).
    pub fn getscheduler(&mut self, tid: i32) -> SysResult {
        let now = *self.policy_of(tid)?;
        let flag = match now.reset_on_fork {
            true => libc::SCHED_RESET_ON_FORK,
            false => 0,
        };
        Ok((now.policy | flag) as u64)
    }

    /// sched_getparam(2).
    pub fn getparam(&mut self, tid: i32, to: u64) -> SysResult {
        if to == 0 {
            return Err(Errno::EINVAL.into());
        }
        let priority = self.policy_of(tid)?.priority;
        self.write(to, &priority.to_le_bytes())?;
        Ok(0)
    }

    /// sched_setscheduler(2), and sched_setparam(2) with no policy.
    pub fn setscheduler(&mut self, tid: i32, policy: Option<i32>, parameter: u64) -> SysResult {
        if parameter == 0 || tid < 0 || policy.is_some_and(|policy| policy < 0) {
            return Err(Errno::EINVAL.into());
        }
        let priority = self.read_u32(parameter)? as i32;
        let now = self.policy_of(tid)?;
        let new = match policy {
            None => Policy { priority, ..*now },
            Some(policy) => Policy {
                policy: policy & !libc::SCHED_RESET_ON_FORK,
                priority,
                reset_on_fork: policy & libc::SCHED_RESET_ON_FORK != 0,
                ..*now
            },
        };
        *now = new.checked()?;
        Ok(0)
    }

    /// sched_getattr(2).
    pub fn sched_getattr(&mut self, tid: i32, to: u64, bytes: u64, flags: u32) -> SysResult {
        let fits = (ATTR_BYTES..=PAGE).contains(&bytes);
        if to == 0 || flags != 0 || !fits {
            return Err(Errno::EINVAL.into());
        }
        let now = *self.policy_of(tid)?;
        let len = ATTR_BYTES_NOW.min(bytes as usize);
        let mut attr = [0; ATTR_BYTES_NOW];
        attr[..4].copy_from_slice(&(len as u32).to_le_bytes());
        attr[4..8].copy_from_slice(&now.policy.to_le_bytes());
        attr[8..16].copy_from_slice(&u64::from(now.reset_on_fork).to_le_bytes());
        attr[16..20].copy_from_slice(&now.nice.to_le_bytes());
        attr[20..24].copy_from_slice(&now.priority.to_le_bytes());
        self.write(to, &attr[..len])?;
        Ok(0)
    }

    /// sched_setattr(2).
    pub fn sched_setattr(&mut self, tid: i32, from: u64, flags: u32) -> SysResult {
        if from == 0 || tid < 0 || flags != 0 {
            return Err(Errno::EINVAL.into());
        }
        let bytes = match self.read_u32(from)? {
            0 => ATTR_BYTES,
            bytes => bytes.into(),
        };
        if !(ATTR_BYTES..=PAGE).contains(&bytes) {
            self.write(from, &(ATTR_BYTES_NOW as u32).to_le_bytes())?;
            return Err(Errno::E2BIG.into());
        }
        let mut attr = vec![0; bytes as usize];
        self.read(from, &mut attr)?;
        if attr.iter().skip(ATTR_BYTES_NOW).any(|byte| *byte != 0) {
            self.write(from, &(ATTR_BYTES_NOW as u32).to_le_bytes())?;
            return Err(Errno::E2BIG.into());
        }
        let word = |at: usize| i32::from_le_bytes(attr[at..at + 4].try_into().expect("4 bytes"));
        let flags = u64::from(word(8) as u32) | u64::from(word(12) as u32) << 32;
        if word(4) < 0 || flags & !FLAG_RESET_ON_FORK != 0 {
            return Err(Errno::EINVAL.into());
        }
        let now = self.policy_of(tid)?;
        *now = Policy {
            policy: word(4),
            priority: word(20),
            nice: word(16).clamp(-20, 19),
            reset_on_fork: flags != 0,
        }
        .checked()?;
        Ok(0)
    }

    /// The threads that getpriority(2) and setpriority(2) mean.
    fn prioritised(&mut self, which: i32, who: i32) -> Result<Vec<i32>, Stop> {
        let own = self.process();
        let (group, user) = (own.group.0, own.credentials.uid.real);
        let or_own = |own: i32| if who == 0 { own } else { who };
        let of = |is_meant: &dyn Fn(&Process) -> bool| -> Vec<i32> {
            let meant = self.state.processes.values().filter(|one| is_meant(one));
            meant.flat_map(|one| one.threads.clone()).collect()
        };
        let tids = match which as u32 {
            libc::PRIO_PROCESS => {
                let tid = or_own(self.tid);
                self.state
                    .threads
                    .contains_key(&tid)
                    .then_some(tid)
                    .into_iter()
                    .collect()
            }
            libc::PRIO_PGRP => {
                let group = or_own(group);
                of(&|process| process.group.0 == group)
            }
            libc::PRIO_USER => {
                let user = or_own(user as i32) as u32;
                of(&|process| process.credentials.uid.real == user)
            }
            _ => return Err(Errno::EINVAL.into()),
        };
        match tids.is_empty() {
            true => Err(Errno::ESRCH.into()),
            false => Ok(tids),
        }
    }

    /// getpriority(2): 20 less the lowest nice value.
    pub fn getpriority(&mut self, which: i32, who: i32) -> SysResult {
        let tids = self.prioritised(which, who)?;
        let nice = tids.iter().map(|tid| self.state.thread(*tid).policy.nice);
        Ok((20 - nice.min().unwrap_or(0)) as u64)
    }

    /// sched_yield(2).
    pub fn sched_yield(&mut self) -> SysResult {
        if let Some(seat) = self.thread().seat {
            self.kernel.cores.give_way(seat);
        }
        Ok(0)
    }

    /// setpriority(2).
    pub fn setpriority(&mut self, which: i32, who: i32, nice: i32) -> SysResult {
        for tid in self.prioritised(which, who)? {
            self.state.thread(tid).policy.nice = nice.clamp(-20, 19);
        }
        Ok(0)
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
        let (own, children) = (self.process_time(), self.process().children_ran);
        if to != 0 {
            self.write_words(to, &[ticks(own), 0, ticks(children), 0])?;
        }
        Ok(ticks(monotonic()))
    }
}
