//! Who goes before programs that compute (setpriority(2)): the card's daemons, and what in an offload process pauses it for its
//! host. A program may have more threads than its card has cores, all of them busy, and is to be paused all the same.

/// As much as anybody needs: the card's kernel only looks whether it is below 0.
const URGENT: i32 = -10;
const USUAL: i32 = 0;

/// This thread does, and those that it starts.
pub fn be_urgent() {
    set(URGENT);
}

/// This thread does not. It is safe in the child of a vfork(2).
pub fn be_usual() {
    set(USUAL);
}

fn set(nice: i32) {
    // SAFETY: setpriority(2) takes numbers alone. Who may not be urgent waits for its turn.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}
