//! Where the daemon has the time from. Nothing else in it asks a clock, so that it can be run by another one.

use std::time::{SystemTime, UNIX_EPOCH};

/// The two clocks of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// Nanoseconds of the clock that all processes of the fabric share, by which timers go.
    pub now_ns: fn() -> u64,
    /// Nanoseconds since 1970, which captured packets are stamped with.
    pub since_1970_ns: fn() -> u64,
}

impl Clocks {
    /// The machine's.
    pub const SYSTEM: Self = Self {
        now_ns: crate::client::now_ns,
        since_1970_ns: || {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
            since_1970.map_or(0, |time| time.as_nanos() as u64)
        },
    };
}
