//! The whole protocol in memory: a host process (COI and Snapify), two cards with their daemons,
//! and offload processes, all machines, no I/O. A seed chooses the order in which messages arrive
//! and tasks end; messages of one connection stay in order. Cards die at every step.
//!
//! What is checked: every call returns and every caller is told once; run functions have each run
//! exactly once, in order, as seen in what they return; nothing is in a channel after a pause;
//! nothing is left on a card when the host process is gone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use coi_device::{
    daemon::machine as daemon,
    offload::machine::{self as sink, Captured},
};
use snaprig_coi::{
    CoiError,
    machine::{self as coi, Link, Value},
};
use snaprig_scif::client::ScifError;
use snaprig_snapify::{
    SnapifyError, Step,
    machine::{self as snapify, Action, Call, Outcome},
};
use snaprig_wire::{
    coi::{Answer, Channel, Command, Exit, FromDaemon, Program, RunFunction, RunResult, ToDaemon},
    snapify::{Hello, Purpose, Reply, Request},
};

const CARDS: [u16; 2] = [1, 2];
const RUNS: u64 = 5;
const PORT: u16 = 2000;

type Conn = u64;
type Pid = i32;

/// Something under way, to be delivered in the order of its stream.
#[derive(Debug)]
enum Event {
    ToHost(u64, FromHostLink),
    FromControl(u16, Conn, Option<FromDaemon>),
    SnapifyReply(Conn, Option<Reply>),
    ToDaemon(u16, Conn, Option<ToCard>),
    FromSink(u16, daemon::Pipe, Option<FromSink>),
    ToSink(u16, Pid, Option<Request>),
    ToThreads(u16, Pid, u64, ToThread),
    Task(u16, Task),
}

#[derive(Debug)]
enum FromHostLink {
    Answer(Answer),
    Result(u32, RunResult),
    Lost(Link),
}

#[derive(Debug)]
enum ToCard {
    Host(ToDaemon),
    Request(Request),
}

#[derive(Debug)]
enum FromSink {
    Hello(Hello),
    Reply(Reply),
}

#[derive(Debug)]
enum ToThread {
    Connected(Channel),
    Command(Command),
    Run,
}

#[derive(Debug)]
enum Task {
    Spawned(Conn),
    Restore(Conn),
    Exited(Pid, Exit),
    CleanUp(Pid),
    Signal(Pid),
    Kill(Pid),
    Compute(Pid),
    SendResult(Pid),
    Sink(Pid, SinkTask),
}

#[derive(Debug)]
enum SinkTask {
    Save,
    Capture,
}

/// One that is stopped, copied and brought back as a whole.
#[derive(Clone, Debug)]
struct Offload {
    machine: sink::Machine,
    /// What its run functions count, and return.
    count: u64,
    running: bool,
    result: Option<u64>,
}

#[derive(Debug)]
struct Process {
    offload: Offload,
    pipe: Option<daemon::Pipe>,
    generation: u64,
    alive: bool,
}

struct Card {
    alive: bool,
    daemon: daemon::Machine,
    processes: BTreeMap<Pid, Process>,
    /// Which connections belong to the host process'"'"'s control and Snapify links.
    control: BTreeMap<Conn, u64>,
    snapify: BTreeSet<Conn>,
    next_pid: Pid,
}

