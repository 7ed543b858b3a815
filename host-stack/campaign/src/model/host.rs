//! A host process: COI's and Snapify's machines and their connections.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    time::Duration,
};

use snaprig_coi::{
    CoiError,
    machine::{self as coi, Link, Value},
};
use snaprig_scif::{client::ScifError, node::EndpointId};
use snaprig_sim::Plan;
use snaprig_snapify::{
    SnapifyError, Step, faults as snapify_faults,
    machine::{self as snapify, Action, Call, Outcome as Done},
};
use snaprig_wire::{
    coi::{Answer, Channel, FromDaemon, Notice, Program, RunResult, ToDaemon},
    scif::{HOST, NodeId, PAGE, PortId, port::COI_DAEMON},
    snapify::{Reply, Request},
};

use super::{
    App, Ending, Event, HostId, World,
    app::{Application, Script},
    decode, show,
    sockets::Heard,
};
use crate::{
    Canary, check,
    links::{Effect, Network as _},
};

/// No ticket or generation of the machine's.
const NONE: u64 = u64::MAX;

/// What an endpoint of a host process is for.
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
            Self::Channel(_, Channel::Notice) => show::<Notice>(bytes),
            Self::Channel(..) => show::<Answer>(bytes),
        }
    }
}

/// Something that a host process does by itself.
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
    /// Where the daemon reads the program's bytes.
    image: i64,
    pub channels: BTreeMap<Channel, EndpointId>,
    /// Channels that are being connected, for a create or a restore.
    connecting: BTreeMap<Channel, EndpointId>,
    adopting: Option<(EndpointId, NodeId, i32, u16)>,
    /// Connections to daemons: one that is being made, the one made last, the process's own.
    calling_daemon: Option<EndpointId>,
    latest: Option<EndpointId>,
    current: Option<EndpointId>,
    asking: Option<EndpointId>,
    quiescing: u64,
    waiting: u64,
    /// Tickets that nobody waits for any more.
    given_up: BTreeSet<u64>,
    /// The action under way, by number, for its timeout.
    action: u64,
    next_ticket: u64,
    pub app: Application,
    pub script: Script,
    /// What calls were told that went wrong.
    pub errors: Vec<String>,
    pub failure: Option<String>,
}

impl Host {
    /// Its machines.
    pub fn describe(&self) -> String {
        let Self {
            process, snapify, ..
        } = self;
        format!("host process\n{process:#?}\n{snapify:#?}\n\n")
    }

    /// What it will do next.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        self.process.is_some().hash(hash);
        if let Some(process) = &self.process {
            process.hash_state(hash);
        }
        self.snapify.hash_state(hash);
        (self.connecting.len(), self.adopting.is_some()).hash(hash);
        (
            self.latest.is_some(),
            self.asking.is_some(),
            self.failure.is_some(),
        )
            .hash(hash);
    }

    /// What came of its application.
    pub fn outcome(&self, ending: Ending, snapshot: Option<String>) -> App {
        App {
            ending,
            lost: self.lost,
            results: self.app.results(),
            buffers: self.app.buffers(),
            snapshot,
            errors: self.errors.clone(),
        }
    }
}

impl World {
    pub(super) fn start_host(&mut self, host: HostId, plan: &Plan) {
        if !self.engine.is_alive(self.host_processes[host]) {
            return;
        }
        // Each begins on a card of its own, as far as there are so many.
        let place = 1 + (host as NodeId) % plan.cards;
        self.hosts[host] = Host {
            alive: true,
            quiescing: NONE,
            waiting: NONE,
            next_ticket: 1,
            place,
            app: Application::new(&plan.workload),
            script: Script::new(plan, place),
            ..Host::default()
        };
        let daemon = PortId {
            node: place,
            port: COI_DAEMON,
        };
        self.connect(HOST, daemon, super::Role::Host(host, Role::Create));
    }

    fn endpoints_of_host(&self, host: HostId) -> Vec<EndpointId> {
        let mine = |role: &super::Role| matches!(role, super::Role::Host(of, _) if *of == host);
        let endpoints = self.roles.iter().filter(|(_, role)| mine(role));
        endpoints.map(|((_, id), _)| *id).collect()
    }

    pub(super) fn close_endpoints_of_host(&mut self, host: HostId) {
        for endpoint in self.endpoints_of_host(host) {
            self.close(HOST, endpoint);
        }
    }

    /// The rig is gone: every endpoint is.
    fn rig_gone(&mut self, host: HostId) {
        self.coi(host, coi::Input::RigGone);
        for endpoint in self.endpoints_of_host(host) {
            self.gone(HOST, endpoint);
        }
    }

