//! The clocks of a card: the host's, continued by the time stamp counter between two looks at them,
//! so that programs can read them without a system call (`vdso/vdso.c`).
//!
//! A page of each card says what time it was at a count of the counter, how fast the counter goes,
//! and for how long that holds. When it does not hold any more, the next system call that asks for
//! the time looks at the host's clock again. The kernel's own times are computed in the same way,
//! from the same numbers: deadlines and what programs see of them agree.
//!
//! What must stay true: the monotonic clock never goes back; a clock that is ahead of the host's
//! goes slower until it is not. A page whose sequence differs, as on another card, makes a reader
//! start again.

use std::{
    arch::x86_64::{__cpuid, _mm_lfence, _rdtsc},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use snaprig_card_memory::CardMemory;

use crate::random;

/// The file whose page it is.
pub const PATH: &str = "/dev/card/clock";
/// Nanoseconds in the units of a rate.
const UNIT: u32 = 32;
/// The counter's rate is known after so long, and looked at again after at most so long.
const CALIBRATION: u64 = 20_000_000;
const WINDOW_MAX: u64 = 1_000_000_000;

/// What a page says; times are in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Params {
    window: u64,
    base: u64,
    rate: u64,
    monotonic: u64,
    realtime: u64,
}

struct Clock {
    params: Params,
    /// The counter and the host's clock when they were first looked at.
    first: (u64, u64),
    trusted: bool,
    pages: Vec<(Weak<CardMemory>, u64)>,
}

/// `CLOCK_MONOTONIC` and `CLOCK_REALTIME`.
pub fn now() -> (Duration, Duration) {
    let mut clock = clock();
    let ticks = counter();
    let monotonic = match clock.params.at(ticks) {
        Some(monotonic) => monotonic,
        None => clock.look(),
    };
    let realtime = monotonic.wrapping_add(clock.params.realtime);
    (
        Duration::from_nanos(monotonic),
        Duration::from_nanos(realtime),
    )
}

/// `CLOCK_MONOTONIC`, on which deadlines are.
pub fn monotonic() -> Duration {
    now().0
}

/// A clock of the card.
pub fn card_clock(clock: libc::clockid_t) -> Duration {
    match clock {
        libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_COARSE => now().0,
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => now().1,
        other => host_clock(other),
    }
}

/// A clock of the host.
pub fn host_clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec of this frame, which outlives the call that writes to it. A clock that there is not
    // fails, and leaves it as it is.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

/// Whether there is such a clock; 10 was a machine's that is gone.
pub fn is_clock(clock: i32) -> bool {
    matches!(clock, 0..=9 | 11)
}

/// Keeps the page at `frame` of a card true from now on.
pub fn publish(memory: &Arc<CardMemory>, frame: u64) {
    // Differs from every other card's, and is even.
    let mut sequence = [0; 8];
    random::fill(&mut sequence);
    memory.store(frame, u64::from_le_bytes(sequence) & !1);
    let mut clock = clock();
    clock.pages.retain(|(memory, _)| memory.strong_count() > 0);
    clock.pages.push((Arc::downgrade(memory), frame));
    clock.write_pages();
}

fn clock() -> MutexGuard<'static, Clock> {
    static CLOCK: OnceLock<Mutex<Clock>> = OnceLock::new();
    CLOCK
        .get_or_init(|| Mutex::new(Clock::new()))
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl Params {
    /// The monotonic clock at a count, where this holds.
    fn at(&self, ticks: u64) -> Option<u64> {
        let ticks = ticks.wrapping_sub(self.base);
        (ticks < self.window).then(|| self.monotonic + ((ticks * self.rate) >> UNIT))
    }

    /// What follows: `here` is the count and the host's clock now, `rate` what has been measured.
    fn next(&self, here: (u64, u64), rate: u64, age: u64) -> Self {
        let (base, host) = here;
        // As far as anybody can have seen it go.
        let seen = base.wrapping_sub(self.base).min(self.window);
        let monotonic = host.max(self.monotonic + ((seen * self.rate) >> UNIT));
        // What it is ahead by is made up for while this holds, at half the speed at most.
        let window = age.min(WINDOW_MAX);
        let slower = (monotonic - host).min(window / 2);
        let rate = u128::from(rate) * u128::from(window - slower) / u128::from(window.max(1));
        let rate = rate as u64;
        let ticks = (u128::from(window) << UNIT) / u128::from(rate.max(1));
        Self {
            window: if age < CALIBRATION { 0 } else { ticks as u64 },
            base,
            rate,
            monotonic,
            realtime: self.realtime,
        }
    }
}

