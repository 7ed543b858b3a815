//! Channels to the offload process: made once, and again after each restore.

use super::*;

impl World {
    /// Where the process is that is being connected to.
    pub(super) fn place_of_channels(&self, host: HostId) -> PortId {
        let one = &self.hosts[host];
        let (node, port) = match one.adopting {
            Some((_, node, _, port)) => (node, port),
            None => (one.place, one.port),
        };
        PortId { node, port }
    }

    pub(super) fn connect_channels(&mut self, host: HostId) {
        self.hosts[host].connecting.clear();
        self.connect_channel(host, Channel::Dma);
    }

    pub(super) fn connect_channel(&mut self, host: HostId, channel: Channel) {
        let role = event::Role::Host(host, Role::Channel(NONE, channel));
        let endpoint = self.connect(HOST, self.place_of_channels(host), role);
        self.hosts[host].connecting.insert(channel, endpoint);
    }

    pub(super) fn channel_connected(&mut self, host: HostId, channel: Channel) {
        let process = self.hosts[host].process.as_ref();
        let pipelines = process.map_or_else(Vec::new, coi::Machine::live_pipelines);
        let after = |last: Option<u32>| {
            let mut rest = pipelines
                .iter()
                .filter(|one| last.is_none_or(|last| **one > last));
            rest.next().map(|next| Channel::Pipeline(*next))
        };
        let next = match channel {
            Channel::Dma => Some(Channel::Command),
            Channel::Command => Some(Channel::Notice),
            Channel::Notice => after(None),
            Channel::Pipeline(last) => after(Some(last)),
        };
        match next {
            Some(next) => self.connect_channel(host, next),
            None => self.channels_connected(host),
        }
    }

    pub(super) fn channels_connected(&mut self, host: HostId) {
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
            None => one.process = Some(coi::Machine::new(one.place, one.pid)),
        }
        let one = &self.hosts[host];
        let generation = one.process.as_ref().map_or(0, coi::Machine::generation);
        for (channel, endpoint) in one.channels.clone() {
            let role = event::Role::Host(host, Role::Channel(generation, channel));
            self.roles.insert((HOST, endpoint), role);
        }
        if let Some(control) = self.hosts[host].control {
            let role = event::Role::Host(host, Role::Control(generation));
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
            self.process_made(host);
        }
    }

    /// The process has made a pipeline; its channel comes (`snaprig_coi::Process::pipeline`).
    pub(crate) fn connect_pipeline(&mut self, host: HostId, number: u32) {
        let own = self.host_processes[host];
        if self.fault(own, &faults::CONNECT_PIPELINE) == Effect::Ended {
            return;
        }
        let one = &self.hosts[host];
        let peer = PortId {
            node: one.place,
            port: one.port,
        };
        let role = Role::NewPipeline(one.generation(), number);
        self.connect(HOST, peer, event::Role::Host(host, role));
    }

    pub(super) fn new_pipeline_heard(
        &mut self,
        host: HostId,
        endpoint: EndpointId,
        (generation, number): (u64, u32),
        heard: &Heard,
    ) {
        let channel = Channel::Pipeline(number);
        match heard {
            Heard::Connected => {
                let role = Role::Channel(generation, channel);
                let role = event::Role::Host(host, role);
                self.roles.insert((HOST, endpoint), role);
                self.hosts[host].channels.insert(channel, endpoint);
                self.tell(HOST, endpoint, &channel);
                self.pipeline_connected(host, number, true);
            }
            Heard::Gone => {
                self.close(HOST, endpoint);
                self.pipeline_connected(host, number, false);
            }
            _ => {}
        }
    }

    pub(super) fn adoption_fails(&mut self, host: HostId) {
        let Some((control, node, ..)) = self.hosts[host].adopting.take() else {
            return;
        };
        self.close(HOST, control);
        for endpoint in std::mem::take(&mut self.hosts[host].connecting).into_values() {
            self.close(HOST, endpoint);
        }
        self.action_done(host, Err(lost(node, Step::Reconnect)));
    }
}
