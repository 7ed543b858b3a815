//! COIPerf: the time stamp counter.

use std::{
    arch::x86_64::_rdtsc,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// For how long the counter is compared with the clock, once.
const COMPARISON: Duration = Duration::from_millis(20);

pub extern "C" fn COIPerfGetCycleCounter() -> u64 {
    // SAFETY: the instruction is one of every x86-64, reads a counter, and touches no memory.
    unsafe { _rdtsc() }
}

pub extern "C" fn COIPerfGetCycleFrequency() -> u64 {
    static FREQUENCY: OnceLock<u64> = OnceLock::new();
    *FREQUENCY.get_or_init(|| {
        let (start, counter) = (Instant::now(), COIPerfGetCycleCounter());
        std::thread::sleep(COMPARISON);
        let (cycles, nanoseconds) = (
            COIPerfGetCycleCounter().wrapping_sub(counter),
            start.elapsed().as_nanos().max(1),
        );
        let hertz = u128::from(cycles) * 1_000_000_000 / nanoseconds;
        // To the nearest megahertz: the rest is the comparison's error.
        u64::try_from((hertz + 500_000) / 1_000_000 * 1_000_000).unwrap_or(u64::MAX)
    })
}
