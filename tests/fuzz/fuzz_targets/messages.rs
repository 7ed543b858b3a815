//! The target `messages`, for libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snaprig_fuzz::messages(bytes));
