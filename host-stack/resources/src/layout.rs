//! Holes in address spaces.

use std::ops::Range;

/// Where processes may map something, whatever the machine says (vm.mmap_min_addr).
const LOWEST: u64 = 1 << 20;
/// End of the addresses of processes, less a page.
const HIGHEST: u64 = 0x7fff_ffff_e000;
/// Kept free on both sides of a hole: for stacks that grow.
const MARGIN: u64 = 1 << 20;

/// The lowest address of so many bytes that are in none of the ranges, nor next to one.
pub fn hole(ranges: impl IntoIterator<Item = Range<u64>>, bytes: u64) -> Option<u64> {
    let mut ranges: Vec<_> = ranges.into_iter().collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut free = LOWEST;
    for range in ranges {
        if range.start >= free.checked_add(bytes + 2 * MARGIN)? {
            break;
        }
        free = free.max(range.end);
    }
    let start = free + MARGIN;
    (start + bytes + MARGIN <= HIGHEST).then_some(start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_hole_is_in_no_range(parts: Vec<(u32, u16)>, bytes in 1..1u64 << 30) {
            let ranges: Vec<_> = parts
                .iter()
                .map(|(at, len)| u64::from(*at) << 14..(u64::from(*at) << 14) + u64::from(*len) * 4096)
                .collect();
            let start = hole(ranges.clone(), bytes).unwrap();
            for range in ranges {
                prop_assert!(range.is_empty() || start + bytes <= range.start || range.end <= start);
            }
        }
    }
}
