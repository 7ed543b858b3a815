//! Any operations at all, on memory that is simulated.

use std::{collections::BTreeMap, ops::Range};

use proptest::prelude::*;

use super::{super::*, B, BYTES};

/// Memory of the host and of two processes, and a graph that says what to do with it.
struct Scene {
    graph: Graph,
    memory: BTreeMap<Place, Vec<u64>>,
    /// What passes through the host: here it is where the host's copy is.
    truth: Vec<u64>,
    /// What each operation writes, and what it must see.
    seen: BTreeMap<OpId, (Range<u64>, Mode, Place, Vec<u64>)>,
    /// Things under way: they end in any order.
    under_way: Vec<Output>,
    last_of: Vec<OpId>,
}

#[derive(Clone, Debug)]
enum Deed {
    Run(ProcessId, u64, u64, u8),
    Map(u64, u64, u8),
    SetState(u64, u64, u8),
    Write(u64, u64, u8),
    Read(u64, u64),
    /// Its memory in a process goes, if the buffer is idle.
    Evict(u64),
    /// One of the things under way ends.
    End(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    let at = || 0..BYTES;
    prop_oneof![
        (1u64..3, at(), at(), 0u8..3).prop_map(|(p, a, b, m)| Deed::Run(p, a, b, m)),
        (at(), at(), 0u8..3).prop_map(|(a, b, m)| Deed::Map(a, b, m)),
        (at(), at(), 0u8..3).prop_map(|(a, b, p)| Deed::SetState(a, b, p)),
        (at(), at(), 0u8..3).prop_map(|(a, b, p)| Deed::Write(a, b, p)),
        (at(), at()).prop_map(|(a, b)| Deed::Read(a, b)),
        (1u64..3).prop_map(Deed::Evict),
        any::<usize>().prop_map(Deed::End),
    ]
}

fn place(number: u8) -> Place {
    match number {
        0 => Place::Host,
        number => Place::Process(number.into()),
    }
}

fn mode(number: u8) -> Mode {
    match number {
        0 => Mode::Read,
        1 => Mode::Write,
        _ => Mode::WriteEntire,
    }
}

impl Scene {
    fn new() -> Self {
        let zeros = vec![0; BYTES as usize];
        let mut graph = Graph::default();
        graph.add_buffer(B, BYTES, false, true, None);
        Self {
            graph,
            memory: (0..3).map(|one| (place(one), zeros.clone())).collect(),
            truth: zeros,
            seen: BTreeMap::new(),
            under_way: Vec::new(),
            last_of: Vec::new(),
        }
    }

    /// Submits something that sees and writes a range, in the order of submissions.
    fn submit(&mut self, work: Work, range: Range<u64>, mode: Mode, place: Place, after: &[OpId]) {
        let slice = range.start as usize..range.end as usize;
        let before = self.truth[slice.clone()].to_vec();
        let id = self.graph.submit(work, after).expect("it makes sense");
        if mode != Mode::Read {
            self.truth[slice].fill(id);
        }
        self.seen.insert(id, (range, mode, place, before));
        self.last_of.push(id);
        self.gather();
    }

    fn gather(&mut self) {
        while let Some(output) = self.graph.poll_output() {
            match output {
                Output::Completed(_, result) => assert_eq!(result, Ok(())),
                output => self.under_way.push(output),
            }
        }
    }

    /// One thing under way ends: bytes are moved, run functions see and write.
    fn end(&mut self, which: usize) {
        if self.under_way.is_empty() {
            return;
        }
        let output = self.under_way.swap_remove(which % self.under_way.len());
        match output {
            Output::Move(id, steps) => {
                steps.iter().for_each(|step| self.step(id, step));
                let host = self.seen.get(&id).is_some_and(|seen| seen.2 == Place::Host);
                let is_map = self.graph.maps.contains_key(&id);
                self.graph.handle(Input::Moved(id, Ok(())));
                if host && is_map {
                    self.look(id);
                }
            }
            Output::Run(id) => {
                self.look(id);
                self.graph.handle(Input::Returned(id, Ok(vec![])));
            }
            Output::Completed(..) => {}
        }
        self.gather();
    }

    /// Who uses a range in its place sees what was written last, and writes.
    fn look(&mut self, id: OpId) {
        let (range, mode, place, before) = self.seen[&id].clone();
        let memory = self.memory.get_mut(&place).expect("three places");
        let there = &mut memory[range.start as usize..range.end as usize];
        if mode != Mode::WriteEntire {
            assert_eq!(there, before, "operation {id}");
        }
        if mode != Mode::Read {
            there.fill(id);
        }
    }

    fn step(&mut self, id: OpId, step: &Step) {
        let mut copy = |from: Place, to: Place, range: &Range<u64>| {
            let slice = range.start as usize..range.end as usize;
            let bytes = self.memory[&from][slice.clone()].to_vec();
            self.memory.get_mut(&to).expect("three places")[slice].copy_from_slice(&bytes);
        };
        match step {
            Step::ToProcess { process, range, .. } => {
                copy(Place::Host, Place::Process(*process), range);
            }
            Step::FromProcess { process, range, .. } => {
                copy(Place::Process(*process), Place::Host, range);
            }
            Step::Put { range, .. } => {
                let memory = self.memory.get_mut(&Place::Host).expect("three places");
                memory[range.start as usize..range.end as usize].fill(id);
            }
            Step::Take { range, .. } => {
                let (all, _, _, before) = &self.seen[&id];
                let there = &self.memory[&Place::Host];
                for at in range.clone() {
                    let expected = before[(at - all.start) as usize];
                    assert_eq!(there[at as usize], expected, "operation {id}");
                }
            }
            Step::Enter { process, buffer } => {
                let memory = self
                    .memory
                    .get_mut(&Place::Process(*process))
                    .expect("it is there");
                memory.fill(0);
                self.graph.entered(*buffer, *process);
            }
            Step::Leave { process, .. } => {
                let memory = self
                    .memory
                    .get_mut(&Place::Process(*process))
                    .expect("it is there");
                memory.fill(u64::MAX);
            }
            Step::Copy { .. } => {}
        }
    }