    /// The program behind an endpoint of a node that is dead will hear that it is gone.
    pub(super) fn gone(&mut self, node: NodeId, endpoint: EndpointId) {
        let process = match self.roles.get(&(node, endpoint)) {
            Some(super::Role::Host(host, _)) => self.host_processes[*host],
            _ => self.process_of(node),
        };
        self.engine
            .after(process, 0, Event::Hear(node, endpoint, Heard::Gone));
    }

    fn host_fails(&mut self, host: HostId, why: &str) {
        self.hosts[host].failure.get_or_insert_with(|| why.into());
        self.hosts[host].script.stop();
    }

    pub(super) fn host_task(&mut self, host: HostId, task: HostTask) {
        match task {
            HostTask::Script => self.script(host),
            HostTask::RigGone => self.rig_gone(host),
            HostTask::Tick => self.coi(host, coi::Input::Tick),
            HostTask::Timeout(action) if action == self.hosts[host].action => {
                self.action_times_out(host);
            }
            HostTask::Timeout(_) => {}
        }
    }

    pub(super) fn host_hears(
        &mut self,
        host: HostId,
        endpoint: EndpointId,
        role: Role,
        heard: Heard,
    ) {
        match (role, heard) {
            (Role::Create, Heard::Connected) => {
                let (address, image) = (self.buffer(), super::sink::program(host));
                self.memory.insert(address, image.into_bytes());
                let node = &mut self.nodes[usize::from(HOST)];
                node.register(endpoint, address, PAGE, address);
                self.pump(HOST);
            }
            (Role::Create, Heard::Registered(window)) => {
                self.hosts[host].image = window;
                let name = super::sink::program(host);
                let program = Program {
                    bytes: name.len() as u64,
                    name,
                    window,
                    argv: vec![],
                    env: vec![],
                    libraries: vec![],
                    proxy: false,
                };
                self.tell(HOST, endpoint, &ToDaemon::Create(program));
            }
            (Role::Create, Heard::Frame(bytes)) => {
                let window = self.hosts[host].image;
                self.nodes[usize::from(HOST)].unregister(endpoint, window, PAGE);
                self.pump(HOST);
                match decode(&bytes) {
                    Some(FromDaemon::Created { pid, port, .. }) => {
                        (self.hosts[host].pid, self.hosts[host].port) = (pid, port);
                        self.hosts[host].control = Some(endpoint);
                        self.connect_channels(host);
                    }
                    _ => self.host_fails(host, "the process was not made"),
                }
            }
            (Role::Create, Heard::Gone) => self.host_fails(host, "the card is gone"),
            (Role::Adopt, Heard::Frame(bytes)) => match decode(&bytes) {
                Some(FromDaemon::Adopted) => self.connect_channels(host),
                _ => self.adoption_fails(host),
            },
            (Role::Adopt, Heard::Connected) => {
                if let Some((_, _, pid, _)) = self.hosts[host].adopting {
                    self.tell(HOST, endpoint, &ToDaemon::Adopt { pid });
                }
            }
            (Role::Adopt, Heard::Gone) => self.adoption_fails(host),
            (Role::Control(generation), Heard::Frame(bytes)) => {
                if let Some(message) = decode(&bytes) {
                    self.coi(host, coi::Input::Daemon(generation, message));
                }
            }
            (Role::Control(generation), Heard::Gone) => {
                self.coi(host, coi::Input::Lost(generation, Link::Control));
            }
            (Role::Snapify, Heard::Connected) => {
                self.hosts[host].calling_daemon = None;
                self.hosts[host].latest = Some(endpoint);
                self.tell(HOST, endpoint, &ToDaemon::Snapify);
                self.action_done(host, Ok(Done::Done));
            }
            (Role::Snapify, Heard::Frame(bytes)) if self.hosts[host].asking == Some(endpoint) => {
                self.hosts[host].asking = None;
                let done = match decode::<Reply>(&bytes) {
                    Some(reply) => Ok(Done::Reply(reply)),
                    None => Err(lost(0, Step::Agree)),
                };
                self.action_done(host, done);
            }
            (Role::Snapify, Heard::Gone) => {
                // Whoever sends on it later is told that it is gone.
                self.close(HOST, endpoint);
                let one = &mut self.hosts[host];
                let calling = one.calling_daemon.take_if(|called| *called == endpoint);
                let asking = one.asking.take_if(|asked| *asked == endpoint);
                if calling.or(asking).is_some() {
                    self.action_done(host, Err(lost(0, Step::Agree)));
                }
            }
            (Role::Channel(NONE, channel), Heard::Connected) => {
                self.tell(HOST, endpoint, &channel);
                self.channel_connected(host, channel);
            }
            (Role::Channel(NONE, _), Heard::Gone) => match self.hosts[host].process {
                None => self.host_fails(host, "a channel cannot be made"),
                Some(_) => self.adoption_fails(host),
            },
            (Role::Channel(generation, channel), Heard::Frame(bytes)) => {
                self.channel_hears(host, generation, channel, &bytes);
            }
            (Role::Channel(_, Channel::Dma), Heard::Copied(request, result)) => {
                self.rma_done(host, request, result);
            }
            // Nobody will say what became of the copies.
            (Role::Channel(_, Channel::Dma), Heard::Gone) if !self.engine.is_alive(self.rig) => {
                self.rma_done(host, 0, Err(libc::ENODEV));
            }
            (Role::Channel(generation, channel), Heard::Gone) => {
                if let Some(link) = link(channel) {
                    self.coi(host, coi::Input::Lost(generation, link));
                }
            }
            _ => {}
        }
    }

