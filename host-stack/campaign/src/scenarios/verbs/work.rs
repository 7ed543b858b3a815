//! What the processes of a plan do, drawn from its seed.

use snaprig_hca::{
    Opcode, Path, Transport, faults,
    model::{Model, ModelName},
    testing::Link,
};
use snaprig_sim::{Fault, Plan, Random};

use super::{Parameters, Workload};

/// The longest message.
pub const LONGEST: u32 = 6000;

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// What is asked of the send queue.
    pub opcode: Opcode,
    /// Bytes.
    pub length: u32,
    /// Completes with an entry.
    pub signaled: bool,
    /// Waits for earlier reads and atomics.
    pub fenced: bool,
    /// The data is in the request.
    pub inline: bool,
}

impl Message {
    /// Whether the peer needs a receive for it.
    pub fn takes_receive(&self) -> bool {
        matches!(
            self.opcode,
            Opcode::Send | Opcode::SendImm | Opcode::WriteImm
        )
    }
}

/// Two queue pairs, and what each sends.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Their service.
    pub transport: Transport,
    /// Whose they are.
    pub processes: [u32; 2],
    /// How they are connected.
    pub link: Link,
    /// What each sends.
    pub messages: [Vec<Message>; 2],
    /// Receives come from shared queues.
    pub shared: bool,
}

/// Something that is done.
#[derive(Clone, Copy, Debug)]
pub enum Task {
    /// The next message of a connection's side.
    Send(usize, usize),
    /// A receive of a connection's side.
    Receive(usize, usize),
    /// A send queue is drained, or goes on.
    Drain(usize, usize, bool),
    /// Packets go another way from now on.
    Path(Path),
}

/// All that is to be done.
#[derive(Clone, Debug)]
pub struct Work {
    /// Of each HCA.
    pub models: Vec<ModelName>,
    /// The connections.
    pub connections: Vec<Connection>,
    /// What is done when, in nanoseconds.
    pub tasks: Vec<(u64, Task)>,
    /// How packets go at first.
    pub path: Path,
    /// Whether that changes.
    pub switches: bool,
}

impl Work {
    /// What a plan's seed and workload stand for. Less of anything leaves the rest as it is.
    pub fn new(plan: &Plan, parameters: &Parameters) -> Self {
        let work = parameters.workload;
        let mut r = Random::new(plan.seed, "verbs");
        let models = (0..parameters.hcas).map(|_| match r.one_in(3) {
            true => ModelName::B,
            false => ModelName::A,
        });
        let models: Vec<_> = models.collect();
        let mtus = models.iter().map(|name| Model::of(*name).mtu);
        let mtu_max = mtus.min().unwrap_or(0);
        // As on a real fabric, packets with faults go one by one.
        let of_packets = [faults::PACKET.name, faults::RESPONSE.name];
        let faulty = |fault: &Fault| of_packets.contains(&fault.point.as_str());
        let path = match r.one_in(4) && !plan.faults.iter().any(faulty) {
            true => Path::Whole,
            false => Path::Packets,
        };
        let mut all = Self {
            models,
            connections: Vec::new(),
            tasks: Vec::new(),
            path,
            switches: r.one_in(5),
        };
        if all.switches {
            for path in [Path::Packets, Path::Whole, Path::Packets] {
                all.tasks.push((r.below(100_000), Task::Path(path)));
            }
        }
        for number in 0..work.connections.into() {
            let mut r = Random::new(plan.seed, &format!("connection {number}"));
            let connection = connection(&mut r, work, mtu_max);
            all.plan_tasks(&mut r, number, &connection);
            all.connections.push(connection);
        }
        all
    }

    /// When the work of a connection is done.
    fn plan_tasks(&mut self, r: &mut Random, number: usize, connection: &Connection) {
        let reliable = connection.transport == Transport::Rc;
        let receives_first = !reliable || r.one_in(2);
        // How far apart: all at once, as fast as they are carried out, or slower.
        let pace_ns = [100, 2_000, 100_000][r.below(3) as usize];
        for side in 0..2 {
            let (mut send_ns, mut receive_ns) = (0, 0);
            for message in &connection.messages[side] {
                send_ns += r.below(pace_ns);
                receive_ns += r.below(pace_ns);
                self.tasks.push((send_ns, Task::Send(number, side)));
                if message.takes_receive() {
                    let at = if receives_first { 0 } else { receive_ns };
                    self.tasks.push((at, Task::Receive(number, 1 - side)));
                }
            }
        }
        if r.one_in(6) {
            let (from, to) = (r.below(20 * pace_ns), r.below(20 * pace_ns));
            self.tasks.push((from, Task::Drain(number, 0, true)));
            self.tasks.push((from + to, Task::Drain(number, 0, false)));
        }
        // Equal times keep this order: receives are there before what they are for.
        let first = |(at, task): &(u64, Task)| (*at, !matches!(task, Task::Receive(..)));
        self.tasks.sort_by_key(first);
    }
}

fn connection(r: &mut Random, work: Workload, mtu_max: u32) -> Connection {
    let (processes, messages) = (work.processes.into(), work.messages);
    let transport = [Transport::Rc, Transport::Rc, Transport::Uc, Transport::Ud];
    let transport = transport[r.below(4) as usize];
    let mtu = [256, 512, 1024, 4096][r.below(4) as usize].min(mtu_max);
    let a = r.below(processes);
    let b = match processes {
        1 => a,
        many => (a + 1 + r.below(many - 1)) % many,
    };
    let link = Link {
        mtu,
        psn: [0, 5, 0x7f_fff8, 0xff_fff0, 0xff_ffff][r.below(5) as usize],
        timeout: 10 + r.below(3) as u8,
        rnr_retry: if r.one_in(4) { 3 } else { 7 },
        min_rnr_timer: 1 + r.below(12) as u8,
        rd_atomic: 1 + r.below(4) as u8,
        ..Link::default()
    };
    let shared = transport != Transport::Ud && r.one_in(4);
    let side = |concern: u64| {
        let mut r = Random::new(concern, "messages");
        (0..messages)
            .map(|_| message(&mut r, transport, mtu))
            .collect()
    };
    let messages = [side(r.number()), side(r.number())];
    Connection {
        transport,
        processes: [a as u32, b as u32],
        link,
        messages,
        shared,
    }
}

fn message(r: &mut Random, transport: Transport, mtu: u32) -> Message {
    use Opcode::*;
    let opcode = match transport {
        Transport::Ud => SendImm,
        Transport::Uc => [SendImm, SendImm, Write, WriteImm][r.below(4) as usize],
        _ => [Send, SendImm, Write, WriteImm, Read, Read, FetchAdd, Send][r.below(8) as usize],
    };
    let length = match r.below(6) {
        0 => r.below(10) as u32,
        1 => mtu - 1,
        2 => mtu,
        3 => mtu + 1,
        _ => r.below(LONGEST.into()) as u32,
    };
    let length = match (opcode, transport) {
        (FetchAdd, _) => 8,
        (_, Transport::Ud) => length.min(mtu),
        _ => length,
    };
    Message {
        opcode,
        length,
        signaled: !r.one_in(3),
        fenced: r.one_in(8),
        inline: length <= 256 && !opcode.fetches() && r.one_in(3),
    }
}
