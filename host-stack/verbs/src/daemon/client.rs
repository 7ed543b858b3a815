//! A user of the fabric, and what it asks for.

use std::{
    fs::File,
    io::{self, BufWriter},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path,
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, pidfd_open},
};
use snaprig_fabric::{
    Description, FaultRequest, PathFaults,
    description::{Armed, CompletionQueue, Group, Hca, Path, Port, PortState, QueuePair},
};
use snaprig_hca::{
    Event, Hca as Machines, Host,
    control::{Reply, Request},
    cq,
    port::{RATE, load_gid},
};
use snaprig_peers::stream::credentials;
use snaprig_verbs_files::device_name;

use super::{
    Context, Daemon, SLOT, Table, network::ports_of, plan::Running, read_plan, remote::Remote,
};
use crate::{
    client::peers::own_namespace,
    protocol::{Answer, Ask, VERSION},
    socket,
};

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    /// The connection.
    pub socket: OwnedFd,
    /// Readable when its process has ended; a child of it may have the connection still.
    pub process_end: Option<OwnedFd>,
    /// Its slot, once it has said hello.
    pub process: Option<u32>,
    /// Its number, where the daemon is.
    pub pid: Pid,
}

impl Client {
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let pid = credentials(&socket)?.pid.and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("a process outside of this PID namespace"))?;
        Ok(Self {
            process_end: pidfd_open(pid, PidfdFlags::empty()).ok(),
            socket,
            process: None,
            pid,
        })
    }
}

/// An answer, and what goes with it.
enum Outcome {
    Answer(Answer),
    With(Answer, Vec<OwnedFd>),
    End,
}

/// What becomes of a user after a message.
pub(super) enum Served {
    /// It goes on.
    Stays,
    /// It is gone, or talks nonsense.
    Ends,
    /// It is no user any more: its place is another's.
    IsTaken,
}

impl Daemon {
    /// Reads one message of a user, and answers it.
    pub(super) fn serve(&mut self, index: usize) -> Served {
        let client = &self.clients[index];
        let Ok(Some((ask, fds))) = socket::receive::<Ask>(&client.socket) else {
            return Served::Ends;
        };
        let goes_on = match ask {
            Ask::Reach {
                node,
                names,
                first,
                refusal,
            } if client.process.is_none() => {
                return self.reach(index, node, (names, first), refusal);
            }
            ask => self.reply(index, ask, fds),
        };
        if goes_on { Served::Stays } else { Served::Ends }
    }

    /// Does what a user asks for, and answers. False if it ends by that.
    fn reply(&mut self, index: usize, ask: Ask, fds: Vec<OwnedFd>) -> bool {
        let process = self.clients[index].process;
        if let (Ask::Hello { version }, None) = (&ask, process) {
            return *version == VERSION && self.welcome(index, fds);
        }
        let outcome = match process {
            Some(process) => self.answer(process, ask),
            None => self.answer_stranger(ask),
        };
        self.settle();
        let socket = self.clients[index].socket.as_fd();
        let sent = match outcome {
            Outcome::Answer(answer) => socket::send(socket, &answer, &[]),
            Outcome::With(answer, fds) => {
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                socket::send(socket, &answer, &fds)
            }
            Outcome::End => return false,
        };
        sent.is_ok()
    }

    /// A connection manager reaches for one on another node: its socket is no user's from now on.
    fn reach(
        &mut self,
        index: usize,
        node: u32,
        first: (Vec<String>, Vec<u8>),
        refusal: Vec<u8>,
    ) -> Served {
        if let Some(remote) = &mut *self.host.remote.borrow_mut() {
            let client = self.clients.remove(index);
            remote.reach(client.socket, node, first, refusal);
            return Served::IsTaken;
        }
        Served::Ends
    }

    /// The HCAs that are here: the first one, and the one after the last.
    fn here(&self) -> (u32, u32) {
        let hcas = self.setup.hcas.len() as u32;
        let remote = self.host.remote.borrow();
        let here = remote.as_ref().map(|remote| remote.here(hcas));
        here.unwrap_or((0, hcas))
    }

