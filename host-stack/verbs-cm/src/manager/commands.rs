//! What each command does.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;

use super::{
    Channel, Manager, Reply, User, answers::mtu, attributes::qp_attr, connections::attach,
};
use crate::{
    abi::{AF_IB, Bind, ConnParam, Ece, EventsReportedAnswer, IdAnswer, Reject, SetOption},
    command::Command,
    host::{Host, Service},
    id::{EventBody, EventKind, Input, State},
    wire::Params,
};

/// `RDMA_USER_CM_QUERY_*`: what a query is about.
const QUERY_ADDR: u32 = 0;
const QUERY_PATH: u32 = 1;
const QUERY_GID: u32 = 2;

impl Manager {
    /// Does what a program asks for on a channel. `option` is the `int` at [`Command::option_address`]. Collect
    /// [`Manager::outputs`], whatever is returned.
    pub fn command(
        &mut self,
        now_ns: u64,
        channel: Channel,
        command: &Command,
        option: Option<i32>,
        host: &mut dyn Host,
    ) -> Result<Reply, Errno> {
        match command {
            Command::CreateId(of) => {
                let handle = self.new_handle()?;
                let id = self.new_id(of.uid, channel, of.port_space, of.qp_type);
                self.ids.insert(handle, id);
                Ok(Reply::answer(&IdAnswer { id: handle }))
            }
            Command::DestroyId(of) => {
                let events_reported = self.destroy(of.id).ok_or(Errno::NOENT)?;
                Ok(Reply::answer(&EventsReportedAnswer { events_reported }))
            }
            Command::MigrateId(of) => self.migrate(channel, of.id),
            Command::BindIp(of) => self.bind(of.id, of.address.get()?, host),
            Command::Bind(of) => self.bind_any(of, host),
            Command::ResolveIp(of) => self.resolve(of.id, of.source.get()?, of.target.get()?, host),
            Command::ResolveAddr(of) => {
                let (source, target) = (of.source.address.get()?, of.target.address.get()?);
                self.resolve(of.id, source, target, host)
            }
            Command::ResolveRoute(of) => self.resolve_route(of.id),
            Command::Listen(of) => self.listen(of.id, host),
            Command::Connect(of) => self.connect(now_ns, of.id, params(&of.param, &of.ece), host),
            Command::Accept(of) => self.accept(now_ns, of.id, of.uid, params(&of.param, &of.ece)),
            Command::Reject(of) => self.reject(now_ns, of),
            Command::Disconnect(of) => {
                self.input(now_ns, of.id, Input::Disconnect)?;
                Ok(Reply::Done)
            }
            Command::GetEvent(_) => Ok(match self.next_event(channel) {
                Some(event) => self.report(&event),
                None => Reply::Wait,
            }),
            Command::SetOption(of) => self.set_option(of, option),
            // All that there is to be notified of, COMM_EST, is of no use here.
            Command::Notify(of) => self.id(of.id).map(|_| Reply::Done),
            Command::InitQpAttr(of) => {
                let attr = qp_attr(self.id(of.id)?, of.qp_state, mtu(host))?;
                Ok(Reply::answer(&attr))
            }
            Command::QueryRoute(of) => self.query_route(of.id, host),
            Command::Query(of) => match of.option {
                QUERY_ADDR => self.query_address(of.id, false),
                QUERY_GID => self.query_address(of.id, true),
                QUERY_PATH => self.query_path(of.id, host),
                _ => Err(Errno::NOSYS),
            },
            Command::JoinIpMcast(of) => self.join(of.id, of.uid, of.address.get()?),
            Command::JoinMcast(of) => self.join(of.id, of.uid, of.address.address.get()?),
            Command::LeaveMcast(of) => self.leave(of.id),
        }
    }

    fn bind_any(&mut self, of: &Bind, host: &dyn Host) -> Result<Reply, Errno> {
        if of.address.address.family == AF_IB {
            // So that librdmacm, which tries, uses the commands of today.
            self.id(of.id)?.state = State::Bound;
            return Ok(Reply::Done);
        }
        self.bind(of.id, of.address.address.get()?, host)
    }

    fn bind(
        &mut self,
        handle: u32,
        address: Option<SocketAddr>,
        host: &dyn Host,
    ) -> Result<Reply, Errno> {
        let mut address = address.ok_or(Errno::INVAL)?;
        let any_port = self.new_port();
        let id = self.id(handle)?;
        if id.state != State::Idle {
            return Err(Errno::INVAL);
        }
        if !host.is_local(address.ip()) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        if address.port() == 0 {
            address.set_port(any_port);
        } else if host.is_taken(&Service::new(id.space, address)) {
            return Err(Errno::ADDRINUSE);
        }
        id.local = Some(address);
        if !address.ip().is_unspecified() {
            attach(id, host)?;
        }
        id.state = State::Bound;
        Ok(Reply::Done)
    }

