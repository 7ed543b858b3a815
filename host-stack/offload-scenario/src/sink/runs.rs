//! Run functions of an offload process, and what it sends.

use super::*;
use crate::state::sink::{Access, Returned};

/// How long the process holds references.
const HOLD_NS: u64 = 15_000;

impl World {
    /// A run function was received.
    pub(super) fn take_run_function(
        &mut self,
        node: NodeId,
        pid: Pid,
        pipeline: u32,
        function: RunFunction,
    ) {
        let Some(task) = decode::<Task>(&function.misc) else {
            return;
        };
        let mut running = Running {
            task,
            uses: function.buffers,
            seen: Vec::new(),
        };
        self.look(node, pid, &mut running);
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let given = running.uses.iter().filter(|used| used.add_ref);
        given.for_each(|used| process.references.given(used.id));
        let again = !process.image.begun.insert(running.task.op);
        let op = running.task.op;
        let thread = process.image.threads.entry(pipeline).or_default();
        if thread.running.replace(running).is_some() {
            let how = "a run function came while another one ran";
            self.violation(invariant::MESSAGES, how);
        }
        if again {
            let how = format!("run function {op} came twice");
            self.violation(invariants::OPERATIONS, how);
        }
    }

    /// Where the cells of a run function's buffer are, if the process has it.
    fn cells_of(&mut self, node: NodeId, pid: Pid, used: &BufferUse) -> Vec<(u64, u64)> {
        let process = self.living(node, pid);
        let address = process.and_then(|one| one.buffers.get(&used.id).map(|one| one.address));
        let cells = used.offset / PAGE..(used.offset + used.len) / PAGE;
        address.map_or_else(Vec::new, |address| {
            cells.map(|cell| (cell, address + cell * PAGE)).collect()
        })
    }

    fn look(&mut self, node: NodeId, pid: Pid, running: &mut Running) {
        let uses = running.uses.iter().zip(&running.task.modes);
        let uses = uses.filter(|(_, access)| **access != Access::Write);
        for (used, _) in uses {
            for (cell, at) in self.cells_of(node, pid, used) {
                running.seen.push((used.id, cell, self.cell(at)));
            }
        }
    }

    pub(super) fn compute(&mut self, node: NodeId, pid: Pid, pipeline: u32) {
        let own = self.process_of(node);
        let by_ns = match self.fault(own, &faults::RUN_FUNCTION) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let event = Event::Card(node, CardTask::Ran(pid, pipeline));
        self.net.stage.engine.after(own, by_ns, event);
    }

    /// A run function has run.
    pub(crate) fn ran(&mut self, node: NodeId, pid: Pid, pipeline: u32) {
        let threads = self.living(node, pid).map(|one| &one.image.threads);
        let thread = threads.and_then(|threads| threads.get(&pipeline));
        let Some(mut running) = thread.and_then(|thread| thread.running.clone()) else {
            return;
        };
        self.look(node, pid, &mut running);
        let Running { task, uses, seen } = running;
        for (used, access) in uses.iter().zip(&task.modes) {
            if *access != Access::Read {
                for (cell, at) in self.cells_of(node, pid, used) {
                    self.set_cell(at, task.op);
                    if let Some(process) = self.living(node, pid) {
                        process.dirty.insert((used.id, cell));
                    }
                }
            }
        }
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let given = uses.iter().filter(|used| used.add_ref).map(|used| used.id);
        let held = given.chain(task.adds.iter().copied());
        process.image.held.extend(held.map(|id| (task.op, id)));
        task.adds.iter().for_each(|id| process.references.add(*id));
        let event = task.event.map(Notice::UserEvent);
        process.image.notices.extend(event);
        if let Some(thread) = process.image.threads.get_mut(&pipeline) {
            thread.count += 1;
            let count = thread.count;
            let returned = frame::encode(&Returned { count, seen });
            thread.result = Some(returned);
        }
        self.give_back_later(node, pid);
        self.try_to_send(node, pid);
    }

    // References.

