//! Makes a planted process what it was: its address space first, and when its memory is filled, the rest.
//!
//! ```text
//! lay out:  stub in a hole --> everything else unmapped --> vDSO to its place --> areas
//! finish:   protections --> attributes, signals, timers --> threads --> stub unmapped --> registers
//! ```

use std::ops::Range;

use libc::pid_t;
use procfs::process::Process as Proc;

use super::{
    credentials,
    files::{Opened, damaged},
    groups, held, layout, terminals, vdso,
};
use crate::{
    dump::{
        SIGNALS, credentials as credentials_of, find_syscall, kernels, regs_of, syscall_instruction,
    },
    error::{Error, Result},
    memory,
    remote::{self, Call, PAGE, Remote, STUB_BYTES, call, result},
    state::{Area, Backing, Body, Credentials, Process, Thread, Tree},
    steps::{self, Step},
    trace::{Regs, Tracee},
};

/// End of the addresses of processes.
const USER_END: u64 = 0x7fff_ffff_f000;
/// Room beside the stub, where the vDSO waits.
const SPARE_BYTES: u64 = 256 << 10;
/// Error of calls that the kernel goes on with by a way of its own (ERESTART_RESTARTBLOCK), and of those that it makes
/// again unless a handler runs (ERESTARTNOHAND).
/// mmap(2), since Linux 6.11.
const MAP_DROPPABLE: i32 = 8;
const RESTART_BLOCK: i64 = -516;
const RESTART_NO_HANDLER: i64 = -514;

/// A process that is becoming what it was.
pub struct Growing<'a> {
    pub(super) process: &'a Process,
    pub(super) body: &'a Body,
    first: Tracee,
    pub(super) stub: u64,
}

impl<'a> Growing<'a> {
    /// Takes hold of a planted process and gives it the areas that it had, all of them writable, but for what is
    /// shared.
    pub fn lay_out(
        process: &'a Process,
        body: &'a Body,
        tree: &Tree,
        opened: &Opened,
    ) -> Result<Self> {
        let pid = process.pid;
        let first = Tracee::seize(pid)?;
        first.wait_for_event()?;
        first.bind()?;
        let maps = Proc::new(pid)?.maps()?;
        let mapped = maps.iter().map(|map| map.address.0..map.address.1);
        let wanted = body.areas.iter().map(|area| area.start..area.end);
        let stub = layout::hole(mapped.chain(wanted), STUB_BYTES + SPARE_BYTES);
        let stub = stub.ok_or_else(|| damaged("an address space without a hole"))?;
        let kernels: Vec<(Vec<u8>, Range<u64>)> = maps
            .iter()
            .filter_map(|map| Some((kernels(map)?, map.address.0..map.address.1)))
            .collect();
        let vdso = kernels.iter().find(|(name, _)| name == b"[vdso]");
        let (_, vdso) = vdso.ok_or_else(|| damaged("no vDSO on this kernel"))?;
        let mut code = vec![0; (vdso.end - vdso.start) as usize];
        memory::read(pid, vdso.start, &mut code)?;
        let at = find_syscall(&code);
        let at = vdso.start + at.ok_or_else(|| damaged("no system call in the vDSO"))?;
        let growing = Self {
            process,
            body,
            first,
            stub,
        };
        growing.map_stub(at)?;
        growing.make_empty(&kernels)?;
        growing.place_kernels(&kernels, &code, tree)?;
        growing.map_areas(opened)?;
        steps::reached(Step::RestartMapped);
        Ok(growing)
    }

