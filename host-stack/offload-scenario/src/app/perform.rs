//! What the graph says is done: bytes are moved by RMA, inside the region of case 2 of the process
//! that it is with, one step after the other; run functions go to the machine of their process.
//! What comes of it is told to the graph.

use std::collections::BTreeSet;

use snaprig_coi::{
    CoiError, faults,
    graph::{BufferId, Input, Mode, OpId, Output},
    machine::{self as coi, Value},
};
use snaprig_offload_wire::coi::{BufferUse, Notice, RunFunction};
use snaprig_wire::frame;

use snaprig_scenario::{
    scenario::invariant,
    stage::{Effect, System as _},
};

use super::movement::cells;
use crate::{
    canary::Canary,
    invariants,
    state::{
        HostId,
        app::{AppId, BUFFER_BYTES, Coming, Payload, Told, Waiter, process_id},
        decode,
        sink::{Returned, Task},
    },
    world::World,
};

impl World {
    /// Tells the graph what happened, and does what it says.
    pub(super) fn graph(&mut self, app: AppId, input: Input) {
        self.apps[app].graph.handle(input);
        self.perform_all(app);
    }

    /// Does what the graph says.
    pub(super) fn perform_all(&mut self, app: AppId) {
        while let Some(output) = self.apps[app].graph.poll_output() {
            match output {
                Output::Move(op, steps) => self.begin_movement(app, op, steps),
                Output::Run(op) => {
                    if !self.apps[app].history.has_started(op) {
                        self.may_start(app, op);
                    }
                    self.apps[app].history.runs(op);
                    self.send_run(app, op);
                    if self.canary == Some(Canary::DoubledRun) {
                        self.send_run(app, op);
                    }
                }
                Output::Completed(op, result) => self.completed(app, op, &result),
            }
        }
        for (invariant, how) in std::mem::take(&mut self.apps[app].history.broken) {
            self.violation(invariant, how);
        }
    }

    /// An ordered operation does not start while a process holds references to its buffers.
    pub(super) fn may_start(&mut self, app: AppId, op: OpId) {
        let one = &self.apps[app];
        let buffers: Vec<BufferId> = match one.payloads.get(&op) {
            Some(Payload::Run { uses, .. }) => uses.iter().map(|one| one.0).collect(),
            Some(Payload::Map { buffer, .. } | Payload::SetState(buffer)) => vec![*buffer],
            _ => return,
        };
        for host in one.hosts() {
            // Nobody is left who could give them back.
            if self.hosts[host].end_known().is_some() {
                continue;
            }
            let (node, pid) = self.hosts[host].whereabouts();
            let held = self.held(node, pid);
            let early = held.into_iter().find(|(of, buffer)| {
                buffers.contains(buffer) && self.apps[app].history.is_done(*of)
            });
            if let Some((of, buffer)) = early {
                let how =
                    format!("{op} starts while references of {of} to buffer {buffer} are held");
                self.violation(invariants::REFERENCES, how);
            }
        }
    }

    pub(super) fn sees(&mut self, app: AppId, op: OpId, buffer: BufferId, cell: u64, value: u64) {
        if !self.damaged {
            self.apps[app].history.saw(op, buffer, cell, value);
        }
    }

    // Run functions.

    fn send_run(&mut self, app: AppId, op: OpId) {
        let Some(Payload::Run {
            pipeline,
            uses,
            adds,
            event,
        }) = self.apps[app].payloads.get(&op).cloned()
        else {
            return;
        };
        let Some(pipeline) = self.apps[app].pipelines.get(&pipeline).cloned() else {
            return;
        };
        let task = Task {
            op,
            modes: uses.iter().map(|(_, _, mode, _)| (*mode).into()).collect(),
            adds,
            event,
        };
        let buffers = uses.into_iter().map(|(id, range, _, add_ref)| BufferUse {
            id,
            // The simulated memory is the card's: nobody's address is of any use.
            address: 0,
            bytes: BUFFER_BYTES,
            offset: range.start,
            len: range.end - range.start,
            add_ref,
        });
        let function = RunFunction {
            function: 1,
            buffers: buffers.collect(),
            misc: frame::encode(&task),
            return_len: 8,
            tell_start: true,
        };
        let (host, number) = (pipeline.host, pipeline.number);
        let ticket = self.ticket(host);
        self.apps[app]
            .waiters
            .insert((host, ticket), Waiter::Run(op));
        self.coi(host, coi::Input::Run(ticket, number, function));
    }

    /// A run function has begun.
    pub(crate) fn begun(&mut self, host: HostId, ticket: u64) {
        let app = self.hosts[host].app;
        let Some(Waiter::Run(op)) = self.apps[app].waiters.get(&(host, ticket)) else {
            return;
        };
        let op = *op;
        if !self.apps[app].begun.insert(op) && self.canary != Some(Canary::DoubledRun) {
            let how = "a caller was told twice that its run function begins";
            self.violation(invariant::CONTRADICTION, how);
        }
    }

