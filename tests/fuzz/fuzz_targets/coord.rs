//! The target `coord`, for libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snaprig_fuzz::coord::coord(bytes));
