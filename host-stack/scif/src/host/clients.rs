//! Host programs: their connections, what they ask, and what they are told.
//!
//! What must stay true: an endpoint lasts as long as one of its connections does; what a program was
//! copying itself counts as ended when the connection does on which it asked.

use std::{
    collections::btree_map::Entry,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use snaprig_peers::{packets, stream::credentials};
use snaprig_wire::{
    frame,
    scif::{HOST, PORT_PRIVILEGED},
};

use super::{
    Shared, State,
    leases::Leased,
    protocol::{Answer, Call, MESSAGE_MAX, Reply, Request},
    ready::Ready,
    windows::watch_mapping,
};
use crate::node::{EndpointId, Input, JobId, Local, Op, RequestId, Value};

/// A connection to a program.
pub(super) struct Client {
    pub(super) socket: Arc<OwnedFd>,
    endpoint: EndpointId,
    user: u32,
    /// It may have ports below 1024.
    privileged: bool,
    request: Option<RequestId>,
    /// What it copies itself.
    plans: Vec<JobId>,
    /// What it copies without asking.
    pub(super) leased: Option<Leased>,
}

impl Client {
    pub(super) fn endpoint(&self) -> EndpointId {
        self.endpoint
    }
}

/// Who waits for a request.
pub(super) struct Pending {
    client: u64,
    endpoint: EndpointId,
    id: u64,
}

impl State {
    /// A new connection. `endpoint`: the one that it is for, made by an accept for `user`.
    pub(super) fn add_client(
        &mut self,
        shared: &Arc<Shared>,
        endpoint: EndpointId,
        socket: OwnedFd,
        user: Option<u32>,
    ) {
        let socket = Arc::new(socket);
        let number = self.number();
        let peer = credentials(&socket);
        let (uid, pid) = match &peer {
            Ok(peer) => (peer.uid, peer.pid.unwrap_or(0)),
            Err(_) => (u32::MAX, 0),
        };
        // The rig's own process serves Snapify-IO at a port of these.
        let own = pid.unsigned_abs() == std::process::id();
        let client = Client {
            socket: socket.clone(),
            endpoint,
            user: user.unwrap_or(uid),
            privileged: uid == 0 || own,
            request: None,
            plans: Vec::new(),
            leased: None,
        };
        self.clients.insert(number, client);
        let shared = shared.clone();
        std::thread::spawn(move || serve(&shared, number, &socket));
    }

    /// A socket for an accepted endpoint: the client's end.
    fn adopt(
        &mut self,
        shared: &Arc<Shared>,
        endpoint: EndpointId,
        user: Option<u32>,
    ) -> Option<OwnedFd> {
        let (ours, theirs) = packets::pair().ok()?;
        self.add_client(shared, endpoint, ours, user);
        Some(theirs)
    }

    fn remove_client(&mut self, shared: &Arc<Shared>, number: u64) {
        let Some(client) = self.clients.remove(&number) else {
            return;
        };
        self.requests.retain(|_, pending| pending.client != number);
        let mut ended = client.plans;
        ended.extend(self.returned(number));
        for job in ended {
            self.step(shared, Input::CopyDone(job, Ok(())));
        }
        if let Some(request) = client.request {
            self.step(shared, Input::Cancel(request));
        }
        let endpoint = client.endpoint;
        if !self.clients.values().any(|c| c.endpoint == endpoint) {
            self.ready.remove(&endpoint);
            self.direct.remove(&endpoint);
            self.forget_pool(endpoint);
            self.step(shared, Input::Close(endpoint));
        }
    }

    pub(super) fn reply(
        &mut self,
        shared: &Arc<Shared>,
        request: RequestId,
        result: Result<Value, i32>,
    ) {
        let Some(pending) = self.requests.remove(&request) else {
            return;
        };
        let mut descriptor = None;
        let answer = result.and_then(|value| self.value(shared, &pending, value, &mut descriptor));
        self.answer(&pending, answer, descriptor);
    }

    fn value(
        &mut self,
        shared: &Arc<Shared>,
        pending: &Pending,
        value: Value,
        descriptor: &mut Option<OwnedFd>,
    ) -> Result<Answer, i32> {
        Ok(match value {
            Value::Unit => Answer::Unit,
            Value::Port(port) => Answer::Port(port),
            Value::Bytes(bytes) => Answer::Bytes(bytes),
            Value::Count(count) => Answer::Count(count as u32),
            Value::Offset(offset) => Answer::Offset(offset),
            Value::Mark(mark) => Answer::Mark(mark),
            Value::Gone { held } => Answer::Gone { held },
            Value::Accepted { endpoint, peer } => {
                let user = self.clients.get(&pending.client).map(|c| c.user);
                *descriptor = self.adopt(shared, endpoint, user);
                // Accepted by libscif: it has a descriptor before its peer can send anything.
                if self.ready.contains_key(&pending.endpoint) {
                    let _ = self.descriptor(endpoint);
                }
                Answer::Accepted(peer)
            }
            Value::Plan { job, extents } => {
                let segments = self.segments(pending.endpoint, &extents);
                match (self.clients.get_mut(&pending.client), segments) {
                    (Some(client), Ok(segments)) => {
                        client.plans.push(job);
                        Answer::Plan { job, segments }
                    }
                    (_, other) => {
                        self.node.handle(Input::CopyDone(job, Ok(())));
                        return Err(other.err().unwrap_or(libc::ECONNRESET));
                    }
                }
            }
            Value::Leased {
                offset,
                prot,
                extents,
            } => {
                let client = self.clients.get(&pending.client);
                let leased = client.and_then(|client| client.leased.as_ref());
                let generation = leased.ok_or(libc::EBADF)?.generation;
                Answer::Lease {
                    generation,
                    offset,
                    prot,
                    segments: self.segments(pending.endpoint, &extents)?,
                }
            }
            // Programs of the host have their lanes as files.
            Value::Lanes { .. } => return Err(libc::EPROTO),
            Value::Mapped { mapping, extents } => {
                let whole: u64 = extents.iter().map(|extent| extent.len).sum();
                let segments = self.segments(pending.endpoint, &extents);
                let segments = segments
                    .ok()
                    .filter(|s| s.iter().map(|s| s.len).sum::<u64>() == whole);
                match (segments, packets::pair().ok()) {
                    (Some(segments), Some((ours, theirs))) => {
                        let ours = Arc::new(ours);
                        self.holders.insert(mapping, ours.clone());
                        watch_mapping(shared, mapping, ours);
                        *descriptor = Some(theirs);
                        Answer::Mapped(segments)
                    }
                    _ => {
                        self.node.handle(Input::Unmapped(mapping));
                        return Err(libc::ENOMEM);
                    }
                }
            }
        })
    }

    fn answer(
        &mut self,
        pending: &Pending,
        result: Result<Answer, i32>,
        descriptor: Option<OwnedFd>,
    ) {
        self.answer_with(pending, result, descriptor.as_slice());
    }

    fn answer_with(&mut self, pending: &Pending, result: Result<Answer, i32>, fds: &[OwnedFd]) {
        let Some(client) = self.clients.get_mut(&pending.client) else {
            return;
        };
        client.request = None;
        let id = pending.id;
        let reply = frame::encode(&Reply { id, result });
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // A client that is gone is noticed by its thread.
        let _ = packets::send(&client.socket, &reply, &fds);
    }

    fn call(&mut self, shared: &Arc<Shared>, number: u64, request: Request, fd: Option<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        let (endpoint, privileged) = (client.endpoint, client.privileged);
        let pending = Pending {
            client: number,
            endpoint,
            id: request.id,
        };
        let op = match request.call {
            Call::PlanDone(job) => {
                let known = client.plans.iter().position(|other| *other == job);
                if let Some(index) = known {
                    client.plans.swap_remove(index);
                    self.step(shared, Input::CopyDone(job, Ok(())));
                }
                return;
            }
            Call::Leased => {
                for job in self.returned(number) {
                    self.step(shared, Input::CopyDone(job, Ok(())));
                }
                return;
            }
            Call::Leases => {
                let (result, file) = match self.leases(number) {
                    Ok(file) => (Ok(Answer::Unit), Some(file)),
                    Err(errno) => (Err(errno), None),
                };
                return self.answer(&pending, result, file);
            }
            Call::Interrupt => {
                if let Some(request) = client.request {
                    self.step(shared, Input::Interrupt(request));
                }
                return;
            }
            Call::Join(other) => {
                let result = self.join(shared, number, other);
                return self.answer(&pending, result, None);
            }
            asked @ (Call::Descriptor | Call::OnlyDescriptor) => {
                let willing = Input::Request(self.number(), endpoint, Op::Willing);
                self.step(shared, willing);
                let descriptor = match asked {
                    Call::OnlyDescriptor => self.only_descriptor(endpoint),
                    _ => self.descriptor(endpoint),
                };
                let (result, fd) = match descriptor {
                    Ok(fd) => (Ok(Answer::Endpoint(endpoint)), Some(fd)),
                    Err(errno) => (Err(errno), None),
                };
                return self.answer(&pending, result, fd);
            }
            Call::Mask => {
                let mask = self.mask(endpoint);
                return self.answer(&pending, Ok(Answer::Mask(mask)), None);
            }
            Call::Direct => {
                let (answer, fds) = match self.direct(endpoint) {
                    Ok(Some((place, fds))) => (Ok(Answer::Direct(place)), fds),
                    Ok(None) => (Ok(Answer::Unit), Vec::new()),
                    Err(errno) => (Err(errno), Vec::new()),
                };
                return self.answer_with(&pending, answer, &fds);
            }
            Call::Pool => {
                let result = fd.ok_or(libc::EBADF);
                let result = result.and_then(|fd| self.pool(endpoint, fd));
                return self.answer(&pending, result.map(|()| Answer::Unit), None);
            }
            Call::Memory(id) => {
                let (result, file) = match self.memory(id) {
                    Some((file, true)) => (Ok(Answer::Unit), Some(file)),
                    Some((file, false)) => (Ok(Answer::File), Some(file)),
                    None => (Err(libc::ENXIO), None),
                };
                return self.answer(&pending, result, file);
            }
            Call::NodeIds => {
                let (all, own) = (self.node.nodes(), HOST);
                return self.answer(&pending, Ok(Answer::Nodes { all, own }), None);
            }
            Call::Cards => {
                let states = self.states.iter().map(|(node, state)| (*node, *state));
                let answer = Answer::Cards(states.collect());
                return self.answer(&pending, Ok(answer), None);
            }
            Call::Close => {
                self.step(shared, Input::Close(endpoint));
                return self.answer(&pending, Ok(Answer::Unit), None);
            }
            Call::Bind(1..PORT_PRIVILEGED) if !privileged => Err(libc::EACCES),
            Call::Bind(port) => Ok(Op::Bind(port)),
            Call::Listen(backlog) => Ok(Op::Listen(backlog as usize)),
            Call::Connect(peer) => Ok(Op::Connect(peer)),
            Call::ConnectAsync(peer) => Ok(Op::ConnectAsync(peer)),
            Call::Accept => Ok(Op::Accept),
            Call::AcceptNow => Ok(Op::TryAccept),
            Call::Send(data) => Ok(Op::Send(data)),
            Call::Write { data, block } => Ok(Op::Write { data, block }),
            Call::Recv(max) => Ok(Op::Recv(max as usize)),
            Call::Read { max, block } => Ok(Op::Read {
                max: max as usize,
                block,
            }),
            Call::Unregister { offset, len } => Ok(Op::Unregister { offset, len }),
            Call::Rma {
                local,
                len,
                remote,
                write,
            } => Ok(Op::Rma {
                local: Local::Window(local),
                len,
                remote,
                write,
                ordered: false,
                sync: true,
            }),
            Call::Plan {
                local,
                len,
                remote,
                write,
            } => Ok(Op::Plan {
                local,
                len,
                remote,
                write,
            }),
            Call::Lease(remote) => Ok(Op::Lease(remote)),
            Call::Map { offset, len, prot } => Ok(Op::Map { offset, len, prot }),
            Call::FenceMark { peer } => Ok(Op::FenceMark { peer }),
            Call::FenceWait(mark) => Ok(Op::FenceWait(mark)),
            Call::FenceSignal {
                local,
                remote,
                peer,
            } => Ok(Op::FenceSignal {
                local,
                remote,
                peer,
            }),
            Call::CloseWait => Ok(Op::Close),
            Call::Ring(bell) => Ok(Op::Ring(bell)),
            Call::Register {
                fd_offset,
                len,
                offset,
                prot,
            } => self
                .register(endpoint, fd.as_ref(), fd_offset, len)
                .map(|(extents, backing)| Op::Register {
                    extents,
                    offset,
                    prot,
                    backing,
                }),
            Call::RegisterFile {
                at,
                len,
                offset,
                prot,
            } => self
                .register_file(endpoint, fd, at, len)
                .map(|(extents, backing)| Op::Register {
                    extents,
                    offset,
                    prot,
                    backing,
                }),
            Call::RegisterPages {
                address,
                len,
                offset,
                prot,
            } => self
                .register_pages(endpoint, address, len)
                .map(|(extents, backing)| Op::Register {
                    extents,
                    offset,
                    prot,
                    backing,
                }),
        };
        match op {
            Ok(op) => {
                let request = self.number();
                if let Some(client) = self.clients.get_mut(&number) {
                    client.request = Some(request);
                }
                self.requests.insert(request, pending);
                self.step(shared, Input::Request(request, endpoint, op));
            }
            Err(errno) => self.answer(&pending, Err(errno), None),
        }
    }

    /// A connection that came with an endpoint of its own is for another one of the same user's.
    fn join(
        &mut self,
        shared: &Arc<Shared>,
        number: u64,
        other: EndpointId,
    ) -> Result<Answer, i32> {
        let user = self.clients.get(&number).ok_or(libc::EBADF)?.user;
        let mut owners = self.clients.values().filter(|c| c.endpoint == other);
        if !owners.any(|owner| owner.user == user || user == 0) {
            return Err(libc::EBADF);
        }
        let client = self.clients.get_mut(&number).ok_or(libc::EBADF)?;
        let unused = std::mem::replace(&mut client.endpoint, other);
        self.step(shared, Input::Close(unused));
        Ok(Answer::Unit)
    }

    fn descriptor(&mut self, endpoint: EndpointId) -> Result<OwnedFd, i32> {
        let theirs = self.ready(endpoint)?.descriptor().ok_or(libc::EBUSY)?;
        theirs.try_clone_to_owned().map_err(|_| libc::EMFILE)
    }

    fn only_descriptor(&mut self, endpoint: EndpointId) -> Result<OwnedFd, i32> {
        self.ready(endpoint)?.give().ok_or(libc::EBUSY)
    }

    fn ready(&mut self, endpoint: EndpointId) -> Result<&mut Ready, i32> {
        match self.ready.entry(endpoint) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let mut ready = Ready::new().map_err(|e| e.raw_os_error())?;
                ready.set(self.node.poll(endpoint));
                Ok(entry.insert(ready))
            }
        }
    }
}

/// Serves one connection until its program closes it.
fn serve(shared: &Arc<Shared>, number: u64, socket: &OwnedFd) {
    let mut buffer = vec![0; MESSAGE_MAX];
    while let Ok(Some((len, mut fds))) = packets::receive(socket, &mut buffer) {
        let Ok(request) = frame::decode::<Request>(&buffer[..len]) else {
            break;
        };
        shared.lock().call(shared, number, request, fds.pop());
    }
    shared.lock().remove_client(shared, number);
}