impl Clock {
    fn new() -> Self {
        Self {
            params: Params::default(),
            first: look_at_both(),
            trusted: is_trusted(),
            pages: Vec::new(),
        }
    }

    /// Looks at the host's clock; the time now.
    fn look(&mut self) -> u64 {
        let here = look_at_both();
        let (ticks, age) = (
            here.0.wrapping_sub(self.first.0),
            here.1.saturating_sub(self.first.1),
        );
        let age = if self.trusted { age } else { 0 };
        let rate = (u128::from(age) << UNIT) / u128::from(ticks.max(1));
        self.params = self.params.next(here, rate as u64, age);
        // What comes between the two makes the difference too small.
        let difference = || {
            let realtime = nanoseconds(host_clock(libc::CLOCK_REALTIME));
            realtime.wrapping_sub(nanoseconds(host_clock(libc::CLOCK_MONOTONIC)))
        };
        self.params.realtime = (0..4).map(|_| difference()).max().unwrap_or_default();
        self.write_pages();
        self.params.monotonic
    }

    fn write_pages(&self) {
        let p = &self.params;
        for (memory, frame) in &self.pages {
            let Some(memory) = memory.upgrade() else {
                continue;
            };
            let sequence = memory.load(*frame);
            memory.store(*frame, sequence | 1);
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            let words = [p.window, p.base, p.rate, p.monotonic, p.realtime];
            for (index, word) in words.into_iter().enumerate() {
                memory.store(frame + 8 + index as u64 * 8, word);
            }
            memory.store(*frame, (sequence | 1).wrapping_add(1));
        }
    }
}

/// The counter and the host's monotonic clock at one moment: of several tries, the quickest.
fn look_at_both() -> (u64, u64) {
    let attempt = || {
        let before = counter();
        let host = nanoseconds(host_clock(libc::CLOCK_MONOTONIC));
        let took = counter().wrapping_sub(before);
        (took, (before.wrapping_add(took / 2), host))
    };
    let quickest = (0..4).map(|_| attempt()).min_by_key(|(took, _)| *took);
    quickest.expect("there were four").1
}

fn counter() -> u64 {
    // SAFETY: every x86-64 processor has both instructions, and Linux lets programs use them.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Whether the counter always goes, at one speed and alike on all processors: the processor says
/// so (AMD64 manual, volume 3, Fn8000_0007), and the host relies on it.
fn is_trusted() -> bool {
    const INVARIANT: u32 = 1 << 8;
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = std::fs::read_to_string(source).unwrap_or_default();
    __cpuid(0x8000_0000).eax >= 0x8000_0007
        && __cpuid(0x8000_0007).edx & INVARIANT != 0
        && source.trim() == "tsc"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_follows_the_host_and_never_goes_back() {
        let (mut last, begun) = (now().0, std::time::Instant::now());
        while begun.elapsed() < Duration::from_millis(60) {
            let before = host_clock(libc::CLOCK_REALTIME);
            let (monotonic, realtime) = now();
            let after = host_clock(libc::CLOCK_REALTIME);
            assert!(monotonic >= last);
            last = monotonic;
            // A look at the host's clocks is as good as the host lets it be.
            let slack = Duration::from_millis(20);
            assert!(before <= realtime + slack && realtime <= after + slack);
        }
    }

    proptest! {
        /// Looks at a host whose clock jitters, at any moments.
        #[test]
        fn looks_at_the_host_never_turn_it_back(
            steps in prop::collection::vec((1..3_000_000_000u64, -100_000..100_000i64), 1..40),
        ) {
            let (mut params, mut ticks, mut seen) = (Params::default(), 1u64 << 40, 0);
            let rate = 1 << (UNIT - 1);
            for (step, jitter) in steps {
                // Readers between the looks.
                for part in [step / 3, step / 2] {
                    if let Some(time) = params.at(ticks + part) {
                        prop_assert!(time >= seen);
                        seen = time;
                    }
                }
                ticks += step;
                let host = (ticks / 2).saturating_add_signed(jitter);
                params = params.next((ticks, host), rate, ticks / 2 - (1 << 39) + CALIBRATION);
                prop_assert!(params.monotonic >= seen);
                prop_assert!(params.monotonic.abs_diff(host) <= 400_000);
                seen = params.monotonic;
            }
        }
    }
}