    fn channel_hears(&mut self, host: HostId, generation: u64, channel: Channel, bytes: &[u8]) {
        let input = match channel {
            Channel::Command => decode(bytes).map(|answer| coi::Input::Answer(generation, answer)),
            Channel::Pipeline(number) => {
                decode(bytes).map(|result| coi::Input::Result(generation, number, result))
            }
            Channel::Notice => decode(bytes).map(|notice| coi::Input::Notice(generation, notice)),
            Channel::Dma => None,
        };
        if let Some(input) = input {
            self.coi(host, input);
        }
    }

    // Channels to the process.

    /// Where the process is that is being connected to.
    fn place_of_channels(&self, host: HostId) -> PortId {
        let one = &self.hosts[host];
        let (node, port) = match one.adopting {
            Some((_, node, _, port)) => (node, port),
            None => (one.place, one.port),
        };
        PortId { node, port }
    }

    fn connect_channels(&mut self, host: HostId) {
        self.hosts[host].connecting.clear();
        self.connect_channel(host, Channel::Dma);
    }

    fn connect_channel(&mut self, host: HostId, channel: Channel) {
        let role = super::Role::Host(host, Role::Channel(NONE, channel));
        let endpoint = self.connect(HOST, self.place_of_channels(host), role);
        self.hosts[host].connecting.insert(channel, endpoint);
    }

    fn channel_connected(&mut self, host: HostId, channel: Channel) {
        let pipelines = self.hosts[host].app.pipelines();
        let next = match channel {
            Channel::Dma => Channel::Command,
            Channel::Command => Channel::Notice,
            Channel::Notice => Channel::Pipeline(0),
            Channel::Pipeline(last) if last + 1 < pipelines => Channel::Pipeline(last + 1),
            Channel::Pipeline(_) => return self.channels_connected(host),
        };
        self.connect_channel(host, next);
    }

    fn channels_connected(&mut self, host: HostId) {
        let one = &mut self.hosts[host];
        let moved = one.adopting.take();
        let old = std::mem::replace(&mut one.channels, std::mem::take(&mut one.connecting));
        let old_control = match moved {
            Some((control, node, pid, port)) => {
                (one.place, one.pid, one.port) = (node, pid, port);
                one.control.replace(control)
            }
            None => None,
        };
        match moved {
            Some((_, node, pid, _)) => self.coi(host, coi::Input::Moved { node, pid }),
            None => {
                let mut process = coi::Machine::new(one.place, one.pid);
                for number in 0..one.app.pipelines() {
                    process.handle(coi::Input::AddPipeline(number), Duration::ZERO);
                }
                one.process = Some(process);
            }
        }
        let one = &self.hosts[host];
        let generation = one.process.as_ref().map_or(0, coi::Machine::generation);
        for (channel, endpoint) in one.channels.clone() {
            let role = super::Role::Host(host, Role::Channel(generation, channel));
            self.roles.insert((HOST, endpoint), role);
        }
        if let Some(control) = self.hosts[host].control {
            let role = super::Role::Host(host, Role::Control(generation));
            self.roles.insert((HOST, control), role);
        }
        for endpoint in old.into_values().chain(old_control) {
            self.close(HOST, endpoint);
        }
        if moved.is_some() {
            let ticket = self.ticket(host);
            self.hosts[host].waiting = ticket;
            self.coi(host, coi::Input::Windows(ticket));
        } else {
            self.start_work(host);
        }
    }

