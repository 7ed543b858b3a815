//! What an application creates and destroys in offload processes: pipelines, buffers, libraries. Each
//! goes through the region of case 1, is a command, and is waited for (`snaprig_coi::Process::pipeline`,
//! `snaprig_coi::ops`).

use snaprig_coi::{
    CoiError, faults,
    graph::Input,
    machine::{self as coi, Region, Value},
};
use snaprig_offload_wire::coi::{Answer, Channel, Command, Library};
use snaprig_wire::scif::HOST;

use crate::{
    state::{
        HostId,
        app::{AppId, BUFFER_BYTES, Coming, Pipeline, Stage, Waiter},
    },
    world::World,
};
use snaprig_scenario::stage::{Effect, System as _};

impl World {
    pub(super) fn come_or_go(&mut self, app: AppId, what: Coming) {
        self.apps[app].blocked = Some(format!("{what:?}"));
        let host = what.host();
        let ticket = self.ticket(host);
        let waiter = Waiter::Coming(what, Stage::Enter);
        self.apps[app].waiters.insert((host, ticket), waiter);
        self.go_in(host, ticket, Region::Lifecycle);
    }

    pub(super) fn goes_on(
        &mut self,
        app: AppId,
        what: Coming,
        stage: Stage,
        result: Result<Value, CoiError>,
    ) {
        match (stage, result) {
            (Stage::Enter, Ok(_)) => self.command_for(app, what),
            (Stage::Enter, Err(error)) => {
                // A process that is gone has it no more.
                if let Coming::EndOfBuffer(host, id) = &what {
                    let buffer = self.apps[app].buffers.get_mut(id);
                    buffer.map(|buffer| buffer.windows.remove(host));
                }
                self.is_over(app, &what, Err(error.to_string()));
            }
            (_, Ok(Value::Answer(answer))) => self.answered(app, what, answer),
            (_, result) => {
                let why = result.err().map(|error| error.to_string());
                let why = why.unwrap_or_else(|| "that is no answer".into());
                self.give_up_channel(app, &what);
                self.leave_and_end(app, &what, Err(why));
            }
        }
    }

    fn command_for(&mut self, app: AppId, what: Coming) {
        let point = match what {
            Coming::Pipeline(..) => faults::CREATE_PIPELINE,
            Coming::EndOfPipeline(..) => faults::DESTROY_PIPELINE,
            Coming::Buffer(..) => faults::CREATE_BUFFER,
            Coming::EndOfBuffer(..) => faults::DESTROY_BUFFER,
            Coming::Library(..) => faults::LOAD_LIBRARY,
        };
        if self.fault(self.app_processes[app], &point) == Effect::Ended {
            return;
        }
        let host = what.host();
        let (what, command) = match what {
            Coming::Pipeline(host, _) => {
                let number = self.hosts[host].free_pipeline();
                let command = Command::CreatePipeline {
                    number,
                    mask: vec![],
                    stack_bytes: 0,
                };
                (Coming::Pipeline(host, number), command)
            }
            Coming::EndOfPipeline(host, id) => {
                let number = self.apps[app]
                    .pipelines
                    .get(&id)
                    .map_or(0, |one| one.number);
                // What its connection says meanwhile is of no interest.
                let channel = Channel::Pipeline(number);
                let endpoint = self.hosts[host].channels.remove(&channel);
                self.hosts[host].given_up_channel = endpoint;
                (what, Command::DestroyPipeline { number })
            }
            Coming::Buffer(_, id) => {
                let command = Command::CreateMemory {
                    id,
                    len: BUFFER_BYTES,
                    address: None,
                };
                (what, command)
            }
            Coming::EndOfBuffer(host, id) => {
                let buffer = self.apps[app].buffers.get_mut(&id);
                buffer.map(|buffer| buffer.windows.remove(&host));
                (what, Command::DestroyMemory { id })
            }
            Coming::Library(_) => {
                let command = Command::LoadLibrary {
                    files: Vec::<Library>::new(),
                    flags: 0,
                };
                (what, command)
            }
        };
        let ticket = self.ticket(host);
        let waiter = Waiter::Coming(what, Stage::Command);
        self.apps[app].waiters.insert((host, ticket), waiter);
        self.coi(host, coi::Input::Command(ticket, command));
    }

