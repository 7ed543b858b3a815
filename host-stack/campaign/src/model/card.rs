//! A card: the COI daemon's machine, and offload processes, each with its machine and the little
//! that its run functions do: they count.

use std::collections::{BTreeMap, VecDeque};

use coi_device::{
    daemon::machine::{self as daemon, Conn, Pid},
    offload::machine::{self as sink, Captured},
};
use serde::{Deserialize, Serialize};
use snaprig_scif::node::EndpointId;
use snaprig_sim::engine::Lane;
use snaprig_wire::{
    coi::{Answer, Channel, Command, Exit, RunFunction, RunResult, ToDaemon},
    scif::{NodeId, port},
    snapify::{Hello, IMAGE, LOCAL_STORE, Purpose, Reply, Request, StoredFile},
    snapify_io::Mode,
};

use super::{Effect, Event, World, decode, show, sockets::Heard};
use crate::{Canary, points};

/// About as long as a process takes to listen and say hello.
const LATE_NS: u64 = 5_000;

/// What an endpoint of a card is for.
#[derive(Clone, Debug)]
pub enum Role {
    /// The daemon listens.
    Daemon,
    /// A host process talks to the daemon; true: Snapify's requests.
    Host(Conn, bool),
    /// An offload process listens.
    Sink(Pid),
    /// A channel of an offload process, once it has said which.
    Channel(Pid, Option<Channel>),
}

impl Role {
    /// A frame for an endpoint with this role, as the message that it is.
    pub fn show(&self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Daemon | Self::Sink(_) => None,
            Self::Host(_, false) => show::<ToDaemon>(bytes),
            Self::Host(_, true) => show::<Request>(bytes),
            Self::Channel(_, None) => show::<Channel>(bytes),
            Self::Channel(_, Some(Channel::Pipeline(_))) => show::<RunFunction>(bytes),
            Self::Channel(..) => show::<Command>(bytes),
        }
    }
}

/// Something that a card does by itself.
#[derive(Debug)]
pub enum CardTask {
    /// To the daemon, over the Unix socket.
    FromSink(daemon::Pipe, Option<FromSink>),
    /// To an offload process, over the same.
    ToSink(Pid, daemon::Pipe, Option<Request>),
    /// The daemon has something to do that takes its time.
    Daemon(daemon::Output),
    /// A program was started, or was not.
    Spawned(Conn, Result<(Pid, String), daemon::Failure>),
    /// A process has ended.
    Exited(Pid, Exit),
    /// Nothing of it is left.
    CleanedUp(Pid),
    /// A run function has run.
    Ran(Pid),
    /// A result is sent.
    SendResult(Pid),
    /// The service streams the process.
    Capture(Pid),
}

#[derive(Debug)]
pub enum FromSink {
    Hello(Hello),
    Reply(Reply),
}

/// What of an offload process is in its image.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Image {
    /// What its run functions count, and return.
    count: u64,
    /// A run function is running, or its result waits.
    running: bool,
    result: Option<u64>,
}

/// An offload process.
#[derive(Clone, Debug)]
struct Offload {
    machine: sink::Machine,
    image: Image,
    alive: bool,
    pipe: Option<daemon::Pipe>,
    listener: Option<EndpointId>,
    /// Why it says hello when it listens.
    hello: Option<bool>,
    channels: BTreeMap<Channel, EndpointId>,
}

impl Default for Offload {
    fn default() -> Self {
        Self {
            machine: sink::Machine::default(),
            image: Image::default(),
            alive: true,
            pipe: None,
            listener: None,
            hello: None,
            channels: BTreeMap::new(),
        }
    }
}

/// A card.
pub struct Card {
    pub node: NodeId,
    daemon: daemon::Machine,
    conns: BTreeMap<Conn, EndpointId>,
    processes: BTreeMap<Pid, Offload>,
    next: u64,
    next_pid: Pid,
    /// Restores that wait for their image.
    restoring: VecDeque<(Conn, Request)>,
}

impl Card {
    /// A card that has just booted.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            daemon: daemon::Machine::default(),
            conns: BTreeMap::new(),
            processes: BTreeMap::new(),
            next: 1,
            next_pid: Pid::from(node as i16) * 1000,
            restoring: VecDeque::new(),
        }
    }
}

