//! Pipelines: run functions in order, one at a time (paper figure 4).

use std::{sync::Arc, time::Duration};

use snaprig_offload_wire::coi::{BUFFERS_MAX, BufferUse, Command, MISC_DATA_MAX, RunFunction};

use crate::{
    Buffer, CoiError, Function, Process,
    machine::{Input, Region, Ticket, Value},
    ops::{self, Access, Foreign, Order},
    process::next_id,
};

/// A pipeline of a process.
pub struct Pipeline {
    number: u32,
    /// What no other pipeline of any process has.
    id: u64,
    process: Process,
}

/// The completion of a run function that [`Pipeline::run`] has queued.
#[derive(Clone)]
pub struct Event(Arc<EventInner>);

struct EventInner {
    process: Process,
    /// The pipeline.
    number: u32,
    ticket: Ticket,
}

impl Drop for EventInner {
    fn drop(&mut self) {
        self.process.0.forget(self.ticket);
    }
}

impl Pipeline {
    pub(crate) fn new(number: u32, process: Process) -> Self {
        let id = next_id();
        Self {
            number,
            id,
            process,
        }
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Queues a run function that depends on nothing but what is queued before it: buffers,
    /// miscellaneous data, and the bytes of its return value.
    pub fn run(
        &self,
        function: Function,
        buffers: &[&Buffer],
        misc: &[u8],
        return_len: u16,
    ) -> Result<Event, CoiError> {
        check(buffers.len(), misc.len())?;
        let used = |buffer: &&Buffer| BufferUse {
            id: buffer.shared().id(),
            address: buffer.shared().body().sink_address(),
            bytes: buffer.shared().len(),
            offset: 0,
            len: buffer.shared().len(),
            add_ref: false,
        };
        let request = RunFunction {
            function: function.0,
            buffers: buffers.iter().map(used).collect(),
            misc: misc.to_vec(),
            return_len,
            tell_start: self.process.0.is_observed(),
        };
        let ticket = self.process.0.ticket();
        let event = Event(Arc::new(EventInner {
            process: self.process.clone(),
            number: self.number,
            ticket,
        }));
        let process = &self.process.0;
        process.handle(Input::Run(ticket, self.number, request));
        Ok(event)
    }

    /// Queues a run function (COIPipelineRunFunction) that waits for what it depends on, and has the
    /// buffers that it is given be where it runs. Its return value goes to `returned`.
    pub fn submit(
        &self,
        function: Function,
        buffers: &[(&ops::Buffer, Access)],
        misc: &[u8],
        returned: Foreign,
        order: Order<'_>,
    ) -> Result<ops::Event, CoiError> {
        check(buffers.len(), misc.len())?;
        let uses = buffers
            .iter()
            .map(|(buffer, access)| buffer.used_by(&self.process, *access))
            .collect::<Result<Vec<_>, _>>()?;
        let return_len = u16::try_from(returned.len())
            .map_err(|_| CoiError::OutOfRange("a return value has at most 65535 bytes".into()))?;
        let used = uses
            .iter()
            .zip(buffers)
            .map(|(one, (buffer, _))| BufferUse {
                id: one.buffer,
                address: buffer.body().sink_address(),
                bytes: buffer.body().len(),
                offset: one.range.start,
                len: one.range.end - one.range.start,
                add_ref: one.add_ref,
            });
        let request = RunFunction {
            function: function.0,
            buffers: used.collect(),
            misc: misc.to_vec(),
            return_len,
            tell_start: self.process.0.is_observed(),
        };
        let (process, number) = (&self.process, self.number);
        ops::submit_run(process, number, self.id, request, uses, returned, order)
    }

    /// Takes it away, once all that was queued is done (COIPipelineDestroy).
    pub fn destroy(&self) -> Result<(), CoiError> {
        ops::drain_pipeline(self.id);
        let process = &self.process.0;
        let _pass = process.enter(Region::Lifecycle)?;
        process.give_up_pipeline(self.number, || {
            let number = self.number;
            process
                .command(Command::DestroyPipeline { number })
                .map(|_| ())
        })
    }
}

fn check(buffers: usize, misc: usize) -> Result<(), CoiError> {
    match buffers > BUFFERS_MAX || misc > MISC_DATA_MAX {
        true => Err(CoiError::OutOfRange(format!(
            "a run function takes {BUFFERS_MAX} buffers and {MISC_DATA_MAX} bytes of data"
        ))),
        false => Ok(()),
    }
}

impl Event {
    /// Waits for the function's return value.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Vec<u8>, CoiError> {
        let EventInner {
            process,
            number,
            ticket,
        } = &*self.0;
        let receive = |done: &dyn Fn() -> bool| process.0.receive_results(*number, done);
        match process.0.wait_for(*ticket, timeout, receive) {
            Some(Ok(Value::Returned { value, .. })) => Ok(value),
            Some(Ok(_)) => Err(process.0.protocol("a run function")),
            Some(Err(error)) => Err(error),
            None => Err(CoiError::TimedOut),
        }
    }
}
