//! Sizes of pages, and where the addresses of programs end: what everything on a card counts in.

/// Bytes of a page, and of a frame of card memory.
pub const PAGE: u64 = 4096;
/// Bytes of a huge page: as many pages as one page table has entries.
pub const HUGE_PAGE: u64 = 512 * PAGE;
/// First address that programs may not use. Above it lie the platform's own pages.
pub const USER_END: u64 = 0x7f80_0000_0000;
