//! The calls of files: from a number to a function and back.
//!
//! | file | what it is |
//! |---|---|
//! | `descriptors`, `fcntl`, `locks` | what is done with a descriptor |
//! | `open`, `fd_names`, `proc`, `paths`, `attributes` | what is done with a name |
//! | `transfer`, `vectors`, `copy` | bytes that come and go |
//! | `sockets`, `socket_options`, `control` | sockets; descriptors that go through them |
//! | `poll`, `timer` | readiness; timers |

mod attributes;
mod control;
mod copy;
mod descriptors;
mod fcntl;
mod fd_names;
mod links;
mod locks;
mod open;
mod paths;
mod poll;
mod proc;
mod socket_of;
mod socket_options;
mod sockets;
mod stat;
mod timer;
mod transfer;
mod vectors;

use std::time::Duration;

use snaprig_card_driver::{
    errno::Errno,
    wait::{Stop, SysResult, Wait},
};

pub use self::poll::asks_for_readiness;
use crate::call::FsCall;

/// Runs a call if it is one of a subject's; `None` if it is none.
type Run = fn(&mut FsCall, u64, [u64; 6]) -> Option<SysResult>;

/// Who is asked, in this order: what programs call most comes first.
const SUBJECTS: [Run; 8] = [
    transfer::run,
    descriptors::run,
    paths::run,
    attributes::run,
    copy::run,
    timer::run,
    poll::run,
    sockets::run,
];

/// Runs a file call; `None` if it is none.
pub fn syscall(call: &mut FsCall, number: u64, args: [u64; 6]) -> Option<SysResult> {
    let result = SUBJECTS.iter().find_map(|run| run(call, number, args))?;
    let result = match (result, sockets::timeout(call, number, args[0] as i32)) {
        (Err(Stop::Wait(wait)), Some(timeout)) => within(call, wait, timeout),
        (result, _) => result,
    };
    Some(match result {
        // What has been moved counts for more than what went wrong then (write(2)).
        Err(Stop::Errno(_)) if *call.progress > 0 => Ok(*call.progress as u64),
        other => other,
    })
}

/// A wait that ends after `timeout` with EAGAIN (socket(7), SO_RCVTIMEO).
fn within(call: &mut FsCall, mut wait: Wait, timeout: Duration) -> SysResult {
    let end = call.cx.now.saturating_add(timeout);
    let end = *call.deadline.get_or_insert(end);
    if end <= call.cx.now {
        return Err(Errno::EAGAIN.into());
    }
    wait.deadline = Some(wait.deadline.map_or(end, |deadline| deadline.min(end)));
    Err(Stop::Wait(wait))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::test_kit::Kit;

    fn argument() -> impl Strategy<Value = u64> {
        let path = prop_oneof![Just(0x1000_u64), Just(0x2000), Just(0x3000)];
        prop_oneof![
            0..12_u64,
            path,
            Just(libc::AT_FDCWD as u64),
            any::<u64>(),
            (0..64_u32).prop_map(|bit| 1 << bit),
            (0..64_u32).prop_map(|bit| u64::MAX >> bit),
        ]
    }

    /// Mostly calls that there are.
    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![
            0..24_i64,
            32..34_i64,
            40..60_i64,
            72..96_i64,
            213..334_i64,
            424..450_i64
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Whatever a program asks for, it gets an answer.
        #[test]
        fn hostile_calls_are_answered(
            calls in prop::collection::vec((number(), prop::array::uniform6(argument())), 1..60)
        ) {
            let mut kit = Kit::new();
            kit.limit_nofile = 64;
            kit.file("/tmp/a", b"x");
            for (at, text) in [(0x1000, "/tmp/a"), (0x2000, "/proc/self/fd/5"), (0x3000, "/tmp/b")] {
                kit.put(at, text.as_bytes());
            }
            // A buffer in an iovec, and a socket's address.
            kit.put_words(0x4000, &[0x5000, 100, 0x6000, 1 << 40]);
            kit.put(0x7000, b"\x01\x00\x00name");
            for (number, args) in calls {
                let _ = kit.call(number, &args);
            }
        }
    }
}