impl Card {
    /// Its machines.
    pub fn describe(&self) -> String {
        let mut text = format!("{:#?}\n", self.daemon);
        for (pid, process) in &self.processes {
            let (machine, image) = (&process.machine, &process.image);
            text += &format!("offload process {pid}\n{machine:#?}\n{image:#?}\n");
        }
        text + "\n"
    }
}

impl World {
    pub(super) fn start_card(&mut self, node: NodeId) {
        self.listen(node, port::COI_DAEMON, super::Role::Card(Role::Daemon));
    }

    fn card(&mut self, node: NodeId) -> &mut Card {
        &mut self.cards[usize::from(node) - 1]
    }

    fn number(&mut self, node: NodeId) -> u64 {
        let card = self.card(node);
        card.next += 1;
        card.next
    }

    fn living(&mut self, node: NodeId, pid: Pid) -> Option<&mut Offload> {
        let process = self.card(node).processes.get_mut(&pid)?;
        process.alive.then_some(process)
    }

    pub(super) fn card_hears(
        &mut self,
        node: NodeId,
        endpoint: EndpointId,
        role: Role,
        heard: Heard,
    ) {
        match (role, heard) {
            (Role::Daemon, Heard::Accepted(new)) => {
                let conn = self.number(node);
                self.card(node).conns.insert(conn, new);
                let role = super::Role::Card(Role::Host(conn, false));
                self.roles.insert((node, new), role);
            }
            (Role::Host(conn, false), Heard::Frame(bytes)) => {
                let message = decode::<ToDaemon>(&bytes);
                if message == Some(ToDaemon::Snapify) {
                    let role = super::Role::Card(Role::Host(conn, true));
                    self.roles.insert((node, endpoint), role);
                }
                if let Some(message) = message {
                    self.daemon(node, daemon::Input::Host(conn, message));
                }
            }
            (Role::Host(conn, true), Heard::Frame(bytes)) => {
                if let Some(request) = decode(&bytes) {
                    self.daemon(node, daemon::Input::Request(conn, request));
                }
            }
            (Role::Host(..), Heard::Gone) if self.canary == Some(Canary::DeafDaemon) => {}
            (Role::Host(conn, _), Heard::Gone) => {
                self.daemon(node, daemon::Input::HostGone(conn));
                self.card(node).conns.remove(&conn);
                self.close(node, endpoint);
            }
            (Role::Sink(pid), Heard::Listening(port)) => self.say_hello(node, pid, port),
            (Role::Sink(pid), Heard::Accepted(new)) => {
                let role = super::Role::Card(Role::Channel(pid, None));
                self.roles.insert((node, new), role);
            }
            (Role::Channel(pid, None), Heard::Frame(bytes)) => {
                if let Some(channel) = decode::<Channel>(&bytes) {
                    let role = super::Role::Card(Role::Channel(pid, Some(channel)));
                    self.roles.insert((node, endpoint), role);
                    if let Some(process) = self.living(node, pid) {
                        process.channels.insert(channel, endpoint);
                    }
                    self.sink(node, pid, sink::Input::Connected(channel));
                }
            }
            (Role::Channel(pid, Some(channel)), Heard::Frame(bytes)) => {
                self.thread(node, pid, channel, &bytes);
            }
            (Role::Channel(..), Heard::Gone) => self.close(node, endpoint),
            _ => {}
        }
    }

