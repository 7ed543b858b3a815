//! What the programs of a plan do, drawn from its seed.

use snaprig_scif::node::{PROT_READ, PROT_WRITE};
use snaprig_sim::Random;

use super::{Parameters, Workload};

/// Each connection begins with so many bytes from the connecting side, which say which it is.
pub const HELLO_BYTES: usize = 8;
/// Ports of listeners: of the first program, and so on.
pub const LISTENERS: u16 = 2000;
/// A port at which nobody listens.
pub const NOBODY: u16 = 1999;
/// Ports of connecting endpoints that use the same again: of the first talk, and so on.
pub const OWN_PORTS: u16 = 3000;
/// Most pages of a window.
const PAGES_MAX: u64 = 3;
/// Windows at fixed offsets begin at one of so many pages.
const PLACES: u64 = 8;

/// How a program accepts.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Of scif_listen.
    pub backlog: usize,
    /// Between accepts.
    pub pause_ns: u64,
}

/// Whom a talk is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A program.
    Program(usize),
    /// A port of its node at which nobody listens.
    Nobody(usize),
    /// A node that there is not.
    Nowhere,
}

/// Connections of one program with another, one after the other.
#[derive(Clone, Debug)]
pub struct Talk {
    /// Who connects.
    pub client: usize,
    /// With whom.
    pub target: Target,
    /// Always from the same port.
    pub same_port: bool,
    /// How often.
    pub attempts: u16,
    /// When it connects first.
    pub start_ns: u64,
    /// How long it waits before it connects again.
    pub pause_ns: u64,
    /// How long it waits for a connection.
    pub patience_ns: Option<u64>,
    /// It connects the same endpoint again if that failed.
    pub insists: bool,
    /// What the connecting side does, and the accepting one.
    pub scripts: [Script; 2],
}

/// What one side of a connection does: three threads, which begin at once.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it sends.
    pub sends: Vec<Send>,
    /// Most bytes of each receive, over and over.
    pub receives: Vec<usize>,
    /// How long it waits for each receive before it tries again.
    pub receive_patience_ns: Option<u64>,
    /// Windows and RMA.
    pub moves: Vec<Move>,
    /// Between calls.
    pub pace_ns: u64,
    /// It does not stay until it has all that its peer sends.
    pub hasty: bool,
    /// It closes in the middle.
    pub leaves_ns: Option<u64>,
}

impl Script {
    /// Bytes that it sends.
    pub fn bytes(&self) -> usize {
        self.sends.iter().map(|send| send.bytes).sum()
    }
}

/// One scif_send.
#[derive(Clone, Debug)]
pub struct Send {
    /// So much.
    pub bytes: usize,
    /// How long it waits.
    pub patience_ns: Option<u64>,
    /// It gives up without asking how much went: then it sends nothing more.
    pub blind: bool,
}

/// One call about windows.
#[derive(Clone, Debug)]
pub enum Move {
    /// scif_register.
    Register {
        /// Pages of the window.
        pages: u64,
        /// Page of its offset.
        place: Option<u64>,
        /// Its pages are one run of memory.
        whole: bool,
        /// `PROT_*`.
        prot: u8,
    },
    /// scif_unregister, of the nth window, modulo those that there are.
    Unregister(u64),
    /// RMA.
    Rma {
        /// Which windows, and where in them: numbers from which that is made.
        picks: [u64; 4],
        /// From here to the peer.
        write: bool,
        /// This side's memory is a window.
        windowed: bool,
        /// The call waits until it is done (SCIF_RMA_SYNC).
        sync: bool,
        /// The last cache line comes last (SCIF_RMA_ORDERED).
        ordered: bool,
        /// How long it waits.
        patience_ns: Option<u64>,
    },
    /// scif_fence_mark, of the own RMA or the peer's; then scif_fence_wait for it.
    Fence {
        /// Of the peer's.
        peer: bool,
    },
    /// scif_fence_signal, into the own windows and the peer's: numbers from which offsets are made.
    Signal {
        /// Which windows, and where in them.
        picks: [u64; 4],
        /// After the peer's RMA.
        peer: bool,
    },
}

/// All that is to be done.
#[derive(Clone, Debug)]
pub struct Work {
    /// Of each program.
    pub listeners: Vec<Listener>,
    /// Who connects with whom.
    pub talks: Vec<Talk>,
    /// Of each program: whether it takes lanes.
    pub takes_lanes: Vec<bool>,
}

