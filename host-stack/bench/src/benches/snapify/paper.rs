//! What the Snapify paper's section 7.2 says in its text of Figure 10, on a node with a Xeon Phi. Bars of its plots have no
//! numbers.

use super::operations::Operation;

/// From the shortest of all workloads to the longest, in seconds; none: the paper has nothing of the kind.
pub fn seconds(operation: Operation) -> Option<(f64, f64)> {
    Some(match operation {
        Operation::Checkpoint => (3.0, 21.0),
        Operation::Restart => (3.0, 24.0),
        Operation::Migration => (4.9, 31.6),
        Operation::SwapOut => (2.1, 11.8),
        Operation::SwapIn => (2.0, 14.8),
        Operation::Live => return None,
    })
}

/// The files of a checkpoint, from the smallest to the largest, in MB.
pub const CHECKPOINT_MB: (f64, f64) = (8.4, 1300.0);

/// What Snapify costs where it is not used, in percent: on average, and at worst.
pub const OVERHEAD_PERCENT: (f64, f64) = (1.5, 5.0);
