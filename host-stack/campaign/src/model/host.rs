//! The host process: COI's and Snapify's machines, an application that runs functions one after
//! the other, and a script that snapshots it meanwhile.

use std::{collections::BTreeMap, time::Duration};

use snaprig_coi::{
    CoiError,
    machine::{self as coi, Link, Value},
};
use snaprig_scif::{client::ScifError, node::EndpointId};
use snaprig_sim::Plan;
use snaprig_snapify::{
    SnapifyError, Step,
    machine::{self as snapify, Action, Call, Outcome as Done},
};
use snaprig_wire::{
    coi::{Answer, Channel, Command, FromDaemon, Program, RunFunction, RunResult, ToDaemon},
    scif::{HOST, NodeId, PortId, port::COI_DAEMON},
    snapify::{Reply, Request},
};

use super::{Effect, Ending, Event, World, decode, show, sockets::Heard};
use crate::{Canary, points};

/// Run functions of the application.
const RUNS: usize = 6;
/// No ticket or generation of the machine's.
const NONE: u64 = u64::MAX;

/// What an endpoint of the host process is for.
#[derive(Clone, Debug)]
pub enum Role {
    /// The process is being made over it.
    Create,
    /// A restored process is being adopted over it.
    Adopt,
    /// The owner's connection of this generation.
    Control(u64),
    /// To a daemon, for Snapify's requests.
    Snapify,
    /// A channel to the process, of this generation ([`NONE`] while it is being connected).
    Channel(u64, Channel),
}

impl Role {
    /// A frame for an endpoint with this role, as the message that it is.
    pub fn show(&self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Create | Self::Adopt | Self::Control(_) => show::<FromDaemon>(bytes),
            Self::Snapify => show::<Reply>(bytes),
            Self::Channel(_, Channel::Pipeline(_)) => show::<RunResult>(bytes),
            Self::Channel(..) => show::<Answer>(bytes),
        }
    }
}

/// Something that the host process does by itself.
#[derive(Debug)]
pub enum HostTask {
    /// The script goes on.
    Script,
    /// The rig is gone.
    RigGone,
    /// A timer of COI's machine.
    Tick,
    /// The time for an action is over.
    Timeout(u64),
}

/// What the script does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Pause,
    Capture,
    Restore,
    Resume,
    Done,
}

#[derive(Default)]
pub struct Host {
    pub alive: bool,
    /// The application's process is lost for good.
    pub lost: bool,
    process: Option<coi::Machine>,
    snapify: snapify::Machine,
    place: NodeId,
    pid: i32,
    port: u16,
    control: Option<EndpointId>,
    channels: BTreeMap<Channel, EndpointId>,
    /// Channels that are being connected, for a create or a restore.
    connecting: BTreeMap<Channel, EndpointId>,
    adopting: Option<(EndpointId, NodeId, i32, u16)>,
    current: Option<EndpointId>,
    latest: Option<EndpointId>,
    asking: Option<EndpointId>,
    quiescing: u64,
    waiting: u64,
    /// The action under way, by number, for its timeout.
    action: u64,
    next_ticket: u64,
    runs: Vec<u64>,
    done: BTreeMap<u64, Result<Value, CoiError>>,
    script: Script,
    failure: Option<String>,
}

/// Calls of Snapify, and how they went.
struct Script {
    next: Next,
    terminate: bool,
    /// Cards that restore tries, in turn.
    targets: Vec<NodeId>,
    calling: Option<Next>,
    captured: bool,
    rounds: u32,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            next: Next::Done,
            terminate: false,
            targets: Vec::new(),
            calling: None,
            captured: false,
            rounds: 0,
        }
    }
}

