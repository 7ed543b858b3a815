//! Whether a process that lets go of a file has finished it: the kernel closes files of those that are killed, too.

use procfs::process::Process;

/// Where an exit code, as wait(2) has it, says which signal it was.
const SIGNAL: i32 = 0x7f;

/// Whether a task is being killed, and does not close its files because it is done with them. It waits for our answer
/// meanwhile.
pub fn is_being_killed(pid: u32) -> bool {
    let Ok(process) = Process::new(pid as i32) else {
        return false;
    };
    // It has no memory: it is on its way out. Its exit code is not for us to ask for otherwise: the kernel answers that
    // after an execve(2), which may be what closes the file.
    let is_exiting = process.status().is_ok_and(|status| status.vmsize.is_none());
    let code = || process.stat().ok()?.exit_code;
    is_exiting && code().is_some_and(|code| code & SIGNAL != 0)
}
