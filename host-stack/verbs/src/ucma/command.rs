//! Commands, byte by byte (rdma/rdma_user_cm.h): a header, a request, an answer elsewhere.
//!
//! ```text
//!   +-----+----+-----+-------------------------------+
//!   | cmd | in | out | request: `in` bytes           |   answer: up to `out` bytes, at `response`
//!   +-----+----+-----+-------------------------------+
//!     u32  u16   u16
//! ```

use std::{
    ffi::c_int,
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6},
    time::Instant,
};

use libc::{EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EINVAL, ENODEV, ENOENT, ENOSYS};
use snaprig_hca::{control::guid, model::Model};
use snaprig_verbs_abi as abi;

use super::{
    Done, Event, Group, LISTEN_PATIENCE, PORT, Ucma, User, attach, endpoint_of,
    id::{Id, Input, Kind, News, PS_UDP, State, UDP_QKEY},
    link, random, reach,
    wire::{Endpoint, Params},
};
use crate::ffi::{self, KernAh, KernPath, KernQpAttr};

/// Bytes of the header.
pub(super) const HEADER: usize = 8;
/// Bytes of a socket address: what is kept of one, and what has room for any.
const SOCKADDR: usize = 28;
const STORAGE: usize = 128;
/// Bytes of an event, and where its parameters are.
const EVENT: usize = 336;
const EVENT_PARAM: usize = 20;
const EVENT_ECE: usize = 328;
const AF_IB: u16 = 27;
/// The partition of all ids.
const PKEY: u16 = 0xffff;
/// 100 Gb/s, and 4.096 us << 14: of all paths.
const RATE: u8 = abi::IBV_RATE_100_GBPS as u8;
const LIFE_TIME: u8 = 14;
/// What a connection manager makes of that and of an HCA's acknowledgement delay.
const ACK_TIMEOUT: u8 = 16;

/// A request's bytes; what is missing is an error.
struct Request<'a>(&'a [u8]);

impl Request<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Result<[u8; N], c_int> {
        let bytes = self.0.get(at..at + N).ok_or(EINVAL)?;
        bytes.try_into().map_err(|_| EINVAL)
    }

    fn u8(&self, at: usize) -> Result<u8, c_int> {
        Ok(self.bytes::<1>(at)?[0])
    }

    fn u16(&self, at: usize) -> Result<u16, c_int> {
        Ok(u16::from_ne_bytes(self.bytes(at)?))
    }

    fn u32(&self, at: usize) -> Result<u32, c_int> {
        Ok(u32::from_ne_bytes(self.bytes(at)?))
    }

    fn u64(&self, at: usize) -> Result<u64, c_int> {
        Ok(u64::from_ne_bytes(self.bytes(at)?))
    }

    /// `struct rdma_ucm_conn_param`.
    fn params(&self, at: usize, ece: usize) -> Result<Option<Params>, c_int> {
        let length = usize::from(self.u8(at + 264)?);
        if self.u8(at + 271)? == 0 {
            return Ok(None);
        }
        Ok(Some(Params {
            qpn: self.u32(at)?,
            qkey: self.u32(at + 4)?,
            psn: 0,
            srq: self.u8(at + 265)? != 0,
            responder_resources: self.u8(at + 266)?,
            initiator_depth: self.u8(at + 267)?,
            flow_control: self.u8(at + 268)? != 0,
            retry_count: self.u8(at + 269)?,
            rnr_retry_count: self.u8(at + 270)?,
            // Programs of old have none.
            ece: (self.u32(ece).unwrap_or(0), self.u32(ece + 4).unwrap_or(0)),
            data: self.0.get(at + 8..at + 8 + length).ok_or(EINVAL)?.to_vec(),
        }))
    }

    /// A socket address; none if it has no family.
    fn address(&self, at: usize) -> Result<Option<SocketAddr>, c_int> {
        let port = u16::from_be_bytes(self.bytes(at + 2)?);
        match c_int::from(self.u16(at)?) {
            libc::AF_UNSPEC => Ok(None),
            libc::AF_INET => {
                let address = IpAddr::from(self.bytes::<4>(at + 4)?);
                Ok(Some(SocketAddr::new(address, port)))
            }
            libc::AF_INET6 => {
                let address = Ipv6Addr::from(self.bytes::<16>(at + 8)?);
                let scope = self.u32(at + 24)?;
                Ok(Some(SocketAddrV6::new(address, port, 0, scope).into()))
            }
            _ => Err(EAFNOSUPPORT),
        }
    }
}

