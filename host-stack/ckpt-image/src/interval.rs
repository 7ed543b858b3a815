//! When the next checkpoint is due: as soon as checkpoints take no more than their share of the run
//! time, and at the latest after a longest wait (CHIMES, section III-F, where those are 5% and 60 s).
//!
//! What must stay true: no clock here. Whoever asks says what time it is.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What checkpoints may cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// The share of the run time that they are not to exceed: above 0, up to 1.
    pub share: f64,
    /// No two checkpoints are closer than this.
    pub shortest: Duration,
    /// After this one is due, whatever it costs.
    pub longest: Duration,
}

impl Default for Policy {
    /// That of the paper: 5%, 60 s.
    fn default() -> Self {
        Self {
            share: 0.05,
            shortest: Duration::ZERO,
            longest: Duration::from_secs(60),
        }
    }
}

/// Decides when, by what checkpoints have cost the program so far. All times are since its start.
#[derive(Clone, Debug)]
pub struct Interval {
    policy: Policy,
    /// What all checkpoints have cost.
    spent: Duration,
    /// What the last one did: the next will, too.
    last: Duration,
    /// When the last one ended; the start, if there was none.
    ended: Duration,
}

impl Interval {
    /// For a program that starts now, at 0. A share outside of (0, 1] is taken as the nearest in it.
    pub fn new(policy: Policy) -> Self {
        let share = policy.share.clamp(f64::MIN_POSITIVE, 1.0);
        Self {
            policy: Policy { share, ..policy },
            spent: Duration::ZERO,
            last: Duration::ZERO,
            ended: Duration::ZERO,
        }
    }

    /// A checkpoint has ended at `now`. It has cost the program `cost`: the time for which it was
    /// stopped, and by which it was slowed.
    pub fn ended(&mut self, now: Duration, cost: Duration) {
        self.spent = self.spent.saturating_add(cost);
        self.last = cost;
        self.ended = self.ended.max(now);
    }

    /// When the next is due. Asked after each checkpoint, the answer holds until the next.
    ///
    /// The first is due at the shortest interval: nothing is known of its cost.
    pub fn due(&self) -> Duration {
        // With the next one in it, the cost is the share of the time that will have passed at its end.
        let cost = self.spent.saturating_add(self.last);
        let affordable = Duration::try_from_secs_f64(cost.as_secs_f64() / self.policy.share);
        let starts = affordable
            .unwrap_or(Duration::MAX)
            .saturating_sub(self.last);
        let after = |wait| self.ended.saturating_add(wait);
        starts
            .max(after(self.policy.shortest))
            .min(after(self.policy.longest))
    }

    /// How long it is until then.
    pub fn wait(&self, now: Duration) -> Duration {
        self.due().saturating_sub(now)
    }

    /// The share of the time until `now` that checkpoints have cost.
    pub fn share(&self, now: Duration) -> f64 {
        match now.is_zero() {
            true => 0.0,
            false => self.spent.as_secs_f64() / now.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn checkpoints_are_as_close_as_their_cost_allows() {
        let mut interval = Interval::new(Policy::default());
        assert_eq!(interval.due(), ms(0));
        interval.ended(ms(100), ms(100));
        // At 4 s there will have been two, of 0.1 s each: 5%.
        assert_eq!(interval.due(), ms(3900));
        interval.ended(ms(4000), ms(100));
        assert_eq!(interval.due(), ms(5900));
        assert_eq!(interval.wait(ms(5000)), ms(900));
        assert_eq!(interval.wait(ms(7000)), ms(0));
    }

    #[test]
    fn one_that_costs_too_much_is_waited_for_no_longer_than_the_longest() {
        let mut interval = Interval::new(Policy::default());
        interval.ended(ms(30_000), ms(30_000));
        assert_eq!(interval.due(), ms(90_000));
        let mut interval = Interval::new(Policy {
            share: 0.0,
            ..Policy::default()
        });
        interval.ended(Duration::MAX, Duration::MAX);
        assert_eq!(interval.due(), Duration::MAX);
    }

    proptest! {
        #[test]
        fn the_share_is_kept_and_the_longest_wait_too(
            share in 0.001..1.0f64,
            shortest in 0..1000u64,
            longest in 1000..100_000u64,
            cost in 1..5000u64,
            count in 1..50usize,
        ) {
            let policy = Policy { share, shortest: ms(shortest), longest: ms(longest) };
            let mut interval = Interval::new(policy);
            interval.ended(ms(cost), ms(cost));
            let mut now = ms(cost);
            for _ in 0..count {
                let start = interval.due().max(now);
                let waited = start - now;
                prop_assert!(waited >= policy.shortest && waited <= policy.longest);
                now = start + ms(cost);
                interval.ended(now, ms(cost));
                let kept = interval.share(now) <= share + 1e-6;
                prop_assert!(kept || waited == policy.longest, "{} after {waited:?}", interval.share(now));
            }
        }
    }
}
