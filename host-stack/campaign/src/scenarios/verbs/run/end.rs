//! The end of a run, and how one is looked at before.

use super::*;

impl Run {
    pub(super) fn tear_down(&mut self) -> Vec<String> {
        for peer in self.connections.iter().flatten() {
            let request = Request::DestroyQp { qp: peer.end.index };
            if self.world.lives(peer.side.process) {
                let done = self.world.ask(peer.side.process, &request);
                assert!(done.is_ok(), "{done:?}");
            }
        }
        for process in 0..self.nodes.len() as u32 {
            if self.world.lives(process) {
                self.world.kill(process);
            }
        }
        let left = self.world.control.borrow().in_use();
        let left = left.into_iter();
        left.map(|(what, count)| format!("{what}: {count}"))
            .collect()
    }

    pub(super) fn finish(mut self, plan: &Plan) -> Outcome<Ended> {
        let rested = caught(|| {
            let rests = self.rest() && self.heal();
            self.flush();
            rests
        });
        let mut memories = self.world.take_memory();
        for (memory, used) in memories.iter_mut().zip(&self.used) {
            if let Some(memory) = memory {
                memory.resize(*used as usize, 0);
            }
        }
        let left = rested.and_then(|rests| Ok((rests, caught(|| self.tear_down())?)));
        let (ending, leftovers) = match left {
            Err(panic) => (Ending::Crashed(panic), Vec::new()),
            Ok((false, _)) => (Ending::Endless, Vec::new()),
            Ok((true, leftovers)) => (Ending::Finished, leftovers),
        };
        let overtake = |kind: &Kind| matches!(kind, Kind::Duplicate | Kind::Reorder);
        let strange = self.work.switches || plan.faults.iter().any(|fault| overtake(&fault.kind));
        let sides = std::mem::take(&mut self.connections).into_iter();
        let end = Ended {
            connections: sides.map(|ends| ends.map(|peer| peer.side)).collect(),
            memories: Memories(memories),
            strange,
        };
        self.into_outcome(ending, leftovers, None, end)
    }

    /// Runs to where it is to be looked at; however it ends, this is how it is then.
    pub(super) fn stop(mut self) -> Outcome<Ended> {
        let ending = match caught(|| self.rest()) {
            Err(panic) => Ending::Crashed(panic),
            Ok(false) => Ending::Endless,
            Ok(true) => Ending::Finished,
        };
        let description = self.describe();
        self.into_outcome(ending, Vec::new(), Some(description), Ended::default())
    }

    fn into_outcome(
        self,
        ending: Ending,
        leftovers: Vec<String>,
        description: Option<String>,
        end: Ended,
    ) -> Outcome<Ended> {
        let reached = self.world.reached().into_iter();
        let reached = reached.map(|(name, reached)| (name, reached.times, reached.faults));
        Outcome {
            ending,
            violations: Vec::new(),
            leftovers,
            faults: self.world.faults.get(),
            loud_faults: 0,
            states: self.states.unwrap_or_default(),
            reached: reached.collect(),
            now_ns: self.world.now(),
            processes: self.world.names(),
            trace: self.world.into_trace(),
            description,
            end,
        }
    }

    /// Every queue pair, as it is.
    pub(super) fn describe(&self) -> String {
        let mut text = format!(
            "at {} ns, packets go {:?}\n",
            self.world.now(),
            self.world.path.get()
        );
        for (number, peer) in self
            .connections
            .iter()
            .enumerate()
            .flat_map(|(number, ends)| ends.iter().map(move |end| (number, end)))
        {
            let process = peer.side.process + 1;
            let Some(qp) = self.world.memory.qp(peer.end.index) else {
                continue;
            };
            let life = match self.world.lives(peer.side.process) {
                true => "",
                false => " (dead)",
            };
            let requester = &qp.requester;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "\nconnection {number}: process{process}{life}, {:?} {:#x}, {:?}\n\
                 sends: {} posted, {} of them not completed; psn {:#x}, acknowledged to {:#x}\n\
                 {} retries left, deadline {} ns, {} fetches under way\n\
                 receives: {} posted, {} left; the next psn is {:#x}",
                peer.side.transport,
                peer.end.number,
                qp.state(),
                peer.side.sent.len(),
                self.world.hca(peer.side.process).outstanding(qp),
                requester.psn.get(),
                requester.unacked.get(),
                requester.retries.get(),
                requester.deadline_ns.get(),
                requester.fetching.get(),
                peer.side.receives.len(),
                qp.rq.waiting(),
                qp.responder.psn.get(),
            );
        }
        text
    }

    /// What the queue pairs would do next depends on this, and on nothing else but numbers and times.
    pub(super) fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        for peer in self.connections.iter().flatten() {
            self.world.lives(peer.side.process).hash(&mut hash);
            let Some(qp) = self.world.memory.qp(peer.end.index) else {
                continue;
            };
            let requester = &qp.requester;
            let under_way = requester.psn.get().wrapping_sub(requester.unacked.get());
            let state = [
                qp.state() as u32,
                qp.sq.waiting(),
                qp.rq.waiting(),
                under_way,
                requester.retries.get(),
                requester.not_ready.get(),
                requester.fetching.get(),
            ];
            state.hash(&mut hash);
        }
        hash.finish()
    }
}