    fn resolve(
        &mut self,
        handle: u32,
        source: Option<SocketAddr>,
        target: Option<SocketAddr>,
        host: &dyn Host,
    ) -> Result<Reply, Errno> {
        let target = to_oneself_if_unspecified(target.ok_or(Errno::INVAL)?);
        let any_port = self.new_port();
        let id = self.id(handle)?;
        if !matches!(id.state, State::Idle | State::Bound) {
            return Err(Errno::INVAL);
        }
        let is_specific = |address: &SocketAddr| !address.ip().is_unspecified();
        let port = [source, id.local]
            .into_iter()
            .flatten()
            .map(|address| address.port())
            .find(|port| *port != 0)
            .unwrap_or(any_port);
        let is_group = target.ip().to_canonical().is_multicast();
        let source = source.filter(is_specific).or(id.local.filter(is_specific));
        let ip = source.map_or_else(|| host.source_for(target), |source| Some(source.ip()));
        let Some(ip) = ip.filter(|_| is_group || host.is_local(target.ip())) else {
            self.fail(handle, EventKind::AddrError, -libc::ENODEV);
            return Ok(Reply::Done);
        };
        let mut local = SocketAddr::new(ip, port);
        if let (SocketAddr::V6(local), Some(SocketAddr::V6(given))) = (&mut local, source) {
            local.set_scope_id(given.scope_id());
        }
        id.local = Some(local);
        id.remote = Some(target);
        attach(id, host)?;
        if !is_group {
            id.peer = host.port_at(target.ip().to_canonical())?.endpoint;
        }
        id.state = State::AddrResolved;
        self.tell(handle, EventKind::AddrResolved, EventBody::default());
        Ok(Reply::Done)
    }

    fn resolve_route(&mut self, handle: u32) -> Result<Reply, Errno> {
        let id = self.id(handle)?;
        if id.state != State::AddrResolved {
            return Err(Errno::INVAL);
        }
        id.state = State::RouteResolved;
        self.tell(handle, EventKind::RouteResolved, EventBody::default());
        Ok(Reply::Done)
    }

    fn listen(&mut self, handle: u32, host: &mut dyn Host) -> Result<Reply, Errno> {
        let any_port = self.new_port();
        let id = self.id(handle)?;
        if id.state == State::Idle {
            id.local = Some(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), any_port));
            id.state = State::Bound;
        }
        if id.state == State::Listening {
            return Ok(Reply::Done);
        }
        let (State::Bound, Some(local)) = (id.state, id.local) else {
            return Err(Errno::INVAL);
        };
        let service = Service::new(id.space, local);
        if host.is_taken(&service) {
            return Err(Errno::ADDRINUSE);
        }
        let link = host.listen(&service, id.ipv6_only)?;
        id.state = State::Listening;
        id.link = Some(link);
        self.links.insert(link, User::Listener(handle));
        Ok(Reply::Done)
    }

    fn accept(
        &mut self,
        now_ns: u64,
        handle: u32,
        uid: u64,
        params: Option<Params>,
    ) -> Result<Reply, Errno> {
        let id = self.id(handle)?;
        if params.is_some() && uid != 0 {
            id.uid = uid;
        }
        self.input(now_ns, handle, Input::Accept(params))?;
        Ok(Reply::Done)
    }

    fn reject(&mut self, now_ns: u64, of: &Reject) -> Result<Reply, Errno> {
        let data = of.private_data[..of.private_data_bytes.into()].to_vec();
        let reason = of.reason.into();
        self.input(now_ns, of.id, Input::Reject { reason, data })?;
        Ok(Reply::Done)
    }

    fn set_option(&mut self, of: &SetOption, value: Option<i32>) -> Result<Reply, Errno> {
        let id = self.id(of.id)?;
        if of.is_ipv6_only() {
            id.ipv6_only = value.ok_or(Errno::INVAL)? != 0;
            return Ok(Reply::Done);
        }
        match (of.level, of.name) {
            // A type of service, that an address may be used again, a time for acknowledgements: without effect.
            (0, 0 | 1 | 3) => Ok(Reply::Done),
            // A path that the program knows: ours is as good.
            (1, 1) => self.resolve_route(of.id),
            _ => Err(Errno::NOSYS),
        }
    }

    fn migrate(&mut self, to: Channel, handle: u32) -> Result<Reply, Errno> {
        let id = self.id(handle)?;
        let events_reported = id.reported;
        let from = std::mem::replace(&mut id.channel, to);
        for event in self.take_events(from, |event| event.owner == handle) {
            self.queue(to, event);
        }
        Ok(Reply::answer(&EventsReportedAnswer { events_reported }))
    }
}

/// An address of all of a machine is, as a target, the machine itself.
fn to_oneself_if_unspecified(mut target: SocketAddr) -> SocketAddr {
    if target.ip().is_unspecified() {
        target.set_ip(match target {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    target
}

/// What a program says of its side of a connection, if it says anything.
fn params(given: &ConnParam, ece: &Ece) -> Option<Params> {
    if given.valid == 0 {
        return None;
    }
    let data = &given.private_data[..given.private_data_bytes.into()];
    Some(Params {
        qpn: given.qp_num,
        qkey: given.qkey,
        psn: 0,
        srq: given.srq != 0,
        responder_resources: given.responder_resources,
        initiator_depth: given.initiator_depth,
        flow_control: given.flow_control != 0,
        retry_count: given.retry_count,
        rnr_retry_count: given.rnr_retry_count,
        ece: (ece.vendor_id, ece.attr_mod),
        data: data.to_vec(),
    })
}
