//! The threads of a restarted process: made with the numbers that they had, and set to what each was.

use snaprig_resources::{
    error::{Error, Result},
    growing::Data,
    opened::damaged,
    state::{Credentials, Thread},
};
use snaprig_tracee::{
    remote::{self, Call, Remote, call, regs_of, result},
    trace::{Regs, Tracee},
};

use super::{credentials, rebuilding::Rebuilding};

/// Error of calls that the kernel goes on with by a way of its own (ERESTART_RESTARTBLOCK), and of those that it makes
/// again unless a handler runs (ERESTARTNOHAND).
const RESTART_BLOCK: i64 = -516;
const RESTART_NO_HANDLER: i64 = -514;

impl Rebuilding<'_> {
    /// Makes all threads but the first.
    pub(crate) fn make_threads(&self) -> Result<Vec<Tracee>> {
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

    pub(crate) fn set_thread(
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
    // By the thread itself, before it is somebody else: in a user namespace nobody may say it of another user's
    // (sched(7)).
    let (policy, priority, nice) = thread.scheduling;
    let priority = data.put(&priority.to_ne_bytes());
    calls.push(call(
        libc::SYS_sched_setscheduler,
        [0, policy as u64, priority],
    ));
    let process = u64::from(libc::PRIO_PROCESS);
    calls.push(call(libc::SYS_setpriority, [process, 0, nice as u64]));
    calls
}

/// The registers that it had, at a stop at which the kernel looks whether a call is to be made again.
pub fn set_registers(tracee: &Tracee, thread: &Thread) -> Result<()> {
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
    Ok(tracee.set_mask(thread.mask)?)
}