    pub(super) fn remote(&self) -> Result<Remote<'_>> {
        Remote::new(&self.first, self.process.pid)
    }

    /// Has it make calls that must succeed.
    pub(super) fn make(&self, what: &str, calls: &[Call]) -> Result<()> {
        let results = self.remote()?.calls(self.stub, self.process.pid, calls)?;
        for (index, returned) in results.into_iter().enumerate() {
            result(returned).map_err(|source| Error::Process {
                pid: self.process.pid,
                what: format!("{what} ({:?})", calls[index]),
                source,
            })?;
        }
        Ok(())
    }

    fn map_stub(&self, at: u64) -> Result<()> {
        let mut remote = self.remote()?;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let map = call(
            libc::SYS_mmap,
            [self.stub, STUB_BYTES, protection, flags as u64, u64::MAX, 0],
        );
        let failed = |source| Error::io("no room for calls", source);
        remote.call_at(at, 0, map)?.map_err(failed)?;
        memory::write(self.process.pid, self.stub, remote::stub())?;
        let executable = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let protect = call(libc::SYS_mprotect, [self.stub, PAGE, executable]);
        remote.call_at(at, 0, protect)?.map_err(failed)?;
        Ok(())
    }

    /// Takes everything away but the stub and, beside it, what is the kernel's.
    fn make_empty(&self, kernels: &[(Vec<u8>, Range<u64>)]) -> Result<()> {
        let mut calls = Vec::new();
        if let Some((address, length, signature)) = self.first.rseq()? {
            let unregister = 1;
            calls.push(call(
                libc::SYS_rseq,
                [address, length.into(), unregister, signature.into()],
            ));
        }
        let spare = self.stub + STUB_BYTES;
        for (part, to) in kernels.iter().map(|(_, part)| part).zip(offsets(kernels)) {
            calls.push(moved(part, spare + to));
        }
        let end = spare
            + offsets(kernels)
                .zip(kernels)
                .map(|(to, (_, part))| to + part.end - part.start)
                .max()
                .unwrap_or(0);
        if end > spare + SPARE_BYTES {
            return Err(damaged("a vDSO that is too large"));
        }
        calls.push(call(libc::SYS_munmap, [0, self.stub]));
        calls.push(call(libc::SYS_munmap, [end, USER_END - end]));
        self.make("cannot be emptied", &calls)
    }

    /// Moves vDSO and its data to where the process has them.
    fn place_kernels(
        &self,
        kernels: &[(Vec<u8>, Range<u64>)],
        code: &[u8],
        tree: &Tree,
    ) -> Result<()> {
        let wanted = self
            .body
            .areas
            .iter()
            .filter_map(|area| match &area.backing {
                Backing::Kernel(name) => Some((name.clone(), area.start..area.end)),
                _ => None,
            });
        let wanted: Vec<_> = wanted.collect();
        let sizes = |areas: &[(Vec<u8>, Range<u64>)]| -> Vec<(Vec<u8>, u64)> {
            areas
                .iter()
                .map(|(name, part)| (name.clone(), part.end - part.start))
                .collect()
        };
        let spare = self.stub + STUB_BYTES;
        if wanted.is_empty() {
            let unmap = call(libc::SYS_munmap, [spare, SPARE_BYTES]);
            return self.make("a vDSO that it has not had", &[unmap]);
        }
        if sizes(&wanted) != sizes(kernels) || code != tree.vdso {
            return self.redirect_vdso(kernels, code, tree);
        }
        let moves = kernels.iter().zip(offsets(kernels)).zip(&wanted);
        let calls: Vec<_> = moves
            .map(|(((_, part), from), (_, to))| {
                let from = spare + from;
                moved(&(from..from + part.end - part.start), to.start)
            })
            .collect();
        self.make("its vDSO cannot be moved", &calls)
    }

    /// The kernel's vDSO stays where it is now, and that of the checkpoint leads to it.
    fn redirect_vdso(
        &self,
        kernels: &[(Vec<u8>, Range<u64>)],
        code: &[u8],
        tree: &Tree,
    ) -> Result<()> {
        let is_vdso = |name: &[u8]| name == b"[vdso]";
        let mut areas = self.body.areas.iter();
        let old =
            areas.find(|area| matches!(&area.backing, Backing::Kernel(name) if is_vdso(name)));
        let Some(old) = old else { return Ok(()) };
        let now = kernels.iter().zip(offsets(kernels));
        let mut now = now.filter(|((name, _), _)| is_vdso(name));
        let (_, offset) = now
            .next()
            .ok_or_else(|| damaged("no vDSO on this kernel"))?;
        let (pid, bytes) = (self.process.pid, old.end - old.start);
        if tree.vdso.len() as u64 != bytes {
            return Err(damaged("a vDSO of another size"));
        }
        for thread in &self.body.threads {
            let at = regs_of(&thread.regs).map_or(0, |regs| regs.rip);
            if (old.start..old.end).contains(&at) {
                let what = format!(
                    "thread {} was in the vDSO of another kernel: an earlier checkpoint may do",
                    thread.tid
                );
                return Err(Error::Missing { what });
            }
        }
        let redirected = vdso::redirect(&tree.vdso, code, self.stub + STUB_BYTES + offset)?;
        let to_fill = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let arguments = [old.start, bytes, to_fill, flags as u64, u64::MAX, 0];
        let what = "the vDSO of another kernel";
        self.make(what, &[call(libc::SYS_mmap, arguments)])?;
        memory::write(pid, old.start, &redirected)?;
        let code = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        self.make(what, &[call(libc::SYS_mprotect, [old.start, bytes, code])])
    }

    fn map_areas(&self, opened: &Opened) -> Result<()> {
        let mut calls = Vec::new();
        for area in &self.body.areas {
            calls.extend(map(area, opened)?);
        }
        self.make("its memory cannot be mapped", &calls)
    }

    /// Everything that a process is beside its memory; all of its threads, which stand at their stops with the
    /// registers that they had.
    pub fn finish(
        self,
        tree: &Tree,
        opened: &Opened,
        drops_privileges: bool,
    ) -> Result<Vec<Tracee>> {
        let pid = self.process.pid;
        self.protect()?;
        self.set_foreground(tree, opened)?;
        self.set_attributes(opened)?;
        self.hold(tree)?;
        if let Some(group) = groups::joins(tree, self.process) {
            let join = call(libc::SYS_setpgid, [0, group as u64]);
            self.make("its process group", &[join])?;
        }
        let threads = self.make_threads()?;
        steps::reached(Step::RestartThreads);
        let all: Vec<&Tracee> = std::iter::once(&self.first).chain(&threads).collect();
        let own = Credentials {
            // SAFETY: no memory is involved.
            secure_bits: unsafe { libc::prctl(libc::PR_GET_SECUREBITS) }.max(0) as u32,
            ..credentials_of(&Proc::myself()?.status()?)
        };
        for (tracee, thread) in all.iter().zip(&self.body.threads) {
            self.set_thread(tracee, thread, &own, drops_privileges)?;
        }
        self.make_timers()?;
        self.limit()?;
        self.lock()?;
        let at = syscall_instruction(pid, &self.body.areas)?;
        let unmap = call(libc::SYS_munmap, [self.stub, STUB_BYTES]);
        self.remote()?
            .call_at(at, 0, unmap)?
            .map_err(|source| Error::io("munmap of the stub", source))?;
        for (tracee, thread) in all.iter().zip(&self.body.threads) {
            set_registers(tracee, thread)?;
            steps::reached(Step::RestartRegisters);
        }
        // Who may not lower it keeps that of its supervisor.
        let _ = std::fs::write(
            format!("/proc/{pid}/oom_score_adj"),
            self.body.oom_score.to_string(),
        );
        let filter = format!("{:#x}", self.body.core_filter);
        let _ = std::fs::write(format!("/proc/{pid}/coredump_filter"), filter);
        Ok(std::iter::once(self.first).chain(threads).collect())
    }

    /// What it holds through its files. It has no others any more: to close any of a file gives its locks up.
    fn hold(&self, tree: &Tree) -> Result<()> {
        let pid = self.process.pid;
        for step in held::steps(tree, self.process, self.body) {
            let made = self.call_with(step.call, step.data.as_deref())?;
            result(made).map_err(|source| step.failed(pid, source))?;
        }
        Ok(())
    }

    /// Who is in the foreground of its terminal, which it still has from its supervisor.
    fn set_foreground(&self, tree: &Tree, opened: &Opened) -> Result<()> {
        for (set, group) in terminals::foreground(tree, opened, self.process) {
            // A group whose last member has ended is nobody's.
            self.call_with(set, Some(&group.to_ne_bytes()))?;
        }
        Ok(())
    }

    /// A call whose third argument is the address of these bytes, if there are any.
    fn call_with(&self, mut call: Call, bytes: Option<&[u8]>) -> Result<i64> {
        if let Some(bytes) = bytes {
            let mut data = Data::at(remote::data(self.stub));
            call.arguments[2] = data.put(bytes);
            data.write(self.process.pid)?;
        }
        let made = self.remote()?.calls(self.stub, self.process.pid, &[call])?;
        Ok(made[0])
    }

    /// What it may use at most. What this machine does not allow any more stays as its supervisor has it.
    fn limit(&self) -> Result<()> {
        let mut data = Data::at(remote::data(self.stub));
        let limits = self.body.limits.iter().enumerate();
        let calls: Vec<_> = limits
            .map(|(number, (soft, hard))| {
                let limit = data.put_words(&[*soft, *hard]);
                call(libc::SYS_prlimit64, [0, number as u64, limit, 0])
            })
            .collect();
        data.write(self.process.pid)?;
        self.remote()?.calls(self.stub, self.process.pid, &calls)?;
        Ok(())
    }

    /// What is not to change any more, and what is locked that is yet to come.
    fn lock(&self) -> Result<()> {
        /// mseal(2), since Linux 6.10.
        const SYS_MSEAL: i64 = 462;
        let sealed = self.body.areas.iter();
        let sealed = sealed.filter(|area| area.flags.contains(b"sl") && !is_kernels(area));
        let mut calls: Vec<_> = sealed
            .map(|area| call(SYS_MSEAL, [area.start, area.end - area.start, 0]))
            .collect();
        if self.body.locks_future != 0 {
            calls.push(call(libc::SYS_mlockall, [self.body.locks_future as u64]));
        }
        self.make("its memory cannot be locked", &calls)
    }

    fn protect(&self) -> Result<()> {
        let mut calls = Vec::new();
        for area in self.body.areas.iter().filter(|area| !is_kernels(area)) {
            let range = [area.start, area.end - area.start];
            if !area.is_shared && area.protection != libc::PROT_READ | libc::PROT_WRITE {
                let protection = area.protection as u64;
                calls.push(call(libc::SYS_mprotect, [range[0], range[1], protection]));
            }
            for advice in area.flags.iter().filter_map(advice) {
                calls.push(call(libc::SYS_madvise, [range[0], range[1], advice as u64]));
            }
            if area.flags.contains(b"lo") {
                let on_fault = u64::from(area.flags.contains(b"lf"));
                calls.push(call(libc::SYS_mlock2, [range[0], range[1], on_fault]));
            }
        }
        self.make("its memory cannot be protected", &calls)
    }

    /// What is the whole process's.
    fn set_attributes(&self, opened: &Opened) -> Result<()> {
        let (pid, body) = (self.process.pid, self.body);
        let mut data = Data::at(remote::data(self.stub));
        let mut calls = Vec::new();
        let auxv = data.put(&body.auxv);
        let exe = opened.mapped(&body.exe, false).unwrap_or(-1);
        let layout = &body.layout;
        let pairs = [layout.code, layout.data, layout.brk];
        let mut map: Vec<u64> = pairs
            .iter()
            .flat_map(|(start, end)| [*start, *end])
            .collect();
        map.push(layout.stack);
        map.extend(
            [layout.arguments, layout.environment]
                .iter()
                .flat_map(|(start, end)| [*start, *end]),
        );
        map.push(auxv);
        map.push(body.auxv.len() as u64 | (exe as u32 as u64) << 32);
        let bytes: Vec<u8> = map.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let map = data.put(&bytes);
        let (set_mm, whole) = (libc::PR_SET_MM as u64, 14);
        calls.push(call(
            libc::SYS_prctl,
            [set_mm, whole, map, bytes.len() as u64],
        ));
        for (index, action) in body.actions.iter().enumerate() {
            let signal = index as u64 + 1;
            if ![libc::SIGKILL as u64, libc::SIGSTOP as u64].contains(&signal) && signal <= SIGNALS
            {
                let action = data.put_words(action);
                calls.push(call(libc::SYS_rt_sigaction, [signal, action, 0, 8]));
            }
        }
        for (which, timer) in body.interval_timers.iter().enumerate() {
            let timer = data.put_words(timer);
            calls.push(call(libc::SYS_setitimer, [which as u64, timer, 0]));
        }
        let is_new =
            |(option, value): &(&i32, &u64)| **value != 0 && **option != libc::PR_SET_DUMPABLE;
        for (option, value) in body.attributes.iter().filter(is_new) {
            // What else PR_GET_THP_DISABLE says is an argument of its own.
            let (value, more) = match *option {
                libc::PR_SET_THP_DISABLE => (1, value & !1),
                _ => (*value, 0),
            };
            calls.push(call(libc::SYS_prctl, [*option as u64, value, more, 0, 0]));
        }
        let registered = (0..32).filter(|bit| body.membarrier & 1 << bit != 0);
        calls.extend(registered.map(|bit| call(libc::SYS_membarrier, [1 << bit, 0, 0])));
        data.write(pid)?;
        self.make("its attributes cannot be set", &calls)?;
        self.queue(&body.pending, None)?;
        let close = call(
            libc::SYS_close_range,
            [opened.base as u64, u64::from(u32::MAX), 0],
        );
        self.make("its descriptors cannot be closed", &[close])
    }

    /// Signals that waited.
    fn queue(&self, pending: &[[u64; 16]], thread: Option<(&Tracee, i32)>) -> Result<()> {
        let pid = self.process.pid as u64;
        for part in pending.chunks(256) {
            let mut data = Data::at(remote::data(self.stub));
            let calls: Vec<_> = part
                .iter()
                .map(|info| {
                    let (at, signal) = (data.put_words(info), info[0] & 0xffff_ffff);
                    match thread {
                        None => call(libc::SYS_rt_sigqueueinfo, [pid, signal, at]),
                        Some((_, tid)) => {
                            call(libc::SYS_rt_tgsigqueueinfo, [pid, tid as u64, signal, at])
                        }
                    }
                })
                .collect();
            data.write(self.process.pid)?;
            match thread {
                None => self.make("a signal that waited", &calls)?,
                Some((tracee, tid)) => {
                    Remote::new(tracee, self.process.pid)?.calls(self.stub, tid, &calls)?;
                }
            }
        }
        Ok(())
    }

    /// Makes all threads but the first.
    fn make_threads(&self) -> Result<Vec<Tracee>> {
        let pid = self.process.pid;
        let mut threads = Vec::new();
        for thread in &self.body.threads[1..] {
            let mut data = Data::at(remote::data(self.stub));
            let set_tid = data.put(&thread.tid.to_ne_bytes());
            let flags = libc::CLONE_VM
                | libc::CLONE_FS
                | libc::CLONE_FILES
                | libc::CLONE_SIGHAND
                | libc::CLONE_THREAD
                | libc::CLONE_SYSVSEM;
            // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, its size, tls, set_tid, ...
            let arguments = [flags as u64, 0, 0, 0, 0, 0, 0, 0, set_tid, 1, 0];
            let at = data.put_words(&arguments);
            data.write(pid)?;
            let clone = call(libc::SYS_clone3, [at, size_of_val(&arguments) as u64]);
            self.make(&format!("thread {} cannot be made", thread.tid), &[clone])?;
            let born = Tracee::born(thread.tid);
            born.wait_for_event()?;
            threads.push(born);
        }
        Ok(threads)
    }

    fn set_thread(
        &self,
        tracee: &Tracee,
        thread: &Thread,
        own: &Credentials,
        drops_privileges: bool,
    ) -> Result<()> {
        let pid = self.process.pid;
        let mut data = Data::at(remote::data(self.stub));
        let mut name = thread.name.clone();
        name.push(0);
        let name = data.put(&name);
        // First: what follows is forgotten with a change of user (PR_SET_PDEATHSIG).
        let mut calls = credentials::calls(own, &thread.credentials, !drops_privileges, &mut data)?;
        let dumpable = self.body.attributes.get(&libc::PR_SET_DUMPABLE);
        if let Some(dumpable) = dumpable {
            // 2 can be had of the kernel alone, and 0 is as strict.
            let dumpable = u64::from(*dumpable == 1);
            calls.push(call(
                libc::SYS_prctl,
                [libc::PR_SET_DUMPABLE as u64, dumpable],
            ));
        }
        calls.extend([
            call(libc::SYS_set_tid_address, [thread.clear_tid]),
            call(libc::SYS_prctl, [libc::PR_SET_NAME as u64, name]),
        ]);
        if thread.robust_list.0 != 0 {
            calls.push(call(
                libc::SYS_set_robust_list,
                [thread.robust_list.0, thread.robust_list.1],
            ));
        }
        // sigaltstack(2): SS_ONSTACK is not set but found.
        let [address, flags, size] = thread.alternate_stack;
        let stack = data.put_words(&[address, flags & !1, size]);
        calls.push(call(libc::SYS_sigaltstack, [stack, 0]));
        if let Some((address, length, signature)) = thread.rseq {
            calls.push(call(
                libc::SYS_rseq,
                [address, length.into(), 0, signature.into()],
            ));
        }
        let death = thread.parent_death_signal as u64;
        calls.push(call(
            libc::SYS_prctl,
            [libc::PR_SET_PDEATHSIG as u64, death],
        ));
        calls.push(call(
            libc::SYS_prctl,
            [libc::PR_SET_TIMERSLACK as u64, thread.timer_slack],
        ));
        if thread.no_new_privileges {
            let option = libc::PR_SET_NO_NEW_PRIVS as u64;
            calls.push(call(libc::SYS_prctl, [option, 1, 0, 0, 0]));
        }
        calls.push(call(libc::SYS_personality, [thread.personality.into()]));
        let wishes = wishes(thread, &mut data);
        data.write(pid)?;
        Remote::new(tracee, pid)?.calls(self.stub, thread.tid, &wishes)?;
        let results = Remote::new(tracee, pid)?.calls(self.stub, thread.tid, &calls)?;
        for (index, returned) in results.into_iter().enumerate() {
            result(returned).map_err(|source| Error::Process {
                pid,
                what: format!("thread {} ({:?})", thread.tid, calls[index]),
                source,
            })?;
        }
        schedule(thread);
        self.queue(&thread.pending, Some((tracee, thread.tid)))
    }
}

