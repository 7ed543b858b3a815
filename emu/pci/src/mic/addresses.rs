//! DMA addresses: where memory of the host is mapped for the card.

use std::{collections::BTreeMap, ops::RangeInclusive};

use snaprig_wire::dma::HOST_BASE;

/// The lowest free range of `len` bytes, beside windows (address and length) that are in use, in one
/// of the ranges that the device can reach.
pub(super) fn free_range(
    windows: &BTreeMap<u64, u64>,
    ranges: &[RangeInclusive<u64>],
    len: u64,
) -> Option<u64> {
    ranges.iter().find_map(|range| {
        let end = HOST_BASE.min(range.end().saturating_add(1));
        let mut at = *range.start();
        // No window is in two ranges.
        for (start, used) in windows.range(at..) {
            if *start >= end || start - at >= len {
                break;
            }
            at = start + used;
        }
        let fits = at.checked_add(len).is_some_and(|next| next <= end);
        fits.then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_gap_is_found_inside_a_range() {
        let mut windows = BTreeMap::from([(0, 2), (2, 3), (8, 1), (20, 5)]);
        let ranges = [0..=9, 20..=39];
        let find = |len| free_range(&windows, &ranges, len);
        assert_eq!(find(1), Some(5));
        assert_eq!(find(3), Some(5));
        assert_eq!(find(4), Some(25));
        assert_eq!(find(15), Some(25));
        assert_eq!(find(16), None);
        assert_eq!(find(u64::MAX), None);
        windows.insert(5, 3);
        let find = |len| free_range(&windows, &ranges, len);
        assert_eq!(find(1), Some(9));
        assert_eq!(find(2), Some(25));
    }

    #[test]
    fn no_address_is_beyond_the_cards() {
        let windows = BTreeMap::from([(0, HOST_BASE - 4)]);
        let all = [0..=u64::MAX];
        assert_eq!(free_range(&windows, &all, 4), Some(HOST_BASE - 4));
        assert_eq!(free_range(&windows, &all, 5), None);
        assert_eq!(free_range(&windows, &[HOST_BASE..=u64::MAX], 1), None);
        assert_eq!(free_range(&windows, &[], 1), None);
    }
}
