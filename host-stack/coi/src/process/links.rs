//! The connections to an offload process and its daemon, and who listens to them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    thread::{self, ScopedJoinHandle},
};

use serde::de::DeserializeOwned;
use snaprig_offload_wire::coi::{Channel as Kind, Exit, FromDaemon, ToDaemon};
use snaprig_scif::{checkpoint, client::Endpoint};

use super::{Inner, line::Line, lock};
use crate::{
    CoiError, Engine,
    machine::{Generation, Input, Link, Output},
};

/// All connections of one generation.
pub(crate) struct Links {
    pub control: Arc<Endpoint>,
    pub dma: Arc<Endpoint>,
    pub command: Arc<Line>,
    pub notice: Arc<Line>,
    pub pipelines: BTreeMap<u32, Arc<Line>>,
}

impl Links {
    /// The connections to a process, with these pipelines; `control` makes that to its daemon.
    pub fn open(
        engine: &Engine,
        port: u16,
        control: impl FnOnce() -> Result<Endpoint, CoiError> + Send,
        pipelines: &[u32],
    ) -> Result<Self, CoiError> {
        thread::scope(|scope| {
            let control = scope.spawn(control);
            // The process takes it before all others: what it is asked for on those may need it.
            let dma = open(engine, port, Kind::Dma)?;
            let all = pipelines.iter().map(|number| Kind::Pipeline(*number));
            let all: Vec<_> = [Kind::Command, Kind::Notice]
                .into_iter()
                .chain(all)
                .collect();
            let mut opened = open_all(engine, port, &all)?.into_iter().map(Line::new);
            let missing = CoiError::Protocol {
                node: engine.node(),
                what: "its channels",
            };
            let (command, notice) = opened.next().zip(opened.next()).ok_or(missing)?;
            Ok(Self {
                control: Arc::new(joined(control)?),
                dma: Arc::new(dma),
                command,
                notice,
                pipelines: pipelines.iter().copied().zip(opened).collect(),
            })
        })
    }

    /// Ends them for whoever still listens.
    pub fn close(&self) {
        self.control.close();
        self.close_to_process();
    }

    /// The same, of those to the process: the card has memory for them until then.
    fn close_to_process(&self) {
        let lines = [&self.command, &self.notice]
            .into_iter()
            .chain(self.pipelines.values());
        let lines = lines.map(|line| &line.endpoint);
        lines
            .chain([&self.dma])
            .for_each(|endpoint| endpoint.close());
    }
}

impl Inner {
    /// One thread that learns when the rig is gone.
    pub(super) fn watch_the_rig(self: &Arc<Self>) {
        let (mut watch, process) = (lock(&self.watch).clone(), Arc::downgrade(self));
        thread::spawn(move || {
            loop {
                while watch.accept().is_ok() {}
                // If the program was restarted from a checkpoint, it comes back to another.
                checkpoint::settled();
                let Some(process) = process.upgrade() else {
                    return;
                };
                let now = lock(&process.watch).clone();
                if Arc::ptr_eq(&now, &watch) {
                    return process.handle(Input::RigGone);
                }
                watch = now;
            }
        });
    }

    /// One thread for each link of now.
    pub(super) fn listen(self: &Arc<Self>) {
        let state = self.lock();
        let generation = state.machine.generation();
        let links = &state.links;
        let (control, command) = (links.control.clone(), links.command.clone());
        let notice = links.notice.clone();
        let pipelines = links.pipelines.clone();
        drop(state);
        self.listen_to_daemon(control, generation);
        self.listen_to(command, generation, Link::Command, move |answer| {
            Input::Answer(generation, answer)
        });
        self.listen_to(notice, generation, Link::Notice, move |notice| {
            Input::Notice(generation, notice)
        });
        for (number, line) in pipelines {
            self.listen_to_pipeline(line, generation, number);
        }
    }

    pub(super) fn listen_to_pipeline(
        self: &Arc<Self>,
        from: Arc<Line>,
        generation: Generation,
        number: u32,
    ) {
        self.listen_to(from, generation, Link::Pipeline(number), move |result| {
            Input::Result(generation, number, result)
        });
    }

    /// The daemon tells of the process's output and of its end.
    fn listen_to_daemon(self: &Arc<Self>, from: Arc<Endpoint>, generation: Generation) {
        let (process, proxy) = (Arc::downgrade(self), self.proxy.clone());
        thread::spawn(move || {
            loop {
                let input = match from.receive_message() {
                    Ok(FromDaemon::Output(descriptor, bytes)) => {
                        if let Some(proxy) = &proxy {
                            proxy(descriptor, &bytes);
                        }
                        continue;
                    }
                    Ok(FromDaemon::Flush(number)) => {
                        // If it cannot be sent, the next thing that is received is the end.
                        let _ = from.send_message(&ToDaemon::Flushed(number));
                        continue;
                    }
                    Ok(message) => Input::Daemon(generation, message),
                    Err(_) => Input::Lost(generation, Link::Control),
                };
                let last = matches!(input, Input::Lost(..));
                let Some(process) = process.upgrade() else {
                    return;
                };
                if let Input::Daemon(_, FromDaemon::Exited(Exit::Signal(signal))) = input {
                    process.ended_by(signal);
                }
                if let Input::Daemon(_, FromDaemon::SwappedOut) = input {
                    process.leave(&from);
                }
                process.handle(input);
                if last {
                    return;
                }
            }
        });
    }