/// Calls that may fail: the machine has other processors or nodes, or does not allow any more what it did.
fn wishes(thread: &Thread, data: &mut Data) -> Vec<Call> {
    let mut calls = Vec::new();
    if let Some(set) = &thread.affinity {
        let at = data.put(set);
        calls.push(call(libc::SYS_sched_setaffinity, [0, set.len() as u64, at]));
    }
    if thread.io_priority != 0 {
        let priority = thread.io_priority as u64;
        calls.push(call(libc::SYS_ioprio_set, [1, 0, priority]));
    }
    let (mode, nodes) = &thread.memory_policy;
    if *mode != 0 {
        let (at, bits) = (data.put_words(nodes), nodes.len() as u64 * 64);
        calls.push(call(libc::SYS_set_mempolicy, [*mode as u64, at, bits]));
    }
    let options = thread.options.iter();
    calls
        .extend(options.map(|[option, first, second]| {
            call(libc::SYS_prctl, [*option, *first, *second, 0, 0])
        }));
    calls
}

/// Policy and nice value; who may not have what it had is served as its supervisor is.
fn schedule(thread: &Thread) {
    let (policy, priority, nice) = thread.scheduling;
    // SAFETY: plain integers, for which zero is a value; valid to read.
    unsafe {
        let mut parameters: libc::sched_param = std::mem::zeroed();
        parameters.sched_priority = priority;
        if libc::sched_getscheduler(thread.tid) != policy {
            libc::sched_setscheduler(thread.tid, policy, &raw const parameters);
        }
        libc::setpriority(libc::PRIO_PROCESS, thread.tid as u32, nice);
    }
}