impl Script {
    /// What comes after a call; `None` if nothing can help any more.
    fn after(&mut self, called: Next, well: bool) -> Option<Next> {
        Some(match called {
            Next::Pause if well => {
                self.captured = false;
                Next::Capture
            }
            // It goes on without a snapshot.
            Next::Pause => Next::Done,
            Next::Capture if well => {
                self.captured = true;
                match self.targets.is_empty() {
                    true => Next::Resume,
                    false => Next::Restore,
                }
            }
            Next::Capture => Next::Resume,
            Next::Restore if well => Next::Resume,
            Next::Restore => {
                self.targets.remove(0);
                Next::Restore
            }
            Next::Resume if well && self.rounds > 1 => {
                self.rounds -= 1;
                Next::Pause
            }
            Next::Resume if well => Next::Done,
            Next::Resume if self.captured && !self.targets.is_empty() => {
                self.targets.remove(0);
                Next::Restore
            }
            Next::Resume | Next::Done => return None,
        })
    }
}

/// The scenarios that plans may name.
pub const SCENARIOS: [&str; 4] = ["migrate", "swap", "checkpoint", "twice"];

impl World {
    pub(super) fn start_host(&mut self, plan: &Plan) {
        if !self.engine.is_alive(self.host_process) {
            return;
        }
        let others = (2..=plan.cards).chain([1]);
        self.host = Host {
            alive: true,
            quiescing: NONE,
            waiting: NONE,
            next_ticket: 1,
            script: Script {
                next: Next::Pause,
                terminate: plan.scenario == "swap",
                targets: match plan.scenario.as_str() {
                    "checkpoint" => Vec::new(),
                    _ => others.collect(),
                },
                rounds: if plan.scenario == "twice" { 2 } else { 1 },
                ..Script::default()
            },
            ..Host::default()
        };
        let daemon = PortId {
            node: 1,
            port: COI_DAEMON,
        };
        self.host.place = 1;
        self.connect(HOST, daemon, super::Role::Host(Role::Create));
    }

    pub(super) fn close_endpoints_of_host(&mut self) {
        let mine = |role: &super::Role| matches!(role, super::Role::Host(_));
        let endpoints: Vec<_> = self.roles.iter().filter(|(_, role)| mine(role)).collect();
        let endpoints: Vec<_> = endpoints.into_iter().map(|((_, id), _)| *id).collect();
        for endpoint in endpoints {
            self.close(HOST, endpoint);
        }
    }

    /// The rig is gone: every endpoint is.
    fn rig_gone(&mut self) {
        self.coi(coi::Input::RigGone);
        let mine = |role: &super::Role| matches!(role, super::Role::Host(_));
        let endpoints: Vec<_> = self.roles.iter().filter(|(_, role)| mine(role)).collect();
        let endpoints: Vec<_> = endpoints.into_iter().map(|((_, id), _)| *id).collect();
        for endpoint in endpoints {
            self.gone(endpoint);
        }
    }

    /// The host process will hear that its endpoint is gone.
    pub(super) fn gone(&mut self, endpoint: EndpointId) {
        let event = Event::Hear(HOST, endpoint, Heard::Gone);
        self.engine.after(self.host_process, 0, event);
    }

    fn host_fails(&mut self, why: &str) {
        self.host.failure.get_or_insert_with(|| why.into());
        self.host.script.next = Next::Done;
    }

    pub(super) fn host_task(&mut self, task: HostTask) {
        match task {
            HostTask::Script => self.script(),
            HostTask::RigGone => self.rig_gone(),
            HostTask::Tick => self.coi(coi::Input::Tick),
            HostTask::Timeout(action) if action == self.host.action => self.action_times_out(),
            HostTask::Timeout(_) => {}
        }
    }

