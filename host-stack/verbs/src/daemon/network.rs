//! The switch between the ports, when packets go one by one: what it does to them on each path.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::File,
    io::{self, BufWriter},
    path::Path,
};

use snaprig_fabric::{FaultRequest, PathFaults};
use snaprig_hca::{
    Event, Packet, capture::Capture, memory::Header, port::PORTS_MAX, wire::survives,
};
use snaprig_sim::{Kind, Plan, Random};

use super::plan::{self, Running};

/// How much a packet that is overtaken is late, in nanoseconds.
const OVERTAKEN_NS: u64 = 200_000;

/// The last byte of a GID's prefix.
const PREFIX_END: usize = 7;

/// Packets under way on a path with which it is full: 16 MiB of the largest.
const LOAD_MAX: usize = 4096;

/// Packets under way, and the faults of the paths.
pub struct Network {
    faults: BTreeMap<(u32, u32), PathFaults>,
    under_way: BTreeMap<(u64, u64), Packet<'static>>,
    /// How many there are on each path.
    loads: BTreeMap<(u32, u32), usize>,
    sent: u64,
    random: Random,
    plan: Option<Running>,
    /// Ports that other daemons have.
    elsewhere: BTreeSet<u32>,
    capture: Option<Capture<BufWriter<File>>>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under_way = self.under_way.len();
        f.debug_struct("Network")
            .field("under_way", &under_way)
            .finish_non_exhaustive()
    }
}

