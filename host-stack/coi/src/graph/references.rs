//! References that processes hold to buffers, and those that the host has taken in their name.

use super::{BufferId, Graph, ProcessId};

impl Graph {
    /// References that a process holds to a buffer.
    pub fn references(&self, process: ProcessId, buffer: BufferId) -> i64 {
        let buffer = self.buffers.get(&buffer);
        let count = buffer.and_then(|buffer| buffer.references.get(&process));
        count.copied().unwrap_or(0)
    }

    pub(super) fn add_references(&mut self, process: ProcessId, buffer: BufferId, count: i64) {
        let Some(buffer) = self.buffers.get_mut(&buffer) else {
            return;
        };
        let held = buffer.references.entry(process).or_default();
        *held = held.saturating_add(count);
        if count < 0 {
            self.room.more();
        }
        if *held == 0 {
            buffer.references.remove(&process);
        }
    }

    /// References that do not outlive the buffer.
    pub(super) fn count_references(&mut self, process: ProcessId, buffer: BufferId, count: i64) {
        self.add_references(process, buffer, count);
        if let Some(buffer) = self.buffers.get_mut(&buffer) {
            let counted = buffer.counted.entry(process).or_default();
            *counted = counted.saturating_add(count).max(0);
        }
    }
}
