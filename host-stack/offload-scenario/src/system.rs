//! What happens to whom, and what dies with whom.

use std::hash::Hash;

use snaprig_scenario::{
    links::{NOTICE_NS, Network as _},
    stage::{Stage, System},
};
use snaprig_sim::ProcessId;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    state::{
        card::Card,
        event::{Event, label},
        host::HostTask,
        sockets::Sockets,
    },
    world::World,
};

impl System for World {
    type Event = Event;

    #[inline]
    fn stage(&mut self) -> &mut Stage<Event> {
        &mut self.net.stage
    }

    #[inline]
    fn look(&self) -> &Stage<Event> {
        &self.net.stage
    }

    fn start(&mut self) {
        self.start_io();
        for node in 1..=self.parameters.cards {
            self.start_card(node);
        }
        for host in 0..self.hosts.len() {
            self.start_host(host);
        }
    }

    #[inline]
    fn happen(&mut self, _: ProcessId, event: Event) {
        match event {
            Event::Net(event) => self.on_link(event),
            Event::HostGone(host) => self.close_endpoints_of_host(host),
            Event::Hear(node, endpoint, heard) => self.hear(node, endpoint, heard),
            Event::Copy(node, peer, job, copies) => self.copy(node, peer, job, &copies),
            Event::App(app, task) => self.app_task(app, task),
            Event::Host(host, task) => self.host_task(host, task),
            Event::Card(node, task) => self.card_task(node, task),
        }
    }

    fn label(&self, event: &Event) -> String {
        label(&self.roles, event)
    }

    fn heal(&mut self) -> bool {
        self.disk.make_room();
        self.end_hung()
    }

    fn describe(&self) -> String {
        let mut text = format!("at {} ns\n\n", self.net.stage.engine.now_ns());
        for host in &self.hosts {
            text += &host.describe();
        }
        for card in &self.cards {
            let process = self.process_of(card.node);
            let life = if self.net.stage.engine.is_alive(process) {
                ""
            } else {
                " (not alive)"
            };
            text += &format!("card {}{life}\n{}", card.node, card.describe());
        }
        let names = self.disk.names("").join(" ");
        text + &format!("disk: {names}\n")
    }

    fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        for (host, process) in self.hosts.iter().zip(&self.host_processes) {
            self.net.stage.engine.is_alive(*process).hash(&mut hash);
            host.hash_state(&mut hash);
        }
        for card in &self.cards {
            let link = self.net.link(card.node);
            self.net
                .stage
                .engine
                .is_alive(self.process_of(card.node))
                .hash(&mut hash);
            link.hash_state(&mut hash);
            card.hash_state(&mut hash);
        }
        self.net.stage.engine.is_alive(self.net.rig).hash(&mut hash);
        self.disk.hash_names(&mut hash);
        hash.digest()
    }

    fn crash(&mut self, process: ProcessId) {
        self.net.stage.engine.crash(process);
        let hosts = self.apps_hosts(process);
        if !hosts.is_empty() {
            for host in hosts {
                self.hosts[host].alive = false;
                self.net
                    .stage
                    .engine
                    .after(self.net.rig, NOTICE_NS, Event::HostGone(host));
            }
        } else if let Some(node) = self.card_of(process) {
            self.nodes[usize::from(node)] = Sockets::new(node);
            self.roles.retain(|(of, _), _| *of != node);
            self.cards[usize::from(node) - 1].forget();
            self.forget_requesters(node);
            self.card_is_gone(node);
        } else {
            // Everything that a rig has started ends with it (`exit_with_the_rig`).
            for process in self.net.cards.clone() {
                self.net.stage.engine.crash(process);
            }
            self.cards.iter_mut().for_each(Card::forget);
            for (host, process) in self.host_processes.clone().into_iter().enumerate() {
                let event = Event::Host(host, HostTask::RigGone);
                self.net.stage.engine.after(process, NOTICE_NS, event);
            }
        }
    }

    fn hang(&mut self, process: ProcessId) {
        self.hang_card(process);
    }

    fn restart(&mut self, process: ProcessId) {
        self.restart_card(process);
    }

    fn cut_link(&mut self, process: ProcessId) {
        self.cut_card_link(process);
    }

    fn partition(&mut self, process: ProcessId) {
        self.partition_card(process);
    }

    fn fill_disk(&mut self) {
        self.disk.fill();
    }
}
