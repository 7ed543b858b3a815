//! The target `ppmr`, for libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snaprig_fuzz::ppmr::ppmr(bytes));