    fn returned_to(&mut self, app: AppId, host: HostId, op: OpId, result: Result<Value, CoiError>) {
        if let Err(error) = &result {
            self.apps[app].history.failed(op, error);
        }
        let result = match result {
            Ok(Value::Returned { value, mut added }) => {
                if !self.apps[app].begun.contains(&op) {
                    let how = "a run function returned to a caller who was not told that it begins";
                    self.violation(invariant::CONTRADICTION, how);
                }
                if let Some(returned) = decode::<Returned>(&value) {
                    let count = Some(returned.count);
                    self.apps[app].results.insert(op, count);
                    for (buffer, cell, value) in returned.seen {
                        self.sees(app, op, buffer, cell, value);
                    }
                }
                let one = &self.apps[app];
                if let Some(Payload::Run { pipeline, .. }) = one.payloads.get(&op) {
                    let number = one.pipelines.get(pipeline).map_or(0, |one| one.number);
                    self.ledger.of(host, number).received += 1;
                }
                // It may only hold what it was given.
                let buffers = &self.apps[app].buffers;
                let is_there = |id: &BufferId| {
                    let buffer = buffers.get(id);
                    buffer.is_some_and(|buffer| buffer.windows.contains_key(&host))
                };
                added.retain(|(id, _)| is_there(id));
                if self.canary == Some(Canary::LostReferences) {
                    added.clear();
                }
                Ok(added)
            }
            Ok(_) => Err(CoiError::Canceled),
            Err(_) if self.canary == Some(Canary::SwallowedError) => Ok(vec![]),
            Err(_) if self.canary == Some(Canary::LostReturn) => return,
            Err(error) => Err(error),
        };
        self.graph(app, Input::Returned(op, result));
    }

    /// A user event that nobody will signal any more.
    pub(super) fn unregister(&mut self, app: AppId, event: Option<OpId>) {
        if let Some(event) = event {
            self.apps[app].events.remove(&event);
            // It may have been signaled before.
            let _ = self.apps[app].graph.unregister(event);
            self.perform_all(app);
        }
    }

    // What comes of it.

    fn completed(&mut self, app: AppId, op: OpId, result: &Result<(), CoiError>) {
        let one = &mut self.apps[app];
        one.history.completed(op, result);
        one.movements.remove(&op);
        let well = result.is_ok();
        match one.payloads.get(&op).cloned() {
            Some(Payload::Run { event, .. }) if !well => self.unregister(app, event),
            Some(Payload::Map {
                buffer,
                range,
                mode,
            }) if well => {
                for (cell, at) in cells(&range) {
                    let address = self.on_the_host(app, buffer, at, false);
                    if mode != Mode::WriteEntire {
                        self.sees(app, op, buffer, cell, self.cell(address));
                    }
                    if mode != Mode::Read {
                        self.set_cell(address, op);
                    }
                }
                self.mapped(app, op);
            }
            Some(Payload::Map { .. } | Payload::Unmap) => self.go_on_after_call(app),
            Some(Payload::Barrier(id)) => {
                let host = self.apps[app].pipelines.get(&id).map(|one| one.host);
                self.come_or_go(app, Coming::EndOfPipeline(host.unwrap_or(0), id));
            }
            Some(Payload::Destroy(id)) => {
                let buffer = self.apps[app].buffers.get(&id);
                let first = buffer.and_then(|buffer| buffer.windows.keys().next().copied());
                match first {
                    Some(host) => self.come_or_go(app, Coming::EndOfBuffer(host, id)),
                    None => self.go_on_after_call(app),
                }
            }
            _ => {}
        }
    }

    /// A caller is told.
    pub(crate) fn app_told(
        &mut self,
        host: HostId,
        ticket: u64,
        result: Result<Value, CoiError>,
    ) -> Told {
        let app = self.hosts[host].app;
        let Some(waiter) = self.apps[app].waiters.remove(&(host, ticket)) else {
            return Told::Twice;
        };
        match (waiter, result) {
            (Waiter::Run(op), result) => self.returned_to(app, host, op, result),
            (Waiter::Enter(op), Ok(_)) => self.rma(app, op),
            (Waiter::Enter(op), Err(error)) => self.moved(app, op, Err(error)),
            (Waiter::Broken(op), result) => {
                self.leave(host);
                let error = result.err().unwrap_or(CoiError::TimedOut);
                self.moved(app, op, Err(error));
            }
            (Waiter::Coming(what, stage), result) => self.goes_on(app, what, stage, result),
        }
        Told::Once
    }

    /// An offload process tells something unasked.
    pub(crate) fn noticed(&mut self, host: HostId, notice: &Notice) {
        let app = self.hosts[host].app;
        if self.fault(self.app_processes[app], &faults::NOTICE) == Effect::Ended {
            return;
        }
        match notice {
            Notice::Released { id, count, .. } => {
                let input = Input::Released {
                    process: process_id(host),
                    buffer: *id,
                    count: *count as i64,
                };
                self.graph(app, input);
            }
            Notice::UserEvent(event) => {
                self.apps[app].events.remove(event);
                // It may have been unregistered before.
                let _ = self.apps[app].graph.signal(*event);
                self.perform_all(app);
            }
            _ => {}
        }
    }

    /// An offload process is gone for good.
    pub(crate) fn process_gone(&mut self, host: HostId, error: CoiError) {
        let app = self.hosts[host].app;
        if self.canary == Some(Canary::UnknownDeath) {
            return;
        }
        self.graph(app, Input::Gone(process_id(host), error));
        let events = self.apps[app].events.iter();
        let its: BTreeSet<_> = events
            .filter(|(_, of)| **of == host)
            .map(|(event, _)| *event)
            .collect();
        for event in its {
            self.unregister(app, Some(event));
        }
    }
}
