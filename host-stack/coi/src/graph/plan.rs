//! What an operation has to move, and where its bytes are valid afterwards.

use std::{collections::BTreeSet, ops::Range};

use super::{BufferId, Graph, Mode, OpId, Phase, Place, ProcessId, State, Step, Work, copies::Run};

impl Graph {
    /// The steps that an operation takes as things are.
    pub(super) fn plan(&self, id: OpId) -> Vec<Step> {
        let steps = self.moves(id);
        let entering = self.entering(id, &steps);
        match entering.is_empty() {
            true => steps,
            false => {
                let enter = |(process, buffer)| Step::Enter { process, buffer };
                entering.into_iter().map(enter).chain(steps).collect()
            }
        }
    }

    /// Memory that processes have to have for it, and have not.
    fn entering(&self, id: OpId, steps: &[Step]) -> BTreeSet<(ProcessId, BufferId)> {
        let uses = match self.ops.get(&id).map(|op| &op.work) {
            Some(Work::Run { process, uses, .. }) => Some((*process, uses)),
            _ => None,
        };
        let used = uses.into_iter().flat_map(|(process, uses)| {
            let used = uses.iter().map(move |one| (process, one.buffer));
            used.collect::<Vec<_>>()
        });
        let moved = steps.iter().filter_map(|step| match step {
            Step::ToProcess {
                process, buffer, ..
            }
            | Step::FromProcess {
                process, buffer, ..
            } => Some((*process, *buffer)),
            _ => None,
        });
        used.chain(moved)
            .filter(|(process, buffer)| self.is_absent(*buffer, *process))
            .collect()
    }

    /// What it moves.
    fn moves(&self, id: OpId) -> Vec<Step> {
        let Some(op) = self.ops.get(&id) else {
            return Vec::new();
        };
        let mut steps = Vec::new();
        match &op.work {
            Work::Run { process, uses, .. } => {
                for one in uses.iter().filter(|one| one.mode != Mode::WriteEntire) {
                    let place = Place::Process(*process);
                    self.bring(one.buffer, &one.range, place, &mut steps);
                }
                // What passes through the host comes first, so that many are moved at once.
                steps.sort_by_key(|step| matches!(step, Step::ToProcess { .. }));
            }
            Work::Write {
                buffer,
                all,
                ranges,
                to,
                whole,
            } => {
                if let (Some(process), true) = (to, whole) {
                    self.bring(*buffer, all, Place::Process(*process), &mut steps);
                }
                let mut sends = Vec::new();
                for range in ranges {
                    for (range, target) in self.targets(*buffer, range, *to) {
                        let (buffer, staged) = (*buffer, target.is_some());
                        steps.push(Step::Put {
                            buffer,
                            range: range.clone(),
                            staged,
                        });
                        sends.extend(target.map(|process| to_process(process, buffer, range)));
                    }
                }
                steps.extend(sends);
            }
            Work::Read { buffer, ranges } => {
                for run in ranges.iter().flat_map(|range| self.runs(*buffer, range)) {
                    let (range, buffer) = (run.range.clone(), *buffer);
                    let staged = self.stage(buffer, &run, &mut steps);
                    steps.push(Step::Take {
                        buffer,
                        range,
                        staged,
                    });
                }
            }
            Work::Copy {
                from,
                from_at,
                into,
                all,
                into_at,
                bytes,
                to,
                whole,
            } => {
                if let (Some(process), true) = (to, whole) {
                    self.bring(*into, all, Place::Process(*process), &mut steps);
                }
                for run in self.runs(*from, &(*from_at..from_at + bytes)) {
                    let from_staged = self.stage(*from, &run, &mut steps);
                    let start = into_at + (run.range.start - from_at);
                    let length = run.range.end - run.range.start;
                    for (range, target) in self.targets(*into, &(start..start + length), *to) {
                        steps.push(Step::Copy {
                            from: *from,
                            from_at: run.range.start + (range.start - start),
                            from_staged,
                            into: *into,
                            into_at: range.start,
                            into_staged: target.is_some(),
                            bytes: range.end - range.start,
                        });
                        steps.extend(target.map(|process| to_process(process, *into, range)));
                    }
                }
            }
            Work::Map {
                buffer,
                range,
                mode,
            } if *mode != Mode::WriteEntire => {
                self.bring(*buffer, range, Place::Host, &mut steps);
            }
            Work::Evict {
                buffer,
                range,
                process,
            } => {
                for run in self.only_at(*buffer, range, Place::Process(*process)) {
                    self.bring(*buffer, &run.range, Place::Host, &mut steps);
                }
                steps.push(Step::Leave {
                    process: *process,
                    buffer: *buffer,
                });
            }
            Work::SetState {
                buffer,
                range,
                place: Some(place),
                state,
                move_bytes: true,
            } => match state {
                State::Valid => self.bring(*buffer, range, *place, &mut steps),
                State::ValidMayDrop if self.has_other(*buffer, range, *place) => {
                    self.bring(*buffer, range, *place, &mut steps);
                }
                State::ValidMayDrop => {}
                State::Invalid => {
                    for run in self.only_at(*buffer, range, *place) {
                        self.bring(*buffer, &run.range, Place::Host, &mut steps);
                    }
                }
            },
            _ => {}
        }
        steps
    }