    pub(super) fn host_hears(&mut self, endpoint: EndpointId, role: Role, heard: Heard) {
        match (role, heard) {
            (Role::Create, Heard::Connected) => {
                let program = Program {
                    name: "sink".into(),
                    bytes: 0,
                    argv: vec![],
                    env: vec![],
                };
                self.tell(HOST, endpoint, &ToDaemon::Create(program));
            }
            (Role::Create, Heard::Frame(bytes)) => match decode(&bytes) {
                Some(FromDaemon::Created { pid, port, .. }) => {
                    (self.host.pid, self.host.port) = (pid, port);
                    self.host.control = Some(endpoint);
                    self.connect_channels();
                }
                _ => self.host_fails("the process was not made"),
            },
            (Role::Create, Heard::Gone) => self.host_fails("card 1 is gone"),
            (Role::Adopt, Heard::Frame(bytes)) => match decode(&bytes) {
                Some(FromDaemon::Adopted) => self.connect_channels(),
                _ => self.adoption_fails(),
            },
            (Role::Adopt, Heard::Connected) => {
                if let Some((_, _, pid, _)) = self.host.adopting {
                    self.tell(HOST, endpoint, &ToDaemon::Adopt { pid });
                }
            }
            (Role::Adopt, Heard::Gone) => self.adoption_fails(),
            (Role::Control(generation), Heard::Frame(bytes)) => {
                if let Some(message) = decode(&bytes) {
                    self.coi(coi::Input::Daemon(generation, message));
                }
            }
            (Role::Control(generation), Heard::Gone) => {
                self.coi(coi::Input::Lost(generation, Link::Control));
            }
            (Role::Snapify, Heard::Connected) => {
                self.tell(HOST, endpoint, &ToDaemon::Snapify);
                self.action_done(Ok(Done::Done));
            }
            (Role::Snapify, Heard::Frame(bytes)) if self.host.asking == Some(endpoint) => {
                self.host.asking = None;
                let done = match decode::<Reply>(&bytes) {
                    Some(reply) => Ok(Done::Reply(reply)),
                    None => Err(lost(0, Step::Agree)),
                };
                self.action_done(done);
            }
            (Role::Snapify, Heard::Gone) => {
                // Whoever sends on it later is told that it is gone.
                self.close(HOST, endpoint);
                let connecting = self.host.latest == Some(endpoint) && self.host.asking.is_none();
                if self.host.asking == Some(endpoint) || connecting {
                    self.host.asking = None;
                    self.action_done(Err(lost(0, Step::Agree)));
                }
            }
            (Role::Channel(NONE, channel), Heard::Connected) => {
                self.tell(HOST, endpoint, &channel);
                self.channel_connected(channel);
            }
            (Role::Channel(NONE, _), Heard::Gone) => match self.host.process {
                None => self.host_fails("a channel cannot be made"),
                Some(_) => self.adoption_fails(),
            },
            (Role::Channel(generation, channel), Heard::Frame(bytes)) => {
                let input = match channel {
                    Channel::Command => {
                        decode(&bytes).map(|answer| coi::Input::Answer(generation, answer))
                    }
                    Channel::Pipeline(number) => {
                        decode(&bytes).map(|result| coi::Input::Result(generation, number, result))
                    }
                    Channel::Dma => None,
                };
                if let Some(input) = input {
                    self.coi(input);
                }
            }
            (Role::Channel(generation, channel), Heard::Gone) => {
                if let Some(link) = link(channel) {
                    self.coi(coi::Input::Lost(generation, link));
                }
            }
            _ => {}
        }
    }

    // Channels, for a create and for a restore.

    fn connect_channels(&mut self) {
        let (node, port) = match self.host.adopting {
            Some((_, node, _, port)) => (node, port),
            None => (self.host.place, self.host.port),
        };
        let channel = Channel::Dma;
        let role = super::Role::Host(Role::Channel(NONE, channel));
        let endpoint = self.connect(HOST, PortId { node, port }, role);
        self.host.connecting = BTreeMap::from([(channel, endpoint)]);
    }

    fn channel_connected(&mut self, channel: Channel) {
        let next = match channel {
            Channel::Dma => Channel::Command,
            Channel::Command => Channel::Pipeline(0),
            Channel::Pipeline(_) => return self.channels_connected(),
        };
        let (node, port) = match self.host.adopting {
            Some((_, node, _, port)) => (node, port),
            None => (self.host.place, self.host.port),
        };
        let role = super::Role::Host(Role::Channel(NONE, next));
        let endpoint = self.connect(HOST, PortId { node, port }, role);
        self.host.connecting.insert(next, endpoint);
    }

