//! What pairs of measurements say of a ratio, where some of them are far off: a program that is not woken for a
//! while takes any time.
//!
//! The estimator is that of Hodges and Lehmann ("Estimates of location based on rank tests", 1963) over the logarithms
//! of the ratios: the median of the means of any two of them. More than a quarter of the samples may be anything, and
//! where none is, it is nearly as sharp as the mean. Logarithms, so that twice and half as long outweigh each other.
//!
//! The interval is that of the bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 13.3: percentiles):
//! the same over samples drawn from the samples, in 95 % of the draws. Several series are measured in rounds, and
//! rounds are drawn: what disturbs a round disturbs all that is measured in it.

use serde::Serialize;
use snaprig_sim::Random;

/// Draws of the bootstrap.
const DRAWS: usize = 1000;
/// Part of them that is beyond either end of the interval.
const BEYOND: f64 = 0.025;

/// An estimate, and the interval that it is in with a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The estimate.
    pub estimate: f64,
    /// The interval's ends.
    pub from: f64,
    pub to: f64,
}

/// What each of the series comes to, and what their mean does. All have a sample a round.
pub fn intervals(series: &[Vec<f64>], seed: u64) -> (Vec<Interval>, Interval) {
    let rounds = series.iter().map(Vec::len).min().unwrap_or(0);
    let mean = |estimates: &[f64]| estimates.iter().sum::<f64>() / estimates.len() as f64;
    let mut random = Random::new(seed, "bootstrap");
    let mut draws = vec![Vec::with_capacity(DRAWS); series.len()];
    let mut means = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        let drawn: Vec<_> = (0..rounds)
            .map(|_| random.below(rounds as u64) as usize)
            .collect();
        let estimates = series.iter().map(|samples| {
            let drawn: Vec<_> = drawn.iter().map(|round| samples[*round]).collect();
            hodges_lehmann(&drawn)
        });
        let estimates: Vec<_> = estimates.collect();
        means.push(mean(&estimates));
        for (draws, estimate) in draws.iter_mut().zip(estimates) {
            draws.push(estimate);
        }
    }
    let estimates: Vec<_> = series.iter().map(|one| hodges_lehmann(one)).collect();
    let all = estimates.iter().zip(draws);
    let all = all.map(|(estimate, draws)| interval(*estimate, draws));
    (all.collect(), interval(mean(&estimates), means))
}

fn interval(estimate: f64, mut draws: Vec<f64>) -> Interval {
    draws.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = part * draws.len().saturating_sub(1) as f64;
        draws.get(place.round() as usize).copied()
    };
    Interval {
        estimate,
        from: at(BEYOND).unwrap_or(f64::NAN),
        to: at(1.0 - BEYOND).unwrap_or(f64::NAN),
    }
}

/// The median of the means of any two samples, and of each with itself.
fn hodges_lehmann(samples: &[f64]) -> f64 {
    let mut means: Vec<_> = samples
        .iter()
        .enumerate()
        .flat_map(|(at, one)| {
            let others = samples[at..].iter();
            others.map(move |other| f64::midpoint(*one, *other))
        })
        .collect();
    median(&mut means)
}

/// The middle one, or the mean of the two in the middle.
pub fn median(samples: &mut [f64]) -> f64 {
    let middle = samples.len() / 2;
    if samples.is_empty() {
        return f64::NAN;
    }
    let is_odd = samples.len() % 2 == 1;
    let (below, upper, _) = samples.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp);
    match lower.filter(|_| !is_odd) {
        Some(lower) => f64::midpoint(lower, *upper),
        None => *upper,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hollander and Wolfe, "Nonparametric Statistical Methods" (1973), table 3.1: nine patients before and after a
    /// therapy. Their estimate is -0.46, and R's wilcox.test(y, x, paired = TRUE, conf.int = TRUE) has it, too.
    const BEFORE: [f64; 9] = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30];
    #[expect(clippy::approx_constant, reason = "it is a patient's")]
    const AFTER: [f64; 9] = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29];

    #[test]
    fn the_estimate_is_the_one_that_is_known() {
        let pairs = BEFORE.iter().zip(AFTER);
        let differences: Vec<_> = pairs.map(|(before, after)| after - before).collect();
        assert!((hodges_lehmann(&differences) + 0.46).abs() < 1e-9);
        assert_eq!(hodges_lehmann(&[3.0]), 3.0);
        // Of 1, 1.5, 2, 5.5, 6, 10.
        assert_eq!(hodges_lehmann(&[10.0, 1.0, 2.0]), 3.75);
        assert!(hodges_lehmann(&[]).is_nan());
    }

    /// Noise of about one, and one sample in ten that may be anything: that of a disturbed program.
    fn noise(random: &mut Random) -> f64 {
        let uniform = |random: &mut Random| random.below(1 << 20) as f64 / (1 << 20) as f64;
        let sum: f64 = (0..12).map(|_| uniform(random)).sum();
        match random.one_in(10) {
            true => 300.0 * (uniform(random) - 0.5),
            false => sum - 6.0,
        }
    }

    #[test]
    fn the_interval_has_the_truth_in_it_about_as_often_as_it_says() {
        const TRUTH: [f64; 2] = [1.0, -3.0];
        const TIMES: u64 = 200;
        let (mut right, mut widths) = ([0; 3], Vec::new());
        for seed in 0..TIMES {
            let mut random = Random::new(seed, "noise");
            let series = TRUTH.map(|truth| (0..40).map(|_| truth + noise(&mut random)).collect());
            let (all, mean) = intervals(&series, seed);
            let truths = TRUTH.into_iter().chain([-1.0]);
            let intervals = all.into_iter().chain([mean]);
            for ((right, truth), interval) in right.iter_mut().zip(truths).zip(intervals) {
                *right += u64::from((interval.from..=interval.to).contains(&truth));
                widths.push(interval.to - interval.from);
            }
        }
        // The mean's would be 17 wide.
        assert!(median(&mut widths) < 2.0);
        // 95 %, with five standard deviations of room below.
        assert!(
            right.iter().all(|right| *right >= TIMES * 87 / 100),
            "{right:?}"
        );
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let series = [vec![1.0, 2.0, 4.0], vec![0.0, 0.5, 0.25]];
        assert_eq!(intervals(&series, 7), intervals(&series, 7));
        let (all, _) = intervals(&[vec![2.0]], 7);
        let only = Interval {
            estimate: 2.0,
            from: 2.0,
            to: 2.0,
        };
        assert_eq!(all, [only]);
    }
}