/// An answer that is being made.
struct Answer<const N: usize>([u8; N]);

impl<const N: usize> Answer<N> {
    fn new() -> Self {
        Self([0; N])
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn put_address(&mut self, at: usize, address: SocketAddr) -> u16 {
        self.put(at + 2, &address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                self.put(at, &(libc::AF_INET as u16).to_ne_bytes());
                self.put(at + 4, &v4.ip().octets());
                16
            }
            SocketAddr::V6(v6) => {
                self.put(at, &(libc::AF_INET6 as u16).to_ne_bytes());
                self.put(at + 8, &v6.ip().octets());
                self.put(at + 24, &v6.scope_id().to_ne_bytes());
                28
            }
        }
    }

    /// `struct sockaddr_ib`.
    fn put_gid(&mut self, at: usize, gid: [u8; 16], service: u64) {
        self.put(at, &AF_IB.to_ne_bytes());
        self.put(at + 2, &PKEY.to_be_bytes());
        self.put(at + 8, &gid);
        self.put(at + 24, &service.to_be_bytes());
        self.put(at + 32, &u64::MAX.to_be_bytes());
    }
}

/// The bytes of one of the kernel's structures.
fn bytes_of<T: Copy>(of: &T) -> &[u8] {
    // SAFETY: `bytes_of` is called with structures of `kern` alone, which are integers without gaps
    // between them, so that every byte is initialised; the slice borrows from `of` for as long as
    // it lives.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(of).cast(), size_of::<T>()) }
}

/// Where a command's answer goes.
struct Response {
    at: u64,
    room: usize,
}

impl Response {
    fn write(&self, bytes: &[u8]) -> Result<Done, c_int> {
        let count = bytes.len().min(self.room);
        if self.at == 0 && count > 0 {
            return Err(libc::EFAULT);
        }
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.at as usize);
        // SAFETY: the caller of `super::write` says that the command's answer has `room` bytes at
        // `at`, of its own; no more are written, and `at` is not 0. `bytes` is this library's, so
        // that they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, count) };
        Ok(Done::Yes)
    }
}

/// Largest packets on all paths.
fn mtu() -> u8 {
    let fabric = ffi::fabric();
    let small = fabric.is_ok_and(|fabric| {
        let mut hcas = fabric.hcas.iter();
        hcas.any(|name| Model::of(*name).mtu == 2048)
    });
    if small {
        abi::IBV_MTU_2048 as u8
    } else {
        abi::IBV_MTU_4096 as u8
    }
}