    pub(super) fn card_task(&mut self, node: NodeId, task: CardTask) {
        match task {
            CardTask::FromSink(pipe, message) => self.daemon(
                node,
                match message {
                    Some(FromSink::Hello(hello)) => daemon::Input::Hello(pipe, hello),
                    Some(FromSink::Reply(reply)) => daemon::Input::Reply(pipe, reply),
                    None => daemon::Input::PipeGone(pipe),
                },
            ),
            CardTask::ToSink(pid, pipe, message) => {
                if self
                    .living(node, pid)
                    .is_none_or(|process| process.pipe != Some(pipe))
                {
                    return;
                }
                match message {
                    Some(request) => self.sink(node, pid, sink::Input::Request(request)),
                    None => {
                        self.close_pipe(node, pid);
                        self.sink(node, pid, sink::Input::DaemonGone);
                    }
                }
            }
            CardTask::Daemon(output) => self.daemon_does(node, output),
            CardTask::Spawned(conn, spawned) => {
                self.daemon(node, daemon::Input::Spawned(conn, spawned));
            }
            CardTask::Exited(pid, exit) => self.daemon(node, daemon::Input::Exited(pid, exit)),
            CardTask::CleanedUp(pid) => {
                self.card(node).processes.remove(&pid);
                self.daemon(node, daemon::Input::CleanedUp(pid));
            }
            CardTask::Ran(pid) => {
                if let Some(process) = self.living(node, pid) {
                    process.image.count += 1;
                    process.image.result = Some(process.image.count);
                    self.try_to_send(node, pid);
                }
            }
            CardTask::SendResult(pid) => self.send_result(node, pid),
            CardTask::Capture(pid) => self.capture(node, pid),
        }
    }

    // The daemon.

    fn daemon(&mut self, node: NodeId, input: daemon::Input) {
        self.card(node).daemon.handle(input);
        while let Some(output) = self.card(node).daemon.poll_output() {
            match output {
                daemon::Output::Tell(conn, message) => {
                    if let Some(endpoint) = self.card(node).conns.get(&conn).copied() {
                        self.tell(node, endpoint, &message);
                    }
                }
                daemon::Output::Answer(conn, reply) => {
                    if let Some(endpoint) = self.card(node).conns.get(&conn).copied() {
                        self.tell(node, endpoint, &reply);
                    }
                }
                daemon::Output::HangUp(conn) => {
                    if let Some(endpoint) = self.card(node).conns.remove(&conn) {
                        self.close(node, endpoint);
                    }
                }
                daemon::Output::Ask(pipe, request) => self.tell_sink(node, pipe, Some(request)),
                daemon::Output::Drop(pipe) => self.tell_sink(node, pipe, None),
                daemon::Output::Stdin(..) => {}
                output => {
                    let own = self.process_of(node);
                    let event = Event::Card(node, CardTask::Daemon(output));
                    self.engine.after(own, 0, event);
                }
            }
        }
    }

    fn tell_sink(&mut self, node: NodeId, pipe: daemon::Pipe, message: Option<Request>) {
        let mut processes = self.card(node).processes.iter();
        let found = processes.find(|(_, process)| process.pipe == Some(pipe));
        if let Some(pid) = found.map(|(pid, _)| *pid) {
            let task = CardTask::ToSink(pid, pipe, message);
            self.over_pipe(node, pipe, 0, task);
        }
    }

    /// Over the Unix socket between daemon and process, in order.
    fn over_pipe(&mut self, node: NodeId, pipe: daemon::Pipe, way: Lane, task: CardTask) {
        let own = self.process_of(node);
        let lane = 1 << 61 | Lane::from(node) << 40 | pipe << 1 | way;
        self.engine.send(own, own, lane, Event::Card(node, task));
    }

    fn daemon_does(&mut self, node: NodeId, output: daemon::Output) {
        let own = self.process_of(node);
        match output {
            daemon::Output::Spawn(conn, ..) => {
                let spawned = match self.fault(own, &points::COI_SPAWN) {
                    Effect::Ended => return,
                    Effect::Error(errno) => Err(refusal(errno)),
                    _ => Ok((self.new_process(node, Offload::default()), "/sink".into())),
                };
                if let Ok((pid, _)) = spawned {
                    self.listen_as(node, pid, false);
                }
                // The process may be faster than who started it.
                let late = 3 * LATE_NS;
                let event = Event::Card(node, CardTask::Spawned(conn, spawned));
                self.engine.after(own, late, event);
            }
            daemon::Output::Restore(conn, request) => {
                self.card(node).restoring.push_back((conn, request));
                self.fetch(node, conn, &format!("{}{IMAGE}", super::io::FINAL));
            }
            daemon::Output::Signal(pid) => match self.fault(own, &points::SNAPIFY_SIGNAL) {
                Effect::Ended => {}
                Effect::Late(by_ns) => {
                    let event = Event::Card(node, CardTask::Daemon(daemon::Output::Signal(pid)));
                    self.engine.after(own, by_ns, event);
                }
                _ => {
                    let waits = |process: &&mut Offload| process.pipe.is_none();
                    if self.living(node, pid).filter(waits).is_some() {
                        self.connect_sink(node, pid, Purpose::Signalled);
                    }
                }
            },
            daemon::Output::Kill(pid) => self.end(node, pid, Exit::Signal(libc::SIGKILL)),
            daemon::Output::CleanUp(pid) => {
                let event = Event::Card(node, CardTask::CleanedUp(pid));
                self.engine.after(own, 0, event);
            }
            _ => {}
        }
    }

