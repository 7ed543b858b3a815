//! Links to other processes: who asks for a connection, and who is asked.

use std::net::SocketAddr;

use rustix::io::Errno;

use super::{
    BACKLOG_MAX, Due, Event, LISTEN_LOOK, LISTEN_PATIENCE, Manager, Output, Reply, User, after_ns,
};
use crate::{
    host::{Host, LinkId, NotConnected, Service},
    id::{EventKind, Id, Input, State},
    wire::{Endpoint, Message, Params, REJ_CONSUMER, REJ_INVALID_SERVICE, SIDR_UNSUPPORTED},
};

/// What a request for a connection says.
struct Request {
    from: SocketAddr,
    to: SocketAddr,
    endpoint: Endpoint,
    params: Params,
}

impl Manager {
    /// Somebody has connected to a link at which this process listens: by a link of its own.
    pub fn accepted(&mut self, listener: LinkId, new: LinkId) {
        match self.links.get(&listener) {
            Some(User::Listener(handle)) => {
                let user = User::New(*handle);
                self.links.insert(new, user);
            }
            _ => self.outputs.push(Output::Close(new)),
        }
    }

    /// A message has come over a link. Collect [`Manager::outputs`].
    pub fn received(&mut self, now_ns: u64, link: LinkId, message: Message, host: &mut dyn Host) {
        match (self.links.get(&link).copied(), message) {
            (None | Some(User::Listener(_)), _) => {}
            (Some(User::Id(handle)), message) => {
                // What makes no sense now is not answered.
                let _ = self.input(now_ns, handle, Input::Received(message));
            }
            (
                Some(User::New(listener)),
                Message::Req {
                    from,
                    to,
                    endpoint,
                    params,
                },
            ) => {
                let request = Request {
                    from,
                    to,
                    endpoint,
                    params,
                };
                if self.requested(listener, link, request, host).is_err() {
                    let refusal = Message::Rej {
                        reason: REJ_CONSUMER,
                        data: Vec::new(),
                    };
                    self.outputs.push(Output::Send(link, refusal));
                    self.drop_link(link);
                }
            }
            (Some(User::New(_)), _) => self.drop_link(link),
        }
    }

    /// The other side of a link is gone, or is not to be talked to. Collect [`Manager::outputs`].
    pub fn hung_up(&mut self, now_ns: u64, link: LinkId) {
        match self.links.get(&link).copied() {
            None | Some(User::Listener(_)) => {}
            Some(User::New(_)) => self.drop_link(link),
            Some(User::Id(handle)) => {
                if self.input(now_ns, handle, Input::Hangup).is_err() {
                    self.drop_link(link);
                }
            }
        }
    }

    pub(super) fn drop_link(&mut self, link: LinkId) {
        if self.links.remove(&link).is_some() {
            self.outputs.push(Output::Close(link));
        }
    }

    pub(super) fn drop_links_of(&mut self, user: User) {
        let of = |(link, its): (&LinkId, &User)| (*its == user).then_some(*link);
        let links: Vec<LinkId> = self.links.iter().filter_map(of).collect();
        for link in links {
            self.drop_link(link);
        }
    }

    pub(super) fn connect(
        &mut self,
        now_ns: u64,
        handle: u32,
        params: Option<Params>,
        host: &mut dyn Host,
    ) -> Result<Reply, Errno> {
        let params = params.ok_or(Errno::INVAL)?;
        let request = self.id(handle)?.request(params)?;
        let until_ns = after_ns(now_ns, LISTEN_PATIENCE);
        self.ask(now_ns, handle, request, until_ns, host);
        Ok(Reply::Done)
    }

    /// Asks for a connection; where nobody listens, again and again until then.
    pub(super) fn ask(
        &mut self,
        now_ns: u64,
        handle: u32,
        request: Message,
        until_ns: u64,
        host: &mut dyn Host,
    ) {
        let Some(id) = self.ids.get_mut(&handle) else {
            return;
        };
        let Some(remote) = id.remote else { return };
        let is_ud = id.is_ud();
        let refusal = match host.connect(&Service::new(id.space, remote), &request) {
            Ok(link) => {
                id.link = Some(link);
                self.links.insert(link, User::Id(handle));
                return;
            }
            Err(NotConnected::Refused) if now_ns < until_ns => {
                return self.set_timer(now_ns, LISTEN_LOOK, handle, Due::Ask { request, until_ns });
            }
            Err(refusal) => refusal,
        };
        id.state = State::RouteResolved;
        let (kind, status) = match (refusal, is_ud) {
            (NotConnected::Refused, true) => (EventKind::Unreachable, SIDR_UNSUPPORTED as i32),
            (NotConnected::Refused, false) => (EventKind::Rejected, REJ_INVALID_SERVICE as i32),
            (NotConnected::Failed, _) => (EventKind::Unreachable, -libc::ETIMEDOUT),
        };
        self.fail(handle, kind, status);
    }

    /// Somebody wants a connection: a new id, of which the listener's program is told.
    fn requested(
        &mut self,
        listener: u32,
        link: LinkId,
        request: Request,
        host: &mut dyn Host,
    ) -> Result<(), Errno> {
        let handle = self.new_handle()?;
        let of = self.id(listener)?;
        let (channel, uid, space, qp_type) = (of.channel, of.uid, of.space, of.qp_type);
        if self.requests_waiting(listener) >= BACKLOG_MAX {
            return Err(Errno::NOMEM);
        }
        let mut id = self.new_id(0, channel, space, qp_type);
        id.local = Some(request.to);
        id.remote = Some(request.from);
        id.link = Some(link);
        attach(&mut id, host)?;
        let body = id.requested(request.endpoint, request.params);
        let ah = id.is_ud().then(|| id.path_to_peer());
        self.ids.insert(handle, id);
        self.links.insert(link, User::Id(handle));
        let event = Event {
            uid,
            handle,
            owner: listener,
            kind: EventKind::ConnectRequest,
            body,
            ah,
        };
        self.queue(channel, event);
        Ok(())
    }

    /// How many events of a listener its program has not seen.
    fn requests_waiting(&self, listener: u32) -> usize {
        let queue = self
            .ids
            .get(&listener)
            .and_then(|id| self.channels.get(&id.channel));
        let is = |event: &&Event| event.owner == listener;
        queue.map_or(0, |queue| queue.iter().filter(is).count())
    }
}

/// Gives an id the port of its local address.
pub(super) fn attach(id: &mut Id, host: &dyn Host) -> Result<(), Errno> {
    let local = id.local.ok_or(Errno::INVAL)?;
    id.port = Some(host.port_at(local.ip().to_canonical())?);
    Ok(())
}
