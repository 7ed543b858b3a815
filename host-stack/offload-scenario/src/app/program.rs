//! The calls of an application. Operations are handed to the graph, one call after the other. What
//! creates or destroys something goes through the region of case 1, and is waited for (COI's calls
//! for it return when it is done).

use std::ops::Range;

use snaprig_coi::{
    CoiError,
    graph::{BufferId, Mode, OpId, PipelineId, Place, Use, Work},
};
use snaprig_wire::scif::PAGE;

use crate::{
    canary::Canary,
    state::{
        HostId,
        app::{
            AppId, AppTask, Asked, BUFFER_BYTES, Buffer, CELLS, Coming, Deed, Given, Part, Payload,
            Touch, Touches, process_id,
        },
        event::Event,
    },
    world::World,
};

/// How long the host looks at what it has mapped.
const LOOK_NS: u64 = 5_000;
/// When the host signals a user event.
const SIGNAL_NS: u64 = 20_000;

/// Bytes of cells.
fn bytes(cells: &Range<u64>) -> Range<u64> {
    cells.start * PAGE..cells.end * PAGE
}

fn touch(
    buffer: BufferId,
    cells: Range<u64>,
    how: Touch,
) -> impl Iterator<Item = ((BufferId, u64), Touch)> {
    cells.map(move |cell| ((buffer, cell), how))
}

fn of_mode(mode: Mode) -> Touch {
    match mode {
        Mode::Read => Touch::Read,
        Mode::Write => Touch::Change,
        Mode::WriteEntire => Touch::Write,
    }
}

/// One of these, modulo how many there are.
fn nth<T: Copy>(all: &[T], nth: u64) -> Option<T> {
    let count = all.len() as u64;
    all.get(nth.checked_rem(count)? as usize).copied()
}

impl World {
    /// One of the application's offload processes is there; when all are, it begins.
    pub(crate) fn process_made(&mut self, host: HostId) {
        let app = self.hosts[host].app;
        self.apps[app].missing -= 1;
        if self.apps[app].missing == 0 {
            for host in self.apps[app].hosts() {
                self.start_script(host, true);
            }
            self.next_call_later(app);
        }
    }

    fn next_call_later(&mut self, app: AppId) {
        let event = Event::App(app, AppTask::Next);
        self.net
            .stage
            .engine
            .after(self.app_processes[app], 0, event);
    }

    pub(crate) fn app_task(&mut self, app: AppId, task: AppTask) {
        match task {
            AppTask::Next => self.next_call(app),
            AppTask::Step(op) => self.step(app, op),
            AppTask::Moved(op) => self.has_moved(app, op),
            AppTask::Unmap(op) => {
                self.unmap(app, op);
            }
            AppTask::Signal(op) => {
                // It may have been signaled before.
                let _ = self.apps[app].graph.signal(op);
                self.perform_all(app);
            }
        }
    }

    fn next_call(&mut self, app: AppId) {
        let one = &mut self.apps[app];
        if one.blocked.is_some() {
            return;
        }
        let Some(Asked { deed, after }) = one.calls.pop_front() else {
            return;
        };
        let after = after.and_then(|by| one.history.back(by));
        if matches!(deed, Deed::Run { .. }) && !std::mem::replace(&mut one.runs, true) {
            for host in self.apps[app].hosts() {
                self.start_script(host, false);
            }
        }
        self.call_coi(app, deed, after);
        if self.apps[app].blocked.is_none() {
            self.next_call_later(app);
        }
    }

    /// Who was waited for is there, or is not to be had.
    pub(super) fn go_on_after_call(&mut self, app: AppId) {
        if self.apps[app].blocked.take().is_some() {
            self.next_call_later(app);
        }
    }

