//! What is below of each process, in this life: HCAs of `emu/hca`, whose drivers give numbers and keys that come again soon.
//!
//! A queue pair's number is the smallest that is free at its port; keys of an HCA begin anywhere below [`FIRST_KEYS`], so that
//! those of two HCAs are the same, and the next life's are those of other things.

use std::{cell::RefCell, collections::BTreeMap};

use snaprig_ckpt_ib::{
    Below, Completion, Name, Names,
    completions::SUCCESS,
    cookie::{Cookie, Queue},
    names::{Aliases, Receiver},
    process::Came,
};
use snaprig_hca::{
    Access, Completion as Real, Opcode, SendFlags, State, Transport,
    control::Request as Control,
    post::{Data, PostError},
    queue::{Destination, Send},
    testing::{ALL, BASE, BYTES, End as HcaEnd, Node, World},
    types::completed,
};

use super::program::{LENT_AT, Layout, Request, Which, immediate};

/// The place of a process's shared receive queue of XRC.
pub const XRC: u32 = 1;
/// Below this, keys begin.
pub const FIRST_KEYS: u64 = 6;
/// The first number of a queue pair.
const FIRST_NUMBER: u32 = 0x10;
/// A key that is nobody's.
const NO_KEY: u32 = u32::MAX;
/// How many receives a short queue holds.
const NARROW: u32 = 2;
/// The same of one that is shared: connections that lose packets may each keep one for a message whose end does not come.
const NARROW_SHARED: u32 = 16;
/// How many requests a short send queue takes, beside a mark.
const NARROW_SENDS: u32 = 2;
/// Regions are told apart by their addresses.
const REGION_SHIFT: u32 = 32;
/// Where a mark's atomic puts what it fetches.
const SCRATCH_AT: u64 = LENT_AT - 8;

/// Whose a queue pair is.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// What the job calls it.
    pub name: Name,
    pub end: HcaEnd,
}

/// The fabric, and what its drivers' numbers and keys mean.
pub struct Fabric {
    pub world: World,
    owners: RefCell<BTreeMap<Name, Owner>>,
    /// By process's slot.
    keys: RefCell<BTreeMap<(u32, u32), u32>>,
    /// By HCA.
    next_keys: RefCell<Vec<u32>>,
}

/// A port by its HCA.
pub fn port(hca: u32) -> u64 {
    u64::from(hca) + 1
}

/// What a port is called by who receives a datagram of it.
fn alias(port: u64) -> u64 {
    port << 32
}

/// What all ports are called by whom.
pub fn aliases(hcas: u32) -> Aliases {
    Aliases::new((0..hcas).map(|hca| (alias(port(hca)), port(hca))))
}

/// An address in a region.
pub fn in_region(region: usize, at: u64) -> u64 {
    BASE + at + ((region as u64) << REGION_SHIFT)
}

impl Fabric {
    pub fn new(world: World) -> Self {
        Self {
            world,
            owners: RefCell::default(),
            keys: RefCell::default(),
            next_keys: RefCell::default(),
        }
    }

    /// Nobody lives: nothing has a name any more. Keys begin there, by HCA.
    pub fn forget(&self, first_keys: Vec<u32>) {
        self.next_keys.replace(first_keys);
        self.owners.borrow_mut().clear();
        self.keys.borrow_mut().clear();
    }

    pub fn owner(&self, real: Name) -> Option<Owner> {
        self.owners.borrow().get(&real).copied()
    }

    fn owner_of(&self, number: u32) -> Option<Owner> {
        let owners = self.owners.borrow();
        owners
            .values()
            .find(|owner| owner.end.number == number)
            .copied()
    }

    /// A process is gone, and what it had.
    pub fn leaves(&self, slot: u32) {
        let is_another_s = |owner: &Owner| owner.end.process != slot;
        self.owners
            .borrow_mut()
            .retain(|_, owner| is_another_s(owner));
        self.keys.borrow_mut().retain(|(of, _), _| *of != slot);
    }

