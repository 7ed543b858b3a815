//! COI's machine of an offload process, and what it says.

use super::*;

impl World {
    pub(crate) fn ticket(&mut self, host: HostId) -> u64 {
        self.hosts[host].next_ticket += 1;
        self.hosts[host].next_ticket
    }

    pub(crate) fn coi(&mut self, host: HostId, input: coi::Input) {
        let now = Duration::from_nanos(self.net.stage.engine.now_ns());
        let Some(process) = &mut self.hosts[host].process else {
            return;
        };
        let due = process.deadline();
        process.handle(input, now);
        if let Some(at) = process.deadline().filter(|_| due.is_none()) {
            let event = Event::Host(host, HostTask::Tick);
            self.net
                .stage
                .engine
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
                    let own = self.host_processes[host];
                    if self.fault(own, &faults::RUN_SENT) == Effect::Ended {
                        return;
                    }
                    if let Some(endpoint) = self.hosts[host].channels.get(&channel).copied() {
                        self.ledger.of(host, number).sent += 1;
                        self.tell(HOST, endpoint, &function);
                    }
                    self.coi(host, coi::Input::Sent(generation, number));
                }
                coi::Output::Started(ticket) => self.begun(host, ticket),
                coi::Output::Notice(notice) => self.noticed(host, &notice),
                coi::Output::Done(ticket, result) => self.told(host, ticket, result),
                // It holds nothing any more.
                coi::Output::Gone(error) => self.process_gone(host, error),
            }
        }
    }

    /// Into a region, as the host process does it: at once where that is open.
    pub(crate) fn go_in(&mut self, host: HostId, ticket: u64, region: Region) {
        let process = self.hosts[host].process.as_mut();
        match process.is_some_and(|process| process.pass(region)) {
            true => self.told(host, ticket, Ok(Value::Unit)),
            false => self.coi(host, coi::Input::Enter(ticket, region)),
        }
    }

    /// Out of it.
    pub(crate) fn go_out(&mut self, host: HostId, region: Region) {
        let process = self.hosts[host].process.as_mut();
        if !process.is_some_and(|process| process.leave(region)) {
            self.coi(host, coi::Input::Leave(region));
        }
    }

    pub(super) fn told(&mut self, host: HostId, ticket: u64, result: Result<Value, CoiError>) {
        let one = &mut self.hosts[host];
        let quiesced = one.quiescing == ticket;
        let waited = one.waiting == ticket;
        if quiesced || waited {
            (one.quiescing, one.waiting) = (NONE, NONE);
            let sent = one.process.as_ref().map(coi::Machine::sent);
            if let Ok(Value::Answer(Answer::Windows(windows))) = &result {
                self.apps[one.app].windows_moved(host, windows);
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
            self.violation(invariant::CONTRADICTION, "a caller was told twice");
        }
    }
}
