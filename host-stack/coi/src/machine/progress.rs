//! Doing whatever can be done now: letting callers in, sending what waits, going on with a pause, and
//! telling everybody of the end.

use std::collections::BTreeSet;

use snaprig_offload_wire::coi::{Command, Exit};

use super::{Machine, Output, Pause, Region, Ticket, Value};
use crate::CoiError;

impl Machine {
    /// Why nothing works any more.
    pub(super) fn death(&self) -> CoiError {
        let (node, pid) = (self.node, self.pid);
        match self.fate {
            Some(Ok(exit)) => CoiError::ProcessDied { pid, node, exit },
            _ => CoiError::CardLost { node },
        }
    }

    /// Does whatever can be done now.
    pub(super) fn go_on(&mut self) {
        if let Some(fate) = self.fate {
            self.suspect = None;
            self.tell_the_end(fate);
            match self.pause {
                _ if self.forsaken => {
                    let error = self.death();
                    self.fail_pause(error);
                    self.fail_paused_calls();
                    return self.fail_everybody();
                }
                Pause::No => return self.fail_everybody(),
                Pause::Paused => self.fail_paused_calls(),
                _ => {
                    let error = self.death();
                    self.fail_pause(error);
                }
            }
        }
        self.let_in();
        self.next_command();
        self.advance_pause();
        self.next_runs();
        self.settle();
        let started = self.started;
        let mut reached = Vec::new();
        self.holders.retain(|(count, ticket)| {
            let there = *count <= started;
            if there {
                reached.push(*ticket);
            }
            !there
        });
        for ticket in reached {
            self.done(ticket, Value::Unit);
        }
    }

    pub(super) fn let_in(&mut self) {
        for region in [Region::Lifecycle, Region::Rdma] {
            while self.is_open(region) {
                let region = self.region(region);
                let Some(ticket) = region.waiting.pop_front() else {
                    break;
                };
                region.inside += 1;
                self.done(ticket, Value::Unit);
            }
        }
    }

    pub(super) fn next_command(&mut self) {
        if self.pause >= Pause::Commands || self.in_command.is_some() {
            return;
        }
        if let Some((ticket, command)) = self.commands.pop_front() {
            self.send_command(ticket, command);
        }
    }

    pub(super) fn send_command(&mut self, ticket: Ticket, command: Command) {
        self.in_command = Some(ticket);
        let generation = self.generation;
        self.outputs.push_back(Output::Command(generation, command));
    }

    pub(super) fn advance_pause(&mut self) {
        if self.pause == Pause::Lifecycle && self.lifecycle.inside == 0 {
            self.pause = Pause::Rdma;
        }
        if self.pause == Pause::Rdma && self.rdma.inside == 0 {
            self.pause = Pause::Commands;
        }
        if self.pause == Pause::Commands && self.in_command.is_none() {
            self.pause = Pause::Marker;
            self.send_command(self.pauser.unwrap_or_default(), Command::Shutdown);
        }
        if self.pause == Pause::Sends && !self.pipelines.iter().any(|one| one.sending) {
            self.pause = Pause::Paused;
            if let Some(ticket) = self.pauser.take() {
                self.done(ticket, Value::Unit);
            }
        }
    }

    pub(super) fn settle(&mut self) {
        let Some((ticket, counts, notices)) = &self.settler else {
            return;
        };
        let mut received = self.pipelines.iter().map(|pipeline| pipeline.received);
        let all = counts
            .iter()
            .all(|count| *count <= received.next().unwrap_or(0));
        if all && *notices <= self.notices {
            let ticket = *ticket;
            (self.settler, self.settled) = (None, true);
            self.done(ticket, Value::Unit);
        }
    }

    pub(super) fn next_runs(&mut self) {
        for number in 0..self.pipelines.len() {
            let held = self.hold_at.is_some_and(|at| self.started >= at);
            let pipeline = &mut self.pipelines[number];
            if self.pause >= Pause::Sends || held || pipeline.in_flight.is_some() {
                continue;
            }
            if let Some((ticket, function)) = pipeline.queue.pop_front() {
                (pipeline.in_flight, pipeline.sending) = (Some(ticket), true);
                pipeline.begun = false;
                pipeline.sent += 1;
                self.started += 1;
                let (generation, number) = (self.generation, number as u32);
                self.outputs
                    .push_back(Output::Run(generation, number, function));
            }
        }
    }

    pub(super) fn fail_pause(&mut self, error: CoiError) {
        if self.pause == Pause::Marker {
            // The command in flight is the pause's own.
            self.in_command = None;
        }
        if self.pause != Pause::No {
            self.pause = Pause::Paused;
        }
        if let Some(ticket) = self.pauser.take() {
            self.fail(ticket, error);
        }
    }

    /// What goes on while the process is paused.
    pub(super) fn fail_paused_calls(&mut self) {
        let settler = self.settler.take().map(|(ticket, ..)| ticket);
        for ticket in self.in_command.take().into_iter().chain(settler) {
            let error = self.death();
            self.fail(ticket, error);
        }
    }

    pub(super) fn tell_the_end(&mut self, fate: Result<Exit, ()>) {
        // A lost card can be replaced as long as the process is paused.
        let all = self.pause == Pause::No || fate.is_ok() || self.forsaken;
        for (ticket, as_such) in std::mem::take(&mut self.enders) {
            match fate {
                Ok(exit) if as_such => self.done(ticket, Value::Exit(exit)),
                _ if all || !as_such => {
                    let error = self.death();
                    self.fail(ticket, error);
                }
                _ => self.enders.push((ticket, as_such)),
            }
        }
    }

    pub(super) fn fail_everybody(&mut self) {
        let mut tickets = BTreeSet::new();
        for region in [&mut self.lifecycle, &mut self.rdma] {
            tickets.extend(region.waiting.drain(..));
        }
        tickets.extend(self.commands.drain(..).map(|(ticket, _)| ticket));
        tickets.extend(self.in_command.take());
        for pipeline in &mut self.pipelines {
            tickets.extend(pipeline.queue.drain(..).map(|(ticket, _)| ticket));
            tickets.extend(pipeline.in_flight.take());
            pipeline.sending = false;
        }
        tickets.extend(self.told.drain());
        tickets.extend(self.holders.drain(..).map(|(_, ticket)| ticket));
        for ticket in tickets {
            let error = self.death();
            self.fail(ticket, error);
        }
        if !std::mem::replace(&mut self.gone, true) {
            let error = self.death();
            self.outputs.push_back(Output::Gone(error));
        }
    }
}
