//! Whether compressing is worth it, for an image whose sink may be slower than that, or not: decided by measuring both, batch
//! after batch.
//!
//! Sealer and sink work at the same time, each on a batch of its own, so an image is as fast as the slower of both. With `c`
//! the time that a byte takes to be compressed, `s` the time that the sink takes for a stored one, and `r` what is left of a
//! byte, it is faster compressed if `max(c, r * s)` is clearly less than `s`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Sinks that take a byte in less are not measured against: nothing compresses so fast.
const FAST_NS: f64 = 1.5;
/// What is shorter tells more of waking up than of copying.
const MEASURED_BYTES: usize = 256 << 10;
/// What it takes to be clearly less.
const CLEARLY: f64 = 0.8;
/// Batches that follow before it is tried again.
const AGAIN_AFTER: u32 = 16;
/// How much a measurement counts, beside those before it.
const WEIGHT: f64 = 0.25;

/// How fast a sink is: as its thread says it, for the sealer's.
#[derive(Clone, Debug, Default)]
pub struct SinkSpeed(Arc<AtomicU64>);

impl SinkSpeed {
    /// It has taken so many bytes in this time.
    pub fn took(&self, bytes: usize, time: Duration) {
        if bytes >= MEASURED_BYTES {
            let ns = averaged(self.ns(), time.as_nanos() as f64 / bytes as f64);
            self.0.store(ns.to_bits(), Ordering::Relaxed);
        }
    }

    /// Nanoseconds for each byte; 0: that is not known.
    fn ns(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

fn averaged(before: f64, now: f64) -> f64 {
    match before {
        0.0 => now,
        _ => before + WEIGHT * (now - before),
    }
}

/// What is known of compressing.
#[derive(Debug)]
pub struct Worth {
    sink: SinkSpeed,
    /// Nanoseconds for each byte, and what is left of it; 0: nothing was compressed yet.
    ns: f64,
    left: f64,
    not_since: u32,
    begun: Option<Instant>,
}

impl Worth {
    /// Nothing yet, beside this sink.
    pub fn new(sink: SinkSpeed) -> Self {
        Self {
            sink,
            ns: 0.0,
            left: 0.0,
            not_since: 0,
            begun: None,
        }
    }

    /// Whether the next batch is to be compressed; it begins.
    pub fn begin(&mut self) -> bool {
        let sink = self.sink.ns();
        let is_worth_it = || self.ns.max(self.left * sink) < CLEARLY * sink;
        let is_known = self.ns > 0.0 && self.not_since < AGAIN_AFTER;
        let compresses = sink > FAST_NS && (!is_known || is_worth_it());
        self.not_since = match compresses {
            true => 0,
            false => self.not_since.saturating_add(1),
        };
        self.begun = compresses.then(Instant::now);
        compresses
    }

    /// It is done: of so many bytes, so many are left.
    pub fn done(&mut self, bytes: usize, stored: usize) {
        if let Some(begun) = self.begun.take()
            && bytes >= MEASURED_BYTES
        {
            let bytes = bytes as f64;
            self.ns = averaged(self.ns, begun.elapsed().as_nanos() as f64 / bytes);
            self.left = averaged(self.left, stored as f64 / bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: usize = 1 << 20;

    fn beside(sink_ns: u64) -> Worth {
        let sink = SinkSpeed::default();
        sink.took(BATCH, Duration::from_nanos(sink_ns * BATCH as u64));
        Worth::new(sink)
    }

    /// As if a batch had been compressed in this time.
    fn measured(worth: &mut Worth, ns: u64, stored: usize) {
        let took = Duration::from_nanos(ns * BATCH as u64);
        worth.begun = Instant::now().checked_sub(took);
        worth.done(BATCH, stored);
    }

    #[test]
    fn what_a_fast_sink_takes_is_never_compressed() {
        let mut worth = beside(1);
        assert!((0..100).all(|_| !worth.begin()));
        // Nor before anything is known.
        assert!(!Worth::new(SinkSpeed::default()).begin());
    }

    #[test]
    fn a_slow_sink_gets_less_as_long_as_that_is_faster() {
        let mut worth = beside(8);
        assert!(worth.begin());
        measured(&mut worth, 3, BATCH / 2);
        assert!(worth.begin());
        worth.sink = beside(2).sink;
        assert!(!worth.begin());
    }

    #[test]
    fn what_stays_as_large_is_tried_again_only_now_and_then() {
        let mut worth = beside(8);
        assert!(worth.begin());
        measured(&mut worth, 3, BATCH);
        let tries = (0..10 * AGAIN_AFTER).filter(|_| {
            let tries = worth.begin();
            worth.done(BATCH, BATCH);
            tries
        });
        assert!((9..=10).contains(&tries.count()));
    }
}
