//! The page of code that every traced process has, above the addresses that programs may use: where the
//! tracer runs system calls of its own.
//!
//! ```text
//! CALL    syscall; int3
//! PARK    pause; jmp PARK                              where a new task waits to be seized
//! SPAWN   syscall; test %eax, %eax; jz PARK; int3      clone(2): the new task parks
//! NAME    zeros; for the length of one openat(2), the name of a peer's memory
//! ```
//!
//! A guest finds the page, and may execute it, as it may any `syscall` of its own: what makes a call of
//! the host's out of it is how the tracer lets the task run (see `task`).

use snaprig_card_memory::USER_END;

/// Address of the page.
pub const STUB: u64 = USER_END + (1 << 30);
/// Offset of the parking loop.
const PARK: usize = 0x10;
const SPAWN_AT: usize = 0x20;
const NAME_AT: usize = 0x800;
/// Where the tracer puts a name, and room for it.
pub const NAME: u64 = STUB + NAME_AT as u64;
pub const NAME_BYTES: usize = 64;

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

/// The page; what is not said above is `int3`.
pub fn code() -> Vec<u8> {
    let mut page = vec![0xcc; 4096];
    for (at, code) in [
        (0, &CALL_CODE[..]),
        (PARK, &PARK_CODE),
        (SPAWN_AT, &SPAWN_CODE),
    ] {
        page[at..at + code.len()].copy_from_slice(code);
    }
    page[NAME_AT..NAME_AT + NAME_BYTES].fill(0);
    page
}