    fn key(&self, slot: u32, key: u32) -> u32 {
        let keys = self.keys.borrow();
        keys.get(&(slot, key)).copied().unwrap_or(NO_KEY)
    }

    fn free_number(&self, port: u64) -> Name {
        let owners = self.owners.borrow();
        let mut all = (FIRST_NUMBER..).map(|number| Name { port, number });
        all.find(|name| !owners.contains_key(name))
            .expect("there is one")
    }
}

/// What a process has below.
#[derive(Debug)]
pub struct Hardware {
    pub node: Node,
    /// By place of its queue pairs.
    pub ends: Vec<(Name, HcaEnd)>,
    /// What was at places, beside what was made for them again.
    old: Vec<(u32, (Name, HcaEnd))>,
    /// A copy of its memory, and what the program has written since then.
    ahead: Vec<u8>,
    written: Vec<(u64, usize)>,
    /// By region.
    pub keys: Vec<u32>,
    pub shared: Option<u32>,
    /// A domain of XRC, and its shared receive queue there.
    pub xrc: Option<(u32, u32)>,
    /// Its queues hold two at once.
    pub is_narrow: bool,
    /// Where what is lent is, by wr_id.
    lent: BTreeMap<u64, u64>,
    lent_used: u64,
}

impl Hardware {
    pub fn new(fabric: &Fabric, slot: u32, hca: u32) -> Self {
        Self {
            node: fabric.world.node(slot, hca),
            ends: Vec::new(),
            old: Vec::new(),
            ahead: Vec::new(),
            written: Vec::new(),
            keys: Vec::new(),
            shared: None,
            xrc: None,
            is_narrow: false,
            lent: BTreeMap::new(),
            lent_used: 0,
        }
    }

    pub fn slot(&self) -> u32 {
        self.node.process
    }

    /// The program writes into its memory.
    pub fn write(&mut self, fabric: &Fabric, at: u64, data: &[u8]) {
        fabric.world.put(self.slot(), at, data);
        self.written.push((at, data.len()));
    }

    /// Most of the memory is copied ahead of a checkpoint, while the program runs.
    pub fn copy_ahead(&mut self, fabric: &Fabric, bytes: usize) {
        self.ahead = fabric.world.get(self.slot(), 0, bytes);
        self.written.clear();
    }

    /// What a checkpoint has of the memory: what was copied ahead, and, over it, what was written to since; by the HCA, too, if
    /// its writes are tracked.
    pub fn copied(&self, fabric: &Fabric, is_tracked: bool) -> Vec<u8> {
        let now = fabric.world.get(self.slot(), 0, self.ahead.len());
        if is_tracked {
            return now;
        }
        let mut copied = self.ahead.clone();
        for (at, bytes) in &self.written {
            let range = *at as usize..(*at as usize + bytes).min(now.len());
            copied[range.clone()].copy_from_slice(&now[range]);
        }
        copied
    }

    /// The next region; its key.
    pub fn register(&mut self, fabric: &Fabric, region: usize) -> u32 {
        let access: Access = ALL;
        let request = Control::RegisterMr {
            pd: self.node.pd,
            start: in_region(region, 0),
            address: BASE,
            length: BYTES as u64,
            access: access.bits(),
            pooled: false,
        };
        let of_hca = fabric.world.make(self.slot(), &request);
        let next = &mut fabric.next_keys.borrow_mut()[self.node.hca as usize];
        let key = *next;
        *next += 1;
        fabric.keys.borrow_mut().insert((self.slot(), key), of_hca);
        self.keys.push(key);
        key
    }

    /// A key is not wanted.
    pub fn deregister(&mut self, fabric: &Fabric, key: u32) {
        self.keys.retain(|other| *other != key);
        fabric.keys.borrow_mut().remove(&(self.slot(), key));
    }