    /// What it has done, once the steps are done.
    pub(super) fn apply(&mut self, id: OpId) {
        let Some(op) = self.ops.get(&id) else {
            return;
        };
        match op.work.clone() {
            Work::Run { process, uses, .. } => {
                for one in uses {
                    let place = Place::Process(process);
                    self.gain(id, one.buffer, &one.range, place, one.mode);
                }
            }
            Work::Write {
                buffer,
                all,
                ranges,
                to,
                whole,
            } => match (to, whole) {
                (Some(process), true) => {
                    self.gain(id, buffer, &all, Place::Process(process), Mode::Write);
                }
                _ => {
                    for range in ranges {
                        self.written(id, buffer, &range, to);
                    }
                }
            },
            Work::Copy {
                into,
                all,
                into_at,
                bytes,
                to,
                whole,
                ..
            } => match (to, whole) {
                (Some(process), true) => {
                    self.gain(id, into, &all, Place::Process(process), Mode::Write);
                }
                _ => self.written(id, into, &(into_at..into_at + bytes), to),
            },
            Work::Map {
                buffer,
                range,
                mode,
            } => self.gain(id, buffer, &range, Place::Host, mode),
            Work::SetState {
                buffer,
                range,
                place,
                state,
                move_bytes,
            } => self.set_state(buffer, &range, place, state, move_bytes),
            Work::Evict {
                buffer,
                range,
                process,
            } => {
                let place = Place::Process(process);
                self.set_state(buffer, &range, Some(place), State::Invalid, true);
                if let Some(buffer) = self.buffers.get_mut(&buffer) {
                    buffer.absent.insert(process);
                }
            }
            _ => {}
        }
    }

    /// It has failed half-way: the host's copy may have been used as a stage.
    pub(super) fn spoil(&mut self, id: OpId) {
        let Some(op) = self.ops.get(&id) else {
            return;
        };
        for claim in &op.claims {
            if let Some(buffer) = self.buffers.get_mut(&claim.buffer) {
                buffer.copies.change(&claim.range, |run| run.blank = false);
            }
        }
    }

    fn runs(&self, buffer: BufferId, range: &Range<u64>) -> Vec<Run> {
        let buffer = self.buffers.get(&buffer);
        buffer.map_or_else(Vec::new, |buffer| buffer.copies.within(range))
    }

    /// Moves to a place what is not valid there.
    fn bring(&self, buffer: BufferId, range: &Range<u64>, to: Place, steps: &mut Vec<Step>) {
        for run in self.runs(buffer, range) {
            if run.blank || run.valid.contains(&to) || run.valid.is_empty() {
                continue;
            }
            let range = run.range.clone();
            match to {
                Place::Host => {
                    if let Some(Place::Process(process)) = run.source() {
                        steps.push(Step::FromProcess {
                            process,
                            buffer,
                            range,
                            staged: false,
                        });
                    }
                }
                Place::Process(process) => {
                    let staged = self.stage(buffer, &run, steps);
                    steps.push(Step::ToProcess {
                        process,
                        buffer,
                        range,
                        staged,
                    });
                }
            }
        }
    }

    /// Has the bytes on the host, and whether only as a stage.
    fn stage(&self, buffer: BufferId, run: &Run, steps: &mut Vec<Step>) -> bool {
        let Some(Place::Process(process)) = run.source() else {
            return false;
        };
        steps.push(Step::FromProcess {
            process,
            buffer,
            range: run.range.clone(),
            staged: true,
        });
        true
    }

    /// Where a transfer writes to, by range; `None` is the host.
    fn targets(
        &self,
        buffer: BufferId,
        range: &Range<u64>,
        to: Option<ProcessId>,
    ) -> Vec<(Range<u64>, Option<ProcessId>)> {
        if to.is_some() {
            return vec![(range.clone(), to)];
        }
        let runs = self.runs(buffer, range).into_iter();
        runs.map(|run| match run.source() {
            Some(Place::Process(process)) => (run.range, Some(process)),
            _ => (run.range, None),
        })
        .collect()
    }

