//! The target `vfio_user`, for libFuzzer.
#![no_main]
static CARD: std::sync::LazyLock<snaprig_fuzz::Card> = std::sync::LazyLock::new(snaprig_fuzz::card);
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snaprig_fuzz::vfio_user(&CARD.socket(), bytes));