impl Work {
    /// What a plan's seed and workload stand for. Less of anything leaves the rest as it is.
    pub fn new(seed: u64, parameters: &Parameters) -> Self {
        let programs = parameters.programs();
        let listener = |program: usize| {
            let mut r = Random::new(seed, &format!("listener {program}"));
            Listener {
                backlog: 1 + r.below(4) as usize,
                pause_ns: [1_000, 1_000, 200_000][r.below(3) as usize],
            }
        };
        let talk = |number: u16| {
            talk(
                &mut Random::new(seed, &format!("talk {number}")),
                parameters,
            )
        };
        let takes_lanes =
            |program: usize| !Random::new(seed, &format!("lanes of {program}")).one_in(3);
        Self {
            takes_lanes: (0..programs).map(takes_lanes).collect(),
            listeners: (0..programs).map(listener).collect(),
            talks: (0..parameters.workload.pairs).map(talk).collect(),
        }
    }
}

impl Work {
    /// Bytes that a side has to expect from its peer.
    pub fn all_bytes(&self, role: Option<(usize, usize)>) -> Option<usize> {
        let (talk, role) = role?;
        let bytes = self.talks[talk].scripts[1 - role].bytes();
        Some(bytes + if role == 1 { HELLO_BYTES } else { 0 })
    }
}

fn talk(r: &mut Random, parameters: &Parameters) -> Talk {
    let programs = parameters.programs() as u64;
    let [client, server] = [r.number(), r.number()].map(|number| (number % programs) as usize);
    let target = match r.below(16) {
        0 => Target::Nobody(server),
        1 => Target::Nowhere,
        _ => Target::Program(server),
    };
    let same_port = !r.one_in(3);
    let attempts = 1 + r.below(3) as u16;
    let (start_ns, longest_ns) = (r.below(100_000), [500, 60_000][r.below(2) as usize]);
    let pause_ns = r.below(longest_ns);
    let patience_ns = r.one_in(6).then(|| r.below(100_000));
    let insists = r.one_in(2);
    let scripts = [r.number(), r.number()].map(|concern| script(concern, parameters.workload));
    Talk {
        client,
        target,
        same_port,
        attempts,
        start_ns,
        pause_ns,
        patience_ns,
        insists,
        scripts,
    }
}

fn script(concern: u64, work: Workload) -> Script {
    let mut r = Random::new(concern, "script");
    let patience = |r: &mut Random, of: u64| r.one_in(of).then(|| r.below(30_000));
    let receives = (0..3).map(|_| match r.below(4) {
        0 => 64 + r.below(64) as usize,
        1 => 4096,
        2 => 10_000,
        _ => 1000 + r.below(5000) as usize,
    });
    let receives: Vec<_> = receives.collect();
    let receive_patience_ns = patience(&mut r, 4);
    let pace_ns = [100, 5_000, 50_000][r.below(3) as usize];
    let hasty = r.one_in(6);
    let leaves_ns = r.one_in(6).then(|| r.below(200_000));
    let mut sends = Random::new(concern, "sends");
    let send = |r: &mut Random| {
        let bytes = match r.below(6) {
            0 | 1 => 1 + r.below(100),
            2 => 4096,
            3 => 4097,
            _ => 1 + r.below(9000),
        };
        Send {
            bytes: bytes as usize,
            patience_ns: patience(r, 12),
            blind: r.one_in(3),
        }
    };
    Script {
        sends: (0..work.sends).map(|_| send(&mut sends)).collect(),
        receives,
        receive_patience_ns,
        moves: moves(concern, work),
        pace_ns,
        hasty,
        leaves_ns,
    }
}

/// First windows, then RMA, with windows that go and come between it.
fn moves(concern: u64, work: Workload) -> Vec<Move> {
    let mut windows = Random::new(concern, "windows");
    let register = |r: &mut Random| Move::Register {
        pages: 1 + r.below(PAGES_MAX),
        place: (!r.one_in(3)).then(|| r.below(PLACES)),
        whole: r.one_in(2),
        prot: match r.below(8) {
            0 => PROT_READ,
            1 => PROT_WRITE,
            _ => PROT_READ | PROT_WRITE,
        },
    };
    let mut all: Vec<_> = (0..work.windows).map(|_| register(&mut windows)).collect();
    let mut r = Random::new(concern, "moves");
    let mut flags = Random::new(concern, "flags of RMA");
    for _ in 0..work.copies {
        let picks = [r.number(), r.number(), r.number(), r.number()];
        all.push(Move::Rma {
            picks,
            write: r.one_in(2),
            windowed: r.one_in(2),
            sync: flags.one_in(3),
            ordered: flags.one_in(3),
            patience_ns: r.one_in(8).then(|| r.below(20_000)),
        });
        let picks = [r.number(), r.number(), r.number(), r.number()];
        let (peer, which) = (r.one_in(2), r.below(6));
        match which {
            0 => all.push(Move::Fence { peer }),
            1 => all.push(Move::Signal { picks, peer }),
            _ => {}
        }
        if work.windows > 0 && r.one_in(3) {
            all.push(Move::Unregister(r.number()));
            all.push(register(&mut r));
        }
    }
    all
}