/// Data of calls, put together before they are written.
pub(super) struct Data {
    start: u64,
    bytes: Vec<u8>,
}

impl Data {
    pub fn at(start: u64) -> Self {
        Self {
            start,
            bytes: Vec::new(),
        }
    }

    /// Adds bytes; their address.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.start + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        at
    }

    pub fn put_words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.put(&bytes)
    }

    pub fn write(&self, pid: pid_t) -> Result<()> {
        if self.bytes.len() as u64 > remote::DATA_BYTES {
            return Err(damaged("more of a process than there is room for"));
        }
        memory::write(pid, self.start, &self.bytes)
    }
}

/// Where areas are, seen from the first.
fn offsets(areas: &[(Vec<u8>, Range<u64>)]) -> impl Iterator<Item = u64> + Clone {
    let first = areas.iter().map(|(_, part)| part.start).min().unwrap_or(0);
    areas.iter().map(move |(_, part)| part.start - first)
}

fn moved(part: &Range<u64>, to: u64) -> Call {
    let bytes = part.end - part.start;
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    call(libc::SYS_mremap, [part.start, bytes, bytes, flags, to])
}

/// The call that maps an area.
fn map(area: &Area, opened: &Opened) -> Result<Option<Call>> {
    let (start, bytes) = (area.start, area.end - area.start);
    let to_fill = libc::PROT_READ | libc::PROT_WRITE;
    let has = |flag: &[u8; 2], bit| if area.flags.contains(flag) { bit } else { 0 };
    let fixed = libc::MAP_FIXED_NOREPLACE
        | has(b"gd", libc::MAP_GROWSDOWN)
        | has(b"nr", libc::MAP_NORESERVE)
        | has(b"ht", libc::MAP_HUGETLB | libc::MAP_HUGE_2MB);
    let (protection, flags, fd, offset) = match &area.backing {
        Backing::Kernel(_) => return Ok(None),
        Backing::Plugin => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            (libc::PROT_NONE, flags, -1, 0)
        }
        Backing::Anonymous if area.flags.contains(b"dp") => {
            (to_fill, MAP_DROPPABLE | libc::MAP_ANONYMOUS, -1, 0)
        }
        Backing::Anonymous => (to_fill, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        Backing::File {
            file,
            offset,
            write,
        } => {
            let fd = opened
                .mapped(file, *write)
                .ok_or_else(|| damaged("a mapped file"))?;
            match area.is_shared {
                true => (area.protection, libc::MAP_SHARED, fd, *offset),
                false => (to_fill, libc::MAP_PRIVATE, fd, *offset),
            }
        }
        Backing::Shared(number, offset) => {
            let fd = opened.shared.get(*number as usize).copied();
            let (_, fd) = fd.ok_or_else(|| damaged("shared memory"))?;
            (area.protection, libc::MAP_SHARED, fd, *offset)
        }
    };
    let arguments = [
        start,
        bytes,
        protection as u64,
        (flags | fixed) as u64,
        fd as i64 as u64,
        offset,
    ];
    Ok(Some(call(libc::SYS_mmap, arguments)))
}