    /// References that a process holds: since which run function, to which buffer.
    pub(crate) fn held(&self, node: NodeId, pid: Pid) -> Vec<(u64, u64)> {
        let card = self.cards.get(usize::from(node).wrapping_sub(1));
        let process = card.and_then(|card| card.processes.get(&pid));
        let process = process.filter(|process| process.is_alive());
        process.map_or_else(Vec::new, |process| {
            let held = process.image.held.iter();
            held.copied().collect()
        })
    }

    /// What the process holds, it gives back some time.
    pub(super) fn give_back_later(&mut self, node: NodeId, pid: Pid) {
        let process = self.living(node, pid);
        if process.is_some_and(|process| !process.image.held.is_empty()) {
            let own = self.process_of(node);
            let by_ns = match self.fault(own, &faults::GIVE_BACK) {
                Effect::Ended => return,
                Effect::Late(by_ns) => HOLD_NS.saturating_add(by_ns),
                _ => HOLD_NS,
            };
            let event = Event::Card(node, CardTask::GiveBack(pid));
            self.net.stage.engine.after(own, by_ns, event);
        }
    }

    /// One of them: sometimes the oldest, sometimes the newest.
    pub(crate) fn give_back(&mut self, node: NodeId, pid: Pid) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let held = &mut process.image.held;
        let one = match held.front() {
            Some((op, _)) if op % 2 == 0 => held.pop_back(),
            _ => held.pop_front(),
        };
        let id = one.map(|(_, id)| id);
        let released = id.and_then(|id| Some((id, process.references.release(id)?)));
        if let Some((id, count)) = released.filter(|(_, count)| *count > 0) {
            let told = process.references.told();
            let notice = Notice::Released { id, count, told };
            process.image.notices.push_back(notice);
            self.try_to_send(node, pid);
        }
        self.give_back_later(node, pid);
    }

    pub(crate) fn try_to_send(&mut self, node: NodeId, pid: Pid) {
        let own = self.process_of(node);
        let Some(process) = self.living(node, pid).filter(|one| one.machine.may_send()) else {
            return;
        };
        let mut sending = Vec::new();
        for (number, thread) in &mut process.image.threads {
            if thread.result.is_some() && thread.running.take().is_some() {
                process.machine.handle(sink::Input::Sending);
                sending.push(*number);
            }
        }
        let notices = !process.image.notices.is_empty() && !process.noticing;
        let notices = notices && process.channels.contains_key(&Channel::Notice);
        if notices {
            process.noticing = true;
            process.machine.handle(sink::Input::Sending);
        }
        for pipeline in sending {
            let by_ns = match self.fault(own, &faults::RESULT) {
                Effect::Ended => return,
                Effect::Late(by_ns) => by_ns,
                _ => 0,
            };
            let event = Event::Card(node, CardTask::SendResult(pid, pipeline));
            self.net.stage.engine.after(own, by_ns, event);
        }
        if notices {
            let event = Event::Card(node, CardTask::SendNotice(pid));
            self.net.stage.engine.after(own, 0, event);
        }
    }

    pub(crate) fn send_notice(&mut self, node: NodeId, pid: Pid) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        process.noticing = false;
        let endpoint = process.channels.get(&Channel::Notice).copied();
        let notice = process.image.notices.pop_front();
        if let (Some(notice), Some(endpoint)) = (notice, endpoint) {
            self.tell(node, endpoint, &notice);
        }
        self.sink(node, pid, sink::Input::Noticed);
    }

    pub(crate) fn send_result(&mut self, node: NodeId, pid: Pid, pipeline: u32) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let endpoint = process.channels.get(&Channel::Pipeline(pipeline)).copied();
        let thread = process.image.threads.get_mut(&pipeline);
        let result = thread.and_then(|thread| thread.result.take());
        if let (Some(value), Some(endpoint)) = (result, endpoint) {
            let added = process.references.tell_added();
            let told = process.references.told();
            process.image.counts.entry(pipeline).or_default().sent += 1;
            let result = RunResult::Returned { value, added, told };
            self.tell(node, endpoint, &result);
        }
        self.sink(node, pid, sink::Input::Sent(pipeline));
    }
}