    /// The process has ended with everything received that it ever sent, as this connection to the daemon has said.
    fn leave(&self, control: &Arc<Endpoint>) {
        let state = self.lock();
        // It may be on another card already.
        if Arc::ptr_eq(&state.links.control, control) {
            state.links.close_to_process();
        }
    }

    /// Whether a link is one of a pipeline that was destroyed: its number may be another one's by now.
    fn gave_up(&self, link: Link, line: &Arc<Line>) -> bool {
        let Link::Pipeline(number) = link else {
            return false;
        };
        let state = self.lock();
        let current = state.links.pipelines.get(&number);
        !current.is_some_and(|current| Arc::ptr_eq(current, line))
    }

    fn listen_to<T: DeserializeOwned + 'static>(
        self: &Arc<Self>,
        from: Arc<Line>,
        generation: Generation,
        link: Link,
        input: impl Fn(T) -> Input + Send + 'static,
    ) {
        let process: Weak<Self> = Arc::downgrade(self);
        thread::spawn(move || {
            loop {
                let message = from.receive();
                let Some(process) = process.upgrade() else {
                    return;
                };
                match message {
                    Ok(message) => process.handle(input(message)),
                    Err(_) if process.gave_up(link, &from) => return,
                    Err(_) => return process.handle(Input::Lost(generation, link)),
                }
            }
        });
    }
}

impl Inner {
    /// Receives on a pipeline for who waits until it is `done`, if its results come soon.
    pub fn receive_results(self: &Arc<Self>, number: u32, done: impl Fn() -> bool) {
        let state = self.lock();
        let generation = state.machine.generation();
        let line = state.links.pipelines.get(&number).cloned();
        drop(state);
        if let Some(line) = line {
            let input = |result| Input::Result(generation, number, result);
            self.receive_until(&line, generation, Link::Pipeline(number), done, input);
        }
    }

    /// The same for the answer to a command.
    pub(super) fn receive_answer(self: &Arc<Self>, done: impl Fn() -> bool) {
        let state = self.lock();
        let generation = state.machine.generation();
        let line = state.links.command.clone();
        drop(state);
        let input = |answer| Input::Answer(generation, answer);
        self.receive_until(&line, generation, Link::Command, done, input);
    }

    /// What [`Inner::listen_to`] does, for who waits.
    fn receive_until<T: DeserializeOwned>(
        self: &Arc<Self>,
        line: &Arc<Line>,
        generation: Generation,
        link: Link,
        done: impl Fn() -> bool,
        input: impl Fn(T) -> Input,
    ) {
        let received = line.receive_until(done, |message| self.handle(input(message)));
        if received.is_err() && !self.gave_up(link, line) {
            self.handle(Input::Lost(generation, link));
        }
    }
}

/// Sends what the machine says; what came of it.
pub(super) fn send(endpoint: &Endpoint, output: Output) -> Option<Input> {
    match output {
        Output::Command(generation, command) => match endpoint.send_message(&command) {
            Ok(()) => None,
            Err(_) => Some(Input::Lost(generation, Link::Command)),
        },
        Output::Run(generation, number, function) => match endpoint.send_message(&function) {
            Ok(()) => Some(Input::Sent(generation, number)),
            Err(_) => Some(Input::Lost(generation, Link::Pipeline(number))),
        },
        _ => None,
    }
}

/// Threads that connect: the process takes one connection while others are on their way.
const CONNECTORS: usize = 16;

/// Connections of these kinds, in this order, many at a time.
fn open_all(engine: &Engine, port: u16, kinds: &[Kind]) -> Result<Vec<Endpoint>, CoiError> {
    let share = kinds.len().div_ceil(CONNECTORS).max(1);
    let opened = thread::scope(|scope| {
        let connect = |kinds: &[Kind]| -> Result<Vec<_>, CoiError> {
            let connect = |kind: &Kind| open(engine, port, *kind);
            kinds.iter().map(connect).collect()
        };
        let shares = kinds.chunks(share);
        let threads = shares.map(|share| scope.spawn(move || connect(share)));
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(joined)
            .collect::<Result<Vec<_>, CoiError>>()
    })?;
    Ok(opened.into_iter().flatten().collect())
}

/// What a thread has come to; its panic is this one's.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    let panicked = |panic| std::panic::resume_unwind(panic);
    thread.join().unwrap_or_else(panicked)
}

/// One of the connections to an offload process.
pub(super) fn open(engine: &Engine, port: u16, kind: Kind) -> Result<Endpoint, CoiError> {
    let endpoint = engine.connect(port)?;
    endpoint.send_message(&kind)?;
    Ok(endpoint)
}