    fn channels_connected(&mut self) {
        let moved = self.host.adopting.take();
        let old = std::mem::replace(
            &mut self.host.channels,
            std::mem::take(&mut self.host.connecting),
        );
        let old_control = match moved {
            Some((control, node, pid, port)) => {
                (self.host.place, self.host.pid, self.host.port) = (node, pid, port);
                self.host.control.replace(control)
            }
            None => None,
        };
        match moved {
            Some((_, node, pid, _)) => self.coi(coi::Input::Moved { node, pid }),
            None => {
                let mut process = coi::Machine::new(self.host.place, self.host.pid);
                process.handle(coi::Input::AddPipeline, Duration::ZERO);
                self.host.process = Some(process);
            }
        }
        let generation = self
            .host
            .process
            .as_ref()
            .map_or(0, coi::Machine::generation);
        for (channel, endpoint) in self.host.channels.clone() {
            let role = super::Role::Host(Role::Channel(generation, channel));
            self.roles.insert((HOST, endpoint), role);
        }
        if let Some(control) = self.host.control {
            let role = super::Role::Host(Role::Control(generation));
            self.roles.insert((HOST, control), role);
        }
        for endpoint in old.into_values().chain(old_control) {
            self.close(HOST, endpoint);
        }
        if moved.is_some() {
            let ticket = self.ticket();
            self.host.waiting = ticket;
            self.coi(coi::Input::Windows(ticket));
        } else {
            self.start_work();
        }
    }

    fn adoption_fails(&mut self) {
        let Some((control, node, ..)) = self.host.adopting.take() else {
            return;
        };
        self.close(HOST, control);
        for endpoint in std::mem::take(&mut self.host.connecting).into_values() {
            self.close(HOST, endpoint);
        }
        self.action_done(Err(lost(node, Step::Reconnect)));
    }

    // The application.

    fn start_work(&mut self) {
        for _ in 0..RUNS {
            let ticket = self.ticket();
            self.host.runs.push(ticket);
            let function = RunFunction {
                function: 1,
                buffers: vec![],
                misc: vec![],
                return_len: 8,
            };
            self.coi(coi::Input::Run(ticket, 0, function));
        }
        let ticket = self.ticket();
        self.coi(coi::Input::Command(
            ticket,
            Command::Function("next".into()),
        ));
        // The script begins somewhere in the middle of the work.
        let event = Event::Host(HostTask::Script);
        self.engine.after(self.host_process, 30_000, event);
    }

    fn ticket(&mut self) -> u64 {
        self.host.next_ticket += 1;
        self.host.next_ticket
    }

    pub(super) fn coi(&mut self, input: coi::Input) {
        let now = Duration::from_nanos(self.engine.now_ns());
        let Some(process) = &mut self.host.process else {
            return;
        };
        let due = process.deadline();
        process.handle(input, now);
        if let Some(at) = process.deadline().filter(|_| due.is_none()) {
            let event = Event::Host(HostTask::Tick);
            self.engine
                .at(self.host_process, at.as_nanos() as u64, event);
        }
        while let Some(output) = self
            .host
            .process
            .as_mut()
            .and_then(coi::Machine::poll_output)
        {
            match output {
                coi::Output::Command(_, command) => {
                    if let Some(endpoint) = self.host.channels.get(&Channel::Command).copied() {
                        self.tell(HOST, endpoint, &command);
                    }
                }
                coi::Output::Run(generation, number, function) => {
                    let channel = Channel::Pipeline(number);
                    if let Some(endpoint) = self.host.channels.get(&channel).copied() {
                        self.tell(HOST, endpoint, &function);
                    }
                    self.coi(coi::Input::Sent(generation, number));
                }
                coi::Output::Done(ticket, result) => self.told(ticket, result),
            }
        }
    }