struct World {
    random: u64,
    streams: BTreeMap<String, VecDeque<Event>>,
    cards: BTreeMap<u16, Card>,
    process: coi::Machine,
    snapify: snapify::Machine,
    now: std::time::Duration,
    next: u64,
    /// The host'"'"'s connections to daemons: the card of each.
    conns: BTreeMap<Conn, u16>,
    control: Option<Conn>,
    current: Option<Conn>,
    latest: Option<Conn>,
    /// What the action under way waits for.
    asking: Option<Conn>,
    quiescing: Option<u64>,
    waited: Option<u64>,
    staged: Option<Offload>,
    committed: Option<Offload>,
    done: BTreeMap<u64, Result<Value, CoiError>>,
    runs: Vec<u64>,
    returned: Option<Result<u64, SnapifyError>>,
    steps: usize,
    /// The connection, card and process of a restore.
    adopting: Option<(Conn, u16, Pid)>,
    host_alive: bool,
    /// Which card dies at which step.
    death: Option<(usize, u16)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let card = |node: u16| Card {
            alive: true,
            daemon: daemon::Machine::default(),
            processes: BTreeMap::new(),
            control: BTreeMap::new(),
            snapify: BTreeSet::new(),
            next_pid: Pid::from(node as i16) * 100,
        };
        let mut world = Self {
            random: seed,
            streams: BTreeMap::new(),
            cards: CARDS.iter().map(|node| (*node, card(*node))).collect(),
            process: coi::Machine::new(1, 100),
            snapify: snapify::Machine::default(),
            now: std::time::Duration::ZERO,
            next: 1,
            conns: BTreeMap::new(),
            control: None,
            current: None,
            latest: None,
            asking: None,
            quiescing: None,
            waited: None,
            staged: None,
            committed: None,
            done: BTreeMap::new(),
            runs: Vec::new(),
            returned: None,
            steps: 0,
            adopting: None,
            host_alive: true,
            death: None,
        };
        world.create();
        world
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn put(&mut self, stream: String, event: Event) {
        self.streams.entry(stream).or_default().push_back(event);
    }

    /// The host process makes its offload process on card 1.
    fn create(&mut self) {
        let conn = self.connect(1);
        self.control = Some(conn);
        self.card(1).control.insert(conn, 0);
        let program = Program {
            name: "sink".into(),
            bytes: 0,
            argv: vec![],
            env: vec![],
        };
        self.tell_daemon(conn, ToCard::Host(ToDaemon::Create(program)));
        self.settle();
        for channel in [Channel::Dma, Channel::Command, Channel::Pipeline(0)] {
            self.tell_threads(1, 100, 0, ToThread::Connected(channel));
        }
        self.settle();
        self.coi(coi::Input::AddPipeline);
    }

    fn card(&mut self, node: u16) -> &mut Card {
        self.cards.get_mut(&node).expect("a card")
    }

    fn connect(&mut self, node: u16) -> Conn {
        let conn = self.number();
        self.conns.insert(conn, node);
        conn
    }

    fn tell_daemon(&mut self, conn: Conn, message: ToCard) {
        let node = self.conns[&conn];
        self.put(
            format!("to daemon {conn}"),
            Event::ToDaemon(node, conn, Some(message)),
        );
    }

    fn tell_threads(&mut self, node: u16, pid: Pid, generation: u64, message: ToThread) {
        // Each channel is a connection of its own, made before anything is sent on it.
        let stream = match &message {
            ToThread::Run | ToThread::Connected(Channel::Pipeline(_)) => "run",
            _ => "command",
        };
        let stream = format!("{stream} {node} {pid} {generation}");
        self.put(stream, Event::ToThreads(node, pid, generation, message));
    }

    fn hang_up(&mut self, conn: Conn) {
        if let Some(node) = self.conns.remove(&conn) {
            self.put(
                format!("to daemon {conn}"),
                Event::ToDaemon(node, conn, None),
            );
        }
    }

    // The host process.

    fn coi(&mut self, input: coi::Input) {
        self.process.handle(input, self.now);
        while let Some(output) = self.process.poll_output() {
            let (node, pid) = self.process.place();
            match output {
                coi::Output::Command(generation, command) => {
                    self.tell_threads(node, pid, generation, ToThread::Command(command));
                }
                coi::Output::Run(generation, number, _) => {
                    self.tell_threads(node, pid, generation, ToThread::Run);
                    self.process
                        .handle(coi::Input::Sent(generation, number), self.now);
                }
                coi::Output::Done(ticket, result) => self.told(ticket, result),
            }
        }
    }

    fn told(&mut self, ticket: u64, result: Result<Value, CoiError>) {
        let quiesced = self.quiescing == Some(ticket);
        let finished = result.clone().map(|_| match quiesced {
            true => Outcome::Quiet(self.process.sent()),
            false => Outcome::Done,
        });
        assert!(self.done.insert(ticket, result).is_none(), "told twice");
        if quiesced || self.waited == Some(ticket) {
            (self.quiescing, self.waited) = (None, None);
            self.snapify(snapify::Input::Done(finished.map_err(SnapifyError::Coi)));
        }
    }