    /// A shared receive queue of XRC, in the domain that all processes at its HCA share; its number, which is not given already.
    pub fn share(&mut self, fabric: &Fabric, is_given: impl Fn(u32) -> bool) -> u32 {
        let world = &fabric.world;
        let file = Some((0, u64::from(self.node.hca)));
        let hca = self.node.hca;
        let domain = world.make(self.slot(), &Control::OpenXrcd { hca, file });
        let request = Control::CreateSrq {
            pd: self.node.pd,
            slots: if self.is_narrow { NARROW } else { 1024 },
            sges: 4,
            limit: 0,
            xrc: Some((domain, self.node.cq)),
        };
        let mut in_vain = Vec::new();
        let number = loop {
            let number = world.make(self.slot(), &request);
            if !is_given(number) {
                break number;
            }
            in_vain.push(number);
        };
        for srq in in_vain {
            let done = world.ask(self.slot(), &Control::DestroySrq { srq });
            assert!(done.is_ok(), "{done:?}");
        }
        self.xrc = Some((domain, number));
        number
    }

    /// Another queue pair. Its real name; what the job calls it is said later, by [`Self::call`].
    pub fn create(&mut self, fabric: &Fabric, transport: Transport, is_shared: bool) -> Name {
        let world = &fabric.world;
        if is_shared && self.shared.is_none() {
            let request = Control::CreateSrq {
                pd: self.node.pd,
                slots: if self.is_narrow { NARROW_SHARED } else { 1024 },
                sges: 4,
                limit: 2,
                xrc: None,
            };
            self.shared = Some(world.make(self.slot(), &request));
        }
        let is_reliable = !matches!(transport, Transport::Uc | Transport::Ud);
        let mut request = World::qp_request(&self.node, transport);
        if let Control::CreateQp {
            srq,
            xrc_domain,
            capabilities,
            ..
        } = &mut request
        {
            *srq = self.shared.filter(|_| is_shared);
            if transport == Transport::XrcReceive {
                *xrc_domain = self.xrc.map(|(domain, _)| domain);
            }
            // One more for a mark, and for what is lent.
            capabilities.send_slots = 1 + match self.is_narrow {
                true => NARROW_SENDS,
                false => capabilities.send_slots,
            };
            // What is unreliable waits for no room.
            capabilities.receive_slots = match self.is_narrow && is_reliable {
                true => NARROW,
                false => capabilities.receive_slots + 64,
            };
        }
        let end = world.end(&self.node, transport, &request);
        let real = fabric.free_number(port(self.node.hca));
        self.ends.push((real, end));
        let owner = Owner { name: real, end };
        fabric.owners.borrow_mut().insert(real, owner);
        real
    }

    /// Another queue pair, with a name that is not given already: those that are made in vain go when there is one, so that each
    /// gets another name.
    pub fn create_new(
        &mut self,
        fabric: &Fabric,
        transport: Transport,
        is_shared: bool,
        is_given: impl Fn(Name) -> bool,
    ) -> Name {
        let mut in_vain = Vec::new();
        let real = loop {
            let real = self.create(fabric, transport, is_shared);
            if !is_given(real) {
                break real;
            }
            in_vain.extend(self.ends.pop());
        };
        for made in in_vain {
            self.destroy(fabric, made);
        }
        real
    }

    /// How many requests its send queues take, if those are shorter than a program's.
    pub fn sends_max(&self) -> Option<usize> {
        self.is_narrow.then_some(NARROW_SENDS as usize)
    }

    /// A queue pair that is at no place goes.
    pub fn destroy(&self, fabric: &Fabric, (name, end): (Name, HcaEnd)) {
        let request = Control::DestroyQp { qp: end.index };
        let done = fabric.world.ask(self.slot(), &request);
        assert!(done.is_ok(), "{done:?}");
        fabric.owners.borrow_mut().remove(&name);
    }

