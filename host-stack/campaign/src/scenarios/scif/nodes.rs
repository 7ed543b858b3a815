//! Nodes and their links, and what goes with a node or a program that dies.

use snaprig_scif::node::{Input, Node};
use snaprig_sim::ProcessId;
use snaprig_wire::scif::{NodeId, QUEUE_BYTES};

use super::run::{Event, World};
use crate::links::{NOTICE_NS, Net, Network};

impl World {
    /// What a program has is gone with it.
    fn lose_program(&mut self, program: usize) {
        let sides = self.sides.iter_mut();
        let its = sides.filter(|side| side.program == program);
        its.for_each(|side| side.dead = true);
        for (talk, talking) in self.work.talks.iter().zip(&mut self.talking) {
            if talk.client == program {
                talking.endpoint = None;
            }
        }
    }

    /// What a node has is gone with it, and so are its programs.
    fn lose_node(&mut self, node: NodeId) {
        self.memory.lose(node);
        self.asked.retain(|_, asked| asked.node != node);
        self.jobs.retain(|(of, _), _| *of != node);
        self.owners.retain(|(of, _), _| *of != node);
        self.forget_node(node);
        for program in 0..self.programs.len() {
            if self.programs[program].node == node {
                self.net.engine.crash(self.programs[program].process);
                self.programs[program].forgotten = true;
                self.lose_program(program);
            }
        }
    }
}

impl Network for World {
    type Event = Event;

    fn net(&self) -> &Net<Event> {
        &self.net
    }

    fn net_mut(&mut self) -> &mut Net<Event> {
        &mut self.net
    }

    fn node_hears(&mut self, node: NodeId, input: Input) {
        if let Input::CopyDone(job, _) = input {
            self.end_copy(node, job);
        }
        self.leaking |= matches!(input, Input::PeerDown(_));
        if let Some(input) = self.misheard(node, input) {
            self.nodes[usize::from(node)].handle(input);
        }
    }

    fn pump(&mut self, _: NodeId) {
        // A link that is lost ends copies of other nodes, too.
        for node in 0..self.nodes.len() {
            while let Some(output) = self.nodes[node].poll_output() {
                self.does(node as NodeId, output);
            }
        }
        self.leaking = false;
    }

    fn crash(&mut self, process: ProcessId) {
        self.net.engine.crash(process);
        let program = self.programs.iter().position(|one| one.process == process);
        if let Some(program) = program {
            self.lose_program(program);
            let node = self.process_of(self.programs[program].node);
            self.net
                .engine
                .after(node, NOTICE_NS, Event::ProgramGone(program));
        } else if let Some(node) = self.card_of(process) {
            self.lose_node(node);
            self.card_is_gone(node);
        } else {
            // Everything ends with the rig.
            for card in self.net.cards.clone() {
                self.net.engine.crash(card);
            }
            for node in 0..self.nodes.len() {
                self.lose_node(node as NodeId);
            }
        }
    }

    fn forget_node(&mut self, card: NodeId) {
        self.nodes[usize::from(card)] = Node::with_window(card, QUEUE_BYTES);
    }

    fn start_again(&mut self, card: NodeId) {
        for program in 0..self.programs.len() {
            if self.programs[program].node == card {
                self.net.engine.restart(self.programs[program].process);
                self.programs[program].forgotten = false;
                self.start_program(program);
            }
        }
    }
}