    fn call(&mut self, call: Call) {
        let (node, pid) = self.process.place();
        self.returned = None;
        self.snapify(snapify::Input::Call(call, node, pid));
    }

    fn snapify(&mut self, input: snapify::Input) {
        self.snapify.handle(input);
        while let Some(output) = self.snapify.poll_output() {
            match output {
                snapify::Output::Began(_) | snapify::Output::Ended(..) => {}
                snapify::Output::SwappedOut(is) => self.coi(coi::Input::SwappedOut(is)),
                snapify::Output::Switch => {
                    let old = std::mem::replace(&mut self.current, self.latest.take());
                    if let Some(old) = old {
                        self.hang_up(old);
                    }
                }
                snapify::Output::HangUp => {
                    let dropped = self.latest.take().or_else(|| self.current.take());
                    if let Some(conn) = dropped {
                        self.hang_up(conn);
                    }
                }
                snapify::Output::Discard => self.staged = None,
                snapify::Output::Release => self.coi(coi::Input::Resume),
                snapify::Output::Returned(result) => {
                    assert!(self.returned.replace(result).is_none(), "returned twice");
                }
                snapify::Output::Do(action, _) => {
                    if let Some(done) = self.perform(action) {
                        self.snapify.handle(snapify::Input::Done(done));
                    }
                }
            }
        }
    }

    fn perform(&mut self, action: Action) -> Option<Result<Outcome, SnapifyError>> {
        let lost = |node| {
            let step = Step::Agree;
            let source = ScifError {
                call: "test",
                errno: 104,
            };
            Some(Err(SnapifyError::CardLost { node, step, source }))
        };
        match action {
            Action::Prepare => Some(Ok(Outcome::Prepared("/snapshot".into()))),
            Action::Connect(node) => {
                if !self.card(node).alive {
                    return lost(node);
                }
                let conn = self.connect(node);
                self.card(node).snapify.insert(conn);
                self.latest = Some(conn);
                self.tell_daemon(conn, ToCard::Host(ToDaemon::Snapify));
                Some(Ok(Outcome::Done))
            }
            Action::Ask(request) => {
                let conn = self.latest.or(self.current);
                match conn.filter(|conn| self.conns.contains_key(conn)) {
                    Some(conn) => {
                        self.asking = Some(conn);
                        self.tell_daemon(conn, ToCard::Request(request));
                        None
                    }
                    None => lost(0),
                }
            }
            Action::Quiesce => {
                let ticket = self.number();
                self.quiescing = Some(ticket);
                self.coi(coi::Input::Pause(ticket));
                None
            }
            Action::Settle(returned) => {
                let ticket = self.number();
                self.waited = Some(ticket);
                self.coi(coi::Input::Settle(ticket, returned));
                None
            }
            Action::Commit { .. } => {
                self.committed = self.staged.take();
                assert!(self.committed.is_some(), "a snapshot was captured");
                Some(Ok(Outcome::Done))
            }
            Action::Verify => Some(Ok(Outcome::Verified {
                snapshot: "/snapshot".into(),
                local_store: vec![],
                binaries: vec![],
                image_bytes: 1,
            })),
            Action::Reconnect { node, pid, .. } => {
                if !self.card(node).alive {
                    return lost(node);
                }
                let conn = self.connect(node);
                self.adopting = Some((conn, node, pid));
                self.tell_daemon(conn, ToCard::Host(ToDaemon::Adopt { pid }));
                None
            }
        }
    }

    /// The daemon has answered the adoption, or is gone.
    fn adopted(&mut self, is: bool) {
        let Some((conn, node, pid)) = self.adopting.take() else {
            return;
        };
        if !is {
            let lost = CoiError::CardLost { node };
            return self.snapify(snapify::Input::Done(Err(lost.into())));
        }
        self.coi(coi::Input::Moved { node, pid });
        let generation = self.process.generation();
        self.card(node).control.insert(conn, generation);
        if let Some(old) = self.control.replace(conn) {
            self.hang_up(old);
        }
        if let Some(process) = self.card(node).processes.get_mut(&pid) {
            process.generation = generation;
        }
        for channel in [Channel::Dma, Channel::Command, Channel::Pipeline(0)] {
            self.tell_threads(node, pid, generation, ToThread::Connected(channel));
        }
        let ticket = self.number();
        self.waited = Some(ticket);
        self.coi(coi::Input::Windows(ticket));
    }

