//! Makes a planted process what it was: its address space first, and when its memory is filled, the rest.
//!
//! ```text
//! lay out:  stub in a hole --> everything else unmapped --> vDSO to its place --> areas
//! finish:   guards, protections --> attributes, signals, timers --> threads --> stub unmapped --> registers
//! ```

use std::ops::Range;

use super::{rebuilding::Rebuilding, staging::Staging, threads, timers::left_by_now};
use crate::{
    dump::{SIGNALS, code_among, credentials as credentials_of},
    faults,
};
use procfs::process::Process as Proc;
use snaprig_resources::groups::joins;
use snaprig_resources::{
    error::{Error, Result},
    growing::{Data, Growing, SPARE_BYTES, moved, offsets},
    layout,
    opened::{Opened, damaged},
    resource::Resources,
    state::{Body, Credentials, Process, Tree},
};
use snaprig_tracee::faults::reached;
use snaprig_tracee::{
    code::{find_syscall, kernels, syscall_instruction},
    memory,
    ranges::Ranges,
    remote::{self, PAGE, STUB_BYTES, call},
    trace::Tracee,
};

/// End of the addresses of processes.
const USER_END: u64 = 0x7fff_ffff_f000;

/// Takes hold of a planted process and gives it the areas that it had, all of them writable, but for what is shared.
pub fn lay_out<'a>(
    (process, body): (&'a Process, &'a Body),
    tree: &Tree,
    opened: &Opened,
    staging: &Staging,
) -> Result<Rebuilding<'a>> {
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
    let growing = Rebuilding(Growing {
        process,
        body,
        first,
        stub,
    });
    growing.map_stub(at)?;
    growing.make_empty(&kernels, staging)?;
    growing.place_kernels(&kernels, &code, tree)?;
    growing.map_areas(tree, opened, staging)?;
    reached(&faults::RESTART_MAPPED);
    Ok(growing)
}

/// Everything that a process is beside its memory; all of its threads, which stand at their stops with the
/// registers that they had.
pub fn finish(
    growing: Rebuilding<'_>,
    tree: &Tree,
    (opened, resources): (&Opened, &Resources),
    drops_privileges: bool,
) -> Result<Vec<Tracee>> {
    let pid = growing.process.pid;
    growing.guard()?;
    growing.protect()?;
    resources
        .iter()
        .try_for_each(|kind| kind.with_inherited(tree, &growing))?;
    growing.set_attributes(opened)?;
    resources
        .iter()
        .try_for_each(|kind| kind.with_own(tree, &growing))?;
    if let Some(group) = joins(tree, growing.process) {
        let join = call(libc::SYS_setpgid, [0, group as u64]);
        growing.make("its process group", &[join])?;
    }
    let threads = growing.make_threads()?;
    reached(&faults::RESTART_THREADS);
    let all: Vec<&Tracee> = std::iter::once(&growing.first).chain(&threads).collect();
    let own = Credentials {
        // SAFETY: PR_GET_SECUREBITS takes no argument, so prctl(2) reads and writes no memory of this process.
        secure_bits: unsafe { libc::prctl(libc::PR_GET_SECUREBITS) }.max(0) as u32,
        ..credentials_of(&Proc::myself()?.status()?)
    };
    for (tracee, thread) in all.iter().zip(&growing.body.threads) {
        growing.set_thread(tracee, thread, &own, drops_privileges)?;
    }
    growing.make_timers(opened.clocks)?;
    growing.limit()?;
    growing.lock()?;
    let at = syscall_instruction(pid, &code_among(&growing.body.areas))?;
    let unmap = call(libc::SYS_munmap, [growing.stub, STUB_BYTES]);
    growing
        .remote()?
        .call_at(at, 0, unmap)?
        .map_err(|source| Error::io("munmap of the stub", source))?;
    for (tracee, thread) in all.iter().zip(&growing.body.threads) {
        threads::set_registers(tracee, thread)?;
        reached(&faults::RESTART_REGISTERS);
    }
    // Who may not lower it keeps that of its supervisor.
    let _ = std::fs::write(
        format!("/proc/{pid}/oom_score_adj"),
        growing.body.oom_score.to_string(),
    );
    let filter = format!("{:#x}", growing.body.core_filter);
    let _ = std::fs::write(format!("/proc/{pid}/coredump_filter"), filter);
    Ok(std::iter::once(growing.0.first).chain(threads).collect())
}

impl Rebuilding<'_> {
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

    /// Takes everything away but the stub, beside it what is the kernel's, and memory that the process is given.
    fn make_empty(&self, kernels: &[(Vec<u8>, Range<u64>)], staging: &Staging) -> Result<()> {
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
        let kept = staging.kept(self.process);
        let kept = kept.union(&Ranges::from(self.stub..end));
        let rest = Ranges::from(0..USER_END).without(&kept);
        calls.extend(
            rest.iter()
                .map(|rest| call(libc::SYS_munmap, [rest.start, rest.end - rest.start])),
        );
        self.make("cannot be emptied", &calls)
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
            let timer = match opened.clocks {
                Some(then) if which == libc::ITIMER_REAL as usize => left_by_now(*timer, then),
                _ => *timer,
            };
            let timer = data.put_words(&timer);
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
}