    fn adoption_fails(&mut self, host: HostId) {
        let Some((control, node, ..)) = self.hosts[host].adopting.take() else {
            return;
        };
        self.close(HOST, control);
        for endpoint in std::mem::take(&mut self.hosts[host].connecting).into_values() {
            self.close(HOST, endpoint);
        }
        self.action_done(host, Err(lost(node, Step::Reconnect)));
    }

    // COI.

    pub(super) fn ticket(&mut self, host: HostId) -> u64 {
        self.hosts[host].next_ticket += 1;
        self.hosts[host].next_ticket
    }

    pub(super) fn coi(&mut self, host: HostId, input: coi::Input) {
        let now = Duration::from_nanos(self.engine.now_ns());
        let Some(process) = &mut self.hosts[host].process else {
            return;
        };
        let due = process.deadline();
        process.handle(input, now);
        if let Some(at) = process.deadline().filter(|_| due.is_none()) {
            let event = Event::Host(host, HostTask::Tick);
            self.engine
                .at(self.host_processes[host], at.as_nanos() as u64, event);
        }
        loop {
            let process = self.hosts[host].process.as_mut();
            let Some(output) = process.and_then(coi::Machine::poll_output) else {
                return;
            };
            match output {
                coi::Output::Command(_, command) => {
                    let channels = &self.hosts[host].channels;
                    if let Some(endpoint) = channels.get(&Channel::Command).copied() {
                        self.tell(HOST, endpoint, &command);
                    }
                }
                coi::Output::Run(generation, number, function) => {
                    let channel = Channel::Pipeline(number);
                    if let Some(endpoint) = self.hosts[host].channels.get(&channel).copied() {
                        self.ledger.of(host, number).sent += 1;
                        self.tell(HOST, endpoint, &function);
                    }
                    self.coi(host, coi::Input::Sent(generation, number));
                }
                coi::Output::Started(ticket) => self.begun(host, ticket),
                coi::Output::Notice(notice) => self.hosts[host].app.noticed(&notice),
                coi::Output::Done(ticket, result) => self.told(host, ticket, result),
                // It holds nothing any more.
                coi::Output::Gone(_) => self.hosts[host].app.process_gone(),
            }
        }
    }

    fn told(&mut self, host: HostId, ticket: u64, result: Result<Value, CoiError>) {
        let one = &mut self.hosts[host];
        let quiesced = one.quiescing == ticket;
        let waited = one.waiting == ticket;
        if quiesced || waited {
            (one.quiescing, one.waiting) = (NONE, NONE);
            let sent = one.process.as_ref().map(coi::Machine::sent);
            if let Ok(Value::Answer(Answer::Windows(windows))) = &result {
                one.app.windows_moved(windows);
            }
            let done = result.map(|_| match quiesced {
                true => Done::Quiet(sent.unwrap_or_default()),
                false => Done::Done,
            });
            return self.action_done(host, done.map_err(SnapifyError::Coi));
        }
        if one.given_up.contains(&ticket) {
            return;
        }
        if let Err(error) = &result {
            one.errors.push(error.to_string());
        }
        if self.app_told(host, ticket, result) == Told::Twice {
            self.violation(check::contradiction::NAME, "a caller was told twice");
        }
    }

    // Snapify.

    pub(super) fn call(&mut self, host: HostId, call: Call) {
        let (node, pid) = (self.hosts[host].place, self.hosts[host].pid);
        self.snapify(host, snapify::Input::Call(call, node, pid));
    }

    fn action_done(&mut self, host: HostId, done: Result<Done, SnapifyError>) {
        self.snapify(host, snapify::Input::Done(done));
    }

    fn snapify(&mut self, host: HostId, input: snapify::Input) {
        self.hosts[host].snapify.handle(input);
        while let Some(output) = self.hosts[host].snapify.poll_output() {
            let own = self.host_processes[host];
            if !self.engine.is_alive(own) {
                return;
            }
            match output {
                snapify::Output::Began(step) => {
                    if self.fault(own, &snapify_faults::of_step(step)) == Effect::Ended {
                        return;
                    }
                }
                snapify::Output::Ended(..) => {}
                snapify::Output::SwappedOut(is) => self.coi(host, coi::Input::SwappedOut(is)),
                snapify::Output::Switch => {
                    let latest = self.hosts[host].latest.take();
                    if let Some(old) = std::mem::replace(&mut self.hosts[host].current, latest) {
                        self.close(HOST, old);
                    }
                }
                snapify::Output::HangUp => {
                    let one = &mut self.hosts[host];
                    for endpoint in one.latest.take().into_iter().chain(one.current.take()) {
                        self.close(HOST, endpoint);
                    }
                }
                snapify::Output::Forget => {
                    if let Some(endpoint) = self.hosts[host].latest.take() {
                        self.close(HOST, endpoint);
                    }
                }
                snapify::Output::Discard => self.disk.remove(&super::io::partial(host)),
                snapify::Output::Release => self.coi(host, coi::Input::Resume),
                snapify::Output::Returned(result) => self.returned(host, result),
                snapify::Output::Do(action, timeout) => {
                    self.hosts[host].action += 1;
                    if let Some(timeout) = timeout {
                        let task = HostTask::Timeout(self.hosts[host].action);
                        let after = timeout.as_nanos() as u64;
                        self.engine.after(own, after, Event::Host(host, task));
                    }
                    self.perform(host, action);
                }
            }
        }
    }