    // A card.

    fn daemon(&mut self, node: u16, input: daemon::Input) {
        self.card(node).daemon.handle(input);
        while let Some(output) = self.card(node).daemon.poll_output() {
            let task = |task| Event::Task(node, task);
            let own = self.number();
            match output {
                daemon::Output::Spawn(conn, ..) => {
                    self.put(format!("task {own}"), task(Task::Spawned(conn)));
                }
                daemon::Output::Restore(conn, _) => {
                    self.put(format!("task {own}"), task(Task::Restore(conn)));
                }
                daemon::Output::Tell(conn, message) => {
                    let event = Event::FromControl(node, conn, Some(message));
                    self.put(format!("from daemon {conn}"), event);
                }
                daemon::Output::Answer(conn, reply) => {
                    self.put(
                        format!("from daemon {conn}"),
                        Event::SnapifyReply(conn, Some(reply)),
                    );
                }
                daemon::Output::HangUp(conn) => self.conn_lost(node, conn),
                daemon::Output::Ask(pipe, request) => {
                    if let Some(pid) = self.pid_of(node, pipe) {
                        let event = Event::ToSink(node, pid, Some(request));
                        self.put(format!("to sink {node} {pipe}"), event);
                    }
                }
                daemon::Output::Drop(pipe) => {
                    if let Some(pid) = self.pid_of(node, pipe) {
                        let event = Event::ToSink(node, pid, None);
                        self.put(format!("to sink {node} {pipe}"), event);
                    }
                }
                daemon::Output::Signal(pid) => {
                    self.put(format!("task {own}"), task(Task::Signal(pid)));
                }
                daemon::Output::Kill(pid) => {
                    self.put(format!("task {own}"), task(Task::Kill(pid)));
                }
                daemon::Output::CleanUp(pid) => {
                    self.put(format!("task {own}"), task(Task::CleanUp(pid)));
                }
                daemon::Output::Stdin(..) => {}
            }
        }
    }

    fn pid_of(&mut self, node: u16, pipe: daemon::Pipe) -> Option<Pid> {
        let mut processes = self.card(node).processes.iter();
        let found = processes.find(|(_, process)| process.pipe == Some(pipe));
        found.map(|(pid, _)| *pid)
    }

    /// The host'"'"'s end of a connection to a daemon sees it break.
    fn conn_lost(&mut self, node: u16, conn: Conn) {
        let event = match self.card(node).snapify.contains(&conn) {
            true => Event::SnapifyReply(conn, None),
            false => Event::FromControl(node, conn, None),
        };
        self.put(format!("from daemon {conn}"), event);
        self.conns.remove(&conn);
    }

    /// A process ends, in whatever way.
    fn end(&mut self, node: u16, pid: Pid, exit: Exit) {
        let own = self.number();
        let Some(process) = self.card(node).processes.get_mut(&pid) else {
            return;
        };
        if !std::mem::replace(&mut process.alive, false) {
            return;
        }
        let (pipe, generation) = (process.pipe, process.generation);
        if let Some(pipe) = pipe {
            self.put(
                format!("from sink {node} {pipe}"),
                Event::FromSink(node, pipe, None),
            );
        }
        self.links_lost(generation, pid, node);
        self.put(
            format!("task {own}"),
            Event::Task(node, Task::Exited(pid, exit)),
        );
    }

    fn links_lost(&mut self, generation: u64, pid: Pid, node: u16) {
        for (name, link) in [("command", Link::Command), ("run", Link::Pipeline(0))] {
            let lost = Event::ToHost(generation, FromHostLink::Lost(link));
            self.put(format!("from {name} {node} {pid} {generation}"), lost);
        }
    }

