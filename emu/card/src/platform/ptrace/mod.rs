//! The `ptrace` platform.
use std::sync::Arc;

use super::{Cpu, Platform, PlatformError, Space};
use crate::memory::CardMemory;

/// The platform.
pub struct PtracePlatform;

impl PtracePlatform {
    /// A platform over `memory`.
    pub fn new(_memory: &Arc<CardMemory>) -> Result<Self, PlatformError> {
        Err(PlatformError::Exhausted("not yet".into()))
    }
}

impl Platform for PtracePlatform {
    fn name(&self) -> &'static str {
        "ptrace"
    }

    fn new_space(&self, _root: u64) -> Result<Arc<dyn Space>, PlatformError> {
        Err(PlatformError::Exhausted("not yet".into()))
    }

    fn new_cpu(&self, _space: Arc<dyn Space>) -> Result<Box<dyn Cpu>, PlatformError> {
        Err(PlatformError::Exhausted("not yet".into()))
    }

    fn xstate_bytes(&self) -> usize {
        0
    }
}
