//! The page of code that every traced process has, above the addresses that programs may use: where the
//! tracer runs system calls of its own.
//!
//! ```text
//! CALL    syscall; int3
//! PARK    pause; jmp PARK                              where a new task waits to be seized
//! SPAWN   syscall; test %eax, %eax; jz PARK; int3      clone(2): the new task parks
//! ```
//!
//! A guest finds the page, and may execute it, as it may any `syscall` of its own: what makes a call of
//! the host's out of it is how the tracer lets the task run (see `task`).

use super::super::USER_END;

/// Address of the page.
pub const STUB: u64 = USER_END + (1 << 30);
/// Offset of the parking loop.
const PARK: usize = 0x10;
const SPAWN_AT: usize = 0x20;

/// Where a system call of the tracer's starts, and the address behind the `int3` at which it ends.
#[derive(Clone, Copy)]
pub struct Entry {
    pub start: u64,
    pub end: u64,
}

/// One call.
pub const CALL: Entry = Entry {
    start: STUB,
    end: STUB + CALL_CODE.len() as u64,
};
/// A clone(2).
pub const SPAWN: Entry = Entry {
    start: STUB + SPAWN_AT as u64,
    end: STUB + (SPAWN_AT + SPAWN_CODE.len()) as u64,
};

const CALL_CODE: [u8; 3] = [0x0f, 0x05, 0xcc];
const PARK_CODE: [u8; 4] = [0xf3, 0x90, 0xeb, 0xfc];
const SPAWN_CODE: [u8; 7] = {
    let to_park = PARK as i8 - (SPAWN_AT as i8 + 6);
    [0x0f, 0x05, 0x85, 0xc0, 0x74, to_park as u8, 0xcc]
};

/// The page's code; everything else is `int3`.
pub fn code() -> Vec<u8> {
    let mut page = vec![0xcc; 4096];
    for (at, code) in [
        (0, &CALL_CODE[..]),
        (PARK, &PARK_CODE),
        (SPAWN_AT, &SPAWN_CODE),
    ] {
        page[at..at + code.len()].copy_from_slice(code);
    }
    page
}