    fn told(&mut self, ticket: u64, result: Result<Value, CoiError>) {
        let quiesced = self.host.quiescing == ticket;
        let waited = self.host.waiting == ticket;
        if quiesced || waited {
            (self.host.quiescing, self.host.waiting) = (NONE, NONE);
            let sent = self.host.process.as_ref().map(coi::Machine::sent);
            let done = result.map(|_| match quiesced {
                true => Done::Quiet(sent.unwrap_or_default()),
                false => Done::Done,
            });
            return self.action_done(done.map_err(SnapifyError::Coi));
        }
        if self.host.done.insert(ticket, result).is_some() {
            self.violation("a caller was told twice");
        }
    }

    // Snapify.

    fn call(&mut self, call: Call) {
        let (node, pid) = (self.host.place, self.host.pid);
        self.snapify(snapify::Input::Call(call, node, pid));
    }

    fn action_done(&mut self, done: Result<Done, SnapifyError>) {
        self.snapify(snapify::Input::Done(done));
    }

    fn snapify(&mut self, input: snapify::Input) {
        self.host.snapify.handle(input);
        while let Some(output) = self.host.snapify.poll_output() {
            if !self.engine.is_alive(self.host_process) {
                return;
            }
            match output {
                snapify::Output::Began(step) => {
                    let point = points::SNAPIFY_STEPS[step as usize];
                    if self.fault(self.host_process, &point) == Effect::Ended {
                        return;
                    }
                }
                snapify::Output::Ended(..) => {}
                snapify::Output::SwappedOut(is) => self.coi(coi::Input::SwappedOut(is)),
                snapify::Output::Switch => {
                    let latest = self.host.latest.take();
                    if let Some(old) = std::mem::replace(&mut self.host.current, latest) {
                        self.close(HOST, old);
                    }
                }
                snapify::Output::HangUp => {
                    let latest = self.host.latest.take();
                    if let Some(endpoint) = latest.or_else(|| self.host.current.take()) {
                        self.close(HOST, endpoint);
                    }
                }
                snapify::Output::Discard => self.disk.remove(super::io::PARTIAL),
                snapify::Output::Release => self.coi(coi::Input::Resume),
                snapify::Output::Returned(result) => self.returned(result),
                snapify::Output::Do(action, timeout) => {
                    self.host.action += 1;
                    if let Some(timeout) = timeout {
                        let event = Event::Host(HostTask::Timeout(self.host.action));
                        let after = timeout.as_nanos() as u64;
                        self.engine.after(self.host_process, after, event);
                    }
                    self.perform(action);
                }
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Connect(node) => {
                let peer = PortId {
                    node,
                    port: COI_DAEMON,
                };
                let role = super::Role::Host(Role::Snapify);
                self.host.latest = Some(self.connect(HOST, peer, role));
            }
            Action::Ask(Request::Drain { pid, snapshot, .. })
                if self.canary == Some(Canary::UncountedDrain) =>
            {
                let sent = Vec::new();
                self.ask(Request::Drain {
                    pid,
                    snapshot,
                    sent,
                });
            }
            Action::Ask(request) => self.ask(request),
            Action::Settle(_) if self.canary == Some(Canary::UnsettledResults) => {
                self.action_done(Ok(Done::Done));
            }
            Action::Quiesce => {
                let ticket = self.ticket();
                self.host.quiescing = ticket;
                self.coi(coi::Input::Pause(ticket));
            }
            Action::Settle(returned) => {
                let ticket = self.ticket();
                self.host.waiting = ticket;
                self.coi(coi::Input::Settle(ticket, returned));
            }
            Action::Reconnect { node, pid, port } => {
                let peer = PortId {
                    node,
                    port: COI_DAEMON,
                };
                let control = self.connect(HOST, peer, super::Role::Host(Role::Adopt));
                self.host.adopting = Some((control, node, pid, port));
            }
            Action::Prepare => {
                let done = self.prepare();
                self.action_done(done);
            }
            Action::Commit { image_bytes, .. } => {
                let done = self.commit(image_bytes);
                self.action_done(done);
            }
            Action::Verify => {
                let done = self.verify();
                self.action_done(done);
            }
        }
    }

    fn ask(&mut self, request: Request) {
        match self.host.latest.or(self.host.current) {
            Some(endpoint) if self.roles.contains_key(&(HOST, endpoint)) => {
                self.host.asking = Some(endpoint);
                self.tell(HOST, endpoint, &request);
            }
            _ => self.action_done(Err(lost(0, Step::Agree))),
        }
    }

    fn action_times_out(&mut self) {
        let quiescing = std::mem::replace(&mut self.host.quiescing, NONE);
        let waiting = std::mem::replace(&mut self.host.waiting, NONE);
        for ticket in [quiescing, waiting] {
            if ticket != NONE {
                self.coi(coi::Input::GiveUp(ticket));
            }
        }
        let asking = self.host.asking.take();
        if let Some(endpoint) = asking {
            self.close(HOST, endpoint);
        }
        if asking.is_some() || quiescing != NONE || waiting != NONE {
            self.action_done(Err(SnapifyError::Stuck(Step::Agree)));
        }
    }

    // The script.

    fn script(&mut self) {
        if self.host.script.calling.is_some() {
            return;
        }
        let next = self.host.script.next;
        let call = match next {
            Next::Pause => Call::Pause,
            Next::Capture => Call::Capture(self.host.script.terminate),
            Next::Restore => match self.host.script.targets.first().copied() {
                Some(node) => Call::Restore(node),
                None => return self.resume_or_give_up(),
            },
            Next::Resume => Call::Resume,
            Next::Done => return,
        };
        self.host.script.calling = Some(next);
        self.call(call);
    }

    fn resume_or_give_up(&mut self) {
        self.host.script.next = Next::Resume;
        self.script();
    }

    fn returned(&mut self, result: Result<u64, SnapifyError>) {
        let Some(called) = self.host.script.calling.take() else {
            return self.violation("a call returned twice");
        };
        let well = result.is_ok();
        let next = self.host.script.after(called, well);
        if next.is_none() && self.canary != Some(Canary::SilentLoss) {
            // Nothing brings it back. The application ends.
            self.host.lost = true;
            self.coi(coi::Input::RigGone);
        }
        self.host.script.next = next.unwrap_or(Next::Done);
        let event = Event::Host(HostTask::Script);
        self.engine.after(self.host_process, 0, event);
    }

    pub(super) fn describe_host(&self) -> String {
        let Host {
            process, snapify, ..
        } = &self.host;
        format!("host process\n{process:#?}\n{snapify:#?}\n\n")
    }

    // What came of it.

    pub(super) fn host_results(&self) -> Vec<Option<u64>> {
        let value = |ticket: &u64| match self.host.done.get(ticket) {
            Some(Ok(Value::Returned(value))) => {
                value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
            }
            _ => None,
        };
        self.host.runs.iter().map(value).collect()
    }

    pub(super) fn host_ending(&self) -> Ending {
        if !self.host.alive {
            return Ending::Failed("the host process was killed".into());
        }
        if let Some(why) = &self.host.failure {
            return Ending::Failed(why.clone());
        }
        if let Some(call) = self.host.script.calling {
            return Ending::Stuck(format!("{call:?} never returned"));
        }
        let mut failure = None;
        for (number, ticket) in self.host.runs.iter().enumerate() {
            match self.host.done.get(ticket) {
                None => return Ending::Stuck(format!("nobody was told of run function {number}")),
                Some(Err(error)) => failure = failure.or(Some(error.to_string())),
                Some(Ok(_)) => {}
            }
        }
        if self.host.process.is_none() {
            return Ending::Stuck("the process was never made".into());
        }
        match failure {
            Some(why) => Ending::Failed(why),
            None => Ending::Finished,
        }
    }
}

fn link(channel: Channel) -> Option<Link> {
    match channel {
        Channel::Dma => None,
        Channel::Command => Some(Link::Command),
        Channel::Pipeline(number) => Some(Link::Pipeline(number)),
    }
}

pub(super) fn lost(node: NodeId, step: Step) -> SnapifyError {
    let source = ScifError {
        call: "scif_recv",
        errno: libc::ECONNRESET,
    };
    SnapifyError::CardLost { node, step, source }
}
