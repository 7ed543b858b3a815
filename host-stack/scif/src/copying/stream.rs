//! Copies that leave the caches to others: what is moved between programs is too long for them anyway.

use std::arch::asm;

/// From here on both sides do not fit the second cache, and it is faster: what is written need not be read first.
const STREAMED_BYTES: usize = 2 << 20;
/// A cache line.
const LINE: usize = 64;

/// Copies `len` bytes, which may overlap only if there are few of them.
///
/// # Safety
/// `from` has `len` readable bytes and `to` as many writable ones, which stay mapped during the
/// call.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let overlap = from.addr().abs_diff(to.addr()) < len;
    if len < STREAMED_BYTES || overlap {
        // SAFETY: the caller says that so many bytes are mapped at both, and this copy allows them
        // to overlap.
        return unsafe { std::ptr::copy(from, to, len) };
    }
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the caller says that so many bytes are mapped at both, and they do not overlap here.
    // The head, the lines and the tail add up to `len`. The loop goes over `lines` lines, of which
    // there is at least one, for `len` is no less than `STREAMED_BYTES`; its streaming stores need
    // aligned addresses, which `to` has from `head` on. It changes no registers but those that are
    // named, and uses no stack.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        asm!(
            "2:",
            // Not prefetchnta: where that fetches into the first cache alone (Intel's), it halves the speed.
            "prefetcht0 [{from} + 1024]",
            "movdqu xmm0, [{from}]",
            "movdqu xmm1, [{from} + 16]",
            "movdqu xmm2, [{from} + 32]",
            "movdqu xmm3, [{from} + 48]",
            "movntdq [{to}], xmm0",
            "movntdq [{to} + 16], xmm1",
            "movntdq [{to} + 32], xmm2",
            "movntdq [{to} + 48], xmm3",
            "add {from}, 64",
            "add {to}, 64",
            "sub {lines}, 1",
            "jnz 2b",
            // Streaming stores are in no order with others before this.
            "sfence",
            from = inout(reg) from.add(head) => _,
            to = inout(reg) to.add(head) => _,
            lines = inout(reg) lines => _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
            options(nostack),
        );
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let from: Vec<u8> = (0..STREAMED_BYTES + 4096).map(|i| (i / 3) as u8).collect();
        for (skip, len) in [
            (0, STREAMED_BYTES),
            (3, STREAMED_BYTES + 1),
            (63, STREAMED_BYTES + 77),
            (1, 10),
        ] {
            let mut to = vec![7; from.len()];
            // SAFETY: `from` has `len` bytes behind its fifth and `to` has as many behind `skip`;
            // both are vectors of this test, which stay during the call.
            unsafe { copy(from.as_ptr().add(5), to.as_mut_ptr().add(skip), len) };
            assert_eq!(to[skip..skip + len], from[5..5 + len]);
            assert!(
                to[..skip]
                    .iter()
                    .chain(&to[skip + len..])
                    .all(|byte| *byte == 7)
            );
        }
    }
}