impl Network {
    /// Nothing under way, no faults; draws from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            faults: BTreeMap::new(),
            under_way: BTreeMap::new(),
            loads: BTreeMap::new(),
            sent: 0,
            random: Random::new(seed, "network"),
            plan: None,
            elsewhere: BTreeSet::new(),
            capture: None,
        }
    }

    /// From now on, these ports are other daemons': what goes there goes one by one.
    pub fn divide(&mut self, header: &Header, elsewhere: BTreeSet<u32>) {
        self.elsewhere = elsewhere;
        self.mark_all(header);
    }

    /// The plan that is being carried out.
    pub fn plan(&self) -> Option<&Running> {
        self.plan.as_ref()
    }

    /// Whether packets are written to a file.
    pub fn is_captured(&self) -> bool {
        self.capture.is_some()
    }

    /// Begins to carry out a plan, in place of an earlier one.
    pub fn begin(&mut self, header: &Header, plan: &Plan, now_ns: u64) {
        self.plan = Some(Running::new(plan, now_ns));
        self.mark_all(header);
    }

    /// The faults of a path.
    pub fn faults(&self, from: u32, to: u32) -> PathFaults {
        self.faults.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Changes them.
    pub fn change(&mut self, header: &Header, request: FaultRequest) -> bool {
        let count = header.port_count.get().min(PORTS_MAX);
        let port = |lid: u16| header.lids[usize::from(lid)].get().checked_sub(1);
        match request {
            FaultRequest::Set { from, to, faults } => {
                let some = |lid: Option<u16>| match lid {
                    None => Some((0..count).collect::<Vec<_>>()),
                    Some(lid) => port(lid).map(|port| vec![port]),
                };
                let (Some(from), Some(to)) = (some(from), some(to)) else {
                    return false;
                };
                for (from, to) in from
                    .iter()
                    .flat_map(|from| to.iter().map(move |to| (*from, *to)))
                {
                    self.set(header, from, to, faults);
                }
            }
            FaultRequest::Link { lid, up } => {
                let Some(port) = port(lid) else { return false };
                set_link(header, port, up);
            }
            FaultRequest::Heal => {
                self.plan = None;
                self.mark_all(header);
                for (from, to) in self.faults.keys().copied().collect::<Vec<_>>() {
                    self.set(header, from, to, PathFaults::default());
                }
                for port in &header.ports[..count as usize] {
                    port.up.set(1);
                }
            }
        }
        true
    }

    fn set(&mut self, header: &Header, from: u32, to: u32, faults: PathFaults) {
        if faults == PathFaults::default() {
            self.faults.remove(&(from, to));
        } else {
            self.faults.insert((from, to), faults);
        }
        self.mark(header, from, to);
    }

    /// Tells everybody whether packets between two ports go one by one.
    fn mark(&self, header: &Header, from: u32, to: u32) {
        // A response takes the way back: both go packet by packet, or neither does.
        let slow = self.capture.is_some()
            || self.plan.as_ref().is_some_and(Running::is_about_packets)
            || self.elsewhere.contains(&from)
            || self.elsewhere.contains(&to)
            || self.faults.contains_key(&(from, to))
            || self.faults.contains_key(&(to, from));
        for (a, b) in [(from, to), (to, from)] {
            header.paths[a as usize][b as usize].set(slow.into());
        }
    }

    /// Writes every packet that a port sends from now on to a new file; with none, no more.
    pub fn capture(&mut self, header: &Header, file: Option<&Path>) -> io::Result<()> {
        if let Some(mut before) = self.capture.take() {
            before.flush()?;
        }
        self.capture = match file {
            Some(file) => Some(Capture::new(BufWriter::new(File::create(file)?))?),
            None => None,
        };
        self.mark_all(header);
        Ok(())
    }

    fn mark_all(&self, header: &Header) {
        let count = header.port_count.get().min(PORTS_MAX);
        for from in 0..count {
            for to in from..count {
                self.mark(header, from, to);
            }
        }
    }

    /// What was captured is in the file.
    pub fn flush(&mut self) {
        if let Some(Err(error)) = self.capture.as_mut().map(Capture::flush) {
            self.end_capture(&error);
        }
    }

    /// The file takes no more: the rest goes on without it, packet by packet.
    fn end_capture(&mut self, error: &io::Error) {
        eprintln!("the capture ends: {error}");
        self.capture = None;
    }

    /// Captures a packet that is to be sent, with the time in nanoseconds since 1970, if its port is up.
    pub fn record(&mut self, since_1970_ns: u64, header: &Header, packet: &Packet<'_>) {
        if !header.is_up(packet.route.from_port) {
            return;
        }
        let recorded = self
            .capture
            .as_mut()
            .map(|capture| capture.record(since_1970_ns, packet));
        if let Some(Err(error)) = recorded {
            self.end_capture(&error);
        }
    }

    fn happens(&mut self, share: u16) -> bool {
        share > 0 && self.random.below(1000) < share.into()
    }

    /// Takes a packet; the HCA whose links the plan takes down at it, if it does.
    pub fn send(&mut self, header: &Header, now_ns: u64, packet: Packet<'static>) -> Option<u32> {
        let (from, to) = (packet.route.from_port, packet.route.to_port);
        if !header.is_up(from) {
            return None;
        }
        let kind = self.plan.as_mut().and_then(|plan| plan.at(&packet, now_ns));
        if kind.is_some() && !self.plan.as_ref().is_some_and(Running::is_about_packets) {
            // That was the last one: paths are fast again.
            self.mark_all(header);
        }
        let mut down = None;
        match kind
            .as_ref()
            .map(|kind| (kind, kind.process().and_then(plan::hca)))
        {
            Some((Kind::LinkDown(_), Some(hca))) => {
                self.take_down(header, hca);
                down = Some(hca);
            }
            Some((Kind::Partition(_), Some(hca))) => self.partition(header, hca),
            _ => {}
        }
        let faults = self.faults(from, to);
        let damaged = matches!(kind, Some(Kind::Corrupt(bit)) if !survives(&packet, bit));
        if kind == Some(Kind::Drop)
            || !header.is_up(from)
            || !header.is_up(to)
            || !damaged && self.happens(faults.loss)
        {
            return down;
        }
        if damaged || self.happens(faults.corrupt) {
            header.ports[to as usize].counters.port_rcv_errors.add(1);
            return down;
        }
        let mut due_ns = now_ns.saturating_add(faults.delay_ns);
        if let Some(Kind::Delay(ns)) = kind {
            due_ns = due_ns.saturating_add(ns);
        }
        if kind == Some(Kind::Duplicate) || self.happens(faults.duplicate) {
            self.put(due_ns, packet.clone());
        }
        if kind == Some(Kind::Reorder) || self.happens(faults.reorder) {
            due_ns = due_ns.saturating_add(OVERTAKEN_NS);
        }
        self.put(due_ns, packet);
        down
    }

    fn take_down(&mut self, header: &Header, hca: u32) {
        for port in ports_of(header, hca) {
            set_link(header, port, false);
        }
    }

    /// The next fault that the plan wants to have happened by now, beside those of packets.
    pub fn due_fault(&mut self, now_ns: u64) -> Option<Kind> {
        self.plan.as_mut()?.due(now_ns)
    }

    /// Does it to an HCA; the events of its ports.
    pub fn apply(&mut self, header: &Header, kind: &Kind) -> Vec<(Event, u32)> {
        let Some(hca) = kind.process().and_then(plan::hca) else {
            return Vec::new();
        };
        let ports = ports_of(header, hca);
        let event = match kind {
            Kind::LinkDown(_) => Event::PortError,
            Kind::LinkUp(_) => Event::PortActive,
            Kind::GidChange(_) => Event::GidChange,
            _ => {
                self.partition(header, hca);
                return Vec::new();
            }
        };
        for port in &ports {
            match event {
                Event::GidChange => move_gid(header, *port),
                _ => set_link(header, *port, event == Event::PortActive),
            }
        }
        ports.into_iter().map(|port| (event, port)).collect()
    }

    /// Everything from and to an HCA is lost.
    fn partition(&mut self, header: &Header, hca: u32) {
        let faults = PathFaults {
            loss: 1000,
            ..PathFaults::default()
        };
        for port in ports_of(header, hca) {
            for other in 0..header.port_count.get().min(PORTS_MAX) {
                self.set(header, port, other, faults);
                self.set(header, other, port, faults);
            }
        }
    }

    fn put(&mut self, due_ns: u64, packet: Packet<'static>) {
        self.sent += 1;
        let path = (packet.route.from_port, packet.route.to_port);
        *self.loads.entry(path).or_default() += 1;
        self.under_way.insert((due_ns, self.sent), packet);
    }

    /// The next packet that has arrived by now.
    pub fn arrived(&mut self, now_ns: u64) -> Option<Packet<'static>> {
        let first = self.under_way.first_entry()?;
        let packet = (first.key().0 <= now_ns).then(|| first.remove())?;
        let path = (packet.route.from_port, packet.route.to_port);
        self.loads.entry(path).and_modify(|load| *load -= 1);
        Some(packet)
    }

    /// Whether a path has no room for packets of those who have no window of their own.
    pub fn is_full(&self, from: u32, to: u32) -> bool {
        self.loads
            .get(&(from, to))
            .is_some_and(|load| *load >= LOAD_MAX)
    }

    /// When the next packet arrives, or the plan has something happen.
    pub fn next_ns(&self) -> Option<u64> {
        let packet = self.under_way.first_key_value().map(|((due, _), _)| *due);
        let fault = self.plan.as_ref().and_then(Running::next_ns);
        packet.into_iter().chain(fault).min()
    }
}

