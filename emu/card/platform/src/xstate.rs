//! Extended processor state (x87, SSE, AVX, AVX-512, protection keys) in XSAVE's standard format,
//! without AMX: its size on this host, and what makes an image of it acceptable.

use std::{arch::x86_64::__cpuid_count, sync::OnceLock};

use crate::error::PlatformError;

/// x87, SSE, AVX, and AVX-512's three; protection keys.
const FEATURES: u64 = 0xe7 | 1 << 9;
/// Legacy region and header.
const HEADER_END: usize = 576;
const XSTATE_BV: usize = 512;

/// Bytes of the state: up to the end of the last feature that this processor has.
pub fn bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let present = __cpuid_count(0xd, 0);
        let present = u64::from(present.eax) | u64::from(present.edx) << 32;
        (2..64)
            .filter(|feature| present & FEATURES & 1 << feature != 0)
            .map(|feature| {
                let area = __cpuid_count(0xd, feature);
                (area.eax + area.ebx) as usize
            })
            .max()
            .unwrap_or(HEADER_END)
            .max(HEADER_END)
    })
}

/// The state in which `execve` starts a program: x87 control word and MXCSR as the ABI says,
/// everything else initial.
pub fn initial() -> Vec<u8> {
    let mut state = vec![0; bytes()];
    state[..2].copy_from_slice(&0x037f_u16.to_le_bytes());
    state[24..28].copy_from_slice(&0x1f80_u32.to_le_bytes());
    state[XSTATE_BV] = 0b11;
    state
}

/// Takes features that are not in the state out of its header: those of larger hosts' areas.
pub fn mask_features(state: &mut [u8]) {
    let present = u64::from_le_bytes(state[XSTATE_BV..XSTATE_BV + 8].try_into().expect("8 bytes"));
    state[XSTATE_BV..XSTATE_BV + 8].copy_from_slice(&(present & FEATURES).to_le_bytes());
}

/// Refuses what the processor would fault on: another size, features that it does not have,
/// reserved bits of MXCSR or of the header.
pub fn check(state: &[u8]) -> Result<(), PlatformError> {
    let word = |at: usize| u64::from_le_bytes(state[at..at + 8].try_into().expect("8 bytes"));
    let sound = state.len() == bytes()
        && word(XSTATE_BV) & !FEATURES == 0
        && state[XSTATE_BV + 8..HEADER_END]
            .iter()
            .all(|byte| *byte == 0)
        && word(24) as u32 & 0xffff_0000 == 0;
    if sound {
        Ok(())
    } else {
        Err(PlatformError::Guest(
            "extended state that this processor would refuse".into(),
        ))
    }
}
