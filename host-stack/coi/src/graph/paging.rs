//! Which buffers may lose their memory in a process, and which have.

use super::{BufferId, Graph, OpId, ProcessId};

impl Graph {
    /// The last operation on a buffer, if nobody uses it now: neither operations, nor processes that hold
    /// references, nor the host.
    pub fn idle_since(&self, buffer: BufferId) -> Option<OpId> {
        let buffer = self.buffers.get(&buffer)?;
        let unused = buffer.started.is_empty() && buffer.maps.is_empty();
        let held = buffer.references.values().any(|count| *count > 0);
        (unused && !held).then_some(buffer.last)
    }

    /// Whether a process has memory for a buffer.
    pub fn is_absent(&self, buffer: BufferId, process: ProcessId) -> bool {
        let buffer = self.buffers.get(&buffer);
        buffer.is_none_or(|buffer| buffer.absent.contains(&process))
    }

    /// [`super::Step::Enter`] is done.
    pub fn entered(&mut self, buffer: BufferId, process: ProcessId) {
        if let Some(buffer) = self.buffers.get_mut(&buffer) {
            buffer.absent.remove(&process);
        }
    }
}
