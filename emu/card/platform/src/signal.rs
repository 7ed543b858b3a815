//! The signal with which any thread makes a host thread leave the guest.

/// The signal that makes a host thread leave the guest; it does nothing else.
pub fn kick_signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

/// Sends it to one thread of a process. A thread that has ended gets nothing.
pub fn send_kick(process: libc::pid_t, thread: libc::pid_t) {
    // SAFETY: tgkill(2) takes three numbers and reads or writes no memory of the caller's. The signal ends nobody: in
    // this process `kvm` has given it a handler that does nothing, and the tracer of a traced task swallows it.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, kick_signal()) };
}
