//! The target `verbs_cm`, for libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snaprig_fuzz::verbs_cm::verbs_cm(bytes));
