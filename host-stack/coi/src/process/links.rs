//! The connections to an offload process and its daemon, and who listens to them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    thread,
};

use serde::de::DeserializeOwned;
use snaprig_offload_wire::coi::{Channel as Kind, Exit, FromDaemon, ToDaemon};
use snaprig_scif::{checkpoint, client::Endpoint};

use super::{Inner, lock};
use crate::{
    CoiError, Engine,
    machine::{Generation, Input, Link, Output},
};

/// All connections of one generation.
pub(crate) struct Links {
    pub control: Arc<Endpoint>,
    pub dma: Arc<Endpoint>,
    pub command: Arc<Endpoint>,
    pub notice: Arc<Endpoint>,
    pub pipelines: BTreeMap<u32, Arc<Endpoint>>,
}

impl Links {
    /// The connections to a process other than the daemon's, with these pipelines.
    pub fn open(
        engine: &Engine,
        port: u16,
        control: Endpoint,
        pipelines: &[u32],
    ) -> Result<Self, CoiError> {
        let one = |kind| open(engine, port, kind).map(Arc::new);
        let (dma, command) = (one(Kind::Dma)?, one(Kind::Command)?);
        Ok(Self {
            control: Arc::new(control),
            dma,
            command,
            notice: one(Kind::Notice)?,
            pipelines: open_pipelines(engine, port, pipelines)?,
        })
    }

    /// Ends them for whoever still listens.
    pub fn close(&self) {
        for endpoint in [&self.control, &self.dma, &self.command, &self.notice] {
            endpoint.close();
        }
        self.pipelines.values().for_each(|one| one.close());
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
        for (number, endpoint) in pipelines {
            self.listen_to_pipeline(endpoint, generation, number);
        }
    }

    pub(super) fn listen_to_pipeline(
        self: &Arc<Self>,
        from: Arc<Endpoint>,
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
                process.handle(input);
                if last {
                    return;
                }
            }
        });
    }

    /// Whether a link is one of a pipeline that was destroyed: its number may be another one's by now.
    fn gave_up(&self, link: Link, endpoint: &Arc<Endpoint>) -> bool {
        let Link::Pipeline(number) = link else {
            return false;
        };
        let state = self.lock();
        let current = state.links.pipelines.get(&number);
        !current.is_some_and(|current| Arc::ptr_eq(current, endpoint))
    }

    fn listen_to<T: DeserializeOwned + 'static>(
        self: &Arc<Self>,
        from: Arc<Endpoint>,
        generation: Generation,
        link: Link,
        input: impl Fn(T) -> Input + Send + 'static,
    ) {
        let process: Weak<Self> = Arc::downgrade(self);
        thread::spawn(move || {
            loop {
                let message = from.receive_message();
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

/// Threads that connect pipelines: the process takes one connection while others are on their way.
const CONNECTORS: usize = 16;

/// The connections of pipelines, many at a time.
fn open_pipelines(
    engine: &Engine,
    port: u16,
    numbers: &[u32],
) -> Result<BTreeMap<u32, Arc<Endpoint>>, CoiError> {
    let share = numbers.len().div_ceil(CONNECTORS).max(1);
    let opened = thread::scope(|scope| {
        let connect = |numbers: &'_ [u32]| -> Result<Vec<_>, CoiError> {
            let connect = |number: &u32| {
                let endpoint = open(engine, port, Kind::Pipeline(*number))?;
                Ok((*number, Arc::new(endpoint)))
            };
            numbers.iter().map(connect).collect()
        };
        let shares = numbers.chunks(share);
        let threads = shares.map(|share| scope.spawn(move || connect(share)));
        let threads: Vec<_> = threads.collect();
        let ends = threads.into_iter().map(|thread| {
            let panicked = |panic| std::panic::resume_unwind(panic);
            thread.join().unwrap_or_else(panicked)
        });
        ends.collect::<Result<Vec<_>, CoiError>>()
    })?;
    Ok(opened.into_iter().flatten().collect())
}

/// One of the connections to an offload process.
pub(super) fn open(engine: &Engine, port: u16, kind: Kind) -> Result<Endpoint, CoiError> {
    let endpoint = engine.connect(port)?;
    endpoint.send_message(&kind)?;
    Ok(endpoint)
}
