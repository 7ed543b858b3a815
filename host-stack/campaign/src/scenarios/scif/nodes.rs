//! Nodes and their links, and what goes with a node or a program that dies.

use snaprig_scif::node::{Input, Node};
use snaprig_wire::scif::{NodeId, QUEUE_BYTES};

use super::run::{Event, World};
use crate::links::{Net, Network};

impl World {
    /// What a program has is gone with it.
    pub fn lose_program(&mut self, program: usize) {
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
    pub fn lose_node(&mut self, node: NodeId) {
        self.memory.lose(node);
        self.asked.retain(|_, asked| asked.node != node);
        self.laid.lose(node);
        self.jobs.retain(|(of, _), _| *of != node);
        self.owners.retain(|(of, _), _| *of != node);
        self.forget_node(node);
        for program in 0..self.programs.len() {
            if self.programs[program].node == node {
                self.net.stage.engine.crash(self.programs[program].process);
                self.programs[program].forgotten = true;
                self.lose_program(program);
            }
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

    fn forget_node(&mut self, card: NodeId) {
        self.nodes[usize::from(card)] = Node::with_window(card, QUEUE_BYTES);
    }

    fn start_again(&mut self, card: NodeId) {
        for program in 0..self.programs.len() {
            if self.programs[program].node == card {
                self.net
                    .stage
                    .engine
                    .restart(self.programs[program].process);
                self.programs[program].forgotten = false;
                self.start_program(program);
            }
        }
    }
}