    fn connect_sink(&mut self, node: u16, pid: Pid, why: Purpose) {
        let pipe = self.number();
        self.card(node)
            .processes
            .get_mut(&pid)
            .expect("it lives")
            .pipe = Some(pipe);
        let hello = FromSink::Hello(Hello { pid, why });
        self.put(
            format!("from sink {node} {pipe}"),
            Event::FromSink(node, pipe, Some(hello)),
        );
    }

    fn sink(&mut self, node: u16, pid: Pid, input: sink::Input) {
        let Some(process) = self.card(node).processes.get_mut(&pid) else {
            return;
        };
        if !process.alive {
            return;
        }
        process.offload.machine.handle(input);
        loop {
            let own = self.number();
            let process = self.card(node).processes.get_mut(&pid).expect("it lives");
            let Some(output) = process.offload.machine.poll_output() else {
                break;
            };
            let pipe = process.pipe;
            let task = |task| Event::Task(node, Task::Sink(pid, task));
            match output {
                sink::Output::Reply(reply) => {
                    let resumed = reply == Reply::Resumed;
                    if let Some(pipe) = pipe {
                        let event = Event::FromSink(node, pipe, Some(FromSink::Reply(reply)));
                        self.put(format!("from sink {node} {pipe}"), event);
                        if resumed {
                            self.close_pipe(node, pid, pipe);
                        }
                    }
                }
                sink::Output::SaveLocalStore(_) => {
                    self.put(format!("task {own}"), task(SinkTask::Save));
                }
                sink::Output::Capture(_) => {
                    self.put(format!("task {own}"), task(SinkTask::Capture));
                }
                sink::Output::Reconnect => {
                    self.connect_sink(node, pid, Purpose::Restarted { port: PORT });
                }
                sink::Output::Released => {}
                sink::Output::Exit => self.end(node, pid, Exit::Code(0)),
            }
        }
        self.try_to_send(node, pid);
    }

    fn close_pipe(&mut self, node: u16, pid: Pid, pipe: daemon::Pipe) {
        self.card(node)
            .processes
            .get_mut(&pid)
            .expect("it lives")
            .pipe = None;
        self.put(
            format!("from sink {node} {pipe}"),
            Event::FromSink(node, pipe, None),
        );
    }

    fn try_to_send(&mut self, node: u16, pid: Pid) {
        let own = self.number();
        let Some(process) = self.card(node).processes.get_mut(&pid) else {
            return;
        };
        let offload = &mut process.offload;
        if process.alive
            && offload.running
            && offload.result.is_some()
            && offload.machine.may_send()
        {
            offload.running = false;
            offload.machine.handle(sink::Input::Sending);
            self.put(
                format!("task {own}"),
                Event::Task(node, Task::SendResult(pid)),
            );
        }
    }

