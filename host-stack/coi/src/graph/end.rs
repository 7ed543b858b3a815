//! The end of an operation, and what it means to those that depend on it.

use std::collections::VecDeque;

use super::{Graph, OpId, Output, PipelineId, Work};
use crate::CoiError;

/// Failed operations whose errors are remembered: events are values that nobody gives back.
const FAILURES_MAX: usize = 65_536;

impl Graph {
    /// The operation is done, or has failed: so do those that depend on it.
    pub(super) fn complete(&mut self, id: OpId, result: Result<(), CoiError>) {
        let mut ends = VecDeque::from([(id, result)]);
        while let Some((id, result)) = ends.pop_front() {
            let Some(op) = self.ops.remove(&id) else {
                continue;
            };
            self.ready.remove(&id);
            self.leaves(id, &op.work, op.phase);
            for claim in &op.claims {
                if let Some(buffer) = self.buffers.get_mut(&claim.buffer) {
                    buffer.waiting.remove(&id);
                    buffer.started.remove(&id);
                }
            }
            match &op.work {
                Work::Run { pipeline, .. } | Work::Barrier { pipeline } => {
                    self.leave_pipeline(*pipeline, id);
                }
                Work::Map { buffer, .. } if result.is_err() => {
                    self.maps.remove(&id);
                    let buffer = self.buffers.get_mut(buffer);
                    buffer.map(|buffer| buffer.maps.remove(&id));
                }
                Work::Unmap { map } => {
                    self.maps.remove(map);
                }
                // Nothing may use it from this moment on: its place may be another one's.
                Work::Destroy { buffer } if result.is_ok() => {
                    self.buffers.remove(buffer);
                }
                _ => {}
            }
            let failure = match &result {
                Ok(()) | Err(CoiError::Canceled) => None,
                Err(error) => Some(error.clone()),
            };
            for dependent in op.dependents {
                match (&failure, self.ops.get_mut(&dependent)) {
                    (Some(error), Some(_)) => ends.push_back((dependent, Err(error.clone()))),
                    (None, Some(op)) => {
                        op.pending = op.pending.saturating_sub(1);
                        self.make_ready(dependent);
                    }
                    _ => {}
                }
            }
            if let Err(error) = &result {
                self.failures.insert(id, error.clone());
                if self.failures.len() > FAILURES_MAX {
                    self.failures.pop_first();
                }
            }
            self.outputs.push_back(Output::Completed(id, result));
        }
    }

    fn leave_pipeline(&mut self, pipeline: PipelineId, id: OpId) {
        let Some(queue) = self.pipelines.get_mut(&pipeline) else {
            return;
        };
        match queue.front() == Some(&id) {
            true => drop(queue.pop_front()),
            false => queue.retain(|other| *other != id),
        }
        match queue.front().copied() {
            Some(next) => self.make_ready(next),
            None => drop(self.pipelines.remove(&pipeline)),
        }
    }
}
