//! What migrates: a program that counts, and computes something that depends on every step.

use serde::{Deserialize, Serialize};

/// A program, as an image has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Steps that it has done.
    pub done: u64,
    /// What it has computed.
    pub value: u64,
}

impl Program {
    /// Does one step.
    pub fn step(&mut self) {
        self.done += 1;
        let mixed = (self.value ^ self.done).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.value = mixed ^ mixed >> 29;
    }

    /// What it comes to after so many steps.
    pub fn result(steps: u64) -> u64 {
        let mut program = Self::default();
        (0..steps).for_each(|_| program.step());
        program.value
    }
}

/// A program at one of the sides.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    /// It.
    pub program: Program,
    /// Whether it runs, or stands still.
    pub is_running: bool,
}
