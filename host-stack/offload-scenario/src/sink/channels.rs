//! The channels of an offload process, its windows, and its command server.

use super::*;

impl World {
    /// The host has made a channel. On the first one, all windows are registered anew.
    pub(crate) fn channel_made(
        &mut self,
        node: NodeId,
        pid: Pid,
        channel: Channel,
        endpoint: EndpointId,
    ) {
        let forgets = self.canary == Some(Canary::ForgottenWindow);
        if let Some(process) = self.living(node, pid) {
            process.channels.insert(channel, endpoint);
            if channel == Channel::Dma {
                let mut lost = process.buffers.clone();
                if forgets && let Some(first) = process.buffers.first_entry() {
                    // It believes that it has the window that it had before.
                    first.into_mut().offset = Some(PAGE as i64);
                    lost.pop_first();
                }
                for (id, buffer) in lost {
                    self.register_window(node, pid, id, buffer.address);
                }
            }
        }
        self.sink(node, pid, sink::Input::Connected(channel));
        let process = self.living(node, pid);
        let leaving = |one: &mut Offload| {
            let number = one
                .leaving
                .take_if(|number| Channel::Pipeline(*number) == channel)?;
            Some((one.channels.get(&Channel::Command).copied()?, number))
        };
        if let Some((endpoint, number)) = process.and_then(leaving) {
            self.command(node, pid, endpoint, &Command::DestroyPipeline { number });
        }
    }

    pub(super) fn register_window(&mut self, node: NodeId, pid: Pid, id: u64, address: u64) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        // If the channel is not there yet, all buffers are registered when it is.
        if let Some(endpoint) = process.channels.get(&Channel::Dma).copied() {
            process.registering.push_back(id);
            let sockets = &mut self.nodes[usize::from(node)];
            sockets.register(endpoint, address, BUFFER_BYTES, address);
            self.pump(node);
        }
    }

    pub(crate) fn window_registered(&mut self, node: NodeId, pid: Pid, offset: i64) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let Some(id) = process.registering.pop_front() else {
            return;
        };
        let Some(buffer) = process.buffers.get_mut(&id) else {
            return;
        };
        buffer.offset = Some(offset);
        let address = buffer.address;
        let answer = if process
            .creating
            .take_if(|creating| *creating == id)
            .is_some()
        {
            Answer::Window(window(id, offset, address))
        } else if process.windows_asked && process.registering.is_empty() {
            process.windows_asked = false;
            Answer::Windows(process.windows())
        } else {
            return;
        };
        if let Some(endpoint) = process.channels.get(&Channel::Command).copied() {
            self.tell(node, endpoint, &answer);
        }
    }

    /// A thread of the process has received something on its channel.
    pub(crate) fn thread(&mut self, node: NodeId, pid: Pid, channel: Channel, bytes: &[u8]) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let Some(endpoint) = process.channels.get(&channel).copied() else {
            return;
        };
        match channel {
            Channel::Command => {
                if let Some(command) = decode::<Command>(bytes) {
                    self.command(node, pid, endpoint, &command);
                }
            }
            Channel::Pipeline(number) => {
                let Some(function) = decode::<RunFunction>(bytes) else {
                    return;
                };
                process.image.counts.entry(number).or_default().received += 1;
                if function.tell_start {
                    let count = process.image.counts.entry(number).or_default().received;
                    let pipeline = number;
                    let notice = Notice::Started { pipeline, count };
                    process.image.notices.push_back(notice);
                }
                self.take_run_function(node, pid, number, function);
                self.sink(node, pid, sink::Input::Received(number));
                self.compute(node, pid, number);
            }
            Channel::Dma | Channel::Notice => {}
        }
    }

    pub(super) fn command(
        &mut self,
        node: NodeId,
        pid: Pid,
        endpoint: EndpointId,
        command: &Command,
    ) {
        let point = match command {
            Command::CreatePipeline { .. }
            | Command::CreateMemory { .. }
            | Command::LoadLibrary { .. } => faults::COMMAND,
            // What is there can be taken away, and what is asked for said.
            _ => faults::ANSWER,
        };
        match self.fault(self.process_of(node), &point) {
            Effect::Ended => return,
            Effect::Error(errno) => {
                let why = "planned".into();
                return self.tell(node, endpoint, &Answer::Failed { errno, why });
            }
            _ => {}
        }
        let answer = match command {
            Command::CreateMemory { id, .. } => {
                let address = self.buffer();
                if let Some(process) = self.living(node, pid) {
                    process.creating = Some(*id);
                    let offset = None;
                    process.buffers.insert(*id, Buffer { address, offset });
                }
                return self.register_window(node, pid, *id, address);
            }
            Command::Windows => match self.living(node, pid) {
                Some(process) if !process.registering.is_empty() => {
                    process.windows_asked = true;
                    return;
                }
                process => Answer::Windows(process.map_or(vec![], |one| one.windows())),
            },
            // Its channel may still be on its way.
            Command::DestroyPipeline { number } => {
                let process = self.living(node, pid);
                if process
                    .is_some_and(|one| !one.channels.contains_key(&Channel::Pipeline(*number)))
                {
                    if let Some(process) = self.living(node, pid) {
                        process.leaving = Some(*number);
                    }
                    return;
                }
                Answer::Done
            }
            Command::Function(_) => Answer::Function(1),
            Command::LoadLibrary { .. } => Answer::Library(1),
            _ => Answer::Done,
        };
        self.tell(node, endpoint, &answer);
        match command {
            Command::Shutdown => self.sink(node, pid, sink::Input::Marker),
            Command::DestroyMemory { id } => {
                let process = self.living(node, pid);
                let gone = process.and_then(|process| {
                    let endpoint = process.channels.get(&Channel::Dma).copied();
                    process.references.forget(*id);
                    endpoint.zip(process.buffers.remove(id)?.offset)
                });
                if let Some((endpoint, offset)) = gone {
                    let sockets = &mut self.nodes[usize::from(node)];
                    sockets.unregister(endpoint, offset, BUFFER_BYTES);
                    self.pump(node);
                }
            }
            Command::DestroyPipeline { number } => {
                let channel = Channel::Pipeline(*number);
                let process = self.living(node, pid);
                if let Some(endpoint) = process.and_then(|one| one.channels.remove(&channel)) {
                    self.close(node, endpoint);
                }
                if let Some(process) = self.living(node, pid) {
                    process.image.threads.remove(number);
                }
                self.sink(node, pid, sink::Input::Disconnected(channel));
            }
            _ => {}
        }
    }
}