/// Takes a port's link down, or brings it up.
fn set_link(header: &Header, port: u32, up: bool) {
    let port = &header.ports[port as usize];
    if port.up.swap(up.into()) != 0 && !up {
        port.counters.link_downed.add(1);
    }
}

/// A port goes to the next subnet: the prefix of its first GID is another one, its interface's number stays.
fn move_gid(header: &Header, port: u32) {
    let port = &header.ports[port as usize];
    if let Some(mut gid) = port.gid(0) {
        gid[PREFIX_END] = gid[PREFIX_END].wrapping_add(1);
        port.set_gid(0, gid);
    }
}

/// The ports of an HCA.
pub fn ports_of(header: &Header, hca: u32) -> Vec<u32> {
    let all = 0..header.port_count.get().min(PORTS_MAX);
    all.filter(|port| header.ports[*port as usize].hca.get() == hca)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use snaprig_hca::{
        Transport,
        packet::{Body, Route},
    };

    fn packet(from_port: u32, to_port: u32) -> Packet<'static> {
        let route = Route {
            from_port,
            to_port,
            from_lid: 1,
            to_lid: 2,
            from_qp: 2,
            to_qp: 3,
            service_level: 0,
            pkey: 0xffff,
            global: None,
        };
        Packet {
            route,
            transport: Transport::Rc,
            psn: 0,
            count: 1,
            acknowledge: false,
            solicited: false,
            srq: 0,
            body: Body::Ack,
        }
    }

    #[test]
    fn a_path_is_full_until_its_packets_arrive() {
        let mut network = Network::new(1);
        for due_ns in 1..=LOAD_MAX as u64 {
            assert!(!network.is_full(0, 1));
            network.put(due_ns, packet(0, 1));
        }
        assert!(network.is_full(0, 1) && !network.is_full(1, 0));
        assert!(network.arrived(0).is_none() && network.is_full(0, 1));
        assert!(network.arrived(1).is_some() && !network.is_full(0, 1));
    }
}
