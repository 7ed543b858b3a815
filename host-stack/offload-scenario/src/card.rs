//! A card: the COI daemon's machine, and what it does to offload processes.

use coi_device::{
    daemon::machine::{self as daemon, Conn, Pid},
    faults,
    offload::machine as sink,
};
use snaprig_offload_wire::{
    coi::{Channel, Exit, Program, ToDaemon},
    snapify::{Purpose, Request},
};
use snaprig_scif::node::EndpointId;
use snaprig_sim::engine::Lane;
use snaprig_wire::scif::{NodeId, PAGE, port};

use snaprig_scenario::{
    links::Network as _,
    stage::{Effect, System as _},
};

use crate::{
    canary::Canary,
    state::{
        card::{Arriving, Card, Role},
        decode,
        event::{self, Event},
        sink::Offload,
        sockets::Heard,
        task::{CardTask, FromSink},
    },
    world::World,
};

/// About as long as a process takes to listen and say hello.
const LATE_NS: u64 = 5_000;

impl World {
    pub(super) fn start_card(&mut self, node: NodeId) {
        self.listen(node, port::COI_DAEMON, event::Role::Card(Role::Daemon));
    }

    pub(super) fn card(&mut self, node: NodeId) -> &mut Card {
        &mut self.cards[usize::from(node) - 1]
    }

    pub(super) fn number(&mut self, node: NodeId) -> u64 {
        let card = self.card(node);
        card.next += 1;
        card.next
    }

    /// Whether an offload process of the card is pausing or paused.
    fn pauses(&self, node: NodeId) -> bool {
        let mut processes = self.cards[usize::from(node) - 1].processes.values();
        processes.any(|process| process.machine.is_quiet())
    }

    pub(super) fn living(&mut self, node: NodeId, pid: Pid) -> Option<&mut Offload> {
        let process = self.card(node).processes.get_mut(&pid)?;
        process.is_alive().then_some(process)
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
                let role = event::Role::Card(Role::Host(conn, false));
                self.roles.insert((node, new), role);
            }
            (Role::Host(conn, false), Heard::Frame(bytes)) => {
                let message = decode::<ToDaemon>(&bytes);
                if message == Some(ToDaemon::Snapify) {
                    let role = event::Role::Card(Role::Host(conn, true));
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
            (Role::Host(conn, false), Heard::Copied(_, result)) => {
                self.brought_in(node, conn, result);
            }
            (Role::Host(..), Heard::Gone) if self.canary == Some(Canary::DeafDaemon) => {}
            (Role::Host(_, true), Heard::Gone)
                if self.canary == Some(Canary::RashDaemon) && self.pauses(node) =>
            {
                panic!("planted: a host process is gone in the middle of a pause");
            }
            (Role::Host(conn, _), Heard::Gone) => {
                self.daemon(node, daemon::Input::HostGone(conn));
                self.card(node).conns.remove(&conn);
                self.card(node).preloaded.remove(&conn);
                self.brought_in(node, conn, Err(libc::ECONNRESET));
                self.close(node, endpoint);
            }
            (Role::Sink(pid), Heard::Listening(port)) => self.say_hello(node, pid, port),
            (Role::Sink(pid), Heard::Accepted(new)) => {
                let role = event::Role::Card(Role::Channel(pid, None));
                self.roles.insert((node, new), role);
            }
            (Role::Channel(pid, None), Heard::Frame(bytes)) => {
                if let Some(channel) = decode::<Channel>(&bytes) {
                    let role = event::Role::Card(Role::Channel(pid, Some(channel)));
                    self.roles.insert((node, endpoint), role);
                    self.channel_made(node, pid, channel, endpoint);
                }
            }
            (Role::Channel(pid, Some(channel)), Heard::Frame(bytes)) => {
                self.thread(node, pid, channel, &bytes);
            }
            (Role::Channel(pid, Some(Channel::Dma)), Heard::Registered(offset)) => {
                self.window_registered(node, pid, offset);
            }
            (Role::Channel(..), Heard::Gone) => self.close(node, endpoint),
            _ => {}
        }
    }

