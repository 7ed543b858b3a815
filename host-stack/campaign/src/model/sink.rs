//! An offload process: its machine, and the little that its threads do. Run functions count, in the
//! process and in the buffers that they are given.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{Hash, Hasher},
};

use coi_device::{
    daemon::machine::{self as daemon, Conn, Pid},
    faults,
    offload::machine::{self as sink, Captured},
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
use crate::{
    Canary, check,
    links::{Effect, Network as _},
};

/// The program of a host process's offload process.
pub fn program(host: HostId) -> String {
    format!("sink{host}")
}

/// What a pipeline's thread does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Thread {
    /// What its run functions count, and return.
    count: u64,
    /// The buffers of the run function that runs, or whose result waits.
    running: Option<Vec<BufferUse>>,
    result: Option<u64>,
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
    /// What the host is still to be told unasked.
    notices: VecDeque<Notice>,
}

/// What is in a buffer: what run functions count in, what RMA writes to.
type Pages = (Vec<u8>, Vec<u8>);

/// A buffer: a file of local store, mapped, and a window.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    address: u64,
    offset: Option<i64>,
}

/// An offload process.
#[derive(Clone, Debug)]
pub struct Offload {
    pub machine: sink::Machine,
    image: Image,
    buffers: BTreeMap<u64, Buffer>,
    /// Buffers that are being registered, in order; the last one may be new.
    registering: VecDeque<u64>,
    creating: Option<u64>,
    windows_asked: bool,
    /// A notice is being sent.
    noticing: bool,
    /// Files of the local store: those that are saved, those that are not.
    saved: Vec<StoredFile>,
    marked: BTreeMap<u64, Pages>,
    unsaved: VecDeque<u64>,
    saving_to: String,
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
            image,
            buffers: BTreeMap::new(),
            registering: VecDeque::new(),
            creating: None,
            windows_asked: false,
            noticing: false,
            saved: Vec::new(),
            marked: BTreeMap::new(),
            unsaved: VecDeque::new(),
            saving_to: String::new(),
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
        self.engine.after(own, 0, event);
    }

    // Its machine.

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
                    let pipe = self.living(node, pid).and_then(|process| process.pipe);
                    if let Some(pipe) = pipe {
                        let reply = FromSink::Reply(reply);
                        self.over_pipe(node, pipe, 1, CardTask::FromSink(pipe, Some(reply)));
                    }
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
                sink::Output::Capture(to) => {
                    if let Some(process) = self.living(node, pid) {
                        process.saving_to = to;
                    }
                    let own = self.process_of(node);
                    let event = Event::Card(node, CardTask::Capture(pid));
                    self.engine.after(own, 0, event);
                }
                sink::Output::Reconnect => self.listen_as(node, pid, true),
                sink::Output::Released => {}
                sink::Output::Exit => self.end(node, pid, Exit::Code(0)),
            }
        }
        self.try_to_send(node, pid);
    }

    // Saving.

    /// The next file of the local store, or word that all are saved.
    fn save_local_store(&mut self, node: NodeId, pid: Pid) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let Some(id) = process.unsaved.front().copied() else {
            let files = std::mem::take(&mut process.saved);
            return self.sink(node, pid, sink::Input::Saved(Ok(files)));
        };
        let name = format!("{}{LOCAL_STORE}/{id}", process.saving_to);
        let address = process.buffers.get(&id).map_or(0, |buffer| buffer.address);
        let pages = self.pages(address);
        if let Some(process) = self.living(node, pid) {
            process.marked.insert(id, pages.clone());
        }
        self.store(node, pid, &name, frame::encode(&pages), Mode::Write);
    }

    fn pages(&self, address: u64) -> Pages {
        let page = |at: u64| self.memory.get(&at).cloned().unwrap_or_else(|| vec![0; 8]);
        (page(address), page(address + PAGE))
    }

    pub(super) fn capture(&mut self, node: NodeId, pid: Pid) {
        let own = self.process_of(node);
        match self.fault(own, &faults::IMAGE) {
            Effect::Ended => return,
            Effect::Error(errno) => {
                let failed = (errno, "the service failed".to_owned());
                return self.sink(node, pid, sink::Input::Captured(Err(failed)));
            }
            _ => {}
        }
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let (mut image, machine) = (process.image.clone(), process.machine.clone());
        let name = format!("{}{IMAGE}", process.saving_to);
        let (marked, buffers) = (process.marked.clone(), process.buffers.clone());
        for (id, buffer) in buffers {
            let pages = self.pages(buffer.address);
            if marked.get(&id) != Some(&pages) && self.canary != Some(Canary::StaleStore) {
                image.changed.insert(id, pages);
            }
        }
        self.check_cut(image.host, "at the capture", &image.counts);
        self.transfers.kept += 1;
        let kept = self.transfers.kept;
        self.transfers.machines.insert(kept, machine);
        let bytes = frame::encode(&(image, kept));
        self.store(node, pid, &name, bytes, Mode::Write);
    }

    /// A file of the process is on the host's disk, or is not.
    pub(super) fn stored(&mut self, node: NodeId, pid: Pid, name: &str, result: Result<u64, i32>) {
        let failed = |errno| (errno, format!("errno {errno}"));
        if name.ends_with(IMAGE) {
            let captured = result.map(Captured::Saved).map_err(failed);
            return self.sink(node, pid, sink::Input::Captured(captured));
        }
        match (result, self.living(node, pid)) {
            (Err(errno), _) => self.sink(node, pid, sink::Input::Saved(Err(failed(errno)))),
            (Ok(len), Some(process)) => {
                if let Some(id) = process.unsaved.pop_front() {
                    process.saved.push(StoredFile {
                        name: id.to_string(),
                        card_path: format!("/local_store/{id}"),
                        len,
                        mode: 0o600,
                    });
                }
                self.save_local_store(node, pid);
            }
            (Ok(_), None) => {}
        }
    }

    // Coming back.

    pub(super) fn restore(&mut self, node: NodeId, conn: Conn, request: Request) {
        let Request::Restore {
            snapshot,
            local_store,
            ..
        } = request
        else {
            return;
        };
        let restoring = Restoring {
            snapshot,
            files: local_store.into(),
            contents: BTreeMap::new(),
        };
        self.card(node).restoring.insert(conn, restoring);
        self.fetch_next(node, conn);
    }

    fn fetch_next(&mut self, node: NodeId, conn: Conn) {
        if let Some(restoring) = self.card(node).restoring.get(&conn) {
            let name = match restoring.files.front() {
                Some(file) => format!("{}{LOCAL_STORE}/{}", restoring.snapshot, file.name),
                None => format!("{}{IMAGE}", restoring.snapshot),
            };
            self.fetch(node, conn, &name);
        }
    }

    /// A file has come from the host, or has not.
    pub(super) fn fetched(&mut self, node: NodeId, conn: Conn, result: Result<Vec<u8>, i32>) {
        let Some(restoring) = self.card(node).restoring.get_mut(&conn) else {
            return;
        };
        if let (Ok(bytes), Some(file)) = (&result, restoring.files.pop_front()) {
            let id = file.name.parse().unwrap_or(0);
            restoring.contents.insert(id, bytes.clone());
            return self.fetch_next(node, conn);
        }
        let own = self.process_of(node);
        let result = match self.fault(own, &faults::REVIVE) {
            Effect::Ended => return,
            Effect::Error(errno) => Err(errno),
            _ => result,
        };
        let Some(restoring) = self.card(node).restoring.remove(&conn) else {
            return;
        };
        let restored = result.and_then(|bytes| self.revive(node, &bytes, restoring.contents));
        self.daemon(
            node,
            daemon::Input::Restored(conn, restored.map_err(refusal)),
        );
    }

    fn revive(
        &mut self,
        node: NodeId,
        image: &[u8],
        contents: BTreeMap<u64, Vec<u8>>,
    ) -> Result<Pid, i32> {
        let (mut image, kept) = decode::<(Image, u64)>(image).ok_or(libc::EBADMSG)?;
        let machine = self.transfers.machines.get(&kept).cloned();
        let machine = machine.ok_or(libc::EBADMSG)?;
        self.check_cut(image.host, "at the restore", &image.counts);
        let mut changed = std::mem::take(&mut image.changed);
        let mut offload = Offload::new(machine, image);
        for (id, bytes) in contents {
            let saved = decode(&bytes).ok_or(libc::EBADMSG)?;
            let pages: Pages = changed.remove(&id).unwrap_or(saved);
            let address = self.buffer();
            self.memory.insert(address, pages.0);
            self.memory.insert(address + PAGE, pages.1);
            let offset = None;
            offload.buffers.insert(id, Buffer { address, offset });
        }
        let pid = self.new_process(node, offload);
        self.sink(node, pid, sink::Input::Captured(Ok(Captured::Restarted)));
        Ok(pid)
    }

    // Channels.

    /// The host has made a channel. On the first one, all windows are registered anew.
    pub(super) fn channel_made(
        &mut self,
        node: NodeId,
        pid: Pid,
        channel: Channel,
        endpoint: EndpointId,
    ) {
        let forgets = self.canary == Some(Canary::ForgottenWindow);
        if let Some(process) = self.living(node, pid) {
            process.channels.insert(channel, endpoint);
            if channel == Channel::Dma {
                let mut lost = process.buffers.clone();
                if forgets && let Some(first) = process.buffers.first_entry() {
                    // It believes that it has the window that it had before.
                    first.into_mut().offset = Some(PAGE as i64);
                    lost.pop_first();
                }
                for (id, buffer) in lost {
                    self.register_window(node, pid, id, buffer.address);
                }
            }
        }
        self.sink(node, pid, sink::Input::Connected(channel));
    }

    fn register_window(&mut self, node: NodeId, pid: Pid, id: u64, address: u64) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        // If the channel is not there yet, all buffers are registered when it is.
        if let Some(endpoint) = process.channels.get(&Channel::Dma).copied() {
            process.registering.push_back(id);
            let sockets = &mut self.nodes[usize::from(node)];
            sockets.register(endpoint, address, BUFFER_BYTES, address);
            self.pump(node);
        }
    }

    pub(super) fn window_registered(&mut self, node: NodeId, pid: Pid, offset: i64) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let Some(id) = process.registering.pop_front() else {
            return;
        };
        let Some(buffer) = process.buffers.get_mut(&id) else {
            return;
        };
        buffer.offset = Some(offset);
        let address = buffer.address;
        let answer = if process
            .creating
            .take_if(|creating| *creating == id)
            .is_some()
        {
            Answer::Window(window(id, offset, address))
        } else if process.windows_asked && process.registering.is_empty() {
            process.windows_asked = false;
            Answer::Windows(process.windows())
        } else {
            return;
        };
        if let Some(endpoint) = process.channels.get(&Channel::Command).copied() {
            self.tell(node, endpoint, &answer);
        }
    }

    /// A thread of the process has received something on its channel.
    pub(super) fn thread(&mut self, node: NodeId, pid: Pid, channel: Channel, bytes: &[u8]) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let Some(endpoint) = process.channels.get(&channel).copied() else {
            return;
        };
        match channel {
            Channel::Command => {
                if let Some(command) = decode::<Command>(bytes) {
                    self.command(node, pid, endpoint, &command);
                }
            }
            Channel::Pipeline(number) => {
                let Some(function) = decode::<RunFunction>(bytes) else {
                    return;
                };
                process.image.counts.entry(number).or_default().received += 1;
                if function.tell_start {
                    let count = process.image.counts.entry(number).or_default().received;
                    let pipeline = number;
                    let notice = Notice::Started { pipeline, count };
                    process.image.notices.push_back(notice);
                }
                let thread = process.image.threads.entry(number).or_default();
                let before = thread.running.replace(function.buffers);
                if before.is_some() {
                    let how = "a run function came while another one ran";
                    self.violation(check::messages::NAME, how);
                }
                self.sink(node, pid, sink::Input::Received(number));
                self.compute(node, pid, number);
            }
            Channel::Dma | Channel::Notice => {}
        }
    }

    fn command(&mut self, node: NodeId, pid: Pid, endpoint: EndpointId, command: &Command) {
        let answer = match command {
            Command::CreateBuffer { id, .. } => {
                let address = self.buffer();
                if let Some(process) = self.living(node, pid) {
                    process.creating = Some(*id);
                    let offset = None;
                    process.buffers.insert(*id, Buffer { address, offset });
                }
                return self.register_window(node, pid, *id, address);
            }
            Command::Windows => match self.living(node, pid) {
                Some(process) if !process.registering.is_empty() => {
                    process.windows_asked = true;
                    return;
                }
                process => Answer::Windows(process.map_or(vec![], |one| one.windows())),
            },
            Command::Function(_) => Answer::Function(1),
            _ => Answer::Done,
        };
        self.tell(node, endpoint, &answer);
        match command {
            Command::Shutdown => self.sink(node, pid, sink::Input::Marker),
            Command::DestroyPipeline { number } => {
                let channel = Channel::Pipeline(*number);
                let process = self.living(node, pid);
                if let Some(endpoint) = process.and_then(|one| one.channels.remove(&channel)) {
                    self.close(node, endpoint);
                }
                self.sink(node, pid, sink::Input::Disconnected(channel));
            }
            _ => {}
        }
    }

    // Run functions.

    fn compute(&mut self, node: NodeId, pid: Pid, pipeline: u32) {
        let own = self.process_of(node);
        let by_ns = match self.fault(own, &faults::RUN_FUNCTION) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let event = Event::Card(node, CardTask::Ran(pid, pipeline));
        self.engine.after(own, by_ns, event);
    }

    /// A run function has run.
    pub(super) fn ran(&mut self, node: NodeId, pid: Pid, pipeline: u32) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let Some(thread) = process.image.threads.get_mut(&pipeline) else {
            return;
        };
        thread.count += 1;
        thread.result = Some(thread.count);
        let given = thread.running.clone().unwrap_or_default();
        // What it was given references to, it gives back at once.
        let referred = given.iter().filter(|buffer| buffer.add_ref);
        let released = referred.map(|buffer| Notice::Released {
            id: buffer.id,
            count: 1,
        });
        process.image.notices.extend(released);
        let buffers = given.iter();
        let buffers = buffers.filter_map(|buffer| process.buffers.get(&buffer.id));
        let addresses: Vec<_> = buffers.map(|buffer| buffer.address).collect();
        for address in addresses {
            let count = self.memory.entry(address).or_insert_with(|| vec![0; 8]);
            let now = count
                .first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes));
            *count = (now + 1).to_le_bytes().to_vec();
        }
        self.try_to_send(node, pid);
    }

    pub(super) fn try_to_send(&mut self, node: NodeId, pid: Pid) {
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
            let event = Event::Card(node, CardTask::SendResult(pid, pipeline));
            self.engine.after(own, 0, event);
        }
        if notices {
            let event = Event::Card(node, CardTask::SendNotice(pid));
            self.engine.after(own, 0, event);
        }
    }

    pub(super) fn send_notice(&mut self, node: NodeId, pid: Pid) {
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

    pub(super) fn send_result(&mut self, node: NodeId, pid: Pid, pipeline: u32) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let endpoint = process.channels.get(&Channel::Pipeline(pipeline)).copied();
        let thread = process.image.threads.get_mut(&pipeline);
        let result = thread.and_then(|thread| thread.result.take());
        if let (Some(value), Some(endpoint)) = (result, endpoint) {
            process.image.counts.entry(pipeline).or_default().sent += 1;
            let result = RunResult::Returned {
                value: value.to_le_bytes().to_vec(),
                added: vec![],
            };
            self.tell(node, endpoint, &result);
        }
        self.sink(node, pid, sink::Input::Sent(pipeline));
    }
}
