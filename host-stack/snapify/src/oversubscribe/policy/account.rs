//! What has become of a process, and how fairly processes were treated.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What has become of a process since it was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// How long something of the program waited for it.
    pub wanted: Duration,
    /// How long of that it was on a card, and ran.
    pub served: Duration,
    /// How long it was on a card.
    pub resident: Duration,
    /// How long it was on its way, from a card or to one.
    pub swapping: Duration,
    /// How often it left a card.
    pub swaps_out: u64,
    /// How often it came back.
    pub swaps_in: u64,
    /// Swaps that failed.
    pub failed: u64,
}

impl Account {
    /// What part of the time in which it was wanted it was served.
    pub fn share(&self) -> f64 {
        match self.wanted.is_zero() {
            true => 1.0,
            false => self.served.as_secs_f64() / self.wanted.as_secs_f64(),
        }
    }
}

/// Jain's index of fairness: 1 if all have the same, 1/n if one of n has everything. Of nobody, or nothing, it is 1.
pub fn jain(shares: impl IntoIterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        count += 1.0;
        sum += share;
        squares += share * share;
    }
    match squares > 0.0 {
        true => sum * sum / (count * squares),
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_one_for_equals_and_one_in_n_for_a_single_winner() {
        assert_eq!(jain([0.25; 4]), 1.0);
        assert_eq!(jain([3.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain([]), 1.0);
        assert_eq!(jain([0.0, 0.0]), 1.0);
    }
}