fn is_kernels(area: &Area) -> bool {
    matches!(area.backing, Backing::Kernel(_))
}

/// madvise(2) of a flag of smaps.
fn advice(flag: &[u8; 2]) -> Option<i32> {
    Some(match flag {
        b"dc" => libc::MADV_DONTFORK,
        b"dd" => libc::MADV_DONTDUMP,
        b"wf" => libc::MADV_WIPEONFORK,
        b"hg" => libc::MADV_HUGEPAGE,
        b"nh" => libc::MADV_NOHUGEPAGE,
        b"mg" => libc::MADV_MERGEABLE,
        b"sr" => libc::MADV_SEQUENTIAL,
        b"rr" => libc::MADV_RANDOM,
        _ => return None,
    })
}

/// The registers that it had, at a stop at which the kernel looks whether a call is to be made again.
fn set_registers(tracee: &Tracee, thread: &Thread) -> Result<()> {
    tracee.interrupt()?;
    tracee.go_on(0)?;
    tracee.wait_for_event()?;
    let regs = regs_of(&thread.regs).ok_or_else(|| damaged("registers of another kind"))?;
    let is_block = regs.orig_rax as i64 >= 0 && regs.rax as i64 == RESTART_BLOCK;
    let rax = match regs.orig_rax as i64 {
        // Which call it was is known to nobody: somebody else had stopped the thread before the checkpoint.
        libc::SYS_restart_syscall if is_block => -i64::from(libc::EINTR) as u64,
        // How far it got was known to the kernel alone: it is made again from its beginning.
        _ if is_block => RESTART_NO_HANDLER as u64,
        _ => regs.rax,
    };
    tracee.set_regs(&Regs { rax, ..regs })?;
    tracee.set_xstate(&thread.xstate)?;
    tracee.set_mask(thread.mask)
}