    fn written(&mut self, id: OpId, buffer: BufferId, range: &Range<u64>, to: Option<ProcessId>) {
        for (range, target) in self.targets(buffer, range, to) {
            let place = target.map_or(Place::Host, Place::Process);
            self.gain(id, buffer, &range, place, Mode::Write);
        }
    }

    /// A place has the bytes; if it writes to them, the others have them no more.
    fn gain(&mut self, id: OpId, buffer: BufferId, range: &Range<u64>, place: Place, mode: Mode) {
        let busy = self.busy(id, buffer, range);
        let Some(buffer) = self.buffers.get_mut(&buffer) else {
            return;
        };
        buffer.copies.change(range, |run| {
            if mode != Mode::Read {
                run.blank = false;
                run.valid.retain(|other| busy.contains(other));
            }
            run.valid.insert(place);
        });
    }

    /// Whether a range is valid on the host for as long as an operation of somebody's looks at it there, whoever writes to it.
    pub fn stays_on_host(&self, id: OpId, buffer: BufferId, range: &Range<u64>) -> bool {
        self.busy(id, buffer, range).contains(&Place::Host)
    }

    /// Where a buffer of OpenCL's kind is in use: there it stays valid.
    fn busy(&self, id: OpId, buffer: BufferId, range: &Range<u64>) -> BTreeSet<Place> {
        let mut busy = BTreeSet::new();
        let Some(one) = self.buffers.get(&buffer).filter(|one| one.unordered) else {
            return busy;
        };
        let held = one.references.iter().filter(|(_, count)| **count > 0);
        busy.extend(held.map(|(process, _)| Place::Process(*process)));
        for other in one.started.iter().filter(|other| **other != id) {
            if let Some((Work::Run { process, .. }, Phase::Running)) =
                self.ops.get(other).map(|op| (&op.work, op.phase))
            {
                busy.insert(Place::Process(*process));
            }
        }
        // One that waits looks at nothing yet: it is shown what is there when it starts.
        let waits = |map: &OpId| {
            let op = self.ops.get(map);
            op.is_some_and(|op| op.phase == Phase::Waiting)
        };
        let mut maps = one.maps.iter().filter(|map| **map != id && !waits(map));
        let seen = |map: &OpId| {
            self.maps
                .get(map)
                .is_some_and(|(_, at, _)| at.start < range.end && range.start < at.end)
        };
        if maps.any(seen) {
            busy.insert(Place::Host);
        }
        busy
    }

    /// Whether all of a range is valid somewhere else.
    fn has_other(&self, buffer: BufferId, range: &Range<u64>, place: Place) -> bool {
        let mut runs = self.runs(buffer, range).into_iter();
        runs.all(|run| run.valid.iter().any(|other| *other != place))
    }

    /// What is valid nowhere else.
    fn only_at(&self, buffer: BufferId, range: &Range<u64>, place: Place) -> Vec<Run> {
        let runs = self.runs(buffer, range).into_iter();
        runs.filter(|run| run.valid.len() == 1 && run.valid.contains(&place))
            .collect()
    }

    fn set_state(
        &mut self,
        id: BufferId,
        range: &Range<u64>,
        place: Option<Place>,
        state: State,
        moved: bool,
    ) {
        let may_drop = match place {
            Some(place) => self.has_other(id, range, place),
            None => {
                let mut runs = self.runs(id, range).into_iter();
                runs.all(|run| run.valid.contains(&Place::Host))
            }
        };
        let Some(buffer) = self.buffers.get_mut(&id) else {
            return;
        };
        buffer.copies.change(range, |run| match (place, state) {
            (Some(place), State::Valid) => {
                run.valid.insert(place);
            }
            (Some(place), State::ValidMayDrop) if may_drop => {
                run.valid.insert(place);
            }
            (Some(place), State::Invalid) => {
                // Its bytes were moved to the host first, if there were no others.
                if moved && run.valid.len() == 1 && run.valid.contains(&place) {
                    run.valid.insert(Place::Host);
                }
                if !(moved && place == Place::Host && run.valid.len() == 1) {
                    run.valid.remove(&place);
                }
            }
            (None, State::Invalid) => run.valid.retain(|place| *place == Place::Host),
            _ => {}
        });
    }
}

fn to_process(process: ProcessId, buffer: BufferId, range: Range<u64>) -> Step {
    Step::ToProcess {
        process,
        buffer,
        range,
        staged: true,
    }
}