    /// The image has come from the host, or has not.
    pub(super) fn fetched(&mut self, node: NodeId, conn: Conn, result: Result<Vec<u8>, i32>) {
        let own = self.process_of(node);
        let waiting = &mut self.card(node).restoring;
        let Some(at) = waiting.iter().position(|(other, _)| *other == conn) else {
            return;
        };
        waiting.remove(at);
        let revived = match self.fault(own, &points::SNAPIFY_REVIVE) {
            Effect::Ended => return,
            Effect::Error(errno) => Err(errno),
            _ => result,
        };
        let image = revived.and_then(|bytes| decode::<(Image, u64)>(&bytes).ok_or(libc::EBADMSG));
        let restored = match image {
            Err(errno) => Err(refusal(errno)),
            Ok((image, kept)) => match self.transfers.machines.get(&kept).cloned() {
                None => Err(refusal(libc::EBADMSG)),
                Some(machine) => {
                    let offload = Offload {
                        machine,
                        image,
                        ..Offload::default()
                    };
                    let pid = self.new_process(node, offload);
                    self.sink(node, pid, sink::Input::Captured(Ok(Captured::Restarted)));
                    Ok(pid)
                }
            },
        };
        self.daemon(node, daemon::Input::Restored(conn, restored));
    }

    // Offload processes.

    fn new_process(&mut self, node: NodeId, offload: Offload) -> Pid {
        let computing = offload.image.running && offload.image.result.is_none();
        let pid = self.card(node).next_pid;
        self.card(node).next_pid += 1;
        self.card(node).processes.insert(pid, offload);
        if computing {
            self.compute(node, pid);
        }
        pid
    }

    fn listen_as(&mut self, node: NodeId, pid: Pid, restarted: bool) {
        let endpoint = self.listen(node, 0, super::Role::Card(Role::Sink(pid)));
        if let Some(process) = self.living(node, pid) {
            (process.listener, process.hello) = (Some(endpoint), Some(restarted));
        }
    }