    /// Makes another queue pair for a place: the old one is kept beside it.
    pub fn create_again(
        &mut self,
        fabric: &Fabric,
        place: u32,
        transport: Transport,
        is_shared: bool,
    ) {
        self.create(fabric, transport, is_shared);
        let made = self.ends.pop().expect("it was just made");
        let old = std::mem::replace(&mut self.ends[place as usize], made);
        self.old.push((place, old));
        let name = fabric.owner(old.0).map(|owner| owner.name);
        self.call(fabric, place, name.expect("it has a name"));
    }

    /// Whether a completion is of a receive that was in an old one: it was posted again, in the new one.
    fn is_of_old(&self, real: &Real) -> bool {
        let is_its = |(_, (_, end)): &(u32, (Name, HcaEnd))| end.number == real.qp_number;
        let is_own = |cookie: Cookie| {
            !matches!(cookie.queue, Queue::Shared(_)) || real.status as u32 != SUCCESS
        };
        self.old.iter().any(is_its) && Cookie::of(real.wr_id).is_none_or(is_own)
    }

    /// The place that a queue pair is at, or was.
    fn place_of(&self, number: u32) -> Option<usize> {
        let is_it = |(_, end): &(Name, HcaEnd)| end.number == number;
        let before = || {
            let was = self.old.iter().find(|(_, old)| is_it(old));
            was.map(|(place, _)| *place as usize)
        };
        self.ends.iter().position(is_it).or_else(before)
    }

    /// The new ones go, and the old ones are what they were.
    pub fn take_old(&mut self, fabric: &Fabric) {
        for (place, old) in std::mem::take(&mut self.old) {
            let made = std::mem::replace(&mut self.ends[place as usize], old);
            self.destroy(fabric, made);
        }
    }

    /// The old ones take no message any more. Then, what has come by them: [`Driver::poll`].
    pub fn close_old(&self, fabric: &Fabric) {
        for (_, (_, end)) in &self.old {
            let done = fabric.world.state(end, State::Error);
            assert!(done.is_ok(), "{done:?}");
        }
    }

    /// The old ones go.
    pub fn drop_old(&mut self, fabric: &Fabric) {
        for (_, old) in std::mem::take(&mut self.old) {
            self.destroy(fabric, old);
        }
    }

    /// The shared receive queue at a place, below.
    pub fn shared_at(&self, place: u32) -> Option<u32> {
        match place {
            XRC => self.xrc.map(|(_, srq)| srq),
            _ => self.shared,
        }
    }

    /// What the job calls the queue pair at a place.
    pub fn call(&mut self, fabric: &Fabric, place: u32, name: Name) {
        let (real, _) = self.ends[place as usize];
        if let Some(owner) = fabric.owners.borrow_mut().get_mut(&real) {
            owner.name = name;
        }
    }
}

/// A process's way to what is below.
pub struct Driver<'a> {
    pub fabric: &'a Fabric,
    pub layout: &'a Layout,
    pub names: &'a Names,
    pub me: &'a mut Hardware,
}

