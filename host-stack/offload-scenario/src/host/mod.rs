//! A host process: COI's and Snapify's machines and their connections.

mod channels;
mod machine;
mod snapshots;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    time::Duration,
};

use snaprig_coi::{
    CoiError, faults,
    machine::{self as coi, Link, Region, Value},
};
use snaprig_scif::{client::ScifError, node::EndpointId};
use snaprig_snapify::{
    SnapifyError, Step, faults as snapify_faults,
    machine::{self as snapify, Action, Call, Outcome as Done},
};
use snaprig_wire::{
    coi::{Answer, Channel, FromDaemon, Notice, Program, RunResult, ToDaemon},
    scif::{HOST, NodeId, PAGE, PortId, port::COI_DAEMON},
    snapify::{Reply, Request},
};

use super::canary::Canary;
use super::{
    Ending, Event, HostId, World,
    app::{AppId, Told},
    decode,
    script::Script,
    show,
    sockets::Heard,
};
use crate::{
    links::Network as _,
    scenario::invariant,
    stage::{Effect, System as _},
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
    /// A channel that is being connected for a new pipeline, of this generation and number.
    NewPipeline(u64, u32),
    /// A channel to the process, of this generation ([`NONE`] while it is being connected).
    Channel(u64, Channel),
}

impl Role {
    /// A frame for an endpoint with this role, as the message that it is.
    pub fn show(&self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Create | Self::Adopt | Self::Control(_) => show::<FromDaemon>(bytes),
            Self::Snapify => show::<Reply>(bytes),
            Self::NewPipeline(..) | Self::Channel(_, Channel::Pipeline(_)) => {
                show::<RunResult>(bytes)
            }
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
    /// The channel of a pipeline that is being destroyed.
    pub given_up_channel: Option<EndpointId>,
    /// Whose offload process it is.
    pub app: AppId,
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

    /// Card and id of the process.
    pub fn whereabouts(&self) -> (NodeId, i32) {
        (self.place, self.pid)
    }

    /// How it ended, if there is no hope any more.
    pub fn end_known(&self) -> Option<CoiError> {
        self.process.as_ref().and_then(coi::Machine::end)
    }

    /// The smallest number that no pipeline has.
    pub fn free_pipeline(&self) -> u32 {
        let process = self.process.as_ref();
        process.and_then(coi::Machine::free_pipeline).unwrap_or(0)
    }

    fn generation(&self) -> u64 {
        self.process.as_ref().map_or(0, coi::Machine::generation)
    }

    /// Why it is no success, or what it waits for, whatever its application does.
    pub fn ending(&self) -> Option<Ending> {
        if !self.alive {
            return Some(Ending::Failed("the host process was killed".into()));
        }
        if let Some(why) = &self.failure {
            return Some(Ending::Failed(why.clone()));
        }
        if let Some(call) = self.script.calling() {
            return Some(Ending::Stuck(format!("{call:?} never returned")));
        }
        let unmade = self.process.is_none();
        unmade.then(|| Ending::Stuck("the process was never made".into()))
    }
}

impl World {
    pub(super) fn start_host(&mut self, host: HostId) {
        if !self.net.stage.engine.is_alive(self.host_processes[host]) {
            return;
        }
        // Each begins on a card of its own, as far as there are so many.
        let place = 1 + (host as NodeId) % self.parameters.cards;
        self.hosts[host] = Host {
            alive: true,
            quiescing: NONE,
            waiting: NONE,
            next_ticket: 1,
            place,
            app: host / usize::from(self.parameters.workload.offloads.max(1)),
            script: Script::new(self.seed, self.variant, self.parameters.cards, host, place),
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
        self.net
            .stage
            .engine
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
                let own = self.host_processes[host];
                if self.fault(own, &faults::CREATE_PROCESS) == Effect::Ended {
                    return;
                }
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
            (Role::NewPipeline(generation, number), heard) => {
                self.new_pipeline_heard(host, endpoint, (generation, number), &heard);
            }
            // Of a pipeline that was destroyed, it is of no interest.
            (Role::Channel(_, channel @ Channel::Pipeline(_)), Heard::Gone | Heard::Frame(_))
                if self.hosts[host].channels.get(&channel) != Some(&endpoint) => {}
            (Role::Channel(generation, channel), Heard::Frame(bytes)) => {
                self.channel_hears(host, generation, channel, &bytes);
            }
            (Role::Channel(_, Channel::Dma), Heard::Copied(request, result)) => {
                self.rma_done(host, request, result);
            }
            // Nobody will say what became of the copies.
            (Role::Channel(_, Channel::Dma), Heard::Gone)
                if !self.net.stage.engine.is_alive(self.net.rig) =>
            {
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
