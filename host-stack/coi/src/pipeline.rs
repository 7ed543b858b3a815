//! Pipelines: run functions in order, one at a time (paper figure 4).

use std::{sync::Arc, time::Duration};

use snaprig_wire::coi::{BUFFERS_MAX, MISC_DATA_MAX, RunFunction};

use crate::{
    Buffer, CoiError, Function, Process,
    machine::{Input, Ticket, Value},
};

/// A pipeline of a process.
pub struct Pipeline {
    pub(crate) number: u32,
    pub(crate) process: Process,
}

/// The completion of a run function.
#[derive(Clone)]
pub struct Event(Arc<EventInner>);

struct EventInner {
    process: Process,
    ticket: Ticket,
}

impl Drop for EventInner {
    fn drop(&mut self) {
        self.process.0.forget(self.ticket);
    }
}

impl Pipeline {
    /// Queues a run function (COIPipelineRunFunction): buffers, miscellaneous data, and the bytes
    /// of its return value.
    pub fn run(
        &self,
        function: Function,
        buffers: &[&Buffer],
        misc: &[u8],
        return_len: u16,
    ) -> Result<Event, CoiError> {
        if buffers.len() > BUFFERS_MAX || misc.len() > MISC_DATA_MAX {
            return Err(CoiError::OutOfRange(format!(
                "a run function takes {BUFFERS_MAX} buffers and {MISC_DATA_MAX} bytes of data"
            )));
        }
        let request = RunFunction {
            function: function.0,
            buffers: buffers.iter().map(|buffer| buffer.id()).collect(),
            misc: misc.to_vec(),
            return_len,
        };
        let ticket = self.process.0.ticket();
        let process = self.process.clone();
        let event = Event(Arc::new(EventInner { process, ticket }));
        let process = &self.process.0;
        process.handle(Input::Run(ticket, self.number, request));
        Ok(event)
    }
}

impl Event {
    /// Waits for the function's return value.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Vec<u8>, CoiError> {
        let EventInner { process, ticket } = &*self.0;
        match process.0.wait_for(*ticket, timeout) {
            Some(Ok(Value::Returned(value))) => Ok(value),
            Some(Ok(_)) => Err(process.0.protocol("a run function")),
            Some(Err(error)) => Err(error),
            None => Err(CoiError::TimedOut),
        }
    }
}