    pub(super) fn card_task(&mut self, node: NodeId, task: CardTask) {
        if let CardTask::ToSink(pid, pipe, request) = &task
            && let Some(process) = self.living(node, *pid)
            && process.is_leaving
            && process.pipe == Some(*pipe)
        {
            self.last_word(node, *pid, request.as_ref());
        }
        let thread = task.of_thread().and_then(|pid| self.living(node, pid));
        if let Some(held) = thread.and_then(|process| process.held.as_mut()) {
            return held.push(task);
        }
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
            CardTask::Ran(pid, pipeline) => self.ran(node, pid, pipeline),
            CardTask::SendResult(pid, pipeline) => self.send_result(node, pid, pipeline),
            CardTask::SendNotice(pid) => self.send_notice(node, pid),
            CardTask::GiveBack(pid) => self.give_back(node, pid),
            CardTask::Capture(pid) => self.capture(node, pid),
            CardTask::Fetched(conn, result) => self.fetched(node, conn, result),
        }
    }

    // The daemon.

    pub(super) fn daemon(&mut self, node: NodeId, input: daemon::Input) {
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
                        self.brought_in(node, conn, Err(libc::ECONNRESET));
                    }
                }
                daemon::Output::Ask(pipe, request) => self.tell_sink(node, pipe, Some(request)),
                daemon::Output::Drop(pipe) => self.tell_sink(node, pipe, None),
                // Nothing is written here, and nobody asks for a flush.
                daemon::Output::Stdin(..)
                | daemon::Output::Proxy(..)
                | daemon::Output::Drain(..)
                | daemon::Output::Say(..) => {}
                output => {
                    let own = self.process_of(node);
                    let event = Event::Card(node, CardTask::Daemon(output));
                    self.net.stage.engine.after(own, 0, event);
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
    pub(super) fn over_pipe(
        &mut self,
        node: NodeId,
        pipe: daemon::Pipe,
        way: Lane,
        task: CardTask,
    ) {
        let own = self.process_of(node);
        let lane = 1 << 61 | Lane::from(node) << 40 | pipe << 1 | way;
        self.net
            .stage
            .engine
            .send(own, own, lane, Event::Card(node, task));
    }

    fn daemon_does(&mut self, node: NodeId, output: daemon::Output) {
        let own = self.process_of(node);
        match output {
            daemon::Output::Spawn(conn, program, _) => self.bring_in(node, conn, program),
            daemon::Output::Restore(conn, request) | daemon::Output::Preload(conn, request) => {
                self.restore(node, conn, request);
            }
            daemon::Output::Signal(pid) => match self.fault(own, &faults::SIGNAL) {
                Effect::Ended => {}
                Effect::Late(by_ns) => {
                    let event = Event::Card(node, CardTask::Daemon(daemon::Output::Signal(pid)));
                    self.net.stage.engine.after(own, by_ns, event);
                }
                _ => {
                    let waits = |process: &&mut Offload| process.pipe.is_none();
                    if self.living(node, pid).filter(waits).is_some() {
                        self.connect_sink(node, pid, Purpose::Signalled);
                    }
                }
            },
            daemon::Output::Examine(pid, exit) => {
                let why = daemon::Failure {
                    errno: 0,
                    why: format!("the process ended before it could be reached: {exit:?}"),
                };
                self.daemon(node, daemon::Input::Examined(pid, why));
            }
            daemon::Output::Kill(pid) => self.end(node, pid, Exit::Signal(libc::SIGKILL)),
            daemon::Output::CleanUp(pid) => {
                let event = Event::Card(node, CardTask::CleanedUp(pid));
                self.net.stage.engine.after(own, 0, event);
            }
            _ => {}
        }
    }

    /// The daemon brings in a program.
    fn bring_in(&mut self, node: NodeId, conn: Conn, program: Program) {
        let own = self.process_of(node);
        match self.fault(own, &faults::FETCH) {
            Effect::Ended => return,
            Effect::Late(by_ns) => {
                let output = daemon::Output::Spawn(conn, program, false);
                let event = Event::Card(node, CardTask::Daemon(output));
                return self.net.stage.engine.after(own, by_ns, event);
            }
            _ => {}
        }
        let (address, window) = (self.buffer(), program.window);
        let endpoint = self.card(node).conns.get(&conn).copied();
        let arriving = Arriving { program, address };
        self.card(node).arriving.insert(conn, arriving);
        match endpoint {
            None => self.brought_in(node, conn, Err(libc::ECONNRESET)),
            Some(endpoint) => {
                let sockets = &mut self.nodes[usize::from(node)];
                sockets.copy_memory(endpoint, address, PAGE, window, false);
                self.pump(node);
            }
        }
    }

    /// It is there, or cannot be had: it is started.
    fn brought_in(&mut self, node: NodeId, conn: Conn, result: Result<(), i32>) {
        let Some(arriving) = self.card(node).arriving.remove(&conn) else {
            return;
        };
        let (own, name) = (self.process_of(node), arriving.program.name);
        let image = self.memory.remove(&arriving.address);
        let spawned = match (result, self.fault(own, &faults::SPAWN)) {
            (_, Effect::Ended) => return,
            (Err(errno), _) | (_, Effect::Error(errno)) => Err(refusal(errno)),
            // Damaged on its way, it is no program.
            _ if image.is_none_or(|image| image != name.as_bytes()) => Err(refusal(libc::ENOEXEC)),
            _ => Ok((self.new_process(node, Offload::of_program(&name)), name)),
        };
        if let Ok((pid, _)) = spawned {
            self.listen_as(node, pid, false);
        }
        // The process may be faster than who started it.
        let event = Event::Card(node, CardTask::Spawned(conn, spawned));
        self.net.stage.engine.after(own, 3 * LATE_NS, event);
    }

    /// Offload processes on living cards.
    pub(super) fn leftovers(&self) -> Vec<String> {
        let cards = self.cards.iter();
        let living =
            cards.filter(|card| self.net.stage.engine.is_alive(self.process_of(card.node)));
        living
            .flat_map(|card| {
                let pids = card.processes.keys();
                pids.map(|pid| format!("process {pid} on card {}", card.node))
            })
            .collect()
    }
}

pub fn refusal(errno: i32) -> daemon::Failure {
    daemon::Failure {
        errno,
        why: format!("errno {errno}"),
    }
}
