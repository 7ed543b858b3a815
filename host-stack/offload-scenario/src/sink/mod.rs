//! An offload process: its machine, and the little that its threads do. Run functions count, look at
//! the buffers that they are given, and write their number into them.

mod channels;
mod runs;
mod saving;

pub(crate) use self::saving::read_copy;

use std::collections::BTreeMap;

use coi_device::{
    daemon::machine::{self as daemon, Conn, Pid},
    faults,
    offload::machine::{self as sink, Captured},
};
use snaprig_offload_wire::{
    coi::{Answer, BufferUse, Channel, Command, Exit, Notice, RunFunction, RunResult},
    snapify::{
        Hello, IMAGE, LOCAL_STORE, Link, Purpose, Reply, Request, StoredFile, Wrote,
        image as image_of,
    },
    snapify_io::Mode,
};
use snaprig_scif::node::EndpointId;
use snaprig_wire::{
    frame,
    scif::{HOST, NodeId, PAGE},
};

use snaprig_scenario::{
    links::Network as _,
    scenario::invariant,
    stage::{Effect, System as _},
};

use crate::{
    canary::Canary,
    card::refusal,
    invariants,
    state::{
        HostId,
        app::BUFFER_BYTES,
        card::Role,
        decode,
        event::{self, Event},
        sink::{Buffer, Copy, Image, Offload, Pages, Restoring, Running, Task, window},
        task::{CardTask, FromSink},
    },
    world::World,
};

/// The program of a host process's offload process.
pub fn program(host: HostId) -> String {
    format!("sink{host}")
}

impl World {
    // Beginning and end.

    pub(super) fn new_process(&mut self, node: NodeId, offload: Offload) -> Pid {
        let threads = offload.image.threads.iter();
        let computing = threads.filter(|(_, one)| one.running.is_some() && one.result.is_none());
        let computing: Vec<_> = computing.map(|(number, _)| *number).collect();
        let pid = self.card(node).next_pid;
        self.card(node).next_pid += 1;
        self.card(node).processes.insert(pid, offload);
        for pipeline in computing {
            self.compute(node, pid, pipeline);
        }
        self.give_back_later(node, pid);
        pid
    }

    pub(super) fn listen_as(&mut self, node: NodeId, pid: Pid, restarted: bool) {
        let endpoint = self.listen(node, 0, event::Role::Card(Role::Sink(pid)));
        if let Some(process) = self.living(node, pid) {
            (process.listener, process.hello) = (Some(endpoint), Some(restarted));
        }
    }

    pub(super) fn say_hello(&mut self, node: NodeId, pid: Pid, port: u16) {
        let hello = self
            .living(node, pid)
            .and_then(|process| process.hello.take());
        match hello {
            Some(false) => {
                self.connect_sink(node, pid, Purpose::Started { port });
                self.close_pipe(node, pid);
            }
            Some(true) => self.connect_sink(node, pid, Purpose::Restarted { port }),
            None => {}
        }
    }

    pub(super) fn connect_sink(&mut self, node: NodeId, pid: Pid, why: Purpose) {
        let pipe = self.number(node);
        if let Some(process) = self.living(node, pid) {
            process.pipe = Some(pipe);
            let hello = FromSink::Hello(Hello { pid, why });
            self.over_pipe(node, pipe, 1, CardTask::FromSink(pipe, Some(hello)));
        }
    }

    pub(super) fn close_pipe(&mut self, node: NodeId, pid: Pid) {
        let process = self.card(node).processes.get_mut(&pid);
        if let Some(pipe) = process.and_then(|process| process.pipe.take()) {
            self.over_pipe(node, pipe, 1, CardTask::FromSink(pipe, None));
        }
    }

    /// The process ends, in whatever way: what it had is closed.
    pub(super) fn end(&mut self, node: NodeId, pid: Pid, exit: Exit) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        process.alive = false;
        let endpoints: Vec<_> = process.channels.values().copied().collect();
        let listener = process.listener;
        self.close_pipe(node, pid);
        let of_pid = |role: &event::Role| matches!(role, event::Role::Card(Role::Channel(other, _) | Role::Sink(other)) if *other == pid);
        let more = self
            .roles
            .iter()
            .filter(|((of, _), role)| *of == node && of_pid(role));
        let more: Vec<_> = more.map(|((_, endpoint), _)| *endpoint).collect();
        for endpoint in endpoints.into_iter().chain(listener).chain(more) {
            self.close(node, endpoint);
        }
        self.end_requests_of(node, pid);
        let own = self.process_of(node);
        let event = Event::Card(node, CardTask::Exited(pid, exit));
        self.net.stage.engine.after(own, 0, event);
    }

    // Its machine.

    pub(super) fn answer_daemon(&mut self, node: NodeId, pid: Pid, reply: Reply) {
        let pipe = self.living(node, pid).and_then(|process| process.pipe);
        if let Some(pipe) = pipe {
            let reply = FromSink::Reply(reply);
            self.over_pipe(node, pipe, 1, CardTask::FromSink(pipe, Some(reply)));
        }
    }

    pub(super) fn sink(&mut self, node: NodeId, pid: Pid, input: sink::Input) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        process.machine.handle(input);
        while let Some(output) = self
            .living(node, pid)
            .and_then(|process| process.machine.poll_output())
        {
            match output {
                sink::Output::Reply(reply) => {
                    let resumed = reply == Reply::Resumed;
                    self.answer_daemon(node, pid, reply);
                    if resumed {
                        self.close_pipe(node, pid);
                    }
                }
                sink::Output::SaveLocalStore(to) => {
                    if let Some(process) = self.living(node, pid) {
                        (process.saving_to, process.stays) = (to, false);
                        process.saved.clear();
                        process.unsaved = process.buffers.keys().copied().collect();
                    }
                    self.save_local_store(node, pid);
                }
                sink::Output::ListLocalStore => self.list_local_store(node, pid),
                sink::Output::Capture {
                    snapshot,
                    terminate,
                    last,
                } => {
                    if let Some(process) = self.living(node, pid) {
                        (process.saving_to, process.ending) = (snapshot, terminate);
                        process.link = last;
                    }
                    let own = self.process_of(node);
                    let event = Event::Card(node, CardTask::Capture(pid));
                    self.net.stage.engine.after(own, 0, event);
                }
                sink::Output::Copy { snapshot, link } => {
                    if let Some(process) = self.living(node, pid) {
                        (process.saving_to, process.ending) = (snapshot, false);
                        (process.link, process.copying) = (Some(link), true);
                    }
                    let own = self.process_of(node);
                    let event = Event::Card(node, CardTask::Capture(pid));
                    self.net.stage.engine.after(own, 0, event);
                }
                sink::Output::Reconnect => self.listen_as(node, pid, true),
                sink::Output::Released => {}
            }
        }
        self.try_to_send(node, pid);
    }
}