    fn task(&mut self, node: u16, task: Task) {
        let own = self.number();
        match task {
            Task::Spawned(conn) => {
                let pid = self.add_process(
                    node,
                    Offload {
                        machine: sink::Machine::default(),
                        count: 0,
                        running: false,
                        result: None,
                    },
                );
                self.connect_sink(node, pid, Purpose::Started { port: PORT });
                self.daemon(
                    node,
                    daemon::Input::Spawned(conn, Ok((pid, "/sink".into()))),
                );
            }
            Task::Restore(conn) => {
                let offload = self.committed.clone().expect("only a committed snapshot");
                let pid = self.add_process(node, offload);
                self.sink(node, pid, sink::Input::Captured(Ok(Captured::Restarted)));
                self.daemon(node, daemon::Input::Restored(conn, Ok(pid)));
            }
            Task::Exited(pid, exit) => self.daemon(node, daemon::Input::Exited(pid, exit)),
            Task::CleanUp(pid) => {
                self.card(node).processes.remove(&pid);
                self.daemon(node, daemon::Input::CleanedUp(pid));
            }
            Task::Signal(pid) => {
                let process = self.card(node).processes.get(&pid);
                if process.is_some_and(|process| process.alive && process.pipe.is_none()) {
                    self.connect_sink(node, pid, Purpose::Signalled);
                }
            }
            Task::Kill(pid) => self.end(node, pid, Exit::Signal(9)),
            Task::Compute(pid) => {
                if let Some(process) = self.card(node).processes.get_mut(&pid) {
                    process.offload.count += 1;
                    process.offload.result = Some(process.offload.count);
                    self.try_to_send(node, pid);
                }
            }
            Task::SendResult(pid) => {
                let Some(process) = self.card(node).processes.get_mut(&pid) else {
                    return;
                };
                let generation = process.generation;
                let value = process.offload.result.take().expect("it has one");
                let alive = process.alive;
                if alive {
                    let result = RunResult::Returned(value.to_le_bytes().to_vec());
                    self.put(
                        format!("from run {node} {pid} {generation}"),
                        Event::ToHost(generation, FromHostLink::Result(0, result)),
                    );
                }
                self.sink(node, pid, sink::Input::Sent(0));
            }
            Task::Sink(pid, SinkTask::Save) => {
                self.sink(node, pid, sink::Input::Saved(Ok(vec![])));
            }
            Task::Sink(pid, SinkTask::Capture) => {
                let process = self.card(node).processes.get(&pid);
                if let Some(process) = process.filter(|process| process.alive) {
                    self.staged = Some(process.offload.clone());
                    self.sink(node, pid, sink::Input::Captured(Ok(Captured::Saved(1))));
                }
            }
        }
        let _ = own;
    }

    fn add_process(&mut self, node: u16, offload: Offload) -> Pid {
        let computing = offload.running && offload.result.is_none();
        let pid = self.card(node).next_pid;
        self.card(node).next_pid += 1;
        let process = Process {
            offload,
            pipe: None,
            generation: 0,
            alive: true,
        };
        self.card(node).processes.insert(pid, process);
        if computing {
            self.put(
                format!("compute {node} {pid}"),
                Event::Task(node, Task::Compute(pid)),
            );
        }
        pid
    }

    // Time.

    fn deliver(&mut self, event: Event) {
        match event {
            Event::ToHost(..) | Event::FromControl(..) | Event::SnapifyReply(..)
                if !self.host_alive => {}
            Event::FromControl(node, conn, message) => self.hear_control(node, conn, message),
            Event::ToHost(generation, message) => self.coi(match message {
                FromHostLink::Answer(answer) => coi::Input::Answer(generation, answer),
                FromHostLink::Result(number, result) => {
                    coi::Input::Result(generation, number, result)
                }
                FromHostLink::Lost(link) => coi::Input::Lost(generation, link),
            }),
            Event::SnapifyReply(conn, reply) => {
                if self.asking == Some(conn) {
                    self.asking = None;
                    let lost = ScifError {
                        call: "scif_recv",
                        errno: 104,
                    };
                    let result = reply.map(Outcome::Reply).ok_or(SnapifyError::CardLost {
                        node: 0,
                        step: Step::Agree,
                        source: lost,
                    });
                    self.snapify(snapify::Input::Done(result));
                }
            }
            Event::ToDaemon(node, conn, message) => {
                if self.card(node).alive {
                    self.daemon(
                        node,
                        match message {
                            Some(ToCard::Host(message)) => daemon::Input::Host(conn, message),
                            Some(ToCard::Request(request)) => daemon::Input::Request(conn, request),
                            None => daemon::Input::HostGone(conn),
                        },
                    );
                } else if self.asking == Some(conn) {
                    self.conn_lost(node, conn);
                }
            }
            Event::FromSink(node, pipe, message) if self.card(node).alive => {
                self.daemon(
                    node,
                    match message {
                        Some(FromSink::Hello(hello)) => daemon::Input::Hello(pipe, hello),
                        Some(FromSink::Reply(reply)) => daemon::Input::Reply(pipe, reply),
                        None => daemon::Input::PipeGone(pipe),
                    },
                );
            }
            Event::ToSink(node, pid, message) if self.card(node).alive => match message {
                Some(request) => self.sink(node, pid, sink::Input::Request(request)),
                None => {
                    let process = self.card(node).processes.get(&pid);
                    let pipe = process
                        .filter(|process| process.alive)
                        .and_then(|one| one.pipe);
                    if let Some(pipe) = pipe {
                        self.close_pipe(node, pid, pipe);
                        self.sink(node, pid, sink::Input::DaemonGone);
                    }
                }
            },
            Event::ToThreads(node, pid, generation, message) if self.card(node).alive => {
                self.tell_thread(node, pid, generation, message);
            }
            Event::Task(node, task) if self.card(node).alive => self.task(node, task),
            Event::FromSink(..) | Event::ToSink(..) | Event::ToThreads(..) | Event::Task(..) => {}
        }
    }