impl Driver<'_> {
    /// Posts a request; what becomes of it, unless the process dies of it.
    pub fn send(
        &self,
        place: u32,
        request: &Request,
        is_signaled: bool,
        cookie: Cookie,
    ) -> Option<Result<(), PostError>> {
        let world = &self.fabric.world;
        if !world.lives(self.me.slot()) {
            return None;
        }
        let (_, end) = self.me.ends[place as usize];
        let real = self.names.queue_pair(request.to);
        let owner = self.fabric.owner(real);
        let to = Receiver {
            qp: request.to,
            shared: request.shared,
        };
        let key = owner.map_or(NO_KEY, |owner| {
            let key = self.names.remote_key(to, request.remote_key);
            self.fabric.key(owner.end.process, key)
        });
        let flag = |on: bool, flag| if on { flag } else { SendFlags::empty() };
        let send = Send {
            wr_id: cookie.bits(),
            opcode: request.opcode,
            flags: flag(is_signaled, SendFlags::SIGNALED) | flag(request.fenced, SendFlags::FENCE),
            immediate: immediate(request.message),
            remote_address: request.remote,
            remote_key: key,
            compare_add: u64::from(!cookie.own),
            swap: 0,
            to: Destination {
                lid: owner.map_or(0, |owner| self.fabric.world.lid(owner.end.hca)),
                qp: owner.map_or(0, |owner| owner.end.number),
                qkey: self.layout.connection(request.which).link.qkey,
                ..Destination::default()
            },
            srq: to.shared_name().map_or(0, |name| self.names.shared(name)),
            length: 0,
            sges: 0,
            psn: 0,
        };
        let half = request.length / 2;
        let list = [
            self.me.node.sge(request.local, half),
            self.me
                .node
                .sge(request.local + u64::from(half), request.length - half),
        ];
        let whole = [self.me.node.sge(request.local, request.length)];
        let inline = request.inline.as_deref().unwrap_or_default();
        let parts = [inline];
        let data = match (&request.inline, request.length) {
            (Some(_), _) => Data::Inline(&parts),
            (None, 0) => Data::EMPTY,
            // Atomics have one place.
            (None, 8) => Data::List(&whole),
            (None, _) => Data::List(&list),
        };
        world.posting(self.me.slot(), |hca| hca.post_send(end.index, &send, data))
    }

    fn receive_at(
        &self,
        queue: Queue,
        at: u64,
        bytes: u64,
        cookie: Cookie,
    ) -> Result<bool, String> {
        let first = bytes.min(100) as u32;
        let list = [
            self.me.node.sge(at, first),
            self.me
                .node
                .sge(at + u64::from(first), bytes as u32 - first),
        ];
        let world = &self.fabric.world;
        if !world.lives(self.me.slot()) {
            return Ok(true);
        }
        let posted = world.posting(self.me.slot(), |hca| match queue {
            Queue::Shared(place) => {
                let srq = self.me.shared_at(place).unwrap_or(0);
                hca.post_shared_receive(srq, cookie.bits(), &list)
            }
            Queue::Receives(place) | Queue::Sends(place) => {
                let (_, end) = self.me.ends[place as usize];
                hca.post_receive(end.index, cookie.bits(), &list)
            }
        });
        match posted {
            None | Some(Ok(())) => Ok(true),
            Some(Err(PostError::Full)) => Ok(false),
            Some(Err(error)) => Err(error.to_string()),
        }
    }

    fn state_of(&self, end: &HcaEnd) -> Option<State> {
        let qp = self.fabric.world.memory.qp(end.index)?;
        Some(qp.state())
    }

    /// The send queue below is drained, if it is at work.
    pub fn drain(&self, place: u32) {
        let (_, end) = self.me.ends[place as usize];
        if self.state_of(&end) == Some(State::Rts) {
            let done = self.fabric.world.state(&end, State::Sqd);
            assert!(done.is_ok(), "{done:?}");
        }
    }

    /// Whether the queue below has something.
    pub fn has_completion(&self) -> bool {
        let node = &self.me.node;
        self.fabric.world.has_completion(node.process, node.cq)
    }

    /// Connects a queue pair that its peer has made, too, and brings it to a state.
    pub fn raise(&self, place: u32, which: Which, peer: Name, to: State) {
        let (_, end) = self.me.ends[place as usize];
        if let Some(owner) = self.fabric.owner(self.names.queue_pair(peer)) {
            let link = &self.layout.connection(which).link;
            self.fabric.world.raise(&end, &owner.end, link, to);
        }
    }
}

fn convert(real: &Real, number: u32) -> Completion {
    Completion {
        wr_id: real.wr_id,
        status: real.status as u32,
        opcode: real.opcode,
        vendor_error: real.vendor_error,
        length: real.length,
        immediate: real.immediate,
        qp: number,
        source_qp: real.source_qp,
        flags: real.flags,
        pkey_index: real.pkey_index,
        source_lid: real.source_lid,
        service_level: real.service_level,
        path_bits: real.path_bits,
        time_ns: real.time_ns,
    }
}

