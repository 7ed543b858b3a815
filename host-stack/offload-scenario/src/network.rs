//! Nodes, their links, and the programs behind their endpoints.

use snaprig_offload_wire::coi::Channel;
use snaprig_scenario::{
    links::{self, Net, Network},
    stage::{Effect, System as _},
};
use snaprig_scif::node::{EndpointId, Input};
use snaprig_sim::engine::Lane;
use snaprig_wire::{
    dma::Descriptor,
    scif::{HOST, NodeId, PAGE, PortId},
};

use crate::{
    canary::Canary,
    state::{
        card,
        event::{Event, Role},
        host,
        sockets::{Does, Heard, Sockets},
    },
    world::World,
};

impl World {
    pub(super) fn copy(&mut self, node: NodeId, peer: NodeId, job: u64, copies: &[Descriptor]) {
        let effect = self.fault(self.process_of(node), &snaprig_scif::faults::COPY);
        let card = if node == HOST { peer } else { node };
        if effect == Effect::Ended || self.is_held(node, card, job) {
            return;
        }
        let result = match effect {
            _ if !self.net.stage.engine.is_alive(self.process_of(peer)) => Err(libc::EIO),
            Effect::Error(errno) => Err(errno),
            effect => {
                for copy in copies {
                    for at in (0..u64::from(copy.len)).step_by(PAGE as usize) {
                        let page = self.memory.get(&(copy.src + at));
                        let mut bytes = page.cloned().unwrap_or_default();
                        if let Effect::Corrupt(bit) = effect
                            && !bytes.is_empty()
                        {
                            self.damaged = true;
                            links::flip(&mut bytes, bit);
                        }
                        self.memory.insert(copy.dst + at, bytes);
                    }
                }
                Ok(())
            }
        };
        self.nodes[usize::from(node)].copied(job, result);
        self.pump(node);
    }

    /// A program takes what has arrived on its endpoint.
    pub(super) fn hear(&mut self, node: NodeId, endpoint: EndpointId, heard: Heard) {
        match self.roles.get(&(node, endpoint)).cloned() {
            Some(Role::Host(host, role)) => self.host_hears(host, endpoint, role, heard),
            Some(Role::Card(role)) => self.card_hears(node, endpoint, role, heard),
            Some(Role::Io(role)) => self.io_hears(node, endpoint, role, heard),
            None => {}
        }
    }

    pub(super) fn connect(&mut self, node: NodeId, peer: PortId, role: Role) -> EndpointId {
        let endpoint = self.nodes[usize::from(node)].connect(peer);
        self.roles.insert((node, endpoint), role);
        match self.net.stage.engine.is_alive(self.process_of(node)) {
            true => self.pump(node),
            false => self.gone(node, endpoint),
        }
        endpoint
    }

    pub(super) fn listen(&mut self, node: NodeId, port: u16, role: Role) -> EndpointId {
        let endpoint = self.nodes[usize::from(node)].listen(port);
        self.roles.insert((node, endpoint), role);
        self.pump(node);
        endpoint
    }

    pub(super) fn tell<T: serde::Serialize>(
        &mut self,
        node: NodeId,
        endpoint: EndpointId,
        message: &T,
    ) {
        self.nodes[usize::from(node)].send(endpoint, message);
        self.pump(node);
    }

    pub(super) fn close(&mut self, node: NodeId, endpoint: EndpointId) {
        if self.roles.remove(&(node, endpoint)).is_some() {
            self.nodes[usize::from(node)].close(endpoint);
            self.pump(node);
        }
    }
}

impl Network for World {
    fn net(&self) -> &Net<Event> {
        &self.net
    }

    fn net_mut(&mut self) -> &mut Net<Event> {
        &mut self.net
    }

    fn node_hears(&mut self, node: NodeId, input: Input) {
        self.nodes[usize::from(node)].handle(input);
    }

    fn pump(&mut self, node: NodeId) {
        let own = self.process_of(node);
        while let Some(does) = self.nodes[usize::from(node)].poll() {
            if !self.net.stage.engine.is_alive(own) {
                continue;
            }
            match does {
                Does::Send(to, message) => self.send_message(own, node, to, &message),
                Does::Hear(endpoint, heard) => {
                    let pipeline = |channel: &Channel| matches!(channel, Channel::Pipeline(_));
                    let (program, thread) = match self.roles.get(&(node, endpoint)) {
                        Some(Role::Host(host, host::Role::Channel(_, channel)))
                            if pipeline(channel) =>
                        {
                            let program = self.host_processes[*host];
                            (program, snaprig_coi::faults::PIPE_THREAD1)
                        }
                        Some(Role::Card(card::Role::Channel(_, Some(channel))))
                            if pipeline(channel) =>
                        {
                            (own, coi_device::faults::PIPE_THREAD2)
                        }
                        Some(Role::Host(host, _)) => {
                            (self.host_processes[*host], snaprig_coi::faults::THREAD)
                        }
                        _ => (own, snaprig_coi::faults::THREAD),
                    };
                    // Nothing is heard on an endpoint before it is accepted.
                    let lane = match heard {
                        Heard::Accepted(new) => lane(node, new),
                        _ => lane(node, endpoint),
                    };
                    let by_ns = match self.fault(program, &thread) {
                        Effect::Ended => continue,
                        Effect::Late(by_ns) => by_ns,
                        _ => 0,
                    };
                    let event = Event::Hear(node, endpoint, heard);
                    self.net
                        .stage
                        .engine
                        .send_late(own, program, lane, by_ns, event);
                }
                Does::Copy(job, peer, copies) => {
                    let event = Event::Copy(node, peer, job, copies);
                    self.net.stage.engine.after(own, 0, event);
                }
            }
        }
    }

    fn forget_node(&mut self, card: NodeId) {
        self.nodes[usize::from(card)] = Sockets::new(card);
    }

    fn start_again(&mut self, card: NodeId) {
        self.start_card(card);
    }

    fn believes_links(&self) -> bool {
        self.canary == Some(Canary::BelievingLink)
    }
}

/// The lane of what is heard on an endpoint.
fn lane(node: NodeId, endpoint: EndpointId) -> Lane {
    1 << 62 | Lane::from(node) << 48 ^ endpoint
}