    fn call_coi(&mut self, app: AppId, deed: Deed, after: Option<OpId>) {
        let hosts: Vec<_> = self.apps[app].hosts.clone().collect();
        let host = |of: u64| nth(&hosts, of).unwrap_or_default();
        match deed {
            Deed::LoadLibrary { process } => self.come_or_go(app, Coming::Library(host(process))),
            // Its number is known when nobody else creates one.
            Deed::CreatePipeline { process } => {
                self.come_or_go(app, Coming::Pipeline(host(process), 0))
            }
            Deed::DestroyPipeline { pipeline } => {
                if let Some(id) = self.a_pipeline(app, pipeline) {
                    self.apps[app].blocked = Some(format!("the end of pipeline {id}"));
                    if let Some(pipeline) = self.apps[app].pipelines.get_mut(&id) {
                        pipeline.is_live = false;
                    }
                    let work = Work::Barrier { pipeline: id };
                    self.submit(app, work, None, Touches::new(), Payload::Barrier(id));
                }
            }
            Deed::CreateBuffer { is_users } => {
                let address = self.buffer();
                let stage = if is_users { self.buffer() } else { address };
                let one = &mut self.apps[app];
                one.last_id += 1;
                let (id, first) = (one.last_id, one.hosts.start);
                let buffer = Buffer {
                    address,
                    stage,
                    windows: Default::default(),
                    is_live: false,
                };
                one.buffers.insert(id, buffer);
                self.come_or_go(app, Coming::Buffer(first, id));
            }
            Deed::DestroyBuffer { buffer } => {
                if let Some(id) = self.a_buffer(app, buffer) {
                    self.apps[app].blocked = Some(format!("the end of buffer {id}"));
                    if let Some(buffer) = self.apps[app].buffers.get_mut(&id) {
                        buffer.is_live = false;
                    }
                    let touches = touch(id, 0..CELLS, Touch::Keep).collect();
                    let work = Work::Destroy { buffer: id };
                    self.submit(app, work, None, touches, Payload::Destroy(id));
                }
            }
            Deed::Run {
                pipeline,
                given,
                signals,
            } => self.ask_run(app, pipeline, &given, signals, after),
            Deed::UserEvent => {
                let event = self.submit(app, Work::UserEvent, None, Touches::new(), Payload::Other);
                if let Some(event) = event {
                    let event = Event::App(app, AppTask::Signal(event));
                    self.net
                        .stage
                        .engine
                        .after(self.app_processes[app], SIGNAL_NS, event);
                }
            }
            Deed::Map { part, mode } => self.map(app, &part, mode, after),
            Deed::Write { .. } | Deed::Read { .. } | Deed::Copy { .. } | Deed::SetState { .. } => {
                self.transfer(app, deed, after, &host);
            }
        }
    }

    fn a_buffer(&self, app: AppId, which: u64) -> Option<BufferId> {
        let live = self.apps[app].buffers.iter();
        let live: Vec<_> = live
            .filter(|(_, one)| one.is_live)
            .map(|(id, _)| *id)
            .collect();
        nth(&live, which)
    }

    fn a_pipeline(&self, app: AppId, which: u64) -> Option<PipelineId> {
        let live = self.apps[app].pipelines.iter();
        let live: Vec<_> = live
            .filter(|(_, one)| one.is_live)
            .map(|(id, _)| *id)
            .collect();
        nth(&live, which)
    }

    /// Hands an operation to the graph. It depends on `also`, and on what it conflicts with where
    /// COI would not see to that.
    fn submit(
        &mut self,
        app: AppId,
        work: Work,
        also: Option<OpId>,
        touches: Touches,
        payload: Payload,
    ) -> Option<OpId> {
        let pipeline = match &work {
            Work::Run { pipeline, .. } | Work::Barrier { pipeline } => Some(*pipeline),
            _ => None,
        };
        let is_transfer = matches!(
            work,
            Work::Write { .. } | Work::Read { .. } | Work::Copy { .. }
        );
        let one = &mut self.apps[app];
        let (conflicts, transfers) = one.history.conflicts(&touches);
        let must = match work {
            // It waits for everybody anyway, and does not fail with them.
            Work::Destroy { .. } => vec![],
            _ if is_transfer => conflicts,
            _ => transfers,
        };
        let waits = |id: &OpId| one.graph.is_pending(*id);
        let mut after: Vec<_> = must.into_iter().filter(waits).chain(also).collect();
        after.sort_unstable();
        after.dedup();
        let forgets = self.canary == Some(Canary::HastyStart);
        let told: &[OpId] = if forgets { &[] } else { &after };
        match one.graph.submit(work, told) {
            Ok(id) => {
                one.history
                    .submitted(id, &after, &touches, is_transfer, pipeline);
                one.payloads.insert(id, payload);
                self.perform_all(app);
                Some(id)
            }
            // Two uses of the same bytes.
            Err(CoiError::Overlap) => None,
            Err(error) => {
                one.failed.get_or_insert_with(|| error.to_string());
                self.go_on_after_call(app);
                None
            }
        }
    }

    fn ask_run(
        &mut self,
        app: AppId,
        which: u64,
        given: &[Given],
        signals: bool,
        after: Option<OpId>,
    ) {
        let Some(id) = self.a_pipeline(app, which) else {
            return;
        };
        let Some(host) = self.apps[app].pipelines.get(&id).map(|one| one.host) else {
            return;
        };
        // Of a process that is gone, nothing is asked any more.
        if let Some(error) = self.hosts[host].end_known() {
            self.apps[app]
                .failed
                .get_or_insert_with(|| error.to_string());
            return;
        }
        let (mut touches, mut adds) = (Touches::new(), Vec::new());
        let mut uses: Vec<(BufferId, Range<u64>, Mode, bool)> = Vec::new();
        for one in given {
            let Some(buffer) = self.a_buffer(app, one.part.buffer) else {
                continue;
            };
            if uses.iter().any(|(other, ..)| *other == buffer) {
                continue;
            }
            uses.push((buffer, bytes(&one.part.cells), one.mode, one.add_ref));
            touches.extend(touch(buffer, one.part.cells.clone(), of_mode(one.mode)));
            adds.extend(one.adds.then_some(buffer));
        }
        let event = match signals {
            false => None,
            true => self.submit(app, Work::UserEvent, None, Touches::new(), Payload::Other),
        };
        self.apps[app]
            .events
            .extend(event.map(|event| (event, host)));
        let in_graph = uses.iter().map(|(buffer, range, mode, add_ref)| Use {
            buffer: *buffer,
            range: range.clone(),
            mode: *mode,
            add_ref: *add_ref,
        });
        let work = Work::Run {
            process: process_id(host),
            pipeline: id,
            uses: in_graph.collect(),
        };
        let payload = Payload::Run {
            pipeline: id,
            uses,
            adds,
            event,
        };
        // It is one of the pipeline's from now on, even if it fails at once.
        let op = self.submit(app, work, after, touches, payload);
        match (op, self.apps[app].pipelines.get_mut(&id)) {
            (Some(op), Some(pipeline)) => pipeline.runs.push(op),
            _ => self.unregister(app, event),
        }
    }