impl Ucma {
    pub(super) fn command(&mut self, fd: c_int, bytes: &[u8]) -> Result<Done, c_int> {
        let header = Request(bytes);
        let (command, length, room) = (header.u32(0)?, header.u16(4)?, header.u16(6)?);
        let request = bytes
            .get(HEADER..HEADER + usize::from(length))
            .ok_or(EINVAL)?;
        let request = &Request(request);
        let response = |at: usize| {
            Ok::<_, c_int>(Response {
                at: request.u64(at)?,
                room: room.into(),
            })
        };
        match command {
            0 => self.create(fd, request, &response(8)?),
            1 => {
                let reported = self.destroy(request.u32(8)?).ok_or(ENOENT)?;
                response(0)?.write(&reported.to_ne_bytes())
            }
            2 => self.bind(request.u32(36)?, request.address(8)?),
            3 => {
                let (source, target) = (request.address(0)?, request.address(28)?);
                self.resolve(request.u32(56)?, source, target)
            }
            4 => self.resolve_route(request.u32(0)?),
            5 => self.query_route(request.u32(8)?, &response(0)?),
            6 => self.connect(request.u32(272)?, request.params(0, 280)?),
            7 => self.listen(request.u32(0)?),
            8 => {
                let (uid, handle) = (request.u64(0)?, request.u32(280)?);
                let params = request.params(8, 288)?;
                let id = self.ids.get_mut(&handle).ok_or(ENOENT)?;
                if params.is_some() && uid != 0 {
                    id.uid = uid;
                }
                self.input(handle, Input::Accept(params))?;
                Ok(Done::Yes)
            }
            9 => {
                let length = usize::from(request.u8(4)?);
                let reason = request.u8(5)?.into();
                let data = request.0.get(8..8 + length).ok_or(EINVAL)?.to_vec();
                self.input(request.u32(0)?, Input::Reject { reason, data })?;
                Ok(Done::Yes)
            }
            10 => {
                self.input(request.u32(0)?, Input::Disconnect)?;
                Ok(Done::Yes)
            }
            11 => {
                let id = self.ids.get(&request.u32(8)?).ok_or(ENOENT)?;
                response(0)?.write(bytes_of(&qp_attr(id, request.u32(12)?)?))
            }
            12 => {
                let response = response(0)?;
                match self.next_event(fd) {
                    Some(event) => self.report(&event, &response),
                    None => Ok(Done::Wait),
                }
            }
            14 => self.set_option(request),
            // All that there is to be notified of, COMM_EST, is of no use here.
            15 => self
                .ids
                .get(&request.u32(0)?)
                .map(|_| Done::Yes)
                .ok_or(ENOENT),
            16 => {
                let (uid, handle) = (request.u64(8)?, request.u32(44)?);
                self.join(handle, uid, request.address(16)?, &response(0)?)
            }
            17 => self.leave(request.u32(8)?, &response(0)?),
            18 => self.migrate(fd, request.u32(8)?, &response(0)?),
            19 => match request.u32(12)? {
                0 => self.query_address(request.u32(8)?, &response(0)?, false),
                1 => self.query_path(request.u32(8)?, &response(0)?),
                2 => self.query_address(request.u32(8)?, &response(0)?, true),
                _ => Err(ENOSYS),
            },
            20 => {
                let handle = request.u32(0)?;
                if request.u16(8)? == AF_IB {
                    // So that librdmacm, which tries, uses the commands of today.
                    let id = self.ids.get_mut(&handle).ok_or(ENOENT)?;
                    id.state = State::Bound;
                    return Ok(Done::Yes);
                }
                self.bind(handle, request.address(8)?)
            }
            21 => {
                let (source, target) = (request.address(16)?, request.address(16 + STORAGE)?);
                self.resolve(request.u32(0)?, source, target)
            }
            22 => {
                let (uid, handle) = (request.u64(8)?, request.u32(16)?);
                self.join(handle, uid, request.address(24)?, &response(0)?)
            }
            _ => Err(ENOSYS),
        }
    }

    fn id(&mut self, handle: u32) -> Result<&mut Id, c_int> {
        self.ids.get_mut(&handle).ok_or(ENOENT)
    }

    fn create(
        &mut self,
        fd: c_int,
        request: &Request<'_>,
        response: &Response,
    ) -> Result<Done, c_int> {
        let (uid, space) = (request.u64(0)?, request.u16(16)?);
        let qp_type = request.u8(18)?;
        let handle = self.new_handle()?;
        let id = Id::new(uid, fd, space, qp_type, random() as u32);
        self.ids.insert(handle, id);
        response.write(&handle.to_ne_bytes())
    }

    fn bind(&mut self, handle: u32, address: Option<SocketAddr>) -> Result<Done, c_int> {
        let mut address = address.ok_or(EINVAL)?;
        let any_port = self.new_port();
        let id = self.id(handle)?;
        if id.state != State::Idle {
            return Err(EINVAL);
        }
        if !link::is_local(address.ip()) {
            return Err(EADDRNOTAVAIL);
        }
        if address.port() == 0 {
            address.set_port(any_port);
        } else if link::is_taken(&link::names(id.space, link::plain(address))) {
            return Err(EADDRINUSE);
        }
        id.local = Some(address);
        if !address.ip().is_unspecified() {
            attach(id)?;
        }
        id.state = State::Bound;
        Ok(Done::Yes)
    }