/// A receive of a program: where it is.
pub type Receive = u64;

/// Bytes of every receive.
pub const RECEIVE_BYTES: u64 =
    (super::super::verbs::LONGEST + super::super::verbs::GRH_BYTES) as u64;

impl Below<Request, Receive> for Driver<'_> {
    fn poll(&mut self, _: u32) -> Option<(Came, Completion)> {
        let world = &self.fabric.world;
        let node = &self.me.node;
        let queue = world.memory.cq(node.cq)?;
        let real = loop {
            let real = world.hca(node.process).poll(queue)?;
            if !self.me.is_of_old(&real) {
                break real;
            }
        };
        let (status, number) = (real.status as u64, u64::from(real.qp_number));
        world.note(&[number, real.wr_id, status, real.opcode.into(), real.time_ns]);
        let cookie = Cookie::of(real.wr_id)?;
        let came = |qp, from| Came {
            cookie,
            status: real.status as u32,
            qp,
            from,
        };
        if cookie.queue == Queue::Shared(XRC) {
            let by = self.fabric.owner_of(real.qp_number)?.name;
            return Some((came(None, Some(by)), convert(&real, by.number)));
        }
        let place = self.me.place_of(real.qp_number)?;
        let owner = self.fabric.owner(self.me.ends[place].0)?;
        let from = self.fabric.owner_of(real.source_qp).map(|owner| Name {
            port: alias(owner.name.port),
            ..owner.name
        });
        Some((
            came(Some(place as u32), from),
            convert(&real, owner.name.number),
        ))
    }

    fn go_on(&mut self, place: u32) -> Result<(), String> {
        let (_, end) = self.me.ends[place as usize];
        match self.state_of(&end) {
            Some(State::Sqd) => {
                let done = self.fabric.world.state(&end, State::Rts);
                done.map(drop).map_err(|errno| format!("errno {errno}"))
            }
            _ => Ok(()),
        }
    }

    fn mark(&mut self, place: u32, like: &Request, cookie: Cookie) -> Result<Request, String> {
        let request = Request {
            length: if like.opcode == Opcode::FetchAdd {
                8
            } else {
                0
            },
            local: SCRATCH_AT,
            inline: None,
            fenced: false,
            ..like.clone()
        };
        match self.send(place, &request, true, cookie) {
            None | Some(Ok(())) => Ok(request),
            Some(Err(error)) => Err(error.to_string()),
        }
    }

    fn lend(&mut self, queue: Queue, bytes: u64, cookie: Cookie) -> Result<bool, String> {
        let at = LENT_AT + self.me.lent_used;
        self.me.lent_used += bytes.next_multiple_of(8);
        assert!(at + bytes <= BYTES as u64, "too much is lent");
        self.me.lent.insert(cookie.bits(), at);
        let has_room = self.receive_at(queue, at, bytes, cookie)?;
        if !has_room {
            self.me.lent.remove(&cookie.bits());
            self.me.lent_used = at - LENT_AT;
        }
        Ok(has_room)
    }

    fn lent(&mut self, cookie: Cookie, completion: &Completion) -> Vec<u8> {
        let Some(at) = self.me.lent.remove(&cookie.bits()) else {
            return Vec::new();
        };
        let has_data = completion.opcode == completed::RECEIVE && completion.status == SUCCESS;
        let length = if has_data { completion.length } else { 0 };
        self.fabric.world.get(self.me.slot(), at, length as usize)
    }

    fn fill(&mut self, receive: &Receive, data: &[u8]) {
        self.me.write(self.fabric, *receive, data);
    }

    fn receive(&mut self, receive: &Receive, cookie: Cookie) -> Result<bool, String> {
        self.receive_at(cookie.queue, *receive, RECEIVE_BYTES, cookie)
    }
}
