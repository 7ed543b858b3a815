//! Which parts of a BAR can be mapped.

use std::{iter, ops::Range};

use vfio_bindings::bindings::vfio::VFIO_REGION_INFO_FLAG_MMAP;
use vfio_ioctls::VfioRegionInfoCap;

const PAGE: u64 = 4096;
/// PCI Local Bus 3.0, 6.7 and 6.8.2: the list of capabilities, and MSI-X among them.
const STATUS: usize = 6;
const STATUS_CAPABILITIES: u8 = 1 << 4;
const CAPABILITIES: usize = 0x34;
const FIRST_CAPABILITY: u8 = 0x40;
const CAPABILITIES_MAX: usize = 48;
const MSIX: u8 = 0x11;
const MSIX_CONTROL: usize = 2;
const MSIX_CONTROL_SIZE: u16 = 0x7ff;
const MSIX_TABLE: usize = 4;
const MSIX_TABLE_BAR: u32 = 0b111;
const MSIX_ENTRY_BYTES: u64 = 16;

/// Where the MSI-X table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MsixTable {
    pub(super) bar: u32,
    bytes: Range<u64>,
}

/// Finds the MSI-X table in configuration space.
pub(super) fn msix_table(config: &[u8; 256]) -> Option<MsixTable> {
    if config[STATUS] & STATUS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = config[CAPABILITIES] & !3;
    // A device may lie: its list may have no end.
    for _ in 0..CAPABILITIES_MAX {
        if at < FIRST_CAPABILITY {
            return None;
        }
        let capability = &config[at.into()..];
        if capability[0] == MSIX && capability.len() >= MSIX_TABLE + 4 {
            let control =
                u16::from_le_bytes([capability[MSIX_CONTROL], capability[MSIX_CONTROL + 1]]);
            let table = capability[MSIX_TABLE..MSIX_TABLE + 4].try_into();
            let table = u32::from_le_bytes(table.expect("four bytes"));
            let start = u64::from(table & !MSIX_TABLE_BAR);
            let entries = u64::from(control & MSIX_CONTROL_SIZE) + 1;
            return Some(MsixTable {
                bar: table & MSIX_TABLE_BAR,
                bytes: start..start + entries * MSIX_ENTRY_BYTES,
            });
        }
        at = capability[1] & !3;
    }
    None
}

/// The areas of a BAR that can be mapped: what the kernel says, without the pages of the MSI-X
/// table, which some kernels would map.
pub(super) fn mappable(
    size: u64,
    flags: u32,
    capabilities: &[VfioRegionInfoCap],
    table: Option<MsixTable>,
) -> Vec<Range<u64>> {
    if flags & VFIO_REGION_INFO_FLAG_MMAP == 0 {
        return Vec::new();
    }
    let sparse = capabilities.iter().find_map(|capability| match capability {
        VfioRegionInfoCap::SparseMmap(sparse) => Some(&sparse.areas),
        _ => None,
    });
    let areas: Vec<_> = match sparse {
        Some(areas) => areas
            .iter()
            .map(|a| a.offset..a.offset.saturating_add(a.size))
            .collect(),
        None => iter::once(0..size).collect(),
    };
    let hole = table.map_or(0..0, |table| {
        table.bytes.start / PAGE * PAGE..table.bytes.end.next_multiple_of(PAGE)
    });
    let around = |area: Range<u64>| {
        let before = area.start..area.end.min(hole.start);
        let after = area.start.max(hole.end)..area.end;
        [before, after].into_iter().filter(|part| !part.is_empty())
    };
    areas.into_iter().flat_map(around).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vfio_ioctls::{VfioRegionInfoCapSparseMmap, VfioRegionSparseMmapArea};

    /// A table of 64 entries at 0x1800 of BAR 2, after a capability of another kind.
    fn config() -> [u8; 256] {
        let mut config = [0; 256];
        config[STATUS] = STATUS_CAPABILITIES;
        config[CAPABILITIES] = 0x50;
        config[0x50..0x52].copy_from_slice(&[1, 0x70]);
        config[0x70..0x78].copy_from_slice(&[MSIX, 0, 63, 0, 2, 0x18, 0, 0]);
        config
    }

    #[test]
    fn the_table_is_found_and_left_out() {
        let table = msix_table(&config()).unwrap();
        assert_eq!((table.bar, table.bytes.clone()), (2, 0x1800..0x1c00));
        let whole = |table| mappable(0x4000, VFIO_REGION_INFO_FLAG_MMAP, &[], table);
        assert!(whole(None).into_iter().eq(iter::once(0..0x4000)));
        assert_eq!(whole(Some(table.clone())), [0..0x1000, 0x2000..0x4000]);
        assert!(mappable(0x4000, 0, &[], None).is_empty());

        let area = |offset, size| VfioRegionSparseMmapArea { offset, size };
        let areas = vec![area(0, 0x1000), area(0x1000, 0x1000), area(0x3000, 0x1000)];
        let sparse = VfioRegionInfoCap::SparseMmap(VfioRegionInfoCapSparseMmap { areas });
        let sparse = [VfioRegionInfoCap::MsixMappable, sparse];
        let mapped = mappable(0x4000, VFIO_REGION_INFO_FLAG_MMAP, &sparse, Some(table));
        assert_eq!(mapped, [0..0x1000, 0x3000..0x4000]);
    }

    #[test]
    fn a_list_without_end_has_no_table() {
        let mut config = config();
        config[0x70..0x72].copy_from_slice(&[5, 0x50]);
        assert_eq!(msix_table(&config), None);
        config[STATUS] = 0;
        assert_eq!(msix_table(&config), None);
    }

    proptest! {
        #[test]
        fn any_configuration_space_is_read(bytes in prop::collection::vec(any::<u8>(), 256)) {
            let mut config: [u8; 256] = bytes.try_into().unwrap();
            config[STATUS] |= STATUS_CAPABILITIES;
            let _ = msix_table(&config);
        }
    }
}
