//! The target `verbs_tcp`, for libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snaprig_fuzz::verbs_tcp(bytes));
