//! A user of the fabric, and what it asks for.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, pidfd_open},
};
use snaprig_hca::{
    Event, Hca, Host,
    control::{Reply, Request},
};

use snaprig_fabric::{FaultRequest, PathFaults};
use snaprig_peers::stream::credentials;

use super::{Context, Daemon, SLOT, Table, read_plan};
use crate::{
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
    pid: Pid,
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

impl Daemon {
    /// Reads one message of a user, and answers it. False if the user is gone, or talks nonsense.
    pub(super) fn serve(&mut self, index: usize) -> bool {
        let Some(client) = self.clients.get(index) else {
            return true;
        };
        let Ok(Some((ask, fds))) = socket::receive::<Ask>(&client.socket) else {
            return false;
        };
        let process = client.process;
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

    fn welcome(&mut self, index: usize, mut fds: Vec<OwnedFd>) -> bool {
        let pid = self.clients[index].pid.as_raw_nonzero().get() as u32;
        let id = self.next_id;
        self.next_id += 1;
        let Some(process) = self.control.join(&self.host.memory, id, pid) else {
            return false;
        };
        if let Some(pool) = fds.pop() {
            self.directory().pools.insert(process, File::from(pool));
        }
        self.clients[index].process = Some(process);
        let hcas = self.setup.hcas.iter().map(|hca| hca.model).collect();
        let welcome = Answer::Welcome { process, hcas };
        let fds: [BorrowedFd<'_>; 2] = self.device_fds();
        socket::send(&self.clients[index].socket, &welcome, &fds).is_ok()
    }

    /// Who has not joined may look, and break.
    fn answer_stranger(&mut self, ask: Ask) -> Outcome {
        match ask {
            Ask::Describe => Outcome::Answer(Answer::Text(self.describe())),
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
            Ask::Open { hca } if (hca as usize) < self.setup.hcas.len() => self.open(process, hca),
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
            Ask::PoolOf { .. } | Ask::ChannelOf { .. } | Ask::Raise { .. } => Outcome::End,
            Ask::Describe | Ask::Fault(_) | Ask::Capture { .. } | Ask::Plan { .. } | Ask::End => {
                self.answer_stranger(ask)
            }
        }
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
        let hca = Hca::new(&self.host.memory, &self.host, SLOT);
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

    pub(super) fn capture(&self, file: Option<&Path>) -> io::Result<()> {
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

    /// A table of the ports, and of what is wrong with the paths.
    fn describe(&self) -> String {
        let header = self.host.memory.header();
        let network = self.host.network.borrow();
        let ports = &header.ports[..(header.port_count.get() as usize).min(header.ports.len())];
        let mut text = String::from("HCA        PORT  LID  LINK\n");
        for port in ports {
            let link = if port.up.get() != 0 { "up" } else { "down" };
            let name = format!("snaprig_{}", port.hca.get());
            text += &format!(
                "{name:<10} {:>4} {:>4}  {link}\n",
                port.number.get(),
                port.lid.get()
            );
        }
        for (from, a) in ports.iter().enumerate() {
            for (to, b) in ports.iter().enumerate() {
                let faults = network.faults(from as u32, to as u32);
                if faults != PathFaults::default() {
                    text += &format!("lid {} -> lid {}: {faults}\n", a.lid.get(), b.lid.get());
                }
            }
        }
        if let Some(plan) = network.plan() {
            text += &format!(
                "a plan is carried out, faults so far: {}\n",
                plan.happened()
            );
        }
        text += &self.describe_queues();
        for group in header.groups.iter().filter(|group| group.gid[0].get() != 0) {
            let words = [group.gid[0].get(), group.gid[1].get()].map(u64::to_be_bytes);
            let gid: [u8; 16] = words.concat().try_into().unwrap_or_default();
            let members = group.members.iter().filter(|member| member.get() != 0);
            let address = std::net::Ipv6Addr::from(gid);
            text += &format!("group {address}: queue pairs: {}\n", members.count());
        }
        text + &format!(
            "users: {}\n",
            self.clients.iter().filter(|c| c.process.is_some()).count()
        )
    }
}

/// Queue pairs that a description shows.
const QPS_SHOWN: usize = 32;

impl Daemon {
    /// A table of queue pairs: what was posted, what is under way, what waits to be polled.
    fn describe_queues(&self) -> String {
        let memory = &self.host.memory;
        let places = self.made.keys().filter(|(table, _)| *table == Table::Qp);
        let mut text = String::new();
        for (_, place) in places.clone().take(QPS_SHOWN) {
            let Some(qp) = memory.qp(*place) else {
                continue;
            };
            if text.is_empty() {
                text += "QP       PID      STATE  SENDS done/sent/posted  PSN unacked/next    RECEIVES taken/posted  POLLED send receive\n";
            }
            let pid = memory
                .header()
                .pids
                .get(qp.process.get() as usize)
                .map_or(0, |pid| pid.get());
            let polled = |cq: u32| {
                memory.cq(cq).map_or(String::new(), |cq| {
                    format!(
                        "{}/{}{}",
                        cq.consumed.get(),
                        cq.produced.get(),
                        ["", "s", "a"][cq.armed.get() as usize % 3]
                    )
                })
            };
            let (requester, sq, rq) = (&qp.requester, &qp.sq, &qp.rq);
            text += &format!(
                "{:#08x} {pid:<8} {:<6} {:>6}/{}/{}  {:#08x}/{:#08x}{}{}  {:>6}/{}{}  {} {}\n",
                qp.number.get(),
                format!("{:?}", qp.state()),
                sq.taken.get(),
                requester.next.get(),
                sq.posted.get(),
                requester.unacked.get(),
                requester.psn.get(),
                if requester.not_ready.get() != 0 {
                    " rnr"
                } else {
                    ""
                },
                if requester.deadline_ns.get() != 0 {
                    " timer"
                } else {
                    ""
                },
                rq.taken.get(),
                rq.posted.get(),
                if qp.rq.starved.get() != 0 {
                    " starved"
                } else {
                    ""
                },
                polled(qp.send_cq.get()),
                polled(qp.recv_cq.get()),
            );
        }
        let more = places.count().saturating_sub(QPS_SHOWN);
        if more > 0 {
            text += &format!("and {more} more\n");
        }
        text
    }
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
