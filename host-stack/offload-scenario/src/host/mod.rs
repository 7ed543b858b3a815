//! A host process: COI's and Snapify's machines and their connections.

mod channels;
mod machine;
mod snapshots;

use std::time::Duration;

use snaprig_coi::{
    CoiError, faults,
    machine::{self as coi, Link, Region, Value},
};
use snaprig_offload_wire::{
    coi::{Answer, Channel, FromDaemon, Program, ToDaemon},
    snapify::{Reply, Request},
};
use snaprig_scif::{client::ScifError, node::EndpointId};
use snaprig_snapify::{
    SnapifyError, Step, faults as snapify_faults,
    machine::{self as snapify, Action, Call, Outcome as Done},
};
use snaprig_wire::scif::{HOST, NodeId, PAGE, PortId, port::COI_DAEMON};

use snaprig_scenario::{
    links::Network as _,
    scenario::invariant,
    stage::{Effect, System as _},
};

use crate::{
    canary::Canary,
    state::{
        HostId,
        app::Told,
        decode,
        event::{self, Event},
        host::{Host, HostTask, NONE, Role},
        script::Script,
        sockets::Heard,
    },
    world::World,
};

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
        self.connect(HOST, daemon, event::Role::Host(host, Role::Create));
    }

    fn endpoints_of_host(&self, host: HostId) -> Vec<EndpointId> {
        let mine = |role: &event::Role| matches!(role, event::Role::Host(of, _) if *of == host);
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
            Some(event::Role::Host(host, _)) => self.host_processes[*host],
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
                let one = &mut self.hosts[host];
                one.calling_daemon = None;
                match std::mem::take(&mut one.calling_target) {
                    true => one.copies = Some(endpoint),
                    false => one.latest = Some(endpoint),
                }
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
                one.calling_target &= calling.is_none();
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