    fn perform(&mut self, host: HostId, action: Action) {
        match action {
            Action::Connect(node) => {
                let peer = PortId {
                    node,
                    port: COI_DAEMON,
                };
                let role = super::Role::Host(host, Role::Snapify);
                let endpoint = self.connect(HOST, peer, role);
                self.hosts[host].calling_daemon = Some(endpoint);
            }
            Action::Ask(Request::Drain { pid, snapshot, .. })
                if self.canary == Some(Canary::UncountedDrain) =>
            {
                let sent = Vec::new();
                self.ask(
                    host,
                    Request::Drain {
                        pid,
                        snapshot,
                        sent,
                    },
                );
            }
            Action::Ask(request) => self.ask(host, request),
            Action::Settle(..) if self.canary == Some(Canary::UnsettledResults) => {
                self.action_done(host, Ok(Done::Done));
            }
            Action::Quiesce => {
                let ticket = self.ticket(host);
                self.hosts[host].quiescing = ticket;
                self.coi(host, coi::Input::Pause(ticket));
            }
            Action::Settle(returned, notices) => {
                let ticket = self.ticket(host);
                self.hosts[host].waiting = ticket;
                self.coi(host, coi::Input::Settle(ticket, returned, notices));
            }
            Action::Reconnect { node, pid, port } => {
                let peer = PortId {
                    node,
                    port: COI_DAEMON,
                };
                let control = self.connect(HOST, peer, super::Role::Host(host, Role::Adopt));
                self.hosts[host].adopting = Some((control, node, pid, port));
            }
            Action::Prepare => {
                let done = self.prepare(host);
                self.action_done(host, done);
            }
            Action::Commit {
                local_store,
                image_bytes,
            } => {
                let done = self.commit(host, &local_store, image_bytes);
                self.action_done(host, done);
            }
            Action::Verify => {
                let done = self.verify(host);
                self.action_done(host, done);
            }
        }
    }

    fn ask(&mut self, host: HostId, request: Request) {
        match self.hosts[host].latest.or(self.hosts[host].current) {
            Some(endpoint) if self.roles.contains_key(&(HOST, endpoint)) => {
                self.hosts[host].asking = Some(endpoint);
                self.tell(HOST, endpoint, &request);
            }
            _ => self.action_done(host, Err(lost(0, Step::Agree))),
        }
    }

    fn action_times_out(&mut self, host: HostId) {
        let one = &mut self.hosts[host];
        let quiescing = std::mem::replace(&mut one.quiescing, NONE);
        let waiting = std::mem::replace(&mut one.waiting, NONE);
        let asking = one.asking.take();
        for ticket in [quiescing, waiting] {
            if ticket != NONE {
                self.hosts[host].given_up.insert(ticket);
                self.coi(host, coi::Input::GiveUp(ticket));
            }
        }
        if let Some(endpoint) = asking {
            self.close(HOST, endpoint);
        }
        if asking.is_some() || quiescing != NONE || waiting != NONE {
            self.action_done(host, Err(SnapifyError::Stuck(Step::Agree)));
        }
    }

    pub(super) fn host_ending(&self, host: HostId) -> Ending {
        let one = &self.hosts[host];
        if !one.alive {
            return Ending::Failed("the host process was killed".into());
        }
        if let Some(why) = &one.failure {
            return Ending::Failed(why.clone());
        }
        if let Some(call) = one.script.calling() {
            return Ending::Stuck(format!("{call:?} never returned"));
        }
        if one.process.is_none() {
            return Ending::Stuck("the process was never made".into());
        }
        one.app.ending()
    }
}

/// Whether a caller was told for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Once,
    Twice,
}

fn link(channel: Channel) -> Option<Link> {
    match channel {
        Channel::Dma => None,
        Channel::Command => Some(Link::Command),
        Channel::Notice => Some(Link::Notice),
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