    fn answered(&mut self, app: AppId, what: Coming, answer: Answer) {
        match (&what, answer) {
            // It is there when its channel is.
            (Coming::Pipeline(host, number), Answer::Done) => {
                self.apps[app].blocked = Some(format!("{what:?}"));
                self.connect_pipeline(*host, *number);
            }
            (Coming::Buffer(host, id), Answer::Window(window)) => {
                if let Some(buffer) = self.apps[app].buffers.get_mut(id) {
                    buffer.windows.insert(*host, window.offset);
                }
                self.leave_and_end(app, &what, Ok(()));
            }
            (_, Answer::Failed { errno, why }) => {
                self.give_up_channel(app, &what);
                self.leave_and_end(app, &what, Err(format!("errno {errno}: {why}")));
            }
            (Coming::EndOfPipeline(..), Answer::Done) => {
                self.give_up_channel(app, &what);
                self.leave_and_end(app, &what, Ok(()));
            }
            (Coming::EndOfBuffer(..), Answer::Done) | (Coming::Library(_), Answer::Library(_)) => {
                self.leave_and_end(app, &what, Ok(()));
            }
            _ => self.leave_and_end(app, &what, Err("that is not the answer".into())),
        }
    }

    /// The channel of a new pipeline is there, or cannot be made.
    pub(crate) fn pipeline_connected(&mut self, host: HostId, number: u32, well: bool) {
        let app = self.hosts[host].app;
        let what = Coming::Pipeline(host, number);
        if well {
            self.coi(host, coi::Input::AddPipeline(number));
            let one = &mut self.apps[app];
            one.last_id += 1;
            let pipeline = Pipeline {
                host,
                number,
                runs: vec![],
                is_live: true,
            };
            one.pipelines.insert(one.last_id, pipeline);
            return self.leave_and_end(app, &what, Ok(()));
        }
        let ticket = self.ticket(host);
        let waiter = Waiter::Coming(what, Stage::Broken);
        self.apps[app].waiters.insert((host, ticket), waiter);
        self.coi(host, coi::Input::Broken(ticket));
    }

    /// A pipeline that is destroyed has no channel any more, and its number is free.
    fn give_up_channel(&mut self, app: AppId, what: &Coming) {
        let Coming::EndOfPipeline(host, id) = what else {
            return;
        };
        let number = self.apps[app].pipelines.get(id).map_or(0, |one| one.number);
        self.coi(*host, coi::Input::RemovePipeline(number));
        if let Some(endpoint) = self.hosts[*host].given_up_channel.take() {
            self.close(HOST, endpoint);
        }
    }

    fn leave_and_end(&mut self, app: AppId, what: &Coming, result: Result<(), String>) {
        self.go_out(what.host(), Region::Lifecycle);
        self.is_over(app, what, result);
    }

    fn is_over(&mut self, app: AppId, what: &Coming, result: Result<(), String>) {
        let well = result.is_ok();
        if let Err(why) = result {
            self.apps[app].failed.get_or_insert(why);
        }
        let hosts = self.apps[app].hosts();
        match what {
            Coming::Buffer(host, id) if well && host + 1 < hosts.end => {
                return self.come_or_go(app, Coming::Buffer(host + 1, *id));
            }
            Coming::Buffer(_, id) if well => {
                let one = &mut self.apps[app];
                one.graph.add_buffer(*id, BUFFER_BYTES, false, true, None);
                if let Some(buffer) = one.buffers.get_mut(id) {
                    buffer.is_live = true;
                }
            }
            Coming::Buffer(_, id) | Coming::EndOfBuffer(_, id) => {
                let buffer = self.apps[app].buffers.get(id);
                let next = buffer.and_then(|buffer| buffer.windows.keys().next().copied());
                if let Some(host) = next {
                    return self.come_or_go(app, Coming::EndOfBuffer(host, *id));
                }
                self.apps[app].buffers.remove(id);
                self.apps[app].history.forget(*id);
                self.apps[app].graph.handle(Input::Forget(*id));
                self.perform_all(app);
            }
            _ => {}
        }
        self.go_on_after_call(app);
    }
}
