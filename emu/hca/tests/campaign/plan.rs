//! What a seed stands for.

use snaprig_hca::{Opcode, Path, Transport, testing::Link};
use snaprig_sim::Random;

/// The longest message.
pub const LONGEST: u32 = 6000;

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    pub opcode: Opcode,
    pub length: u32,
    pub signaled: bool,
    pub fenced: bool,
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
    pub transport: Transport,
    pub nodes: [usize; 2],
    pub link: Link,
    pub messages: [Vec<Message>; 2],
    /// Receives are there before anything is sent.
    pub receives_first: bool,
    /// Receives come from shared queues.
    pub shared: bool,
}

/// What is done, in order.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// The next message of a connection's side.
    Send(usize, usize),
    /// A receive of a connection's side.
    Receive(usize, usize),
    /// Time passes.
    Wait(u64),
    /// A port goes away, or comes back.
    Cut(u32, bool),
    /// A process dies.
    Kill(usize),
    /// Who posts next dies in so many calls of the host.
    Die(u32),
    /// A send queue is drained, or goes on.
    Drain(usize, usize, bool),
    /// Packets take another path.
    Path(Path),
}

/// A run to be.
#[derive(Clone, Debug)]
pub struct Plan {
    pub nodes: usize,
    pub connections: Vec<Connection>,
    pub actions: Vec<Action>,
    pub path: Path,
    pub loss: u64,
    pub damage: u64,
    pub copies: u64,
    pub reorder: u64,
    pub cuts: bool,
    pub kills: bool,
    pub switches: bool,
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut r = Random::new(seed, "plan");
        let nodes = 2 + r.below(3) as usize;
        let connections: Vec<_> = (0..1 + r.below(4))
            .map(|_| connection(&mut r, nodes))
            .collect();
        let mut actions = Vec::new();
        for (c, connection) in connections.iter().enumerate() {
            for side in 0..2 {
                for message in &connection.messages[side] {
                    actions.push(Action::Send(c, side));
                    if message.takes_receive() {
                        actions.push(Action::Receive(c, 1 - side));
                    }
                }
            }
        }
        let waits = r.below(20);
        for _ in 0..waits {
            let longest = [1000, 10_000, 1_000_000][r.below(3) as usize];
            actions.push(Action::Wait(r.below(longest)));
        }
        let mut kills = r.one_in(6);
        if kills {
            actions.push(Action::Kill(r.below(nodes as u64) as usize));
        }
        if r.one_in(6) {
            kills = true;
            actions.push(Action::Die(1 + r.below(12) as u32));
        }
        let switches = r.one_in(5);
        if switches {
            actions.push(Action::Path(Path::Packets));
            actions.push(Action::Path(Path::Whole));
            actions.push(Action::Path(Path::Packets));
        }
        let cuts = r.one_in(4);
        if cuts {
            let port = r.below(nodes as u64) as u32;
            actions.extend([Action::Cut(port, true), Action::Cut(port, false)]);
        }
        for c in 0..connections.len() {
            if r.one_in(6) {
                actions.extend([Action::Drain(c, 0, true), Action::Drain(c, 0, false)]);
            }
        }
        shuffle(&mut r, &mut actions);
        let first = |action: &Action| match action {
            Action::Receive(c, _) => !connections[*c].receives_first,
            _ => true,
        };
        actions.sort_by_key(first);
        let clean = r.one_in(4);
        let worst = [20, 50, 200][r.below(3) as usize];
        let mut rate = || {
            if clean || r.one_in(3) {
                0
            } else {
                r.below(worst)
            }
        };
        Self {
            nodes,
            loss: rate(),
            damage: rate() / 2,
            copies: rate(),
            reorder: rate(),
            path: if seed.is_multiple_of(4) {
                Path::Whole
            } else {
                Path::Packets
            },
            connections,
            actions,
            cuts,
            kills,
            switches,
        }
    }

    /// Whether nothing goes wrong.
    pub fn is_clean(&self) -> bool {
        self.loss + self.damage + self.copies + self.reorder == 0 && !self.cuts && !self.kills
    }

    /// Whether packets may overtake each other, or come twice.
    pub fn is_strange(&self) -> bool {
        self.copies + self.reorder > 0 || self.switches
    }
}

fn shuffle(r: &mut Random, actions: &mut [Action]) {
    for end in (1..actions.len()).rev() {
        actions.swap(end, r.below(end as u64 + 1) as usize);
    }
}

fn connection(r: &mut Random, nodes: usize) -> Connection {
    let transport = [Transport::Rc, Transport::Rc, Transport::Uc, Transport::Ud];
    let transport = transport[r.below(4) as usize];
    let mtu = [256, 512, 1024, 4096][r.below(4) as usize];
    let a = r.below(nodes as u64) as usize;
    let b = (a + 1 + r.below(nodes as u64 - 1) as usize) % nodes;
    let reliable = transport == Transport::Rc;
    let link = Link {
        mtu,
        psn: [0, 5, 0x7f_fff8, 0xff_fff0, 0xff_ffff][r.below(5) as usize],
        timeout: 10 + r.below(3) as u8,
        rnr_retry: if r.one_in(4) { 3 } else { 7 },
        min_rnr_timer: 1 + r.below(12) as u8,
        rd_atomic: 1 + r.below(4) as u8,
        ..Link::default()
    };
    let count = [3, 10, 20][r.below(3) as usize];
    let side = |r: &mut Random| {
        let count = r.below(count) + 1;
        (0..count).map(|_| message(r, transport, mtu)).collect()
    };
    Connection {
        transport,
        nodes: [a, b],
        link,
        messages: [side(r), side(r)],
        receives_first: !reliable || r.one_in(2),
        shared: transport != Transport::Ud && r.one_in(4),
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