    fn act(&mut self, deed: Deed) {
        let range = |a: u64, b: u64| a.min(b)..a.max(b) + 1;
        match deed {
            Deed::Run(process, a, b, access) => {
                let (range, mode) = (range(a, b), mode(access));
                let uses = vec![Use {
                    buffer: B,
                    range: range.clone(),
                    mode,
                    add_ref: false,
                }];
                let work = Work::Run {
                    process,
                    pipeline: process * 10 + a % 2,
                    uses,
                };
                self.submit(work, range, mode, Place::Process(process), &[]);
            }
            Deed::Map(a, b, access) => {
                let (range, mode) = (range(a, b), mode(access));
                let work = Work::Map {
                    buffer: B,
                    range: range.clone(),
                    mode,
                };
                self.submit(work, range.clone(), mode, Place::Host, &[]);
                let map = self.last_of[self.last_of.len() - 1];
                let moving = |output: &Output| matches!(output, Output::Move(id, _) if *id == map);
                if !self.graph.is_pending(map) {
                    self.look(map);
                } else if !self.under_way.iter().any(moving) || mode == Mode::WriteEntire {
                    // It looks when it is let in, which is not seen from here: have it be so now.
                    self.settle(map);
                }
                while self.graph.is_pending(map) {
                    self.end(0);
                }
                let unmap = self.graph.submit(Work::Unmap { map }, &[]).expect("mapped");
                self.last_of.push(unmap);
                self.gather();
            }
            Deed::SetState(a, b, to) => {
                let range = range(a, b);
                let work = Work::SetState {
                    buffer: B,
                    range: range.clone(),
                    place: Some(place(to)),
                    state: State::Valid,
                    move_bytes: true,
                };
                self.submit(work, range, Mode::Read, place(to), &[]);
            }
            Deed::Write(a, b, to) => {
                let range = range(a, b);
                let work = Work::Write {
                    buffer: B,
                    all: 0..BYTES,
                    ranges: vec![range.clone()],
                    to: (to > 0).then_some(to.into()),
                    whole: false,
                };
                // It waits only for what it is told to wait for.
                let after = self.last_of.clone();
                self.submit(work, range, Mode::WriteEntire, place(to), &after);
                self.settle(self.last_of[self.last_of.len() - 1]);
            }
            Deed::Read(a, b) => {
                let range = range(a, b);
                let work = Work::Read {
                    buffer: B,
                    ranges: vec![range.clone()],
                };
                let after = self.last_of.clone();
                self.submit(work, range, Mode::Read, Place::Host, &after);
                self.settle(self.last_of[self.last_of.len() - 1]);
            }
            Deed::Evict(process) => {
                if self.graph.idle_since(B).is_none() || self.graph.is_absent(B, process) {
                    return;
                }
                let work = Work::Evict {
                    buffer: B,
                    range: 0..BYTES,
                    process,
                };
                let id = self.graph.submit(work, &[]).expect("it is idle");
                self.last_of.push(id);
                self.gather();
            }
            Deed::End(which) => self.end(which),
        }
    }

    /// Ends things until an operation is done.
    fn settle(&mut self, id: OpId) {
        let mut ends = 0;
        while self.graph.is_pending(id) {
            assert!(
                !self.under_way.is_empty(),
                "operation {id} waits for nothing"
            );
            // A map that is let in without anything to be moved is done at once, and then is seen.
            let map = self.graph.maps.contains_key(&id);
            self.end(ends);
            ends += 1;
            if map && !self.graph.is_pending(id) {
                return self.look_once(id);
            }
        }
    }

    fn look_once(&mut self, id: OpId) {
        let (range, mode, place, _) = self.seen[&id].clone();
        let there = &self.memory[&place][range.start as usize..range.end as usize];
        if mode != Mode::Read && there.iter().all(|byte| *byte == id) {
            // It has written already.
            return;
        }
        self.look(id);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is asked for in whatever order things end: everything ends, and everybody sees what
    /// was written last before them.
    #[test]
    fn every_operation_ends_and_sees_what_was_written_last(
        deeds in prop::collection::vec(deed(), 1..40),
    ) {
        let mut scene = Scene::new();
        for deed in deeds {
            scene.act(deed);
        }
        while !scene.under_way.is_empty() {
            scene.end(0);
        }
        prop_assert!(scene.graph.ops.is_empty(), "left: {:?}", scene.graph.ops);
        for buffer in scene.graph.buffers.values() {
            prop_assert!(buffer.started.is_empty() && buffer.waiting.is_empty());
        }
        prop_assert!(scene.graph.pipelines.is_empty() && scene.graph.maps.is_empty());
    }
}