    fn welcome(&mut self, index: usize, fds: Vec<OwnedFd>) -> bool {
        let pid = self.clients[index].pid.as_raw_nonzero().get() as u32;
        let id = self.next_id;
        self.next_id += 1;
        let Some(process) = self.control.join(&self.host.memory, id, pid) else {
            return false;
        };
        let mut files = fds.into_iter().map(File::from);
        if let Some(pool) = files.next() {
            self.directory().pools.insert(process, pool);
        }
        if let Some(memory) = files.next() {
            self.directory().memories.insert(process, memory);
        }
        self.clients[index].process = Some(process);
        let hcas = self.setup.hcas.iter().map(|hca| hca.model).collect();
        let welcome = Answer::Welcome {
            process,
            hcas,
            here: self.here(),
            pid_namespace: own_namespace(),
        };
        let fds: [BorrowedFd<'_>; 2] = self.device_fds();
        socket::send(&self.clients[index].socket, &welcome, &fds).is_ok()
    }

    /// Who has not joined may look, and break.
    fn answer_stranger(&mut self, ask: Ask) -> Outcome {
        match ask {
            Ask::Describe => match in_file(&self.describe()) {
                Ok(file) => Outcome::With(Answer::Here, vec![file]),
                Err(error) => refuse(errno(&error)),
            },
            Ask::Fault(request) => Outcome::Answer(self.fault(request)),
            Ask::Capture { file } => match self.capture(file.as_deref()) {
                Ok(()) => Outcome::Answer(Answer::Here),
                Err(error) => refuse(errno(&error)),
            },
            Ask::End => {
                self.is_over = true;
                Outcome::Answer(Answer::Here)
            }
            Ask::Plan { file } => match read_plan(&file, &self.setup) {
                Ok(plan) => {
                    let now_ns = self.host.now_ns();
                    let mut network = self.host.network.borrow_mut();
                    network.begin(self.host.memory.header(), &plan, now_ns);
                    Outcome::Answer(Answer::Here)
                }
                Err(_) => refuse(libc::EINVAL),
            },
            _ => Outcome::End,
        }
    }

    fn answer(&mut self, process: u32, ask: Ask) -> Outcome {
        match ask {
            Ask::Hello { .. } => Outcome::End,
            Ask::Open { hca } if self.has(hca) => self.open(process, hca),
            Ask::Open { .. } => refuse(libc::ENODEV),
            Ask::Close { context } => {
                if self.owns(process, context) {
                    self.contexts.remove(&context);
                }
                Outcome::Answer(Answer::Here)
            }
            Ask::Control { context, request } => self.control(process, context, &request),
            Ask::OpenChannel => match pipe() {
                Ok((out, into)) => {
                    let number = self.number();
                    let own = into.try_clone();
                    self.directory()
                        .channels
                        .insert(number, (process, into.into()));
                    own.map_or_else(
                        |error| refuse(errno(&error)),
                        |own| Outcome::With(Answer::Made(number), vec![out, own]),
                    )
                }
                Err(error) => refuse(errno(&error)),
            },
            Ask::CloseChannel { channel } => {
                self.directory()
                    .channels
                    .retain(|number, (owner, _)| *number != channel || *owner != process);
                Outcome::Answer(Answer::Here)
            }
            // On the lookup socket.
            Ask::PoolOf { .. }
            | Ask::MemoryOf { .. }
            | Ask::ChannelOf { .. }
            | Ask::Raise { .. }
            | Ask::Reach { .. } => Outcome::End,
            Ask::Describe | Ask::Fault(_) | Ask::Capture { .. } | Ask::Plan { .. } | Ask::End => {
                self.answer_stranger(ask)
            }
        }
    }

    /// Whether an HCA is here.
    fn has(&self, hca: u32) -> bool {
        let (first, end) = self.here();
        (first..end).contains(&hca)
    }

    fn owns(&self, process: u32, context: u32) -> bool {
        self.contexts
            .get(&context)
            .is_some_and(|context| context.process == process)
    }

    fn open(&mut self, process: u32, hca: u32) -> Outcome {
        match pipe() {
            Ok((out, into)) => {
                let number = self.number();
                let own = into.try_clone();
                let events = into.into();
                let context = Context {
                    process,
                    hca,
                    events,
                };
                self.contexts.insert(number, context);
                own.map_or_else(
                    |error| refuse(errno(&error)),
                    |own| Outcome::With(Answer::Made(number), vec![out, own]),
                )
            }
            Err(error) => refuse(errno(&error)),
        }
    }

    fn control(&mut self, process: u32, context: u32, request: &Request) -> Outcome {
        if !self.owns(process, context) {
            return refuse(libc::EINVAL);
        }
        let hca = Machines::new(&self.host.memory, &self.host, SLOT);
        let reply = self.control.handle(&hca, process, request);
        hca.settle();
        match (request, reply) {
            (Request::CreateCq { .. }, Ok(Reply::Queue(place, _))) => {
                self.made.insert((Table::Cq, place), context);
            }
            (Request::CreateSrq { .. }, Ok(Reply::Queue(place, _))) => {
                self.made.insert((Table::Srq, place), context);
            }
            (Request::CreateQp { .. }, Ok(Reply::Qp(place, ..))) => {
                self.made.insert((Table::Qp, place), context);
            }
            (Request::DestroyQp { qp }, Ok(_)) => {
                self.made.remove(&(Table::Qp, *qp));
            }
            _ => {}
        }
        Outcome::Answer(Answer::Done(reply))
    }

    pub(super) fn capture(&self, file: Option<&path::Path>) -> io::Result<()> {
        let header = self.host.memory.header();
        self.host.network.borrow_mut().capture(header, file)
    }

    fn fault(&mut self, request: FaultRequest) -> Answer {
        let header = self.host.memory.header();
        let before: Vec<_> = header.ports.iter().map(|port| port.up.get()).collect();
        let done = self.host.network.borrow_mut().change(header, request);
        for (index, was) in before.into_iter().enumerate() {
            let is = header.ports[index].up.get();
            if was != is {
                let event = if is != 0 {
                    Event::PortActive
                } else {
                    Event::PortError
                };
                self.host.raised.borrow_mut().push((event, index as u32));
            }
        }
        if done {
            Answer::Here
        } else {
            Answer::Refused(libc::ENOENT)
        }
    }

    /// All that can be told about the fabric.
    fn describe(&self) -> Description {
        let header = self.host.memory.header();
        let network = self.host.network.borrow();
        let ports = &header.ports[..(header.port_count.get() as usize).min(header.ports.len())];
        let hcas = self.setup.hcas.iter().zip(0..).map(|(hca, number)| Hca {
            device: device_name(number),
            model: hca.model,
            ports: ports_of(header, number)
                .into_iter()
                .map(|port| describe_port(&self.host.memory, port, &ports[port as usize]))
                .collect(),
        });
        let pairs = (0..ports.len()).flat_map(|from| (0..ports.len()).map(move |to| (from, to)));
        let paths = pairs.map(|(from, to)| Path {
            from: ports[from].lid.get() as u16,
            to: ports[to].lid.get() as u16,
            faults: network.faults(from as u32, to as u32),
        });
        let qps = self.made.keys().filter(|(table, _)| *table == Table::Qp);
        let groups = header.groups.iter().filter(|group| group.gid[0].get() != 0);
        let joined = |client: &&Client| client.process.is_some();
        Description {
            name: self.place.name.clone(),
            hcas: hcas.collect(),
            paths: paths
                .filter(|path| path.faults != PathFaults::default())
                .collect(),
            plan_faults: network.plan().map(Running::happened),
            is_captured: network.is_captured(),
            queue_pairs: qps
                .filter_map(|(_, place)| self.describe_qp(*place))
                .collect(),
            groups: groups
                .map(|group| Group {
                    gid: load_gid(&group.gid).into(),
                    queue_pairs: group.members.iter().filter(|qp| qp.get() != 0).count(),
                })
                .collect(),
            users: self.clients.iter().filter(joined).count(),
            nodes: self
                .host
                .remote
                .borrow()
                .as_ref()
                .map_or(Vec::new(), Remote::describe),
        }
    }

    /// A queue pair: what was posted, what is under way, what waits to be polled.
    fn describe_qp(&self, place: u32) -> Option<QueuePair> {
        let memory = &self.host.memory;
        let qp = memory.qp(place)?;
        let cq = |cq: u32| {
            memory.cq(cq).map(|cq| CompletionQueue {
                produced: cq.produced.get(),
                consumed: cq.consumed.get(),
                armed: match cq.armed.get() {
                    cq::SOLICITED => Some(Armed::Solicited),
                    cq::ANY => Some(Armed::Any),
                    _ => None,
                },
            })
        };
        let pid = memory.header().pids.get(qp.process.get() as usize);
        let (requester, sq, rq) = (&qp.requester, &qp.sq, &qp.rq);
        Some(QueuePair {
            number: qp.number.get(),
            device: device_name(qp.hca.get()),
            port: qp.port_number.get(),
            transport: qp.transport()?,
            state: qp.state(),
            pid: pid.map_or(0, |pid| pid.get()),
            dest_qp: qp.dest_qp.get(),
            sends_posted: sq.posted.get(),
            sends_sent: requester.next.get(),
            sends_done: sq.taken.get(),
            psn_unacked: requester.unacked.get(),
            psn_next: requester.psn.get(),
            is_not_ready: requester.not_ready.get() != 0,
            has_timer: requester.deadline_ns.get() != 0,
            receives_posted: rq.posted.get(),
            receives_taken: rq.taken.get(),
            is_starved: rq.starved.get() != 0,
            send_cq: cq(qp.send_cq.get()),
            receive_cq: cq(qp.recv_cq.get()),
        })
    }
}

fn describe_port(memory: &snaprig_hca::Memory, index: u32, port: &snaprig_hca::port::Port) -> Port {
    let named = |counters: &[(&str, u64)]| {
        let counters = counters
            .iter()
            .map(|(name, value)| ((*name).into(), *value));
        counters.collect()
    };
    Port {
        number: port.number.get(),
        lid: port.lid.get() as u16,
        gid: port.gid(0).unwrap_or_default().into(),
        state: match port.up.get() {
            0 => PortState::Down,
            _ => PortState::Active,
        },
        rate: RATE.into(),
        counters: named(&memory.counters(index)),
        hw_counters: named(&port.hw_counters()),
    }
}

/// In a file, because it is longer than a message.
fn in_file(description: &Description) -> io::Result<OwnedFd> {
    let file = memfd_create("snaprig-description", MemfdFlags::CLOEXEC)?;
    let mut writer = BufWriter::new(File::from(file));
    postcard::to_io(description, &mut writer).map_err(io::Error::other)?;
    Ok(writer.into_inner()?.into())
}

fn refuse(errno: i32) -> Outcome {
    Outcome::Answer(Answer::Refused(errno))
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A pipe: out of it, into it. Who writes never waits.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&into, true)?;
    Ok((out, into))
}