    fn map(&mut self, app: AppId, part: &Part, mode: Mode, after: Option<OpId>) {
        let Some(buffer) = self.a_buffer(app, part.buffer) else {
            return;
        };
        let range = bytes(&part.cells);
        let work = Work::Map {
            buffer,
            range: range.clone(),
            mode,
        };
        let payload = Payload::Map {
            buffer,
            range,
            mode,
        };
        self.apps[app].blocked = Some(format!("the map of buffer {buffer}"));
        let touches = touch(buffer, part.cells.clone(), of_mode(mode)).collect();
        self.submit(app, work, after, touches, payload);
    }

    /// What is mapped is looked at, for a while.
    pub(super) fn mapped(&mut self, app: AppId, op: OpId) {
        let event = Event::App(app, AppTask::Unmap(op));
        self.net
            .stage
            .engine
            .after(self.app_processes[app], LOOK_NS, event);
    }

    fn unmap(&mut self, app: AppId, map: OpId) {
        let Some(Payload::Map {
            buffer,
            range,
            mode,
        }) = self.apps[app].payloads.get(&map).cloned()
        else {
            return;
        };
        let cells = range.start / PAGE..range.end / PAGE;
        let how = match mode {
            Mode::Read => Touch::Read,
            _ => Touch::Keep,
        };
        let touches = touch(buffer, cells, how).collect();
        self.submit(app, Work::Unmap { map }, None, touches, Payload::Unmap);
    }

    fn transfer(
        &mut self,
        app: AppId,
        deed: Deed,
        after: Option<OpId>,
        host: &dyn Fn(u64) -> HostId,
    ) {
        let process = |of: Option<u64>| of.map(|of| process_id(host(of)));
        let whole_buffer = 0..BUFFER_BYTES;
        let mut touches = Touches::new();
        let (work, payload) = match deed {
            Deed::Write { part, to, whole } => {
                let Some(buffer) = self.a_buffer(app, part.buffer) else {
                    return;
                };
                let whole = whole && to.is_some();
                if whole {
                    touches.extend(touch(buffer, 0..CELLS, Touch::Keep));
                }
                touches.extend(touch(buffer, part.cells.clone(), Touch::Write));
                let work = Work::Write {
                    buffer,
                    all: whole_buffer,
                    ranges: vec![bytes(&part.cells)],
                    to: process(to),
                    whole,
                };
                (work, Payload::Other)
            }
            Deed::Read { part } => {
                let Some(buffer) = self.a_buffer(app, part.buffer) else {
                    return;
                };
                touches.extend(touch(buffer, part.cells.clone(), Touch::Read));
                let ranges = vec![bytes(&part.cells)];
                (Work::Read { buffer, ranges }, Payload::Other)
            }
            Deed::Copy {
                from: part,
                into,
                into_cell,
                to,
            } => {
                let from = self.a_buffer(app, part.buffer);
                let into = self.a_buffer(app, into);
                let (Some(from), Some(into)) = (from, into) else {
                    return;
                };
                let cells = (part.cells.end - part.cells.start).min(CELLS - into_cell);
                let source = part.cells.start..part.cells.start + cells;
                touches.extend(touch(from, source.clone(), Touch::Read));
                for cell in 0..cells {
                    let copy = Touch::CopyOf(from, source.start + cell);
                    touches.insert((into, into_cell + cell), copy);
                }
                let work = Work::Copy {
                    from,
                    from_at: source.start * PAGE,
                    into,
                    all: whole_buffer,
                    into_at: into_cell * PAGE,
                    bytes: cells * PAGE,
                    to: process(to),
                    whole: false,
                };
                (work, Payload::Other)
            }
            Deed::SetState { part, place, state } => {
                let Some(buffer) = self.a_buffer(app, part.buffer) else {
                    return;
                };
                touches.extend(touch(buffer, part.cells.clone(), Touch::Keep));
                let place = process(place).map_or(Place::Host, Place::Process);
                let work = Work::SetState {
                    buffer,
                    range: bytes(&part.cells),
                    place: Some(place),
                    state,
                    move_bytes: true,
                };
                (work, Payload::SetState(buffer))
            }
            _ => return,
        };
        self.submit(app, work, after, touches, payload);
    }
}
