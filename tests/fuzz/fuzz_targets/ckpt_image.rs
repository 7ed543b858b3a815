//! The target `ckpt_image`, for libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snaprig_fuzz::ckpt_image::ckpt_image(bytes));
