//! Snapify's machine, and what it has done.

use super::*;

impl World {
    pub(crate) fn call(&mut self, host: HostId, call: Call) {
        let (node, pid) = (self.hosts[host].place, self.hosts[host].pid);
        self.snapify(host, snapify::Input::Call(call, node, pid));
    }

    pub(super) fn action_done(&mut self, host: HostId, done: Result<Done, SnapifyError>) {
        self.snapify(host, snapify::Input::Done(done));
    }

    pub(super) fn snapify(&mut self, host: HostId, input: snapify::Input) {
        self.hosts[host].snapify.handle(input);
        while let Some(output) = self.hosts[host].snapify.poll_output() {
            let own = self.host_processes[host];
            if !self.net.stage.engine.is_alive(own) {
                return;
            }
            match output {
                snapify::Output::Began(step) => {
                    if self.fault(own, &snapify_faults::of_step(step)) == Effect::Ended {
                        return;
                    }
                }
                snapify::Output::Ended(..) => {}
                snapify::Output::SwappedOut(is) => self.coi(host, coi::Input::SwappedOut(is)),
                snapify::Output::Switch => {
                    let latest = self.hosts[host].latest.take();
                    if let Some(old) = std::mem::replace(&mut self.hosts[host].current, latest) {
                        self.close(HOST, old);
                    }
                }
                snapify::Output::Enter => {
                    let copies = self.hosts[host].copies.take();
                    self.hosts[host].latest = copies;
                }
                snapify::Output::ForgetCopies => {
                    if let Some(endpoint) = self.hosts[host].copies.take() {
                        self.close(HOST, endpoint);
                    }
                }
                snapify::Output::HangUp => {
                    let one = &mut self.hosts[host];
                    for endpoint in one.latest.take().into_iter().chain(one.current.take()) {
                        self.close(HOST, endpoint);
                    }
                }
                snapify::Output::Forget => {
                    if let Some(endpoint) = self.hosts[host].latest.take() {
                        self.close(HOST, endpoint);
                    }
                }
                snapify::Output::Discard => self.disk.remove(&crate::io::partial(host)),
                snapify::Output::Release => self.coi(host, coi::Input::Resume),
                snapify::Output::Returned(result) => self.returned(host, result),
                snapify::Output::Do(action, timeout) => {
                    self.hosts[host].action += 1;
                    if let Some(timeout) = timeout {
                        let task = HostTask::Timeout(self.hosts[host].action);
                        let after = timeout.as_nanos() as u64;
                        self.net
                            .stage
                            .engine
                            .after(own, after, Event::Host(host, task));
                    }
                    self.perform(host, action);
                }
            }
        }
    }

    pub(super) fn perform(&mut self, host: HostId, action: Action) {
        match action {
            Action::Connect(node) | Action::ConnectTarget(node) => {
                let is_target = matches!(action, Action::ConnectTarget(_));
                self.hosts[host].calling_target = is_target;
                let peer = PortId {
                    node,
                    port: COI_DAEMON,
                };
                let role = event::Role::Host(host, Role::Snapify);
                let endpoint = self.connect(HOST, peer, role);
                self.hosts[host].calling_daemon = Some(endpoint);
            }
            Action::Ask(Request::Drain { pid, store, .. })
                if self.canary == Some(Canary::UncountedDrain) =>
            {
                let drain = Request::Drain {
                    pid,
                    store,
                    sent: Vec::new(),
                };
                let to = self.hosts[host].current;
                self.ask(host, to, drain);
            }
            Action::Ask(request) => {
                let request = self.tell_written(host, request);
                let to = self.hosts[host].latest.or(self.hosts[host].current);
                self.ask(host, to, request);
            }
            Action::AskTarget(request) => {
                let to = self.hosts[host].copies;
                self.ask(host, to, request);
            }
            Action::Settle(..) if self.canary == Some(Canary::UnsettledResults) => {
                self.action_done(host, Ok(Done::Done));
            }
            Action::Quiesce => {
                let ticket = self.ticket(host);
                self.hosts[host].quiescing = ticket;
                self.coi(host, coi::Input::Pause(ticket));
            }
            Action::Settle(returned, notices) => {
                let ticket = self.ticket(host);
                self.hosts[host].waiting = ticket;
                self.coi(host, coi::Input::Settle(ticket, returned, notices));
            }
            Action::Reconnect { node, pid, port } => {
                let peer = PortId {
                    node,
                    port: COI_DAEMON,
                };
                let control = self.connect(HOST, peer, event::Role::Host(host, Role::Adopt));
                self.hosts[host].adopting = Some((control, node, pid, port));
            }
            Action::Prepare => {
                let done = self.prepare(host);
                self.action_done(host, done);
            }
            Action::Commit {
                local_store,
                images,
            } => {
                let done = self.commit(host, &local_store, images);
                self.action_done(host, done);
            }
            Action::Verify => {
                let done = self.verify(host, true);
                self.action_done(host, done);
            }
            Action::Open => {
                let done = self.verify(host, false);
                self.action_done(host, done);
            }
        }
    }

    /// An image of a chain has to have what only the host knows that it has written.
    fn tell_written(&mut self, host: HostId, mut request: Request) -> Request {
        if let Request::Copy { link, .. }
        | Request::Capture {
            last: Some(link), ..
        } = &mut request
        {
            let wrote = std::mem::take(&mut self.hosts[host].wrote);
            if link.number > 0 && self.canary != Some(Canary::UntoldWrite) {
                link.wrote = wrote;
            }
        }
        request
    }

    pub(super) fn ask(&mut self, host: HostId, to: Option<EndpointId>, request: Request) {
        match to {
            Some(endpoint) if self.roles.contains_key(&(HOST, endpoint)) => {
                self.hosts[host].asking = Some(endpoint);
                self.tell(HOST, endpoint, &request);
            }
            _ => self.action_done(host, Err(lost(0, Step::Agree))),
        }
    }

    pub(super) fn action_times_out(&mut self, host: HostId) {
        let one = &mut self.hosts[host];
        let quiescing = std::mem::replace(&mut one.quiescing, NONE);
        let waiting = std::mem::replace(&mut one.waiting, NONE);
        let asking = one.asking.take();
        for ticket in [quiescing, waiting] {
            if ticket != NONE {
                self.hosts[host].given_up.insert(ticket);
                self.coi(host, coi::Input::GiveUp(ticket));
            }
        }
        if let Some(endpoint) = asking {
            self.close(HOST, endpoint);
        }
        if asking.is_some() || quiescing != NONE || waiting != NONE {
            self.action_done(host, Err(SnapifyError::Stuck(Step::Agree)));
        }
    }
}
