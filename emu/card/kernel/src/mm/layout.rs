//! Where what every program has is in its address space.

use snaprig_card_memory::USER_END;

/// The end of the first stack.
pub const STACK_TOP: u64 = USER_END - (256 << 20);
/// Where the vDSO goes: above the stack.
pub const VDSO_BASE: u64 = STACK_TOP + (64 << 20);
