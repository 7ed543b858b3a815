//! Looking for a while before sleeping: who is answered sooner than it could fall asleep and be woken is
//! spared both.
//!
//! What must stay true: whoever spins is about to sleep, so that one look too many costs time and nothing else. Nobody
//! yields between two looks: on a busy processor that is the end of the thread's turn, and later than a wake-up.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};

/// About as long as a wake-up takes on a virtual machine.
const SPIN: Duration = Duration::from_micros(50);

/// Looks until it `is`, or it has taken too long.
pub fn spin(mut is: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is() {
            return true;
        }
        if begun.elapsed() > SPIN {
            return false;
        }
    }
}

/// What poll(2) says now.
pub fn is_ready(fds: &mut [PollFd<'_>]) -> bool {
    poll(fds, Some(&Timespec::default())) != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_at_least_once_and_not_for_ever() {
        assert!(spin(|| true));
        let mut looks = 0;
        assert!(!spin(|| {
            looks += 1;
            false
        }));
        assert!(looks > 0);
    }
}
