//! The bytes of an operation are moved: one step after the other, by RMA inside the region of case 2 of
//! the process that it is with, through memory that may be the host's copy or not (`snaprig_coi::ops`).

use std::{collections::VecDeque, ops::Range};

use snaprig_coi::{
    CoiError, faults,
    graph::{BufferId, Input, OpId, Step},
    machine::{self as coi, Region},
};
use snaprig_offload_wire::{coi::Channel, snapify::Wrote};
use snaprig_scif::node::RequestId;
use snaprig_wire::scif::{HOST, PAGE};

use snaprig_scenario::{
    links::Network as _,
    stage::{Effect, System as _},
};

use crate::{
    canary::Canary,
    state::{
        HostId,
        app::{AppId, AppTask, Waiter},
        event::Event,
    },
    world::World,
};

/// The offload process that the graph means.
fn host_of(process: u64) -> HostId {
    process.saturating_sub(1) as HostId
}

/// Cells of a range of bytes, and where each begins.
pub fn cells(range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> + use<> {
    (range.start / PAGE..range.end / PAGE).map(|cell| (cell, cell * PAGE))
}

impl World {
    pub(super) fn begin_movement(&mut self, app: AppId, op: OpId, mut steps: Vec<Step>) {
        self.may_start(app, op);
        let one = &mut self.apps[app];
        one.history.started(op);
        if self.canary == Some(Canary::SkippedMove)
            && let Some(last) = steps.iter().rposition(|step| step.process().is_some())
        {
            steps.remove(last);
        }
        one.movements.insert(op, steps.into());
        let own = self.app_processes[app];
        let by_ns = match self.fault(own, &faults::TRANSFER) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let event = Event::App(app, AppTask::Step(op));
        self.net.stage.engine.after(own, by_ns, event);
    }

    /// Where the host process has a cell, or what passes through it on its way.
    pub(super) fn on_the_host(&self, app: AppId, buffer: BufferId, at: u64, staged: bool) -> u64 {
        let buffer = self.apps[app].buffers.get(&buffer);
        buffer.map_or(0, |buffer| match staged {
            true => buffer.stage + at,
            false => buffer.address + at,
        })
    }

    /// The next step of an operation.
    pub(super) fn step(&mut self, app: AppId, op: OpId) {
        loop {
            let steps = self.apps[app].movements.get(&op);
            let Some(step) = steps.and_then(|steps| steps.front().cloned()) else {
                return self.moved(app, op, Ok(()));
            };
            match step {
                // Memory of the model's cards is enough for all buffers.
                Step::Enter { .. } | Step::Leave { .. } => {}
                Step::ToProcess {
                    process,
                    buffer,
                    ref range,
                    staged,
                } => {
                    if !staged {
                        self.pass(app, buffer, range, false);
                    }
                    return self.enter(app, op, host_of(process));
                }
                Step::FromProcess { process, .. } => {
                    return self.enter(app, op, host_of(process));
                }
                Step::Put {
                    buffer,
                    range,
                    staged,
                } => {
                    for (_, at) in cells(&range) {
                        let address = self.on_the_host(app, buffer, at, staged);
                        self.set_cell(address, op);
                    }
                }
                Step::Take {
                    buffer,
                    range,
                    staged,
                } => {
                    for (cell, at) in cells(&range) {
                        let address = self.on_the_host(app, buffer, at, staged);
                        self.sees(app, op, buffer, cell, self.cell(address));
                    }
                }
                Step::Copy {
                    from,
                    from_at,
                    from_staged,
                    into,
                    into_at,
                    into_staged,
                    bytes,
                } => {
                    for (_, at) in cells(&(0..bytes)) {
                        let source = self.on_the_host(app, from, from_at + at, from_staged);
                        let target = self.on_the_host(app, into, into_at + at, into_staged);
                        self.set_cell(target, self.cell(source));
                    }
                }
            }
            self.step_is_done(app, op);
        }
    }

    fn step_is_done(&mut self, app: AppId, op: OpId) {
        let steps = self.apps[app].movements.get_mut(&op);
        steps.and_then(VecDeque::pop_front);
    }

    /// The host's copy to what bytes pass through, or back: the same, but for memory of the caller's.
    fn pass(&mut self, app: AppId, buffer: BufferId, range: &Range<u64>, back: bool) {
        for (_, at) in cells(range) {
            let copy = self.on_the_host(app, buffer, at, false);
            let stage = self.on_the_host(app, buffer, at, true);
            let (from, to) = if back { (stage, copy) } else { (copy, stage) };
            self.set_cell(to, self.cell(from));
        }
    }

    fn enter(&mut self, app: AppId, op: OpId, host: HostId) {
        if self.canary == Some(Canary::OpenRdma) {
            return self.rma(app, op);
        }
        let ticket = self.ticket(host);
        self.apps[app]
            .waiters
            .insert((host, ticket), Waiter::Enter(op));
        self.go_in(host, ticket, Region::Rdma);
    }

    pub(super) fn leave(&mut self, host: HostId) {
        if self.canary != Some(Canary::OpenRdma) {
            self.go_out(host, Region::Rdma);
        }
    }

    pub(super) fn rma(&mut self, app: AppId, op: OpId) {
        let steps = self.apps[app].movements.get(&op);
        let (process, id, range, write) = match steps.and_then(|steps| steps.front()) {
            Some(Step::ToProcess {
                process,
                buffer,
                range,
                ..
            }) => (*process, *buffer, range.clone(), true),
            Some(Step::FromProcess {
                process,
                buffer,
                range,
                ..
            }) => (*process, *buffer, range.clone(), false),
            _ => return,
        };
        let host = host_of(process);
        let offset = self.apps[app]
            .buffers
            .get(&id)
            .and_then(|buffer| buffer.windows.get(&host).copied());
        let endpoint = self.hosts[host].channels.get(&Channel::Dma).copied();
        let (Some(offset), Some(endpoint)) = (offset, endpoint) else {
            return self.rma_ended(app, op, host, Err(libc::ECONNRESET));
        };
        let local = self.on_the_host(app, id, range.start, true);
        let remote = offset + range.start as i64;
        let len = range.end - range.start;
        let node = &mut self.nodes[usize::from(HOST)];
        let request = node.copy_memory(endpoint, local, len, remote, write);
        self.apps[app].rma.insert((host, request), op);
        self.pump(HOST);
        if !self.net.stage.engine.is_alive(self.net.rig) {
            self.rma_done(host, request, Err(libc::ENODEV));
        }
    }

    /// RMA has ended; of request 0: all of it, with the connection.
    pub(crate) fn rma_done(&mut self, host: HostId, request: RequestId, result: Result<(), i32>) {
        let app = self.hosts[host].app;
        let all = self.apps[app].rma.iter();
        let ended: Vec<_> = all
            .filter(|((of, one), _)| *of == host && (request == 0 || *one == request))
            .map(|(at, op)| (*at, *op))
            .collect();
        for (at, op) in ended {
            self.apps[app].rma.remove(&at);
            self.rma_ended(app, op, host, result);
        }
    }

    fn rma_ended(&mut self, app: AppId, op: OpId, host: HostId, result: Result<(), i32>) {
        if result.is_err() {
            // What became of the process? (`snaprig_coi::ops`)
            let ticket = self.ticket(host);
            self.apps[app]
                .waiters
                .insert((host, ticket), Waiter::Broken(op));
            return self.coi(host, coi::Input::Broken(ticket));
        }
        self.leave(host);
        let steps = self.apps[app].movements.get(&op);
        if let Some(Step::ToProcess { buffer, range, .. }) = steps.and_then(|steps| steps.front()) {
            self.hosts[host].wrote.push(Wrote {
                memory: *buffer,
                range: (range.start, range.end),
            });
        }
        if let Some(Step::FromProcess {
            buffer,
            range,
            staged: false,
            ..
        }) = steps.and_then(|steps| steps.front().cloned())
        {
            self.pass(app, buffer, &range, true);
        }
        self.step_is_done(app, op);
        let event = Event::App(app, AppTask::Step(op));
        self.net
            .stage
            .engine
            .after(self.app_processes[app], 0, event);
    }

    pub(super) fn moved(&mut self, app: AppId, op: OpId, result: Result<(), CoiError>) {
        self.apps[app].movements.remove(&op);
        if result.is_err() {
            if let Err(error) = &result {
                self.apps[app].history.failed(op, error);
            }
            return self.graph(app, Input::Moved(op, result));
        }
        let own = self.app_processes[app];
        let by_ns = match self.fault(own, &faults::TRANSFERRED) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            _ => return self.graph(app, Input::Moved(op, result)),
        };
        let event = Event::App(app, AppTask::Moved(op));
        self.net.stage.engine.after(own, by_ns, event);
    }

    /// The graph hears late that bytes were moved.
    pub(super) fn has_moved(&mut self, app: AppId, op: OpId) {
        self.graph(app, Input::Moved(op, Ok(())));
    }
}
