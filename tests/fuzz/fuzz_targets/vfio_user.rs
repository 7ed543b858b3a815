//! The target `vfio_user`, for libFuzzer.
#![no_main]
static CARD: std::sync::LazyLock<std::path::PathBuf> =
    std::sync::LazyLock::new(|| snaprig_fuzz::card().2);
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snaprig_fuzz::vfio_user(&CARD, bytes));
