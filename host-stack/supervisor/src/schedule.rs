//! When the next checkpoint is due.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::interval::{Interval, Policy};

/// When checkpoints are made that nobody asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Schedule {
    /// Never.
    #[default]
    Asked,
    /// So long after the last one.
    Every(Duration),
    /// As often as their cost allows (CHIMES, section III-F).
    Share(Policy),
}

/// A schedule, and where one is in it.
pub struct Due {
    start: Instant,
    schedule: Schedule,
    interval: Interval,
    /// The next; none: it is not known when.
    next: Option<Instant>,
}

/// What had been computed when a checkpoint began.
#[derive(Clone, Copy)]
pub struct Cost(Duration);

impl Due {
    pub fn new(schedule: Schedule) -> Self {
        let policy = match schedule {
            Schedule::Share(policy) => policy,
            _ => Policy::default(),
        };
        let mut due = Self {
            start: Instant::now(),
            schedule,
            interval: Interval::new(policy),
            next: None,
        };
        due.plan();
        due
    }

    /// Whether one is due.
    pub fn is_now(&self) -> bool {
        self.next.is_some_and(|next| next <= Instant::now())
    }

    /// How long it is until then; none: for ever.
    pub fn left(&self) -> Option<Duration> {
        self.next
            .map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Before a checkpoint.
    pub fn cost(&self) -> Cost {
        Cost(computed())
    }

    /// A checkpoint has ended, that has stopped the program for `pause`. What this process has computed for it, the
    /// program may have been slowed by, as far as it uses all processors.
    pub fn ended(&mut self, Cost(before): Cost, pause: Duration) {
        let slowed = computed().saturating_sub(before) / processors();
        self.interval.ended(self.start.elapsed(), pause.max(slowed));
        self.plan();
    }

    /// A checkpoint has failed: the next is tried when it would have been after one that was not.
    pub fn failed(&mut self) {
        self.interval.ended(self.start.elapsed(), Duration::ZERO);
        self.plan();
    }

    fn plan(&mut self) {
        self.next = match self.schedule {
            Schedule::Asked => None,
            Schedule::Every(interval) => Instant::now().checked_add(interval),
            Schedule::Share(_) => self.start.checked_add(self.interval.due()),
        };
    }
}

/// Processor time of all threads of this process (getrusage(2)).
fn computed() -> Duration {
    // SAFETY: the structure has numbers alone, for which zero is a value, and getrusage(2) fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}