    fn hear_control(&mut self, node: u16, conn: Conn, message: Option<FromDaemon>) {
        if matches!(self.adopting, Some((adopting, ..)) if adopting == conn) {
            return self.adopted(message == Some(FromDaemon::Adopted));
        }
        if let Some(generation) = self.card(node).control.get(&conn).copied() {
            self.coi(match message {
                Some(FromDaemon::Created { .. }) => return,
                Some(message) => coi::Input::Daemon(generation, message),
                None => coi::Input::Lost(generation, Link::Control),
            });
        }
    }

    fn tell_thread(&mut self, node: u16, pid: Pid, generation: u64, message: ToThread) {
        let process = self.card(node).processes.get_mut(&pid);
        let Some(process) = process.filter(|process| process.alive) else {
            return;
        };
        match message {
            ToThread::Connected(channel) => {
                self.sink(node, pid, sink::Input::Connected(channel));
            }
            ToThread::Command(command) => {
                let answer = match command {
                    Command::Windows => Answer::Windows(vec![]),
                    Command::Function(_) => Answer::Function(1),
                    _ => Answer::Done,
                };
                self.put(
                    format!("from command {node} {pid} {generation}"),
                    Event::ToHost(generation, FromHostLink::Answer(answer)),
                );
                if command == Command::Shutdown {
                    self.sink(node, pid, sink::Input::Marker);
                }
            }
            ToThread::Run => {
                assert!(!process.offload.running, "one at a time");
                process.offload.running = true;
                self.sink(node, pid, sink::Input::Received(0));
                self.put(
                    format!("compute {node} {pid}"),
                    Event::Task(node, Task::Compute(pid)),
                );
            }
        }
    }

    /// Delivers one event of the seed'"'"'s choice; false if there is none.
    fn step(&mut self) -> bool {
        if let Some((at, node)) = self.death
            && at == self.steps
        {
            self.kill(node);
        }
        self.streams.retain(|_, stream| !stream.is_empty());
        if self.streams.is_empty() {
            let Some(due) = self.process.deadline().filter(|_| self.host_alive) else {
                return false;
            };
            self.now = due;
            self.coi(coi::Input::Tick);
            return true;
        }
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let choice = (self.random >> 33) as usize % self.streams.len();
        let stream = self.streams.values_mut().nth(choice).expect("it is there");
        let event = stream.pop_front().expect("it is not empty");
        self.steps += 1;
        self.deliver(event);
        true
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// The card'"'"'s process dies: everything that it had is gone, its links break.
    fn kill(&mut self, node: u16) {
        if !std::mem::replace(&mut self.card(node).alive, false) {
            return;
        }
        let processes = std::mem::take(&mut self.card(node).processes);
        for (pid, process) in processes {
            if process.alive {
                self.links_lost(process.generation, pid, node);
            }
        }
        let conns: Vec<_> = self.conns.iter().filter(|(_, at)| **at == node).collect();
        let conns: Vec<_> = conns.into_iter().map(|(conn, _)| *conn).collect();
        for conn in conns {
            self.conn_lost(node, conn);
        }
    }

    /// Runs until the call under way has returned.
    fn wait(&mut self) -> Result<u64, SnapifyError> {
        for _ in 0..10_000 {
            if let Some(result) = self.returned.take() {
                return result;
            }
            assert!(self.step(), "a call waits for ever");
        }
        panic!("it never comes to rest");
    }

    fn wait_some(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step();
        }
    }

