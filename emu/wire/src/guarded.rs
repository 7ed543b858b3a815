//! Code by which a program of a card copies where it may not: the card's kernel knows it when it sees it.

/// `rep movsb`, and a `nop` that says that it may end early: then what is left to copy is in `rcx`.
pub const COPY: [u8; 9] = [0xf3, 0xa4, 0x0f, 0x1f, 0x80, b'S', b'N', b'A', b'P'];
/// The copy itself.
pub const COPY_BYTES: u64 = 2;