    fn say_hello(&mut self, node: NodeId, pid: Pid, port: u16) {
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

    fn connect_sink(&mut self, node: NodeId, pid: Pid, why: Purpose) {
        let pipe = self.number(node);
        if let Some(process) = self.living(node, pid) {
            process.pipe = Some(pipe);
            let hello = FromSink::Hello(Hello { pid, why });
            self.over_pipe(node, pipe, 1, CardTask::FromSink(pipe, Some(hello)));
        }
    }

    fn close_pipe(&mut self, node: NodeId, pid: Pid) {
        let process = self.card(node).processes.get_mut(&pid);
        if let Some(pipe) = process.and_then(|process| process.pipe.take()) {
            self.over_pipe(node, pipe, 1, CardTask::FromSink(pipe, None));
        }
    }

    /// The process ends, in whatever way: what it had is closed.
    fn end(&mut self, node: NodeId, pid: Pid, exit: Exit) {
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
                sink::Output::SaveLocalStore(_) => self.save_local_store(node, pid),
                sink::Output::Capture(_) => {
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

    fn save_local_store(&mut self, node: NodeId, pid: Pid) {
        let count = self
            .living(node, pid)
            .map_or(0, |process| process.image.count);
        let name = format!("{}{LOCAL_STORE}/1", super::io::PARTIAL);
        // The buffer holds what the run functions have counted.
        self.store(node, pid, &name, count.to_le_bytes().to_vec(), Mode::Write);
    }

    fn capture(&mut self, node: NodeId, pid: Pid) {
        let own = self.process_of(node);
        match self.fault(own, &points::SNAPIFY_IMAGE) {
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
        let (image, machine) = (process.image.clone(), process.machine.clone());
        self.transfers.kept += 1;
        let kept = self.transfers.kept;
        self.transfers.machines.insert(kept, machine);
        let bytes = snaprig_wire::frame::encode(&(image, kept));
        self.store(
            node,
            pid,
            &format!("{}{IMAGE}", super::io::PARTIAL),
            bytes,
            Mode::Write,
        );
    }

    /// A file of the process is on the host's disk, or is not.
    pub(super) fn stored(&mut self, node: NodeId, pid: Pid, name: &str, result: Result<u64, i32>) {
        let failed = |errno| (errno, format!("errno {errno}"));
        let input = match (name.ends_with(IMAGE), result) {
            (true, result) => sink::Input::Captured(result.map(Captured::Saved).map_err(failed)),
            (false, result) => sink::Input::Saved(
                result
                    .map(|len| {
                        let (name, card_path) = ("1".to_owned(), "/local_store/1".to_owned());
                        let mode = 0o600;
                        vec![StoredFile {
                            name,
                            card_path,
                            len,
                            mode,
                        }]
                    })
                    .map_err(failed),
            ),
        };
        self.sink(node, pid, input);
    }

    /// A thread of the process has received something on its channel.
    fn thread(&mut self, node: NodeId, pid: Pid, channel: Channel, bytes: &[u8]) {
        let Some(endpoint) = self
            .living(node, pid)
            .and_then(|process| process.channels.get(&channel).copied())
        else {
            return;
        };
        match channel {
            Channel::Command => {
                let Some(command) = decode::<Command>(bytes) else {
                    return;
                };
                let answer = match command {
                    Command::Windows => Answer::Windows(vec![]),
                    Command::Function(_) => Answer::Function(1),
                    _ => Answer::Done,
                };
                self.tell(node, endpoint, &answer);
                if command == Command::Shutdown {
                    self.sink(node, pid, sink::Input::Marker);
                }
            }
            Channel::Pipeline(number) => {
                if decode::<RunFunction>(bytes).is_none() {
                    return;
                }
                self.sink(node, pid, sink::Input::Received(number));
                let running = self
                    .living(node, pid)
                    .is_some_and(|process| std::mem::replace(&mut process.image.running, true));
                if running {
                    self.violation("a run function came while another one ran");
                }
                self.compute(node, pid);
            }
            Channel::Dma => {}
        }
    }

    fn compute(&mut self, node: NodeId, pid: Pid) {
        let own = self.process_of(node);
        let by_ns = match self.fault(own, &points::COI_RUN_FUNCTION) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let event = Event::Card(node, CardTask::Ran(pid));
        self.engine.after(own, by_ns, event);
    }

    fn try_to_send(&mut self, node: NodeId, pid: Pid) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let waits = process.image.running && process.image.result.is_some();
        if waits && process.machine.may_send() {
            process.image.running = false;
            process.machine.handle(sink::Input::Sending);
            let own = self.process_of(node);
            let event = Event::Card(node, CardTask::SendResult(pid));
            self.engine.after(own, 0, event);
        }
    }

    fn send_result(&mut self, node: NodeId, pid: Pid) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let channel = Channel::Pipeline(0);
        let endpoint = process.channels.get(&channel).copied();
        if let (Some(value), Some(endpoint)) = (process.image.result.take(), endpoint) {
            let result = RunResult::Returned(value.to_le_bytes().to_vec());
            self.tell(node, endpoint, &result);
        }
        self.sink(node, pid, sink::Input::Sent(0));
    }

    /// Offload processes on living cards.
    pub(super) fn leftovers(&self) -> Vec<String> {
        let cards = self.cards.iter();
        let living = cards.filter(|card| self.engine.is_alive(self.process_of(card.node)));
        living
            .flat_map(|card| {
                let pids = card.processes.keys();
                pids.map(|pid| format!("process {pid} on card {}", card.node))
            })
            .collect()
    }
}

fn refusal(errno: i32) -> daemon::Failure {
    daemon::Failure {
        errno,
        why: format!("errno {errno}"),
    }
}