    fn start_work(&mut self) {
        for _ in 0..RUNS {
            let ticket = self.number();
            self.runs.push(ticket);
            let function = RunFunction {
                function: 1,
                buffers: vec![],
                misc: vec![],
                return_len: 8,
            };
            self.coi(coi::Input::Run(ticket, 0, function));
        }
    }

    /// Results so far are 1, 2, 3 ...: each ran once, in order. How many there are.
    fn results(&self) -> u64 {
        let mut expected = 0;
        for ticket in &self.runs {
            if let Some(Ok(Value::Returned(value))) = self.done.get(ticket) {
                expected += 1;
                let value = u64::from_le_bytes(value[..].try_into().expect("8 bytes"));
                assert_eq!(value, expected, "a run function was lost or ran twice");
            }
        }
        expected
    }

    fn channels_are_empty(&self) {
        for (name, stream) in &self.streams {
            let channel = ["run ", "command ", "from run ", "from command "]
                .iter()
                .any(|prefix| name.starts_with(prefix));
            assert!(!channel || stream.is_empty(), "{name} holds {stream:?}");
        }
    }

    /// The host process goes away; nothing of it may stay on a living card.
    fn end_of_host(mut self) {
        self.host_alive = false;
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.hang_up(conn);
        }
        self.settle();
        for (node, card) in &self.cards {
            let left: Vec<_> = card.processes.keys().collect();
            assert!(!card.alive || left.is_empty(), "card {node} keeps {left:?}");
        }
    }
}

/// Pause, capture, restore on card 2, resume; after a failure, resume if that is possible.
fn scenario(world: &mut World, terminate: bool) -> Result<u64, SnapifyError> {
    world.start_work();
    let head_start = world.random >> 60;
    world.wait_some(head_start);
    world.call(Call::Pause);
    world.wait()?;
    if world.cards[&1].alive {
        world.channels_are_empty();
    }
    for call in [Call::Capture(terminate), Call::Restore(2)] {
        world.call(call);
        if world.wait().is_err() {
            break;
        }
    }
    world.call(Call::Resume);
    world.wait()
}

#[test]
fn a_migration_loses_nothing_whatever_the_order_of_events() {
    for seed in 0..4000 {
        for terminate in [false, true] {
            let mut world = World::new(seed);
            if let Err(error) = scenario(&mut world, terminate) {
                panic!("seed {seed}, terminate {terminate}: {error}");
            }
            world.settle();
            assert_eq!(world.results(), RUNS, "seed {seed}");
            world.end_of_host();
        }
    }
}

#[test]
fn a_card_that_dies_at_any_step_leaves_nobody_waiting_and_nothing_behind() {
    for seed in 0..200 {
        for terminate in [false, true] {
            let mut undisturbed = World::new(seed);
            let _ = scenario(&mut undisturbed, terminate);
            let steps = undisturbed.steps;
            for (at, node) in (0..steps).flat_map(|at| CARDS.map(|node| (at, node))) {
                let mut world = World::new(seed);
                if at < world.steps {
                    continue;
                }
                world.death = Some((at, node));
                let well = scenario(&mut world, terminate).is_ok();
                world.settle();
                let results = world.results();
                let place = world.process.place().0;
                if well && world.cards[&place].alive {
                    assert_eq!(results, RUNS, "seed {seed}, card {node} dies at {at}");
                } else if !world.process.is_paused() {
                    // Everybody has been told of the loss.
                    for ticket in &world.runs {
                        let told = world.done.contains_key(ticket);
                        assert!(told, "seed {seed}, card {node} dies at {at}");
                    }
                }
                world.end_of_host();
            }
        }
    }
}

#[test]
fn a_host_process_that_dies_at_any_step_leaves_nothing_on_the_cards() {
    for seed in 0..200 {
        for at in 0..120 {
            let mut world = World::new(seed);
            world.start_work();
            world.call(Call::Pause);
            let mut calls =
                [Call::Capture(seed % 2 == 0), Call::Restore(2), Call::Resume].into_iter();
            for _ in 0..at {
                if world.returned.take().is_some()
                    && let Some(call) = calls.next()
                {
                    world.call(call);
                }
                world.step();
            }
            world.end_of_host();
        }
    }
}
