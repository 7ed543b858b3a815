//! An offload process: its machine, and the little that its threads do. Run functions count, look at
//! the buffers that they are given, and write their number into them.

mod channels;
mod runs;
mod saving;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
};

use coi_device::{
    daemon::machine::{self as daemon, Conn, Pid},
    faults,
    offload::{
        machine::{self as sink, Captured},
        references::References,
    },
};
use serde::{Deserialize, Serialize};
use snaprig_scif::node::EndpointId;
use snaprig_wire::{
    coi::{Answer, BufferUse, Channel, Command, Exit, Notice, RunFunction, RunResult, Window},
    frame,
    scif::{NodeId, PAGE},
    snapify::{Hello, IMAGE, LOCAL_STORE, Purpose, Reply, Request, StoredFile},
    snapify_io::Mode,
};

use super::{
    Event, HostId, World,
    app::BUFFER_BYTES,
    card::{CardTask, FromSink, Role, refusal},
    decode,
    ledger::Counts,
};
use super::{canary::Canary, invariants};
use crate::{
    links::Network as _,
    scenario::invariant,
    stage::{Effect, System as _},
};

use self::runs::Running;
pub use self::runs::{Returned, Task};

/// The program of a host process's offload process.
pub fn program(host: HostId) -> String {
    format!("sink{host}")
}

/// What a pipeline's thread does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Thread {
    /// What its run functions count, and return.
    count: u64,
    /// The run function that runs, or whose result waits.
    running: Option<Running>,
    result: Option<Vec<u8>>,
}

/// What of an offload process is in its image.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Image {
    host: HostId,
    threads: BTreeMap<u32, Thread>,
    /// What its pipelines have received and sent.
    counts: BTreeMap<u32, Counts>,
    /// What run functions have written to buffers since the local store was saved.
    changed: BTreeMap<u64, Pages>,
    /// References that the process holds: since which run function, and to which buffer.
    held: VecDeque<(u64, u64)>,
    /// Run functions that it has begun.
    begun: BTreeSet<u64>,
    /// What the host is still to be told unasked.
    notices: VecDeque<Notice>,
}

/// What is in a buffer, page by page.
type Pages = Vec<u64>;

/// A buffer, alone in its memory: a file of local store, mapped, and a window. The two have one
/// number.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    address: u64,
    offset: Option<i64>,
}

/// An offload process.
#[derive(Clone, Debug)]
pub struct Offload {
    pub machine: sink::Machine,
    /// Which of the references the host knows of.
    references: References,
    image: Image,
    buffers: BTreeMap<u64, Buffer>,
    /// Buffers that are being registered, in order; the last one may be new.
    registering: VecDeque<u64>,
    creating: Option<u64>,
    /// A pipeline that is to go, and has no channel yet.
    leaving: Option<u32>,
    windows_asked: bool,
    /// A notice is being sent.
    noticing: bool,
    /// Files of the local store: those that are saved, those that are not.
    saved: Vec<StoredFile>,
    marked: BTreeMap<u64, Pages>,
    unsaved: VecDeque<u64>,
    saving_to: String,
    /// The capture under way ends the process.
    ending: bool,
    /// Its image is taken, and it ends when its snapshot is complete: what its threads would do meanwhile.
    pub held: Option<Vec<CardTask>>,
    /// It has said that its image is safe, and ends if that is what it is asked for next.
    pub is_leaving: bool,
    /// The number of its last image.
    kept: u64,
    alive: bool,
    pub pipe: Option<daemon::Pipe>,
    listener: Option<EndpointId>,
    /// Why it says hello when it listens.
    hello: Option<bool>,
    pub channels: BTreeMap<Channel, EndpointId>,
}

/// A process that is being brought back: what of its files is still to come.
pub struct Restoring {
    snapshot: String,
    files: VecDeque<StoredFile>,
    contents: BTreeMap<u64, Vec<u8>>,
}

impl Offload {
    fn new(machine: sink::Machine, image: Image) -> Self {
        Self {
            machine,
            references: References::default(),
            image,
            buffers: BTreeMap::new(),
            registering: VecDeque::new(),
            creating: None,
            leaving: None,
            windows_asked: false,
            noticing: false,
            saved: Vec::new(),
            marked: BTreeMap::new(),
            unsaved: VecDeque::new(),
            saving_to: String::new(),
            ending: false,
            held: None,
            is_leaving: false,
            kept: 0,
            alive: true,
            pipe: None,
            listener: None,
            hello: None,
            channels: BTreeMap::new(),
        }
    }

    /// A process that starts.
    pub fn of_program(name: &str) -> Self {
        let host = name
            .trim_start_matches(|c: char| !c.is_ascii_digit())
            .parse();
        let image = Image {
            host: host.unwrap_or(0),
            ..Image::default()
        };
        Self::new(sink::Machine::default(), image)
    }

    pub fn is_alive(&self) -> bool {
        self.alive
    }

    pub fn describe(&self) -> String {
        format!("{:#?}\n{:#?}", self.machine, self.image)
    }

    /// What it will do next.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        self.machine.hash_state(hash);
        for thread in self.image.threads.values() {
            (thread.running.is_some(), thread.result.is_some()).hash(hash);
        }
        (self.alive, self.pipe.is_some(), self.registering.is_empty()).hash(hash);
        (self.unsaved.len(), self.windows_asked).hash(hash);
    }

    fn windows(&self) -> Vec<Window> {
        let buffers = self.buffers.iter();
        let known = buffers.filter_map(|(id, buffer)| Some((*id, buffer.offset?, buffer.address)));
        known
            .map(|(id, offset, address)| window(id, offset, address))
            .collect()
    }
}

fn window(id: u64, offset: i64, address: u64) -> Window {
    Window {
        id,
        offset,
        len: BUFFER_BYTES,
        address,
    }
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
        let endpoint = self.listen(node, 0, super::Role::Card(Role::Sink(pid)));
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
        let of_pid = |role: &super::Role| matches!(role, super::Role::Card(Role::Channel(other, _) | Role::Sink(other)) if *other == pid);
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
                        process.saving_to = to;
                        process.saved.clear();
                        process.unsaved = process.buffers.keys().copied().collect();
                    }
                    self.save_local_store(node, pid);
                }
                sink::Output::Capture {
                    snapshot,
                    terminate,
                } => {
                    if let Some(process) = self.living(node, pid) {
                        (process.saving_to, process.ending) = (snapshot, terminate);
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