    fn resolve(
        &mut self,
        handle: u32,
        source: Option<SocketAddr>,
        target: Option<SocketAddr>,
    ) -> Result<Done, c_int> {
        let target = target.ok_or(EINVAL)?;
        let any_port = self.new_port();
        let id = self.id(handle)?;
        if !matches!(id.state, State::Idle | State::Bound) {
            return Err(EINVAL);
        }
        let specific = |address: &SocketAddr| !address.ip().is_unspecified();
        let port = [source, id.local]
            .into_iter()
            .flatten()
            .map(|address| address.port())
            .find(|port| *port != 0)
            .unwrap_or(any_port);
        // To the wildcard is to oneself.
        let mut target = target;
        if target.ip().is_unspecified() {
            target.set_ip(match target {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let group = target.ip().to_canonical().is_multicast();
        let source = source.filter(specific).or(id.local.filter(specific));
        let ip = source.map_or_else(|| route(target), |source| Some(source.ip()));
        let Some(ip) = ip.filter(|_| group || link::is_local(target.ip())) else {
            self.fail(handle, Kind::AddrError, -ENODEV);
            return Ok(Done::Yes);
        };
        let mut local = SocketAddr::new(ip, port);
        if let (SocketAddr::V6(local), Some(SocketAddr::V6(given))) = (&mut local, source) {
            local.set_scope_id(given.scope_id());
        }
        id.local = Some(local);
        id.remote = Some(target);
        attach(id)?;
        if !group {
            let fabric = ffi::fabric().map_err(|error| error.errno())?;
            id.peer = endpoint_of(link::hca_of(link::plain(target).ip(), &fabric))?;
        }
        id.state = State::AddrResolved;
        self.tell(handle, Kind::AddrResolved, News::default());
        Ok(Done::Yes)
    }

    fn resolve_route(&mut self, handle: u32) -> Result<Done, c_int> {
        let id = self.id(handle)?;
        if id.state != State::AddrResolved {
            return Err(EINVAL);
        }
        id.state = State::RouteResolved;
        self.tell(handle, Kind::RouteResolved, News::default());
        Ok(Done::Yes)
    }

    fn listen(&mut self, handle: u32) -> Result<Done, c_int> {
        let any_port = self.new_port();
        let id = self.id(handle)?;
        if id.state == State::Idle {
            id.local = Some(SocketAddr::new([0, 0, 0, 0].into(), any_port));
            id.state = State::Bound;
        }
        if id.state == State::Listening {
            return Ok(Done::Yes);
        }
        let (State::Bound, Some(local)) = (id.state, id.local) else {
            return Err(EINVAL);
        };
        let local = link::plain(local);
        let others = link::names(id.space, local);
        if link::is_taken(&others) {
            return Err(EADDRINUSE);
        }
        let name = link::name(id.space, local.ip(), local.port(), id.afonly);
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let socket = link::listen_at(&name).map_err(errno)?;
        id.file = Some(name);
        id.state = State::Listening;
        let number = self
            .add_link(socket, User::Listener(handle))
            .map_err(errno)?;
        self.id(handle)?.link = Some(number);
        Ok(Done::Yes)
    }

    fn connect(&mut self, handle: u32, params: Option<Params>) -> Result<Done, c_int> {
        let params = params.ok_or(EINVAL)?;
        let id = self.id(handle)?;
        let request = id.request(params)?;
        self.ask(handle, request, Instant::now() + LISTEN_PATIENCE);
        Ok(Done::Yes)
    }

    fn set_option(&mut self, request: &Request<'_>) -> Result<Done, c_int> {
        let (handle, level, name) = (request.u32(8)?, request.u32(12)?, request.u32(16)?);
        let id = self.id(handle)?;
        match (level, name) {
            (0, 0 | 1 | 3) => Ok(Done::Yes),
            (0, 2) => {
                let at = request.u64(0)?;
                if at == 0 || request.u32(20)? != 4 {
                    return Err(EINVAL);
                }
                let value = std::ptr::with_exposed_provenance::<u32>(at as usize);
                // SAFETY: the caller of `super::write` says that the option is at the address that
                // the command gives, and its length is 4 here, an int's; it may be unaligned, and
                // is only read.
                id.afonly = unsafe { value.read_unaligned() } != 0;
                Ok(Done::Yes)
            }
            // A path that the program knows: ours is as good.
            (1, 1) if id.state == State::AddrResolved => {
                id.state = State::RouteResolved;
                self.tell(handle, Kind::RouteResolved, News::default());
                Ok(Done::Yes)
            }
            (1, 1) => Err(EINVAL),
            _ => Err(ENOSYS),
        }
    }

    fn migrate(&mut self, fd: c_int, handle: u32, response: &Response) -> Result<Done, c_int> {
        let id = self.id(handle)?;
        let reported = id.reported;
        let before = std::mem::replace(&mut id.channel, fd);
        for event in self.take_events(before, |event| event.owner == handle) {
            self.queue(fd, event);
        }
        response.write(&reported.to_ne_bytes())
    }

    // Multicast.

    fn join(
        &mut self,
        handle: u32,
        uid: u64,
        address: Option<SocketAddr>,
        response: &Response,
    ) -> Result<Done, c_int> {
        let address = address.ok_or(EINVAL)?;
        let group = self.new_handle()?;
        let id = self.id(handle)?;
        if id.hca.is_none() {
            return Err(EINVAL);
        }
        let gid = multicast_gid(address.ip(), id.space == PS_UDP);
        let ah = KernAh {
            dgid: gid,
            hop_limit: 1,
            dlid: multicast_lid(gid),
            is_global: 1,
            port_num: PORT,
            ..KernAh::default()
        };
        let params = Params {
            qpn: 0xff_ffff,
            qkey: UDP_QKEY,
            ..Params::default()
        };
        let channel = id.channel;
        let joined = Group {
            owner: handle,
            reported: 0,
        };
        self.groups.insert(group, joined);
        response.write(&group.to_ne_bytes())?;
        let news = News {
            params,
            ..News::default()
        };
        self.queue(
            channel,
            Event {
                uid,
                handle: group,
                owner: handle,
                kind: Kind::MulticastJoin,
                news,
                ah: Some(ah),
            },
        );
        Ok(Done::Yes)
    }

    fn leave(&mut self, group: u32, response: &Response) -> Result<Done, c_int> {
        let left = self.groups.remove(&group).ok_or(ENOENT)?;
        if let Some(channel) = self.ids.get(&left.owner).map(|id| id.channel) {
            self.take_events(channel, |event| {
                event.kind == Kind::MulticastJoin && event.handle == group
            });
        }
        response.write(&left.reported.to_ne_bytes())
    }

    // Answers.

    fn report(&mut self, event: &Event, response: &Response) -> Result<Done, c_int> {
        if let Some(owner) = self.ids.get_mut(&event.owner) {
            owner.reported += 1;
        }
        if event.kind == Kind::MulticastJoin
            && let Some(group) = self.groups.get_mut(&event.handle)
        {
            group.reported += 1;
        }
        let mut answer = Answer::<EVENT>::new();
        answer.put(0, &event.uid.to_ne_bytes());
        answer.put(8, &event.handle.to_ne_bytes());
        answer.put(12, &(event.kind as u32).to_ne_bytes());
        answer.put(16, &event.news.status.to_ne_bytes());
        let (at, params) = (EVENT_PARAM, &event.news.params);
        answer.put(at, &params.qpn.to_ne_bytes());
        let data = match event.ah {
            Some(ah) => {
                answer.put(at + 4, &params.qkey.to_ne_bytes());
                answer.put(at + 8, bytes_of(&ah));
                40
            }
            None => {
                let small = [
                    u8::from(params.srq),
                    params.responder_resources,
                    params.initiator_depth,
                    params.flow_control.into(),
                    params.retry_count,
                    params.rnr_retry_count,
                ];
                answer.put(at + 265, &small);
                8
            }
        };
        let length = params.data.len().min(event.news.data);
        answer.put(at + data, &params.data[..length]);
        answer.put(at + data + 256, &[event.news.data as u8]);
        answer.put(EVENT_ECE, &params.ece.0.to_ne_bytes());
        answer.put(EVENT_ECE + 4, &params.ece.1.to_ne_bytes());
        response.write(&answer.0)
    }

    fn query_address(
        &mut self,
        handle: u32,
        response: &Response,
        gids: bool,
    ) -> Result<Done, c_int> {
        let id = self.id(handle)?;
        let mut answer = Answer::<280>::new();
        if let Some(hca) = id.hca {
            answer.put(0, &guid(hca).to_be_bytes());
            answer.put(8, &[PORT]);
            answer.put(10, &PKEY.to_be_bytes());
            answer.put(272, &hca.to_ne_bytes());
        }
        for (size, at, address, gid) in [
            (12, 16, id.local, id.endpoint.gid),
            (14, 16 + STORAGE, id.remote, id.peer.gid),
        ] {
            let length = if gids {
                let port = address.map_or(0, |address| address.port());
                answer.put_gid(at, gid, u64::from(id.space) << 16 | u64::from(port));
                48
            } else {
                address.map_or(0, |address| answer.put_address(at, address))
            };
            answer.put(size, &length.to_ne_bytes());
        }
        response.write(&answer.0)
    }

    fn query_route(&mut self, handle: u32, response: &Response) -> Result<Done, c_int> {
        let id = self.id(handle)?;
        let mut answer = Answer::<208>::new();
        if let Some(hca) = id.hca {
            answer.put(0, &guid(hca).to_be_bytes());
            answer.put(196, &[PORT]);
            answer.put(200, &hca.to_ne_bytes());
            let path = KernPath {
                dgid: id.peer.gid,
                sgid: id.endpoint.gid,
                dlid: id.peer.lid.to_be(),
                slid: id.endpoint.lid.to_be(),
                reversible: 1,
                mtu: mtu().into(),
                pkey: PKEY.to_be(),
                numb_path: 1,
                mtu_selector: 2,
                rate_selector: 2,
                rate: RATE,
                packet_life_time_selector: 2,
                packet_life_time: LIFE_TIME,
                ..KernPath::default()
            };
            answer.put(8, bytes_of(&path));
            answer.put(192, &u32::from(has_route(id)).to_ne_bytes());
        }
        for (at, address) in [(136, id.local), (136 + SOCKADDR, id.remote)] {
            if let Some(address) = address {
                answer.put_address(at, address);
            }
        }
        response.write(&answer.0)
    }

    /// One path, as subnet administration has it.
    fn query_path(&mut self, handle: u32, response: &Response) -> Result<Done, c_int> {
        /// IB_PATH_GMP, PRIMARY, OUTBOUND, INBOUND_REVERSE.
        const FLAGS: u32 = 1 | 2 | 8 | 32;
        let id = self.id(handle)?;
        let mut answer = Answer::<80>::new();
        if has_route(id) {
            answer.put(0, &1u32.to_ne_bytes());
            answer.put(8, &FLAGS.to_ne_bytes());
            let at = 16;
            answer.put(at + 8, &id.peer.gid);
            answer.put(at + 24, &id.endpoint.gid);
            answer.put(at + 40, &id.peer.lid.to_be_bytes());
            answer.put(at + 42, &id.endpoint.lid.to_be_bytes());
            // Reversible, one path.
            answer.put(at + 49, &[0x81]);
            answer.put(at + 50, &PKEY.to_be_bytes());
            // Exactly so, each of them.
            answer.put(
                at + 54,
                &[mtu() | 2 << 6, RATE | 2 << 6, LIFE_TIME | 2 << 6],
            );
        }
        response.write(&answer.0)
    }
}

fn has_route(id: &Id) -> bool {
    id.hca.is_some()
        && !matches!(
            id.state,
            State::Idle | State::Bound | State::AddrResolved | State::Listening
        )
        && id.peer != Endpoint::default()
}

/// The address that this machine has on the way to a target.
fn route(target: SocketAddr) -> Option<IpAddr> {
    if target.ip().is_loopback() {
        return Some(match target {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => target.ip(),
        });
    }
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    if let Some(own) = link::node_route(target.ip().to_canonical()) {
        return Some(own);
    }
    let port = target.port().max(1);
    let socket = std::net::UdpSocket::bind(any).ok()?;
    let routed = socket.connect(SocketAddr::new(target.ip(), port));
    // No way to a group, on a machine without a network: the loopback device has them all.
    match routed.and_then(|()| socket.local_addr()) {
        Ok(local) => Some(local.ip()),
        Err(_) if target.ip().is_multicast() => Some(std::net::Ipv4Addr::LOCALHOST.into()),
        Err(_) => None,
    }
}

/// What a queue pair of this id needs to get into a state, as the kernel's ib_cm says it.
fn qp_attr(id: &Id, state: u32) -> Result<KernQpAttr, c_int> {
    id.hca.ok_or(EINVAL)?;
    let mut attr = KernQpAttr {
        qp_state: state,
        ..KernQpAttr::default()
    };
    let mut mask = abi::IBV_QP_STATE;
    match state {
        abi::IBV_QPS_INIT => {
            mask |= abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT;
            attr.port_num = PORT;
            if id.is_ud() {
                mask |= abi::IBV_QP_QKEY;
                attr.qkey = id.qkey;
            } else {
                mask |= abi::IBV_QP_ACCESS_FLAGS;
                let access = match id.state {
                    State::Idle
                    | State::Bound
                    | State::AddrResolved
                    | State::RouteResolved
                    | State::Listening => 0,
                    _ if id.responder_resources > 0 => {
                        abi::IBV_ACCESS_REMOTE_WRITE
                            | abi::IBV_ACCESS_REMOTE_READ
                            | abi::IBV_ACCESS_REMOTE_ATOMIC
                    }
                    _ => abi::IBV_ACCESS_REMOTE_WRITE,
                };
                attr.qp_access_flags = access;
            }
        }
        abi::IBV_QPS_RTR if !id.is_ud() => {
            mask |= abi::IBV_QP_AV
                | abi::IBV_QP_PATH_MTU
                | abi::IBV_QP_DEST_QPN
                | abi::IBV_QP_RQ_PSN
                | abi::IBV_QP_MAX_DEST_RD_ATOMIC
                | abi::IBV_QP_MIN_RNR_TIMER;
            attr.ah_attr = reach(id);
            attr.path_mtu = mtu().into();
            attr.dest_qp_num = id.peer_params.qpn;
            attr.rq_psn = id.psn;
            attr.max_dest_rd_atomic = id.responder_resources;
        }
        abi::IBV_QPS_RTS if !id.is_ud() => {
            mask |= abi::IBV_QP_SQ_PSN
                | abi::IBV_QP_TIMEOUT
                | abi::IBV_QP_RETRY_CNT
                | abi::IBV_QP_RNR_RETRY
                | abi::IBV_QP_MAX_QP_RD_ATOMIC;
            attr.sq_psn = id.peer_params.psn;
            attr.timeout = ACK_TIMEOUT;
            attr.retry_cnt = id.retry_count;
            attr.rnr_retry = id.rnr_retry;
            attr.max_rd_atomic = id.initiator_depth;
        }
        _ if id.is_ud() => {}
        _ => return Err(EINVAL),
    }
    attr.qp_attr_mask = mask as u32;
    Ok(attr)
}

/// The group of an address (RFC 4391), or of the connection manager's own kind.
fn multicast_gid(address: IpAddr, udp: bool) -> [u8; 16] {
    let mut gid = [0; 16];
    match address.to_canonical() {
        address if address.is_unspecified() => return gid,
        IpAddr::V4(v4) => {
            gid[..4].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b]);
            gid[12..].copy_from_slice(&v4.octets());
            gid[12] &= 0x0f;
        }
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            // Assigned by subnet administration: it is a GID.
            if octets[0] == 0xff && octets[1] & 0xf0 == 0x10 && octets[2..4] == [0xa0, 0x1b] {
                return octets;
            }
            gid[..4].copy_from_slice(&[0xff, 0x12, 0x60, 0x1b]);
            gid[6..].copy_from_slice(&octets[6..]);
        }
    }
    gid[4..6].copy_from_slice(&PKEY.to_be_bytes());
    if udp {
        gid[3] = 0x01;
    }
    gid
}

/// Its LID: the same to all who ask.
fn multicast_lid(gid: [u8; 16]) -> u16 {
    let hash = gid
        .iter()
        .fold(0u32, |hash, byte| hash.wrapping_mul(31) + u32::from(*byte));
    0xc000 + (hash % 0x3fff) as u16
}
